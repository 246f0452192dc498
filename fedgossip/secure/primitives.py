"""The primitives, each named by its purpose: X25519, HKDF-SHA256, AES-256-CTR, ChaCha20-Poly1305, Ed25519.

Hashed and signed data are a `transcript`: label, purpose, and length-prefixed parts.  Keys have the session in the
salt, purpose and both ids in the info: no key has two uses.

Sources: RFC 7748 (X25519), 5869 (HKDF), 8439 (ChaCha20-Poly1305), 8032 (Ed25519); NIST SP 800-38A (CTR).

**Simulations** play all participants, and skip work that only separates them: a pair's key is a hash of its public
keys; derivations, draws and seals are reused at the other end; signatures and messages of this process need no check.
The bytes are those of real participants with the same keys.  Never use it with real participants: it hides nothing, and
keeps keys in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import repeat
from typing import Any, NoReturn, TypeVar

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

LABEL = "fedgossip/secagg/1"

Entropy = Callable[[int], bytes]
"""A function that returns the requested number of random bytes: os.urandom, except in tests."""

Sign = Callable[[bytes], bytes]
"""A function that signs with the participant's Ed25519 identity, without giving away its secret."""

_NONCE = bytes(12)  # each key seals one message
_COUNTER = modes.CTR(bytes(16))


class Secret:
    """Bytes that no repr, comparison, copy or pickle shows; `erase` overwrites them here, not Python's or OpenSSL's
    copies.
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
    pieces = [_LABELLED, encode_part(purpose)]
    for part in parts:
        if isinstance(part, bytes):
            size = len(part)
            pieces += (_SIZES[size] if size < _SHORT else size.to_bytes(4, "big"), part)
        else:
            pieces.append(encode_part(part))
    return b"".join(pieces)


@lru_cache(maxsize=4096, typed=True)  # purposes and ids: nothing secret is text or a number
def encode_part(part: str | int) -> bytes:
    """Return the bytes of a text or an integer in a transcript; appended to a transcript they are one further part."""
    value = str(part).encode()
    return len(value).to_bytes(4, "big") + value


_LABELLED = encode_part(LABEL)
_SHORT = 256
_SIZES = [size.to_bytes(4, "big") for size in range(_SHORT)]


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    """Return the SHA-256 of that transcript, 32 bytes."""
    return hashlib.sha256(transcript(purpose, *parts)).digest()


def derive(salt: bytes, key: bytes, purpose: str, *parts: str | int) -> bytes:
    """Return 32 bytes of HKDF-SHA256 for this purpose alone."""
    return derived(salt, [key], [(transcript(purpose, *parts),)])[0][0]


def derived(salt: bytes, keys: Sequence[bytes], infos: Sequence[tuple[bytes, ...]]) -> list[tuple[bytes, ...]]:
    """Return 32 bytes of HKDF-SHA256 for each info of each key, the transcript of a purpose.  The salt is public.

    RFC 5869, sections 2.2 and 2.3, of one block each; HMAC written out (RFC 2104): blocks padded once take half the
    time.
    """
    salt = salt if len(salt) <= _BLOCK else _sha256(salt).digest()
    of_salt = int.from_bytes(salt, "big") << 8 * (_BLOCK - len(salt))
    salt_inner, salt_outer = (of_salt ^ _INNER).to_bytes(_BLOCK, "big"), (of_salt ^ _OUTER).to_bytes(_BLOCK, "big")
    found = []
    for key, purposes in zip(keys, infos, strict=True):
        pseudorandom = _sha256(salt_outer + _sha256(salt_inner + key).digest()).digest()
        number = int.from_bytes(pseudorandom, "big") << 256
        inner, outer = (number ^ _INNER).to_bytes(_BLOCK, "big"), (number ^ _OUTER).to_bytes(_BLOCK, "big")
        found.append(tuple([_sha256(outer + _sha256(inner + info + b"\x01").digest()).digest() for info in purposes]))
    return found


_sha256 = hashlib.sha256
_BLOCK = 64
_INNER, _OUTER = (int.from_bytes(bytes([pad]) * _BLOCK, "big") for pad in (0x36, 0x5C))


# --- agreement --------------------------------------------------------------------------------------------------------


def public_of(secret: bytes) -> bytes:
    """Return the X25519 public key of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def small_order(public: bytes) -> bool:
    """Return whether every agreement with this key gives zero, or it is invalid."""
    return len(public) != 32 or int.from_bytes(public, "little") & _COORDINATE in _SMALL


_COORDINATE = (1 << 255) - 1
"""The significant bits of a key; RFC 7748, section 5."""

_FIELD = (1 << 255) - 19
_OF_ORDER_8 = (
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
)
_SMALL = frozenset((0, 1, _FIELD - 1, _FIELD, _FIELD + 1, *_OF_ORDER_8))
"""The points of order 1, 2, 4 and 8 of the curve and of its twist, in every way to write them with 255 bits."""


class Agreement:
    """One X25519 secret, ready for many agreements.  `public`: its public key, if known."""

    __slots__ = ("_public", "_secret", "_x25519")

    def __init__(self, secret: bytes, public: bytes = b"") -> None:
        self._secret, self._public = secret, public
        self._x25519: X25519PrivateKey | None = None

    def agree(self, public: bytes) -> bytes:
        """Return the shared 32 bytes.  Raises ValueError if they are zero: `public` is of small order."""
        if memory() is None:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        if small_order(public):
            raise ValueError("the shared key would be zero: a public key of small order")
        return self._simulated([public])[0]

    def keys(
        self, publics: Sequence[bytes], salt: bytes, infos: Sequence[tuple[bytes, ...]]
    ) -> list[tuple[bytes, ...]]:
        """Return the keys for the purposes in `infos`, the same order at both ends, from each public key, none of small
        order.
        """
        if memory() is None:
            return derived(salt, [self.agree(public) for public in publics], infos)
        own = self._own
        names = [(own, public, salt, each) if own < public else (public, own, salt, each)
                 for public, each in zip(publics, infos, strict=True)]  # fmt: skip

        def compute(places: Sequence[int]) -> list[tuple[bytes, ...]]:
            shared = self._simulated([publics[at] for at in places])
            return derived(salt, shared, [infos[at] for at in places])

        return each_once(names, compute)

    def _simulated(self, publics: Sequence[bytes]) -> list[bytes]:
        own = self._own
        pairs = [(own, public) if own < public else (public, own) for public in publics]
        return [_sha256(_AGREEMENT + low + _SIZES[32] + high).digest() for low, high in pairs]

    @property
    def _key(self) -> X25519PrivateKey:
        self._x25519 = self._x25519 or X25519PrivateKey.from_private_bytes(self._secret)
        return self._x25519

    @property
    def _own(self) -> bytes:
        self._public = self._public or self._key.public_key().public_bytes_raw()
        return self._public

    def __repr__(self) -> str:
        return "<agreement>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is neither copied nor pickled")


_AGREEMENT = transcript("simulated agreement") + _SIZES[32]


# --- streams and seals ------------------------------------------------------------------------------------------------


def keystream(key: bytes) -> CipherContext:
    """Return the AES-256-CTR stream of `key` from counter 0: its encryption of zeros is the keystream."""
    return Cipher(algorithms.AES(key), _COUNTER).encryptor()


SHORT_MOST = 4096
"""Maximum number of bytes of a stream computed as a whole."""

_ZEROS = memoryview(bytes(SHORT_MOST))


def short_streams(keys: Sequence[bytes], size: int) -> list[bytes]:
    """Return the first bytes of the stream of each key, SHORT_MOST at most."""
    zeros = _ZEROS[:size]
    if memory() is None:
        return [keystream(key).update(zeros) for key in keys]
    names = [(key, size) for key in keys]
    return each_once(names, lambda places: [keystream(keys[at]).update(zeros) for at in places], size)


def seal(keys: Sequence[bytes], plains: Sequence[bytes], bound: Sequence[bytes]) -> list[bytes]:
    """Return each of `plains` sealed for the one holder of its key; opening it requires the same `bound`."""
    sealed = [ChaCha20Poly1305(k).encrypt(_NONCE, plain, b) for k, plain, b in zip(keys, plains, bound, strict=True)]
    if here := memory():
        here.keep_all([*zip(keys, sealed, bound, strict=True)], plains)
    return sealed


def unseal(keys: Sequence[bytes], sealed: Sequence[bytes], bound: Sequence[bytes]) -> list[bytes | None]:
    """Return the sealed content; None for another key or `bound`."""
    names = [*zip(keys, sealed, bound, strict=True)]
    here = memory()
    known: list[bytes | None] = here.take_all(names) if here else [None] * len(names)
    return [_unsealed(*name) if plain is None else plain for name, plain in zip(names, known, strict=True)]


def _unsealed(key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, bound)
    except InvalidTag:
        return None


# --- signatures -------------------------------------------------------------------------------------------------------


def signer(seed: bytes) -> tuple[bytes, Sign]:
    """Return the identity, an Ed25519 public key, of 32 secret bytes, and its signing function."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    identity = key.public_key().public_bytes_raw()

    def sign(data: bytes) -> bytes:
        signature = key.sign(data)
        if here := memory():
            here.keep((identity, signature, data), True)
        return signature

    return identity, sign


def verify(identity: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether the holder of this Ed25519 key signed `data`; False for invalid input."""
    if (here := memory()) is None:
        return _verified(identity, signature, data)
    known: bool | None = here.get((identity, signature, data))
    if known is None:
        here.keep((identity, signature, data), known := _verified(identity, signature, data))
    return known


def _verified(identity: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


Result = TypeVar("Result")
Name = Hashable
"""The computation and its arguments."""

REMEMBERED_BYTES = 128 << 20
"""Maximum number of bytes of stored results, by their estimate; beyond it, all are dropped."""

ENTRY_BYTES = 400
"""Estimated size of a short result with its name."""


class Remembered:
    """Results by name; a caller without a result computes it."""

    __slots__ = ("_bytes", "_found")

    def __init__(self) -> None:
        self._found: dict[Name, Any] = {}
        self._bytes = 0

    def get(self, name: Name) -> Any:
        """Return the stored value; None without one."""
        return self._found.get(name)

    def keep(self, name: Name, value: object, size: int = 0) -> None:
        """Store a value, never None, of `size` bytes in addition to those of any entry."""
        self._bytes += ENTRY_BYTES + size
        if self._bytes > REMEMBERED_BYTES:
            self._found.clear()
            self._bytes = ENTRY_BYTES + size
        self._found[name] = value

    def take(self, name: Name, size: int = 0) -> Any:
        """Return the stored value of this size and drop it, as no later request needs it.  None without one."""
        if (value := self._found.pop(name, None)) is not None:
            self._bytes -= ENTRY_BYTES + size
        return value

    def keep_all(self, names: Sequence[Name], values: Sequence[object], size: int = 0) -> None:
        """Store values, none of them None, of `size` bytes each."""
        self._bytes += (ENTRY_BYTES + size) * len(names)
        if self._bytes > REMEMBERED_BYTES:
            self._found.clear()
            self._bytes = (ENTRY_BYTES + size) * len(names)
        self._found.update(zip(names, values, strict=True))

    def take_all(self, names: Sequence[Name], size: int = 0) -> list[Any]:
        """Return and drop the stored values of the names, each of this size; None for missing ones."""
        values = list(map(self._found.pop, names, repeat(None)))
        self._bytes -= (ENTRY_BYTES + size) * (len(values) - values.count(None))
        return values


_memory: Remembered | None = None


def memory() -> Remembered | None:
    """Return the memory of a process that plays all participants; None in any other."""
    return _memory


@contextmanager
def remembering() -> Iterator[None]:
    """Skip, in this process with all participants, the work that only separates them."""
    global _memory  # noqa: PLW0603 of the whole process, as the simulation is
    before = _memory
    _memory = before or Remembered()
    try:
        yield
    finally:
        _memory = before


def each_once(names: Sequence[Name], compute: Callable[[Sequence[int]], list[Result]], size: int = 0) -> list[Result]:
    """Return the results for `names`, `size` bytes each; in a simulation both ends of a pair share one computation."""
    if _memory is None:
        return compute(range(len(names)))
    found: list[Result] = _memory.take_all(names, size)
    if missing := [place for place, value in enumerate(found) if value is None]:
        computed = compute(missing)
        for place, value in zip(missing, computed, strict=True):
            found[place] = value
        _memory.keep_all([names[place] for place in missing], computed, size)
    return found


def once_for(thing: object, facts: Name, compute: Callable[[], Result]) -> Result:
    """Return the result for a constant object and these facts; as `once`, without hashing the object."""
    if _memory is None:
        return compute()
    name = id(thing), facts
    found: tuple[object, Result] | None = _memory.get(name)
    if found is None or found[0] is not thing:
        _memory.keep(name, found := (thing, compute()))  # the thing too: its id stays unique while it exists
    return found[1]


def once(name: Name, compute: Callable[[], Result]) -> Result:
    """Return the result; if one process plays all participants, the first request for this name computes it."""
    if _memory is None:
        return compute()
    found: Result | None = _memory.get(name)
    if found is None:
        found = compute()
        _memory.keep(name, found)
    return found
