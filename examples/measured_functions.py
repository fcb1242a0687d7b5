"""Sensors instead of simulations: measurements of some samples inform all others.

A Gaussian process is fitted to a few whole solutions. Three numbers are measured of further
solutions, and `predictor.condition` applies Bayes' rule to them. The gain is between no
measurement and as many whole solutions.
"""

import torch
from matplotlib.figure import Figure

import probneural as pn

SEEDS, FUNCTIONS, MEASURED, HELD_OUT, TEST = 3, 60, (10, 30, 100), 100, 100

burgers = pn.problems.Burgers(viscosity=0.1)
errors = torch.zeros(SEEDS, len(MEASURED), 3)
covered = torch.zeros(SEEDS, len(MEASURED), 3)
for seed in range(SEEDS):
    pairs = burgers.sample(FUNCTIONS + MEASURED[-1] + TEST, resolution=64, seed=seed)
    held_out = burgers.sample(HELD_OUT, resolution=64, seed=SEEDS + seed)
    train, test = pairs[:FUNCTIONS], pairs[-TEST:]
    probe = pn.functionals.sensors(test.outputs.grid, [[0.15], [0.5], [0.85]])
    predictor = pn.heads.KernelOperator().fit(None, train)
    # Variance of the sensors
    noise = 0.01 * float(predictor(test.inputs).variance.mean())
    for number, count in enumerate(MEASURED):
        seen = pairs[FUNCTIONS : FUNCTIONS + count]
        values = probe(seen.outputs.values)
        values = values + noise**0.5 * torch.randn(
            values.shape, generator=torch.Generator().manual_seed(seed)
        )
        told = predictor.condition(seen.inputs, probe, values=values, noise=noise)
        whole = pn.heads.KernelOperator().fit(None, pairs[: FUNCTIONS + count])
        for place, one in enumerate((predictor, told, whole)):
            u = pn.calibration.calibrate(one, held_out, seed=seed)(test.inputs)
            errors[seed, number, place] = pn.metrics.relative_l2(
                pn.Field(u.mean, u.grid), test.outputs
            ).mean()
            covered[seed, number, place] = (
                u.interval(0.9).contains(test.outputs.values).float().mean()
            )

for name, scores in (("relative L2 error", errors), ("coverage of 90 % intervals", covered)):
    print(f"{name} over {TEST} other functions, mean over {SEEDS} seeds, after seeing")
    print("functions  none of them  3 sensors of each  all of each")
    for count, row in zip(MEASURED, scores.mean(0).tolist(), strict=True):
        print(f"{count:9d} {row[0]:13.3g} {row[1]:18.3g} {row[2]:12.3g}")

figure = Figure(figsize=(5.2, 3.6), layout="constrained")
axes = figure.subplots()
for place, name in enumerate(("none of them", "3 sensors of each", "all of each")):
    axes.fill_between(
        MEASURED,
        errors[..., place].amin(0),
        errors[..., place].amax(0),
        alpha=0.2,
        color=f"C{place}",
    )
    axes.plot(MEASURED, errors[..., place].mean(0), marker="o", color=f"C{place}", label=name)
axes.set(
    xscale="log", yscale="log", xlabel="further functions", ylabel="relative L2 error of others"
)
axes.legend(frameon=False)
figure.savefig("measured_functions.png", dpi=120)
