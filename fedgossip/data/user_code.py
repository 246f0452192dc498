"""The user's own code of an experiment, as text: the modules that it names, and those that they import."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedgossip.base import outside_files
from fedgossip.data.custom import is_function

LONGEST = 1000
"""Maximum length of the text of `codes_of`; a Hello has room for as many characters."""

_INSTALLED = ("site-packages", "dist-packages")

_OWN = Path(__file__).resolve().parents[1]
"""This package's folder: counted as installed, also in a checkout."""


def codes_of(names: Iterable[str], base: Path | None = None) -> str:
    """Return "module:function=HASH module:function=HASH", sorted, of the users' own among the names; "" without any.

    One hash of all where that would be longer than LONGEST.
    """
    several = sorted(set(names))
    found = {name: code_of([name], base) for name in several}
    text = " ".join(f"{name}={code}" for name, code in found.items() if code)
    return text if len(text) <= LONGEST else code_of(several, base)


def code_of(names: Iterable[str], base: Path | None = None) -> str:
    """Return 32 hex digits of a hash of the user's modules behind "module:function" texts; "" without any.

    It covers every module that such a one imports, directly or indirectly, below `base` (or here), or beside the first
    where that lies elsewhere; modules of Python and of installed packages are not the user's.  Line endings and
    trailing white space do not count.  Imports by a computed name are not seen.
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
    """Return the folders of the user's modules, if `module` is one: they are searched before others."""
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
    """Yield the name and the file of `module` and of each module that it imports."""
    seen: set[str] = set()
    waiting = list(_with_packages(module))
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
    text = outside_files.read_bytes(outside_files.named(path)).decode("utf-8-sig", "replace")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _imported(text: str, package: str) -> Iterator[str]:
    """Yield the names of all modules that `text`, of a module in `package`, may import."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # importing the file reports it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            above = parts[: len(parts) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            for name in (start, *(f"{start}.{alias.name}" if start else alias.name for alias in node.names)):
                yield from _with_packages(name)


def _with_packages(name: str) -> Iterator[str]:
    """Yield a, a.b, a.b.c: importing a module runs its packages."""
    parts = [part for part in name.split(".") if part]
    yield from (".".join(parts[: end + 1]) for end in range(len(parts)))
