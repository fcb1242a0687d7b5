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
    chain,
    context,
    curvature,
    devices,
    exact,
    forecast,
    gold,
    gpu,
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
"""Arguments of argparse by option of the command line."""


def positive(text: str) -> int:
    """Parse a positive integer.

    Raises:
        ValueError: If the text is no positive integer.
    """
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


WORKERS: Options = {"--workers": {"type": int, "default": 2, "help": "single-threaded worker processes"}}
DEVICE: Options = {"--device": {"default": "cpu", "help": "where everything runs: cpu or cuda"}}
SEEDS: Options = {"--seeds": {"type": positive, "help": "repetitions with separate samples and weights"}}
PROBLEM: Options = {"--problem": {"help": "only problems whose names in the tables begin so"}}


@dataclass(frozen=True)
class Command:
    """A benchmark.

    Attributes:
        run: Function of `mode`, `output` and the values of the options.
        help: Question and duration.
        output: Contents of the output folder.
        full: Effect of `--full`, if the benchmark has it.
        options: Options of the command line.
        check: Validates arguments before the run; raises a ValueError or a ProbneuralError.
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
        "operators and posteriors compared with exact solutions (`make bench`)",
        output="results.json, report.html and trained operators",
        full="all ten problems, ensembles and shifts, and training twice as long: about twenty minutes (`make bench-full`)",
        options={
            **PROBLEM,
            "--data": {
                "type": Path,
                "dest": "path",
                "help": "your own data instead: .npz, NetCDF, Zarr or safetensors",
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
        "error, and labels saved by active learning; three hours, resumable",
        output="active.json, active.html and finished units",
        options={**PROBLEM, **WORKERS},
        check=lambda given: active.chosen(given["mode"], problem=given["problem"]),
    ),
    "bo": Command(
        bo.main,
        "Bayesian optimisation over input functions; an hour, resumable",
        output="bo.json, bo.png and finished runs",
        options={**PROBLEM, **WORKERS},
        check=lambda given: bo.chosen(given["problem"]),
    ),
    "chain": Command(chain.main, "time and memory from training to scores, in units of an epoch; five minutes"),
    "context": Command(
        context.main,
        "operators that learn in context, compared with exact predictive distributions; fifteen minutes",
        options=WORKERS,
    ),
    "curvature": Command(curvature.main, "cost of curvature products, compared with other installed libraries; minutes"),
    "devices": Command(
        devices.main,
        "training, heads and scores on the CPU and on a GPU of the same machine; minutes",
        options={"--device": {"default": "cuda", "help": "device that is compared with the CPU"}},
        check=lambda given: devices.check(given["device"]),
    ),
    "forecast": Command(
        forecast.main,
        "probabilistic forecasts on exactly solved equations; an hour or more per problem, resumable",
        output="forecast.json, or one for the problem, and finished units",
        options={**PROBLEM, **WORKERS},
        check=lambda given: forecast.chosen(given["problem"]),
    ),
    "gold": Command(gold.main, "heads against posteriors known in closed form; minutes", options=WORKERS),
    "gpu": Command(
        gpu.main,
        "tests marked gpu, and the benchmarks speed and devices on CUDA; eight minutes at most (`make bench-gpu`)",
        output="gpu.json and the files of both benchmarks",
        options={"--device": {"default": "cuda", "help": "device of the benchmarks"}},
        check=lambda given: devices.check(given["device"]),
    ),
    "heads": Command(
        heads.main,
        "accuracy and cost of heads on the same networks; about 40 minutes, resumable",
        full="also all heads, few samples, DeepONets and five seeds; a day",
        output="heads.json and heads.png, or those of the part that is chosen, and finished units",
        options={
            **PROBLEM,
            "--operator": {"choices": heads.OPERATORS, "help": "the network that heads are fitted to"},
            "--functions": {"type": positive, "help": "number of training samples, instead of all"},
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
        "variances with one factor, a local scale and a scale mixture; about an hour, resumable",
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
        "detection of shifts, and coverage of inflated error bars; about 15 minutes, resumable",
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
        "operators compared with neuraloperator's and DeepXDE's; minutes",
        options=DEVICE,
    ),
    "training": Command(
        training.main,
        "precisions, optimisers and schedules by validation error; about ten minutes",
        options={**WORKERS, **DEVICE},
    ),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of all benchmarks."""
    found = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of probneural.")
    commands = found.add_subparsers(dest="name", required=True)
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help)
        size = own.add_mutually_exclusive_group()
        if command.full is not None:
            size.add_argument("--full", dest="mode", action="store_const", const="full", help=command.full)
        size.add_argument(
            "--small", dest="mode", action="store_const", const="small", help="a test of the machinery; seconds to minutes"
        )
        own.add_argument("--output", type=Path, default=LOCAL, help=f"folder for {command.output}")
        for option, said in command.options.items():
            own.add_argument(option, **said)
        own.set_defaults(mode="default")
    commands.add_parser("tables", help="regenerate the tables of README and docs from the committed results")
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
    except (ValueError, ProbneuralError) as error:  # an invalid name or file is reported in one line
        line.error(str(error))
    command.run(**given)


if __name__ == "__main__":
    main()
