"""Symmetries: exact solution operators commute with theirs, and copies never meet their pairs in another part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import probneural as pn
from probneural.augmentation import Composition, Mirror, Shift, Symmetry, Transpose, augment, box, shifts
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.problems import Burgers, Darcy2D, Heat, Problem, ShallowWater
from tests.helpers import normal, scattered


@dataclass(frozen=True)
class Case:
    """A problem, its number of points per axis, and the symmetries of its operator, for inputs and for outputs."""

    problem: Problem
    points: int
    pairs: Callable[[Grid], list[tuple[Symmetry, Symmetry]]]


def alike(symmetries: list[Symmetry]) -> list[tuple[Symmetry, Symmetry]]:
    return [(one, one) for one in symmetries]


HEAT = Heat(dimension=2, diffusivity=0.01)
CASES = {
    "Burgers, shifts": Case(Burgers(viscosity=0.1), 64, lambda grid: alike(shifts(grid, 5, seed=0))),
    "Burgers, u(x) to -u(-x)": Case(Burgers(viscosity=0.1), 64, lambda grid: alike([Mirror(0, odd=(0,))])),
    "heat, shifts": Case(HEAT, 32, lambda grid: alike(shifts(grid, 5, seed=0))),
    "heat, square": Case(HEAT, 32, lambda grid: alike(box(grid))),
    "Darcy": Case(Darcy2D(), 33, lambda grid: alike(box(grid))),
    "shallow water, shifts": Case(ShallowWater(), 32, lambda grid: alike(shifts(grid, 5, seed=0))),
}


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def worst(case: Case) -> float:
    """How far the solution of an image is from the image of the solution, relative, over all symmetries."""
    inputs = case.problem.sample_inputs(2, resolution=case.points, seed=0, dtype=torch.float64)
    solved = case.problem.solve(inputs)
    errors = []
    for first, second in case.pairs(inputs.grid):
        image = case.problem.solve(first(inputs)).values
        errors.append(relative(image, second(solved).values))
    return max(errors)


@pytest.mark.parametrize("name", CASES)
def test_exact_solutions_of_images_are_images_of_solutions(name: str) -> None:
    assert worst(CASES[name]) < 1e-9


def test_what_is_no_symmetry_is_seen_as_none() -> None:
    burgers = Case(Burgers(viscosity=0.1), 64, lambda grid: alike([Mirror(0)]))
    mixed = Case(Burgers(viscosity=0.1), 64, lambda grid: [(Shift((3 / 64,)), Shift((4 / 64,)))])
    assert worst(burgers) > 0.05
    assert worst(mixed) > 0.01


def test_a_network_without_position_commutes_with_shifts() -> None:
    grid = Grid.uniform(32)
    inputs = Field(normal(3, 1, 32, seed=0), grid)
    places, none = (pn.operators.FNO(1, 1, modes=(6,), embeds_position=flag, seed=0).double() for flag in (True, False))
    move = Shift((5 / 32,))
    for operator, commutes in ((none, True), (places, False)):
        image = Field(pn.fields.evaluate(operator, move(inputs)).detach(), grid)
        moved = move(Field(pn.fields.evaluate(operator, inputs).detach(), grid))
        assert (relative(image.values, moved.values) < 1e-12) == commutes


@pytest.mark.parametrize(
    ("grid", "count"),
    [
        (Grid.uniform(5), 1),
        (Grid.uniform((6, 5), periodic=(True, False)), 3),
        (Grid.uniform((5, 5), periodic=False), 7),
        (Grid.uniform((5, 5), lengths=(1.0, 2.0)), 3),
        (Grid.uniform((4, 4, 4)), 47),
        (Grid.uniform((4, 4, 3)), 15),
    ],
)
def test_the_symmetries_of_a_box_are_a_group(grid: Grid, count: int) -> None:
    field = Field(normal(1, 1, *grid.shape, seed=1), grid)
    symmetries = box(grid)
    images = {one.values.numpy().tobytes() for one in (field, *(symmetry(field) for symmetry in symmetries))}
    assert len(symmetries) == count
    assert len(images) == count + 1
    some = symmetries[:: max(1, count // 7)]
    for first in some:
        assert {Composition((first, second))(field).values.numpy().tobytes() for second in symmetries} <= images


def test_vectors_turn_with_their_components() -> None:
    """Gradients of images are images of gradients, if components go along."""
    grid = Grid.uniform((16, 16))
    x, y = (axis.coordinates for axis in grid.axes)
    wave = 2.0 * math.pi

    def gradient(swapped: bool) -> torch.Tensor:
        a, b = (2, 1) if swapped else (1, 2)
        along = a * wave * torch.cos(a * wave * x)[:, None] * torch.cos(b * wave * y)
        across = -b * wave * torch.sin(a * wave * x)[:, None] * torch.sin(b * wave * y)
        return torch.stack([along, across])

    there = Field(gradient(False)[None], grid)
    # sin(ax) cos(by) with its axes exchanged is sin(ay) cos(bx)
    exchanged = torch.stack(
        [
            -2 * wave * torch.sin(2 * wave * x)[:, None] * torch.sin(wave * y),
            wave * torch.cos(2 * wave * x)[:, None] * torch.cos(wave * y),
        ]
    )
    torch.testing.assert_close(Transpose((1, 0), channels=(1, 0))(there).values[0], exchanged)
    # the mirrored function is -sin(ax) cos(by)
    torch.testing.assert_close(-Mirror(0, odd=(0,))(there).values[0], there.values[0], atol=1e-9, rtol=1e-9)


def test_components_of_vectors_follow_the_order_of_the_axes() -> None:
    """The gradient of an image is the image of the gradient, under a turn that is not its own inverse."""
    grid = Grid.uniform((12, 12, 12))
    smooth = Field(torch.einsum("na,nb,nc->nabc", *normal(3, 2, 12, seed=0))[:, None], grid)

    def gradient(field: Field) -> Field:
        parts = [pn.functionals.derivative(grid, order=1, axis=axis)(field.values) for axis in range(3)]
        return Field(torch.cat([part.reshape(2, 1, 12, 12, 12) for part in parts], dim=1), grid)

    for order in ((1, 2, 0), (2, 0, 1), (0, 2, 1)):
        image = Transpose(order, channels=order)(gradient(smooth))
        assert relative(gradient(Transpose(order)(smooth)).values, image.values) < 1e-12


def test_a_rotating_fluid_turns_and_has_no_mirror() -> None:
    """Components of the velocity are the channels 1 and 2; rotation tells left from right."""
    swap, mirror = Transpose((1, 0), channels=(0, 2, 1)), Mirror(0, odd=(1,))
    turned = Case(ShallowWater(), 32, lambda grid: alike([Composition((swap, mirror))]))
    mirrored = Case(ShallowWater(), 32, lambda grid: alike([mirror]))
    assert worst(turned) < 1e-9
    assert worst(mirrored) > 0.1


def test_what_is_equal_is_equal() -> None:
    """Sequences of any kind become tuples, so symmetries can be compared and looked up."""
    assert {Shift([0.25]), Mirror(0, odd=[0]), Transpose([1, 0])} == {Shift((0.25,)), Mirror(0, odd=(0,)), Transpose((1, 0))}
    assert Composition([Mirror(0)]) == Composition((Mirror(0),))


@pytest.mark.parametrize("grid", [Grid.uniform((8, 1), periodic=False), Grid.uniform((2, 2)), Grid.uniform((1, 1))])
def test_no_symmetry_of_a_small_box_moves_nothing(grid: Grid) -> None:
    field = Field(normal(1, 1, *grid.shape, seed=1), grid)
    images = [symmetry(field).values for symmetry in box(grid)]
    assert not any(torch.equal(image, field.values) for image in images)
    assert len({image.numpy().tobytes() for image in images}) == len(images)


def test_shifts_are_different_and_move_something() -> None:
    grid = Grid.uniform((8, 5, 3), periodic=(True, False, True))
    found = shifts(grid, 30, seed=3)
    assert len({one.fractions for one in found if isinstance(one, Shift)}) == 23  # 8 x 3 places, but for the one where they are
    assert all(isinstance(one, Shift) and one.fractions[1] == 0 and any(one.fractions) for one in found)
    assert shifts(grid, 4, seed=3) == shifts(grid, 4, seed=3) != shifts(grid, 4, seed=4)


def test_grids_of_different_resolutions_are_moved_alike() -> None:
    problem = Burgers(viscosity=0.1)
    coarse, fine = (problem.sample(3, resolution=points, seed=0, dtype=torch.float64) for points in (64, 192))
    mixed = FieldPairs(coarse.inputs, fine.outputs)
    copied = augment(mixed, shifts(coarse.inputs.grid, 4, seed=1))
    solved = problem.solve(copied.inputs.resample(fine.inputs.grid))
    assert relative(copied.outputs.values, solved.values) < 1e-9
    with pytest.raises(GridError, match="whole numbers of cells"):
        augment(mixed, [Shift((1 / 192,))])


def test_copies_never_meet_their_pairs_in_another_part() -> None:
    grid = Grid.uniform(16)
    pairs = FieldPairs(Field(normal(20, 1, 16, seed=0), grid), Field(normal(20, 2, 16, seed=1), grid))
    copied = augment(pairs, [*shifts(grid, 3, seed=0), (Mirror(0), Mirror(0, odd=(1,)))])
    assert len(copied) == 100
    torch.testing.assert_close(copied.outputs.values[80:, 1], -pairs.outputs.values[:, 1].flip(1).roll(1, dims=1))
    first, second = copied.split(30, seed=0)
    spectra = [
        {round(float(value), 9) for value in torch.fft.rfft(part.inputs.values[:, 0]).abs().square().sum(1)}
        for part in (first, second)
    ]
    assert not spectra[0] & spectra[1]  # neither shifts nor mirrors change them
    assert len(spectra[0]) + len(spectra[1]) == 20


def test_copies_keep_trajectories_together() -> None:
    grid = Grid.uniform(8)
    field = Field(normal(4, 1, 8, seed=0), grid)
    copied = augment(FieldPairs(field, field, groups=torch.tensor([0, 0, 7, 7])), shifts(grid, 2, seed=0))
    assert copied.groups is not None
    assert copied.groups.tolist() == [0, 0, 7, 7] * 3


def test_a_kernel_operator_learns_from_copies() -> None:
    problem = Burgers(viscosity=0.1)
    train, test = (problem.sample(count, resolution=64, seed=seed) for count, seed in ((12, 0), (20, 1)))
    errors = []
    for pairs in (train, augment(train, shifts(train.inputs.grid, 7, seed=0))):
        mean = pn.heads.KernelOperator().fit(None, pairs)(test.inputs).mean
        errors.append(relative(mean, test.outputs.values))
    assert errors[1] < 0.3 * errors[0]


LINE, WALLS, SCATTERED = Grid.uniform(8), Grid.uniform(8, periodic=False), scattered(8, 1)
HALF = Grid.uniform(8, periodic=False, endpoint=False)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("grid", "symmetry", "error", "says"),
    [
        (WALLS, lambda: Shift((0.25,)), GridError, "periodic axes"),
        (LINE, lambda: Shift((0.25, 0.0)), GridError, "2 axes of the grid"),
        (LINE, lambda: Shift((0.3,)), GridError, "whole numbers of cells"),
        (SCATTERED, lambda: Shift((0.25,)), GridError, "uniform"),
        (LINE, lambda: Shift((math.nan,)), ArgumentError, "fractions"),
        (LINE, lambda: Shift((3,)), ArgumentError, "fractions"),
        (LINE, lambda: Shift(0.25), ArgumentError, "a tuple"),  # type: ignore[arg-type]
        (LINE, lambda: Mirror(0, odd=0), ArgumentError, "odd=\\(0,\\)"),  # type: ignore[arg-type]
        (LINE, lambda: Transpose(()), ArgumentError, "once"),
        (Grid.uniform((8, 8)), lambda: Transpose((1, 0), channels=(0, 2)), ArgumentError, "channels"),
        (Grid.uniform((8, 8)), lambda: Transpose((1, 0), odd=(1,)), ShapeError, "channels below 1"),
        (LINE, lambda: Composition((Mirror,)), DataError, "a symmetry"),  # type: ignore[arg-type]
        (HALF, lambda: Mirror(0), GridError, "both of their ends"),
        (LINE, lambda: Mirror(1), GridError, "axis 1"),
        (LINE, lambda: Mirror(0, odd=(1,)), ShapeError, "channels below 1"),
        (LINE, lambda: Mirror(-1), ArgumentError, "axis"),
        (LINE, lambda: Transpose((1, 0)), GridError, "can be permuted"),
        (Grid.uniform((8, 4)), lambda: Transpose((1, 0)), GridError, "can be permuted"),
        (Grid.uniform((8, 8)), lambda: Transpose((1, 0), channels=(1, 0)), ShapeError, "2 channels"),
        (LINE, lambda: Transpose((1, 1)), ArgumentError, "once"),
        (LINE, lambda: Composition((Mirror(0), 3)), DataError, "a symmetry"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_refused(grid: Grid, symmetry: Callable[[], Symmetry], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        symmetry()(Field(torch.zeros(2, 1, *grid.shape), grid))


@pytest.mark.bad_input
def test_copies_and_lists_refuse_what_they_cannot_use() -> None:
    field = Field(torch.zeros(2, 1, 8), LINE)
    with pytest.raises(DataError, match="a symmetry"):
        augment(FieldPairs(field, field), [3])  # type: ignore[list-item]
    with pytest.raises(DataError, match="FieldPairs"):
        augment(field, [Mirror(0)])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a list"):
        augment(FieldPairs(field, field), Mirror(0))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="tuples of two"):
        augment(FieldPairs(field, field), [(Mirror(0),)])  # type: ignore[list-item]
    with pytest.raises(GridError, match="both of their ends"):
        box(HALF)
    with pytest.raises(GridError, match="fields on Grid"):
        augment(FieldPairs(field, field), [lambda one: one.resample(Grid.uniform(4))])
    with pytest.raises(GridError, match="periodic axis"):
        shifts(WALLS, 3, seed=0)
    with pytest.raises(ArgumentError, match="count"):
        shifts(LINE, 0, seed=0)
    with pytest.raises(GridError, match="uniform"):
        box(SCATTERED)
