"""A condition selects the records of a plan: data.where = "age >= 18 and ward != north".

    condition   part or part ...; part: one and one ...
    one         NAME < NUMBER (<=, >, >=), NAME = VALUE, NAME != VALUE, not one, (condition)

Names, numbers and levels are the tokens of a formula (`columns.formula`): anything else is refused at its position, and
nothing is executed.  Each site evaluates it on its own cells, in their declared form.  Logic has three values, as in
SQL: a record is selected if its nonempty cells make the condition true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.cells import class_name, is_missing, number_in
from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.declarations import EncodedColumn
from fedgossip.data.columns.formula import SHOWN, Token, tokens_of

DEPTH = 20
"""Maximum depth of parentheses and of `not`."""
EXAMPLE = "Write age >= 18 and ward != north; other names and levels in backquotes, `body mass`."
ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Rows = npt.NDArray[np.bool_]


class Verdicts(NamedTuple):
    """Which records a condition is certainly true of, and certainly false of, [m] each; neither: an empty cell."""

    true: Rows
    false: Rows


class ComparedColumn(NamedTuple):
    """One column compared with one value."""

    name: Token
    sign: str
    value: Token

    def verdicts(self, cells: Mapping[str, Sequence[str]]) -> Verdicts:
        of = cells[self.name.text]
        there = np.array([not is_missing(cell) for cell in of], bool)
        if self.sign in ORDERS:
            holds, bound = ORDERS[self.sign], float(self.value.text)
            true = np.array([(value := number_in(cell)) is not None and holds(value, bound) for cell in of], bool)
        else:
            level, equal = class_name(self.value.text), self.sign == "="
            true = np.array([(class_name(cell) == level) == equal for cell in of], bool)
        return Verdicts(true & there, ~true & there)

    def comparisons(self) -> Iterator[ComparedColumn]:
        yield self


class NegatedCondition(NamedTuple):
    """`not` a condition."""

    of: Condition

    def verdicts(self, cells: Mapping[str, Sequence[str]]) -> Verdicts:
        found = self.of.verdicts(cells)
        return Verdicts(found.false, found.true)

    def comparisons(self) -> Iterator[ComparedColumn]:
        return self.of.comparisons()


class JoinedConditions(NamedTuple):
    """Two conditions or more joined by `and`, or by `or`."""

    word: str
    of: Sequence[Condition]

    def verdicts(self, cells: Mapping[str, Sequence[str]]) -> Verdicts:
        true, false = zip(*(one.verdicts(cells) for one in self.of), strict=True)
        every, some = np.logical_and.reduce, np.logical_or.reduce
        return Verdicts(every(true), some(false)) if self.word == "and" else Verdicts(some(true), every(false))

    def comparisons(self) -> Iterator[ComparedColumn]:
        return (found for one in self.of for found in one.comparisons())


Condition = ComparedColumn | NegatedCondition | JoinedConditions


class Subset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The selected records of all sites: the condition as in the plan, and its columns, in their declared form."""

    text: str
    columns: tuple[EncodedColumn, ...]


def parsed(text: str) -> Condition:
    """Return a parsed condition.  Raises ConfigError, with the position of the first token that does not fit."""
    return _ConditionParser(text).condition()


def refused(text: str, token: Token, why: str, advice: str) -> ConfigError:
    """Return the error of a token of a condition."""
    where = "at its end" if token.kind == "end" else f"letter {token.place}, {token.text!r}"
    return ConfigError(f"data.where = {text[:SHOWN]!r}, {where}: {why}", advice)


class _ConditionParser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._tokens = tokens_of(text, lambda token, why, advice: refused(text, token, why, advice))

    def condition(self) -> Condition:
        found = self._joined("or")
        if (token := self._tokens[self._at]).kind != "end":
            raise refused(self._text, token, "expected is 'and', 'or' or the end", EXAMPLE)
        return found

    def _joined(self, word: str) -> Condition:
        def part() -> Condition:
            return self._joined("and") if word == "or" else self._one()

        parts = [part()]
        while self._takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else JoinedConditions(word, parts)

    def _one(self) -> Condition:
        token, self._depth = self._tokens[self._at], self._depth + 1
        if self._depth > DEPTH:
            raise refused(self._text, token, f"more than {DEPTH} levels of parentheses", "Write a simpler condition.")
        if self._takes("not"):
            found: Condition = NegatedCondition(self._one())
        elif self._takes("("):
            found = self._joined("or")
            self._next("mark", ")")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> ComparedColumn:
        name, sign = self._next("name"), self._next("mark", *"<>=!").text
        if self._takes("="):
            sign = "=" if sign == "=" else f"{sign}="
        value = self._tokens[self._at]
        if sign == "!" or value.kind not in ("name", "number"):
            raise refused(self._text, value, "expected is a number or a level", EXAMPLE)
        if sign in ORDERS and value.kind != "number":
            text = f"{sign} compares numbers, and {value.text!r} is none"
            raise refused(self._text, value, text, f"Write = or != for a level: {name.text} = {value.text}.")
        self._at += 1
        return ComparedColumn(name, sign, value)

    def _takes(self, text: str) -> bool:
        """Whether the next token is this word or mark, which is then read; in backquotes it is a name."""
        token = self._tokens[self._at]
        found = token.text == text and self._text[token.place - 1 : token.place] != "`"
        self._at += found
        return found

    def _next(self, kind: str, *of: str) -> Token:
        token = self._tokens[self._at]
        if token.kind != kind or (of and token.text not in of):
            wanted = " or ".join(map(repr, of)) if of else "a column"
            raise refused(self._text, token, f"expected is {wanted}", EXAMPLE)
        self._at += 1
        return token
