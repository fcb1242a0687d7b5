"""Leave `__post_init__` out of the reference: it only checks arguments, whose errors the class lists.

Sections of the configuration become dataclasses when Python makes the class; the reference shows them as such.
"""

from __future__ import annotations

from typing import Any

import griffe


class Hidden(griffe.Extension):
    """Hides methods that only validate arguments."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Remove `__post_init__`, and decorate sections of the configuration."""
        cls.members.pop("__post_init__", None)
        if "Section" in map(str, cls.bases):
            call = griffe.ExprCall(griffe.ExprName("dataclasses.dataclass"), [griffe.ExprKeyword("kw_only", "True")])
            cls.decorators.append(griffe.Decorator(call, lineno=None, endlineno=None))
