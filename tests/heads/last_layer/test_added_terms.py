"""Read-outs to which something is added that depends on the input: steps that predict increments, boundary values kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.distributions import GaussianField, Predictor
from probneural.distributions.latent import Seeds
from probneural.errors import ReadoutError
from probneural.fields import Field, evaluate
from probneural.forecasts import propagate
from probneural.grids import Grid, resample
from probneural.heads import Laplace, LastLayerLaplace
from probneural.heads.laplace.structures import LowRank
from probneural.heads.last_layer.readout import find_readout
from probneural.operators import FNO, Rollout
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.export.test_modules import compare
from tests.heads.cases import ENDS, PERIODIC, fields
from tests.heads.test_rollouts import check
from tests.helpers import cross_covariance

GIVEN: dict[str, Any] = {"noise": 1e-3, "prior_precision": 2.0, "effective_observations": 5.0}


class Linear(nn.Module):
    """G u = W (u, u shifted, u shifted twice) + b: linear in u, affine in its read-out's weights."""

    in_channels, out_channels = 1, 1

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Conv1d(3, 1, 1)
        with torch.no_grad():
            self.readout.weight.copy_(torch.tensor([0.1, -0.2, 0.15])[None, :, None])
            self.readout.bias.fill_(0.05)

    @staticmethod
    def features(values: Tensor) -> Tensor:
        return torch.cat([values.roll(shift, -1) for shift in range(3)], dim=1)

    def forward(self, values: Tensor) -> Tensor:
        return self.readout(self.features(values))


def linear() -> Linear:
    return Linear().double()


def fno(*, periodic: bool = True) -> FNO:
    return FNO(1, 1, modes=(3,), width=4, depth=2, projection=6, periodic=periodic, seed=0).double()


def step_pairs(grid: Grid, *, count: int = 6, size: float = 0.2) -> FieldPairs:
    """States and states that have moved a little, to one side on average."""
    inputs = fields(grid, count, 1, seed=1)
    moved = inputs.values + size * (fields(grid, count, 1, seed=2).values + 0.5)
    return FieldPairs(inputs, Field(moved, grid))


def increments(pairs: FieldPairs) -> FieldPairs:
    return FieldPairs(pairs.inputs, Field(pairs.outputs.values - pairs.inputs.values, pairs.outputs.grid))


@pytest.mark.parametrize("settings", [{}, GIVEN, {"moves_mean": True}, {"prior_precision": 3.0}])
@pytest.mark.parametrize("build", [linear, fno])
def test_a_step_that_predicts_increments_has_the_posterior_of_its_increments(build: Any, settings: dict[str, Any]) -> None:
    """Also the prior of the constant is centred where that of the increments is, and the evidence is of the same data."""
    operator, pairs = build(), step_pairs(PERIODIC)
    if isinstance(operator, FNO):
        operator.fit_normalizers(increments(pairs))
    head = LastLayerLaplace(**settings)
    of_states, of_increments = head.fit(Rollout(operator, 1, residual=True), pairs), head.fit(operator, increments(pairs))
    inputs = fields(PERIODIC, 3, 1, seed=9)
    u, v = of_states(inputs), of_increments(inputs)
    torch.testing.assert_close(u.mean, inputs.values + v.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(cross_covariance(u, u), cross_covariance(v, v), rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(of_states.noise, of_increments.noise, rtol=1e-6, atol=0)
    assert of_states.log_evidence == pytest.approx(of_increments.log_evidence, rel=1e-8)


def test_a_linear_step_is_bayesian_regression_of_the_increments() -> None:
    """Mean and covariance of u + G u by dense algebra, with the flat weights of a periodic grid."""
    pairs = step_pairs(PERIODIC)
    predictor = LastLayerLaplace(**GIVEN, moves_mean=True).fit(Rollout(linear(), 1, residual=True), pairs)
    u, phi, new = pairs.inputs.values, Linear.features, fields(PERIODIC, 3, 1, seed=9)
    change = pairs.outputs.values - u
    centred = (change - change.mean()).flatten()  # the prior of the constant has its mean there
    rows = torch.cat([phi(u), torch.ones_like(u)], dim=1).mT.flatten(0, 1)
    scale = GIVEN["effective_observations"] / GIVEN["noise"] / PERIODIC.size
    covariance = torch.linalg.inv(scale * rows.mT @ rows + GIVEN["prior_precision"] * torch.eye(4).double())
    weights = scale * covariance @ rows.mT @ centred
    at_new = torch.cat([phi(new.values), torch.ones_like(new.values)], dim=1).mT
    found = predictor(new)
    torch.testing.assert_close(found.mean[:, 0], new.values[:, 0] + at_new @ weights + change.mean(), rtol=0, atol=1e-11)
    expected = torch.einsum("npf,fg,mqg->npmq", at_new, covariance, at_new)
    torch.testing.assert_close(cross_covariance(found, found).reshape(expected.shape), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_increments_of_large_states(dtype: torch.dtype) -> None:
    """States near 100, increments of a thousandth: the read-out is found, its weights are those of the increment alone."""
    inputs = fields(PERIODIC, 6, 1, seed=1)
    states = Field(inputs.values + 100.0, PERIODIC)
    pairs = FieldPairs(states, Field(states.values + 1e-3 * fields(PERIODIC, 6, 1, seed=2).values + 2e-3, PERIODIC)).to(dtype)
    operator = fno().to(dtype)
    operator.fit_normalizers(increments(pairs))
    found = find_readout(Rollout(operator, 1, residual=True), pairs.inputs[:2], None)
    plain = find_readout(operator, pairs.inputs[:2], None)
    assert (found.name, found.response) == ("operator.readout", None)
    scale = float(plain.weight.abs().max())
    tolerance = 1e-9 if dtype == torch.float64 else 3e-3
    expected = plain.weight.clone()
    expected[:, -1] -= operator.output_normalizer.mean.to(expected)  # it is added, as the state is
    torch.testing.assert_close(found.weight, expected, rtol=0, atol=tolerance * scale)
    u = LastLayerLaplace(**GIVEN).fit(Rollout(operator, 1, residual=True), pairs)(pairs.inputs)
    v = LastLayerLaplace(**GIVEN).fit(operator, increments(pairs))(pairs.inputs)
    torch.testing.assert_close(u.variance, v.variance, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=0)


class Saturated(nn.Module):
    """u + s tanh(W u): small beside the state, and not affine in its weights."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.readout = nn.Conv1d(1, 1, 1)
        self.size = size

    def forward(self, values: Tensor) -> Tensor:
        return values + self.size * torch.tanh(self.readout(values))


class Gated(nn.Module):
    """u (1 + W u): what multiplies the read-out depends on the input function."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Conv1d(1, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        return values * (1.0 + self.readout(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [lambda: Saturated(1.0), lambda: Saturated(1e-3), Gated], ids=["tanh", "small", "gated"])
def test_what_is_not_affine_in_the_weights_is_refused(build: Any, dtype: torch.dtype) -> None:
    pairs = step_pairs(PERIODIC).to(dtype)
    with pytest.raises(ReadoutError, match="what follows it is not pointwise and affine"):
        LastLayerLaplace().fit(build().to(dtype), pairs)


@pytest.mark.parametrize("residual", [False, True])
def test_kept_boundary_values_are_certain(residual: bool) -> None:
    """Features and their constant vanish there; elsewhere the posterior is dense algebra with them."""
    operator, pairs = fno(periodic=False), step_pairs(ENDS)
    pairs = FieldPairs(pairs.inputs, Field(pairs.outputs.values.clone(), ENDS))
    pairs.outputs.values[..., [0, -1]] = pairs.inputs.values[..., [0, -1]]
    step = Rollout(operator, 1, residual=residual, keeps_boundary=True)
    predictor = LastLayerLaplace(**GIVEN).fit(step, pairs)
    inside = torch.ones(ENDS.size, dtype=torch.float64)
    inside[[0, -1]] = 0.0
    caught: list[Tensor] = []
    operator.readout.register_forward_hook(lambda module, arguments, output: caught.append(arguments[0]))
    new = fields(ENDS, 2, 1, seed=9)
    with torch.no_grad():
        for given in (pairs.inputs, new):
            operator(given.values, grid=ENDS)
    rows, at_new = (torch.cat([phi, torch.ones_like(phi[:, :1])], dim=1).mT * inside[:, None] for phi in caught)
    scale = GIVEN["effective_observations"] / GIVEN["noise"] / ENDS.volume
    gram = scale * torch.einsum("npf,p,npg->fg", rows, ENDS.weights, rows)
    covariance = torch.linalg.inv(gram + GIVEN["prior_precision"] * torch.eye(len(gram)).double())
    expected = torch.einsum("npf,fg,mqg->npmq", at_new, covariance, at_new)
    u = predictor(new)
    torch.testing.assert_close(cross_covariance(u, u).reshape(expected.shape), expected, rtol=1e-8, atol=1e-13)
    assert float(u.variance[..., [0, -1]].abs().max()) == 0.0
    assert torch.equal(u.mean[..., [0, -1]], new.values[..., [0, -1]])
    draw = evaluate(predictor.draw(3), new)
    assert torch.equal(draw[..., [0, -1]], new.values[..., [0, -1]])
    assert float((draw - u.mean).abs().max()) > 0


@pytest.mark.parametrize(
    ("grid", "options"),
    [(PERIODIC, {"residual": True}), (ENDS, {"residual": True, "keeps_boundary": True}), (ENDS, {"keeps_boundary": True})],
)
def test_queries_interpolate_features_where_the_step_interpolates(grid: Grid, options: dict[str, bool]) -> None:
    """On finer grids, and on others of as many points, whose shape does not tell."""
    operator = fno(periodic=all(grid.periodic))
    predictor = LastLayerLaplace(**GIVEN).fit(Rollout(operator, 1, **options), step_pairs(grid))
    inputs = fields(grid, 2, 1, seed=9)
    root = predictor(inputs).root.dense()
    for query in (grid.resized(31), Grid.scattered(0.05 + 0.9 * grid.points, grid.weights)):
        u = predictor(inputs, query)
        expected = resample(root.movedim(3, 2), grid, query).movedim(2, 3)
        assert isinstance(u, GaussianField)
        torch.testing.assert_close(u.root.dense(), expected, rtol=0, atol=1e-12 * float(root.abs().max()))
        compare(predictor, inputs, query)
        draw = predictor.draw(2)
        torch.testing.assert_close(
            evaluate(draw, inputs, query) - u.mean, resample(evaluate(draw, inputs) - predictor(inputs).mean, grid, query)
        )


class OnTheQuery(nn.Module):
    """Evaluates its features where it is asked to, on a query of as many points, too."""

    in_channels, out_channels = 1, 1

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Conv1d(2, 1, 1)

    def forward(self, values: Tensor, *, grid: Grid, query: Grid | None = None) -> Tensor:
        there = values if query is None else resample(values, grid, query)
        return there + self.readout(torch.cat([torch.tanh(there), there.square()], dim=1))


def test_a_query_of_as_many_points_may_have_features_of_its_own() -> None:
    predictor = LastLayerLaplace(**GIVEN).fit(OnTheQuery().double(), step_pairs(PERIODIC))
    inputs = fields(PERIODIC, 2, 1, seed=9)
    query = Grid.scattered(0.05 + 0.9 * PERIODIC.points, PERIODIC.weights)
    there = inputs.resample(query).values
    rows = torch.cat([torch.tanh(there), there.square(), torch.ones_like(there)], dim=1).mT
    expected = torch.einsum("npf,fg,npg->np", rows, predictor.weight_covariance, rows)
    torch.testing.assert_close(predictor(inputs, query).variance[:, 0], expected, rtol=1e-9, atol=0)


def predictors() -> dict[str, tuple[Predictor, Field]]:
    """Last-layer posteriors of steps."""
    increment = Rollout(fno(), 1, residual=True)
    walls = Rollout(fno(periodic=False), 1, residual=True, keeps_boundary=True)
    return {
        "increment": (LastLayerLaplace(**GIVEN).fit(increment, step_pairs(PERIODIC)), fields(PERIODIC, 2, 1, seed=9)),
        "walls": (LastLayerLaplace(**GIVEN).fit(walls, step_pairs(ENDS)), fields(ENDS, 2, 1, seed=9)),
    }


@pytest.mark.parametrize("name", ["increment", "walls"])
def test_roll_outs_files_and_exports(name: str, tmp_path: Path) -> None:
    predictor, start = predictors()[name]
    for draws in ("trajectory", "step"):
        check(predictor, start, draws)
    save(predictor, tmp_path / "predictor")
    again = load(tmp_path / "predictor")
    assert isinstance(again, Predictor)
    assert torch.equal(again(start).variance, predictor(start).variance)
    assert torch.equal(evaluate(again.draw(1), start), evaluate(predictor.draw(1), start))
    compare(predictor, start)


class Scaled(nn.Module):
    """An increment times the last input channel, which the first functions of a data set may share."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Conv1d(1, 1, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values[:, :1] + values[:, 1:] * self.readout(torch.tanh(values[:, :1]))


def test_a_factor_that_only_later_functions_show_is_refused() -> None:
    states, steps = fields(PERIODIC, 20, 1, seed=5).values.float(), torch.full((20, 1, PERIODIC.size), 0.1)
    steps[10:] = 1.0
    inputs = torch.cat([states, steps], 1)
    grid = PERIODIC
    pairs = FieldPairs(Field(inputs, grid), Field(states + 0.1 * steps * states, grid))
    with pytest.raises(ReadoutError):
        LastLayerLaplace().fit(Scaled(), pairs)


class Summed(nn.Module):
    """Two branches: nobody can tell which of them is the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 1, 1), nn.Sequential(nn.Conv1d(1, 4, 1), nn.Tanh(), nn.Conv1d(4, 1, 1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.first(values) + self.second(values)


def test_a_branch_of_a_sum_is_a_read_out_only_by_name() -> None:
    inputs = fields(PERIODIC, 4, 1, seed=3)
    operator = Summed().to(inputs.dtype)
    with pytest.raises(ReadoutError, match="one branch among several"):
        find_readout(operator, inputs, None)
    assert find_readout(operator, inputs, "second.2").name == "second.2"


def test_a_draw_is_the_step_with_other_weights() -> None:
    predictor, start = predictors()["increment"]
    latents = Seeds((4,), predictor.latent.key).latents(predictor.latent.rank)[0]  # type: ignore[attr-defined]
    deviation = torch.einsum("cfk,k->cf", predictor.factor[0], latents)  # type: ignore[attr-defined]
    operator = fno()
    with torch.no_grad():
        operator.readout.weight += deviation[:, :-1].reshape(operator.readout.weight.shape)
        operator.readout.bias += deviation[:, -1]
        torch.testing.assert_close(evaluate(predictor.draw(4), start), start.values + operator(start.values))


@pytest.mark.parametrize("draws", ["trajectory", "step"])
def test_propagation_of_a_linear_step_is_dense_algebra(draws: str) -> None:
    """u_k+1 = M u_k + b + R(mean_k) xi: means are powers of M = I + G, roots are sums of powers times the features' roots."""
    operator, start = linear(), fields(PERIODIC, 2, 1, seed=9)
    predictor = LastLayerLaplace(**GIVEN).fit(Rollout(operator, 1, residual=True), step_pairs(PERIODIC))
    forecast = propagate(predictor, start, steps=5, draws=draws)
    size = PERIODIC.size
    with torch.no_grad():
        zero = operator(torch.zeros(1, 1, size).double())
        M = torch.eye(size).double() + (operator(torch.eye(size).double()[:, None]) - zero)[:, 0].mT
    rank, mean = 4, start.values[:, 0]
    columns = mean.new_zeros(2, size, rank * (1 if draws == "trajectory" else 5))
    factor = torch.linalg.cholesky(predictor.weight_covariance)
    for lead in range(1, 6):
        phi = torch.cat([Linear.features(mean[:, None]), torch.ones(2, 1, size).double()], dim=1).mT
        columns = M @ columns
        first = 0 if draws == "trajectory" else rank * (lead - 1)
        columns[..., first : first + rank] += phi @ factor
        mean = mean @ M.mT + zero[:, 0]
        u = forecast.at(lead)
        torch.testing.assert_close(u.mean[:, 0], mean, rtol=0, atol=1e-12)
        found = u.root.dense()[:, 0]
        both = [torch.einsum("npk,mqk->npmq", one, one) for one in (found, columns)]
        torch.testing.assert_close(*both, rtol=1e-9, atol=1e-14)
    assert isinstance(forecast.at(5).root.dense(), Tensor)


@pytest.mark.slow
def test_low_rank_posterior_of_a_repeated_increment() -> None:
    """Five steps, all weights: the posterior of the dense Jacobian of the unrolled map."""
    operator, grid = linear(), PERIODIC
    unrolled = Rollout(operator, 5, residual=True)
    pairs = step_pairs(grid)
    head = Laplace(LowRank(rank=4), show_progress=False, **GIVEN)
    u = head.fit(unrolled, pairs)(fields(grid, 2, 1, seed=9))
    parameters = {name: value.detach() for name, value in unrolled.named_parameters()}

    def jacobian(values: Tensor) -> Tensor:
        by_name = torch.func.jacrev(lambda given: torch.func.functional_call(unrolled, given, (values,)))(parameters)
        return torch.cat([part.flatten(3) for part in by_name.values()], dim=3)[:, 0]

    rows = jacobian(pairs.inputs.values)
    scale = GIVEN["effective_observations"] / GIVEN["noise"] / grid.volume
    gram = scale * torch.einsum("npf,p,npg->fg", rows, grid.weights, rows)
    covariance = torch.linalg.inv(gram + GIVEN["prior_precision"] * torch.eye(4).double())
    new = jacobian(fields(grid, 2, 1, seed=9).values)
    expected = torch.einsum("npf,fg,mqg->npmq", new, covariance, new)
    torch.testing.assert_close(cross_covariance(u, u).reshape(expected.shape), expected, rtol=1e-7, atol=1e-13)
    with pytest.raises(ReadoutError, match="called 5 times"):
        LastLayerLaplace().fit(unrolled, pairs)
