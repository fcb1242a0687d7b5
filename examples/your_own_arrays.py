"""From two NumPy arrays, with walls, to intervals of a regional mean for new inputs."""

import numpy as np
import torch

import probneural as pn

FUNCTIONS, WIDTH, EPOCHS = 1000, 32, 60

# In general from files. Here: temperatures of a rod with ends at zero, at two times.
rng, x, k = np.random.default_rng(0), np.linspace(0, 1, 64), np.arange(1, 17)
amplitudes = rng.normal(size=(FUNCTIONS + 400, 16)) / k
sines = np.sin(np.pi * np.outer(k, x))
# (n, 64) each
start, later = amplitudes @ sines, (amplitudes * np.exp(-0.01 * (np.pi * k) ** 2)) @ sines

rod = pn.Grid.uniform(64, lengths=1.0, periodic=False)  # walls: both ends are points of the grid
known = pn.FieldPairs.from_numpy(
    start[:FUNCTIONS], later[:FUNCTIONS], grid=rod, dtype=torch.float32
)
train, rest = known.split(FUNCTIONS // 5, seed=0)
scaling, conformal = rest.split(FUNCTIONS // 5, seed=0)

# Walls: periodic=False and the position. "odd" only where functions vanish at the walls.
walls = {"periodic": False, "embeds_position": True, "continuation": "odd"}
operator = pn.operators.FNO(
    in_channels=1, out_channels=1, modes=(16,), width=WIDTH, seed=0, **walls
)
pn.fit(operator, train, epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, scaling)

new = pn.Field.from_numpy(start[FUNCTIONS:], grid=rod, dtype=torch.float32)  # inputs alone
region = pn.functionals.region(rod, lower=0.2, upper=0.5).named("mean over 0.2 < x < 0.5")
# Split conformal: the level at which intervals of the posterior hold 90 % of other means
held_out, forecast = predictor(conformal.inputs).apply(region), predictor(new).apply(region)
errors = (region(conformal.outputs.values) - held_out.mean).abs() / held_out.std
factor = errors.flatten().quantile(0.9 + 0.9 / len(conformal), interpolation="higher")
level = round(torch.erf(factor / 2**0.5).item(), 3)  # of this many standard deviations
lower, upper = forecast.interval(level)
for number in range(3):
    print(f"function {number}: {lower[number].item():.4f} to {upper[number].item():.4f}")

truth = region(torch.from_numpy(later[FUNCTIONS:, None]))
share = ((lower <= truth) & (truth <= upper)).double().mean().item()
print(f"{share:.1%} of {len(new)} means inside the conformal 90 % intervals, at level {level}")
pn.plots.quantity(forecast[:16], truth[:16], level=level).savefig("your_own_arrays.png", dpi=120)
