"""From arrays to a calibrated interval of the mean over a region.

The quantity of interest is the mean state over a part of the domain, compared with the maximum,
which is nonlinear and needs samples. The arrays come from a solver here, and from files in general.
"""

import probneural as pn

EPOCHS = 60

solver = pn.problems.Burgers(viscosity=0.02).sample(700, resolution=128, seed=0)
# (n, points) or (n, c, points)
inputs, outputs = solver.inputs.values.numpy(), solver.outputs.values.numpy()

pairs = pn.FieldPairs.from_numpy(inputs, outputs, periodic=[True])
train, rest = pairs.split(300, seed=0)
calibration, test = rest.split(200, seed=0)

operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(16,), width=32, seed=0)
pn.fit(operator, train, epochs=EPOCHS, seed=0, show_progress=False)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
# On held-out samples
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)

grid = test.outputs.grid
harbour = pn.functionals.region(grid, lower=0.2, upper=0.4).named("mean over the harbour")
u = predictor(test.inputs)
forecast, truth = u.apply(harbour), harbour(test.outputs.values)
lower, upper = forecast.interval(0.9)  # (n, c, m) each: of every test function

print(f"first forecast: {lower[0, 0, 0]:.4f} to {upper[0, 0, 0]:.4f}, truth {truth[0, 0, 0]:.4f}")
print(
    f"{forecast.interval(0.9).contains(truth).double().mean():.0%} of {len(test)} means"
    " inside their 90 % interval"
)
pn.plots.quantity(forecast, truth, level=0.9).savefig("quantity_of_interest.png")

peak = pn.functionals.maximum(grid)  # nonlinear: an empirical distribution of draws
highest = u.apply_by_draws(peak, draws=1024, seed=0)
inside = highest.interval(0.9).contains(peak(test.outputs.values)).double().mean()
print(f"{inside:.0%} of {len(test)} maxima inside theirs")
