"""Rows of tables from a benchmark's results, and meanings of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probneural.errors import DataError

Row = dict[str, Any]
"""A row of a table: text, number or None by heading."""


@dataclass(frozen=True)
class Column:
    """One number of an evaluation.

    Args:
        heading: Heading of the column.
        paths: Dotted paths in the evaluation, of which the first existing one counts.
        unit: Unit; "field" is that of the output functions.
        meaning: Meaning and good values.
        is_brief: Whether the column is shown in a terminal.
    """

    heading: str
    paths: tuple[str, ...]
    unit: str
    meaning: str
    is_brief: bool = True


COLUMNS = (
    Column("rel. L2", ("scores.relative_l2",), "1", "‖mean - truth‖ / ‖truth‖ per sample, averaged; 0 is exact"),
    Column("RMSE", ("scores.rmse",), "field", "root mean squared error of the mean", is_brief=False),
    Column("CRPS", ("scores.crps",), "field", "pointwise continuous ranked probability score; lower is better"),
    Column("NLL", ("scores.nll",), "nat per value", "pointwise negative log density; lower is better"),
    Column("joint NLL", ("scores.joint_nll",), "nat per value", "joint negative log density; lower is better"),
    Column("coverage", ("scores.coverage",), "1", "fraction of values inside the central interval; should be the level"),
    Column(
        "whole cov.",
        ("scores.simultaneous_coverage",),
        "1",
        "fraction of samples inside the posterior's simultaneous band; should be the level",
    ),
    Column(
        "cal. error",
        ("scores.calibration_error",),
        "1",
        "mean absolute error of coverage over the levels .05 to .95; 0 is calibrated",
    ),
    Column(
        "width",
        ("scores.interval_width",),
        "field",
        "mean width of the central intervals; smaller is better at equal coverage",
        is_brief=False,
    ),
    Column(
        "chi2", ("scores.chi2",), "1", "mean of squared error over predicted variance; 1 is calibrated, above is over-confident"
    ),
    Column("energy", ("scores.energy",), "field", "energy score of fields; lower is better", is_brief=False),
    Column(
        "rank across",
        ("scores.rank_across",),
        "1",
        "rank correlation of sd and error between samples; compare with the attainable one",
        is_brief=False,
    ),
    Column(
        "attainable across",
        ("scores.rank_across_attainable",),
        "1",
        "mean for errors drawn from the predicted distribution",
        is_brief=False,
    ),
    Column(
        "rank within",
        ("scores.rank_within",),
        "1",
        "rank correlation of sd and error between the points of a sample, averaged over samples",
        is_brief=False,
    ),
    Column(
        "attainable within",
        ("scores.rank_within_attainable",),
        "1",
        "mean for errors drawn from the predicted distribution",
        is_brief=False,
    ),
    Column("raw chi2", ("raw.chi2",), "1", "chi2 before calibration", is_brief=False),
    Column("scale", ("raw.scale",), "1", "factor of the field's variances, the largest over channels", is_brief=False),
    Column(
        "unexplained",
        ("raw.noise_share",),
        "1",
        "fraction of the predictive variance that is the head's noise: model discrepancy",
        is_brief=False,
    ),
    Column(
        "band cov.",
        ("band_coverage", "bands.coverage"),
        "1",
        "fraction of samples inside conformal bands with separate calibration sets",
    ),
    Column(
        "promised", ("bands.expected",), "1", "guaranteed coverage of the bands, for the size of their sets", is_brief=False
    ),
    Column(
        "band ratio",
        ("bands.width_ratio",),
        "1",
        "mean width of conformal bands over that of bands of constant width; below 1, the sd shows where errors are large",
    ),
    Column("band width", ("band_width", "bands.width"), "field", "mean width of the conformal bands", is_brief=False),
    Column(
        "const. width",
        ("constant_band_width", "bands.constant_width"),
        "field",
        "mean width of conformal bands of one width everywhere, for comparison",
        is_brief=False,
    ),
)


def rows(results: Mapping[str, Any], *, is_brief: bool = True) -> list[Row]:
    """One row per evaluation of every run, with the same headings in all of them.

    Args:
        results: See `write_report`.
        is_brief: Whether to omit columns that a terminal has no room for.

    Raises:
        DataError: If runs, or what identifies them, are missing.
    """
    check(results)
    several_seeds = len({run.get("seed") for run in results["runs"]}) > 1
    columns = [column for column in COLUMNS if column.is_brief or not is_brief]
    table = []
    for run, evaluation in evaluations(results):
        row: Row = {"problem": run["problem"], "operator": run["operator"], "head": run["head"]}
        if several_seeds:
            row["seed"] = run.get("seed")
        row |= {"on": evaluation["on"], "grid": grid_name(evaluation.get("resolution"))}
        row |= {column.heading: number(first(evaluation, column.paths)) for column in columns}
        table.append(row | {"twice as long": number(run.get("train", {}).get("twice_as_long"))})
    return table


def side_by_side(rows: Sequence[Row], score: str) -> list[Row]:
    """One score of all heads: a row per problem and place, a column per operator and head.

    Examples:
        >>> row = {"problem": "Heat", "operator": "FNO", "on": "finer grid", "grid": "64"}
        >>> side_by_side([row | {"head": "Laplace", "chi2": 1.25}, row | {"head": "ensemble", "chi2": 1.5}], "chi2")
        [{'problem': 'Heat', 'grid': '64', 'FNO, Laplace': 1.25, 'FNO, ensemble': 1.5}]
    """
    heads = list(dict.fromkeys(f"{row['operator']}, {row['head']}" for row in rows))
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        line = {"problem": row["problem"], "grid": row["grid"], **dict.fromkeys(heads)}
        found.setdefault((row["problem"], row["on"], row["grid"]), line)[f"{row['operator']}, {row['head']}"] = row[score]
    return list(found.values())


def check(results: Mapping[str, Any]) -> None:
    runs = results.get("runs")
    if not isinstance(runs, Sequence) or isinstance(runs, str):
        raise DataError(expected="results with a list of runs", got=str(type(runs)), remedy="pass the JSON of a benchmark")
    for number, run in enumerate(runs):
        missing = [key for key in ("problem", "operator", "head", "evaluations") if key not in run]
        if not missing:
            missing = [f"evaluations[{place}].on" for place, one in enumerate(run["evaluations"]) if "on" not in one]
        if missing:
            raise DataError(expected=f"run {number} with {', '.join(missing)}", got="one without", remedy="complete the run")


def evaluations(results: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for run in results["runs"]:
        for evaluation in run["evaluations"]:
            yield run, evaluation


def first(evaluation: Mapping[str, Any], paths: Sequence[str]) -> Any:
    for path in paths:
        value: Any = evaluation
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def number(value: Any) -> Any:
    """Parse numbers that JSON stores as strings (NaN and infinities)."""
    return float(value) if value in ("inf", "-inf", "nan") else value


def grid_name(resolution: Any) -> str | None:
    sizes = resolution if isinstance(resolution, (list, tuple)) else [resolution]
    return None if resolution is None else "×".join(map(str, sizes))
