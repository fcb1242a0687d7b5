"""Design an input whose output equals a target field, with few simulations.

Burgers' equation maps an initial state to the state at t = 1. Which initial state leads to a given
state, if simulations are expensive and have no gradient? Ten random designs are simulated. Then a
posterior over the output field is fitted to all pairs, and the design with the largest expected
improvement of the distance to the target is simulated, repeatedly.

The distance is a known function of the field, so only the field is learned: the acquisition
function samples fields and measures each. A model of the distance alone would use one number per
simulation instead of 32. With so few pairs, use the kernel operator.
"""

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from matplotlib.figure import Figure

import probneural as pn

INITIAL, FURTHER = 10, 15
RESTARTS, RAW_SAMPLES, ITERATIONS = 4, 128, 60  # of the search for the next design

burgers = pn.problems.Burgers(
    viscosity=0.05, random_field=pn.problems.GaussianRandomField(1, 6), design_dim=6
)
grid = burgers.grid(32)
# The distance depends on the field at all points
observations = pn.functionals.sensors(grid, grid.points)


def encode(design):
    """Map designs in the unit cube to initial states."""
    return burgers.encode(design, grid=grid)


def simulate(design):
    """Stand in for the expensive simulator; here it is the exact solution."""
    inputs = encode(design)
    return pn.FieldPairs(inputs, burgers.solve(inputs))


# The target is the output of a hidden design.
torch.manual_seed(0)  # of the designs, and of BoTorch's search
hidden = torch.rand(1, 6, dtype=torch.double)
wanted = simulate(hidden).outputs
target = observations(wanted.values).flatten()


def distance(numbers):
    """Relative squared distance of fields `(..., 32)` to the target."""
    return (numbers - target).square().sum(-1) / target.square().sum()


# First some random designs. BoTorch maximises, so the objective is minus the distance.
pairs = simulate(torch.rand(INITIAL, 6, dtype=torch.double))
distances = distance(observations(pairs.outputs.values).flatten(1))
print(f"best of {INITIAL} random designs: {float(distances.min()):.1e}")
objective = GenericMCObjective(lambda numbers, X=None: -distance(numbers))
bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.double)

for number in range(FURTHER):
    # Every simulation changes the posterior over fields, hyper-parameters included.
    predictor = pn.heads.KernelOperator().fit(None, pairs)
    model = pn.active.OperatorModel(predictor, encode=encode, functional=observations)
    sampler = get_sampler(model.posterior(bounds[:1]), torch.Size([64]), seed=number)
    acquisition = qLogExpectedImprovement(
        model, best_f=-distances.min(), objective=objective, sampler=sampler
    )
    options = {"maxiter": ITERATIONS, "seed": number}
    design, _ = optimize_acqf(
        acquisition, bounds, q=1, num_restarts=RESTARTS, raw_samples=RAW_SAMPLES, options=options
    )

    # Simulate the selected design and add the pair to the data.
    new = simulate(design)
    pairs = pn.FieldPairs.cat([pairs, new])
    distances = torch.cat([distances, distance(observations(new.outputs.values).flatten(1))])
    print(
        f"design {number + 1:2d}: {float(distances[-1]):.1e}, "
        f"best so far {float(distances.min()):.1e}"
    )
    if distances.min() < 1e-6:
        break

# The output matches the target. The input may differ from the true one: the map is smoothing.
best = int(distances.argmin())
figure = Figure(figsize=(8.0, 2.8), layout="constrained")
panels = figure.subplots(1, 3)
place = grid.points[:, 0]
for panel, title, found, exact in (
    (panels[0], "initial state", pairs.inputs, encode(hidden)),
    (panels[1], "state at t = 1", pairs.outputs, wanted),
):
    panel.plot(
        place, exact.values[0, 0], color="black", label="target" if panel is panels[1] else "hidden"
    )
    panel.plot(place, found.values[best, 0], color="C1", linestyle="--", label="found")
    panel.set(title=title, xlabel="x")
    panel.legend(frameon=False, fontsize=8)
panels[2].semilogy(range(1, len(distances) + 1), distances.cummin(0).values, color="C1")
panels[2].axvline(INITIAL, color="grey", linewidth=0.8)
panels[2].set(title="relative squared distance", xlabel="simulations")
figure.savefig("design_a_target.png", dpi=120)
