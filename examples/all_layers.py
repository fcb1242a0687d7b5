"""Posterior over all layers: low-rank Laplace with bounds, new data, a constraint, a file."""

import tempfile

import torch

import probneural as pn

WIDTH, EPOCHS, RANK = 16, 200, 100

burgers = pn.problems.Burgers(viscosity=0.1)
train = burgers.sample(50, resolution=64, seed=0)
more = burgers.sample(20, resolution=64, seed=1)
test = burgers.sample(10, resolution=64, seed=2)

operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(8,), width=WIDTH, depth=2, seed=0)
pn.fit(operator, train, epochs=EPOCHS, seed=0, show_progress=False)

predictor = pn.heads.Laplace(pn.heads.LowRank(rank=RANK)).fit(operator, train)
u = predictor(test.inputs)
lower, upper = predictor.variance_bounds(test.inputs)  # bounds from the truncated directions
print("data say", {name: round(value, 4) for name, value in predictor.report.items()})
print(f"sd {float(u.standard_deviation.mean()):.4f}, at least {float(lower.sqrt().mean()):.4f}")

updated = predictor.update(more)  # exact Bayesian regression on the Jacobian: no new fit
print(f"with 20 more functions: sd {float(updated(test.inputs).standard_deviation.mean()):.4f}")

energy = u.grid.mean(test.outputs.values.square())  # a known energy per field, (n, 1)
v = u.constrain_residual(lambda values: u.grid.mean(values.square()) - energy.to(values))
print(f"energy missed by {float((u.grid.mean(v.mean.square()) - energy).abs().max()):.1e}")

draw = predictor.draw(seed=0)  # one operator from the posterior, at any input and on any grid
print(
    "a draw on a finer grid:",
    tuple(draw(burgers.sample(1, resolution=256, seed=3).inputs.values).shape),
)

with tempfile.TemporaryDirectory() as folder:
    pn.save(updated, f"{folder}/posterior.safetensors")
    again = pn.load(f"{folder}/posterior.safetensors")
print(
    "the file predicts the same:", torch.equal(again(test.inputs).mean, updated(test.inputs).mean)
)

figure = pn.plots.field(v, test.outputs)
figure.savefig("all_layers.png", dpi=120)
