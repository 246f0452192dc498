"""Whether a function of the user's takes what it is called with: seen in its signature, before it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedgossip.base.errors import ConfigError

# Tables of what can be named: a name means one thing.


Entry = TypeVar("Entry")


def table(*entries: tuple[str, Entry]) -> dict[str, Entry]:
    """Return the entries by their names, in order.  Raises ValueError where two have the same."""
    found: dict[str, Entry] = {}
    for name, entry in entries:
        if name in found:
            raise ValueError(f"two entries are called {name!r}: {found[name]!r} and {entry!r}")
        found[name] = entry
    return found


SHOWN = 200
"""Maximum number of characters of a signature, or of a value, in an error."""


@dataclass(frozen=True)
class CalledWith:
    """What a function of the user's is called with, by position, and how one that takes it is written."""

    arguments: tuple[str, ...]
    advice: str


def check_call(name: str, function: Callable[..., Any], call: CalledWith, values: Sequence[object] = ()) -> None:
    """Raise ConfigError where `function`, which is called `name`, does not take the arguments of `call`.

    `values`: the arguments themselves, where they are known already and say something.  A function that tells no
    signature, as some that are written in C, passes.
    """
    try:
        # not that of what it wraps: a decorator may call that with more than it takes
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*call.arguments)
    except TypeError as error:
        takes = str(signature.replace(return_annotation=inspect.Signature.empty))[:SHOWN]
        told = [f" = {value!r}"[:SHOWN] for value in values] or [""] * len(call.arguments)
        given = ", ".join(word + value for word, value in zip(call.arguments, told, strict=True))
        text = f"{name} is called with ({given}) and takes {takes}: {error}"
        raise ConfigError(text, call.advice) from error
