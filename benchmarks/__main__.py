"""Command line: `python -m benchmarks NAME [--full | --small]`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import (
    active,
    bo,
    calibration,
    curvature,
    devices,
    exact,
    forecast,
    gold,
    heads,
    inverse,
    laplace,
    large_data,
    meshes,
    novelty,
    physics,
    problem_units,
    speed,
    tables,
    training,
)
from probneural.errors import ProbneuralError

LOCAL = Path(__file__).parent / "results" / "local"
Options = Mapping[str, Mapping[str, Any]]
"""Names of options on the command line to what argparse is told of them."""


def positive(text: str) -> int:
    """A number of things.

    Raises:
        ValueError: If it is no positive integer.
    """
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


WORKERS: Options = {"--workers": {"type": int, "default": 2, "help": "single-threaded worker processes"}}
DEVICE: Options = {"--device": {"default": "cpu", "help": "where everything runs: cpu or cuda"}}
SEEDS: Options = {"--seeds": {"type": positive, "help": "repetitions, each with functions and weights of its own"}}
PROBLEM: Options = {"--problem": {"help": "only problems whose names in the tables begin so"}}


@dataclass(frozen=True)
class Command:
    """A benchmark.

    Attributes:
        run: Runs it; takes `mode`, `output`, and the values of its options.
        help: What it is, and how long it takes.
        output: What its folder will hold.
        full: What `--full` does, where there is that.
        options: Its options.
        check: Asked before minutes of work whether its arguments are right; raises a ValueError or an error of ours.
    """

    run: Callable[..., Any]
    help: str
    output: str = "the JSON file"
    full: str | None = None
    options: Options = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], object] | None = None


COMMANDS = {
    "exact": Command(
        exact.main,
        "operators and posteriors against exact solutions (what `make bench` runs)",
        output="results.json, report.html and trained operators",
        full="all ten problems, every ensemble and shift, and what training twice as long brings: about twenty "
        "minutes (`make bench-full`)",
        options={
            **PROBLEM,
            "--data": {
                "type": Path,
                "dest": "path",
                "help": "functions of your own instead: .npz, NetCDF, Zarr or safetensors",
            },
            **WORKERS,
            "--verbose": {
                "action": "store_true",
                "dest": "is_verbose",
                "help": "print the long table too: every problem, place, operator and head",
            },
        },
        check=lambda given: exact.chosen(given["mode"], problem=given["problem"], path=given["path"]),
    ),
    "active": Command(
        active.main,
        "error and labels that active learning saves; three hours, goes on if cut off",
        output="active.json, active.html and finished units",
        options={**PROBLEM, **WORKERS},
        check=lambda given: active.chosen(given["mode"], problem=given["problem"]),
    ),
    "bo": Command(
        bo.main,
        "Bayesian optimisation over input functions; an hour, goes on if cut off",
        output="bo.json, bo.png and finished runs",
        options={**PROBLEM, **WORKERS},
        check=lambda given: bo.chosen(given["problem"]),
    ),
    "curvature": Command(
        curvature.main, "cost of curvature products, beside other libraries where they are installed; minutes"
    ),
    "devices": Command(
        devices.main,
        "training, heads and scores on the CPU and on a GPU of the same machine; minutes",
        options={"--device": {"default": "cuda", "help": "what is compared with the CPU"}},
        check=lambda given: devices.check(given["device"]),
    ),
    "forecast": Command(
        forecast.main,
        "forecasts with posteriors on equations that are solved exactly; an hour or more a problem, goes on if cut off",
        output="forecast.json, or one for the problem, and finished units",
        options={**PROBLEM, **WORKERS},
        check=lambda given: forecast.chosen(given["problem"]),
    ),
    "gold": Command(gold.main, "heads against posteriors known in closed form; minutes", options=WORKERS),
    "heads": Command(
        heads.main,
        "heads beside one another on the same networks, with their costs; about 40 minutes, goes on if cut off",
        full="all heads, few functions, DeepONets and five seeds too; a day",
        output="heads.json and heads.png, or those of the part that is chosen, and finished units",
        options={
            **PROBLEM,
            "--operator": {"choices": heads.OPERATORS, "help": "the network that heads are fitted to"},
            "--functions": {"type": positive, "help": "training functions, in place of all that a problem has"},
            **WORKERS,
            **SEEDS,
        },
        check=lambda given: heads.chosen(given["mode"], given["problem"], operator=given["operator"]),
    ),
    "laplace": Command(laplace.main, "Laplace structures: accuracy, evidence, speed and memory; about 10 minutes"),
    "large-data": Command(
        large_data.main,
        "training, head, calibration and scores on 20 GB of files, which are removed; an hour",
        options={"--gigabytes": {"type": float, "default": 20.0, "help": "size of the files"}},
    ),
    "calibration": Command(
        calibration.main,
        "variances with one factor and with a local one, of four heads on all problems; about an hour, goes on if cut off",
        output="calibration.json, or one for the problem, and finished units",
        options={**PROBLEM, **WORKERS, **SEEDS},
        check=lambda given: problem_units.chosen(given["problem"]),
    ),
    "meshes": Command(
        meshes.main,
        "operators and heads on meshes, one per sample: errors on finer and graded meshes, coverage of integrals; 15 minutes",
        output="meshes.json and finished units",
        options={**PROBLEM, **WORKERS},
    ),
    "inverse": Command(
        inverse.main,
        "inverse problems against exact posteriors: distance, calibration, calls of the solver; a quarter of an hour",
        output="inverse.json and finished units",
        options=WORKERS,
    ),
    "novelty": Command(
        novelty.main,
        "which shifts scores of novelty see, and what widened error bars cover; about a quarter of an hour, goes on if cut off",
        output="novelty.json, or one for the problem, and finished units",
        options={**PROBLEM, **WORKERS, **SEEDS},
        check=lambda given: problem_units.chosen(given["problem"]),
    ),
    "physics": Command(
        physics.main,
        "training with equations: residuals, conditions by construction, corrections; a quarter of an hour",
        output="physics.json, or one for the problem, and finished units",
        options={**PROBLEM, **WORKERS},
        check=lambda given: physics.chosen(given["problem"]),
    ),
    "speed": Command(
        speed.main,
        "operators beside neuraloperator's and deepxde's; minutes",
        options=DEVICE,
    ),
    "training": Command(
        training.main,
        "precisions, optimisers and schedules by validation error; about ten minutes",
        options={**WORKERS, **DEVICE},
    ),
}


def parser() -> argparse.ArgumentParser:
    """The command line of all benchmarks."""
    found = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of probneural.")
    commands = found.add_subparsers(dest="name", required=True)
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help)
        size = own.add_mutually_exclusive_group()
        if command.full is not None:
            size.add_argument("--full", dest="mode", action="store_const", const="full", help=command.full)
        size.add_argument(
            "--small", dest="mode", action="store_const", const="small", help="seconds to minutes; the numbers mean nothing"
        )
        own.add_argument("--output", type=Path, default=LOCAL, help=f"folder for {command.output}")
        for option, said in command.options.items():
            own.add_argument(option, **said)
        own.set_defaults(mode="default")
    commands.add_parser("tables", help="write the tables of README and docs anew from the committed results")
    return found


def main() -> None:
    """Run one benchmark, or regenerate the tables in the documents."""
    line = parser()
    given = vars(line.parse_args())
    name = given.pop("name")
    if name == "tables":
        tables.update()
        return
    command = COMMANDS[name]
    try:
        if command.check is not None:
            command.check(given)
    except (ValueError, ProbneuralError) as error:  # a name or a file that is not right, said in one line
        line.error(str(error))
    command.run(**given)


if __name__ == "__main__":
    main()
