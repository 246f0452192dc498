"""One message as one sealed file: who sent it to whom, in which run, under which number.

    file      magic "fgfolder" | version u8 | kind u8 | run 16 | sender u32 | receiver u32 | number u64
              | process 32 | length u64 | salt 32 | AES-256-GCM of the content, with its tag of 16
    key       HKDF-SHA256(secrets, salt, "fedgossip 1 folder" + all before the content); used for this file alone

`secrets` is X25519(own key, partner's key), and behind it, in all files but a greeting, X25519(own key of this run,
partner's key of this run).  `process` is the sender's public key of this run: a greeting introduces it, under the
long-term keys alone, and all other files of the sender are bound to it.  All integers are little-endian.

The salt is fresh, so the fixed nonce is used once per key.  The whole header is authenticated, and its fields are
compared with the expected ones before: each cause of a refusal has its name.

Sources: RFC 7748 (X25519), RFC 5869 (HKDF), NIST SP 800-38D (GCM).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgossip.core.machine import NodeId
from fedgossip.core.wire import FrameError

MAGIC, VERSION = b"fgfolder", 1
GREETING, MESSAGE, RECEIPT = b"G", b"M", b"R"

_HEADER = struct.Struct("<8sBc16sIIQ32sQ32s")
TAG_BYTES = 16
OVERHEAD = _HEADER.size + TAG_BYTES

CONTENT_BYTES_MAX = 2**31 - 1 - TAG_BYTES
"""Maximum bytes of a message: what the library seals in one call."""

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
    """The secrets that two participants share; `later` is "" until the partner's key of this run is known."""

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
    """Return the file of one message.  Raises ValueError for one that is too long."""
    if len(content) > CONTENT_BYTES_MAX:
        raise ValueError(f"a message of {len(content):,} bytes; the limit of a folder is {CONTENT_BYTES_MAX:,}")
    salt = os.urandom(32)
    about = kind, way.run, way.sender, way.receiver, number, process, len(content), salt
    header = _HEADER.pack(MAGIC, VERSION, *about)
    return header + AESGCM(_key(secrets.of(kind), salt, header)).encrypt(_NONCE, content, header)


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file whose header was read; nothing in it is authentic before `content`."""

    kind: bytes
    way: Direction
    number: int
    process: bytes
    data: bytes = field(repr=False)

    def check(self, kind: bytes, way: Direction, number: int | None, process: bytes | None) -> None:
        """Raise FrameError, by name, for a file that stands in another's place; None: not compared."""
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
        """Return the content.  Raises FrameError where the file is not as its sender sealed it."""
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
