"""Equations and input distributions of the main benchmark's problems in MathML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

_TOKEN = re.compile(r'"[^"]*"|\d+(?:\.\d+)?|cos|sin|\S')
_MARKS = {"^": "msup", "_": "msub", "/": "mfrac"}
_SPECIAL = {"❴": "{", "❵": "}"}


@dataclass(frozen=True)
class Statement:
    """Statement of a problem.

    Attributes:
        equations: Equations in the notation of `mathml`.
        inputs: Distribution of input functions in the same notation.
        words: Input and output functions, and meanings of letters.
    """

    equations: tuple[str, ...]
    inputs: tuple[str, ...]
    words: str


def _field(name: str, sigma: int = 25) -> str:
    return f"{name} ∼ N ( 0 , {sigma}^2 {{( − Δ + 5^2 )}}^{{−2}} )"


STATEMENTS = {
    "Burgers": Statement(
        ("{∂u}/{∂t} + u {∂u}/{∂x} = ν {∂^2 u}/{∂x^2}", 'x ∈ [ 0 , 1 ) "periodic"'),
        (_field("u ( · , 0 )"),),
        "The state at time 0 is mapped to the state at time 1; ν is the viscosity.",
    ),
    "Darcy 1-D": Statement(
        ("− {d}/{dx} ( e^{g ( x )} {du}/{dx} ) = 1", "u ( 0 ) = u ( 1 ) = 0"),
        (_field("g"),),
        "The logarithm g of the permeability is mapped to the pressure u.",
    ),
    "Variable-speed advection": Statement(
        ("b ( x ) {∂u}/{∂t} + {∂u}/{∂x} = 0", 'x ∈ [ 0 , 1 ) "periodic"'),
        (f"b = 0.1 + 0.9 {{( 1 + g )}}^2 , {_field('g', 8)}", _field("u ( · , 0 )")),
        "The slowness b and the initial state are mapped to the state at the time in the name.",
    ),
    "Shallow water": Statement(
        (
            "{∂h}/{∂t} = − H ( {∂u}/{∂x} + {∂v}/{∂y} )",
            "{∂u}/{∂t} = f v − g {∂h}/{∂x}",
            "{∂v}/{∂t} = − f u − g {∂h}/{∂y}",
        ),
        (_field("h , u , v"),),
        "Surface height h and velocities u, v at time 0 are mapped to those at the time in the name, periodic on the unit "
        "square; f is the rotation, gravity g and depth H are 1, and the three fields are independent.",
    ),
    "Antiderivative, logistic": Statement(
        ("{ds}/{dx} = v ( x ) s ( 1 − s )", "s ( 0 ) = s_0"),
        (_field("v"),),
        "The drive v is mapped to the state s on the unit interval.",
    ),
    "Heat": Statement(
        ("{∂u}/{∂t} = ν Δ u",),
        (_field("u ( · , 0 )"),),
        "The state at time 0 is mapped to the state at time 1, periodic; ν is the diffusivity.",
    ),
    "Helmholtz": Statement(
        ("− Δ u − k^2 u = f", 'u = 0 "on the boundary"'),
        (_field("f"),),
        "The source f is mapped to u on the unit square; k is the wavenumber.",
    ),
    "Darcy 2-D": Statement(
        ("− ∇ · ( a ∇ u ) = f", 'u = 0 "on the boundary"'),
        ('a = φ^2 , Δ φ = 0 , φ > 0 "a random average of Fejér kernels"', f"f = φ h , {_field('h')}"),
        "The root φ of the permeability and the source f are mapped to the pressure u on the unit square.",
    ),
    "Signal separation": Statement(  # a problem of stored results only
        ("y_i = ∑_f ( a_f cos 2 π f t_i + b_f sin 2 π f t_i ) + ε_i", 'f ∈ ❴ 1 , 3 , 5 , 7 ❵ "Hz"'),
        ("a_f , b_f ∼ N ( 0 , {1}/{2} )", "ε_i ∼ N ( 0 , 1 )"),
        "A noisy mixture of tones is mapped to the tone in the name, which the mixture does not determine.",
    ),
}
"""Statements by start of a problem's name. N(m, C) is a Gaussian random field of mean m and covariance operator C."""


def statement(problem: str) -> Statement | None:
    """Statement of the problem of a name, or None."""
    return next((one for name, one in STATEMENTS.items() if problem.startswith(name)), None)


def mathml(text: str) -> str:
    """Convert a formula: letters, numbers, operators; `a^b`, `a_b`, `{a}/{b}`, braces to group, quotes around words.

    Examples:
        >>> mathml("{a}/2 = k^2")[22:]
        '<mfrac><mrow><mi>a</mi></mrow><mn>2</mn></mfrac><mo>=</mo><msup><mi>k</mi><mn>2</mn></msup></math>'

    Raises:
        ValueError: If braces do not match.
    """
    tokens = _TOKEN.findall(text)
    content = _row(tokens)
    if tokens:
        raise ValueError(f"{text!r} has a brace too many")
    return f'<math display="block">{content}</math>'


def _row(tokens: list[str]) -> str:
    """Everything up to a closing brace."""
    parts: list[str] = []
    while tokens and tokens[0] != "}":
        part = _atom(tokens)
        while tokens and tokens[0] in ("^", "_", "/"):
            mark = tokens.pop(0)
            part = f"<{_MARKS[mark]}>{part}{_atom(tokens)}</{_MARKS[mark]}>"
        parts.append(part)
    return "".join(parts)


def _atom(tokens: list[str]) -> str:
    """One letter, number, word or operator, or a group in braces."""
    if not tokens:
        raise ValueError("a formula ends where something should follow")
    token = tokens.pop(0)
    if token == "{":
        content = _row(tokens)
        if not tokens:
            raise ValueError("a brace is not closed")
        tokens.pop(0)
        return f"<mrow>{content}</mrow>"
    if token.startswith('"'):
        return f"<mtext>\u2002{escape(token[1:-1])}</mtext>"
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token == "Δ":
        return '<mi mathvariant="normal">Δ</mi>'
    if token.isalpha():
        return f"<mi>{'𝒩' if token == 'N' else escape(token)}</mi>"
    return f"<mo>{escape(_SPECIAL.get(token, token))}</mo>"
