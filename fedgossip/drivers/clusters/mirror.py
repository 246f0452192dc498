"""A copy of a growing folder on another machine, without a shared disk.

A reader has the folder's guarantees: a file that is written atomically appears at once, and a journal's line appears
after the files before it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError
from fedgossip.core import run_format

Piece = tuple[str, int, bytes, bool]
"""(path in the folder, offset, bytes, whether this completes the file); offset GONE: the file was deleted."""

GONE = -1

PIECES_BYTES = 8 << 20
"""Maximum number of bytes in one answer; a larger model needs several."""

JOURNALS = (".jsonl", ".txt")
"""Files that only grow, from which a reader takes the bytes so far; all others are written atomically."""


TAIL_BYTES = 1024
"""Number of last sent bytes of a journal compared with the file, which may have been truncated."""

_File = tuple[int, int, int]
"""Identifies one content of a file: its inode number, size and time."""


class FolderNews:
    """The changes of a folder since the last request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, tuple[_File, int, bytes]] = {}

    def mark_sent(self) -> None:
        """Mark the current contents as sent."""
        for name, file in _files_in(self._folder).items():
            path = self._folder / name
            self._sent[name] = (file, file[1], _tail(path) if name.endswith(JOURNALS) else b"")

    def pieces(self, limit: int = PIECES_BYTES) -> list[Piece]:
        """Return at most `limit` bytes of changes; an empty list if there are no more."""
        found: list[Piece] = []
        room = limit
        journals = {name: file for name, file in _files_in(self._folder).items() if name.endswith(JOURNALS)}
        # read after the journals: files that a line refers to exist before the line is read
        others = {name: file for name, file in _files_in(self._folder).items() if not name.endswith(JOURNALS)}
        for name in self._sent.keys() - journals.keys() - others.keys():
            del self._sent[name]
            found.append((name, GONE, b"", True))
        for name, file in (*sorted(others.items()), *sorted(journals.items())):
            for piece in self._changes_of(name, file):
                found.append(piece)
                room -= len(piece[2])
                if room <= 0:
                    return found
        return found

    def _changes_of(self, name: str, file: _File) -> Iterator[Piece]:
        """Yield the new part of one file, in pieces; a journal from its last offset."""
        grows = name.endswith(JOURNALS)
        before, at, tail = self._sent.get(name, (None, 0, b""))
        if before == file and at == file[1]:
            return
        if before != file and not grows:
            at = 0
        path = self._folder / name
        try:
            with outside_files.open_file(path, outside_files.LARGE) as content:
                if not grows and _identity(os.fstat(content.fileno())) != file:
                    return  # replaced a moment ago: the next look finds it
                content.seek(at - len(tail))
                if tail and content.read(len(tail)) != tail:
                    at, tail = 0, b""
                content.seek(at)
                while True:
                    data = content.read(max(0, min(PIECES_BYTES, file[1] - at)))
                    end = at + len(data)
                    whole = end >= file[1] or not data
                    tail = (tail + data)[-TAIL_BYTES:] if grows else b""
                    self._sent[name] = (file, end, tail)
                    yield name, at, data, whole
                    at = end
                    if whole:
                        break
        except FileNotFoundError:
            return
        if PurePosixPath(name).parts[0] == run_format.SNAPSHOTS:
            path.unlink(missing_ok=True)
            del self._sent[name]


def _files_in(folder: Path) -> dict[str, _File]:
    found = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place) / name for name in names if not name.endswith(".part")):
            with contextlib.suppress(FileNotFoundError):  # replaced or deleted meanwhile
                found[path.relative_to(folder).as_posix()] = _identity(path.stat())
    return found


def _identity(state: os.stat_result) -> _File:
    return state.st_ino, state.st_size, state.st_mtime_ns


def apply(folder: Path, pieces: list[Piece]) -> None:
    """Apply pieces to the copy in `folder`, in order.  Raises ConfigError for a path outside it."""
    for name, at, data, whole in pieces:
        path = _inside(folder, name)
        if at == GONE:
            path.unlink(missing_ok=True)
            continue
        owner_files.make_folder(path.parent)
        grows = name.endswith(JOURNALS)
        part = path if grows else path.with_name(path.name + ".part")
        with owner_files.opened(part, "r+b" if at and part.exists() else "wb") as file:
            file.seek(at)
            file.truncate()
            file.write(data)
        if whole and not grows:
            part.replace(path)


def _tail(path: Path) -> bytes:
    with outside_files.open_file(path, outside_files.ROWS) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read()


def content_of(folder: Path) -> list[Piece]:
    """Return the files of a folder, as pieces for a copy."""
    names = (name for name in _files_in(folder) if PurePosixPath(name).parts[0] != run_format.SNAPSHOTS)
    return [(name, 0, outside_files.read_bytes(folder / name, outside_files.LARGE), True) for name in sorted(names)]


def _inside(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name)
    if parts.is_absolute() or not parts.parts or ".." in parts.parts or "\\" in name:
        raise ConfigError(f"{name!r} is no path in the folder of a participant", "Do all nodes run this version?")
    return folder / parts
