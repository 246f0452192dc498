"""Whether a function of the user's takes what it is called with: seen in its signature, before it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.base.errors import ConfigError

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
