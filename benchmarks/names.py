"""Selection of names by `--problem`."""

from __future__ import annotations

from collections.abc import Sequence


def named(names: Sequence[str], wanted: str | None) -> list[str]:
    """Return all names, an exact match, or the names that start with a text, ignoring case.

    Raises:
        ValueError: If no name starts with the text.

    Examples:
        >>> named(["Burgers, viscosity 0.1", "Burgers, viscosity 0.1, shifted"], "Burgers, viscosity 0.1")
        ['Burgers, viscosity 0.1']
        >>> named(["Heat", "Darcy 1-D", "Darcy 2-D"], "darcy")
        ['Darcy 1-D', 'Darcy 2-D']
    """
    if wanted is None:
        return list(names)
    if wanted in names:
        return [wanted]
    found = [name for name in names if name.casefold().startswith(wanted.casefold())]
    if not found:
        raise ValueError(f"no problem's name begins with {wanted!r}; there are {'; '.join(names)}")
    return found
