"""The files on the way from one participant to another, at the writer's end and at the reader's.

    writer    put(number, content)      whole under a temporary name, synced, renamed; an OSError leaves nothing behind
              drop(first, last)         acknowledged: removed
    reader    take(number)              the content of the next number; None: it is not there yet

A reader that misses a name looks through at most LISTED names for a copy: the file under its temporary name, or a
synchroniser's conflict copy.  Both are accepted, since the number is inside the seal.

Whoever can write to the shared folder, or hands on the stick, can put a link there: nothing is written, removed or read
through one that leads out of the shared folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from uuid import uuid4

from fedgossip.base import outside_files, owner_files
from fedgossip.core.wire import FrameError
from fedgossip.net.folders.sealed_files import (
    GREETING,
    MESSAGE,
    OVERHEAD,
    RECEIPT,
    Direction,
    PairSecrets,
    SealedFile,
    parsed,
    seal,
)

SUFFIX, PART = ".fgm", ".part"
_GREETING, _RECEIPT = "greeting", "received"

FILES = 64
"""Maximum number of messages that wait in the folder for one partner."""

LISTED = 4096
"""Maximum number of names of a folder that are looked at; strangers' files beyond hide copies, and no message."""


def folder_of(root: Path, way: Direction) -> Path:
    """Return the folder of one direction."""
    return root / f"from-{way.sender:06d}-to-{way.receiver:06d}"


def names_in(folder: Path, begin: str = "") -> Iterator[str]:
    """Yield the names in a folder that begin so, of the first LISTED; none where it cannot be listed."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in islice(found, LISTED):
            if entry.name.startswith(begin):
                yield entry.name


def _stem(kind: bytes, number: int) -> str:
    return {GREETING: _GREETING, RECEIPT: _RECEIPT}.get(kind) or f"{number:010d}"


class PairWriter:
    """The writer's end.  `shared`: the folder that its user has named; `root`: the run's, below it.

    `secrets` may change, when the partner's key of this run is known.
    """

    def __init__(self, shared: Path, root: Path, way: Direction, process: bytes, secrets: PairSecrets) -> None:
        self.shared, self.folder = shared, folder_of(root, way)
        self.way, self.process, self.secrets = way, process, secrets

    def put(self, kind: bytes, number: int, content: bytes) -> int:
        """Write a file; return its size.  Raises OSError, and leaves the file that was there."""
        outside_files.check_inside(self.folder, self.shared)
        data = seal(kind, self.way, number, self.process, content, self.secrets)
        stem = _stem(kind, number)
        self.folder.mkdir(parents=True, exist_ok=True)  # the modes are those of the shared folder
        part = self.folder / f"{stem}.{uuid4().hex[:8]}{PART}"
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.folder / f"{stem}{SUFFIX}")
            with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
                owner_files.sync_folder(self.folder)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        return len(data)

    def size(self, kind: bytes, number: int) -> int | None:
        """Return the size of a file of ours; None where it is not there."""
        try:
            return (self.folder / f"{_stem(kind, number)}{SUFFIX}").stat().st_size
        except OSError:
            return None

    def age(self, kind: bytes, number: int) -> float:
        """Return the seconds since a file of ours was written, as far as two clocks agree; 0 where it is not there."""
        try:
            return time.time() - (self.folder / f"{_stem(kind, number)}{SUFFIX}").stat().st_mtime
        except OSError:
            return 0.0

    def drop(self, first: int, last: int) -> None:
        """Remove the messages `first` to `last`, of which FILES can be there, and a synchroniser's copies of them."""
        with contextlib.suppress(OSError):
            outside_files.check_inside(self.folder, self.shared)
            for number in range(max(first, last - FILES + 1), last + 1):
                (self.folder / f"{_stem(MESSAGE, number)}{SUFFIX}").unlink(missing_ok=True)
            self._remove(lambda name: name[:10].isdecimal() and first <= int(name[:10]) <= last)

    def sweep(self) -> None:
        """Remove the temporary files that earlier processes left."""
        with contextlib.suppress(OSError):
            outside_files.check_inside(self.folder, self.shared)
            self._remove(lambda name: name.endswith(PART))

    def _remove(self, which: Callable[[str], bool]) -> None:
        for name in filter(which, names_in(self.folder)):
            if name.lower().endswith((SUFFIX, PART)):
                (self.folder / name).unlink(missing_ok=True)

    def own_greeting(self) -> SealedFile | None:
        """Return the header of the greeting that is there under our name."""
        try:
            return parsed(outside_files.read_bytes(self.folder / f"{_GREETING}{SUFFIX}", within=self.shared))
        except (OSError, FrameError):
            return None


class PairReader:
    """The reader's end.  `shared`, `root`: as the writer's; `limit`: maximum bytes of a file."""

    def __init__(self, shared: Path, root: Path, way: Direction, limit: int, secrets: PairSecrets) -> None:
        self.shared, self.folder = shared, folder_of(root, way)
        self.way, self.limit, self.secrets = way, limit, secrets
        self.process: bytes | None = None
        """The sender's key of this run, once its greeting was accepted."""

    def take(self, kind: bytes, number: int | None) -> tuple[SealedFile, bytes] | None:
        """Return the file of this number and its content; None where neither it nor a copy is there.

        Raises FrameError where the only files there are refused, and NotADirectoryError, PermissionError, ... where the
        folder cannot be read.
        """
        stem = _stem(kind, number or 0)
        refused: FrameError | None = None
        try:
            if found := self._opened(f"{stem}{SUFFIX}", kind, number):
                return found
        except FrameError as error:
            refused = error
        for name in names_in(self.folder, stem):
            if name == f"{stem}{SUFFIX}":
                continue
            try:
                if found := self._opened(name, kind, number):
                    return found
            except FrameError as error:
                refused = refused or (None if name.endswith(PART) else error)  # a part may still be growing
        if refused:
            raise refused
        return None

    def receipts(self) -> Iterator[int]:
        """Yield the numbers of the authentic receipts that are there: a synchroniser may leave older copies."""
        for name in {f"{_RECEIPT}{SUFFIX}", *names_in(self.folder, _RECEIPT)}:
            with contextlib.suppress(FrameError, OSError):
                if found := self._opened(name, RECEIPT, None):
                    yield found[0].number

    def _opened(self, name: str, kind: bytes, number: int | None) -> tuple[SealedFile, bytes] | None:
        most = self.limit + OVERHEAD
        try:
            data = outside_files.read_bytes(self.folder / name, most, within=self.shared)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise FrameError("oversized", f"a file of more than {most:,} bytes") from None
            raise
        sealed = parsed(data)
        sealed.check(kind, self.way, number, self.process)
        return sealed, sealed.content(self.secrets)
