"""What a joint posterior is good for: the interval of a region's mean.

The same posterior is read in three ways. Jointly, as it is. Point by point, as if errors at neighbouring points had nothing to
do with each other: then they average out, and the interval is far too short. And as if all errors moved together, the other
extreme. Points by themselves, however well calibrated, do not say which of these to take.
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

# The mean over the quarter in which the front stands: a linear functional, so its image of a Gaussian field is exact.
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
    print(f"{name:18s}: 90 % intervals cover {inside:.3f} and are {2 * 1.645 * float(deviation.mean()):.1e} wide")

figure = Figure(figsize=(10.0, 3.6), layout="constrained")
left, right = figure.subplots(1, 2)
x, middle, width = u.grid.points[:, 0], u.mean[0, 0], 1.645 * u.standard_deviation[0, 0]
left.axvspan(0.75, 1.0, color="0.9", label="the region")
left.fill_between(x, -width, width, color="C0", alpha=0.3, label="90 % interval of each point")
draws = u[:1].rsample(torch.Size([5]), seed=0)[:, 0, 0] - middle
left.plot(x, draws.T, color="C1", linewidth=0.9, label=["draws", *4 * ["_"]])
left.plot(x, test.outputs.values[0, 0] - middle, color="black", linestyle="--", label="truth")
left.set(title="one function, less the mean", xlabel="x")
left.legend(frameon=False, fontsize=8)

numbers = torch.arange(SHOWN)
offset = (truth - joint.mean).flatten()[:SHOWN]
for shift, colour, name in ((-0.15, "C0", "joint"), (0.15, "C3", "points independent")):
    bars = 1.645 * stated[name][:SHOWN]
    right.errorbar(numbers + shift, 0 * bars, yerr=bars, fmt="none", ecolor=colour, elinewidth=2.5, label=name)
right.plot(numbers, offset, "k_", markersize=9, label="truth")
right.set(title="mean over the region, less the predicted one", xlabel="test function")
right.legend(frameon=False, fontsize=8, ncols=3)
figure.savefig("why_joint.png", dpi=150)
