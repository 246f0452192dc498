"""Functions of the user's own, named "module:function" in an experiment file.

This is the only place that imports by a name out of a file; `importing_nothing` blocks it while a file is read that no
user has approved for execution.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from traceback import extract_tb
from typing import Any

from fedgossip.base.errors import ConfigError, TrainingError, nearest
from fedgossip.base.signatures import OWN_NAME, CalledWith, check_call

_CLOSED: ContextVar[str] = ContextVar("closed", default="")
"""The file being read while imports by a name out of a file are blocked; "" otherwise."""

SEE_WHERE = "The code is yours; with FEDGOSSIP_TRACEBACK=1 in the environment the whole traceback is shown."


def is_function(source: str) -> bool:
    """Return whether `source` has the form "module:function"."""
    return OWN_NAME.fullmatch(source) is not None


@contextmanager
def importing_nothing(where: str) -> Iterator[None]:
    """Block, while `where` is read, every import by a name out of a file: `function` raises ConfigError."""
    token = _CLOSED.set(where)
    try:
        yield
    finally:
        _CLOSED.reset(token)


def function(
    source: str, base: Path | None = None, how: CalledWith | None = None, values: Sequence[object] = ()
) -> Callable[..., Any]:
    """Return the function that "module:function" names; modules are looked for in `base` (or here), then as usual.

    Raises ConfigError while imports are blocked, for a module that cannot be imported or lacks the function, and for a
    function that does not take the arguments of `how`; `values`: those arguments, where they are known.
    """
    if not is_function(source):
        raise ConfigError(f"{source!r} is no function", "Write module:function.")
    if where := _CLOSED.get():
        raise ConfigError(f"{where}: it names code that would run: {source}", "Nothing was imported.")
    module_name, _, name = source.partition(":")
    with _search_first(base or Path.cwd()):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            places = f"in {base or Path.cwd()} and where Python finds installed packages"
            if error.name and f"{module_name}.".startswith(f"{error.name}."):
                text = f"{source}: there is no module {error.name!r}"
                raise ConfigError(text, f"It is looked for {places}.") from error
            missing = f"{error.name!r}{place_of(error)}"
            text = f"{source}: {module_name} is there, and a module that it imports is not: {missing}"
            raise ConfigError(text, f"Install it, or put it beside the other: it is looked for {places}.") from error
        except (Exception, SystemExit) as error:
            text = f"{source}: importing {module_name} failed: {error!r}{place_of(error)}"
            raise ConfigError(text, SEE_WHERE) from error
    found = getattr(module, name, None)
    if not callable(found):
        if module_name == "__main__":  # of a notebook or a script: processes of peers have another
            text = f"{source}: the function exists in the process that defined it, and not in this one"
            raise ConfigError(text, f"Write it into a file: own.py, and own:{name} in the experiment.")
        known = [word for word, value in vars(module).items() if callable(value) and not word.startswith("_")]
        raise ConfigError(f"{source}: {module_name} has no function {name!r}", nearest(name, known))
    if how is not None:
        check_call(source, found, how, values)
    return found  # type: ignore[no-any-return]


def beside(source: str, base: Path | None, name: str) -> Callable[..., Any] | None:
    """Return the function of this name in the module of "module:function"; None without one."""
    function(source, base)  # imports it
    found = getattr(sys.modules[source.partition(":")[0]], name, None)
    return found if callable(found) else None


def call(source: str, base: Path | None, how: CalledWith, *arguments: object) -> Any:
    """Return the result of the user's function for `arguments`, which are those of `how`.

    Raises ConfigError where it does not take them, and TrainingError where it raises, each naming the function.
    """
    return given_by(source, function(source, base, how, arguments), *arguments)


def given_by(name: str, wanted: Callable[..., Any], *arguments: object, **named: object) -> Any:
    """Return the result of a user's function.  Raises TrainingError, naming it, where it raises, SystemExit too."""
    try:
        return wanted(*arguments, **named)
    except (Exception, SystemExit) as error:  # sys.exit(0) would end the command as if it had done its work
        raise TrainingError(f"{name} raised {error!r}{place_of(error)}", SEE_WHERE) from error


def place_of(error: BaseException) -> str:
    """Return " (mine.py, line 3)", the last executed line of the user's own code; "" without one."""
    mine = [one for one in extract_tb(error.__traceback__) if _own(one.filename)]
    return f" ({Path(mine[-1].filename).name}, line {mine[-1].lineno})" if mine else ""


def _own(file: str) -> bool:
    """Return whether a file is the user's: not part of this package, of installed packages, or of Python itself."""
    path = Path(file)
    if "<" in file or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(one) for one in (Path(__file__).parents[1], Path(os.__file__).parent))


@contextmanager
def _search_first(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
