"""A recurrent operator removes noise from a tone; Lightning trains it, and a tracker logs it."""

import lightning
from lightning.pytorch.loggers import CSVLogger

import probneural as pn
from probneural.training.lightning import lightning_module, pair_loader

SIGNALS, TEST, EPOCHS = 3000, 1000, 4

problem = pn.problems.SignalSeparation()  # 3 Hz out of four tones and noise of variance 1
watched, train = problem.sample(SIGNALS + 200, resolution=200, seed=0).split(200, seed=0)
calibration, test = (problem.sample(TEST, resolution=200, seed=seed) for seed in (1, 2))

operator = pn.operators.RecurrentOperator(1, 1, is_bidirectional=True, seed=0)
operator.fit_normalizers(train)  # units, from training data only
module = lightning_module(
    operator,
    loss=lambda predicted, target, grid: (predicted - target).square().mean(),
    learning_rate=1e-2,
)
tracker = CSVLogger("runs", name="tones")  # or WandbLogger, MLFlowLogger, TensorBoardLogger
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    logger=tracker,
    gradient_clip_val=1.0,
    log_every_n_steps=10,
    accelerator="auto",  # CUDA, MPS or CPU
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, pair_loader(train, batch_size=32, seed=0), pair_loader(watched))

predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)
u = predictor(test.inputs)
own, best = (
    (mean - test.outputs.values).square().mean().sqrt()
    for mean in (u.mean, problem.solve(test.inputs).values)
)
print(f"root mean square error {own:.3f}, of the exact posterior mean {best:.3f}")
print(pn.metrics.score(u, test.outputs, noise=predictor.noise))
pn.plots.field(u[:1], truth=test.outputs[:1]).savefig("tones_with_lightning.png", dpi=120)
