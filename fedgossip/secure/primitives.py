"""The primitives, each named by its purpose: X25519, HKDF-SHA256, AES-256-CTR, ChaCha20-Poly1305, Ed25519.

What is hashed or signed is a `transcript`: the protocol's label, what it is for, and every part preceded by its length,
so that no two different lists of parts are the same bytes.  Keys are derived with the session in the salt and the
purpose and both ids in the info: no key has two uses.

Sources: RFC 7748 (X25519), 5869 (HKDF), 8439 (ChaCha20-Poly1305), 8032 (Ed25519); NIST SP 800-38A (CTR).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

LABEL = "fedgossip/secagg/1"

Entropy = Callable[[int], bytes]
"""A function that gives so many random bytes: os.urandom, but in tests."""

Sign = Callable[[bytes], bytes]
"""A function that signs with the participant's Ed25519 identity, whose secret stays where it is."""

Result = TypeVar("Result")

_PREFIX = len(LABEL).to_bytes(4, "big") + LABEL.encode()
_NONCE = bytes(12)  # each key seals one message
_COUNTER = bytes(16)


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
    pieces = [_PREFIX]
    for part in (purpose, *parts):
        value = part if isinstance(part, bytes) else str(part).encode()
        pieces += (len(value).to_bytes(4, "big"), value)
    return b"".join(pieces)


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    """Return the SHA-256 of that transcript, 32 bytes."""
    return hashlib.sha256(transcript(purpose, *parts)).digest()


def derive(salt: bytes, key: bytes, purpose: str, *parts: bytes | str | int) -> bytes:
    """Return 32 bytes of HKDF-SHA256 for this purpose alone."""
    return HKDF(SHA256(), 32, salt, transcript(purpose, *parts)).derive(key)


# --- agreement --------------------------------------------------------------------------------------------------------


def public_of(secret: bytes) -> bytes:
    """Return the X25519 public key of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def small_order(public: bytes) -> bool:
    """Return whether everybody agrees on zero with this key."""
    try:
        Agreement(bytes(32)).with_(public)
    except ValueError:
        return True
    return False


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
        return _once(both, lambda: self._key.exchange(X25519PublicKey.from_public_bytes(public)))

    def __repr__(self) -> str:
        return "<agreement>"


# --- streams and seals ------------------------------------------------------------------------------------------------


def keystream(key: bytes) -> CipherContext:
    """Return the AES-256-CTR stream of `key` from counter 0: what it makes of zeros is the keystream."""
    return Cipher(algorithms.AES(key), modes.CTR(_COUNTER)).encryptor()


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
    return key.public_key().public_bytes_raw(), key.sign


def verify(identity: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether the holder of this Ed25519 key signed `data`; False for any nonsense."""
    if _found is None:
        return _verified(identity, signature, data)
    named = identity, signature, hashlib.sha256(data).digest()
    return _once(named, lambda: _verified(identity, signature, data))


def _verified(identity: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# --- one process that is everybody ------------------------------------------------------------------------------------

REMEMBERED_MOST = 1 << 16
"""Results that are kept; then all are forgotten."""

_found: dict[tuple[bytes, ...], Any] | None = None
"""What was computed here; None where nothing is kept."""


@contextmanager
def remembering() -> Iterator[None]:
    """Compute each agreement of two keys, and each check of a signature, once in here.

    For simulations, in which one process is all participants and would do it for both ends, and for everybody who is
    shown a signature.  Never where they are real: what two agree on would stay in memory.
    """
    global _found  # noqa: PLW0603 of the whole process, as the simulation is
    before = _found
    _found = {} if before is None else before
    try:
        yield
    finally:
        _found = before


def _once(named: tuple[bytes, ...], compute: Callable[[], Result]) -> Result:
    assert _found is not None
    if named not in _found:
        if len(_found) >= REMEMBERED_MOST:
            _found.clear()
        _found[named] = compute()
    result: Result = _found[named]
    return result
