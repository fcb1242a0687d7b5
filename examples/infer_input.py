"""Infer an input from noisy observations of an output, with a simulator of your own.

Steady flow through an aquifer, -(a u')' = 1 with u = 0 at both ends: eight numbers describe the
logarithm of the conductivity a, and six wells measure the pressure u. Simulations of random
aquifers train the surrogate, and its uncertainty enters the likelihood.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.distributions import Independent, Normal

import probneural as pn

SIMULATIONS, HELD_OUT, WIDTH, EPOCHS, DRAWS, NOISE = 300, 200, 16, 60, 2000, 0.003
x = np.linspace(0.0, 1.0, 65)
aquifer = pn.Grid.uniform(65, periodic=False)


def simulate(log_conductivity):
    """Your simulator: here exact up to quadrature, arrays (n, 65) to (n, 65)."""
    resistance = np.exp(-log_conductivity)

    def integral(f):
        return np.pad(np.cumsum((f[:, 1:] + f[:, :-1]) / 128, axis=1), ((0, 0), (1, 0)))

    flux = integral(x * resistance)[:, -1:] / integral(resistance)[:, -1:] - x
    return integral(flux * resistance)


modes = torch.cos(torch.pi * torch.arange(8)[:, None] * torch.from_numpy(x))
prior = Independent(Normal(torch.zeros(8), 0.8 / torch.arange(1, 9)), 1)


def encode(theta):
    """Parameters (n, 8) to input fields, differentiably."""
    return pn.Field((theta @ modes)[:, None].float(), aquifer)


def simulated(count):
    inputs = encode(prior.sample((count,)).double())
    outputs = simulate(inputs.values[:, 0].double().numpy())
    return pn.FieldPairs(inputs, pn.Field.from_numpy(outputs, grid=aquifer, dtype=torch.float32))


torch.manual_seed(0)
train, held_out, truth = simulated(SIMULATIONS), simulated(HELD_OUT), simulated(1)
walls = {"periodic": False, "embeds_position": True, "continuation": "odd"}
operator = pn.operators.FNO(
    in_channels=1, out_channels=1, modes=(8,), width=WIDTH, depth=2, seed=0, **walls
)
pn.fit(operator, train, epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.calibrate(predictor, held_out, seed=0)

wells = [0.1, 0.25, 0.4, 0.6, 0.75, 0.9]
probe = pn.functionals.sensors(aquifer, [[well] for well in wells])
measured = probe(truth.outputs.values)[0] + NOISE * torch.randn(1, 6)
problem = pn.inverse.InverseProblem(
    predictor,
    prior=prior,
    encode=encode,
    functional=probe,
    data=measured,
    noise=NOISE**2,
    likelihood="joint",
)
posterior = problem.sample("pcn", draws=DRAWS, chains=20, seed=0)
print(f"R-hat {float(posterior.r_hat.max()):.2f} at most")
print(f"effective samples {float(posterior.effective_samples.min()):.0f} at least")
print(f"chi² per observation {float(posterior.chi2):.2f}")
print(f"median p-value of novelty {float(posterior.novelty.median()):.2f}")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for panel, name, field, exact in (
    (axes[0], "log conductivity", posterior.inputs, truth.inputs),
    (axes[1], "pressure", posterior.outputs, truth.outputs),
):
    lower, upper = field.interval(0.9)
    inside = ((lower <= exact.values) & (exact.values <= upper)).double().mean()
    print(f"{name}: {inside:.0%} of the points inside the 90 % intervals")
    panel.fill_between(x, lower[0, 0], upper[0, 0], alpha=0.3, label="90 % intervals")
    panel.plot(x, field.mean[0, 0], label="posterior mean")
    panel.plot(x, exact.values[0, 0], "k--", label="truth")
    panel.set(xlabel="x", title=name)
axes[1].plot(wells, measured[0], "o", color="C3", label="data")
axes[1].legend()
figure.savefig("infer_input.png", dpi=120)
