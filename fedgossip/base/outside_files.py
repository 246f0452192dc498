"""Opens all files of untrusted origin; a test detects readers that bypass it.

A reader gets a regular file or an OSError at once: no pipe, no device, no oversized (or sparse) file, no link out of
its folder, as a run directory from another person must not expose the reader's files.  A link inside is opened by its
resolved name, folder by folder without links.  `resolve` follows links in the user's path.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedgossip.base.errors import ConfigError
from fedgossip.base.machine_memory import GIB, MEMORY

if TYPE_CHECKING:
    import numpy.typing as npt

SMALL = 64 << 20
"""Maximum number of bytes of a text read at once; a summary of 10 000 peers has 3 MiB."""
ROWS = 8 * GIB
"""Maximum number of bytes of a record or a trace, which grow with each round."""
LINE_MAX = 1 << 20
"""Maximum number of bytes of a line of a record."""
LARGE = min(32 * GIB, MEMORY)
"""Maximum number of bytes of a model or of data: at most this machine's memory."""

INFLATED_LEAST, INFLATED_RATIO = GIB, 100
"""Maximum number of bytes of compressed arrays; for larger files this multiple of their size."""

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def resolve(path: Path | str) -> Path:
    """Return the path of a user-given file, with all links resolved."""
    return Path(os.path.realpath(path))


def open_file(path: Path, limit: int = SMALL, *, within: Path | None = None) -> io.BufferedReader:
    """Open a regular file of at most `limit` bytes; `within`: the folder that a link may not leave, by default its
    folder.

    Raises OSError with the expectation in its text.
    """
    home = (within or path.parent) if within is not None or path.is_symlink() else None
    real = str(path) if home is None else check_inside(path, home)
    _check_kind(path, Path(real).stat())  # before: opening a device may have an effect
    try:
        descriptor = _opened(real, home)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise OSError(errno.ELOOP, "a link, and a file was expected", str(path)) from None
    try:
        facts = os.fstat(descriptor)
        _check_kind(path, facts)
        if facts.st_size > limit:
            text = f"{facts.st_size:,} bytes, and at most {limit:,} are read"
            raise OSError(errno.EFBIG, text, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int = SMALL, *, within: Path | None = None) -> bytes:
    """Return the content of a file; opened as by `open_file`.  Raises OSError."""
    with open_file(path, limit, within=within) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: Path, limit: int = SMALL, *, errors: str = "strict", within: Path | None = None) -> str:
    """Return the text of a file, in UTF-8, its lines ended by a line feed.  Raises OSError and UnicodeDecodeError."""
    text = read_bytes(path, limit, within=within).decode("utf-8", errors)
    return io.StringIO(text, newline=None).read()


def lines_of(path: Path, at: int = 0) -> Iterator[bytes]:
    """Yield a record's lines from byte `at` on, with their line ends; a truncated last one has none.

    At most LINE_MAX bytes are in memory, and the file is closed between reads, so that many records can be read at
    once.  Raises OSError, also for a longer line.
    """
    while True:
        with open_file(path, ROWS) as file:
            file.seek(at)
            piece = file.read(LINE_MAX)
        end = piece.rfind(b"\n") + 1
        if not end:
            if len(piece) == LINE_MAX:
                raise OSError(errno.EFBIG, f"a line of more than {LINE_MAX:,} bytes", str(path))
            if piece:
                yield piece
            return
        yield from io.BytesIO(piece[:end])
        at += end


@contextlib.contextmanager
def open_by_name(path: Path, limit: int = LARGE) -> Iterator[str]:
    """Yield a name under which a library opens the checked file itself; the path if the system has no such names.

    Raises OSError.
    """
    with open_file(path, limit) as file:
        held = Path(f"/proc/self/fd/{file.fileno()}")
        yield str(held if held.exists() else path)


def check_file(path: Path, limit: int = LARGE, *, within: Path | None = None) -> Path:
    """Check a file that a library opens by name; return its path.  Raises OSError."""
    open_file(path, limit, within=within).close()
    return path


def check_inside(path: Path, folder: Path) -> str:
    """Return the resolved path, also of a missing file.  Raises OSError if a link leads out of `folder`."""
    real, home = os.path.realpath(path), os.path.realpath(folder)
    if real != home and not real.startswith(home.rstrip(os.sep) + os.sep):
        raise OSError(errno.ELOOP, "a link that leads out of its folder", str(path))
    return real


def check_folder(folder: Path, *, within: Path | None = None) -> Path:
    """Return an untrusted folder without links, of files or folders, that lead out of it.

    Call it before writing in such a folder, or reading its subfolders.  `within`: the ancestor that no link may leave,
    by default `folder`.  Raises OSError.
    """
    home = within or folder
    check_inside(folder, home)
    waiting = [str(folder)]
    while waiting:
        inner = waiting.pop()
        try:
            with os.scandir(inner) as entries:
                found = list(entries)
        except FileNotFoundError:  # a running run removes folders
            if inner == str(folder):
                raise
            continue
        for entry in found:
            if entry.is_symlink():
                check_inside(Path(entry.path), home)
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
    return folder


def checked_folder(folder: Path) -> Path:
    """Check a command's folder as `check_folder`; return it, also if missing.  Raises ConfigError."""
    try:
        return check_folder(folder)
    except FileNotFoundError:
        return folder
    except OSError as error:
        advice = "Whose folder is it?  Put the folder or file itself in place of the link."
        raise ConfigError(f"{error.filename or folder}: {error.strerror}", advice) from None


def _flags(*names: str) -> int:
    return sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", *names))


def _opened(real: str, home: Path | None) -> int:
    """Open a resolved path; no part of it below `home` may be a link by now."""
    flags = os.O_RDONLY | _flags("O_NONBLOCK", "O_NOCTTY", "O_BINARY")
    if home is None or os.open not in os.supports_dir_fd:
        return os.open(real, flags)
    first = os.path.realpath(home)
    *folders, name = Path(real).relative_to(first).parts
    at = os.open(first, os.O_RDONLY | _flags("O_DIRECTORY", "O_PATH"))
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | _flags("O_DIRECTORY", "O_PATH"), dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, flags, dir_fd=at)
    finally:
        os.close(at)


def _check_kind(path: Path, facts: os.stat_result) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory, and a file was expected", str(path))
    if not stat.S_ISREG(facts.st_mode):
        what = _KINDS.get(stat.S_IFMT(facts.st_mode), "none")
        raise OSError(errno.EINVAL, f"{what}, and a file was expected", str(path))


# --- archives of arrays -----------------------------------------------------------------------------------------------


def inflated_limit(size: int) -> int:
    """Return the maximum uncompressed bytes of a compressed file of `size` bytes."""
    return min(LARGE, max(INFLATED_LEAST, INFLATED_RATIO * size))


class Arrays(dict[str, "npt.NDArray[Any]"]):
    """The requested arrays of an archive.  `names`: the names of all its arrays."""

    names: tuple[str, ...] = ()


def read_arrays(path: Path, wanted: Collection[str]) -> Arrays:
    """Return the `wanted` arrays of an npz archive that are present; nothing is unpickled.

    Raises OSError, and ValueError for an invalid archive or one that claims more than its file can contain, before
    decompression.
    """
    with open_file(path, LARGE) as file:
        most = inflated_limit(os.fstat(file.fileno()).st_size)
        try:
            with zipfile.ZipFile(file) as archive:
                return _arrays(archive, wanted, most)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, MemoryError) as error:
            raise ValueError(str(error) or type(error).__name__) from None


def _arrays(archive: zipfile.ZipFile, wanted: Collection[str], most: int) -> Arrays:
    from numpy.lib.format import read_array

    entries = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
    chosen = {name: one for name, one in entries.items() if name in wanted}
    if (total := sum(one.file_size for one in chosen.values())) > most:
        raise ValueError(f"{total:,} bytes when inflated, and at most {most:,} are read")
    found = Arrays()
    found.names = tuple(entries)
    for name, one in chosen.items():
        with archive.open(one) as member:
            _check_shape(name, member, one.file_size)
        with archive.open(one) as member:
            found[name] = read_array(member, allow_pickle=False)
    return found


def _check_shape(name: str, member: IO[bytes], size: int) -> None:
    from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

    shape, _, kind = (read_array_header_1_0 if read_magic(member) == (1, 0) else read_array_header_2_0)(member)
    if kind.hasobject:
        raise ValueError(f"{name}: Object arrays cannot be loaded when allow_pickle=False")
    claimed = math.prod(shape) * kind.itemsize
    if member.tell() + claimed != size:
        raise ValueError(f"{name}: {claimed:,} bytes by its shape, {size - member.tell():,} in the archive")
