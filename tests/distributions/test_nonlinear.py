"""Nonlinear functionals by draws: against the distribution of maxima that is known, and the rules of drawing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.errors import DataError, GridError, ShapeError
from probneural.functionals import integral, maximum, stack
from probneural.grids import Grid
from tests.distributions.cases import Case, on_every_distribution
from tests.helpers import normal

LINE = Grid.uniform(5)


def independent(*, n: int = 1, std: float = 2.0) -> GaussianField:
    """Five independent values of mean 1."""
    root = DenseRoot(std * torch.eye(5, dtype=torch.float64).expand(n, 1, 5, 5))
    return GaussianField(torch.ones(n, 1, 5, dtype=torch.float64), root, latent="xi", grid=LINE)


def test_the_maximum_of_independent_values() -> None:
    """F(y) = Phi((y - 1) / 2)^5; each quantile within four standard errors in probability."""
    count = 20000
    peak = independent().apply_by_draws(maximum(LINE), draws=count)
    assert isinstance(peak, EmpiricalField)
    for q in (0.05, 0.5, 0.95):
        reached = stats.norm.cdf((peak.quantile(q).item() - 1.0) / 2.0) ** 5
        assert reached == pytest.approx(q, abs=4 * (q * (1 - q) / count) ** 0.5)
    assert peak.mean.item() > 1.0 + 2.0 * 1.1  # the mean of the maximum is not the maximum of the mean
    lower, upper = (end.item() for end in peak.interval(0.9))
    assert upper - peak.mean.item() > peak.mean.item() - lower  # skewed to the right


@on_every_distribution
def test_linear_functionals_keep_their_moments(case: Case) -> None:
    functional = integral(case.field.grid)
    exact, drawn = case.field.apply(functional), case.field.apply_by_draws(functional, draws=4000)
    assert drawn.mean.dtype == exact.mean.dtype
    error = 6 * exact.std / 4000**0.5 + 1e-5
    assert ((drawn.mean - exact.mean).abs() <= error).all()
    if isinstance(exact, EmpiricalField):
        torch.testing.assert_close(drawn.samples, exact.samples)
        assert torch.equal(drawn.weights, exact.weights)


def test_draws_follow_their_seed_and_differ_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    u, peak = independent(n=2), maximum(LINE)
    monkeypatch.setattr("probneural.distributions.empirical._CHUNK_ELEMENTS", 70)
    first, again, other = (u.apply_by_draws(peak, draws=50, seed=seed).samples for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first[:, 0].unique()) == 50


def test_names_go_with_the_numbers() -> None:
    u = independent(n=3)
    assert u.apply_by_draws(maximum(LINE), draws=5)[1].labels == ("maximum",)
    named = u.apply(stack([integral(LINE), integral(LINE)]).named(["a", "b"]))
    changed = [
        named[1],
        named.marginal(1),
        named.scale(torch.ones(1)),
        named.condition(integral(named.grid), torch.zeros(3, 1, 1), noise=1.0),
        named.constrain(integral(named.grid), torch.zeros(3, 1, 1)),
        EmpiricalField(normal(3, 3, 1, 5), grid=LINE).apply(integral(LINE).named("a"))[1:].scale(torch.ones(1)),
    ]
    assert [field.labels for field in changed] == [("a", "b")] * 5 + [("a",)]
    assert u.labels is None


class TestTables:
    def test_arrays_are_moments_and_ends(self) -> None:
        u = independent(n=2)
        for field in (u, u.apply(integral(LINE)), u.apply_by_draws(maximum(LINE))):
            table = field.to_numpy(0.8, noise=0.5)
            lower, upper = field.interval(0.8, noise=0.5)
            expected = {"mean": field.mean, "std": field.std, "lower": lower, "upper": upper}
            for name, values in expected.items():
                np.testing.assert_array_equal(table[name], values.numpy())
        assert table["quantity"].tolist() == ["maximum"]

    def test_datasets_name_quantities_and_coordinates(self) -> None:
        xarray = pytest.importorskip("xarray")
        u = independent(n=2)
        both = u.apply(stack([integral(LINE), integral(LINE)]).named(["a", "b"]))
        table = both.to_xarray(0.95)
        assert isinstance(table, xarray.Dataset)
        assert table["upper"].dims == ("sample", "channel", "quantity")
        np.testing.assert_array_equal(table["upper"].sel(quantity="b").values, both.interval(0.95).upper[..., 1].numpy())
        assert table.attrs["level"] == 0.95
        assert u.apply(2.0 * integral(LINE)).to_xarray().coords["quantity"].values.tolist() == [0]
        field = u.to_xarray()
        assert field["std"].dims == ("sample", "channel", "x0")
        np.testing.assert_array_equal(field.coords["x0"].values, LINE.points[:, 0].numpy())
        where = Grid.scattered([[0.1, 0.2], [0.5, 0.6]], [1.0, 1.0])
        points = EmpiricalField(normal(3, 2, 1, 2), grid=where).to_xarray()
        assert points["mean"].dims == ("sample", "channel", "point")
        np.testing.assert_array_equal(points.coords["x1"].values, [0.2, 0.6])


@pytest.mark.bad_input
class TestBadInput:
    def test_functions_on_another_grid(self) -> None:
        with pytest.raises(GridError, match="a function on Grid"):
            independent().apply_by_draws(maximum(Grid.uniform(5, lengths=2.0)))

    @pytest.mark.parametrize("change", [lambda v: v.amax(-1), lambda v: v.amax(), lambda v: v[0], lambda v: v[..., :0]])
    def test_functions_that_lose_axes(self, change: object) -> None:
        with pytest.raises(ShapeError, match="keepdim=True"):
            independent().apply_by_draws(change)  # type: ignore[arg-type]

    @pytest.mark.parametrize("change", [lambda v: None, lambda v: v.numpy(), lambda v: v > 0, lambda v: v.flatten(3) / 0])
    def test_functions_without_numbers(self, change: object) -> None:
        with pytest.raises(DataError, match="function"):
            independent().apply_by_draws(change)  # type: ignore[arg-type]

    def test_a_maximum_is_told_apart_from_linear_functionals(self) -> None:
        with pytest.raises(DataError, match="apply_by_draws"):
            independent().apply(maximum(LINE))  # type: ignore[arg-type]
