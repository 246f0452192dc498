"""Checks, before the call, that the signature of a user's function accepts its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedgossip.base.errors import ConfigError

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
    """Raise ConfigError where `function`, named `name`, does not accept the arguments of `call`.

    `values`: the arguments themselves, where known and informative.  A function without a signature, as some in C,
    passes.
    """
    try:
        # not the wrapped function's signature: a decorator may add arguments
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
