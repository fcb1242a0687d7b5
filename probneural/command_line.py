"""The program `probneural`: each command is one function of `probneural.runs`, with its settings as options."""

from __future__ import annotations

import inspect
import os
import re
import sys
import tomllib
import traceback
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from probneural import runs
from probneural.errors import ArgumentError, ProbneuralError
from probneural.runs.config import Config, explanations, hints_of, paths_in
from probneural.runs.folder import own_config
from probneural.runs.toml import toml_value
from probneural.training.schema import is_too_deep

_INTERRUPTED = 130
"""Exit status after Ctrl-C."""
_WRONG_USAGE = 2
"""Exit status of usage errors."""
_SECTIONS = {
    "batch_size": "training",
    "device": "training",
    "epochs": "training",
    "learning_rate": "training",
    "level": "calibration",
    "validation": "training",
}
"""Sections of settings that messages of the library name as arguments."""
_ARGUMENT = re.compile(rf"(?<![-.\w])(?:({'|'.join(_SECTIONS)})=|(batch_size|learning_rate)\b)")
"""Arguments in remedies, with the options that they are on the command line."""
_CALL = re.compile(r"\b[a-z_]+(\.\w+)+\(")
"""Calls in remedies, which the command line has no words for."""
_PROGRAM = """From a data file to fields with calibrated error bars. One command does all steps: `probneural report data.nc
--inputs a --outputs u --periodic true`. `probneural COMMAND --help` lists the options of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: Words of the command line; by default those of the process.

    Returns:
        The exit code: 0, or 1 for an error, whose message goes to the standard error stream. Wrong usage exits with 2.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ProbneuralError, ImportError, OSError, KeyboardInterrupt) as error:  # names that are too long, a full disk
        if options.debug:
            traceback.print_exc()
        is_stopped = isinstance(error, KeyboardInterrupt)
        sys.stderr.write(f"probneural: {'stopped; repeat the command to go on' if is_stopped else _message(error)}\n")
        return _INTERRUPTED if is_stopped else 1
    return 0


def _message(error: BaseException) -> str:
    """The message of an error, whose remedy names options of the command line in place of arguments."""
    if not isinstance(error, ProbneuralError):
        return str(error)
    remedy = _ARGUMENT.sub(_option, error.remedy).replace("mask=True", "--mask samples")
    clauses = [f"in a Python program, {clause}" if _CALL.search(clause) else clause for clause in remedy.split("; ")]
    return f"expected {error.expected}; got {error.got}; {'; '.join(clauses)}"


def _option(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    return f"--{_SECTIONS[name]}.{name}{' ' if match[1] else ''}"


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="probneural", description=_PROGRAM, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run in (("init", _init), *((step, _step) for step in _STEPS), ("predict", _predict), ("info", _info)):
        summary = (inspect.getdoc(getattr(runs, name)) or "").partition("\n\n")[0].replace("%", "%%")
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        command.set_defaults(run=run, command=name)
        command.add_argument("--debug", action="store_true", help="Show where an error comes from.")
        if name not in ("init", "info"):
            command.add_argument("--quiet", action="store_true", help="Do not report progress.")
        if name == "init":
            command.add_argument("--output", default="run.toml", help="The file to write.")
            command.add_argument("--overwrite", action="store_true", help="Replace an existing file.")
            _add_settings(command, ("data", "operator", "head"))
        elif name == "predict":
            command.add_argument("folder", help="Folder of a calibrated run, or a file of its results.")
            command.add_argument("inputs", help="A file with the input variables of the run, or a pattern.")
            command.add_argument("output", help="The file to write, .nc, .zarr, .npz, .csv or {}.vtu; replaced.")
        elif name == "info":
            command.add_argument("path", help="A run's folder, a .safetensors file, or a data file.")
        else:
            command.add_argument("--config", default="", help="A TOML file with settings; options come first.")
            command.add_argument("--folder", default="", help="The run's folder, by default named after the data.")
            if name == "report":
                words = "Also print it to a PDF file, by default report.pdf in the folder."
                command.add_argument("--pdf", nargs="?", const=True, type=_pdf, metavar="FILE.pdf", help=words)
            _add_settings(command, hints_of(Config))
    return parser


def _add_settings(parser: ArgumentParser, sections: Collection[str]) -> None:
    """Add the data files, and the settings of some sections as options; those of the data without their section's name."""
    parser.add_argument("files", nargs="*", metavar="DATA", help="The data, one file or several; short for --path.")
    for section in sections:
        _add_section(parser, getattr(Config(), section), section)


def _add_section(parser: ArgumentParser, defaults: Any, section: str) -> None:
    group = parser.add_argument_group(section)
    texts = explanations(type(defaults))
    for name, hint in hints_of(type(defaults)).items():
        value, key = getattr(defaults, name), f"{section}.{name}"
        if is_dataclass(hint):
            _add_section(parser, value, key)
            continue
        origin = get_origin(hint)
        kind = get_args(hint)[0] if origin is tuple else hint
        group.add_argument(
            f"--{key.removeprefix('data.')}",
            dest=key,
            default=SUPPRESS,
            nargs="*" if origin in (tuple, dict) else None,
            type=str if kind is str else _entry if origin is dict else _value,
            metavar="NAME=VALUE" if origin is dict else "{true,false}" if kind is bool else name.upper(),
            help=f"{texts[name]} Default: {toml_value(value)}".replace("%", "%%"),
        )


def _pdf(word: str) -> str:
    """The name of a PDF file; a data file in its place is never written to."""
    if not word.endswith(".pdf"):
        raise ArgumentTypeError(f"{word!r} does not end in .pdf; write DATA before --pdf")
    return word


def _value(word: str) -> Any:
    """A value of TOML: a number, true or false, a list; other words are texts."""
    try:
        parsed = tomllib.loads(f"value = {word}")["value"]
    except (ValueError, RecursionError):
        return word
    return word if is_too_deep(parsed) else parsed


def _entry(word: str) -> tuple[str, Any]:
    """An option of an operator or a head: `width=64`."""
    name, sign, value = word.partition("=")
    if not (name and sign):
        raise ArgumentTypeError(f"{word!r} is not of the form name=value")
    return name, _value(value)


def _changes(options: Namespace) -> dict[str, Any]:
    """Settings on the command line, in nested tables."""
    tables: dict[str, Any] = {}
    for key, value in vars(options).items():
        *sections, name = key.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        if sections:
            table[name] = dict(value) if name == "options" else value
    if options.files:
        tables.setdefault("data", {})["path"] = os.pathsep.join(options.files)
    return tables


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Settings with changes; a change that is no value of its setting ends the program as wrong usage."""
    values = config.to_dict()
    for section, change in changes.items():
        if change.get("name", values[section].get("name")) != values[section].get("name"):
            values[section]["options"] = {}  # those of another class
    try:
        return Config.from_dict(_updated(values, changes))
    except ArgumentError as error:
        setting = error.expected.removeprefix("data.")
        sys.stderr.write(f"probneural: expected --{setting}; got {error.got}; {error.remedy}\n")
        sys.exit(_WRONG_USAGE)


def _updated(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    tables = {name for name, change in changes.items() if isinstance(change, dict) and name != "options"}
    return {**values, **changes, **{name: _updated(values[name], changes[name]) for name in tables}}


def _folder(named: str, path: str) -> Path | None:
    """The folder that is named, or one that is named after the data; None without both."""
    names = [Path(file).stem.replace("*", "") or "data" for file in paths_in(path)]
    return Path(named) if named else Path(f"{names[0]}-run") if names else None


def _step(options: Namespace) -> None:
    """Run a step with the settings of a file, or of the folder, and those on the command line."""
    changes = _changes(options)
    base, folder = Config(), _folder(options.folder, changes.get("data", {}).get("path", ""))
    if options.config:
        base = runs.read_config(options.config)
    elif folder is not None and (folder / "run.json").exists():
        base = own_config(folder)
    config = _changed(base, changes)
    folder = _folder(options.folder, config.data.path)
    if folder is None:
        raise ArgumentError(expected="a data file, or the folder of a run", got="neither", remedy="name one: data.nc")
    pdf = getattr(options, "pdf", None)
    extra = {} if pdf is None else {"pdf": folder / "report.pdf" if pdf is True else pdf}
    result = getattr(runs, options.command)(config, folder, show_progress=not options.quiet, **extra)
    _say("\n".join((_STEPS[options.command](result, folder), *map(str, extra.values()))))


def _trained(history: Any, folder: Path) -> str:
    if not history.epochs:
        return f"{folder}: no operator to train, since the head is fitted to the data alone"
    shown = f", validation {history.validation[-1]:.4g}" if history.validation else ""
    chosen = "" if history.restored is None else f"; weights of epoch {history.restored}"
    return f"{folder}: {history.epochs} epochs, loss {history.train[-1]:.4g}{shown}{chosen}"


def _fitted(predictor: Any, folder: Path) -> str:
    noise = ", ".join(f"{value:.3g}" for value in predictor.noise.tolist())
    return f"{folder}: {type(predictor).__name__}, noise variance {noise}"


def _calibrated(calibrated: Any, folder: Path) -> str:
    band = "no bands" if calibrated.band is None else f"bands of {calibrated.band.quantile:.3g} standard deviations"
    return f"{folder}: {type(calibrated.predictor).__name__}, {band}"


_STEPS: Mapping[str, Callable[[Any, Path], str]] = {
    "train": _trained,
    "fit": _fitted,
    "calibrate": _calibrated,
    "score": lambda scores, folder: str(scores),
    "report": lambda report, folder: "\n".join((str(report.scores), "", *report.verdict, str(report.path))),
}
"""Steps of a run, and the text that describes the result of each."""


def _init(options: Namespace) -> None:
    config = runs.init(_changed(Config(), _changes(options)), options.output, overwrite=options.overwrite)
    missing = [name for name in ("path", "inputs", "outputs", "periodic") if not getattr(config.data, name)]
    _say(options.output + (f"; still to be filled in: {', '.join(missing)}" if missing else ""))


def _predict(options: Namespace) -> None:
    written = runs.predict(options.folder, options.inputs, output=options.output, show_progress=not options.quiet)
    if isinstance(written, list):
        _say(f"{options.output}: {len(written)} meshes")
    else:
        _say(f"{written.encoding['source']}: {', '.join(map(str, written.data_vars))} of {dict(written.sizes)}")


def _info(options: Namespace) -> None:
    for name, value in runs.info(options.path).items():
        shown = value if isinstance(value, list) else [value]
        _say("\n".join(f"{name if not number else '':<24}{line}" for number, line in enumerate(shown)))


def _say(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))
