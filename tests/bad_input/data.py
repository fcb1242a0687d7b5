"""Mistakes with grids, fields, pairs, functionals and problems."""

from __future__ import annotations

import numpy as np
import torch

import probneural as pn
from probneural.errors import ArgumentError, DataError, GridError, ResolutionError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid, interpolation_matrix, resample
from probneural.pairs import FieldPairs
from tests.bad_input.world import GRID, PLANE, SCATTERED, Case, burgers, normal, pairs, refused

NAN = float("nan")
INF = float("inf")
NO_COUNT = (0, -1, 2.5, True, "3", None, NAN)
"""What is no count."""
NOT_POSITIVE = (0.0, -1.0, NAN, INF, True, "1", None, 1j)
"""What is no positive number."""
NO_FLAG = ("no", 1, 0, None)
"""What is no truth value."""

GRIDS = [
    *refused(
        "Grid.uniform shape", Grid.uniform, (0, -4, 2.5, "16", (), (8, 0), (8, 2.5), (True,), None), ArgumentError, "shape"
    ),
    *refused("lengths", lambda v: Grid.uniform((8,), lengths=v), NOT_POSITIVE, ArgumentError, "lengths"),
    *refused("lengths", lambda v: Grid.uniform((8,), lengths=v), ((1.0, 2.0), (), "12"), ArgumentError, "lengths"),
    *refused(
        "periodic",
        lambda v: Grid.uniform((8,), periodic=v),
        ("no", ["no"], (1,), 1, None, (True, False)),
        ArgumentError,
        "periodic",
    ),
    *refused(
        "endpoint", lambda v: Grid.uniform((8,), periodic=False, endpoint=v), ("no", ["no"], 1), ArgumentError, "endpoint"
    ),
    *refused("origin", lambda v: Grid.uniform((8,), origin=v), (NAN, INF, "0", True, None, 1j), ArgumentError, "origin"),
    Case("a periodic axis with its end", lambda: Grid.uniform((8,), endpoint=True), ArgumentError, "right end"),
    *refused("resized", GRID.resized, (0, "8", (8, 8), None), ArgumentError, "shape"),
    Case("resized, scattered", lambda: SCATTERED.resized(8), GridError, "uniform"),
    *refused("points", lambda v: Grid.scattered(v, [1.0]), ([1.0], [], [[]], 3.0), ShapeError, "points"),
    *refused(
        "points", lambda v: Grid.scattered(v, [1.0]), ([[NAN]], [["a"]], [[1j]], None, [[1.0], [1.0, 2.0]]), DataError, "points"
    ),
    *refused("weights", lambda v: Grid.scattered([[0.0]], v), ([1.0, 2.0], [[1.0]], 1.0), ShapeError, "weights"),
    *refused("weights", lambda v: Grid.scattered([[0.0]], v), ([-1.0], [NAN], [0.0], ["a"], None, [1j]), DataError, "weights"),
    Case(
        "interpolation from scattered points",
        lambda: interpolation_matrix(SCATTERED, normal(2, 1).double()),
        GridError,
        "uniform",
    ),
    Case(
        "interpolation outside",
        lambda: interpolation_matrix(Grid.uniform((8,), periodic=False), torch.full((1, 1), 2.0).double()),
        GridError,
        "points in",
    ),
    Case(
        "resample, other domain", lambda: resample(normal(1, 1, 16), GRID, Grid.uniform((8,), lengths=2.0)), GridError, "domain"
    ),
    Case("resample, other shape", lambda: resample(normal(1, 1, 12), GRID, Grid.uniform((8,))), ShapeError, "shape"),
]

FIELDS = [
    *refused(
        "Field values",
        lambda v: Field(v, GRID),
        (
            np.zeros((1, 1, 16)),
            [[[0.0] * 16]],
            None,
            torch.zeros(1, 1, 16, dtype=torch.int64),
            torch.zeros(1, 1, 16, dtype=torch.complex64),
            torch.zeros(1, 1, 16, dtype=torch.float16),
            torch.zeros(1, 1, 16, dtype=torch.bool),
        ),
        DataError,
        "float32 or float64 tensor",
    ),
    *refused(
        "Field values",
        lambda v: Field(v, GRID),
        (torch.zeros(16), torch.zeros(1, 16), torch.zeros(1, 1, 15), torch.tensor(1.0)),
        ShapeError,
        "n, c, 16",
    ),
    *refused("Field grid", lambda v: Field(torch.zeros(1, 1, 16), v), (None, 16, (16,), torch.zeros(16)), GridError, "Grid"),
    *refused(
        "FieldPairs", lambda v: FieldPairs(pairs().inputs, v), (None, torch.zeros(12, 1, 16), pairs()), DataError, "Field"
    ),
    Case("unequal numbers", lambda: FieldPairs(pairs().inputs, pairs().outputs[:3]), ShapeError, "as many"),
    *refused("split", lambda v: pairs().split(v, seed=0), (0, 12, 20, -1, 2.5, "3", True, None), ArgumentError, "count"),
    *refused("index", lambda v: pairs().inputs[v], (1.5, "a", None, [0.5], torch.tensor([0.5])), DataError, "index"),
    *refused("index", lambda v: pairs().inputs[v], ([20], torch.tensor([20]), [-13], [True, False]), DataError, "index|rows"),
    *refused(
        "to",
        pairs().inputs.to,
        (torch.int64, torch.complex64, torch.float16, "toaster", None, 3),
        (DataError, ArgumentError),
        "float32 or float64|device",
    ),
    Case("resample to no grid", lambda: pairs().inputs.resample((8,)), GridError, "Grid"),
    *refused(
        "from_numpy",
        lambda v: FieldPairs.from_numpy(v, np.zeros((4, 8)), periodic=True),
        (np.zeros((4, 8), complex), np.array([["a"] * 8] * 4), np.full((4, 8), NAN), np.zeros((4, 8), np.longdouble), None),
        DataError,
        "inputs",
    ),
    *refused(
        "from_numpy",
        lambda v: FieldPairs.from_numpy(v, np.zeros((4, 8)), periodic=True),
        (np.zeros(8), np.zeros((4, 2, 8)), np.zeros((3, 8)), np.float64(1.0)),
        ShapeError,
        "inputs|pair",
    ),
    *refused(
        "from_numpy periodic",
        lambda v: FieldPairs.from_numpy(np.zeros((4, 8)), np.zeros((4, 8)), periodic=v),
        (["no"], None, "yes", (True, True), 1),
        (ArgumentError, ShapeError),
        "periodic|grid axes",
    ),
    *refused(
        "from_numpy dtype",
        lambda v: FieldPairs.from_numpy(np.zeros((4, 8)), np.zeros((4, 8)), periodic=True, dtype=v),
        (torch.int64, "float32", np.float32),
        ArgumentError,
        "dtype",
    ),
    *refused(
        "from_numpy grid",
        lambda v: FieldPairs.from_numpy(np.zeros((4, 8)), np.zeros((4, 8)), grid=v),
        (8, "grid"),
        GridError,
        "Grid",
    ),
    Case(
        "grid and periodic",
        lambda: FieldPairs.from_numpy(np.zeros((4, 16)), np.zeros((4, 16)), grid=GRID, periodic=True),
        ArgumentError,
        "grid=",
    ),
    Case(
        "too large for float32",
        lambda: FieldPairs.from_numpy(np.full((4, 8), 1e300), np.zeros((4, 8)), periodic=True, dtype=torch.float32),
        DataError,
        "finite",
    ),
    *refused(
        "from_xarray",
        lambda v: FieldPairs.from_xarray(v, v, periodic=True),
        (np.zeros((4, 8)), 3, "file.nc"),
        DataError,
        "DataArray",
    ),
    *refused(
        "groups from xarray",
        lambda v: FieldPairs.from_xarray(
            FieldPairs.from_numpy(np.zeros((4, 8)), np.zeros((4, 8)), periodic=True)
            .to_xarray()
            .assign_coords(groups=("sample", np.asarray(v)))
        ),
        ([0.5, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, float("nan")], ["a", "a", "b", "b"]),
        DataError,
        "whole numbers",
    ),
    *refused(
        "evaluate", lambda v: pn.fields.evaluate(torch.nn.Identity(), v), (torch.zeros(1, 1, 16), None), DataError, "Field"
    ),
]

FUNCTIONALS = [
    *refused("integral", pn.functionals.integral, (None, 16, "grid"), GridError, "Grid"),
    *refused("sensors grid", lambda v: pn.functionals.sensors(v, [[0.5]]), (None, 16), GridError, "Grid"),
    *refused("sensors", lambda v: pn.functionals.sensors(GRID, v), (0.5, [0.5], [[[0.5]]]), ShapeError, "locations"),
    *refused(
        "sensors",
        lambda v: pn.functionals.sensors(GRID, v),
        ("here", None, [["a"]], [[0.1], [0.1, 0.2]], [[1j]]),
        DataError,
        "locations",
    ),
    *refused("sensors", lambda v: pn.functionals.sensors(GRID, v), ([[NAN]], [[INF]], [[0.5, 0.5]]), GridError, "points"),
    Case("sensors, scattered", lambda: pn.functionals.sensors(SCATTERED, [[0.5]]), GridError, "uniform"),
    *refused(
        "derivative order",
        lambda v: pn.functionals.derivative(GRID, order=v),
        (0, -1, 1.5, "1", True, None),
        ArgumentError,
        "order",
    ),
    *refused(
        "derivative axis",
        lambda v: pn.functionals.derivative(GRID, axis=v),
        (1, -1, 0.5, "x", True, None),
        ArgumentError,
        "axis",
    ),
    Case("derivative, scattered", lambda: pn.functionals.derivative(SCATTERED), GridError, "uniform"),
    Case(
        "derivative, order too high",
        lambda: pn.functionals.derivative(Grid.uniform((4,), periodic=False), order=4),
        ArgumentError,
        "order",
    ),
    *refused("derivative at", lambda v: pn.functionals.derivative(GRID, at=v), (0.5, [0.5]), ShapeError, "locations"),
    *[
        case
        for name, make in (
            ("region", pn.functionals.region),
            ("average", pn.functionals.average),
            ("maximum", pn.functionals.maximum),
        )
        for case in (
            *refused(f"{name} grid", make, (None, 16), GridError, "Grid"),
            *refused(
                f"{name} lower",
                lambda v, make=make: make(PLANE, lower=v),
                (0.1, [0.1], [NAN, 0.1], [INF, 0.1], "a", [[0.1, 0.1]], 1j),
                ArgumentError,
                "corner",
            ),
            Case(
                f"{name} upside down",
                lambda make=make: make(PLANE, lower=[0.5, 0.5], upper=[0.1, 0.1]),
                ArgumentError,
                "below",
            ),
        )
    ],
    *[
        case
        for name, make in (("region", pn.functionals.region), ("maximum", pn.functionals.maximum))
        for case in (
            *refused(f"{name} mask", lambda v, make=make: make(GRID, v), ([True], torch.ones(4, 4), True), ShapeError, "shape"),
            *refused(
                f"{name} mask", lambda v, make=make: make(GRID, v), ("a", [NAN] * 16, [2.0] * 16, [1j] * 16), DataError, "where"
            ),
            Case(f"{name} of nothing", lambda make=make: make(GRID, torch.zeros(16)), GridError, "inside"),
            Case(f"{name} function", lambda make=make: make(GRID, lambda x: x), ShapeError, "returned"),
            Case(f"{name} of two regions", lambda make=make: make(GRID, torch.ones(16), lower=0.5), ArgumentError, "both"),
        )
    ],
    *refused("region reduction", lambda v: pn.functionals.region(GRID, reduction=v), ("sum", None), ArgumentError, "reduction"),
    Case("region outside", lambda: pn.functionals.region(GRID, lower=0.5, upper=1.7), GridError, "domain"),
    *refused("path", lambda v: pn.functionals.line_integral(PLANE, v), (0.5, [[0.5, 0.5]], [[0.1], [0.2]]), ShapeError, "path"),
    *refused(
        "path", lambda v: pn.functionals.line_integral(PLANE, v), ("a", None, [[NAN, 0.1], [0.2, 0.2]]), DataError, "path|vert"
    ),
    Case("path, scattered", lambda: pn.functionals.line_integral(SCATTERED, [[0.1], [0.5]]), GridError, "uniform"),
    Case("path of no length", lambda: pn.functionals.line_integral(GRID, [[0.1], [0.1]]), ArgumentError, "length"),
    *refused("named", lambda v: pn.functionals.integral(GRID).named(v), (None, 3, [3], ["a", "b"]), ArgumentError, "labels"),
    *refused("stack", pn.functionals.stack, ([], [None], None, 3), (GridError, DataError), "functionals"),
    Case(
        "stack, two grids",
        lambda: pn.functionals.stack([pn.functionals.integral(GRID), pn.functionals.integral(PLANE)]),
        GridError,
        "one grid",
    ),
    Case(
        "sum of two sizes",
        lambda: pn.functionals.integral(GRID) + pn.functionals.sensors(GRID, [[0.1], [0.2]]),
        ShapeError,
        "equal size",
    ),
    *refused("sum with", lambda v: pn.functionals.integral(GRID) + v, (3, None, "a"), DataError, "functionals"),
    *refused("times", lambda v: pn.functionals.integral(GRID) * v, ("a", None, NAN, 1j, True, INF), ArgumentError, "factor"),
    *refused("values", pn.functionals.integral(GRID), (torch.zeros(15), torch.tensor(1.0)), ShapeError, "shape"),
    *refused(
        "values",
        pn.functionals.integral(GRID),
        (None, "a", pairs().inputs, torch.zeros(16, dtype=torch.complex64)),
        DataError,
        "values",
    ),
    *refused(
        "adjoint",
        lambda v: pn.functionals.integral(GRID).adjoint(v),
        (torch.zeros(2), torch.tensor(1.0)),
        ShapeError,
        "numbers",
    ),
    Case(
        "matrix of other columns",
        lambda: pn.functionals.MatrixFunctional(GRID, torch.zeros(1, 3).double()),
        ShapeError,
        "matrix",
    ),
]

PROBLEMS = [
    *refused("viscosity", pn.problems.Burgers, NOT_POSITIVE, ArgumentError, "viscosity"),
    *refused(
        "modes",
        lambda v: pn.problems.Burgers(random_field=pn.problems.GaussianRandomField(1, v)),
        NO_COUNT,
        ArgumentError,
        "modes",
    ),
    *refused(
        "random_field",
        lambda v: pn.problems.Heat(random_field=v),
        (3, "GRF", pn.problems.GaussianRandomField(1, 3), pn.problems.GaussianRandomField(2, 3, boundary="dirichlet")),
        ArgumentError,
        "random_field",
    ),
    *refused(
        "design_dim",
        lambda v: pn.problems.Burgers(random_field=pn.problems.GaussianRandomField(1, 3), design_dim=v),
        (0, 7, 1.5, True),
        ArgumentError,
        "design_dim",
    ),
    *refused("Heat dimension", lambda v: pn.problems.Heat(dimension=v), (0, 4, "2", True), ArgumentError, "dimension"),
    *refused("boundary", lambda v: pn.problems.Heat(boundary=v), ("open", None, 3), ArgumentError, "boundary"),
    *refused("initial", lambda v: pn.problems.Advection(initial=v), ("wavy", None, ["smooth"]), ArgumentError, "initial"),
    *refused("space_time", lambda v: pn.problems.Advection(space_time=v), NO_FLAG, ArgumentError, "space_time"),
    *refused(
        "widths",
        lambda v: pn.problems.Advection(initial="square", widths=v),
        ((0.5, 0.1), (0.1,), 3, ("a", "b")),
        ArgumentError,
        "widths",
    ),
    *refused("equation", pn.problems.Antiderivative, ("cubic", None), ArgumentError, "equation"),
    *refused("velocity", pn.problems.AdvectionDiffusion, (NAN, "1", (1.0, 2.0), None), ArgumentError, "velocit"),
    *refused("vary_wavenumber", lambda v: pn.problems.Helmholtz(vary_wavenumber=v), NO_FLAG, ArgumentError, "vary_wavenumber"),
    *refused("rate", lambda v: pn.problems.BlackScholes(rate=v), (NAN, "0", None), ArgumentError, "rate"),
    *refused(
        "bounds",
        lambda v: pn.problems.UniformParameters(v, (1.0,)),
        ((2.0,), (NAN,), (0.0, 0.5), ("a",), None),
        ArgumentError,
        "lower|bounds",
    ),
    *refused("right_hand_side", pn.problems.MethodOfLines, (None, 3), ArgumentError, "right_hand_side"),
    *refused("method", lambda v: pn.problems.TimeIntegrator(method=v), ("euler2", None), ArgumentError, "method"),
    *refused("n", lambda v: burgers().sample(v, resolution=16, seed=0), NO_COUNT, ArgumentError, "n"),
    *refused("resolution", lambda v: burgers().sample(2, resolution=v, seed=0), (2.5, None, True), ArgumentError, "resolution"),
    *refused("resolution", lambda v: burgers().sample(2, resolution=v, seed=0), (0, 4, -1), ResolutionError, "points per axis"),
    *refused("resolution", lambda v: burgers().sample(2, resolution=v, seed=0), ((16, 16), ()), ShapeError, "resolution"),
    *refused(
        "dtype",
        lambda v: burgers().sample(2, resolution=16, seed=0, dtype=v),
        (torch.int64, torch.complex64, "float32", torch.float16),
        ArgumentError,
        "dtype",
    ),
    *refused("solve", burgers().solve, (torch.zeros(1, 1, 16), None), DataError, "Field"),
    Case("solve, two channels", lambda: burgers().solve(Field(normal(1, 2, 16), GRID)), ShapeError, "channels"),
    Case(
        "solve, another domain",
        lambda: burgers().solve(Field(normal(1, 1, 16), Grid.uniform((16,), lengths=2.0))),
        GridError,
        "unit cube",
    ),
    Case("solve, NaN", lambda: burgers().solve(Field(torch.full((1, 1, 16), NAN), GRID)), DataError, "finite"),
    *refused(
        "encode",
        lambda v: burgers().encode(v, grid=GRID),
        (torch.full((2,), 1.5), torch.full((2,), NAN), [0.5, 0.5], "a", torch.zeros(2, dtype=torch.complex64)),
        (DataError, ArgumentError),
        "design",
    ),
    Case("encode, other dimension", lambda: burgers().encode(torch.full((3,), 0.5), grid=GRID), ShapeError, "design"),
    *refused("encode grid", lambda v: burgers().encode(torch.full((2,), 0.5), grid=v), (None, 16), GridError, "Grid|grid"),
]

CASES = [*GRIDS, *FIELDS, *FUNCTIONALS, *PROBLEMS]
