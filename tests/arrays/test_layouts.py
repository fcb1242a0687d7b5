"""Layouts that are stated, named or positional; none is guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from probneural.arrays.layouts import Layout, layouts_of, named_role, positional_layout
from probneural.errors import ArgumentError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.data.files import numbers

VALUES = numbers(6, 8, 5, 3)  # samples, x, y, channels


@pytest.mark.parametrize(
    ("axes", "order"), [("n x y c", (0, 1, 2, 3)), ("c y n x", (3, 2, 0, 1)), ("n - x y c -", (0, None, 1, 2, 3, None))]
)
def test_axes_in_any_order_are_the_same_samples(axes: str, order: tuple[int | None, ...]) -> None:
    array = VALUES.transpose([axis for axis in order if axis is not None])
    for place, axis in enumerate(order):
        array = np.expand_dims(array, place) if axis is None else array
    field = Field.from_numpy(array, axes=axes, periodic=True)
    space = (2, 3) if "x y" in axes else (3, 2)
    assert np.array_equal(field.values, VALUES.transpose(0, 3, 1, 2) if space == (2, 3) else VALUES.transpose(0, 3, 2, 1))
    assert [axis.name for axis in field.grid.axes] == [role for role in axes.split() if role in ("x", "y")]


def test_sides_may_have_layouts_of_their_own() -> None:
    pairs = FieldPairs.from_numpy(VALUES, VALUES[..., 0], axes="n x y c -> n x y", periodic=(False, True))
    assert (pairs.inputs.channels, pairs.outputs.channels) == (3, 1)
    assert torch.equal(pairs.inputs.values[:, :1], pairs.outputs.values)
    assert repr(pairs).startswith(
        "FieldPairs(6 samples; 3 channels to 1 channel; x 8 x y 5 over 1 x 1, periodic in y; time: none"
    )


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (numbers(9, 21, 21), {"periodic": False}),  # a plane, or 21 channels on a line
        (numbers(9, 21, 21), {"periodic": (True,)}),  # as many channels as points
        (numbers(9, 24, 20, 1), {"periodic": (True, True)}),  # channels last
        (numbers(9, 24, 20, 3), {"periodic": (True, True)}),
        (numbers(9, 24, 20, 3), {"grid": Grid.uniform((24, 20))}),
        (numbers(9), {"periodic": True}),
    ],
)
def test_what_is_ambiguous_or_implausible_is_asked_for(array: np.ndarray, options: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match='state the roles of the axes: axes="n '):
        Field.from_numpy(array, **options)


def test_each_reading_that_the_message_names_works() -> None:
    array = numbers(9, 5, 7)
    with pytest.raises(ShapeError) as caught:
        Field.from_numpy(array, periodic=True)
    for axes, shape in {"n x y": (9, 1, 5, 7), "n c x": (9, 5, 7), "n x c": (9, 7, 5)}.items():
        assert f'axes="{axes}"' in str(caught.value)
        assert Field.from_numpy(array, axes=axes, periodic=True).values.shape == shape


def test_one_channel_before_space_is_unambiguous() -> None:
    assert str(positional_layout((9, 1, 8), "a", dimension=None)) == "n c x0"
    assert str(positional_layout((9, 4, 1, 8, 8), "a", dimension=None, has_time=True)) == "n t c x0 x1"
    with pytest.raises(ShapeError, match='axes="n t x y" for a grid of 2 axes'):
        positional_layout((9, 4, 8, 8), "a", dimension=None, has_time=True)


@pytest.mark.parametrize("axes", ["", "n x x", "n n x", "n x+y", "n x -> n x -> n x", "n -> "])
def test_descriptions_that_are_none(axes: str) -> None:
    with pytest.raises(ArgumentError, match="axes"):
        layouts_of(axes)


def test_layouts_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r'4 axes of a \(3, 4, 5\), as in axes="n c x y"'):
        Layout(("n", "c", "x", "y")).check((3, 4, 5), "a")
    with pytest.raises(ShapeError, match="1 as length of axis 1"):
        Layout(("n", "-", "x")).check((3, 4, 5), "a")
    with pytest.raises(ArgumentError, match="samples and without times"):
        Field.from_numpy(VALUES, axes="n t x c", periodic=True)
    with pytest.raises(ArgumentError, match="from_parameters"):
        FieldPairs.from_numpy(VALUES[:, 0, 0], VALUES[..., 0], axes="n c -> n x y", periodic=True)


@pytest.mark.parametrize(
    ("dim", "attributes", "role"),
    [
        ("sample", {}, "n"),
        ("Time", {}, "t"),
        ("channel", {}, "c"),
        ("latitude", {}, "latitude"),
        ("longitude", {}, "longitude"),
        ("x_c", {}, "x_c"),
        ("south_north", {}, "south_north"),
        ("hour", {"axis": "T"}, "t"),
        ("j", {"standard_name": "projection_y_coordinate"}, "j"),
        ("cells", {"units": "degrees_east"}, "cells"),
        *(
            (name, {}, "")
            for name in ("member", "realization", "number", "level", "viscosity", "z500", "xyz", "year", "season")
        ),
    ],
)
def test_names_that_say_a_role(dim: str, attributes: dict[str, str], role: str) -> None:
    """Others say none: ensemble members, levels and parameters are no space."""
    assert named_role(dim, attributes) == role


@pytest.mark.parametrize("as_points", [False, True])
def test_parameters_become_channels(as_points: bool) -> None:
    table, fields = numbers(6, 2), numbers(6, 5, 8)
    pairs = FieldPairs.from_parameters(table, fields, axes="n x y", periodic=True, as_points=as_points)
    assert pairs.inputs.grid.size == (1 if as_points else 40)
    assert np.array_equal(pairs.inputs.values.flatten(2)[..., -1], table)
    assert np.array_equal(pairs.outputs.values[:, 0], fields)
    assert FieldPairs.from_parameters(table[:, 0], fields[:, 0], periodic=False).inputs.channels == 1
    with pytest.raises(ShapeError, match=r"parameters of shape \(n, k\)"):
        FieldPairs.from_parameters(fields, fields, axes="n x y", periodic=True)


def test_a_table_of_parameters_is_no_line() -> None:
    with pytest.raises(ShapeError, match=r"3 numbers per sample beside 64 points.*from_parameters"):
        FieldPairs.from_numpy(numbers(20, 3), numbers(20, 64), periodic=True)
    assert FieldPairs.from_numpy(numbers(20, 3), numbers(20, 64), axes="n x -> n x", periodic=True).inputs.grid.size == 3
