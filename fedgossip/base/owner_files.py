"""Files and folders of a run, readable by their owner only.

**Marks**: a command accepts some files as its user's by their place (a key, a policy, an invite's folder).  They
contain a mark that only this user's commands can write.

    ~/.local/state/fedgossip/keys/marks    the secret of the marks; $XDG_STATE_HOME if set
    "# mark: HEX" in a key or a policy     of the key pair; for a policy of its path, as people edit it
    FOLDER/owner.mark                      of the folder's path

**Locks**: one process holds an open file's lock; by flock on Linux and macOS, on Windows by a byte far beyond the end
(untested).
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import importlib
import os
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, TypeVar, cast

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, NotWrittenError

# Opening files while a burst of connections, for example, uses all descriptors.


PATIENCE_SECONDS, AGAIN_SECONDS = 10.0, 0.05

T = TypeVar("T")


def patiently(open: Callable[[], T]) -> T:
    """Call `open`; without free descriptors retry for at most PATIENCE_SECONDS.

    Raises its last OSError or ZeroMQ error, and any other error at once.
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
    """Open a binary file as `open` does; a new file is accessible to its owner only, and a link is refused.

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


def make_folder(folder: Path) -> None:
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


_MARK_BYTES = 32
"""Number of bytes of the secret of marks."""
_MARK = "# mark: "
ADOPT = "fedgossip keys own"
"""The command that marks a file or folder as the user's."""


def keys_folder() -> Path:
    """Return the owner's folder of secrets outside all runs.  Raises NotWrittenError if it cannot be created."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    here = getattr(os, "getuid", lambda: 0)()
    wanted = state / "fedgossip" / "keys"
    failure: OSError = PermissionError(errno.EACCES, "others can read this folder")
    # in containers and batch jobs the home is often missing or read-only
    for path in (wanted, Path(tempfile.gettempdir()) / f"fedgossip-{here}" / "keys"):
        try:
            make_folder(path)
            facts = path.stat()
        except OSError as error:  # a home that cannot be written to
            failure = error
            continue
        if os.name != "posix" or (facts.st_uid == here and not facts.st_mode & 0o077):
            return path
    raise NotWrittenError(wanted, failure)


def mark_of(content: bytes) -> str:
    """Return the mark of a content by this user's commands: 64 hex digits.  Raises NotWrittenError without a secret."""
    path = keys_folder() / "marks"
    try:
        with contextlib.suppress(FileExistsError), opened(path, "xb") as file:
            file.write(secrets.token_bytes(_MARK_BYTES))
        if len(outside_files.read_bytes(path)) != _MARK_BYTES:  # whoever began it was killed, or had no room
            placed(path, secrets.token_bytes(_MARK_BYTES))
        secret = outside_files.read_bytes(path)
    except OSError as error:
        raise NotWrittenError(path, error) from None
    return hmac.digest(secret, content, "sha256").hex()


def is_mark(mark: str, content: bytes) -> bool:
    """Whether a text is the mark of a content.  Raises NotWrittenError."""
    return hmac.compare_digest(mark.encode(), mark_of(content).encode())


def with_mark(text: str, what: str) -> str:
    """Return the text of a file with this user's mark of `what` as its last line, in place of any other mark."""
    lines = [line for line in text.splitlines() if not line.startswith(_MARK)]
    return "\n".join([*lines, f"{_MARK}{mark_of(what.encode())}", ""])


def check_marked(path: Path, text: str, what: str) -> None:
    """Raise ConfigError for the text of a file without this user's mark of `what`."""
    marks = [line.removeprefix(_MARK).strip() for line in text.splitlines() if line.startswith(_MARK)]
    if not any(is_mark(mark, what.encode()) for mark in marks):
        raise foreign(path)


def foreign(path: Path) -> ConfigError:
    """Return the refusal of a file without this user's mark, in a place for the user's files."""
    text = f"{path}: no command of yours on this machine has made this, and its author decides its content"
    return ConfigError(
        text, f"Begin in another folder.  If it is yours, from elsewhere: {ADOPT} {shlex.quote(str(path))}"
    )


FAR = 1 << 40
"""Number of the byte locked on Windows, where locked bytes can be neither read nor written."""


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.EBADF)
"""Errors of file systems without locks; NFS returns EBADF for a file or folder opened read-only."""

_warned = False


def opened_to_lock(path: Path) -> int:
    """Open a file for appending and locking, for its owner only, without links if possible; return its descriptor.

    Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, FILE)


def try_lock(file: int) -> bool:
    """Lock an open file without waiting; return False if another process holds the lock.

    On a file system without locks: True, with one warning.  Raises OSError.
    """
    found = try_lock_if_any(file)
    if found is None:
        _warn()
    return found is not False


def try_lock_if_any(file: int) -> bool | None:
    """As `try_lock`; None on a file system without locks."""
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


def unlock(file: int) -> None:
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
