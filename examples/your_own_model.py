"""A posterior for any PyTorch model: name its last layer."""

import tempfile

import torch
from torch import nn

import probneural as pn

STEPS = 500

heat = pn.problems.Heat(
    dimension=1, diffusivity=0.01, random_field=pn.problems.GaussianRandomField(1, 15)
)
train = heat.sample(200, resolution=64, seed=0)
held_out = heat.sample(200, resolution=64, seed=1)
test = heat.sample(100, resolution=64, seed=2)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv1d(1, 32, 15, padding="same", padding_mode="circular"),
    nn.GELU(),
    nn.Conv1d(32, 32, 15, padding="same", padding_mode="circular"),
    nn.GELU(),
    nn.Conv1d(32, 1, 1),
)
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(STEPS):  # any training loop
    optimiser.zero_grad()
    nn.functional.mse_loss(model(train.inputs.values), train.outputs.values).backward()
    optimiser.step()

# "4" is the last layer of nn.Sequential
predictor = pn.heads.LastLayerLaplace(readout="4").fit(model, train)
predictor = pn.calibration.calibrate(predictor, held_out, seed=0)
u = predictor(test.inputs)
print(pn.metrics.score(u, test.outputs, noise=predictor.noise))
pn.plots.field(u, test.outputs, noise=predictor.noise).savefig("your_own_model.png", dpi=120)

with tempfile.TemporaryDirectory() as folder:  # the file holds the weights only
    pn.save(predictor, f"{folder}/predictor.safetensors")
    again = pn.load(f"{folder}/predictor.safetensors", operator=model)
print(torch.equal(again(test.inputs).variance, predictor(test.inputs).variance))
