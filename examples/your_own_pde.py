"""Your own equation: from its right-hand side to a posterior, for Gray-Scott reaction-diffusion.

∂u/∂t = D_u ∂²u/∂x² − u v² + F (1 − u), ∂v/∂t = D_v ∂²v/∂x² + u v² − (F + k) v

Diffusion is diagonal in Fourier space and is given by its symbol, so it does not limit the steps.
The initial state is the steady state plus two independent random fields.
"""

import torch

import probneural as pn

FUNCTIONS, HELD_OUT, TEST, WIDTH, EPOCHS = 400, 200, 100, 32, 60
FEED, KILL, LENGTH = 0.04, 0.06, 1.0


def reaction(time, state, grid):
    u, v = state.unbind(1)
    consumed = pn.problems.dealias(u * v * v, grid)
    return torch.stack([FEED * (1 - u) - consumed, consumed - (FEED + KILL) * v], dim=1)


def diffusion(wavenumber):  # angular; one row for each channel
    return torch.stack([-2e-4 * wavenumber**2, -1e-4 * wavenumber**2])


def disturbed_rest(coefficients, grid):
    u, v = (
        disturbance.evaluate(part, grid)
        for part in coefficients.split([disturbance.size] * 2, dim=1)
    )
    return torch.stack([0.5 + u, 0.25 + v], dim=1)


disturbance = pn.problems.GaussianRandomField(1, 8, sigma=3.0)
gray_scott = pn.problems.MethodOfLines(
    reaction,
    linear_symbol=diffusion,
    input_distribution=pn.problems.StateDistribution(
        pn.problems.IndependentDistributions((disturbance, disturbance)), disturbed_rest, channels=2
    ),
    time=20.0,
    name="Gray-Scott",
    integrator=pn.problems.TimeIntegrator(rtol=1e-6, atol=1e-8),
)
train = gray_scott.sample(FUNCTIONS, resolution=64, seed=0)
held_out = gray_scott.sample(HELD_OUT, resolution=64, seed=1)
test = gray_scott.sample(TEST, resolution=128, seed=2)  # the same distribution, on a finer grid

# Error of the data in space: the difference between two resolutions.
coarse = gray_scott.sample(20, resolution=64, seed=2)
fine = test.outputs.values[:20, :, ::2]
difference = float((coarse.outputs.values - fine).abs().max())
print(f"{gray_scott.name}: largest difference between 64 and 128 points {difference:.1e}")

operator = pn.operators.FNO(in_channels=2, out_channels=2, modes=(16,), width=WIDTH, seed=0)
pn.fit(operator, train, epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.calibrate(predictor, held_out, seed=0)
u = predictor(test.inputs)
print(pn.metrics.score(u, test.outputs, noise=predictor.noise))
# The first chemical
pn.plots.field(u, test.outputs, noise=predictor.noise).savefig("your_own_pde.png", dpi=120)
