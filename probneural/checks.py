"""Checks of arguments, unknown keywords and attributes, and optional libraries.

Numbers of NumPy are numbers; truth values are not. Checks return plain Python objects or tensors, which files and generators
accept.
"""

from __future__ import annotations

import collections.abc
import difflib
import functools
import importlib
import inspect
import math
import os
import stat
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import AbstractArray
from numpy.typing import NDArray
from torch import Tensor, nn

from probneural.errors import (
    ArgumentError,
    DataError,
    FileError,
    KeywordError,
    MissingAttributeError,
    MissingPackageError,
    ProbneuralError,
    ShapeError,
)

T = TypeVar("T")
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])

_HEADROOM = 2.0**10
"""Least factor between scales of data and the largest and smallest numbers of a dtype: room for products and sums."""


def check_integer(
    value: object,
    name: str,
    *,
    least: int | float = 1,
    most: int | float = math.inf,
    remedy: str | None = None,
    error: type[ProbneuralError] = ArgumentError,
) -> int:
    """Return an integer, NumPy's included, from `least` to `most`; by default a count.

    Raises:
        ProbneuralError: Of the class `error`, if it is another number, a truth value, or none.

    Examples:
        >>> check_integer(np.int64(3), "epochs")
        3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        bounds = "" if least == -math.inf else f" of at least {least}" if most == math.inf else f" from {least} to {most}"
        remedy = remedy or (f"choose {name} in that range" if bounds else "give a whole number")
        raise error(expected=f"an integer{bounds} as {name}", got=repr(value), remedy=remedy)
    return int(value)


def check_counts(**counts: object) -> None:
    """Raise an ArgumentError unless all are positive integers; None passes."""
    for name, count in counts.items():
        if count is not None:
            check_integer(count, name)


def check_real(
    value: object,
    name: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Return a finite real number, NumPy's included, in [least, most] and in (above, below).

    Raises:
        ArgumentError: If it is another number, a truth value, or none.

    Examples:
        >>> check_real(np.float32(0.5), "level", above=0.0, below=1.0)
        0.5
    """
    fits = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if not fits or not (least <= float(value) <= most and above < float(value) < below):  # type: ignore[arg-type]
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (("at least", least), ("at most", most), ("above", above), ("below", below))
            if math.isfinite(bound)
        ]
        rule = f" {' and '.join(bounds)}" if bounds else ""
        raise ArgumentError(expected=f"a finite number{rule} as {name}", got=repr(value), remedy=f"choose {name} in that range")
    return float(value)  # type: ignore[arg-type]


def check_positive(value: object, name: str) -> float:
    """Return a positive finite number, or raise an ArgumentError; see `check_real`."""
    return check_real(value, name, above=0.0)


def check_flag(value: object, name: str) -> bool:
    """Return a truth value, NumPy's included.

    Raises:
        ArgumentError: If it is anything else: a text or a number is no answer.
    """
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(expected=f"True or False as {name}", got=repr(value), remedy="write one of the two")
    return bool(value)


def check_choice(
    value: object,
    choices: Collection[str],
    name: str,
    *,
    remedy: str = "choose one of them",
    error: type[ProbneuralError] = ArgumentError,
) -> str:
    """Return one of several words.

    Raises:
        ProbneuralError: Of the class `error`, if it is not one of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise error(expected=f"{name} among {', '.join(choices)}", got=repr(value), remedy=remedy)
    return value


def check_instance(value: object, kind: type[T], name: str, *, remedy: str, error: type[ProbneuralError] = DataError) -> T:
    """Return an instance of a class.

    Raises:
        ProbneuralError: Of the class `error`, if it is not an instance.
    """
    if not isinstance(value, kind):
        raise error(expected=f"a {kind.__name__} as {name}", got=described(value), remedy=remedy)
    return value


def check_module(value: object, name: str) -> nn.Module:
    """Return a module.

    Raises:
        ArgumentError: If it is none: a class, or a plain function. Or if it is the result of `torch.compile` for a module whose
            `forward` takes a grid: that shows neither the grid nor the normalisers inside.
    """
    if not isinstance(value, nn.Module):
        raise ArgumentError(
            expected=f"an nn.Module as {name}", got=described(value), remedy="build it, or wrap the function in a module"
        )
    compiled = getattr(value, "_orig_mod", None)
    if isinstance(compiled, nn.Module) and "grid" in inspect.signature(compiled.forward).parameters:
        raise ArgumentError(
            expected=f"{type(compiled).__name__} itself as {name}",
            got="a module of torch.compile, which hides its grid argument and its normalisers",
            remedy="compile it in place: operator.compile()",
        )
    return value


def check_callable(value: object, name: str, *, remedy: str) -> Callable[..., Any]:
    """Return a callable, or raise an ArgumentError."""
    if not callable(value):
        raise ArgumentError(expected=f"a callable as {name}", got=repr(value), remedy=remedy)
    return value


def takes_show_progress(train: Callable[..., object]) -> bool:
    """Whether a training function has an unset argument `show_progress`, to be switched off in favour of one bar."""
    if isinstance(train, functools.partial) and "show_progress" in train.keywords:
        return False
    try:
        return "show_progress" in inspect.signature(train).parameters
    except (TypeError, ValueError):  # built-in callables may have no signature
        return False


def check_path(value: object, name: str) -> Path:
    """Return a path, or raise an ArgumentError."""
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(expected=f"a path as {name}", got=repr(value), remedy="give a text or a pathlib.Path")
    return Path(value)


def check_regular(path: Path, name: str, *, remedy: str = "check the path") -> None:
    """Raise a FileError unless a path is that of a regular file: a pipe waits for its writer, a device may never end."""
    try:
        is_regular, got = stat.S_ISREG(os.stat(path).st_mode), "a folder, pipe, socket or device"
    except (OSError, ValueError) as error:
        is_regular, got = False, str(error)
    if not is_regular:
        raise FileError(expected=f"{name} at {path}", got=got, remedy=remedy)


def check_device(value: object, *, is_double: bool = False) -> torch.device:
    """Return a device of this machine; `"auto"` is CUDA, MPS or CPU, in this order.

    Args:
        value: The argument.
        is_double: Whether it has to compute in float64, as MPS does not.

    Raises:
        ArgumentError: If there is none of this name, or it does not compute in float64 where it has to.
    """
    if isinstance(value, str) and value == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() and not is_double else "cpu")
    if is_double and isinstance(value, str | torch.device) and str(value).startswith("mps"):
        raise ArgumentError(
            expected="a device that computes in float64", got=repr(value), remedy='take "cpu", or float32 where that will do'
        )
    try:
        device = torch.empty(0, device=value).device if isinstance(value, str | torch.device) else None  # an int means CUDA
    except (RuntimeError, AssertionError):
        device = None
    if device is None:
        raise ArgumentError(expected="a device of this machine", got=repr(value), remedy='give e.g. "cpu", "cuda:0" or "auto"')
    return device


def check_sequence(value: object, name: str, *, remedy: str, error: type[ProbneuralError] = ArgumentError) -> tuple[Any, ...]:
    """Return the entries of an iterable other than a text or mapping.

    Raises:
        ProbneuralError: Of the class `error`, if it cannot.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise error(expected=f"a sequence as {name}", got=repr(value), remedy=remedy)
    return tuple(value)


def check_shape(tensor: object, name: str, *sizes: int | str, remedy: str) -> Tensor:
    """Return a tensor, or an array, of these sizes; raise a ShapeError for any other object.

    Args:
        tensor: The tensor.
        name: Its name in the message.
        sizes: Length of each axis; a text names an axis of any length, and a leading "..." stands for any number of axes.
        remedy: How to mend it.

    Examples:
        >>> check_shape(torch.ones(2, 3), "values", "...", 3, remedy="").sum()
        tensor(6.)
    """
    is_open, is_tensor = sizes[:1] == ("...",), isinstance(tensor, Tensor | np.ndarray)
    shape = tuple(getattr(tensor, "shape", ()))
    last = sizes[1:] if is_open else sizes
    pairs = zip(last, shape[len(shape) - len(last) :], strict=False)
    fits = len(shape) == len(last) or (is_open and len(shape) > len(last))
    if not is_tensor or not fits or any(not isinstance(size, str) and size != length for size, length in pairs):
        expected = f"{name} of shape ({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"
        raise ShapeError(expected=expected, got=str(shape) if is_tensor else described(tensor), remedy=remedy)
    return tensor  # type: ignore[return-value]


def check_shape_among(
    tensor: Tensor, name: str, *shapes: tuple[int, ...], remedy: str, error: type[ProbneuralError] = ShapeError
) -> None:
    """Raise an error of a class unless a tensor has one of these shapes; that of a number is ()."""
    if tuple(tensor.shape) not in shapes:
        raise error(expected=f"{name} of shape {' or '.join(map(str, shapes))}", got=str(tuple(tensor.shape)), remedy=remedy)


def check_count(count: int, expected: int, things: str, *, remedy: str, error: type[ProbneuralError] = ShapeError) -> None:
    """Raise an error of a class unless there are as many things as expected: channels, samples, axes."""
    if count != expected:
        raise error(expected=f"{expected} {things}", got=str(count), remedy=remedy)


def check_least(count: int, least: int, things: str, *, remedy: str, error: type[ProbneuralError] = DataError) -> None:
    """Raise an error of a class unless there are enough things: samples, members, points."""
    if count < least:
        raise error(expected=f"{least} or more {things}", got=str(count), remedy=remedy)


def check_text(value: object, name: str) -> str:
    """Return a text, or raise an ArgumentError."""
    if not isinstance(value, str):
        raise ArgumentError(expected=f"a text as {name}", got=repr(value), remedy='give a text: "m/s"')
    return value


def check_finite(values: Tensor, name: str, *, remedy: str = "drop or repair those fields") -> None:
    """Raise a DataError, with the count and the first place, if any value is NaN or infinite."""
    if values.is_floating_point() and math.isfinite(values.detach().sum()):  # then all are, and a sum is found much faster
        return
    bad = ~torch.isfinite(values.detach())
    if bool(bad.any()):
        first = tuple(bad.nonzero()[0].tolist())
        got = f"{int(bad.sum())} values that are NaN or infinite, the first at index {first}"
        raise DataError(expected=f"finite {name}", got=got, remedy=remedy)


def check_floating(values: object, name: str) -> Tensor:
    """Return a tensor of real floating point numbers.

    Raises:
        DataError: If it is something else: an array, integers, complex numbers.
    """
    if not isinstance(values, Tensor) or values.dtype not in (torch.float32, torch.float64):
        raise DataError(
            expected=f"{name} as a float32 or float64 tensor",
            got=str(values.dtype) if isinstance(values, Tensor) else described(values),
            remedy="convert with torch.as_tensor(values, dtype=torch.float32); complex fields are two channels",
        )
    return values


def as_array(values: object) -> NDArray[Any]:
    """Return a copy as an array of any dtype; an array of None for objects without one, such as ragged lists."""
    try:
        return np.array(values)
    except (TypeError, ValueError, RuntimeError):
        return np.array(None)


def real_tensor(
    values: object,
    name: str,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    error: type[ProbneuralError] = DataError,
) -> Tensor:
    """Return numbers, or lists or arrays of them, as a tensor; a tensor keeps its graph.

    Args:
        values: Real numbers, integers included.
        name: Name of the values, for the message.
        dtype: Of the result; by default a tensor's or array's own, float64 for lists and integers.
        device: Of the result; by default a tensor's own, else the CPU.
        error: Class of the error.

    Raises:
        ProbneuralError: Of the class `error`, if they are not real numbers, or `dtype` cannot hold them.

    Examples:
        >>> real_tensor([1, 2], "values")
        tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        tensor = values
    else:
        array = as_array(values)
        if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
            raise error(expected=f"{name} as real numbers", got=described(values), remedy="give numbers, an array or a tensor")
        with torch.device("cpu"):
            tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise error(expected=f"{name} as real numbers", got=str(tensor.dtype), remedy="give numbers, an array or a tensor")
    native = tensor.dtype if tensor.dtype in (torch.float32, torch.float64) else torch.float64
    return cast(tensor.to(device), native if dtype is None else dtype, name, error=error)


def cast(
    values: Tensor, dtype: torch.dtype, name: str, *, dims: tuple[int, ...] = (), error: type[ProbneuralError] = DataError
) -> Tensor:
    """Convert to a dtype that may be narrower, without overflow or underflow.

    Args:
        values: Real numbers.
        dtype: Of the result.
        name: Name of the values, for the message.
        dims: Axes over which numbers share a unit; by default all. Small ones beside large ones may vanish.
        error: Class of the error.

    Raises:
        ProbneuralError: Of the class `error`, if numbers become infinite, or all that share a unit vanish.
    """
    moved = values.to(dtype)
    if values.dtype != torch.float64 or dtype != torch.float32 or not values.numel():
        return moved
    before, after = values.detach().abs().amax(dims), moved.detach().abs().amax(dims)
    lost = (torch.isinf(after) & torch.isfinite(before)) | ((after < torch.finfo(dtype).tiny) & (before > 0))
    if bool(lost.any()):
        limits = torch.finfo(dtype)
        raise error(
            expected=f"{name} that {dtype} holds, of sizes between {limits.tiny:.0e} and {limits.max:.0e}",
            got=f"sizes up to {float(before[lost].max()):.1e}",
            remedy="rescale the data, or work in float64: operator.double()",
        )
    return moved


def check_scale(scale: Tensor, name: str, *, dtype: torch.dtype, power: int = 1) -> None:
    """Raise a DataError unless a dtype holds scales, or powers of them, with room for products and sums.

    Args:
        scale: Positive scales of data.
        name: Name of the data, for the message.
        dtype: The dtype of the data.
        power: 2 where variances are formed.
    """
    limits = torch.finfo(dtype)
    least, most = (_HEADROOM * limits.tiny) ** (1 / power), (limits.max / _HEADROOM) ** (1 / power)
    fits = (scale >= least) & (scale <= most)
    if not bool(fits.all()):
        raise DataError(
            expected=f"{name} of scales between {least:.0e} and {most:.0e}, which {dtype} holds{' squared' * (power == 2)}",
            got=f"a scale of {float(scale[~fits].flatten()[0]):.1e}",
            remedy="divide the data by their scale" + ("" if dtype == torch.float64 else ", or work in float64"),
        )


def check_squares(values: Tensor, name: str) -> None:
    """Raise a DataError unless float64 holds the squares of values, or of the largest ones if others are smaller."""
    largest = values.detach().abs().max().to(torch.float64) if values.numel() else torch.zeros(())
    check_scale(torch.where(largest > 0, largest, torch.ones_like(largest)), name, dtype=torch.float64, power=2)


def check_variances(value: object, name: str, *, like: Tensor | None = None, positive: bool = False) -> Tensor:
    """Return observation variances, or precisions: a number, or an array of them.

    Args:
        value: In physical units squared.
        name: Name of the values, for the message.
        like: Whose dtype and device to take; by default float64, and a tensor's own device.
        positive: Whether zero is refused.

    Raises:
        ArgumentError: If they are not real numbers, not finite, negative, or too small or large for the dtype.
    """
    dtype, device = (torch.float64, None) if like is None else (like.dtype, like.device)
    numbers = real_tensor(value, name, dtype=dtype, device=device, error=ArgumentError)
    if not bool((torch.isfinite(numbers) & (numbers > 0 if positive else numbers >= 0)).all()):
        remedy = f"{name} is a variance, in physical units squared" if "noise" in name else f"give a positive {name}"
        raise ArgumentError(expected=f"{name} {'>' if positive else '>='} 0, finite", got=str(numbers.tolist()), remedy=remedy)
    return numbers


def assign(instance: object, **values: object) -> None:
    """Set attributes of a frozen dataclass during its construction, to checked values."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def described(value: object) -> str:
    """Short description of a value of a wrong type: the class itself, or an instance of it."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__} of {value.dtype}"
    if value is None or isinstance(value, str | int | float | complex):
        return f"{type(value).__name__} {value!r}"[:100]
    return f"an object of type {type(value).__name__}"


def validated(function: AnyCallable) -> AnyCallable:
    """Decorate a function or a dataclass: arguments of other types than its annotations raise typed errors.

    Tensors are compared in number of axes and dtype, sequences and callables as such, and other values in their class.

    Examples:
        >>> @validated
        ... def root(values: Tensor, *, degree: int = 2) -> Tensor:
        ...     return values ** (1 / degree)
        >>> root(torch.ones(2), degree="two")
        Traceback (most recent call last):
        ...
        probneural.errors.ArgumentError: expected an integer as degree; got 'two'; give a whole number
    """
    if isinstance(function, type):
        function.__init__ = validated(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)
    hints = functools.cache(lambda: {name: hint for name, hint in get_type_hints(function).items() if name != "return"})

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        for name in hints().keys() & arguments.keys():
            _check_annotated(arguments[name], hints()[name], name)
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def _check_annotated(value: object, annotation: Any, name: str) -> None:
    origin, remedy = get_origin(annotation), f"see the annotation of {name}"
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(annotation) if option is not type(None)]
        if len(options) == len(get_args(annotation)) or value is not None:
            _check_any(value, options, name)
    elif annotation is Any:
        return
    elif origin is Literal:
        check_choice(value, get_args(annotation), name)
    elif annotation in _CHECKS:
        _CHECKS[annotation](value, name)
    elif origin is collections.abc.Callable:
        check_callable(value, name, remedy=remedy)
    elif origin in (tuple, collections.abc.Sequence):
        entries = check_sequence(value, name, remedy=remedy)
        for number, entry in enumerate(entries):
            _check_annotated(entry, get_args(annotation)[0], f"{name}[{number}]")
    elif isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        if not isinstance(value, annotation):
            tensor = check_instance(value, Tensor, name, remedy=remedy)
            is_dtype = str(tensor.dtype).removeprefix("torch.") in annotation.dtypes
            raise (ShapeError if is_dtype else DataError)(
                expected=f"{annotation.__name__} as {name}", got=f"{tensor.dtype} {tuple(tensor.shape)}", remedy=remedy
            )
    elif isinstance(annotation, type):
        check_instance(value, annotation, name, remedy=remedy, error=ArgumentError)


def _check_any(value: object, options: Collection[Any], name: str) -> None:
    """Raise the error of the last option if a value is of none."""
    for number, option in enumerate(options, start=1):
        try:
            return _check_annotated(value, option, name)
        except ProbneuralError:
            if number == len(options):
                raise


_CHECKS: Mapping[Any, Callable[[Any, str], Any]] = {
    int: functools.partial(check_integer, least=-math.inf),
    float: check_real,
    bool: check_flag,
    str: check_text,
    nn.Module: check_module,
}
"""Checks of plain types."""
P = ParamSpec("P")
Result = TypeVar("Result")

_KEYWORDS = {
    "hidden_channels": "width",
    "hidden_dim": "width",
    "lr": "learning_rate",
    "max_epochs": "epochs",
    "modes1": "modes",
    "n_epochs": "epochs",
    "n_layers": "depth",
    "n_modes": "modes",
    "num_epochs": "epochs",
    "num_layers": "depth",
    "random_state": "seed",
    "verbose": "show_progress",
}
"""Keywords of other libraries, and ours."""
_FIT_OPTIONS = {
    "batch_size": "data=DataOptions(batch_size=...)",
    "callbacks": "run=RunOptions(callbacks=[...])",
    "checkpoint": "run=RunOptions(checkpoint=...)",
    "device": "run=RunOptions(device=...)",
    "loading": "data=DataOptions(workers=...)",
    "num_workers": "data=DataOptions(workers=...)",
    "unroll": "loss=Unroll(...)",
    "validation": "data=DataOptions(validation=...)",
}
"""Keywords that belong to the options objects of `pn.fit`."""
_LAYOUT_FIELDS = frozenset({"axes", "channel", "grid", "group", "lengths", "out_grid", "sample", "time"})
"""Keywords that belong to the layout of `pn.data.open`."""
ATTRIBUTES = {
    "forward": "call the predictor: predictor(inputs)",
    "posterior": "call the predictor: predictor(inputs)",
    "predict": "call the predictor: predictor(inputs)",
    "covariance_matrix": "take u.covariance",
    "loc": "take u.mean",
    "sample": "take u.rsample(seed=0)",
    "std": "take u.standard_deviation",
    "stddev": "take u.standard_deviation",
    "to": "move what is taken from it: u.mean.to(device)",
}
"""Attributes of other libraries' predictors and distributions, and their replacements."""


def checks_keywords(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function so that an unknown keyword is a KeywordError that names the one that was meant.

    Examples:
        >>> @checks_keywords
        ... def train(*, epochs=1):
        ...     return epochs
        >>> train(n_epochs=3)
        Traceback (most recent call last):
        ...
        probneural.errors.KeywordError: expected keywords of train; got 'n_epochs'; did you mean 'epochs'?
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> Result:
        for name in options:
            if name not in parameters:
                raise KeywordError(expected=f"keywords of {owner}", got=repr(name), remedy=_meant(name, list(parameters)))
        return function(*arguments, **options)

    return checked


def _meant(name: str, names: list[str]) -> str:
    if name in _FIT_OPTIONS and {"data", "run"} <= set(names):
        return f"give {_FIT_OPTIONS[name]}, from pn.training"
    if name in _LAYOUT_FIELDS and "layout" in names:
        return f"give layout=pn.data.FileLayout({name}=...)"
    synonym = _KEYWORDS.get(name)
    return nearest(synonym if synonym in names else name, [candidate for candidate in names if candidate != "self"])


def nearest(name: str, candidates: Iterable[str]) -> str:
    """The candidate that an unknown name may stand for, or all of them.

    Examples:
        >>> nearest("epoch", ["epochs", "seed"])
        "did you mean 'epochs'?"
    """
    names = list(candidates)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose among {', '.join(names)}"


def missing_attribute(instance: Any, name: str) -> Any:
    """As `__getattr__` of a class: a MissingAttributeError for names of other libraries, else Python's own error.

    Raises:
        AttributeError: In any case.
    """
    if name in ATTRIBUTES and not hasattr(type(instance), name):
        raise MissingAttributeError(
            expected=f"an attribute of {type(instance).__name__}", got=repr(name), remedy=ATTRIBUTES[name]
        )
    return object.__getattribute__(instance, name)  # whose error names the attribute, within a property too


PACKAGES: dict[str, tuple[str, ...]] = {
    "arviz": ("arviz",),
    "cli": ("h5netcdf", "h5py", "matplotlib", "numcodecs", "pydantic", "xarray", "zarr"),
    "data": ("h5netcdf", "h5py", "numcodecs", "xarray", "zarr"),
    "hub": ("huggingface_hub",),
    "lightning": ("lightning",),
    "logging": ("mlflow-skinny", "tensorboard", "wandb"),
    "mesh": ("meshio",),
    "ode": ("torchdiffeq",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "plots": ("matplotlib",),
    "pyro": ("pyro-ppl",),
    "xarray": ("xarray",),
}
"""Packages of the extras that messages name, as in pyproject.toml; the package itself may be on no index."""


def install_hint(extra: str) -> str:
    """The command that installs the packages of an extra.

    Examples:
        >>> install_hint("plots")
        'pip install matplotlib'
    """
    return f"pip install {' '.join(PACKAGES[extra])}"


def optional(module: str, user: str, *, extra: str) -> Any:
    """Import a library of an extra.

    Args:
        module: Name of the module.
        user: Class or function that needs it, in words.
        extra: Extra that the module is part of.

    Raises:
        MissingPackageError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        expected = f"{(error.name or module).partition('.')[0]}, which {user} needs"
        got = f"an environment without the extra {extra}"
        raise MissingPackageError(expected=expected, got=got, remedy=install_hint(extra)) from error
