"""Topics of lectures, as declared in topics/*.toml, and the arithmetic of their formulas.

[ring]
title = "..."
says = ["a paragraph", "another", "a third"]
measure = "simulated"                       # a function of `measures`, `computed` or `inside`
given = { m = 8, a = 0.01 }                 # its arguments; numbers among them are names in formulas,
names = { k = 5 }                           # as are these
picture = "what the picture shows"

[[ring.numbers]]
what = "a round of the ring, seconds"
run = "ring_s"                              # an expression of what the measure returned
formula = "C + 2*(m - 1)*(a + d/(m*b))"     # and one of the same names
within = 0.02                               # largest relative difference; of a formula that is 0, absolute
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, nearest

FOLDER = Path(__file__).parent / "topics"


class TopicNumber(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number of a topic, measured and by its formula."""

    what: str
    run: str
    formula: str
    within: float


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One lecture as declared."""

    title: str
    says: tuple[str, str, str]
    measure: str
    picture: str
    numbers: list[TopicNumber]
    questions: tuple[tuple[str, str], tuple[str, str], tuple[str, str]]
    """Pairs of a question and its answer."""
    source: str
    given: dict[str, Any] = {}
    names: dict[str, float] = {}
    """Further names of formulas."""
    words: list[str] = []
    """Other words by which it is found, in small letters with hyphens."""


@cache
def topics() -> Mapping[str, Topic]:
    """Return all topics by name: file by file, in the order of declaration."""
    found: dict[str, Topic] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        found |= msgspec.convert(from_toml(path.read_text("utf-8")), dict[str, Topic])
    return {name: _computed(topic) for name, topic in found.items()}


def declared_names(topic: Topic) -> dict[str, float]:
    """Return the names in formulas that need no run: numbers in its arguments, and further ones."""
    numbers = {key: float(value) for key, value in topic.given.items() if isinstance(value, int | float)}
    return {**numbers, **topic.names}


def _computed(topic: Topic) -> Topic:
    """Return the topic with the figures of its texts computed."""
    names = declared_names(topic)

    def fill(text: str) -> str:
        return re.sub(r"\{([^{}:]+)(?::([^{}]+))?\}", lambda one: format(value_of(one[1], names), one[2] or "g"), text)

    questions = tuple((fill(asked), fill(answer)) for asked, answer in topic.questions)
    return msgspec.structs.replace(topic, says=tuple(map(fill, topic.says)), questions=questions)


def name_of(word: str) -> str:
    """Return the topic of a word, with hyphens, spaces or "_" in it.  Raises ConfigError, with the nearest one, for an
    unknown word.
    """
    known = {other: name for name, topic in topics().items() for other in (name, *topic.words)}
    found = known.get("-".join(word.lower().replace("_", " ").split()))
    if found is None:
        raise ConfigError(f"there is no lecture on {word!r}", nearest(word.lower(), known))
    return found


OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "harmonic": lambda count: sum(1 / k for k in range(1, int(count) + 1)),
    "log": math.log,
    "log2": math.log2,
    "max": max,
    "min": min,
    "sin": math.sin,
    "sqrt": math.sqrt,
}


def value_of(expression: str, names: Mapping[str, float]) -> float:
    """Return the value of an expression.  Raises KeyError for an unknown name, TypeError for other than arithmetic."""

    def evaluate(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                return math.pi if name == "pi" else names[name]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -evaluate(inner)
            case ast.BinOp(left=left, op=kind, right=right):
                return OPERATORS[type(kind)](evaluate(left), evaluate(right))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return FUNCTIONS[name](*map(evaluate, arguments))
        raise TypeError(f"{expression!r} is no arithmetic: {ast.dump(node)}")

    return float(evaluate(ast.parse(expression, mode="eval").body))
