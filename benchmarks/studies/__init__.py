"""One-off studies: `python -m benchmarks.studies.NAME --help`; the results of each lie beside it as JSON.

Studies answer one question each and are cited by decision records in `docs/design`. No gate runs them.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOCAL = Path(__file__).parent.parent / "results" / "local"
_OPTIONS: dict[str, dict[str, Any]] = {
    "workers": {"type": int, "default": 2, "help": "number of single-threaded worker processes"},
    "seeds": {"type": int, "help": "number of repetitions, each with other samples and initial weights"},
    "device": {"default": "cpu", "help": "cpu or cuda"},
}


def run(main: Callable[..., Any]) -> None:
    """Run a study with the options on the command line that its `main` takes."""
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    parser.add_argument(
        "--small", dest="mode", action="store_const", const="small", default="default", help="a test of the script"
    )
    parser.add_argument("--output", type=Path, default=LOCAL, help="folder of the JSON file")
    for name in inspect.signature(main).parameters.keys() & _OPTIONS.keys():
        parser.add_argument(f"--{name}", **_OPTIONS[name])
    parser.set_defaults(mode="default")
    main(**vars(parser.parse_args()))
