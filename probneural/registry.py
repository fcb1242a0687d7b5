"""Registry of the classes that files hold; the decorator `stored` adds a class where it is defined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from probneural.errors import ArgumentError

_Class = TypeVar("_Class", bound=type)

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, eq=False)
class Kind:
    """How files hold the instances of a class.

    Attributes:
        cls: The class.
        parts: Name of the method that returns the parts of an instance by name; by default the constructor's arguments,
            each an attribute of its own name. Of `"configuration"` files hold a state dict too.
        build: Name of the class method that builds an instance from the parts; by default the constructor. Its annotations
            are the schema of the parts.
        on_cpu: Parts that stay on the CPU.
        state: From the parts of a module to the tensors that bound the size of its constructor's tensors; None if the
            constructor makes none.
        mixes_precisions: Whether its tensors may have different dtypes; the class converts them.
    """

    cls: type
    parts: str | None = None
    build: str | None = None
    on_cpu: tuple[str, ...] = ()
    state: Callable[[Mapping[str, Any]], Mapping[str, Tensor]] | None = None
    mixes_precisions: bool = False

    @property
    def name(self) -> str:
        """Of the class, and in files."""
        return self.cls.__name__

    @property
    def is_operator(self) -> bool:
        """Whether files hold a configuration and a state dict."""
        return self.parts == "configuration"


KINDS: dict[str, Kind] = {}
"""All registered classes by name. Importing the package fills it; files cannot add to it."""


def stored(**options: Any) -> Callable[[_Class], _Class]:
    """Register a class of this package, so that `save` writes its instances and `load` builds them.

    Args:
        **options: Attributes of `Kind` but for the class.

    Returns:
        The decorator; it returns the class unchanged.

    Raises:
        ArgumentError: If the class is of another package, or another class has its name.
    """

    def register(cls: _Class) -> _Class:
        if cls.__module__.partition(".")[0] != _PACKAGE or cls.__name__ in KINDS:
            expected, remedy = f"a class of {_PACKAGE} with a name of its own", "save the module or its state dict"
            raise ArgumentError(expected=expected, got=f"{cls.__module__}.{cls.__qualname__}", remedy=remedy)
        KINDS[cls.__name__] = Kind(cls, **options)
        return cls

    return register


def kind_of(thing: object) -> Kind | None:
    """The kind of an instance of a registered class, not of a subclass; else None."""
    kind = KINDS.get(type(thing).__name__)
    return kind if kind is not None and kind.cls is type(thing) else None
