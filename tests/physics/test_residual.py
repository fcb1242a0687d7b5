"""Residuals as losses: balanced weights, inputs without outputs, checkpoints; and as constraints."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.calibration import VarianceScale
from probneural.distributions import DenseRoot, GaussianField, Latent
from probneural.errors import ArgumentError, DataError, DataWarning, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import DeepEnsemble, KernelOperator, Laplace, LastLayerLaplace
from probneural.metrics import score
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from probneural.physics import Dirichlet, Residual, equations
from probneural.physics.residual import ResidualLoss
from probneural.training import (
    Callback,
    Checkpoint,
    DataOptions,
    Optimization,
    RelativeL2,
    RunOptions,
    WeightedSum,
    fit,
    relative_l2,
    trainer,
)
from probneural.training.callbacks import History, Progress
from probneural.training.losses import Balance
from probneural.trajectories import FieldTrajectories
from tests.helpers import normal
from tests.training.cases import same

GRID = Grid.uniform((16,), periodic=False)
X = GRID.points.T[None]
U = (normal(12, 1, 1) * (math.pi * X).sin() + normal(12, 1, 1, seed=1) * (2 * math.pi * X).sin()).float()
PAIRS = FieldPairs(Field(3.0 * U, GRID), Field(U, GRID))
UNLABELLED = FieldPairs.unlabelled(Field(2.0 * PAIRS.inputs.values + 1.0, GRID))
RESIDUAL = Residual(equations.Poisson(), [Dirichlet(0.0), Dirichlet(0.1, sides=((0, "start"),))])


def operator() -> FNO:
    return FNO(1, 1, modes=(4,), width=4, depth=2, projection=4, periodic=False, seed=0)


def trained(model: torch.nn.Module, train: FieldPairs | list[FieldPairs], /, **options: object) -> History:
    every = {"epochs": 1, "seed": 0, "show_progress": False, "data": DataOptions(batch_size=12, validation=0.0)}
    return fit(model, train, **{**every, **options})  # type: ignore[arg-type]


def norms(model: torch.nn.Module, terms: dict[str, Tensor]) -> dict[str, float]:
    weights = list(model.parameters())
    slopes = {name: torch.autograd.grad(term, weights, retain_graph=True) for name, term in terms.items()}
    return {name: math.sqrt(sum(float(part.double().square().sum()) for part in parts)) for name, parts in slopes.items()}


def test_weights_are_ratios_of_norms_of_gradients() -> None:
    model, loss = operator(), RESIDUAL.loss()
    before = copy.deepcopy(model)
    history = trained(model, PAIRS, loss=loss)
    before.fit_normalizers(PAIRS)
    predicted = before(PAIRS.inputs.values, grid=GRID)
    terms = loss.terms(predicted, PAIRS.outputs.values, GRID, inputs=PAIRS.inputs)
    assert list(terms) == ["data", "equation", "Dirichlet", "Dirichlet 2"]
    errors = relative_l2(predicted, PAIRS.outputs.values, grid=GRID).detach()
    assert float(terms["data"].detach()) == pytest.approx(float(errors.square().mean()))
    sizes = norms(before, terms)
    expected = {name: sizes["data"] / size for name, size in sizes.items()}
    assert history.weights[0] == pytest.approx(expected, rel=1e-4)
    total = sum(expected[name] * float(term.detach()) for name, term in terms.items())
    assert history.train[0] == pytest.approx(total, rel=1e-4)
    # all gradients are as large as that of the data
    assert [expected[name] * sizes[name] for name in terms] == pytest.approx([sizes["data"]] * 4)


def test_weights_without_labels_begin_with_a_unit_gradient() -> None:
    model = operator()
    before = copy.deepcopy(model)
    history = trained(model, UNLABELLED, loss=RESIDUAL.loss())
    rough = RESIDUAL.loss().approximate(model, UNLABELLED.inputs[:10], GRID)  # the scale of outputs
    assert rough is not None
    before.fit_normalizers(UNLABELLED, FieldPairs(UNLABELLED.inputs[:10], rough))
    sizes = norms(before, RESIDUAL.terms(before(UNLABELLED.inputs.values, grid=GRID), UNLABELLED.inputs, GRID))
    assert history.weights[0] == pytest.approx({name: 1.0 / size for name, size in sizes.items()}, rel=1e-4)


def test_running_means_of_norms() -> None:
    weight, balance = torch.ones(2, requires_grad=True), Balance()
    first = {"data": 2.0 * weight.sum(), "equation": weight[0] * 10.0, "Dirichlet": 0.0 * weight.sum()}
    assert not balance.has(first)
    balance.update(first, [weight])
    assert balance.has({"data": first["data"], "equation": first["equation"]})
    balance.update({"equation": weight[0] * 20.0, "Dirichlet": weight[1] * math.nan}, [weight])
    data = 2.0 * math.sqrt(2.0)
    assert balance.weights == pytest.approx({"data": 1.0, "equation": data / 11.0})  # .9 * 10 + .1 * 20
    assert float(balance.total(first).detach()) == pytest.approx(4.0 + 10.0 * data / 11.0)


def test_constant_weights() -> None:
    loss = RESIDUAL.loss(weight=0.5, data=lambda predicted, target, grid: (predicted - target).abs().mean())
    predicted = normal(12, 1, 16).float()
    terms = RESIDUAL.terms(predicted, PAIRS.inputs, GRID)
    total = float((predicted - U).abs().mean()) + 0.5 * float(sum(terms.values()))
    assert float(loss(predicted, U, GRID, inputs=PAIRS.inputs)) == pytest.approx(total)
    without = loss(predicted, UNLABELLED.outputs.values, GRID, inputs=PAIRS.inputs)
    assert float(without) == pytest.approx(0.5 * float(sum(terms.values())))
    history = trained(operator(), [PAIRS, UNLABELLED], loss=loss, epochs=2)
    assert history.weights == ()
    with pytest.raises(ArgumentError, match="weight outside of pn.fit"):
        RESIDUAL.loss()(predicted, U, GRID, inputs=PAIRS.inputs)


def test_residuals_train_without_labels() -> None:
    """-u'' = f on inputs alone: the error falls far below that of zero, and only the residual is seen."""
    sines = (normal(24, 1, 1, seed=2) * (math.pi * X).sin()).float()
    data = FieldPairs.unlabelled(Field(math.pi**2 * sines, GRID))
    assert data.outputs.values.shape == (24, 0, 16)
    model = operator()
    trained(model, data, loss=Residual(equations.Poisson(), Dirichlet(0.0)).loss(), epochs=120, learning_rate=2e-2)
    error = (model(data.inputs.values, grid=GRID) - sines).norm() / sines.norm()
    assert float(error.detach()) < 0.2


class Killed(BaseException):
    """What a run is killed by."""


class KillAt(Callback):
    """Die in the second of epochs of six steps."""

    def on_step(self, progress: Progress) -> None:
        if progress.step == 9:
            raise Killed


def test_resumes_at_the_same_bits(tmp_path: Path) -> None:
    """Labelled and unlabelled batches of a balanced loss; weights come from running means, which the checkpoint holds."""
    options = {"loss": RESIDUAL.loss(), "epochs": 3, "data": DataOptions(batch_size=5)}
    data = [PAIRS, UNLABELLED]
    whole, resumed = operator(), operator()
    expected = trained(whole, data, **options)
    assert len(expected.weights) == 3
    assert len({tuple(weights.values()) for weights in expected.weights}) == 3
    checkpoint = Checkpoint(tmp_path / "run", steps=1)
    with pytest.raises(Killed):
        trained(resumed, data, **options, run=RunOptions(checkpoint=checkpoint, callbacks=[KillAt()]))
    resumed = operator()
    history = trained(resumed, data, **options, run=RunOptions(checkpoint=checkpoint))
    assert (history.train, history.validation, history.weights) == (expected.train, expected.validation, expected.weights)
    assert same(resumed.state_dict(), whole.state_dict())


@pytest.mark.parametrize(
    "call",
    [
        lambda: trained(operator(), UNLABELLED),
        lambda: trained(operator(), [PAIRS, UNLABELLED]),
        lambda: LastLayerLaplace().fit(operator(), UNLABELLED),
        lambda: Laplace().fit(operator(), UNLABELLED),
        lambda: DeepEnsemble(2, train=fit).fit(operator(), UNLABELLED),
        lambda: KernelOperator().fit(operator(), UNLABELLED),
        lambda: VarianceScale().fit(LastLayerLaplace(noise=0.1).fit(operator(), PAIRS), UNLABELLED),
        lambda: DataOptions(validation=UNLABELLED),
    ],
)
def test_data_without_labels_are_refused_elsewhere(call: Callable[[], object]) -> None:
    with pytest.raises(DataError, match=r"inputs alone.*Residual\(equation\).loss\(\)"):
        call()


@pytest.mark.bad_input
def test_losses_and_scores_need_labels() -> None:
    for loss in (RelativeL2(), WeightedSum([(1.0, RelativeL2()), (1.0, RESIDUAL.loss(weight=1.0))])):
        with pytest.raises(ShapeError, match="predictions of shape"):
            trained(operator(), UNLABELLED, loss=loss)
    predicted = LastLayerLaplace(noise=0.1).fit(operator(), PAIRS)(PAIRS.inputs)
    with pytest.raises(ShapeError, match="truth of shape"):
        score(predicted, UNLABELLED.outputs)


def test_outputs_of_zero_warn() -> None:
    zero = FieldPairs(PAIRS.inputs, Field(torch.zeros_like(U), GRID))
    with pytest.warns(DataWarning, match=r"learns to predict zero.*FieldPairs.unlabelled"):
        trained(operator(), zero)
    assert trained(operator(), [PAIRS, zero], loss=RESIDUAL.loss()).epochs == 1  # the loss may say so


def test_space_time_pairs() -> None:
    times = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    start, later = Field(normal(2, 3, 16), GRID), normal(2, 3, 1, 16, seed=1)
    pairs = FieldTrajectories(start, later, times=times).space_time()
    assert pairs.outputs.grid == Grid.uniform((4, 16), lengths=(1.5, 1.0), periodic=False)
    assert pairs.outputs.grid.axes[0].name == "t"
    assert torch.equal(pairs.outputs.values, torch.cat([start.values[:, :1, None], later.movedim(1, 2)], 2))
    assert torch.equal(pairs.inputs.values, start.values[:, :, None].expand(-1, -1, 4, -1))  # with two parameters
    with pytest.raises(ArgumentError, match="equally spaced"):
        FieldTrajectories(start, later, times=torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)).space_time()
    points = Grid.scattered(GRID.points, torch.ones(16))
    with pytest.raises(GridError, match="uniform"):
        FieldTrajectories(Field(start.values, points), later, times=times).space_time()


def test_residuals_constrain_posteriors() -> None:
    """`at` gives numbers whose first ones are the residual at some points, and the others the misfits of all conditions."""
    values = normal(2, 1, 16)
    numbers = RESIDUAL.at(PAIRS.inputs[:2].to(torch.float64), GRID, points=4)(values)
    inputs = PAIRS.inputs[:2].to(torch.float64)
    expected = RESIDUAL(values, inputs, GRID)[:, 0, [0, 5, 10, 15]]
    torch.testing.assert_close(numbers[:, :4], expected)
    torch.testing.assert_close(numbers[:, 4:], torch.stack([values[:, 0, 0], values[:, 0, -1], values[:, 0, 0] - 0.1], 1))
    root = DenseRoot(normal(2, 1, 16, 14, seed="root"))
    u = GaussianField(values, root, latent=Latent(id="weights", rank=14), grid=GRID)
    inner = Residual(equations.Poisson(), Dirichlet(0.0))
    constrained = u.constrain_residual(inner.at(inputs, GRID, points=3))
    assert float(inner.at(inputs, GRID, points=3)(constrained.rsample((2,))[0]).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("shape", "points", "along"), [((64, 64), 64, (8, 8)), ((3, 40), 64, (3, 21)), ((4, 5, 50), 2, (1, 1, 2))]
)
def test_constraints_are_at_a_sub_grid(shape: tuple[int, ...], points: int, along: tuple[int, ...]) -> None:
    grid = Grid.uniform(shape, periodic=False)
    everywhere = Residual(lambda u, inputs: u.values)
    numbers = everywhere.at(None, grid, points=points)(torch.arange(grid.size).double().reshape(1, 1, *shape))[0].long()
    places = torch.unravel_index(numbers, shape)
    assert tuple(len(place.unique()) for place in places) == along
    assert len(numbers) == math.prod(along)
    assert all(
        {0, size - 1} <= set(place.tolist()) for place, size, count in zip(places, shape, along, strict=True) if count > 1
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: RESIDUAL.loss(weight=-1.0), "weight"),
        (lambda: RESIDUAL.loss(weight="equal"), "weight"),  # type: ignore[arg-type]
        (lambda: RESIDUAL.loss(data=3.0), "loss"),  # type: ignore[arg-type]
        (lambda: ResidualLoss(equations.Poisson()), "Residual"),  # type: ignore[arg-type]
        (lambda: RESIDUAL.at(None, GRID, points=0), "points"),
    ],
)
@pytest.mark.bad_input
def test_refusals(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()


def test_a_residual_trains_scores_and_corrects_in_one_program() -> None:
    """The physics program of the design, on a grid of time and space."""
    problem = pn.problems.Burgers(viscosity=0.05, random_field=pn.problems.GaussianRandomField(1, 4))
    times = [step / 8 for step in range(1, 9)]
    train, test = (problem.trajectory(12, times=times, resolution=16, seed=seed).space_time() for seed in (0, 1))
    model = FNO(1, 1, modes=(3, 4), width=4, depth=2, periodic=(False, True), seed=0)
    residual = pn.physics.Residual(pn.physics.equations.Burgers(viscosity=0.05))
    pn.fit(model, train, loss=residual.loss(weight="balanced"), epochs=2, show_progress=False)
    u = LastLayerLaplace().fit(model, train)(test.inputs)
    v = residual.correct(u, steps=2, modes=8)
    before, after = (pn.metrics.residual(field, residual, draws=2) for field in (u, v))
    assert before.draws.shape == (2, 12)
    assert float(after.mean.mean()) < 0.5 * float(before.mean.mean())
    torch.testing.assert_close(v.mean[:, :, 0], u.mean[:, :, 0], rtol=0, atol=2e-3)  # no initial condition: held


def test_weights_change_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BFGS evaluates one loss several times in a step."""
    calls = {"update": 0, "terms": 0}

    def counted(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def call(*arguments: object, **options: object) -> object:
            calls[name] += 1
            return method(*arguments, **options)

        monkeypatch.setattr(kind, name, call)

    counted(Balance, "update")
    counted(ResidualLoss, "terms")
    trained(operator(), PAIRS, loss=RESIDUAL.loss(), optimization=Optimization(optimizer="lbfgs"), epochs=2)
    assert calls["update"] == 2 < calls["terms"]


def test_inputs_alone_are_not_watched_beside_labels() -> None:
    watched = trainer._split([PAIRS, UNLABELLED], 0.25, 0)[1]
    assert [(len(part), part.outputs.channels) for part in watched] == [(3, 1)]
    assert [len(part) for part in trainer._split([UNLABELLED], 0.25, 0)[1]] == [3]


def test_rough_solutions_satisfy_conditions_by_construction() -> None:
    """-u'' = 0 and u = 3 at both ends: u = 3."""
    inputs = Field(torch.zeros(2, 1, 16), GRID)
    constructed = pn.physics.ByConstruction(operator(), Dirichlet(3.0))
    solutions = Residual(equations.Poisson()).loss().approximate(constructed, inputs, GRID)
    assert solutions is not None
    torch.testing.assert_close(solutions.values, torch.full((2, 1, 16), 3.0), rtol=0, atol=1e-4)
