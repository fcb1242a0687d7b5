"""The lift of an airfoil with an interval, from its pressure on one mesh per airfoil.

Potential flow around Joukowski airfoils is exact, and so is the lift. The operator learns the
pressure coefficient; the lift coefficient is an integral of it over the surface, so the joint
posterior of the pressure gives its interval.
"""

import matplotlib.pyplot as plt
import torch

import probneural as pn

AIRFOILS, CALIBRATION, TEST, POINTS = 500, 200, 200, 200
WIDTH, EPOCHS = 32, 20

problem = pn.problems.JoukowskiAirfoil()
train = problem.sample(AIRFOILS, resolution=POINTS, seed=0)
calibration = problem.sample(CALIBRATION, resolution=POINTS, seed=1)
test = problem.sample(TEST, resolution=POINTS, seed=12)

operator = pn.operators.PointFNO(
    in_channels=5, out_channels=1, modes=(5, 5), width=WIDTH, depth=3, seed=0
)
pn.fit(operator, train, epochs=EPOCHS, seed=0, show_progress=False)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)


def lift(pairs: pn.FieldPairs) -> pn.functionals.Functional:
    """Integral of c_p n·(-sin α, cos α) over the surface: one direction per airfoil."""
    angle = pairs.inputs.values[:, 0, 0].double()
    upward = torch.stack([-angle.sin(), angle.cos()], dim=1)
    return pn.functionals.boundary_integral(pairs.inputs.grid, problem.on_surface, direction=upward)


u = predictor(test.inputs)
score = pn.metrics.score(u, test.outputs, noise=predictor.noise)
print(f"pressure: relative error {score.relative_l2:.1%}, coverage at 90 % {score.coverage:.0%}")

exact = problem.lift_coefficients(TEST, seed=12)[:, None, None]
forecast = u.apply(lift(test))
error = (forecast.mean - exact).square().mean().sqrt()
print(f"lift: RMSE {error:.3f}, standard deviation between airfoils {exact.std():.3f}")
within = forecast.interval(0.9).contains(exact).double().mean()
print(f"{within:.0%} of {TEST} lifts inside the 90 % interval of the posterior")

# Split conformal intervals: half-widths in standard deviations, from lifts of other airfoils
held_out = predictor(calibration.inputs).apply(lift(calibration))
residual = problem.lift_coefficients(CALIBRATION, seed=1)[:, None, None] - held_out.mean
ratios = (residual / held_out.std).abs().flatten().sort().values
factor = ratios[min(CALIBRATION, int(-(-0.9 * (CALIBRATION + 1) // 1))) - 1]
inside = (exact - forecast.mean).abs() <= factor * forecast.std
print(
    f"{inside.double().mean():.0%} inside {factor:.1f} standard deviations,"
    f" from {CALIBRATION} other lifts"
)
for row in range(5):
    middle, half = forecast.mean[row].item(), (factor * forecast.std[row]).item()
    interval = f"{middle - half:+.3f} to {middle + half:+.3f}"
    print(f"airfoil {row}: {interval}, exact {exact[row].item():+.3f}")

# Mean and standard deviation of the pressure around the first airfoil
airfoil = test.outputs.grid.first
x, y = airfoil.points.T
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for panel, title, values in (
    (axes[0], "mean of c_p", u.mean),
    (axes[1], "standard deviation", u.std),
):
    colours = panel.tripcolor(
        x, y, airfoil.cells, values[0, 0, : airfoil.size], shading="gouraud", rasterized=True
    )
    figure.colorbar(colours, ax=panel)
    panel.set(title=title, aspect="equal", xlim=(-0.15, 1.15), ylim=(-0.4, 0.4))
figure.savefig("lift.png")
