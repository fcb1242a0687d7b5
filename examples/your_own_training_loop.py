"""A posterior after a training loop of your own: PyTorch's optimiser, scheduler and batches."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import probneural as pn

FUNCTIONS, WIDTH, EPOCHS = 256, 24, 30

burgers = pn.problems.Burgers(viscosity=0.1)
train = burgers.sample(FUNCTIONS, resolution=64, seed=0)
calibration = burgers.sample(100, resolution=64, seed=1)
test = burgers.sample(100, resolution=128, seed=2)

operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(12,), width=WIDTH, seed=0)
operator.fit_normalizers(train)  # units, from training data only
optimiser = torch.optim.AdamW(operator.parameters(), lr=3e-3)
pairs = TensorDataset(train.inputs.values, train.outputs.values)
loader = DataLoader(pairs, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=EPOCHS * len(loader))
for _ in range(EPOCHS):
    for inputs, outputs in loader:
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(operator(inputs), outputs).backward()
        optimiser.step()
        scheduler.step()

predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)
u = predictor(test.inputs)
print(pn.metrics.score(u, test.outputs, noise=predictor.noise))
pn.plots.calibration(u, test.outputs, noise=predictor.noise).savefig(
    "your_own_training_loop.png", dpi=120
)
