from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField, MixtureField
from probneural.distributions.roots.modulated import DiagonalRoot
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.functionals import Functional, sensors
from probneural.functionals.base import MatrixFunctional
from probneural.grids import Grid
from probneural.inverse import place_sensors

GRID = Grid.uniform((7,))
NOISE = torch.tensor([[0.1, 0.2, 0.1, 0.3, 0.1, 0.2], [0.3, 0.1, 0.2, 0.1, 0.1, 0.4]], dtype=torch.float64)
PLACEMENTS = [("outputs", 1), ("outputs", 2), ("inputs", 1), ("inputs", 2)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def field(channels: int, *, samples: int = 3) -> GaussianField:
    """Channels correlated by their root, with smooth and white discrepancy."""
    white = DiagonalRoot(0.3 * normal(samples, channels, 7, seed=5).abs())
    root = DenseRoot(normal(samples, channels, 7, 4, seed=1))
    return GaussianField(normal(samples, channels, 7, seed=2), root, latent="xi", grid=GRID, discrepancy=white)


def functional(order: Sequence[int] = range(6)) -> MatrixFunctional:
    """Six sensors, each of all points, so that the white discrepancy is not white in the observations."""
    return MatrixFunctional(GRID, normal(6, 7, seed=3)[list(order)])


def dense(
    outputs: GaussianField, about: str, rows: Sequence[int], order: Sequence[int] = range(6), *, at: Functional | None = None
) -> float:
    """The gain from dense covariances of the chosen rows in all channels."""
    values = outputs.apply(at or functional(order))
    channels = outputs.mean.shape[1]
    numbers = [channel * 6 + row for channel in range(channels) for row in rows]
    noise = torch.diag(NOISE[:channels, list(order)].flatten())
    total = values.root.gram() + (0.0 if values.discrepancy is None else values.discrepancy.gram())

    def entropy(covariance: Tensor) -> Tensor:
        return 0.5 * torch.linalg.slogdet((covariance + noise)[..., numbers, :][..., numbers])[1]

    if about == "outputs":
        return float((entropy(total) - entropy(torch.zeros_like(noise))).mean())
    means = values.mean.flatten(1)
    mixture = total.mean(0) + torch.cov(means.mT, correction=0)
    return float(entropy(mixture) - entropy(total).mean())


@pytest.mark.parametrize(("about", "channels"), PLACEMENTS)
def test_gains_are_dense_log_determinants(about: str, channels: int) -> None:
    outputs = field(channels)
    placement = place_sensors(outputs, functional(), count=6, noise=NOISE[:channels], about=about)
    indices = placement.indices.tolist()
    expected = [dense(outputs, about, indices[:number]) for number in range(1, 7)]
    assert sorted(indices) == list(range(6))
    assert placement.information.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("about", ["outputs", "inputs"])
def test_white_discrepancy_of_sensors_at_points(about: str) -> None:
    points = sensors(GRID, GRID.points[:6])
    outputs = field(2)
    placement = place_sensors(outputs, points, count=6, noise=NOISE, about=about)
    indices = placement.indices.tolist()
    expected = [dense(outputs, about, indices[:number], at=points) for number in range(1, 7)]
    assert placement.information.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("about", "channels"), PLACEMENTS)
def test_choices_beside_all_subsets(about: str, channels: int) -> None:
    outputs = field(channels)
    placement = place_sensors(outputs, functional(), count=3, noise=NOISE[:channels], about=about)
    for number in (1, 2, 3):
        best = max(dense(outputs, about, rows) for rows in itertools.combinations(range(6), number))
        least = 1.0 if number == 1 else 1.0 - 1.0 / math.e
        assert least * best - 1e-10 <= float(placement.information[number - 1]) <= best + 1e-10
    # each choice is the best one given those before
    for number in range(3):
        before = placement.indices[:number].tolist()
        gains = [dense(outputs, about, [*before, row]) if row not in before else -math.inf for row in range(6)]
        assert int(torch.tensor(gains).argmax()) == int(placement.indices[number])


@pytest.mark.parametrize("about", ["outputs", "inputs"])
def test_candidates_in_another_order(about: str) -> None:
    order = [3, 0, 5, 1, 4, 2]
    first = place_sensors(field(2), functional(), count=4, noise=NOISE, about=about)
    second = place_sensors(field(2), functional(order), count=4, noise=NOISE[:, order], about=about)
    assert [order[index] for index in second.indices.tolist()] == first.indices.tolist()
    assert torch.allclose(first.information, second.information, rtol=1e-12)


def test_equal_sensors_share_their_information() -> None:
    # two observations of variance v with noise N each: 1/2 log(1 + v / N), then 1/2 log(1 + 2 v / N)
    outputs = GaussianField(normal(1, 1, 7), DenseRoot(torch.full((1, 1, 7, 1), 2.0).double()), latent="xi", grid=GRID)
    placement = place_sensors(outputs, functional([0, 0]), count=2, noise=0.5)
    variance = 4.0 * float(functional([0])(torch.ones(7, dtype=torch.float64))) ** 2
    expected = [0.5 * math.log1p(variance / 0.5), 0.5 * math.log1p(2.0 * variance / 0.5)]
    assert placement.information.tolist() == pytest.approx(expected, rel=1e-10)
    far = GaussianField(torch.zeros(1, 1, 7), DenseRoot(torch.eye(7)[None, None]), latent="xi", grid=GRID)
    three = MatrixFunctional(GRID, torch.eye(7).double()[[0, 0, 1]] * torch.tensor([[1.1], [1.1], [1.0]]).double())
    assert place_sensors(far, three, count=2, noise=1e-3).indices.tolist() == [0, 2]


def test_members_and_mixtures_count_by_their_moments() -> None:
    members = normal(40, 2, 1, 7, seed=4)
    empirical = EmpiricalField(members, grid=GRID)
    mixture = MixtureField([field(1), field(1)], weights=torch.tensor([0.5, 0.5]))
    for outputs in (empirical, mixture):
        ours = place_sensors(outputs, functional(), count=3, noise=0.1)
        theirs = place_sensors(outputs.moment_matched(), functional(), count=3, noise=0.1)
        assert torch.equal(ours.indices, theirs.indices)
        assert torch.allclose(ours.information, theirs.information)


def test_an_exact_sensor_leaves_a_tiny_remainder() -> None:
    """With noise 1e-14 of the variance gains of other sensors keep their digits: no variance cancels."""
    outputs = GaussianField(torch.zeros(1, 1, 7), DenseRoot(torch.eye(7).double()[None, None]), latent="xi", grid=GRID)
    rows = torch.zeros(2, 7, dtype=torch.float64)
    rows[:, 0] = 1.0
    information = place_sensors(outputs, MatrixFunctional(GRID, rows), count=2, noise=1e-14).information
    assert float(information.diff()) == pytest.approx(0.5 * math.log(2.0), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "error", "mentions"),
    [
        ({"count": 7}, ArgumentError, "count"),
        ({"count": 0}, ArgumentError, "count"),
        ({"noise": 0.0}, ArgumentError, "noise"),
        ({"noise": float("nan")}, ArgumentError, "noise"),
        ({"noise": torch.ones(5)}, ShapeError, "one variance per sensor"),
        ({"about": "theta"}, ArgumentError, "about"),
        ({"about": "inputs", "outputs": field(1, samples=1)}, ArgumentError, "two samples"),
        ({"outputs": EmpiricalField(torch.full((2, 1, 1, 7), torch.nan), grid=GRID)}, DataError, "predictions"),
        ({"outputs": "field"}, DataError, "outputs"),
    ],
)
def test_bad_arguments(changes: dict[str, object], error: type[Exception], mentions: str) -> None:
    arguments = {"outputs": field(1), "count": 2, "noise": 0.1} | changes
    outputs = arguments.pop("outputs")
    with pytest.raises(error, match=mentions):
        place_sensors(outputs, functional(), **arguments)  # type: ignore[arg-type]
