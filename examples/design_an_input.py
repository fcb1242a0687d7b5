"""Bayesian optimisation over input functions: find the initial state whose solution is largest at one sensor.

The operator and its posterior stand in for the solver inside BoTorch's acquisition function; the exact solution then judges
the design that was found.
"""

import sys

import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.optim import optimize_acqf

import probneural as pn

small = "--small" in sys.argv
burgers = pn.problems.Burgers(viscosity=0.1, design_dim=4)
train = burgers.sample(32 if small else 256, resolution=128, seed=0)
torch.manual_seed(0)
operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(16,), width=8 if small else 32)
pn.fit(operator, train, epochs=2 if small else 50, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)

grid = train.outputs.grid
probe = pn.functionals.sensors(grid, [[0.5]])


def encode(design):
    """Map designs in the unit cube to initial states."""
    return burgers.encode(design, grid=grid)


model = pn.active.OperatorModel(predictor, encode=encode, functional=probe)
bounds = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.double)
acquisition = qUpperConfidenceBound(model, beta=1.0)
design, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=2 if small else 6, raw_samples=16 if small else 128)

exact = probe(burgers.solve(encode(design)).values).item()
others = probe(burgers.solve(encode(torch.rand(256, 4, dtype=torch.double))).values)
print(f"predicted {model.posterior(design).mean.item():.4f}, exact {exact:.4f}")
print(f"best of 256 random designs {float(others.max()):.4f}")
