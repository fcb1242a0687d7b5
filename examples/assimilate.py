"""Infer a field at all points and times from a few noisy sensors.

Burgers' equation moves an unknown start forward. Six sensors report it four times, with noise. An
FNO learned one time step from exact solutions. 4D-Var finds the most probable start with the
network taken as exact. Linearised there, the network's posterior, the prior of the start and the
observations give the analysis at all times in closed form. An ensemble Kalman smoother needs no
derivatives.
"""

import torch

import probneural as pn

TRAJECTORIES, WIDTH, EPOCHS, TESTS, MEMBERS = 80, 24, 60, 12, 64
# Time steps of 0.05; observations at every third step, with this standard deviation
STEPS, EVERY, NOISE = 12, 3, 0.05


def states(count, *, seed):
    """Exact states of Burgers' equation at times 0, 0.05, 0.1, ...: a field per time."""
    times = [0.05 * lead for lead in range(STEPS + 1)]
    problems = [pn.problems.Burgers(viscosity=0.05, time=time) for time in times[1:]]
    start = problems[0].sample(count, resolution=64, seed=seed).inputs
    return [start, *(problem.solve(start) for problem in problems)]


def pairs(trajectory):
    """States and those one step later."""
    return pn.FieldPairs(pn.Field.cat(trajectory[:-1]), pn.Field.cat(trajectory[1:]))


past, held_out, truth = states(TRAJECTORIES, seed=0), states(20, seed=1), states(TESTS, seed=2)
operator = pn.operators.FNO(
    in_channels=1, out_channels=1, modes=(16,), width=WIDTH, depth=3, seed=0
)
pn.fit(operator, pairs(past), epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, pairs(past))
predictor = pn.calibration.VarianceScale().fit(predictor, pairs(held_out))

# Prior: past starts. Data: six noisy sensors at every third step.
grid = truth[0].grid
prior = pn.forecasts.climatology(past[0], functions=TESTS)
start = pn.Field(prior.mean, grid)
probe = pn.functionals.sensors(grid, [[0.05], [0.2], [0.4], [0.55], [0.7], [0.9]])
generator = torch.Generator().manual_seed(0)
observations = []
for lead in range(EVERY, STEPS + 1, EVERY):
    exact = probe(truth[lead].values)
    measured = exact + NOISE * torch.randn(exact.shape, generator=generator)
    observations.append(pn.forecasts.Observation(probe, measured, lead=lead, noise=NOISE**2))

variational = pn.forecasts.four_d_var(predictor, prior, observations=observations)
print(
    f"4D-Var converged for {int(variational.has_converged.sum())} of {TESTS} starts"
    f" in {variational.iterations} iterations"
)

# Closed form, linearised about that trajectory: observations inform all times and the operator.
forecast = pn.forecasts.propagate(predictor, start, steps=STEPS, initial=prior)
analysis = pn.forecasts.propagate(predictor, variational.start, steps=STEPS, initial=prior)
for one in observations:
    analysis = analysis.condition(one.functional, one.values, lead=one.lead, noise=one.noise)

smoother = pn.forecasts.EnsembleKalmanSmoother(MEMBERS, localisation=0.5)
ensemble = smoother.assimilate(
    predictor, start, observations=observations, steps=STEPS, initial=prior
)


def error(mean, lead):
    """Relative L2 error of the states at a lead, in percent."""
    return 100.0 * float(pn.metrics.relative_l2(pn.Field(mean, grid), truth[lead]).mean())


print("lead   no data  closed form  ensemble  4D-Var   (relative L2 error in percent)")
for lead in (0, STEPS // 2, STEPS):
    means = (
        forecast.at(lead).mean,
        analysis.at(lead).mean,
        ensemble.at(lead).mean,
        variational.states[lead],
    )
    print(
        f"{lead:4d}"
        + "".join(f"{error(mean.to(truth[lead].values), lead):10.1f}" for mean in means)
    )
for name, fields in (("closed form", analysis), ("ensemble", ensemble)):
    inside = [
        fields.at(lead).interval(0.9).contains(truth[lead].values).double().mean()
        for lead in range(STEPS + 1)
    ]
    print(f"values inside the 90 % intervals of the {name}: {float(sum(inside)) / len(inside):.3f}")

u = analysis.joint()  # a field over time and space
exact = torch.stack([state.values for state in truth[1:]], dim=2)
figure = pn.plots.field(u, pn.Field(exact, u.grid), index=0, axes=("lead", "x"))
figure.savefig("assimilate.png", dpi=120)
