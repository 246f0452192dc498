"""Files and folders of a run, that their owner alone can read: rows, models and traces tell of the data."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

# Opening files where others may have taken all descriptors for a while: a storm of callers, say.


PATIENCE_SECONDS, AGAIN_SECONDS = 10.0, 0.05

T = TypeVar("T")


def patiently(open: Callable[[], T]) -> T:
    """Return what `open` opens; while no descriptor is left for it, try again, for PATIENCE_SECONDS at most.

    Raises the OSError, or the error of ZeroMQ, that it raises then, or for another reason.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return open()
        except Exception as error:
            if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > until:
                raise
        time.sleep(AGAIN_SECONDS)


FILE, FOLDER = 0o600, 0o700


def opened(path: Path, mode: str, buffering: int = -1) -> BinaryIO:
    """Open a file of bytes as `open` does; one that is made by it is the owner's alone.

    A link of this name is refused, not followed: a folder that somebody hands on must not have other files of the
    reader's written to.  Raises OSError.
    """
    return cast(BinaryIO, open(path, mode, buffering, opener=_open))


def written(path: Path, content: bytes) -> None:
    """Write a file.  Raises OSError."""
    with opened(path, "wb") as file:
        file.write(content)


def placed(path: Path, content: bytes) -> None:
    """Put a file in its place in one piece; a link of this name is replaced, and never followed.  Raises OSError."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with opened(part, "xb") as file:
            file.write(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def made(folder: Path) -> None:
    """Make a folder and those above it that are missing; one that is there stays as it is.  Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(FOLDER, exist_ok=True)
    folder.mkdir(FOLDER, exist_ok=True)  # FileExistsError for a file of this name


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk; Windows has no such call.  Raises OSError."""
    if os.name != "posix":
        return
    descriptor = patiently(lambda: os.open(folder, os.O_RDONLY))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: str, flags: int) -> int:
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # a pipe of somebody's would be waited for
    try:
        return os.open(path, flags, FILE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, and a file was expected", path) from None
        raise
