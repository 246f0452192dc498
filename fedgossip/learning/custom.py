"""Functions of the user's own, named "module:function" in an experiment file."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgossip.errors import ConfigError, TrainingError, nearest

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_function(source: str) -> bool:
    """Tell whether `source` has the form "module:function"."""
    return _NAME.fullmatch(source) is not None


def function(source: str, base: Path | None = None) -> Callable[..., Any]:
    """Return the function that "module:function" names; modules are looked for in `base` (or here), then as usual."""
    module_name, _, name = source.partition(":")
    with _search_first(base or Path.cwd()):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{source}: there is no module {error.name!r}",
                f"It is looked for in {base or Path.cwd()} and where Python finds installed packages.",
            ) from error
        except Exception as error:
            raise ConfigError(f"{source}: importing {module_name} failed: {error!r}", "Run it alone first.") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [word for word, value in vars(module).items() if callable(value) and not word.startswith("_")]
        raise ConfigError(f"{source}: {module_name} has no function {name!r}", nearest(name, known))
    return found  # type: ignore[no-any-return]


def call(source: str, base: Path | None, *arguments: object) -> Any:
    """Return what the user's function gives; TrainingError, naming it, where it raises."""
    wanted = function(source, base)
    try:
        return wanted(*arguments)
    except Exception as error:
        raise TrainingError(f"{source} raised {error!r}", "The function is yours; the traceback says where.") from error


@contextmanager
def _search_first(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
