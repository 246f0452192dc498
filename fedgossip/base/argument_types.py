"""The types of arguments of the public functions, checked by their annotations."""

from __future__ import annotations

import inspect
import numbers
import os
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from fedgossip.base.errors import ConfigError

WIDER: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real, Path: os.PathLike}
"""Accepted in place of the annotated type: numbers of numpy, any path."""

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@cache
def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, with arguments of other types than annotated refused by a ConfigError.

    Types that the function's module imports only for annotations, and protocols, are not checked.
    """
    signature = inspect.signature(function)
    usual = {name: one for name, one in signature.parameters.items() if one.kind not in VARIADIC}
    kinds = {name: _evaluate(one.annotation, vars(sys.modules[function.__module__])) for name, one in usual.items()}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with suppress(TypeError):  # of a number of arguments or a name, which the call itself reports
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name in usual and value is not usual[name].default and not _fits(value, kinds[name]):
                    text = f"{function.__name__}: {name} is of type {type(value).__name__}, not {_words(kinds[name])}"
                    raise ConfigError(text, f"help(fedgossip.{function.__name__}) describes the arguments.")
        return function(*args, **kwargs)

    return call


def _evaluate(annotation: object, known: dict[str, Any]) -> Any:
    try:  # one by one: `inspect` would evaluate all or none, and some names are imported for annotations alone
        return eval(annotation, known) if isinstance(annotation, str) else annotation
    except (NameError, AttributeError):
        return Any


def _fits(value: object, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is Sequence and inner == (str,):  # a text is a sequence of texts
        return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
    try:
        return isinstance(value, WIDER.get(kind, origin or kind))
    except TypeError:  # Any, None's annotation, a protocol
        return kind is not None


def _words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(one) for one in inner)
    name = "None" if kind is types.NoneType else (origin or kind).__name__
    return f"{name} of str" if inner == (str,) else name
