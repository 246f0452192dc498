"""Files and folders of a run, readable by their owner only: rows, models and traces reveal information on the data."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

# Opening files while all descriptors may be taken for a while, by a burst of connections, say.


PATIENCE_SECONDS, AGAIN_SECONDS = 10.0, 0.05

T = TypeVar("T")


def patiently(open: Callable[[], T]) -> T:
    """Call `open`; while no descriptor is left, retry for at most PATIENCE_SECONDS.

    Raises the last OSError or ZeroMQ error of `open`, or at once one with another cause.
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
    """Open a binary file as `open` does; a new file is accessible to its owner only.

    A link is refused, not followed: a folder from another person must not redirect writes to the reader's own files.
    Raises OSError.
    """
    return cast(BinaryIO, open(path, mode, buffering, opener=_open))


def written(path: Path, content: bytes) -> None:
    """Write a file.  Raises OSError."""
    with opened(path, "wb") as file:
        file.write(content)


def placed(path: Path, content: bytes) -> None:
    """Write a file atomically; a link of this name is replaced, never followed.  Raises OSError."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with opened(part, "xb") as file:
            file.write(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def made(folder: Path) -> None:
    """Create a folder and its missing parents; an existing one is unchanged.  Raises OSError."""
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
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # opening a foreign pipe would block
    try:
        return os.open(path, flags, FILE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, and a file was expected", path) from None
        raise
