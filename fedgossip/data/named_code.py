"""Which values name a user's own code, derived from the declarations, so that no key can be forgotten.

A key that may name a function declares so in its type:

    source: Annotated[str, NamesCode(KINDS.__contains__)] = "digits"

Its value names code where it has the form "module:function" and the word before the colon is no built-in one.  The
value alone decides, and nothing beside it in the same file: the sender of a file wrote all of it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from fedgossip.base.errors import ConfigError
from fedgossip.data.custom import is_function

ALLOW = "--run-code"
IN_PYTHON = ", or run_code=True in Python"
REACHING = "it names code that would run, or a place that would be sent the record"


def _nothing(word: str) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True)
class NamesCode:
    """Declares that a value, or each of a list or table of values, may name code; `builtin` decides whether the word
    before the colon is a built-in one.
    """

    builtin: Callable[[str], bool] = _nothing

    def named_by(self, value: object) -> str:
        """Return the "module:function" that a value names; "" where it names no code."""
        name = str(value).partition("?")[0]
        return name if is_function(name) and not self.builtin(name.partition(":")[0]) else ""


def code_in(section: object) -> list[str]:
    """Return every "module:function" that an instance of a declared class names, nested sections included, in declared
    order.
    """
    return [name for _, name in code_by_key(section)]


def code_by_key(section: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each code that a declared instance names."""
    kind: Any = type(section)
    for key, marks in _declared(kind):
        value = getattr(section, key)
        for mark in marks:
            values = value.values() if isinstance(value, Mapping) else value
            values = values if isinstance(values, Collection) and not isinstance(values, str) else [value]
            yield from ((f"{path}{key}", name) for one in values if (name := mark.named_by(one)))
        if isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            yield from code_by_key(value, f"{path}{key}.")


def keys_of_code(section: type, path: str = "") -> Iterator[str]:
    """Yield the keys of a declared class that may name code, also of nested classes."""
    for key, hint in typing.get_type_hints(section, include_extras=True).items():
        yield from (f"{path}{key}" for one in getattr(hint, "__metadata__", ()) if isinstance(one, NamesCode))
        if isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint)):
            yield from keys_of_code(hint, f"{path}{key}.")


@cache
def _declared(section: Hashable) -> tuple[tuple[str, tuple[NamesCode, ...]], ...]:
    hints: dict[str, Any] = typing.get_type_hints(section, include_extras=True)
    held = {key: hint for key, hint in hints.items() if typing.get_origin(hint) is not ClassVar}
    marks = {key: getattr(hint, "__metadata__", ()) for key, hint in held.items()}
    return tuple((key, tuple(one for one in found if isinstance(one, NamesCode))) for key, found in marks.items())


def check_allowed(
    names: Iterable[str], where: Path | str, *, run_code: bool, whose: str = "it names code that would run"
) -> None:
    """Raise ConfigError where a received file names code, and no person has allowed that to run."""
    if run_code or not (found := sorted(set(names))):
        return
    text = f"{where}: {whose}: {', '.join(found[:5])}"
    raise ConfigError(text, f"It can do whatever you can.  If you trust it and its makers: {ALLOW}{IN_PYTHON}.")
