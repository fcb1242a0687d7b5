"""Fields, pairs of fields, and the evaluation of operators on them."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from probneural.errors import DataError, GridError, ShapeError
from probneural.fields import Field, evaluate, takes_grid
from probneural.grids import Grid, resample
from probneural.pairs import FieldPairs
from tests.helpers import BandLimited, normal, scattered

FIVE = Field(torch.arange(5.0)[:, None, None].expand(5, 2, 4), Grid.uniform(4))


class TestField:
    @pytest.mark.parametrize(
        ("index", "expected"),
        [
            (0, [0]),
            (4, [4]),
            (-1, [4]),
            (-5, [0]),
            (torch.tensor(2), [2]),
            (slice(1, 4), [1, 2, 3]),
            (slice(None, None, 2), [0, 2, 4]),
            (slice(5, 9), []),
            (slice(None, None, -1), [4, 3, 2, 1, 0]),
            (slice(3, 0, -2), [3, 1]),
            (slice(0, 3, -1), []),
            ([3, 0, 3], [3, 0, 3]),
            ([-1], [4]),
            ([], []),
            ([True, False, False, True, False], [0, 3]),
            (torch.tensor([4, 1]), [4, 1]),
            (torch.arange(5) > 2, [3, 4]),
        ],
    )
    def test_indexing_keeps_the_batch_axis(self, index: int, expected: list[int]) -> None:
        chosen, pairs = FIVE[index], FieldPairs(FIVE, FIVE)[index]
        assert chosen.values.shape == (len(expected), 2, 4)
        assert chosen.values[:, 0, 0].tolist() == expected
        assert chosen.grid == FIVE.grid
        assert pairs.inputs.values[:, 0, 0].tolist() == pairs.outputs.values[:, 0, 0].tolist() == expected

    def test_iterating_ends(self) -> None:
        assert [float(field.values[0, 0, 0]) for field in islice(FIVE, 9)] == [0.0, 1.0, 2.0, 3.0, 4.0]

    def test_describes_itself(self) -> None:
        assert repr(FIVE) == f"Field(5 x 2 on {FIVE.grid!r}, torch.float32)"
        assert (len(FIVE), FIVE.channels, FIVE.dtype, FIVE.device.type) == (5, 2, torch.float32, "cpu")

    @pytest.mark.parametrize("periodic", [True, False])
    def test_norms_are_integrals(self, periodic: bool) -> None:
        grid = Grid.uniform((64, 8), lengths=(2.0, 3.0), periodic=periodic)
        wave = torch.sin(math.pi * grid.points[:, 0]).reshape(grid.shape)
        field = Field(torch.stack([wave, 2 * wave])[None], grid)
        assert field.mean_square()[0].tolist() == pytest.approx([0.5, 2.0], rel=1e-12)
        assert field.norm()[0].tolist() == pytest.approx([math.sqrt(3.0), math.sqrt(12.0)], rel=1e-12)

    def test_norms_of_scattered_points_are_weighted(self) -> None:
        grid = Grid.scattered([[0.0], [1.0]], [1.0, 3.0])
        field = Field(torch.tensor([[[2.0, 4.0]]]), grid)
        assert (field.mean_square().item(), field.norm().item()) == pytest.approx((13.0, math.sqrt(52.0)))

    def test_to_changes_the_values_only(self) -> None:
        moved = FIVE.to(torch.float64)
        assert (moved.dtype, moved.grid, FIVE.dtype) == (torch.float64, FIVE.grid, torch.float32)
        assert FieldPairs(FIVE, FIVE).to(torch.float64).outputs.dtype == torch.float64
        assert FIVE.to("meta").device.type == "meta"

    def test_resample_moves_values_and_grid(self) -> None:
        finer = FIVE.resample(Grid.uniform(6))
        assert finer.values.shape == (5, 2, 6)
        assert torch.allclose(finer.values[:, 0, 0], torch.arange(5.0))


@pytest.mark.bad_input
class TestBadFields:
    @pytest.mark.parametrize("index", [5, -6, torch.tensor(5), np.int64(-6)])
    def test_index(self, index: int) -> None:
        with pytest.raises(IndexError, match="of 5 functions"):
            FIVE[index]


class TestFieldPairs:
    PAIRS = FieldPairs(FIVE, Field(10 * FIVE.values, FIVE.grid))

    @given(count=st.integers(1, 4), seed=st.integers(0, 2**31))
    def test_split_is_a_partition_that_keeps_pairs(self, count: int, seed: int) -> None:
        first, second = self.PAIRS.split(count, seed=seed)
        assert (len(first), len(second)) == (count, 5 - count)
        together = [float(part.inputs.values[i, 0, 0]) for part in (first, second) for i in range(len(part))]
        assert sorted(together) == [0.0, 1.0, 2.0, 3.0, 4.0]
        for part in (first, second):
            assert torch.equal(part.outputs.values, 10 * part.inputs.values)

    def test_split_follows_its_seed_alone(self) -> None:
        before = torch.get_rng_state()
        splits = [self.PAIRS.split(2, seed=seed)[0].inputs.values[:, 0, 0].tolist() for seed in (3, 3, *range(20))]
        assert splits[0] == splits[1]
        assert len({tuple(split) for split in splits}) > 3
        assert torch.equal(torch.get_rng_state(), before)

    def test_cat_undoes_a_partition(self) -> None:
        pairs = FieldPairs(FIVE, Field(torch.arange(15.0).reshape(5, 1, 3).double(), Grid.uniform(3, periodic=False)))
        whole = FieldPairs.cat([pairs[:2], pairs[2], pairs[3:]])
        for side, expected in ((whole.inputs, pairs.inputs), (whole.outputs, pairs.outputs)):
            assert torch.equal(side.values, expected.values)
            assert side.grid == expected.grid
            assert side.dtype == expected.dtype
        assert len(FieldPairs.cat((pairs,))) == 5

    def test_cat_is_differentiable_in_each_part(self) -> None:
        parts = [torch.ones(2, 1, 4, requires_grad=True), torch.ones(3, 1, 4, requires_grad=True)]
        together = Field.cat([Field(part, FIVE.grid) for part in parts])
        gradients = torch.autograd.grad((together.values * torch.arange(5.0)[:, None, None]).sum(), parts)
        assert [gradient[:, 0, 0].tolist() for gradient in gradients] == [[0.0, 1.0], [2.0, 3.0, 4.0]]

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("other", "kind", "message"),
        [
            (FIVE.resample(Grid.uniform(5)), GridError, r"fields on Grid.uniform\(\(4,\).*got Grid.uniform\(\(5,\)"),
            (Field(FIVE.values, Grid.uniform(4, lengths=2.0)), GridError, "fields on Grid"),
            (Field(FIVE.values[:, :1], FIVE.grid), ShapeError, "2 channels of each field; got 1"),
            (FIVE.to(torch.float64), DataError, "fields of torch.float32 on cpu; got torch.float64 on cpu"),
        ],
        ids=["grid", "domain", "channels", "dtype"],
    )
    def test_cat_of_unlike_parts(self, other: Field, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            Field.cat([FIVE, other])
        for pairs in (FieldPairs(other, FIVE), FieldPairs(FIVE, other)):
            with pytest.raises(kind, match=message):
                FieldPairs.cat([self.PAIRS, pairs])

    def test_sides_may_have_different_grids(self) -> None:
        pairs = FieldPairs(FIVE, Field(torch.zeros(5, 1, 3, 3), Grid.uniform((3, 3))))
        where = "inputs on x0 4 over 1, periodic; outputs on x0 3 x x1 3 over 1 x 1, periodic"
        assert repr(pairs[:2]) == f"FieldPairs(2 samples; 2 channels to 1 channel; {where}; time: none, torch.float32)"
        assert len(pairs) == 5


class Pointwise(nn.Module):
    """An operator that knows nothing of grids."""

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([2.0 * values, -values], dim=1)


class Anywhere(nn.Module):
    """An operator that is told where its input lives and where its output is wanted."""

    def forward(self, values: Tensor, *, grid: Grid | None = None, query: Grid | None = None) -> Tensor:
        assert grid is not None
        return 2.0 * resample(values, grid, grid if query is None else query)


class Fixed(nn.Module):
    """An operator whose output is always the same tensor."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, values: Tensor) -> object:
        return self.output


class TestEvaluate:
    GRID = Grid.uniform((6, 5))
    FUNCTION = BandLimited((2, 2), lengths=(1.0, 1.0), origin=(0.0, 0.0))
    INPUTS = Field(FUNCTION.on(GRID)[None, None], GRID)

    @pytest.mark.parametrize("query", [None, GRID, Grid.uniform((9, 8)), scattered(7, 2)])
    @pytest.mark.parametrize("operator", [Pointwise(), Anywhere()])
    def test_gives_values_at_the_query(self, operator: nn.Module, query: Grid | None) -> None:
        where = self.GRID if query is None else query
        values = evaluate(operator, self.INPUTS, query)
        assert values.shape == (1, 2 if isinstance(operator, Pointwise) else 1, *where.shape)
        assert (values[0, 0] - 2 * self.FUNCTION.on(where)).abs().max() <= 1e-12

    def test_who_takes_a_grid(self) -> None:
        assert takes_grid(Anywhere())
        assert not takes_grid(Pointwise())

    def test_a_module_may_answer_on_the_query_itself(self) -> None:
        answer = normal(1, 3, 4)
        assert evaluate(Fixed(answer), self.INPUTS, scattered(4, 2)) is answer

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        "output", [torch.ones(1, 6), torch.ones(1, 1, 6, 4), torch.ones(2, 1, 6, 5), torch.ones(6, 5), None, (1,)]
    )
    @pytest.mark.parametrize("query", [None, scattered(7, 2)])
    def test_a_module_that_returns_something_else(self, output: object, query: Grid | None) -> None:
        with pytest.raises(ShapeError, match="what an operator returns of shape"):
            evaluate(Fixed(output), self.INPUTS, query)
