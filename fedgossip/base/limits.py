"""Allowed values of a key, declared with the key: checks enforce them, and the reference prints them.

lr: Annotated[float, Within(ABOVE_0)] = 0.1
optimizer: Annotated[str, OneOf(("sgd", "adam"))] = "sgd"
"""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from fedgossip.base.errors import nearest
from fedgossip.base.signatures import OWN_NAME

ABOVE_0 = sys.float_info.min
"""Lower limit of a positive number."""
MOST = 2**31 - 1
"""The largest count."""
LONGEST_SECONDS = 1e9
"""Thirty years; times are kept in 64-bit nanoseconds."""


@dataclass(frozen=True)
class Within:
    """A number from `low` to `high`, or None."""

    low: float = 0.0
    high: float = sys.float_info.max

    refusal = "is out of range"

    def allows(self, value: object) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value is None or (number and self.low <= value <= self.high)  # type: ignore[operator]

    def advice(self, value: object) -> str:
        if isinstance(value, int | float) and value > self.high >= LONGEST_SECONDS:  # which `wording` leaves out
            return f"Set it at most {int(self.high):,}." if math.isfinite(value) else "Set it to a finite number."
        return f"Set it {self.wording}."

    @property
    def wording(self) -> str:
        """The allowed values in a few words; an unreachable limit is left out."""
        return between(self.low, self.high)


@dataclass(frozen=True)
class OneOf:
    """A value of a table or of a list; with `own` also "module:function", code of the user's own."""

    words: Collection[str]
    own: bool = False

    refusal = "is not known"

    def allows(self, value: object) -> bool:
        return value in self.words or (self.own and isinstance(value, str) and OWN_NAME.fullmatch(value) is not None)

    def advice(self, value: object) -> str:
        return nearest(str(value), [*(word for word in self.words if word), *(["module:function"] if self.own else [])])

    @property
    def wording(self) -> str:
        return ", ".join(f"`{word}`" for word in (*self.words, *(["module:function"] if self.own else [])) if word)


@dataclass(frozen=True)
class Words:
    """Text for people, or a list of texts, each one line of printable letters."""

    most: int
    entries: int = 0
    """Maximum length of the list; 0 for a single text."""

    refusal = "cannot be shown as it is"

    def allows(self, value: object) -> bool:
        if self.entries:
            return (
                isinstance(value, list) and len(value) <= self.entries and all(one and self._fits(one) for one in value)
            )
        return self._fits(value)

    def _fits(self, value: object) -> bool:
        return isinstance(value, str) and len(value) <= self.most and value.isprintable() and value == value.strip()

    def advice(self, value: object) -> str:
        texts = value if isinstance(value, list) else [value]
        if longest := max((len(str(one)) for one in texts if len(str(one)) > self.most), default=0):
            return f"Write {self.wording}; one has {longest}."
        return f"Write {self.wording}, without line breaks, control characters and outer spaces; none empty in a list."

    @property
    def wording(self) -> str:
        one = f"at most {self.most} letters"
        return f"at most {self.entries} texts of {one}" if self.entries else one


@dataclass(frozen=True)
class KnownNames:
    """The names of a table, and what each is in a few words: `explain` and the reference print them.

    No limit: the value may also be a name with numbers behind it, or code of the user's own.
    """

    names: Mapping[str, str]

    @property
    def wording(self) -> str:
        return ", ".join(f"`{name}` ({what})" if what else f"`{name}`" for name, what in self.names.items())


Limit = Within | OneOf | Words

Seconds = Annotated[float, Within(ABOVE_0, LONGEST_SECONDS)]
SecondsOr0 = Annotated[float, Within(0, LONGEST_SECONDS)]


def between(low: float, high: float) -> str:
    """Return two limits in words."""
    least = "above 0" if low == ABOVE_0 else f"at least {low:,g}"
    most = f"{int(high):,}" if high >= 1 else f"{high:g}"
    return least if high >= LONGEST_SECONDS else f"{least}, at most {most}"


def limits_of(section: type) -> Sequence[tuple[str, Limit]]:
    """Return the fields of a class with a limit, and their limits, in order."""
    one: Any = section
    return _limits_of(one)


@cache
def _limits_of(section: Hashable) -> Sequence[tuple[str, Limit]]:
    hints = typing.get_type_hints(section, include_extras=True)
    return tuple((name, limit) for name, hint in hints.items() for limit in _in(hint))


def _in(hint: object) -> Iterator[Limit]:
    yield from (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Limit))
