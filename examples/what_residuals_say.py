"""PDE residuals and true errors on four exact problems: bands without solutions.

A band for the residual is calibrated on inputs alone and has its nominal coverage. Its relation to
the error depends on the inverse of the equation.
"""

import math

import torch

import probneural as pn
from probneural.physics import Residual, equations, partial

FUNCTIONS = 60
CALIBRATION = 200
TEST = 200


def antiderivative(u, inputs):  # s' - v
    return partial(u, 0).values - inputs.values


def rank_correlation(first, second):
    ranks = torch.stack([first.argsort().argsort(), second.argsort().argsort()]).double()
    return torch.corrcoef(ranks)[0, 1].item()


near = math.sqrt(8 * math.pi**2 - 0.1)  # .1 from the resonance of the mode (2, 2)
darcy = equations.Darcy(lambda inputs: inputs.values.exp())
cases = {
    "antiderivative": (pn.problems.Antiderivative(), antiderivative, 129),
    "Darcy": (pn.problems.Darcy1D(), darcy, 129),
    "Helmholtz": (pn.problems.Helmholtz(8.0), equations.Helmholtz(8.0), 33),
    "Helmholtz, resonant": (pn.problems.Helmholtz(near), equations.Helmholtz(near), 33),
}
print(f"{'':20}  band  residual  error  error/residual      rank correlation   rank correlation")
print(f"{'':20}  holds      rms    rms  5 % to 95 %         residual, error         sd, error")
for name, (problem, equation, resolution) in cases.items():
    train, calibration, test = (
        problem.sample(n, resolution=resolution, seed=seed, dtype=torch.float64)
        for seed, n in enumerate((FUNCTIONS, CALIBRATION, TEST))
    )
    predictor = pn.heads.KernelOperator().fit(None, train)
    # No solutions
    residual = Residual(equation)
    bound = pn.calibration.ResidualBand(residual, 0.9).fit(predictor, calibration.inputs)
    u = predictor(test.inputs)
    size = pn.metrics.residual(u, residual, inputs=test.inputs, draws=0).mean
    error = (u.mean - test.outputs.values).square().flatten(1).mean(1).sqrt()
    low, high = (error / size).quantile(torch.tensor([0.05, 0.95], dtype=error.dtype)).tolist()
    deviation = u.variance.flatten(1).mean(1).sqrt()
    print(
        f"{name:20}  {bound.holds(test.inputs).double().mean():5.2f}  "
        f"{size.mean():8.2g}  {error.mean():5.1g}  {low:7.1e} to {high:7.1e}  "
        f"{rank_correlation(size, error):15.2f}  {rank_correlation(deviation, error):15.2f}"
    )
