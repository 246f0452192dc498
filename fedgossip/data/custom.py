"""Users' functions, named "module:function" in an experiment file.

The only place that imports by a name from a file; `importing_nothing` blocks it while an unapproved file is read.  Keys
that may name a function declare it in their type:

    source: Annotated[str, NamesCode(KINDS.__contains__)] = "digits"

A value names code by the form "module:function" with no built-in word before the colon; nothing else in the file
decides.  `codes_of` collects the text of named modules and their imports.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, TrainingError, nearest, place_of
from fedgossip.base.limits import OWN_NAME, CalledWith, check_call

_CLOSED: ContextVar[str] = ContextVar("closed", default="")
"""The file being read while imports by a name from a file are blocked; "" otherwise."""

SEE_WHERE = "The code is yours; with FEDGOSSIP_TRACEBACK=1 in the environment the whole traceback is shown."


def is_function(source: str) -> bool:
    """Return whether `source` has the form "module:function"."""
    return OWN_NAME.fullmatch(source) is not None


@contextmanager
def importing_nothing(where: str) -> Iterator[None]:
    """Block, while `where` is read, every import by a name from a file: `function` raises ConfigError."""
    token = _CLOSED.set(where)
    try:
        yield
    finally:
        _CLOSED.reset(token)


def function(
    source: str, base: Path | None = None, how: CalledWith | None = None, values: Sequence[object] = ()
) -> Callable[..., Any]:
    """Return the function of "module:function", searched in `base` (or here), then as usual.

    Raises ConfigError while imports are blocked, for a missing module or function, a lambda, and for a function that
    does not take the arguments of `how`; `values`: the arguments' values, if known.
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
            raise ConfigError(text, f"Install it, or put it next to the other: it is searched {places}.") from error
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
    if getattr(found, "__name__", "") == "<lambda>":
        raise ConfigError(f"{source} is a lambda", "Define it by def, or as a class, under its own name.")
    if how is not None:
        check_call(source, found, how, values)
    return found  # type: ignore[no-any-return]


def find_beside(source: str, base: Path | None, name: str) -> Callable[..., Any] | None:
    """Return the function of this name in the module of "module:function"; None without one."""
    function(source, base)  # imports it
    found = getattr(sys.modules[source.partition(":")[0]], name, None)
    return found if callable(found) else None


def call(source: str, base: Path | None, how: CalledWith, *arguments: object) -> Any:
    """Return the result of the user's function for `arguments`, which are those of `how`.

    Raises ConfigError if it does not take them, and TrainingError, naming it, if it raises.
    """
    return call_part(source, function(source, base, how, arguments), *arguments)


def call_part(name: str, wanted: Callable[..., Any], *arguments: object, **named: object) -> Any:
    """Return the result of a user's function.  Raises TrainingError, naming it, if it raises, including SystemExit."""
    try:
        return wanted(*arguments, **named)
    except (Exception, SystemExit) as error:  # sys.exit(0) would end the command as if it had done its work
        raise TrainingError(f"{name} raised {error!r}{place_of(error)}", SEE_WHERE) from error


@contextmanager
def _search_first(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


ALLOW = "--run-code"
IN_PYTHON = ", or run_code=True in Python"
REACHING = "it names code that would run, or a place that would be sent the record"


def _nothing(word: str) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True)
class NamesCode:
    """Declares that a value, or each in a list or table, may name code, unless `builtin` has the word
    before the colon.
    """

    builtin: Callable[[str], bool] = _nothing

    def find_name(self, value: object) -> str:
        """Return the "module:function" in a value; "" if it names no code."""
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
            yield from ((f"{path}{key}", name) for one in values if (name := mark.find_name(one)))
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
    """Raise ConfigError if a received file names code, and no person has allowed that code to run."""
    if run_code or not (found := sorted(set(names))):
        return
    text = f"{where}: {whose}: {', '.join(found[:5])}"
    raise ConfigError(text, f"It has all your permissions.  If you trust it and its makers: {ALLOW}{IN_PYTHON}.")


LONGEST = 900
"""Maximum length of the text of `codes_of`: a Hello has room for it and the query of tables."""

_INSTALLED = ("site-packages", "dist-packages")

_OWN = Path(__file__).resolve().parents[1]
"""This package's folder: counted as installed, also in a checkout."""


def codes_of(names: Iterable[str], base: Path | None = None) -> str:
    """Return "module:function=HASH module:function=HASH", sorted, of users' functions, or ""; one hash of all beyond
    LONGEST.
    """
    several = sorted(set(names))
    found = {name: code_of([name], base) for name in several}
    text = " ".join(f"{name}={code}" for name, code in found.items() if code)
    return text if len(text) <= LONGEST else code_of(several, base)


def code_of(names: Iterable[str], base: Path | None = None) -> str:
    """Return 32 hex digits of a hash of the user's modules behind "module:function" texts; "" without any.

    It covers every module imported, directly or indirectly, in `base` (or here), or in the first module's folder; not
    Python's and installed ones.  Line endings and trailing white space do not count; imports by computed names are not
    found.
    """
    found = modules_of(names, base)
    if not found:
        return ""
    total = hashlib.sha256()
    for name in sorted(found):
        text = _normalised(found[name]).encode()
        total.update(f"{name} {len(text)}\n".encode() + text)
    return total.hexdigest()[:32]


def modules_of(names: Iterable[str], base: Path | None = None) -> dict[str, Path]:
    """Return the file of each module that `code_of` hashes, by the module's name."""
    found: dict[str, Path] = {}
    for name in names:
        if is_function(name):
            module = name.partition(":")[0]
            found |= dict(_modules(module, _folders(module, base or Path.cwd())))
    return found


def _folders(module: str, base: Path) -> Sequence[Path]:
    """Return the folders of the user's modules, which are searched first."""
    if _file(module.partition(".")[0], [base]) or (base / module.partition(".")[0]).is_dir():
        return [base]
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None or not spec.has_location:
        return []
    origin = Path(spec.origin)
    folder = origin.parent.parent if origin.stem == "__init__" else origin.parent
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    if folder.resolve() in standard or folder.name in _INSTALLED:
        return []
    return [base, folder]


def _modules(module: str, folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    seen: set[str] = set()
    waiting = list(_list_packages(module))
    while waiting:
        name = waiting.pop()
        path = None if name in seen else _file(name, folders)
        seen.add(name)
        if path is None:
            continue
        yield name, path
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        waiting += _imported(_normalised(path), package)


def _file(name: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        place = folder.joinpath(*name.split("."))
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file() and not set(path.relative_to(folder).parts) & set(_INSTALLED):
                return None if path.resolve().is_relative_to(_OWN) else path
    return None


def _normalised(path: Path) -> str:
    text = outside_files.read_bytes(outside_files.resolve(path)).decode("utf-8-sig", "replace")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _imported(text: str, package: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # importing the file reports it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _list_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            above = parts[: len(parts) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            for name in (start, *(f"{start}.{alias.name}" if start else alias.name for alias in node.names)):
                yield from _list_packages(name)


def _list_packages(name: str) -> Iterator[str]:
    """Yield a, a.b, a.b.c: importing a module runs its packages."""
    parts = [part for part in name.split(".") if part]
    yield from (".".join(parts[: end + 1]) for end in range(len(parts)))
