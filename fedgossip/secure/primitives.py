"""The primitives, each named by its purpose: X25519, HKDF-SHA256, AES-256-CTR, ChaCha20-Poly1305, Ed25519.

What is hashed or signed is a `transcript`: the protocol's label, what it is for, and every part preceded by its length,
so that no two different lists of parts are the same bytes.  Keys are derived with the session in the salt and the
purpose and both ids in the info: no key has two uses.

Sources: RFC 7748 (X25519), 5869 (HKDF), 8439 (ChaCha20-Poly1305), 8032 (Ed25519); NIST SP 800-38A (CTR).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

LABEL = "fedgossip/secagg/1"

Entropy = Callable[[int], bytes]
"""A function that gives so many random bytes: os.urandom, but in tests."""

Sign = Callable[[bytes], bytes]
"""A function that signs with the participant's Ed25519 identity, whose secret stays where it is."""

Result = TypeVar("Result")

_NONCE = bytes(12)  # each key seals one message
_COUNTER = modes.CTR(bytes(16))


class Secret:
    """Bytes that no repr, comparison, copy or pickle shows.

    `erase` overwrites them here; copies that Python or OpenSSL made on the way are freed, not overwritten.
    """

    __slots__ = ("_bytes",)

    def __init__(self, value: bytes) -> None:
        self._bytes = bytearray(value)

    def read(self) -> bytes:
        """Return the bytes.  Raises ValueError once they are erased."""
        if not self._bytes:
            raise ValueError("this secret is erased")
        return bytes(self._bytes)

    def erase(self) -> None:
        self._bytes[:] = bytes(len(self._bytes))
        self._bytes.clear()

    @property
    def erased(self) -> bool:
        return not self._bytes

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is neither copied nor pickled")


def transcript(purpose: str, *parts: bytes | str | int) -> bytes:
    """Return the label, the purpose and the parts, each with its length; integers as text."""
    pieces = [_LABELLED, named(purpose)]
    for part in parts:
        if isinstance(part, bytes):
            size = len(part)
            pieces += (_SIZES[size] if size < _SHORT else size.to_bytes(4, "big"), part)
        else:
            pieces.append(named(part))
    return b"".join(pieces)


@lru_cache(maxsize=4096, typed=True)  # purposes and ids: nothing secret is text or a number
def named(part: str | int) -> bytes:
    """Return what a text or an integer is in a transcript; behind a transcript it is one part more of it."""
    value = str(part).encode()
    return len(value).to_bytes(4, "big") + value


_LABELLED = named(LABEL)
_SHORT = 256
_SIZES = [size.to_bytes(4, "big") for size in range(_SHORT)]


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    """Return the SHA-256 of that transcript, 32 bytes."""
    return hashlib.sha256(transcript(purpose, *parts)).digest()


def derive(salt: bytes, key: bytes, purpose: str, *parts: str | int) -> bytes:
    """Return 32 bytes of HKDF-SHA256 for this purpose alone."""
    info = _info(purpose, *parts)
    if _found is None:
        return _derived(salt, key, info)
    found: bytes | None = _found.get((salt, key, info))
    return found or _kept((salt, key, info), _derived(salt, key, info))


@lru_cache(maxsize=1 << 14, typed=True)
def _info(purpose: str, *parts: str | int) -> bytes:
    """Return the transcript of what is not secret; pairs of participants are the same round after round."""
    return transcript(purpose, *parts)


def _derived(salt: bytes, key: bytes, info: bytes) -> bytes:
    """RFC 5869, sections 2.2 and 2.3, of one block: extract, expand."""
    return hmac.digest(hmac.digest(salt, key, "sha256"), info + b"\x01", "sha256")


# --- agreement --------------------------------------------------------------------------------------------------------


def public_of(secret: bytes) -> bytes:
    """Return the X25519 public key of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def small_order(public: bytes) -> bool:
    """Return whether everybody agrees on zero with this key."""
    if _found is None:
        return _small_order(public)
    found: bool | None = _found.get((b"small order", public))
    return _kept((b"small order", public), _small_order(public)) if found is None else found


def _small_order(public: bytes) -> bool:
    try:
        _ANYBODY.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return True
    return False


_ANYBODY = X25519PrivateKey.from_private_bytes(bytes(32))


class Agreement:
    """One X25519 secret, ready for many agreements."""

    __slots__ = ("_key", "_public")

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self._public = b""

    def with_(self, public: bytes) -> bytes:
        """Return the shared 32 bytes.  Raises ValueError where they are zero: `public` is of small order."""
        if _found is None:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        self._public = self._public or self._key.public_key().public_bytes_raw()
        both = (self._public, public) if self._public < public else (public, self._public)
        found: bytes | None = _found.get(both)
        return found or _kept(both, _simulated_agreement(*both))

    def __repr__(self) -> str:
        return "<agreement>"


def _simulated_agreement(one: bytes, other: bytes) -> bytes:
    if small_order(one) or small_order(other):
        raise ValueError("the shared key would be zero: a public key of small order")
    return hashlib.sha256(_AGREEMENT + one + _SIZES[len(one)] + other).digest()


_AGREEMENT = transcript("simulated agreement") + _SIZES[32]


# --- streams and seals ------------------------------------------------------------------------------------------------


def keystream(key: bytes) -> CipherContext:
    """Return the AES-256-CTR stream of `key` from counter 0: what it makes of zeros is the keystream."""
    return Cipher(algorithms.AES(key), _COUNTER).encryptor()


SHORT_MOST = 4096
"""Bytes of a stream that is taken whole."""

_ZEROS = memoryview(bytes(SHORT_MOST))


def short_stream(key: bytes, size: int) -> bytes:
    """Return the first bytes of a stream, SHORT_MOST at most."""
    if _found is None:
        return keystream(key).update(_ZEROS[:size])
    found: bytes | None = _found.pop((key, size), None)  # either end takes it once
    return found or _kept((key, size), keystream(key).update(_ZEROS[:size]))


def seal(key: bytes, plain: bytes, bound: bytes) -> bytes:
    """Return `plain` sealed for the one holder of `key`, who must name the same `bound`."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, plain, bound)


def unseal(key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    """Return the sealed bytes; None where they were not sealed with this key and `bound`."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, bound)
    except InvalidTag:
        return None


# --- signatures -------------------------------------------------------------------------------------------------------


def signer(seed: bytes) -> tuple[bytes, Sign]:
    """Return the identity, an Ed25519 public key, of 32 secret bytes, and what signs for it."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    identity = key.public_key().public_bytes_raw()

    def sign(data: bytes) -> bytes:
        signature = key.sign(data)
        if _found is not None:
            _once((identity, signature, data), lambda: True)
        return signature

    return identity, sign


def verify(identity: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether the holder of this Ed25519 key signed `data`; False for any nonsense."""
    if _found is None:
        return _verified(identity, signature, data)
    return _once((identity, signature, data), lambda: _verified(identity, signature, data))


def _verified(identity: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# --- one process that is everybody ------------------------------------------------------------------------------------

REMEMBERED_MOST = 1 << 16
"""Results that are kept; then all are forgotten."""

_found: dict[tuple[Hashable, ...], Any] | None = None
"""What was computed here; None where nothing is kept."""


@contextmanager
def remembering() -> Iterator[None]:
    """Spare a process that is all participants the work that only serves to keep them apart.

    What two agree on is a hash of their public keys in here, in place of an X25519 agreement: nobody is there from whom
    to hide it; keys of small order are refused all the same.  A key is derived once for both ends.  A signature that
    was made in here is known to be right; any other one, and any other content, is checked, once for all who see it.
    What a frame says that was packed in here is known, and so is the stream of a mask that its other end will take.
    Never where participants are real: this hides nothing, and keeps keys in memory.
    """
    global _found  # noqa: PLW0603 of the whole process, as the simulation is
    before = _found
    _found = {} if before is None else before
    try:
        yield
    finally:
        _found = before


def once(name: tuple[Hashable, ...], compute: Callable[[], Result]) -> Result:
    """Return what is computed; where one process is everybody it is computed for the first who asks for this name."""
    return compute() if _found is None else _once(name, compute)


def keep(name: tuple[Hashable, ...], value: object) -> None:
    """Keep a value, never None, for `kept`, where one process is everybody."""
    if _found is not None:
        _kept(name, value)


def kept(name: tuple[Hashable, ...]) -> Any:
    """Return what was kept under this name; None where nothing is."""
    return None if _found is None else _found.get(name)


def forget(name: tuple[Hashable, ...]) -> None:
    """Let go of what was kept: nobody else will ask for it."""
    if _found is not None:
        _found.pop(name, None)


def _once(name: tuple[Hashable, ...], compute: Callable[[], Result]) -> Result:
    assert _found is not None
    found: Result | None = _found.get(name)
    return _kept(name, compute()) if found is None else found


def _kept(name: tuple[Hashable, ...], value: Result) -> Result:
    assert _found is not None
    if len(_found) >= REMEMBERED_MOST:
        _found.clear()
    _found[name] = value
    return value
