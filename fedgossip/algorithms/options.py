"""Selection of a table's entry by name, with options that are the parameters of its factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fedgossip.base.errors import ConfigError, nearest

Chosen = TypeVar("Chosen")


def chosen(key: str, name: str, table: Mapping[str, Callable[..., Chosen]], options: Mapping[str, Any]) -> Chosen:
    """Create the object `name`, the value of `key`, with its options.  Raises ConfigError for unknown ones."""
    if name not in table:
        raise ConfigError(f"{key} = {name!r} is not known", nearest(name, table))
    check_options(f"{key} = {name!r}", table[name], options)
    return table[name](**options)


def check_options(what: str, make: Callable[..., object], options: Iterable[str], ours: Iterable[str] = ()) -> None:
    """Raise ConfigError for an option that `make` does not take, or that it needs and that is not there; `ours`:
    parameters that options may not set."""
    takes = inspect.signature(make).parameters
    known = set(takes) - set(ours)
    for option in options:
        if option not in known:
            raise ConfigError(f"{what} has no option {option!r}", nearest(option, known))
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    needed = [name for name, one in takes.items() if one.kind in named and one.default is inspect.Parameter.empty]
    if missing := [name for name in needed if name in known and name not in set(options)]:
        raise ConfigError(f"{what} needs the option {missing[0]!r}", "It has no value of its own: give it.")
