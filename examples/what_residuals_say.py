"""PDE residuals and true errors on three exact problems: bands without solutions.

A band for the residual is calibrated on inputs alone and has its nominal coverage. Its relation to
the error depends on the inverse of the equation.
"""

import math

import torch

import probneural as pn

FUNCTIONS = 60
CALIBRATION = 200
TEST = 200


def slope(values, step):
    """Fourth-order differences along the last axis, in the interior."""
    return (values[..., :-4] - 8 * values[..., 1:-3] + 8 * values[..., 3:-1] - values[..., 4:]) / (
        12 * step
    )


def curvature(values, step):
    """Fourth-order second differences along the last axis, in the interior."""
    near = 16 * (values[..., 1:-3] + values[..., 3:-1]) - values[..., :-4] - values[..., 4:]
    return (near - 30 * values[..., 2:-2]) / (12 * step**2)


def antiderivative(predicted, inputs, grid):  # s' - v
    left = slope(predicted, 1 / (grid.size - 1)) - inputs.values[..., 2:-2]
    return torch.nn.functional.pad(left, (2, 2))


def darcy(predicted, inputs, grid):  # (e^g u')' + 1 = e^g (u'' + g' u') + 1
    step, g = 1 / (grid.size - 1), inputs.values
    left = (
        g[..., 2:-2].exp() * (curvature(predicted, step) + slope(g, step) * slope(predicted, step))
        + 1
    )
    return torch.nn.functional.pad(left, (2, 2))


def helmholtz(k):  # u_xx + u_yy + k² u + f
    def residual(predicted, inputs, grid):
        step = 1 / (grid.shape[0] - 1)
        along = (
            curvature(predicted, step)[..., 2:-2, :] + curvature(predicted.mT, step).mT[..., 2:-2]
        )
        left = along + k**2 * predicted[..., 2:-2, 2:-2] + inputs.values[..., 2:-2, 2:-2]
        return torch.nn.functional.pad(left, (2, 2, 2, 2))

    return residual


def rank_correlation(first, second):
    ranks = torch.stack([first.argsort().argsort(), second.argsort().argsort()]).double()
    return torch.corrcoef(ranks)[0, 1].item()


near = math.sqrt(8 * math.pi**2 - 0.1)  # .1 from the resonance of the mode (2, 2)
cases = {
    "antiderivative": (pn.problems.Antiderivative(), antiderivative, 129),
    "Darcy": (pn.problems.Darcy1D(), darcy, 129),
    "Helmholtz": (pn.problems.Helmholtz(8.0), helmholtz(8.0), 33),
    "Helmholtz, resonant": (pn.problems.Helmholtz(near), helmholtz(near), 33),
}
print(f"{'':20}  band  residual  error  error/residual      rank correlation   rank correlation")
print(f"{'':20}  holds      rms    rms  5 % to 95 %         residual, error         sd, error")
for name, (problem, residual, resolution) in cases.items():
    train, calibration, test = (
        problem.sample(n, resolution=resolution, seed=seed, dtype=torch.float64)
        for seed, n in enumerate((FUNCTIONS, CALIBRATION, TEST))
    )
    predictor = pn.heads.KernelOperator().fit(None, train)
    # No solutions
    bound = pn.calibration.ResidualBand(residual, 0.9).fit(predictor, calibration.inputs)
    u = predictor(test.inputs)
    left = bound.residuals(test.inputs).square().flatten(1).mean(1).sqrt()
    error = (u.mean - test.outputs.values).square().flatten(1).mean(1).sqrt()
    low, high = (error / left).quantile(torch.tensor([0.05, 0.95], dtype=error.dtype)).tolist()
    stated = u.variance.flatten(1).mean(1).sqrt()
    print(
        f"{name:20}  {bound.holds(test.inputs).double().mean():5.2f}  "
        f"{left.mean():8.2g}  {error.mean():5.1g}  {low:7.1e} to {high:7.1e}  "
        f"{rank_correlation(left, error):15.2f}  {rank_correlation(stated, error):15.2f}"
    )
