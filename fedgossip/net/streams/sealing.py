"""The keys of a sealed stream, agreed inside CURVE, and the sealing of its records.  Pure: no sockets, no clock.

    caller    offer      version, its suites, a fresh X25519 share                             inside CURVE
    callee    answer     version, the suite, a fresh X25519 share, a ticket, a port             inside CURVE
    both      keys       HKDF-SHA256(X25519(shares), salt = SHA-256(transcript)): one key for each direction
    record    mark, length, AEAD(body); the nonce is the record's number, mark and length are associated data

The transcript is the label with the version, both long-term keys, the offer and the answer, authenticated by CURVE;
fresh shares keep data secret even if long-term keys leak.  The ticket identifies the connection; it is not secret.

Ends without long-term keys (measurements) copy their records; an end with keys accepts no such offer.

Nonces count from 0 and are not sent: a repeated, missing, cut, moved or foreign record does not open, nor does any
later one.

Sources: RFC 7748 (X25519), RFC 5869 (HKDF), NIST SP 800-38D (GCM), RFC 8439 (ChaCha20-Poly1305).
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgossip.base.errors import ConfigError
from fedgossip.core.wire import FrameError
from fedgossip.net.identity import raw

VERSION = 2
LABEL = b"fedgossip/links/1"

KEY_BYTES, TAG_BYTES, TICKET_BYTES = 32, 16, 16

RECORDS_MAX = 2**32
"""Maximum number of records under one key; then a new greeting of the link makes new keys."""

UNSEALED = 0
"""In place of a suite, in the answer of an end without keys."""

_OFFER = struct.Struct("<BB32s")
_ANSWER = struct.Struct("<BB32s16sH")
_NONCE = struct.Struct("<IQ")


class Suite(IntEnum):
    """The ciphers of records; the number is used in offers and answers."""

    AES_256_GCM = 1
    CHACHA20_POLY1305 = 2

    @property
    def words(self) -> str:
        return {1: "AES-256-GCM", 2: "ChaCha20-Poly1305"}[self]


@cache
def has_aes() -> bool:
    """Return whether the processor has instructions for AES; if the system does not report it, whether its kind usually
    has.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.machine().lower() in ("arm64", "x86_64", "amd64")
    lines = (line for line in flags.splitlines() if line.lower().startswith(("flags", "features")))
    return "aes" in next(lines, "").split()


def suites_here() -> frozenset[Suite]:
    """Return the suites to offer: without AES instructions AES is slow, and its timing leaks the key."""
    return frozenset(Suite) if has_aes() else frozenset({Suite.CHACHA20_POLY1305})


def suites_wanted() -> frozenset[Suite]:
    """Return the suites of this process, from FEDGOSSIP_LINKS; none for `curve`.  Raises ConfigError."""
    asked = os.environ.get("FEDGOSSIP_LINKS", "sealed")
    meant = {"sealed": suites_here(), "curve": frozenset[Suite]()} | {
        suite.words.lower(): frozenset({suite}) for suite in Suite
    }
    if asked not in meant:
        raise ConfigError(f"FEDGOSSIP_LINKS = {asked!r}", f"It is one of {', '.join(meant)}.")
    return meant[asked]


def chosen(ours: Collection[Suite], theirs: Collection[Suite]) -> Suite | None:
    """Return the suite of a connection: AES if both have it; None without a common one."""
    return min(set(ours) & set(theirs), default=None)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The shared state of both ends after offer and answer."""

    suite: Suite | None
    """None: nothing is sealed."""
    ticket: bytes
    to_callee: bytes = field(repr=False)
    to_caller: bytes = field(repr=False)

    def make_caller_pair(self) -> tuple[Sealer, Opener]:
        """Return the caller's sealer and opener."""
        return Sealer(self.suite, self.to_callee), Opener(self.suite, self.to_caller)

    def make_callee_pair(self) -> tuple[Sealer, Opener]:
        """Return the callee's sealer and opener."""
        return Sealer(self.suite, self.to_caller), Opener(self.suite, self.to_callee)


class StreamOffer:
    """A caller's offer.  `text` is sent to the callee inside CURVE; `keys` takes its answer."""

    def __init__(self, suites: Collection[Suite]) -> None:
        """Empty `suites`: the offer of an end without keys."""
        self._suites = frozenset(suites)
        self._secret = X25519PrivateKey.generate()
        self.text = _OFFER.pack(VERSION, _mask(self._suites), self._secret.public_key().public_bytes_raw())

    def keys(self, answer: bytes, caller: str, callee: str) -> tuple[Agreed, int]:
        """Return the keys, and the port to call; `caller` and `callee`: long-term keys, as text.

        Raises FrameError for an invalid answer, or a suite that was not offered.
        """
        if len(answer) != _ANSWER.size:
            raise FrameError("sealing", f"an answer of {len(answer)} bytes to an offer of sealed records")
        version, suite, share, ticket, port = _ANSWER.unpack(answer)
        if version != VERSION or suite not in (self._suites or {UNSEALED}):
            raise FrameError("sealing", f"an answer of version {version} with suite {suite}, which was not offered")
        meant = Suite(suite) if self._suites else None
        return _agreed(self._secret, share, meant, ticket, self.text, answer, caller, callee), port


def answered(
    offer: bytes, suites: Collection[Suite], port: int, caller: str, callee: str
) -> tuple[bytes, Agreed | None]:
    """Return the callee's answer (empty: no agreement), and the keys.

    Empty `suites`: an end without keys.  Raises FrameError for an invalid offer, or one without a suite of this end.
    """
    if len(offer) != _OFFER.size:
        raise FrameError("sealing", f"an offer of sealed records of {len(offer)} bytes")
    version, mask, share = _OFFER.unpack(offer)
    if version != VERSION:
        return b"", None
    theirs = {suite for suite in Suite if mask & 1 << suite}
    suite = chosen(suites, theirs)
    if suite is None and (suites or theirs):
        ours = " and ".join(one.words for one in sorted(suites)) or "nothing"
        text = f"records sealed by {' or '.join(one.words for one in sorted(theirs)) or 'nothing'}; this end has {ours}"
        raise FrameError("suite", text, "Leave FEDGOSSIP_LINKS out at both.")
    secret, ticket = X25519PrivateKey.generate(), secrets.token_bytes(TICKET_BYTES)
    answer = _ANSWER.pack(VERSION, suite or UNSEALED, secret.public_key().public_bytes_raw(), ticket, port)
    return answer, _agreed(secret, share, suite, ticket, offer, answer, caller, callee)


def _mask(suites: Collection[Suite]) -> int:
    return sum(1 << suite for suite in suites)


def _agreed(
    secret: X25519PrivateKey,
    share: bytes,
    suite: Suite | None,
    ticket: bytes,
    offer: bytes,
    answer: bytes,
    caller: str,
    callee: str,
) -> Agreed:
    try:
        shared = secret.exchange(X25519PublicKey.from_public_bytes(share))
    except ValueError:  # a point of small order: all would be sealed with a public key
        raise FrameError("sealing", "a share of X25519 that is none") from None
    transcript = LABEL + bytes([VERSION]) + raw(caller) + raw(callee) + offer + answer
    salt = hashlib.sha256(transcript).digest()
    keys = [HKDF(SHA256(), KEY_BYTES, salt, LABEL + way).derive(shared) for way in (b" to callee", b" to caller")]
    return Agreed(suite, ticket, *keys)


class WornOutError(Exception):
    """A key has sealed RECORDS_MAX records."""


class _Copying:
    """Replaces a cipher if nothing is sealed."""

    def encrypt_into(self, _nonce: bytes, body: bytes | memoryview, _head: object, into: memoryview) -> None:
        into[: len(body)] = body

    def decrypt_into(self, _nonce: bytes, sealed: memoryview, _head: object, into: memoryview | bytearray) -> None:
        into[:] = sealed[:-TAG_BYTES]


class _Numbered:
    """One direction's cipher, and the number of its next record."""

    def __init__(self, suite: Suite | None, key: bytes) -> None:
        self._cipher: AESGCM | ChaCha20Poly1305 | _Copying
        if suite is None:
            self._cipher = _Copying()
        else:
            self._cipher = (AESGCM if suite == Suite.AES_256_GCM else ChaCha20Poly1305)(key)
        self.records = 0

    def _nonce(self) -> bytes:
        if self.records >= RECORDS_MAX:
            raise WornOutError
        return _NONCE.pack(0, self.records)


class Sealer(_Numbered):
    """Seals the records of one direction."""

    def seal_into(self, body: bytes | memoryview, head: bytes | bytearray, into: memoryview) -> None:
        """Write the sealed body, TAG_BYTES longer, into `into`.  Raises WornOutError; then nothing is written."""
        self._cipher.encrypt_into(self._nonce(), body, head, into)
        self.records += 1


class Opener(_Numbered):
    """Opens the records of one direction, each once and in the order in which they were sealed."""

    def open_into(self, sealed: memoryview, head: bytes | bytearray, into: memoryview | bytearray) -> None:
        """Write the body into `into`.  Raises FrameError for any record other than the next; `into` is then
        undefined.
        """
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, head, into)
        except (InvalidTag, WornOutError):
            raise SealBrokenError(
                f"record {self.records} does not open: changed, repeated, out of order, or of another connection"
            ) from None
        self.records += 1


class SealBrokenError(FrameError):
    """A record does not open; the rest of its stream cannot be trusted."""

    def __init__(self, text: str) -> None:
        super().__init__("seal", text)
