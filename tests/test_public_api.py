"""What users may rely on: every exported name with its arguments, as they are written down in `public_api.txt`.

After a change that is meant, run `python -m tests.test_public_api`, and put a line into the changelog.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_origin

import probneural

SNAPSHOT = Path(__file__).with_name("public_api.txt")


def layers() -> Iterator[ModuleType]:
    """The package, and its modules that export names."""
    yield probneural
    for path in sorted(Path(probneural.__file__).parent.glob("*")):
        name = path.stem
        if not name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists()):
            module = importlib.import_module(f"probneural.{name}")
            if hasattr(module, "__all__"):
                yield module


def arguments(thing: object) -> str:
    """Names, kinds and defaults of arguments; annotations are what type checkers look after, and aliases of types have none."""
    if get_origin(thing) is not None:
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    shown = [one.replace(default=...) if hasattr(one.default, "__dataclass_fields__") else one for one in bare]
    return str(inspect.Signature(shown))


def described(module: ModuleType) -> Iterator[str]:
    """One line per exported name, and per method and property of its own class."""
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        path = f"{module.__name__}.{name}"
        if inspect.ismodule(thing):
            continue
        if not inspect.isclass(thing):
            yield f"{path}{arguments(thing) if callable(thing) else ''}"
            continue
        yield f"{path}{arguments(thing)}"
        for attribute, value in sorted(vars(thing).items()):
            if attribute.startswith("_"):
                continue
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(inner):
                yield f"{path}.{attribute}{arguments(inner)}"
            elif isinstance(value, property) or type(value).__name__ == "cached_property":
                yield f"{path}.{attribute}"


def written() -> str:
    """The whole interface."""
    return "\n".join(line for module in layers() for line in described(module)) + "\n"


def test_the_public_interface_is_as_written() -> None:
    expected, present = (set(text.splitlines()) for text in (SNAPSHOT.read_text(encoding="utf-8"), written()))
    changes = [f"- {line}" for line in sorted(expected - present)] + [f"+ {line}" for line in sorted(present - expected)]
    assert not changes, "\n".join(["if that is meant: python -m tests.test_public_api, and a line in the changelog", *changes])


def test_every_name_of_a_layer_exists_is_listed_and_is_documented() -> None:
    lazy = {"probneural": ["active", "plots", "runs"]}
    for module in (*layers(), probneural.physics.equations):
        assert len(set(module.__all__)) == len(module.__all__)
        assert dir(module) == sorted([*module.__all__, *lazy.get(module.__name__, [])])
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert inspect.getdoc(thing), f"{module.__name__}.{name}"
    assert dir(probneural.errors) == sorted(name for name in vars(probneural.errors) if name.endswith(("Error", "Warning")))
    symmetries = ["Composition", "Mirror", "Shift", "Symmetry", "Transpose", "augment", "box", "shifts"]
    assert dir(probneural.augmentation) == symmetries


if __name__ == "__main__":
    SNAPSHOT.write_text(written(), encoding="utf-8")
