"""Locks on open files: one process holds a lock at a time; the system releases it at the end of the process.

By flock on Linux and macOS; on Windows by a lock on one byte far beyond the end (untested).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from fedgossip.base.owner_files import FILE

FAR = 1 << 40
"""The byte that is locked on Windows, where locked bytes can be neither read nor written."""


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.EBADF)
"""Errors of file systems without locks; NFS returns EBADF for a file or folder opened read-only."""

_warned = False


def opened(path: Path) -> int:
    """Open a file for appending and locking, accessible to its owner only; return its descriptor.

    Links are not followed where the system supports it.  Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, FILE)


def taken(file: int) -> bool:
    """Take the lock of an open file, without waiting; False where another holds it.

    On a file system without locks: True, and a warning on standard error the first time.  Raises OSError.
    """
    found = taken_if_any(file)
    if found is None:
        _warn()
    return found is not False


def taken_if_any(file: int) -> bool | None:
    """As `taken`; None where the file system has no locks."""
    fcntl = _module("fcntl")
    if fcntl is None:
        return _byte_taken(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


def _warn() -> None:
    global _warned  # noqa: PLW0603
    if not _warned and sys.stderr is not None:
        _warned = True
        sys.stderr.write("fedgossip: this disk has no file locks: nothing keeps a second process out of a folder\n")


def let_go(file: int) -> None:
    """Release the lock of an open file, also for processes that inherited it."""
    if fcntl := _module("fcntl"):
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _byte_taken(file: int) -> bool | None:
    windows = _module("msvcrt")
    if windows is None:
        return None
    at = os.lseek(file, 0, os.SEEK_CUR)
    os.lseek(file, FAR, os.SEEK_SET)
    try:
        windows.locking(file, windows.LK_NBLCK, 1)
    except OSError:  # of any kind: Windows raises the same one for every refusal
        return False
    finally:
        os.lseek(file, at, os.SEEK_SET)
    return True


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
