"""Registry of the classes that files store; the decorator `stored` registers a class at its definition."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from probneural.errors import ArgumentError

_Class = TypeVar("_Class", bound=type)

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, eq=False)
class Kind:
    """Storage format of the instances of a class.

    Attributes:
        cls: The class.
        parts: Method that returns the parts of an instance by name; by default the parts are the constructor's arguments, read
            from attributes of the same names. With `"configuration"` files also store a state dict.
        build: Class method that builds an instance from the parts; by default the constructor. Its annotations are the schema
            of the parts.
        on_cpu: Parts that stay on the CPU.
        state: Map from the parts of a module to tensors that bound the size of its constructor's tensors; None if the
            constructor creates no tensors.
        mixes_precisions: Whether tensors may have different dtypes, which the class converts.
    """

    cls: type
    parts: str | None = None
    build: str | None = None
    on_cpu: tuple[str, ...] = ()
    state: Callable[[Mapping[str, Any]], Mapping[str, Tensor]] | None = None
    mixes_precisions: bool = False

    @property
    def name(self) -> str:
        """Name of the class, also in files."""
        return self.cls.__name__

    @property
    def is_operator(self) -> bool:
        """Whether files store a configuration and a state dict."""
        return self.parts == "configuration"


KINDS: dict[str, Kind] = {}
"""Registered classes by name. Imports of the package fill it; files cannot add to it."""

_EXTRAS = {"LearningHistory": "active", "Run": "runs", "TestScores": "runs"}
"""Subpackages of classes that need BoTorch or pydantic."""


def stored(**options: Any) -> Callable[[_Class], _Class]:
    """Register a class of this package, so that `save` writes its instances and `load` builds them.

    Args:
        **options: Attributes of `Kind` other than the class.

    Returns:
        The decorator; it returns the class unchanged.

    Raises:
        ArgumentError: If the class belongs to another package, or another class has its name.
    """

    def register(cls: _Class) -> _Class:
        if cls.__module__.partition(".")[0] != _PACKAGE or cls.__name__ in KINDS:
            expected, remedy = f"a class of {_PACKAGE} with a name of its own", "save the module or its state dict"
            raise ArgumentError(expected=expected, got=f"{cls.__module__}.{cls.__qualname__}", remedy=remedy)
        KINDS[cls.__name__] = Kind(cls, **options)
        return cls

    return register


def kind_named(name: object) -> Kind | None:
    """Storage format of the class with this name; if it is not registered yet, subpackages are imported."""
    if isinstance(name, str) and name not in KINDS:
        package = importlib.import_module(_PACKAGE)
        for module in [_EXTRAS[name]] if name in _EXTRAS else package.__all__:
            getattr(package, module)
    return KINDS.get(name) if isinstance(name, str) else None


def kind_of(thing: object) -> Kind | None:
    """Storage format of an instance; None unless its class, not only a base class, is registered."""
    kind = KINDS.get(type(thing).__name__)
    return kind if kind is not None and kind.cls is type(thing) else None
