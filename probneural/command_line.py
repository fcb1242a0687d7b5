"""The program `probneural`: each command is one function of `probneural.runs`, with its settings as options."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import tyro
from tyro.conf import OmitArgPrefixes, Positional
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from probneural import runs
from probneural.errors import ArgumentError, ProbneuralError
from probneural.runs.config import Config, convert, hints_of, is_section, paths_in
from probneural.runs.folder import own_config
from probneural.training.schema import is_too_deep


def _unchecked(kind: type[Any]) -> type[Any]:
    """An unvalidated section of the settings: the parser would report errors under its internal names."""
    hints = {name: _unchecked(hint) if is_section(hint) else hint for name, hint in hints_of(kind).items()}
    return dataclasses.make_dataclass(
        kind.__name__, list(hints.items()), frozen=True, kw_only=True, namespace={"__doc__": kind.__doc__}
    )


if TYPE_CHECKING:
    from probneural.runs.config import Data, Head, Operator

    Settings = Config
else:
    _sections = {name: tyro.conf.FlagConversionOff[_unchecked(kind)] for name, kind in hints_of(Config).items()}
    _sections["data"] = OmitArgPrefixes[_sections["data"]]
    described = {"__doc__": Config.__doc__}
    Settings = dataclasses.make_dataclass("Settings", _sections.items(), frozen=True, kw_only=True, namespace=described)
    Data, Operator, Head = (_sections[name] for name in ("data", "operator", "head"))

Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""An option that is there or not."""
DataFiles = Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="[DATA ...]")]
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
_OPTIONS = """

Args:
    files: The data, one file or several; short for --path.
    config: A TOML file with settings, as `probneural init` writes; options on the command line come first.
    folder: The run's folder; by default named after the data. Repeated, a command goes on in it and remembers its settings.
    settings: The sections of the configuration.
    quiet: Do not report progress.
    debug: Show where an error comes from.
"""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A command line, parsed.

    Attributes:
        config: The settings on it, upon those that it began with.
        file: A configuration file, or "".
        folder: The run's folder, or "".
        run: Does what was asked; of a step, given settings and folder.
        is_step: Whether it is a step of a run.
        debug: Whether errors are shown with where they come from.
    """

    run: Callable[..., None]
    is_step: bool = False
    config: Config = field(default_factory=Config)
    file: str = ""
    folder: str = ""
    debug: bool = False

    def base(self) -> Config:
        """The settings to begin with: those of a file, or of the folder."""
        if self.file:
            return runs.read_config(self.file)
        folder = self._folder(self.config)
        return own_config(folder) if folder and (folder / "run.json").exists() else Config()

    def _folder(self, config: Config) -> Path | None:
        if self.folder:
            return Path(self.folder)
        names = [Path(path).stem.replace("*", "") or "data" for path in paths_in(config.data.path)]
        return Path(f"{names[0]}-run") if names else None

    def __call__(self, base: Config) -> None:
        """Do what was asked.

        Raises:
            ProbneuralError: If it cannot be done.
        """
        if not self.is_step:
            return self.run()
        config = _with_own_options(self.config, base)
        folder = self._folder(config)
        if folder is None:
            raise ArgumentError(expected="a data file, or the folder of a run", got="neither", remedy="name one: data.nc")
        return self.run(config, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: Words of the command line; by default those of the process.

    Returns:
        The exit code: 0, or 1 for an error, whose message goes to the standard error stream. Wrong usage exits with 2.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_debug = "--debug" in words
    try:
        call = _parsed(words, Config())
        base = call.base() if call.is_step else Config()
        _parsed(words, base)(base)
    except (ProbneuralError, ImportError, OSError) as error:  # names too long for the file system, a full disk
        if is_debug:
            traceback.print_exc()
        sys.stderr.write(f"probneural: {_told(error)}\n")
        return 1
    except KeyboardInterrupt:
        if is_debug:
            traceback.print_exc()
        sys.stderr.write("probneural: stopped; repeat the command to go on\n")
        return _INTERRUPTED
    return 0


def _told(error: Exception) -> str:
    """The message of an error, whose remedy names options of the command line in place of arguments."""
    if not isinstance(error, ProbneuralError):
        return str(error)
    remedy = _ARGUMENT.sub(_option, error.remedy).replace("mask=True", "--mask samples")
    clauses = [f"in a Python program, {clause}" if _CALL.search(clause) else clause for clause in remedy.split("; ")]
    return f"expected {error.expected}; got {error.got}; {'; '.join(clauses)}"


def _option(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    return f"--{_SECTIONS[name]}.{name}{' ' if match[1] else ''}"


def _parsed(words: list[str], base: Config) -> Call:
    steps = {name: _step(name, show, base) for name, show in _STEPS.items()}
    call: Call = tyro.extras.subcommand_cli_from_dict(
        {"init": _init(base), **steps, "predict": predict, "info": info},
        prog="probneural",
        description="From a data file to fields with calibrated error bars: `probneural report data.nc --inputs a --outputs u "
        "--periodic true` does all steps. `probneural COMMAND --help` lists the options of one.",
        args=words,
        registry=_REGISTRY,
        use_underscores=True,
    )
    return call


def _step(name: str, show: Callable[..., None], base: Config) -> Callable[..., Call]:
    """A command that does a step of a run; its options begin with these settings."""
    begun: Any = Settings(**_begun(base))

    def step(
        files: DataFiles = (),
        *,
        config: str = "",
        folder: str = "",
        settings: Annotated[Settings, tyro.conf.arg(name="")] = begun,
        quiet: Switch = False,
        debug: Switch = False,
    ) -> Call:
        checked = _checked(files, **vars(settings))
        return Call(run=partial(show, quiet=quiet), is_step=True, config=checked, file=config, folder=folder, debug=debug)

    summary = (inspect.getdoc(getattr(runs, name)) or "").partition("\n\n")[0]
    step.__doc__ = summary + _OPTIONS
    step.__name__ = name
    return step


def _begun(base: Config) -> dict[str, Any]:
    """Initial values of sections, not validated."""
    return {name: _loose(getattr(base, name), get_args(kind)[0]) for name, kind in hints_of(Settings).items()}


def _loose(section: Any, kind: type[Any]) -> Any:
    """A section as one that does not check itself."""
    values = {}
    for entry in dataclasses.fields(kind):
        value, hint = getattr(section, entry.name), entry.type
        values[entry.name] = _loose(value, hint) if isinstance(hint, type) and is_section(hint) else value
    return kind(**values)


def _checked(files: Sequence[str], **sections: Any) -> Config:
    """The settings on a command line, upon those that it began with; wrong ones end the program with what is wrong usage."""
    checked: dict[str, Any] = {}
    data = sections["data"]
    sections["data"] = dataclasses.replace(data, path=os.pathsep.join(files) or data.path)
    for section, part in sections.items():
        name = "--" if section == "data" else f"--{section}"
        try:
            checked[section] = convert(dataclasses.asdict(part), hints_of(Config)[section], name)
        except ArgumentError as error:
            sys.stderr.write(f"probneural: {error}\n")
            sys.exit(_WRONG_USAGE)
    return Config(**checked)


def _train(config: Config, folder: Path, *, quiet: bool) -> None:
    history = runs.train(config, folder, show_progress=not quiet)
    if not history.epochs:
        return _say(f"{folder}: no operator to train, since the head is fitted to the data alone")
    shown = f", validation {history.validation[-1]:.4g}" if history.validation else ""
    chosen = "" if history.restored is None else f"; weights of epoch {history.restored}"
    _say(f"{folder}: {history.epochs} epochs, loss {history.train[-1]:.4g}{shown}{chosen}")


def _fit(config: Config, folder: Path, *, quiet: bool) -> None:
    predictor = runs.fit(config, folder, show_progress=not quiet)
    noise = ", ".join(f"{value:.3g}" for value in predictor.noise.tolist())
    _say(f"{folder}: {type(predictor).__name__}, noise variance {noise}")


def _calibrate(config: Config, folder: Path, *, quiet: bool) -> None:
    calibrated = runs.calibrate(config, folder, show_progress=not quiet)
    band = "no bands" if calibrated.band is None else f"bands of {calibrated.band.quantile:.3g} standard deviations"
    _say(f"{folder}: {type(calibrated.predictor).__name__}, {band}")


def _score(config: Config, folder: Path, *, quiet: bool) -> None:
    _say(str(runs.score(config, folder, show_progress=not quiet)))


def _report(config: Config, folder: Path, *, quiet: bool) -> None:
    report = runs.report(config, folder, show_progress=not quiet)
    _say("\n".join((str(report.scores), "", *report.verdict, str(report.path))))


_STEPS = {"train": _train, "fit": _fit, "calibrate": _calibrate, "score": _score, "report": _report}


def _init(base: Config) -> Callable[..., Call]:
    begun = _begun(base)

    def init(
        files: DataFiles = (),
        *,
        output: str = "run.toml",
        overwrite: Switch = False,
        data: Data = begun["data"],
        operator: Operator = begun["operator"],
        head: Head = begun["head"],
        debug: Switch = False,
    ) -> Call:
        """Write a TOML file with every setting, its default and what it means; filled in from the data where they tell.

        Args:
            files: The data, one file or several; short for --path.
            output: The file to write.
            overwrite: Whether an existing file is replaced.
            data: Data files and their layout.
            operator: The operator.
            head: The uncertainty head.
            debug: Show where an error comes from.
        """
        settings = _checked(files, data=data, operator=operator, head=head)
        return Call(run=partial(_write_initial, settings, output, overwrite=overwrite), debug=debug)

    return init


def _write_initial(settings: Config, output: str, *, overwrite: bool) -> None:
    config = runs.init(settings, output, overwrite=overwrite)
    missing = [name for name in ("path", "inputs", "outputs", "periodic") if not getattr(config.data, name)]
    _say(f"{output}" + (f"; still to be filled in: {', '.join(missing)}" if missing else ""))


def predict(
    folder: Annotated[Positional[str], tyro.conf.arg(metavar="FOLDER")],
    inputs: Annotated[Positional[str], tyro.conf.arg(metavar="INPUTS")],
    output: Annotated[Positional[str], tyro.conf.arg(metavar="OUTPUT")],
    *,
    quiet: Switch = False,
    debug: Switch = False,
) -> Call:
    """Predict fields with error bars for the inputs of a file, and write them to a NetCDF file.

    Args:
        folder: Of a run that is calibrated.
        inputs: A file with the input variables of the run.
        output: The NetCDF file to write; an existing one is replaced.
        quiet: Do not report progress.
        debug: Show where an error comes from.
    """

    def run() -> None:
        dataset = runs.predict(folder, inputs, output=output, show_progress=not quiet)
        _say(f"{output}: {', '.join(map(str, dataset.data_vars))} of {dict(dataset.sizes)}")

    return Call(run=run, debug=debug)


def info(path: Annotated[Positional[str], tyro.conf.arg(metavar="PATH")], *, debug: Switch = False) -> Call:
    """Say what a file or folder is: a run, a saved operator or predictor, a checkpoint, or data; nothing of it is run.

    Args:
        path: Of a run's folder, a .safetensors file, or a data file.
        debug: Show where an error comes from.
    """

    def run() -> None:
        for name, value in runs.info(path).items():
            shown = value if isinstance(value, list) else [value]
            _say("\n".join(f"{name if not number else '':<24}{line}" for number, line in enumerate(shown)))

    return Call(run=run, debug=debug)


def _with_own_options(config: Config, base: Config) -> Config:
    """Leave out options of another class than the one that is named now."""
    return dataclasses.replace(
        config, operator=_with_own(config.operator, base.operator), head=_with_own(config.head, base.head)
    )


def _with_own(ours: Any, theirs: Any) -> Any:
    return ours if ours.name == theirs.name or ours.options != theirs.options else dataclasses.replace(ours, options={})


def _say(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _truth_values(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[bool] | None:
    """Truth values are written as in the configuration file: true, false."""
    if info.type is not bool:
        return None
    words = {"true": True, "false": False}
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{true,false}",
        instance_from_str=lambda values: words[values[0]],
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: [str(value).lower()],
        choices=tuple(words),
    )


@_REGISTRY.primitive_rule
def _tables(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Options of operators and heads: `width=64 modes=[12,12]`, values as in TOML; what is none is a text."""
    if get_origin(info.type) is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=lambda values: dict(map(_entry, values)),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={entry}" for name, entry in value.items()],
    )


def _entry(word: str) -> tuple[str, Any]:
    name, is_there, value = word.partition("=")
    if not (name and is_there):
        raise ValueError(f"{word!r} is not of the form name=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return name, value
    return name, value if is_too_deep(parsed) else parsed
