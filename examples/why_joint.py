"""Joint posteriors matter: the interval of a regional mean.

The same posterior is used in three ways. Jointly, as it is. Pointwise, with independent errors at
neighbouring points: they average out, and the interval is far too short. With fully correlated
errors: the opposite extreme. Pointwise variances do not determine the correlation.
"""

import torch
from matplotlib.figure import Figure

import probneural as pn

FUNCTIONS, WIDTH, EPOCHS, TEST, SHOWN = 512, 32, 60, 400, 16

burgers = pn.problems.Burgers(viscosity=0.01)
train = burgers.sample(FUNCTIONS, resolution=128, seed=0)
scaling = burgers.sample(200, resolution=128, seed=1)
test = burgers.sample(TEST, resolution=128, seed=2)

operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(16,), width=WIDTH, seed=0)
pn.fit(operator, train, epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, scaling)
u = predictor(test.inputs)

# Mean over the last quarter of the domain: a linear functional, exact for a Gaussian field.
region = pn.functionals.average(u.grid, lower=[0.75], upper=[1.0])
joint, truth = u.apply(region), region(test.outputs.values)
error = (truth - joint.mean).abs().flatten()

weights = region.adjoint(torch.ones(1, 1, 1, dtype=torch.float64)).flatten()
sd = u.standard_deviation.flatten(1).double()
stated = {
    "joint": joint.standard_deviation.flatten(),
    "points independent": (sd.square() @ weights.square()).sqrt(),
    "points as one": sd @ weights.abs(),
}
for name, deviation in stated.items():
    inside = float((error <= 1.645 * deviation).double().mean())
    print(
        f"{name:18s}: 90 % intervals cover {inside:.3f} and are "
        f"{2 * 1.645 * float(deviation.mean()):.1e} wide"
    )

# The figure shows the sample with the median of the largest standardised error.
largest = ((test.outputs.values - u.mean) / u.standard_deviation).abs().flatten(1).amax(1)
index = int(largest.argsort()[TEST // 2])
x, middle, width = u.grid.points[:, 0], u.mean[index, 0], 1.645 * u.standard_deviation[index, 0]

figure = Figure(figsize=(12.0, 3.4), layout="constrained")
field, deviation, means = figure.subplots(1, 3)
field.plot(x, middle, color="C0", linewidth=2.5, label="mean")
field.plot(x, test.outputs.values[index, 0], color="black", linestyle="--", label="truth")
field.set(title="a state at t = 1", xlabel="x")
field.legend(frameon=False, fontsize=8)

deviation.axvspan(0.75, 1.0, color="0.9", label="the region")
deviation.fill_between(x, -width, width, color="C0", alpha=0.3, label="90 % interval of each point")
draws = u.rsample(torch.Size([4]), seed=0)[:, index, 0] - middle
deviation.plot(x, draws.T, color="C1", linewidth=0.9, label=["draws", *3 * ["_"]])
deviation.plot(
    x, test.outputs.values[index, 0] - middle, color="black", linestyle="--", label="truth"
)
deviation.set(
    title="the same, less the mean",
    xlabel="x",
    ylim=(float(-3.2 * width.max()), float(2.0 * width.max())),
)
deviation.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)

offset = (truth - joint.mean).flatten()[:SHOWN]
for shift, colour, name in ((-0.15, "C0", "joint"), (0.15, "C3", "points independent")):
    bars = 1.645 * stated[name][:SHOWN]
    means.errorbar(
        torch.arange(SHOWN) + shift,
        0 * bars,
        yerr=bars,
        fmt="none",
        ecolor=colour,
        elinewidth=2.5,
        label=f"90 %, {name}",
    )
means.plot(torch.arange(SHOWN), offset, "k_", markersize=9, label="truth")
means.set(title="the region's mean, less its prediction", xlabel="test function")
means.legend(frameon=False, fontsize=8, loc="lower right")
figure.savefig("why_joint.png", dpi=150)
