"""Kernel operators against dense Gaussian processes, weight-space regression, GPyTorch and their own draws."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from probneural.errors import DataError, GridError, ShapeError
from probneural.fields import Field, evaluate
from probneural.functionals import integral, sensors
from probneural.grids import Grid
from probneural.heads import KernelOperator
from probneural.heads.kernel import search
from probneural.heads.kernel.component_root import BlockCoordinates, ComponentRoot
from probneural.heads.kernel.gaussian_processes import (
    KERNELS,
    LEAST_NOISE,
    STATIONARY,
    Covariance,
    InducingProcess,
    Process,
)
from probneural.heads.kernel.kernel_operator import KernelPredictor, Path, _precisions
from probneural.heads.kernel.principal_components import PrincipalComponents, left_out
from probneural.heads.kernel.search import Evidence, Objective, Point, Search, minimise
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.metrics import score
from probneural.pairs import FieldPairs
from probneural.problems import Heat
from tests.heads.cases import ENDS, PERIODIC, PLANE, fields, operator_case
from tests.helpers import cross_covariance, generator, held_out, normal

QUICK = KernelOperator(groups=2, iterations=5)
FINER = Grid.uniform(tuple(2 * size for size in PERIODIC.shape))


def pairs(count: int = 24, *, channels: int = 1, grid: Grid = PERIODIC, seed: int = 1) -> FieldPairs:
    """Smooth inputs and their squares, shifted and with units: a quadratic map."""
    inputs = fields(grid, count, channels, seed=seed)
    outputs = 3.0 * inputs.values.square().roll(2, -1) + inputs.values + 5.0
    if channels > 1:
        outputs = outputs * torch.tensor([1e3, 1e-4]).reshape(2, *(1,) * len(grid.shape))
    return FieldPairs(inputs, Field(outputs, grid))


@cache
def fitted(name: str = "plain") -> KernelPredictor:
    if name == "operator":
        case = operator_case("fno-1d")
        return QUICK.fit(case.operator, pairs())
    data = {"plain": pairs(), "channels": pairs(channels=2), "plane": pairs(grid=PLANE), "ends": pairs(grid=ENDS)}[name]
    return QUICK.fit(None, data)


NAMES = ["plain", "channels", "plane", "ends", "operator"]
every_predictor = pytest.mark.parametrize("name", NAMES)


def queries(name: str = "plain", count: int = 4) -> Field:
    predictor = fitted(name)
    return fields(predictor.domain, count, predictor.in_channels, seed=99)


# By hand


def by_hand(kernel: str, left: np.ndarray, right: np.ndarray, covariance: Covariance) -> np.ndarray:
    relevance, linear, alpha = (part.numpy() for part in (covariance.relevance, covariance.linear, covariance.alpha))
    difference = (left[:, None] - right[None]) * relevance
    d = np.sqrt((difference**2).sum(-1))
    known = {
        "rbf": np.exp(-(d**2) / 2),
        "matern12": np.exp(-d),
        "matern32": (1 + np.sqrt(3) * d) * np.exp(-np.sqrt(3) * d),
        "matern52": (1 + np.sqrt(5) * d + 5 * d**2 / 3) * np.exp(-np.sqrt(5) * d),
        "rational_quadratic": (1 + d**2 / (2 * alpha)) ** -alpha,
        "linear": np.zeros_like(d),
    }
    plain = known[kernel.partition("+")[0]]
    return plain + ((left * linear) @ (right * linear).T if kernel.endswith("linear") else 0.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_posterior_is_the_dense_one(kernel: str) -> None:
    data = pairs(20)
    predictor = KernelOperator(kernel, groups=2, output_components=6, iterations=3).fit(None, data)
    inputs = queries("plain")
    field = predictor(inputs)
    share = np.sqrt(1.0 / PERIODIC.size)
    x = data.inputs.values[:, 0].numpy()
    y = data.outputs.values[:, 0].numpy()
    scale = np.sqrt(((y - y.mean(0)) ** 2).mean())
    unit = np.sqrt(((x - x.mean(0)) ** 2).mean())
    _, _, right = np.linalg.svd(share * (x - x.mean(0)) / unit, full_matrices=False)
    _, _, modes = np.linalg.svd(share * (y - y.mean(0)) / scale, full_matrices=False)
    basis = right[: predictor.inputs.count]
    z, new = (share * (values - x.mean(0)) / unit @ basis.T for values in (x, inputs.values[:, 0].numpy()))
    signs = np.sign((basis * predictor.inputs.modes[:, 0].numpy()).sum(1))
    z, new = z * signs, new * signs
    mean, covariance, start = np.repeat(y.mean(0)[None], 4, axis=0), np.zeros((4 * 12, 4 * 12)), 0
    for process in predictor.processes:
        gram = by_hand(kernel, z, z, process.covariance) + process.nugget * np.eye(20)
        cross = by_hand(kernel, new, z, process.covariance)
        joint = by_hand(kernel, new, new, process.covariance) - cross @ np.linalg.solve(gram, cross.T)
        for deviation in process.amplitude.numpy():
            mode = modes[start]
            coordinates = share * (y - y.mean(0)) / scale @ mode
            profile = scale * mode / share
            mean += np.outer(cross @ np.linalg.solve(gram, coordinates), profile)
            covariance += deviation**2 * np.kron(joint, np.outer(profile, profile))
            assert deviation**2 == pytest.approx(coordinates @ np.linalg.solve(gram, coordinates) / 20, rel=1e-5)
            start += 1
    assert start == predictor.outputs.count == 6
    np.testing.assert_allclose(field.mean[:, 0].numpy(), mean, atol=1e-8 * np.abs(mean).max())
    dense = cross_covariance(field, field).numpy()
    np.testing.assert_allclose(dense, covariance, atol=1e-8 * np.abs(covariance).max())
    np.testing.assert_allclose(field.variance.numpy().ravel(), np.diag(covariance), atol=1e-8 * np.abs(covariance).max())


def test_linear_kernel_is_bayesian_linear_regression() -> None:
    points, values, new = normal(15, 4), normal(15, 2, seed=1), normal(6, 4, seed=2)
    covariance = Covariance(
        "linear", torch.ones(4).double(), torch.tensor([1.0, 0.5, 2.0, 0.1]).double(), torch.ones(()).double()
    )
    process = Process(covariance, 0.3, points, values, torch.tensor([2.0, 1.0]).double())
    precision = (1.0 / covariance.linear.square()).diag() + points.mT @ points / 0.3
    weights = torch.linalg.solve(precision, points.mT @ values / 0.3)
    torch.testing.assert_close(process.mean(new), new @ weights, rtol=1e-10, atol=1e-12)
    expected = new @ torch.linalg.solve(precision, new.mT)
    root = process.joint_factor(new)
    torch.testing.assert_close(root @ root.mT, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(process.variance(new), expected.diagonal(), rtol=1e-9, atol=1e-10)


def test_evidence_is_gpytorchs() -> None:
    import gpytorch

    points, values = normal(12, 3), normal(12, 2, seed=1)
    covariance = Covariance("matern32", torch.full((3,), 0.5).double(), torch.ones(3).double(), torch.ones(()).double())
    matrix = covariance(points, points) + 0.2 * torch.eye(12)
    evidence = Evidence.of(matrix, values)
    amplitude, gradient = evidence.amplitude, evidence.gradient()
    expected = 0.0
    for column, deviation in zip(values.mT, amplitude.tolist(), strict=True):
        kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5)).double()
        kernel.outputscale, kernel.base_kernel.lengthscale = deviation**2, 2.0
        prior = gpytorch.distributions.MultivariateNormal(torch.zeros(12).double(), kernel(points))
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = 0.2 * deviation**2
        expected += float(likelihood(prior).log_prob(column).detach())
        slightly = [
            torch.distributions.MultivariateNormal(torch.zeros(12).double(), factor * deviation**2 * matrix).log_prob(column)
            for factor in (0.99, 1.0, 1.01)
        ]
        assert slightly[1] > max(slightly[0], slightly[2])
    assert evidence.value == pytest.approx(expected, rel=1e-7)  # GPyTorch keeps its noise through a softplus
    direction = normal(12, 12, seed=3)
    direction = direction + direction.mT
    plus, minus = (Evidence.of(matrix + step * direction, values).value for step in (1e-5, -1e-5))
    assert float((gradient * direction).sum()) == pytest.approx((plus - minus) / 2e-5, rel=1e-6)
    assert Evidence.of(-matrix, values) is None


@pytest.mark.parametrize("kernel", ["rational_quadratic+linear", "matern52", "linear"])
def test_search_climbs(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients agree with differences, and no neighbour of the result has larger evidence."""
    monkeypatch.setitem(search._NATS, "last", 1e-7)
    points, values = normal(30, 3) * torch.tensor([3.0, 1.0, 0.2]), normal(30, 2, seed=1) * 0.1
    values = values + points[:, :2].sin()
    rule = Search(kernel, points, points.std(0), values, min_noise=LEAST_NOISE, iterations=200)
    fitted = rule.run()
    assert fitted.converged
    assert fitted.evaluations >= 1
    objective = Objective(kernel, points, points.std(0), values)
    start = torch.full((9,), 0.3, dtype=torch.float64)
    gradient = objective(start).gradient
    for axis, step in enumerate(1e-6 * torch.eye(9, dtype=torch.float64)):
        change = (objective(start + step).value - objective(start - step).value) / 2e-6
        assert float(gradient[axis]) == pytest.approx(change, abs=1e-7)
    process = fitted.process
    matrix = process.covariance(points, points)
    for factor in (0.5, 2.0):
        other = Evidence.of(matrix + factor * process.nugget * torch.eye(30), values)
        assert other.value < fitted.log_evidence


def test_search_ends_where_no_noise_helps() -> None:
    points, values = normal(30, 3), torch.zeros(30, 2, dtype=torch.float64)
    rule = Search("linear", points, points.std(0), values, min_noise=LEAST_NOISE, iterations=5)
    with pytest.raises(DataError, match="Cholesky factor"):
        rule.run()


def test_curvature_is_the_average_information() -> None:
    """From dense derivatives of C: the mean over data of the curvature is the Fisher information, up to amplitudes."""
    points, values = normal(25, 2), normal(25, 3, seed=1)
    objective = Objective("rational_quadratic+linear", points, points.std(0), values)
    vector = torch.tensor([0.2, 0.3, 0.1, -1.0, 0.4, -1.0, 0.2, -0.1], dtype=torch.float64)

    def matrix(numbers: Tensor) -> Tensor:
        covariance, nugget = objective.unpacked(numbers)
        return covariance(points, points) + nugget * torch.eye(25, dtype=torch.float64)

    derivatives = torch.func.jacfwd(matrix)(vector).movedim(-1, 0)
    inverse = torch.linalg.inv(matrix(vector))
    expected = torch.diag(torch.tensor([0.0] * 6 + [1.0] * 2, dtype=torch.float64))
    for column in values.mT:
        scaled = inverse @ column / ((column @ inverse @ column) / 25).sqrt()
        images = derivatives @ scaled
        along = images @ scaled
        expected = expected + 0.5 * (images @ inverse @ images.mT - torch.outer(along, along) / 25)
    torch.testing.assert_close(objective(vector).curvature * values.numel(), expected, rtol=1e-8, atol=1e-8)


def valley(vector: Tensor) -> Point | None:
    """Rosenbrock's function with the curvature of Gauss and Newton, not defined beyond 3."""
    if float(vector.abs().max()) > 3.0:
        return None
    slopes = torch.tensor([[-20.0 * float(vector[0]), 10.0], [-1.0, 0.0]], dtype=torch.float64)
    rest = torch.stack([10.0 * (vector[1] - vector[0] ** 2), 1.0 - vector[0]])
    return Point(0.5 * float(rest @ rest), lambda: slopes.mT @ rest, lambda: slopes.mT @ slopes)


@pytest.mark.parametrize(("most", "expected"), [(5.0, [1.0, 1.0]), (0.5, [0.5, 0.25])])
def test_minimum_within_bounds(most: float, expected: list[float]) -> None:
    lower, upper = torch.full((2,), -5.0, dtype=torch.float64), torch.tensor([most, 5.0], dtype=torch.float64)
    start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    gradients: list[Tensor] = []

    def counted(vector: Tensor) -> Point | None:
        point = valley(vector)
        return None if point is None else replace(point, find_gradient=lambda: gradients.append(vector) or point.gradient)

    found = minimise(counted, start, lower=lower, upper=upper, iterations=100, tolerance=1e-14)
    assert found.converged
    assert len(gradients) < found.evaluations  # no derivatives where a step is refused
    assert found.vector.tolist() == pytest.approx(expected, abs=1e-5)
    few = minimise(valley, start, lower=lower, upper=upper, iterations=2, tolerance=1e-14)
    assert not few.converged
    assert few.evaluations == 3
    nowhere = minimise(lambda _: None, start, lower=lower, upper=upper, iterations=5, tolerance=0.0)
    assert not nowhere.converged
    assert nowhere.value == float("inf")
    fixed = minimise(valley, start, lower=start, upper=start, iterations=5, tolerance=0.0)
    assert torch.equal(fixed.vector, start)


@every_predictor
def test_learns_a_quadratic_map(name: str) -> None:
    predictor, inputs = fitted(name), queries(name)
    truth = pairs(24, channels=predictor.in_channels, grid=predictor.domain, seed=1).outputs.values
    recalled = predictor(pairs(24, channels=predictor.in_channels, grid=predictor.domain, seed=1).inputs).mean
    errors = (recalled - truth).flatten(2).norm(dim=2) / truth.flatten(2).norm(dim=2)
    assert float(errors.max()) < 0.02
    field = predictor(inputs)
    assert bool((field.variance > 0).all())
    assert predictor.noise.shape == (predictor.out_channels,)
    assert bool((predictor.noise > 0).all())
    assert predictor.noise.dtype == torch.float64


@pytest.mark.parametrize("least", [1e-8, 1e-3])
def test_noise_has_a_lower_bound(least: float) -> None:
    """A linear map has no noise, so evidence goes to the bound: the mean leaves noise times (k + noise I)^-1 y of the data."""
    data = Heat(dimension=1).sample(20, resolution=64, seed=0, dtype=torch.float64)
    (process,) = KernelOperator("linear", groups=1, min_noise=least).fit(None, data).processes
    matrix = (process.points * process.covariance.linear) @ (process.points * process.covariance.linear).mT
    noise = least * matrix.diagonal().mean()
    assert process.nugget == pytest.approx(float(noise), rel=1e-9)
    left = noise * torch.linalg.solve(matrix + noise * torch.eye(20, dtype=torch.float64), process.values)
    torch.testing.assert_close(process.values - process.mean(process.points), left, rtol=1e-6, atol=1e-12)


def test_operator_plus_residual() -> None:
    case, predictor, inputs = operator_case("fno-1d"), fitted("operator"), queries("operator")
    copied = copy.deepcopy(case.operator).eval()
    data = pairs()
    with torch.no_grad():
        residuals = Field(data.outputs.values - evaluate(copied, data.inputs), PERIODIC)
        expected = evaluate(copied, inputs)
    rest = QUICK.fit(None, FieldPairs(data.inputs, residuals))(inputs)
    torch.testing.assert_close(predictor(inputs).mean, expected + rest.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(predictor(inputs).variance, rest.variance, rtol=1e-5, atol=1e-12)


# Components


def test_components_are_orthonormal_and_complete() -> None:
    functions = fields(ENDS, 9, 2, seed=3)
    components = PrincipalComponents.of(functions, components=None, tolerance=0.0, largest=100)
    assert components.count == min(8, 2 * 3)
    weights = ENDS.weights / ENDS.volume
    gram = torch.einsum("rcp,scp,p->rs", components.modes, components.modes, weights)
    torch.testing.assert_close(gram, torch.eye(components.count).double())
    scores = components.scores(functions)
    torch.testing.assert_close(scores.std(0, correction=0), components.std)
    rebuilt = components.centre + torch.einsum("nr,rcp->ncp", scores, components.modes_on(ENDS))
    torch.testing.assert_close(rebuilt, functions.values)
    finer = fields(ENDS.resized(21), 9, 2, seed=3)
    torch.testing.assert_close(components.scores(finer), scores, rtol=1e-3, atol=1e-3)
    mean_square = torch.einsum("r,rc->c", components.std.square(), components.mean_squares())
    expected = torch.einsum("ncp,p->c", (functions.values - components.centre).square(), weights) / 9
    torch.testing.assert_close(mean_square, expected)


def test_components_follow_the_tolerance() -> None:
    functions = fields(PERIODIC, 40, 1, seed=3)
    std = PrincipalComponents.of(functions, components=None, tolerance=0.0, largest=100).std.square()
    for tolerance in (0.5, 0.1, 0.01):
        kept = PrincipalComponents.of(functions, components=None, tolerance=tolerance, largest=100).count
        assert std[kept:].sum() <= tolerance * std.sum() < std[kept - 1 :].sum()
    assert PrincipalComponents.of(functions, components=None, tolerance=0.0, largest=2).count == 2
    assert PrincipalComponents.of(functions, components=3, tolerance=0.0, largest=2).count == 3


def decaying(count: int) -> Tensor:
    """Functions on 12 points whose components have deviations from 1 to 1e-5."""
    basis = torch.linalg.qr(normal(12, 12, seed=1)).Q
    return (normal(count, 1, 12, seed=2) * torch.logspace(0, -5, 12, dtype=torch.float64)) @ basis


def components_of(*channels: Tensor, dtype: torch.dtype = torch.float64) -> PrincipalComponents:
    functions = Field(torch.cat(channels, dim=1).to(dtype), Grid.uniform(12))
    return PrincipalComponents.of(functions, components=None, tolerance=1e-12, largest=100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_channel_hides_no_components_of_others(dtype: torch.dtype) -> None:
    values = decaying(40)
    expected = components_of(values, dtype=dtype)
    for constant in (1.0, 101325.0, 1e12):
        found = components_of(values, torch.full_like(values, constant), dtype=dtype)
        torch.testing.assert_close(found.std, expected.std, rtol=1e-9, atol=0.0)
        assert float(found.unit[1]) == 1.0
        assert not bool(found.modes[:, 1].any())


def test_rounding_of_one_channel_hides_no_components_of_others() -> None:
    values = decaying(40)
    pressure = 101325.0 + 10.0 * normal(40, 1, 1, seed=4) * torch.ones(12)
    alone = components_of(values, dtype=torch.float32)
    found = components_of(values, pressure, dtype=torch.float32)
    own = found.modes[:, 0].square().mean(1) > 0.5
    assert int(own.sum()) == alone.count == found.count - 1
    torch.testing.assert_close(found.std[own], alone.std, rtol=0.2, atol=0.0)


@pytest.mark.parametrize("size", [1e2, 1e6])
def test_a_steady_pattern_does_not_change_components(size: float) -> None:
    first, second = (fields(PERIODIC, 40, 1, seed=seed).values for seed in (3, 4))
    pattern = size * torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    expected, found = components_of(first, second), components_of(first, second + pattern)
    torch.testing.assert_close(found.unit, expected.unit, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(found.std, expected.std, rtol=1e-6, atol=0.0)


def test_what_components_leave_out_is_measured_on_others() -> None:
    """White noise: components of 40 functions on 64 points explain all of these, and next to nothing of others."""
    grid = Grid.uniform(64)
    functions, others = (Field(2.0 * normal(40, 1, 64, seed=seed), grid) for seed in (0, 1))
    components = PrincipalComponents.of(functions, components=30, tolerance=0.0, largest=100)
    rest = others.values - components.centre
    rest = rest - torch.einsum("nr,rcp->ncp", components.scores(others), components.modes_on(grid))
    within = functions.values - components.centre
    within = within - torch.einsum("nr,rcp->ncp", components.scores(functions), components.modes_on(grid))
    assert float(left_out(functions, components)) == pytest.approx(float(rest.square().mean()), rel=0.15)
    assert float(within.square().mean()) < 0.2 * float(rest.square().mean())


def test_what_components_leave_out_does_not_count_copies() -> None:
    """Each function twice: an equal one in another fold would leave nothing out."""
    once = Field(normal(12, 1, 40, seed=3), Grid.uniform(40))
    twice = Field.cat([once, once])
    components = PrincipalComponents.of(once, components=9, tolerance=0.0, largest=64)
    copied = PrincipalComponents.of(twice, components=9, tolerance=0.0, largest=64)
    owners = torch.arange(12).repeat(2)
    expected = float(left_out(once, components))
    assert float(left_out(twice, copied, groups=owners)) == pytest.approx(expected, rel=1e-9)
    assert float(left_out(twice, copied)) < 0.5 * expected
    assert float(left_out(once, components, groups=torch.zeros(12, dtype=torch.long))) == pytest.approx(expected, rel=1e-12)


def test_noise_is_found() -> None:
    """Noise of the outputs comes out as noise: what the components leave out, and what the processes cannot explain."""
    inputs = fields(PERIODIC, 150, 1, seed=1)
    noisy = inputs.values.roll(1, -1) + 0.1 * normal(150, 1, 12, seed=5)
    data = FieldPairs(inputs, Field(noisy, PERIODIC))
    std = PrincipalComponents.of(inputs, components=None, tolerance=0.0, largest=9)
    kept_out = (std.std.square()[:, None] * std.mean_squares())[3:].sum()
    for components, rest in ((3, float(kept_out)), (None, 0.0)):
        predictor = KernelOperator("linear", groups=2, output_components=components).fit(None, data)
        assert float(predictor.noise) == pytest.approx(0.01 + rest, rel=0.4)


def test_a_constant_output_channel_has_a_density() -> None:
    data = pairs(24)
    values = data.outputs.values
    both = FieldPairs(data.inputs, Field(torch.cat([values, torch.full_like(values, 5.0)], dim=1), PERIODIC))
    found, expected = QUICK.fit(None, both), QUICK.fit(None, data)
    assert float(found.noise[1]) == pytest.approx(1e-12, rel=1e-9, abs=0.0)
    assert float(found.noise[0]) == pytest.approx(float(expected.noise), rel=0.1)
    new = held_out(both)
    assert score(found(new.inputs), new.outputs, noise=found.noise).nll is not None


# Roots


def no_paths(seed: int, rows: Tensor) -> Tensor:
    raise AssertionError("not drawn")


def root_case() -> tuple[ComponentRoot, Tensor]:
    factors = normal(2, 4, 4).tril()
    deviations = torch.tensor([2.0, 1.0, 0.5]).double()
    variances = factors.square().sum(2)
    coordinates = BlockCoordinates(deviations, (1, 2), lambda: variances, lambda: factors, 4, torch.arange(4), no_paths)
    modes = normal(3, 2, 5, seed=1)
    dense = torch.zeros(4, 2, 5, 3, 4).double()
    for number, group in enumerate((0, 1, 1)):
        dense[..., number, :] = torch.einsum("cp,nm->ncpm", deviations[number] * modes[number], factors[group])
    return ComponentRoot(modes, coordinates), dense.flatten(3)


def test_root_stands_for_its_tensor() -> None:
    root, dense = root_case()
    basis = torch.linalg.qr(normal(12, 12, seed=4))[0]
    one = LowRankUpdate(basis[:3], torch.tensor([0.0, 0.5, 2.0]).double())
    two = LowRankUpdate(torch.linalg.qr(normal(12, 2, seed=5))[0].mT, torch.tensor([0.1, 0.7]).double())
    per_function = LowRankUpdate(basis[:8].reshape(4, 2, 12), torch.full((4, 2), 0.3).double())
    grid = Grid.uniform(5)
    probe = integral(grid)
    factors = torch.tensor([2.0, 0.1]).double()
    index = torch.tensor([2, 0])
    cases = [
        (root, dense),
        (root.select(index), dense[index]),
        (root.select(slice(1, 3)).select(slice(1, 2)), dense[2:3]),
        (root.scale(factors), dense * factors[:, None, None]),
        (root.compose(one), one.product(dense)),
        (root.compose(one).compose(two), two.product(one.product(dense))),
        (root.compose(per_function).select(index), per_function.product(dense)[index]),
        (root.compose(per_function).compose(one), one.product(per_function.product(dense))),
        (root.compose(one).compose(per_function).select(slice(1, 3)), per_function.product(one.product(dense))[1:3]),
        (root.compose(per_function).compose(per_function), per_function.product(per_function.product(dense))),
        (root.push(probe), probe(dense.movedim(-1, 1)).movedim(1, -1)),
    ]
    for lazy, full in cases:
        count, channels, points, rank = full.shape
        assert lazy.shape == tuple(full.shape)
        assert (lazy.dtype, lazy.device.type) == (torch.float64, "cpu")
        torch.testing.assert_close(lazy.dense(), full)
        latents, values = normal(3, rank), normal(3, count, channels, points, seed=8)
        torch.testing.assert_close(lazy.product(latents), torch.einsum("ncpk,sk->sncp", full, latents))
        each = normal(count, rank, seed=9)
        torch.testing.assert_close(lazy.product_each(each), torch.einsum("ncpk,nk->ncp", full, each))
        torch.testing.assert_close(lazy.transposed_product(values), torch.einsum("ncpk,sncp->sk", full, values))
        pulled = normal(count, 2, channels, points, seed=10)
        torch.testing.assert_close(lazy.pull(pulled), torch.einsum("ncpk,nmcp->nmk", full, pulled))
        torch.testing.assert_close(lazy.row_squares(), full.square().sum(-1))
        flat = full.flatten(1, 2)
        torch.testing.assert_close(lazy.gram(), flat @ flat.mT)
        torch.testing.assert_close(lazy.marginal(count - 1).gram(), flat[-1:] @ flat[-1:].mT)


def test_observed_roots_stay_small() -> None:
    """600 functions of 40 coordinates are a tensor of 4.6 GB; one observation of each takes 115 MB."""
    functions, coordinates = 600, 40
    factor = 0.1 * normal(functions, functions).tril() + torch.eye(functions).double()
    deviations = torch.linspace(2.0, 0.0, coordinates).double()  # the last coordinate is known already
    blocks = BlockCoordinates(
        deviations,
        (coordinates,),
        lambda: factor.square().sum(1)[None],
        lambda: factor[None],
        functions,
        torch.arange(functions),
        no_paths,
    )
    root = ComponentRoot(normal(coordinates, 1, 64, seed=1), blocks)
    rows = root.pull(torch.ones(functions, 1, 1, 64).double() / 64)
    seen = root.compose(LowRankUpdate(rows / rows.norm(dim=-1, keepdim=True), torch.zeros(functions, 1).double()))
    draws = seen.product(normal(2, seen.shape[3]))
    assert draws.shape == (2, functions, 1, 64)
    assert draws.mean(-1).abs().max() < 1e-11 * draws.abs().max()
    variance = seen.row_squares()
    full = root.row_squares()
    assert ((variance <= full) & (variance > 0.5 * full)).double().mean() > 0.9
    assert seen.marginal(3).push(integral(Grid.uniform(64))).row_squares().max() < 1e-20 * full[3].max()


def test_a_certain_coordinate_stays_certain() -> None:
    root, _ = root_case()
    certain = replace(root.coordinates, std=torch.tensor([2.0, 0.0, 0.5]).double())
    per_function = LowRankUpdate(
        torch.linalg.qr(normal(12, 12, seed=4))[0][:8].reshape(4, 2, 12), torch.full((4, 2), 0.3).double()
    )
    seen = ComponentRoot(root.modes, certain).compose(per_function)
    torch.testing.assert_close(seen.row_squares(), seen.dense().square().sum(-1))


@pytest.mark.bad_input
def test_bad_roots() -> None:
    root, _ = root_case()
    with pytest.raises(GridError, match="5 points"):
        root.push(integral(Grid.uniform(4)))
    with pytest.raises(ShapeError, match="directions"):
        root.compose(LowRankUpdate(torch.eye(3).double(), torch.ones(3).double()))


def test_variances_need_no_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Process, queries: Tensor) -> Tensor:
        raise AssertionError("a joint factor was formed")

    expected = fitted()(queries()).variance
    monkeypatch.setattr(Process, "joint_factor", refuse)
    monkeypatch.setattr("probneural.heads.kernel.gaussian_processes._CHUNK", 1)
    torch.testing.assert_close(fitted()(queries()).variance, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("inducing_points", [None, 6])
def test_a_function_without_variance_is_drawn_beside_others(inducing_points: int | None) -> None:
    half = (4.0 * normal(6, 1, 16, seed=1)).round()
    values = torch.cat([half, -half])
    grid = Grid.uniform(16)
    outputs = Field(values @ normal(16, 16, seed=2) + 0.5 * normal(12, 1, 16, seed=3), grid)
    head = KernelOperator("linear", groups=2, iterations=2, inducing_points=inducing_points)
    predictor = head.fit(None, FieldPairs(Field(values, grid), outputs))
    zero, other = torch.zeros(1, 1, 16, dtype=torch.float64), half[:2] + normal(2, 1, 16, seed=4)
    alone, among, without = (predictor(Field(part, grid)) for part in (zero, torch.cat([other, zero]), other))
    assert not bool(alone.variance.any())
    assert torch.equal(alone.rsample(seed=0), alone.mean)
    drawn = among.rsample(torch.Size([2000]), seed=0)
    torch.testing.assert_close(drawn[:, 2], among.mean[2].expand(2000, 1, 16), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(drawn[:, :2].var(0), without.variance, rtol=0.2, atol=0.0)


@pytest.mark.parametrize("inducing_points", [None, 6])
def test_covariances_that_are_not_finite_have_no_root(inducing_points: int | None) -> None:
    one = torch.ones(1, dtype=torch.float64)
    covariance = Covariance("linear", one, one, one[0])
    points = normal(12, 1, seed=1)
    process: Process | InducingProcess = Process(covariance, 0.1, points, points, one)
    if inducing_points is not None:
        process = InducingProcess.fitted(covariance, nugget=0.1, points=points, values=points, count=inducing_points)[0]
    with pytest.raises(DataError, match="Cholesky factor"):
        process.joint_factor(1e200 * points)


# Fields


@every_predictor
def test_other_grids_are_the_same_functions(name: str) -> None:
    predictor, inputs = fitted(name), queries(name)
    grid = inputs.grid
    fine = grid.resized([2 * size - int(end) for size, end in zip(grid.shape, grid.endpoint, strict=True)])
    part = Grid.scattered(grid.points[1::2], torch.ones(len(grid.points[1::2])))
    here, there, scattered = predictor(inputs), predictor(inputs, fine), predictor(inputs, part)
    assert here.latent.id == there.latent.id == scattered.latent.id
    for get in (lambda u: u.mean, lambda u: u.variance, lambda u: u.rsample((2,), seed=5)):
        coarse = get(there)[(..., *(slice(None, None, 2) for _ in grid.shape))]
        torch.testing.assert_close(coarse, get(here), rtol=1e-7, atol=1e-9 * float(get(here).abs().max()))
        torch.testing.assert_close(get(scattered), get(here).flatten(-grid.dimension)[..., 1::2], rtol=1e-7, atol=1e-9)
    refined = fields(fine, 4, predictor.in_channels, seed=99)
    if name != "operator":
        torch.testing.assert_close(predictor(refined, grid).mean, here.mean, rtol=2e-2, atol=2e-2)


def test_outputs_may_live_on_another_grid() -> None:
    data, finer = pairs(), Grid.uniform(24)
    outputs = pairs(grid=finer).outputs.resample(finer)
    moved = Field(data.outputs.resample(finer).values, finer)
    predictor = QUICK.fit(None, FieldPairs(data.inputs, moved))
    torch.testing.assert_close(predictor(queries()).mean, fitted()(queries()).mean, rtol=1e-5, atol=1e-5)
    assert outputs.grid == predictor.outputs.grid


def test_latents_of_two_calls_differ() -> None:
    predictor, inputs = fitted(), queries()
    field = predictor(inputs)
    for other in (inputs[:2], inputs[[0, 1, 3, 2]]):
        assert predictor(other).latent.id != field.latent.id
    again = predictor(Field(inputs.values.clone(), inputs.grid))
    assert torch.equal(cross_covariance(field, again), cross_covariance(field, field))
    assert QUICK.fit(None, pairs()[:20])(inputs).latent.id != field.latent.id


def test_conditioning_and_constraints() -> None:
    predictor, inputs = fitted(), queries()
    field = predictor(inputs)
    probe = sensors(PERIODIC, [[0.25], [0.5]])
    truth = pairs(4, seed=99).outputs.values
    seen = field[:2].condition(probe, probe(truth[:2]), noise=1e-10)
    torch.testing.assert_close(probe(seen.mean), probe(truth[:2]), rtol=1e-3, atol=1e-3)
    joint = field.under(seen.latent)
    a, b = field.apply(probe).root.dense().flatten(0, 2), field.root.dense().flatten(0, 2)
    gain = b @ a[:4].mT @ torch.linalg.inv(a[:4] @ a[:4].mT + 1e-10 * torch.eye(4))
    expected = field.mean.flatten() + gain @ (probe(truth[:2]) - probe(field.mean[:2])).flatten()
    torch.testing.assert_close(joint.mean.flatten(), expected, rtol=1e-5, atol=1e-6)
    total = integral(PERIODIC)
    lawful = field.constrain(total, total(truth))
    torch.testing.assert_close(total(lawful.mean), total(truth))
    drawn = total(lawful.rsample((3,), seed=1))
    torch.testing.assert_close(drawn, total(truth).expand_as(drawn), rtol=1e-6, atol=1e-6)


@every_predictor
@pytest.mark.parametrize("kernel", ["rational_quadratic+linear", "matern32"])
def test_gradient_in_the_inputs(name: str, kernel: str) -> None:
    """With deviations large enough to be differenced."""
    predictor, inputs = copy.copy(fitted(name)), queries(name)
    ones = torch.ones(predictor.inputs.count, dtype=torch.float64)
    covariance = Covariance(kernel, 0.5 * ones, 0.2 * ones, ones[0])
    predictor.processes = tuple(
        Process(covariance, 0.1, old.points, old.values, old.values.square().mean(0).sqrt()) for old in predictor.processes
    )
    scale = predictor(inputs).standard_deviation.flatten(2).mean((0, 2)).reshape(-1, *(1,) * inputs.grid.dimension)
    direction = normal(*inputs.values.shape, seed=3)

    def value(values: Tensor) -> Tensor:
        field = predictor(Field(values, inputs.grid))
        return (
            (field.mean / scale).sin().sum() + (field.rsample(seed=1) / scale).cos().sum() + (field.variance / scale**2).sum()
        )

    values = inputs.values.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(values), values)
    errors = []
    for step in (1e-3, 1e-4, 1e-5, 1e-6):
        with torch.no_grad():
            change = (value(values + step * direction) - value(values - step * direction)) / (2 * step)
        errors.append(abs(float(change - (gradient * direction).sum())))
    assert min(errors) <= 1e-4 * float((gradient * direction).abs().sum())


# Draws


@pytest.mark.parametrize("kernel", STATIONARY)
def test_spectral_densities(kernel: str) -> None:
    """The mean of cos(w d) over the frequencies is the kernel."""
    alpha = torch.tensor(0.8).double()
    covariance = Covariance(kernel, torch.ones(1).double(), torch.ones(1).double(), alpha)
    seed = generator(0)
    precision = _precisions(kernel, 0.8, 200_000, seed)
    frequencies = torch.randn(200_000, generator=seed, dtype=torch.float64) * precision.sqrt()
    for distance in (0.3, 1.0, 3.0):
        expected = float(covariance(torch.zeros(1, 1).double(), torch.full((1, 1), distance).double()))
        assert float((distance * frequencies).cos().mean()) == pytest.approx(expected, abs=5 * 0.5**0.5 / 200_000**0.5)


@pytest.mark.parametrize("kernel", ["rational_quadratic+linear", "matern32", "linear"])
def test_paths_have_the_posterior_distribution(kernel: str) -> None:
    """100 paths of 60 outputs each, all alike: outputs of one path share frequencies only, of which there are many."""
    points, values, new = normal(8, 2), normal(8, 1, seed=1), normal(2, 2, seed=2)
    relevance, linear = torch.tensor([0.8, 0.4]).double(), torch.tensor([0.5, 0.3]).double()
    covariance = Covariance(kernel, relevance, linear, torch.tensor(0.7).double())
    process = Process(covariance, 0.1, points, values.expand(-1, 60), torch.full((60,), 2.0).double())
    seed, paths = generator(3), 100
    draws = torch.stack([Path.drawn(process, generator=seed, features=512)(new) for _ in range(paths)])
    root = 2.0 * process.joint_factor(new)
    whitened = torch.linalg.solve_triangular(root, (draws - process.mean(new)).movedim(1, 0).flatten(1), upper=False)
    count = paths * 60
    assert float(whitened.mean(1).abs().max()) < 4.5 / count**0.5
    errors = whitened @ whitened.mT / count - torch.eye(2)
    assert float(errors.abs().max()) < 6.0 / count**0.5


def test_draws_have_the_predictors_moments() -> None:
    predictor, inputs = fitted(), queries(count=2)
    field, drawn = predictor(inputs), predictor.evaluate_draws(inputs, seeds=range(150))
    scaled = (drawn.mean(0) - field.mean) / field.standard_deviation
    assert float(scaled.abs().max()) < 4.5 / 150**0.5
    assert float((drawn.var(0) / field.variance - 1).abs().max()) < 4.5 * 2**0.5 / 150**0.5


# With the rest of the library


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    case = operator_case("fno-1d")
    module = copy.deepcopy(case.operator).to(dtype)
    for predictor in (QUICK.fit(module, pairs()), QUICK.fit(None, pairs().to(dtype))):
        field = predictor(queries())
        assert predictor.dtype == field.mean.dtype == field.variance.dtype == field.rsample().dtype == dtype
        assert predictor.noise.dtype == torch.float64
        assert evaluate(predictor.draw(0), queries().to(dtype)).dtype == dtype
    torch.testing.assert_close(field.mean.double(), fitted()(queries()).mean, rtol=1e-2, atol=1e-2)


def test_report() -> None:
    predictor = fitted()
    assert predictor.report["evaluations"] >= 2
    total = 0.0
    for process in predictor.processes:
        matrix = process.factor @ process.factor.mT
        for values, deviation in zip(process.values.mT, process.amplitude, strict=True):
            distribution = torch.distributions.MultivariateNormal(torch.zeros_like(values), deviation**2 * matrix)
            total += float(distribution.log_prob(values))
    assert predictor.log_evidence == pytest.approx(total, rel=1e-6)
    assert predictor.converged == (predictor.report["converged"] == 1.0)
    assert KernelOperator("linear", groups=1, iterations=100).fit(None, pairs()).converged
    assert not KernelOperator(groups=1, iterations=1).fit(None, pairs()).converged
    assert [len(process.amplitude) for process in predictor.processes] == [3, predictor.outputs.count - 3]


@pytest.mark.bad_input
def test_bad_data() -> None:
    data = pairs()
    with pytest.raises(DataError, match="3 or more pairs"):
        QUICK.fit(None, data[:2])
    flat = Field(torch.ones_like(data.inputs.values), PERIODIC)
    with pytest.raises(DataError, match="inputs that vary"):
        QUICK.fit(None, FieldPairs(flat, data.outputs))
    with pytest.raises(DataError, match="outputs that vary"):
        QUICK.fit(None, FieldPairs(data.inputs, flat))
    with pytest.raises(DataError, match="at least one input"):
        fitted()(data.inputs[:0])


class Nearly(nn.Module):
    """The map of `pairs` up to a thousandth."""

    def __init__(self) -> None:
        super().__init__()
        self.error = nn.Parameter(torch.tensor(1e-3, dtype=torch.float64))

    def forward(self, values: Tensor) -> Tensor:
        return 3.0 * values.square().roll(2, -1) + values + 5.0 + self.error * values.square()


@pytest.mark.parametrize("residuals", [False, True], ids=["outputs", "residuals"])
def test_rounding_makes_no_components(residuals: bool) -> None:
    """What single precision rounds off a mean of 1,000, or off outputs that an operator predicts well, is no direction."""
    exact, mean = pairs(40), 0.0 if residuals else 1000.0
    offset = FieldPairs(exact.inputs, Field(exact.outputs.values + mean, exact.outputs.grid))
    single = FieldPairs(exact.inputs.to(torch.float32), offset.outputs.to(torch.float32))
    operator = Nearly() if residuals else None
    expected = QUICK.fit(operator, offset)
    found = QUICK.fit(None if operator is None else operator.float(), single)
    assert found.outputs.count <= expected.outputs.count
    fresh = pairs(8, seed=5)
    truth = fresh.outputs.values + mean
    errors = [
        float((u.mean.double() - truth).square().mean())
        for u in (expected(fresh.inputs), found(fresh.inputs.to(torch.float32)))
    ]
    assert errors[1] < 1.2 * errors[0]
