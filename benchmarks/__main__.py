"""Command line: `python -m benchmarks NAME [--full | --small]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import (
    accuracy,
    acquisition_cost,
    active,
    bo,
    chains,
    curvature,
    exact,
    export,
    gold,
    kernel_fit,
    laplace,
    low_data,
    published,
    speed,
    tables,
)
from probneural.errors import ProbneuralError

LOCAL = Path(__file__).parent / "results" / "local"
TIMED = {
    "acquisition": acquisition_cost.main,
    "chains": chains.main,
    "curvature": curvature.main,
    "export": export.main,
    "kernel_fit": kernel_fit.main,
    "laplace": laplace.main,
}
"""Benchmarks that measure time, one thing after another."""
FULL_RUN = (
    "all ten problems, every ensemble and shift, and what training twice as long brings: over an hour (`make bench-full`)"
)
SPREAD = {"accuracy": accuracy.main, "gold": gold.main, "low-data": low_data.main, "published": published.main}
"""Benchmarks that spread over worker processes."""


def main() -> None:
    """Run one benchmark, or regenerate the tables in the documents."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of probneural.")
    commands = parser.add_subparsers(dest="name", required=True)
    run = commands.add_parser("exact", help="operators and posteriors against exact solutions (what `make bench` runs)")
    size = run.add_mutually_exclusive_group()
    size.add_argument("--full", dest="mode", action="store_const", const="full", help=FULL_RUN)
    size.add_argument("--small", dest="mode", action="store_const", const="small", help="seconds; the numbers mean nothing")
    run.add_argument("--problem", help="one problem only, by the name it has in the tables")
    run.add_argument("--data", type=Path, dest="path", help="functions of your own instead: .npz, NetCDF, Zarr or safetensors")
    run.add_argument("--output", type=Path, default=LOCAL, help="folder for results.json, report.html and trained operators")
    run.add_argument("--workers", type=int, default=2, help="single-threaded worker processes")
    run.add_argument("--verbose", action="store_true", help="print the long table too: every problem, place, operator and head")
    run = commands.add_parser("active", help="labels that active learning saves; about an hour and a half")
    size = run.add_mutually_exclusive_group()
    size.add_argument(
        "--full", dest="mode", action="store_const", const="full", help="all selectors; hours, goes on if cut off"
    )
    size.add_argument("--small", dest="mode", action="store_const", const="small", help="seconds; the numbers mean nothing")
    run.add_argument("--problem", help="one problem only, by the name it has in the tables")
    run.add_argument("--output", type=Path, default=LOCAL, help="folder for active.json, active.html and finished units")
    run.add_argument("--workers", type=int, default=2, help="single-threaded worker processes")
    run = commands.add_parser("bo", help="Bayesian optimisation over input functions; two hours, goes on if cut off")
    run.add_argument("--small", dest="mode", action="store_const", const="small", help="a minute; the numbers mean nothing")
    run.add_argument("--problem", help="only problems whose names in the tables begin so")
    run.add_argument("--output", type=Path, default=LOCAL, help="folder for bo.json, bo.png and finished runs")
    run.add_argument("--workers", type=int, default=2, help="single-threaded worker processes")
    for name, help_text in (
        ("accuracy", "an FNO's continuations beyond boundaries, beside a kernel method at equal time; about 10 minutes"),
        ("acquisition", "cost of an information gain with its gradient, and of choices from a pool; minutes"),
        ("chains", "posteriors over all layers in training epochs: fit, calibrate, score; minutes"),
        ("kernel_fit", "cost of fitting kernel operators, exactly and with inducing points; 10 minutes"),
        ("curvature", "cost of curvature products, beside other libraries where they are installed; minutes"),
        ("laplace", "Laplace structures: accuracy, evidence, speed and memory; about 10 minutes"),
        ("low-data", "heads where training functions are few; about 15 minutes"),
        ("gold", "heads against a posterior known in closed form; minutes"),
        ("published", "settings that papers report, beside their figures; about 20 minutes"),
    ):
        other = commands.add_parser(name, help=help_text)
        other.add_argument(
            "--small", dest="mode", action="store_const", const="small", help="seconds to minutes; means nothing"
        )
        other.add_argument("--output", type=Path, default=LOCAL, help="folder for the JSON file")
        other.add_argument("--workers", type=int, default=2, help="single-threaded worker processes, where nothing is timed")
    run = commands.add_parser("speed", help="operators beside neuraloperator's and deepxde's; minutes")
    run.add_argument("--small", dest="mode", action="store_const", const="small", help="seconds; the numbers mean nothing")
    run.add_argument("--device", default="cpu", help="where everything runs: cpu or cuda")
    run.add_argument("--output", type=Path, default=LOCAL, help="folder for speed.json")
    run = commands.add_parser("export", help="exported files: times, sizes and differences from PyTorch; about ten minutes")
    run.add_argument("--small", dest="mode", action="store_const", const="small", help="seconds; the numbers mean nothing")
    run.add_argument("--output", type=Path, default=LOCAL, help="folder for export.json")
    commands.add_parser("tables", help="write the tables of README and docs anew from the committed results")
    options = parser.parse_args()
    if options.name == "tables":
        tables.update()
    elif options.name == "active":
        try:
            active.chosen(options.mode or "default", problem=options.problem)
        except ValueError as error:
            parser.error(str(error))
        active.main(mode=options.mode or "default", output=options.output, workers=options.workers, problem=options.problem)
    elif options.name == "bo":
        try:
            bo.chosen(options.problem)
        except ValueError as error:
            parser.error(str(error))
        bo.main(mode=options.mode or "default", output=options.output, workers=options.workers, problem=options.problem)
    elif options.name == "speed":
        speed.main(mode=options.mode or "default", output=options.output, device=options.device)
    elif options.name in TIMED:
        TIMED[options.name](mode=options.mode or "default", output=options.output)
    elif options.name in SPREAD:
        SPREAD[options.name](mode=options.mode or "default", output=options.output, workers=options.workers)
    else:
        mode = options.mode or "default"
        try:
            exact.chosen(mode, problem=options.problem, path=options.path)
        except (ValueError, ProbneuralError) as error:  # a name or a file that is not right, said in one line
            parser.error(str(error))
        exact.main(
            mode=mode,
            output=options.output,
            workers=options.workers,
            problem=options.problem,
            path=options.path,
            is_verbose=options.verbose,
        )


if __name__ == "__main__":
    main()
