"""Allowed values of a key, declared with the key: checks enforce them, and the reference prints them.

    lr: Annotated[float, Within(ABOVE_0)] = 0.1
    optimizer: Annotated[str, OneOf(("sgd", "adam"))] = "sgd"

`chosen` selects a table's entry by a name with options, the parameters of its factory; a user's function is checked
against its arguments.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from fedgossip.base.errors import ConfigError, nearest

ABOVE_0 = sys.float_info.min
"""Lower limit of a positive number."""
BELOW_1 = math.nextafter(1.0, 0.0)
"""Upper limit of a number below 1."""
MOST = 2**31 - 1
"""The largest count."""
LONGEST_SECONDS = 1e9
"""Thirty years; times are stored in 64-bit nanoseconds."""


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
        """The allowed values as a short text; an unreachable limit is omitted."""
        return between(self.low, self.high)


@dataclass(frozen=True)
class OneOf:
    """A value of a table or list, or None if the type allows it; with `own` also "module:function", a user's code."""

    words: Collection[str]
    own: bool = False

    refusal = "is not known"

    def allows(self, value: object) -> bool:
        return (
            value is None
            or value in self.words
            or (self.own and isinstance(value, str) and OWN_NAME.fullmatch(value) is not None)
        )

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
    """The names of a table, described for `explain` and the reference; numbers or user code may follow."""

    names: Mapping[str, str]

    @property
    def wording(self) -> str:
        return ", ".join(f"`{name}` ({what})" if what else f"`{name}`" for name, what in self.names.items())


Limit = Within | OneOf | Words

Seconds = Annotated[float, Within(ABOVE_0, LONGEST_SECONDS)]
SecondsOr0 = Annotated[float, Within(0, LONGEST_SECONDS)]


def between(low: float, high: float) -> str:
    """Return two limits as a text."""
    least = "above 0" if low == ABOVE_0 else f"at least {low:,g}"
    most = "below 1" if high == BELOW_1 else f"at most {int(high):,}" if high >= 1 else f"at most {high:g}"
    return least if high >= LONGEST_SECONDS else f"{least}, {most}"


def limits_of(section: type) -> Sequence[tuple[str, Limit]]:
    """Return the fields of a class with a limit, and their limits, in order."""
    one: Any = section
    return _limits_of(one)


@cache
def _limits_of(section: Hashable) -> Sequence[tuple[str, Limit]]:
    hints = typing.get_type_hints(section, include_extras=True)
    return tuple((name, limit) for name, hint in hints.items() for limit in _find_limits(hint))


def _find_limits(hint: object) -> Iterator[Limit]:
    yield from (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Limit))


# Tables of named entries with unique names.


Entry = TypeVar("Entry")


def table(*entries: tuple[str, Entry]) -> dict[str, Entry]:
    """Return the entries by name, in order.  Raises ValueError for a duplicate name."""
    found: dict[str, Entry] = {}
    for name, entry in entries:
        if name in found:
            raise ValueError(f"two entries are called {name!r}: {found[name]!r} and {entry!r}")
        found[name] = entry
    return found


OWN_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The form "module:function"."""

SHOWN = 200
"""Maximum number of characters of a signature, or of a value, in an error."""


@dataclass(frozen=True)
class CalledWith:
    """The positional arguments of a user's function, and an example of a matching definition."""

    arguments: tuple[str, ...]
    advice: str


def check_call(name: str, function: Callable[..., Any], call: CalledWith, values: Sequence[object] = ()) -> None:
    """Raise ConfigError if `function`, called `name`, does not accept the arguments of `call`.

    `values`: the arguments, if they help the message.  A function without a signature passes.
    """
    try:
        # Not the wrapped function's signature: a decorator may add arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*call.arguments)
    except TypeError as error:
        takes = str(signature.replace(return_annotation=inspect.Signature.empty))[:SHOWN]
        shown = [f" = {value!r}"[:SHOWN] for value in values] or [""] * len(call.arguments)
        given = ", ".join(word + value for word, value in zip(call.arguments, shown, strict=True))
        text = f"{name} is called with ({given}) and takes {takes}: {error}"
        raise ConfigError(text, call.advice) from error


Chosen = TypeVar("Chosen")


def chosen(key: str, name: str, table: Mapping[str, Callable[..., Chosen]], options: Mapping[str, Any]) -> Chosen:
    """Create the object `name`, the value of `key`, with its options.  Raises ConfigError for unknown ones."""
    if name not in table:
        raise ConfigError(f"{key} = {name!r} is not known", nearest(name, table))
    _check_once(f"{key} = {name!r}", table[name], tuple(options))
    check_values(f"{key} = {name!r}", table[name], options)
    return table[name](**options)


def check_options(what: str, make: Callable[..., object], options: Collection[str], ours: Collection[str] = ()) -> None:
    """Raise ConfigError for options that `make` does not accept, or lacks; `ours`: parameters closed to options."""
    takes = inspect.signature(make).parameters
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    known = {name: one.default for name, one in takes.items() if one.kind in named and name not in ours}
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values())
    for option in options:
        if option in ours or (option not in known and not takes_all):
            raise ConfigError(f"{what} has no option {option!r}", nearest(option, known))
    needed = [name for name, default in known.items() if default is inspect.Parameter.empty]
    if missing := [name for name in needed if name not in options]:
        raise ConfigError(f"{what} needs the option {missing[0]!r}", "It has no value of its own: give it.")


_check_once = lru_cache(maxsize=64)(check_options)  # every peer of a simulation makes its own object

OF_FILES = (str, int, float, list, dict, type(None))
"""Types of an experiment file's values."""


def check_values(what: str, make: Callable[..., object], options: Mapping[str, object]) -> None:
    """Raise ConfigError for options outside the types and limits that a factory of this package declares."""
    of_files = {name: value for name, value in options.items() if isinstance(value, OF_FILES)}  # not made parts
    if not of_files or not getattr(make, "__module__", "").startswith("fedgossip."):
        return
    hints = _hints_of(make)
    for name, value in of_files.items():
        hint = hints.get(name, Any)
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            text = f"{what}: {name} is {value!r}; {str(error)[:1].lower()}{str(error)[1:]}"
            raise ConfigError(text, "Write a value of that kind.") from None
        for limit in _find_limits(hint):
            if not limit.allows(value):
                raise ConfigError(f"{what}: {name} = {value!r} {limit.refusal}", limit.advice(value))


@cache
def _hints_of(make: Callable[..., object]) -> Mapping[str, Any]:
    declared: Any = make.__init__ if isinstance(make, type) else make  # type: ignore[misc]
    return typing.get_type_hints(declared, include_extras=True)
