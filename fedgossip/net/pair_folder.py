"""The files on the way from one participant to another, at the writer's end and at the reader's.

    writer    put(number, content)      whole under a temporary name, synced, renamed; an OSError leaves nothing behind
              drop(first, last)         acknowledged: removed
    reader    take(number)              the content of the next number; None: not present so far

A reader that misses a name checks at most LISTED names for a copy (a temporary name, a synchroniser's conflict copy):
the number is inside the seal.  Links that lead out of the shared folder are not followed.

A message is one sealed file:

    file      magic "fgfolder" | version u8 | kind u8 | run 16 | sender u32 | receiver u32 | number u64
              | process 32 | length u64 | salt 32 | AES-256-GCM of the content, with its tag of 16
    key       HKDF-SHA256(secrets, salt, "fedgossip 1 folder" + all before the content); used for this file alone

`secrets` is X25519(own key, partner's key), and in all files but a greeting also X25519 of both keys of this run.
`process` is the sender's public key of this run, introduced by the greeting.  All integers are little-endian.

The salt is fresh, so the fixed nonce is used once per key.  The whole header is authenticated, and compared with the
expected one first: each refusal has a cause.  The content is the header's length, the header, and its vectors.

Sources: RFC 7748 (X25519), RFC 5869 (HKDF), NIST SP 800-38D (GCM).
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from uuid import uuid4

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgossip.base import outside_files, owner_files
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import AnyMessage
from fedgossip.core.wire import Assembler, FrameError, chunks, packed

SUFFIX, PART = ".fgm", ".part"
_NO_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP)
"""Errors of a pipe, a device, a directory, and a link out of the folder."""
_GREETING, _RECEIPT = "greeting", "received"

FILES = 64
"""Maximum number of messages in the folder for one partner."""

LISTED = 4096
"""Maximum number of names read in a folder; more files of strangers can hide copies, but no message."""


def folder_of(root: Path, way: Direction) -> Path:
    return root / f"from-{way.sender:06d}-to-{way.receiver:06d}"


def names_in(folder: Path, begin: str = "") -> Iterator[str]:
    """Yield the names in a folder with this prefix, among the first LISTED; none if it cannot be listed."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in islice(found, LISTED):
            if entry.name.startswith(begin):
                yield entry.name


def _stem(kind: bytes, number: int) -> str:
    return {GREETING: _GREETING, RECEIPT: _RECEIPT}.get(kind) or f"{number:010d}"


class PairWriter:
    """The writer's end.  `shared`: the folder given by the user; `root`: the run's folder below it."""

    def __init__(self, shared: Path, root: Path, way: Direction, process: bytes, secrets: PairSecrets) -> None:
        self.shared, self.folder = shared, folder_of(root, way)
        self.way, self.process, self.secrets = way, process, secrets

    def put(self, kind: bytes, number: int, content: bytes) -> int:
        """Write a file; return its size.  Raises OSError; the previous file then stays."""
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
        """Return the size of a file written here; None if it is missing."""
        try:
            return (self.folder / f"{_stem(kind, number)}{SUFFIX}").stat().st_size
        except OSError:
            return None

    def age(self, kind: bytes, number: int) -> float:
        """Return the age of a file written here in seconds, within the difference of two clocks; 0 if it is missing."""
        try:
            return time.time() - (self.folder / f"{_stem(kind, number)}{SUFFIX}").stat().st_mtime
        except OSError:
            return 0.0

    def drop(self, first: int, last: int) -> None:
        """Remove the messages `first` to `last`, at most FILES of them, and a synchroniser's copies of them."""
        with contextlib.suppress(OSError):
            outside_files.check_inside(self.folder, self.shared)
            for number in range(max(first, last - FILES + 1), last + 1):
                (self.folder / f"{_stem(MESSAGE, number)}{SUFFIX}").unlink(missing_ok=True)
            self._remove(lambda name: name[:10].isdecimal() and first <= int(name[:10]) <= last)

    def sweep(self) -> None:
        """Remove the temporary files of earlier processes."""
        with contextlib.suppress(OSError):
            outside_files.check_inside(self.folder, self.shared)
            self._remove(lambda name: name.endswith(PART))

    def _remove(self, which: Callable[[str], bool]) -> None:
        for name in filter(which, names_in(self.folder)):
            if name.lower().endswith((SUFFIX, PART)):
                (self.folder / name).unlink(missing_ok=True)

    def read_own_greeting(self) -> SealedFile | None:
        """Return the header of the greeting under this participant's name."""
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
        """Return the file of this number and its content; None if neither it nor a copy exists.

        Raises FrameError if all files found are refused, and an OSError if the folder cannot be read.
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
                refused = refused or (None if name.endswith(PART) else error)  # a partial file may still be growing
        if refused:
            raise refused
        return None

    def receipts(self) -> Iterator[int]:
        """Yield the numbers of the authentic receipts; a synchroniser may leave older copies."""
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
            if error.errno in _NO_FILE:  # as any file of a stranger: the right one may be beside it
                raise FrameError("stranger", error.strerror or str(error)) from None
            raise
        sealed = parsed(data)
        sealed.check(kind, self.way, number, self.process)
        return sealed, sealed.content(self.secrets)


MAGIC, VERSION = b"fgfolder", 1
GREETING, MESSAGE, RECEIPT = b"G", b"M", b"R"

_HEADER = struct.Struct("<8sBc16sIIQ32sQ32s")
TAG_BYTES = 16
OVERHEAD = _HEADER.size + TAG_BYTES

CONTENT_BYTES_MAX = 2**31 - 1 - TAG_BYTES
"""Maximum bytes of a message: the limit of one sealing call of the library."""

_NONCE = bytes(12)
_PURPOSE = b"fedgossip 1 folder"


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction between two participants of a run: `run` is its name, 16 bytes."""

    run: bytes
    sender: NodeId
    receiver: NodeId

    @property
    def back(self) -> Direction:
        return Direction(self.run, self.receiver, self.sender)


@dataclass(frozen=True)
class PairSecrets:
    """Secrets shared by two participants; `later` is "" until the partner's key of this run is known."""

    first: bytes = field(repr=False)
    later: bytes = field(default=b"", repr=False)

    def of(self, kind: bytes) -> bytes:
        """Return the input of the key derivation for a kind of file."""
        return self.first if kind == GREETING else self.first + self.later


def agreed(secret: bytes, public: bytes) -> bytes:
    """Return the X25519 secret of two raw keys of 32 bytes.  Raises ValueError for a public key of low order."""
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))


def public_of(secret: bytes) -> bytes:
    """Return the public key of a raw X25519 secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def seal(kind: bytes, way: Direction, number: int, process: bytes, content: bytes, secrets: PairSecrets) -> bytes:
    """Return the file of one message.  Raises ValueError for a too long one."""
    if len(content) > CONTENT_BYTES_MAX:
        raise ValueError(f"a message of {len(content):,} bytes; the limit of a folder is {CONTENT_BYTES_MAX:,}")
    salt = os.urandom(32)
    about = kind, way.run, way.sender, way.receiver, number, process, len(content), salt
    header = _HEADER.pack(MAGIC, VERSION, *about)
    return header + AESGCM(_key(secrets.of(kind), salt, header)).encrypt(_NONCE, content, header)


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file with a parsed header; nothing in it is authentic before `content`."""

    kind: bytes
    way: Direction
    number: int
    process: bytes
    data: bytes = field(repr=False)

    def check(self, kind: bytes, way: Direction, number: int | None, process: bytes | None) -> None:
        """Raise FrameError, with a reason, for a file in another's place; None: not compared."""
        if self.way.run != way.run:
            raise FrameError("another_run", "a file of another run", "Give each run a folder of its own.")
        if self.way != way:
            text = f"a file from {self.way.sender} to {self.way.receiver}, not from {way.sender} to {way.receiver}"
            raise FrameError("misplaced", text)
        if self.kind != kind or (number is not None and self.number != number):
            raise FrameError("renumbered", f"file {self.number} in the place of file {number}")
        if process is not None and self.process != process:
            text = f"two processes write as participant {way.sender}, with its key"
            raise FrameError("twin", text, "Stop one of them; each participant has a folder and a key of its own.")

    def content(self, secrets: PairSecrets) -> bytes:
        """Return the content.  Raises FrameError if the file was changed after its sealing."""
        header = self.data[: _HEADER.size]
        try:
            key = _key(secrets.of(self.kind), header[-32:], header)
            return AESGCM(key).decrypt(_NONCE, self.data[_HEADER.size :], header)
        except InvalidTag:
            raise FrameError("seal", f"file {self.number} is not as participant {self.way.sender} sealed it") from None


def parsed(data: bytes) -> SealedFile:
    """Read a file's header.  Raises FrameError: `later_version`, `stranger` for another format, and `truncated`."""
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise FrameError("stranger", "a file of another format")
    if len(data) > len(MAGIC) and data[len(MAGIC)] > VERSION:
        text = f"a file of format {data[len(MAGIC)]}, this release reads {VERSION}"
        raise FrameError("later_version", text, "Give every participant the same fedgossip.")
    if len(data) < OVERHEAD:
        raise FrameError("truncated", f"a file of {len(data)} bytes")
    _, _, kind, run, sender, receiver, number, process, length, _ = _HEADER.unpack_from(data)
    if len(data) != OVERHEAD + length:
        raise FrameError("truncated", f"a file of {len(data):,} bytes; {OVERHEAD + length:,} were sealed")
    return SealedFile(kind, Direction(run, sender, receiver), number, process, data)


def _key(secrets: bytes, salt: bytes, header: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt, _PURPOSE + header).derive(secrets)


_LENGTH, _MARK = struct.Struct("<I"), struct.Struct("<cII")


def content_of(message: AnyMessage) -> bytes:
    header = packed(message).header
    return b"".join([_LENGTH.pack(len(header)), header, *chunks(message)])


def message_in(content: bytes, assembler: Assembler) -> AnyMessage:
    """Return the message of `content_of`.  Raises FrameError."""
    view = memoryview(content)
    if len(view) < _LENGTH.size:
        raise FrameError("truncated", f"a message of {len(view)} bytes")
    (length,) = _LENGTH.unpack_from(view)
    at = _LENGTH.size + length
    assembler.mark(_MARK.pack(b"H", 1, 0))
    message = assembler.header(bytes(view[_LENGTH.size : at]))
    index = 0
    while message is None:
        target = assembler.mark(_MARK.pack(b"C", 1, index))
        assert target is not None
        piece = view[at : at + len(target)]
        target[: len(piece)] = piece
        message = assembler.landed(len(piece))
        at, index = at + len(piece), index + 1
    if at != len(view):
        raise FrameError("truncated", f"{len(view) - at} bytes after the end of a message")
    return message
