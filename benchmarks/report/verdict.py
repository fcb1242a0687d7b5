"""Verdict in words, from the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report.headlines import Table, best, headlines, methods
from benchmarks.report.text import shown

UNTRAINED = ("kernel operator", "linear regression")
"""Operators without a network."""


def question(results: Mapping[str, Any]) -> str:
    """Question of the benchmark in one sentence."""
    problems = list(dict.fromkeys(run["problem"] for run in results["runs"]))
    if "--data" in str(results.get("command", "")) or len(problems) == 1:
        where = problems[0] if problems else "nothing"
    else:
        where = f"{len(problems)} problems with exact solutions"
    return (
        f"On {where}: which operator and head predict the fields of unseen inputs best, and do simultaneous bands have their "
        "nominal coverage?"
    )


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Sentences on the lowest error, the best joint density, and calibrated error bars.

    Examples:
        >>> scores = {"relative_l2": 0.02, "joint_nll": -1.5, "simultaneous_coverage": 0.9, "level": 0.9}
        >>> run = {"problem": "Heat", "operator": "FNO", "head": "Laplace", "evaluations": [{"on": "test", "scores": scores}]}
        >>> verdict({"runs": [run]})[0]
        'FNO (Laplace) is the only method: its relative error is 0.0200.'
    """
    table = {problem: own for problem, own in headlines(results).items() if own}
    if not table:
        return ["No method was evaluated."]
    sentences = [_winners(table, "error", "lowest error"), _winners(table, "joint_nll", "best joint density")]
    sentences += [_without_networks(table), _honesty(table)]
    return [sentence[0].upper() + sentence[1:] for sentence in sentences if sentence]


def _winners(table: Table, score: str, prize: str) -> str:
    names = methods(table)
    values = [getattr(line, score) for own in table.values() for line in own.values() if getattr(line, score) is not None]
    if not values:
        return ""
    if len(names) == 1:
        if score != "error":
            return ""
        extent = shown(values[0]) if len(values) == 1 else f"between {shown(min(values))} and {shown(max(values))}"
        return f"{_named(names[0])} is the only method: its relative error is {extent}."
    wins = Counter(winner for own in table.values() if (winner := best(own, score)) is not None)
    if len(table) == 1:
        return _only_problem(table, score, prize)
    first, *others = wins.most_common()
    rest = _listed([f"{_named(name)} on {count}" for name, count in others])
    sentence = f"{_named(first[0])} has the {prize} on {first[1]} of {_number(len(table), 'problem')}"
    return f"{sentence}{f'; {rest}' if rest else ''}."


def _only_problem(table: Table, score: str, prize: str) -> str:
    own = next(iter(table.values()))
    ranked = sorted(
        ((getattr(line, score), name) for name, line in own.items() if getattr(line, score) is not None), key=lambda one: one[0]
    )
    least, winner = ranked[0][0], _named(ranked[0][1])
    others = [(value, _named(name)) for value, name in ranked[1:]]
    if not others:
        return f"{winner} has the {prize}, {shown(least)}, and is the only method that has any."
    value, second = others[0]
    if score == "error" and least > 0:
        return f"{winner} has the {prize}, {shown(least)}; {second} follows with {value / least:.2g} times as much."
    return f"{winner} has the {prize}, {shown(least)} nats per value; {second} follows with {shown(value)}."


def _without_networks(table: Table) -> str:
    """Problems on which a method without a network has the lowest error."""
    names = methods(table)
    if len({name.startswith(UNTRAINED) for name in names}) < 2:
        return ""
    won = [problem for problem, own in table.items() if (best(own, "error") or "").startswith(UNTRAINED)]
    if len(won) == len(table):
        where = _everywhere(table)
    elif won:
        where = f"on {_listed(won)}" if len(won) <= 3 else f"on {len(won)} of {len(table)} problems"
    else:
        return f"Trained networks have a lower error than kernel methods and linear regression {_everywhere(table)}."
    return f"Methods that train no network have the lowest error {where}."


def _everywhere(table: Table) -> str:
    return "on every problem" if len(table) > 1 else "here"


def _honesty(table: Table) -> str:
    """Number of problems with nominal simultaneous coverage, within two standard errors."""
    names = methods(table)
    known = {name: [own[name] for own in table.values() if name in own and own[name].whole is not None] for name in names}
    known = {name: lines for name, lines in known.items() if lines}
    if not known:
        return ""
    level = next(iter(known.values()))[0].level
    honest = {name: sum(bool(line.is_honest) for line in lines) for name, lines in known.items()}
    lines = [line for own in known.values() for line in own]
    misses = [line for line in lines if not line.is_honest]
    ranked = sorted(honest, key=lambda name: -honest[name] / len(known[name]))
    said = [f"{_named(name)}, on {honest[name]} of {len(known[name])}" for name in (ranked[0], ranked[-1])]
    cases = f"{len(lines) - len(misses)} of {len(lines)} cases"
    sentence = f"{100 * level:.0f} % bands have their nominal simultaneous coverage, within chance, in {cases}"
    if len(table) > 1 and len(ranked) > 1 and misses:
        sentence += f": most often with {said[0]}, least with {said[1]}"
    if misses:
        narrow = sum(line.whole is not None and line.whole < line.level for line in misses)
        sentence += (
            f"; of the {_number(len(misses), 'miss', 'misses')}, {narrow} {'is' if narrow == 1 else 'are'} over-confident"
        )
    return f"{sentence}."


def _named(method: str) -> str:
    """Operator and, in brackets, head."""
    operator, _, head = method.partition(", ")
    return f"{operator} ({head})"


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{'; '.join(parts[:-1])} and {parts[-1]}" if parts else ""
