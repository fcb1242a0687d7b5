"""Leave `__post_init__` out of the reference: it only checks arguments, whose errors the class lists."""

from __future__ import annotations

from typing import Any

import griffe


class Hidden(griffe.Extension):
    """Hides methods that only validate arguments."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Remove `__post_init__`."""
        cls.members.pop("__post_init__", None)
