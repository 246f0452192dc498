"""An import hook and a file-system spy: what runs, and what is opened or changed, while something is read."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedgossip

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "webbrowser.open")
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/bin", "/var/lib")
_PATHS = {sysconfig.get_path(one) for one in ("stdlib", "platstdlib", "purelib", "platlib", "data")}
OURS = tuple(
    str(Path(one).resolve())
    for one in (
        *_PATHS,
        *site.getsitepackages(),
        *filter(None, sys.path),
        sys.prefix,
        sys.base_prefix,
        Path(fedgossip.__file__).parents[1],
    )
)
"""Python, what is installed, and this checkout."""


@dataclass
class Seen:
    """Files whose code was run, files that were read, paths that were changed, and what was started."""

    ran: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def outside(self, paths: Sequence[str], *allowed: Path) -> list[str]:
        """Return the paths that are neither Python's or ours nor below one of `allowed`."""
        within = (*OURS, *_SYSTEM, *(str(one.resolve()) for one in allowed))
        real = {one: os.path.realpath(one) for one in paths}
        return sorted(one for one, path in real.items() if not path.startswith(within))


_seen: list[Seen] = []
"""The one that is filled now; a hook of the interpreter stays for ever."""


def _absolute(path: str | bytes | os.PathLike[str]) -> str:
    return str(Path.cwd() / os.fsdecode(path))  # not resolved: a link is judged by what it leads to, later


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if not _seen:
        return
    seen, first = _seen[-1], given[0] if given else None
    if event == "exec":
        name = str(getattr(first, "co_filename", ""))
        seen.ran += [name] if not name.startswith("<") else []
    elif event == "import":
        seen.imported.append(str(first))
    elif event == "open" and isinstance(first, str | bytes | os.PathLike):
        writes = int(given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        (seen.changed if writes else seen.read).append(_absolute(first))
    elif event in _CHANGES:
        paths = [one for one in given[:2] if isinstance(one, str | bytes | os.PathLike)]
        seen.changed += [_absolute(one) for one in paths]
    elif event in _STARTS:
        seen.started.append(f"{event} {first}")


@contextmanager
def spying() -> Iterator[Seen]:
    """Look on, in this process, in all of its threads."""
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    seen = Seen()
    # The bytecode of a module of ours that is imported first here is no change that the code under test makes.
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _seen.append(seen)
    try:
        yield seen
    finally:
        _seen.remove(seen)
        sys.dont_write_bytecode = bytecode


_hooked: list[bool] = []
