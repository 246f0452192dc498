"""What stands in a table is chosen by its name, with options that are the parameters of what makes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fedgossip.base.errors import ConfigError, nearest

Chosen = TypeVar("Chosen")


def chosen(key: str, name: str, table: Mapping[str, Callable[..., Chosen]], options: Mapping[str, Any]) -> Chosen:
    """Return what `name`, the value of `key`, makes with its options.  Raises ConfigError for what is not known."""
    if name not in table:
        raise ConfigError(f"{key} = {name!r} is not known", nearest(name, table))
    check_options(f"{key} = {name!r}", table[name], options)
    return table[name](**options)


def check_options(what: str, make: Callable[..., object], options: Iterable[str], ours: Iterable[str] = ()) -> None:
    """Raise ConfigError for an option that `make` does not take, or that it needs and that is not there; `ours`:
    parameters that nobody else may give."""
    takes = inspect.signature(make).parameters
    known = set(takes) - set(ours)
    for option in options:
        if option not in known:
            raise ConfigError(f"{what} has no option {option!r}", nearest(option, known))
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    needed = [name for name, one in takes.items() if one.kind in named and one.default is inspect.Parameter.empty]
    if missing := [name for name in needed if name in known and name not in set(options)]:
        raise ConfigError(f"{what} needs the option {missing[0]!r}", "It has no value of its own: give it.")
