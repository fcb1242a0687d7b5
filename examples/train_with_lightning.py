"""Lightning trains a Fourier neural operator on Burgers' equation, and a tracker logs it."""

import lightning
from lightning.pytorch.loggers import CSVLogger

import probneural as pn
from probneural.training.lightning import lightning_module, pair_loader

SAMPLES, TEST, WIDTH, EPOCHS = 1000, 200, 24, 20

problem = pn.problems.Burgers(viscosity=0.1)
validation, train = problem.sample(SAMPLES + 100, resolution=64, seed=0).split(100, seed=0)
calibration, test = (problem.sample(TEST, resolution=64, seed=seed) for seed in (1, 2))

operator = pn.operators.FNO(1, 1, modes=(16,), width=WIDTH, seed=0)
operator.fit_normalizers(train)  # units, from training data only
module = lightning_module(operator, learning_rate=3e-3)
tracker = CSVLogger("runs", name="burgers")  # or WandbLogger, MLFlowLogger, TensorBoardLogger
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    logger=tracker,
    gradient_clip_val=1.0,
    log_every_n_steps=10,
    accelerator="auto",  # CUDA, MPS or CPU
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, pair_loader(train, batch_size=32, seed=0), pair_loader(validation))

predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)
u = predictor(test.inputs)
print(pn.metrics.score(u, test.outputs, noise=predictor.noise))
pn.plots.field(u[:1], truth=test.outputs[:1]).savefig("train_with_lightning.png", dpi=120)
