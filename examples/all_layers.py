"""Uncertainty of all layers: a low-rank Laplace posterior with its bounds, new data, a nonlinear constraint, and a file."""

import sys
import tempfile

import torch

import probneural as pn

small = "--small" in sys.argv
burgers = pn.problems.Burgers(viscosity=0.1)
train = burgers.sample(50, resolution=64, seed=0)
more = burgers.sample(20, resolution=64, seed=1)
test = burgers.sample(10, resolution=64, seed=2)

torch.manual_seed(0)
operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(8,), width=8 if small else 16, depth=2)
pn.fit(operator, train, epochs=40 if small else 200, seed=0, show_progress=False)

predictor = pn.heads.Laplace(pn.heads.LowRank(rank=20 if small else 100)).fit(operator, train)
u = predictor(test.inputs)
lower, upper = predictor.variance_bounds(test.inputs)  # what the directions left out may change
print("data say", {name: round(value, 4) for name, value in predictor.report.items()})
print(f"sd {float(u.standard_deviation.mean()):.4f}, at least {float(lower.sqrt().mean()):.4f}")

updated = predictor.update(more)  # exact Bayesian regression on the Jacobian: no new fit
print(f"with 20 more functions: sd {float(updated(test.inputs).standard_deviation.mean()):.4f}")

share = u.grid.weights / u.grid.volume
energy = test.outputs.values.square() @ share.to(torch.float32)  # known, say: each field's energy, (n, 1)
v = u.constrain_residual(lambda values: values.square() @ share.to(values) - energy.to(values))
print(f"energy missed by {float((v.mean.square() @ share.to(v.mean) - energy).abs().max()):.1e}")

draw = predictor.draw(seed=0)  # one operator from the posterior, at any input and on any grid
print("a draw on a finer grid:", tuple(draw(burgers.sample(1, resolution=256, seed=3).inputs.values).shape))

with tempfile.TemporaryDirectory() as folder:
    pn.save(updated, f"{folder}/posterior.safetensors")
    again = pn.load(f"{folder}/posterior.safetensors")
print("the file predicts the same:", torch.equal(again(test.inputs).mean, updated(test.inputs).mean))
