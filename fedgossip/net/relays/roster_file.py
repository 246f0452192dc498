"""The users of a relay: the permitted keys, and the handshake that proves one.

Permitted users, in a file or folder that may change meanwhile:

    endpoints.toml     the keys of its blocks, but those of [[revoked]]
    a roster           a public key a line; "KEY invites" for one that any key may call; # begins a comment
    a host's folder    hosting/NAME: the organiser's, its own member's and those of all admitted members

Invited persons have unknown keys; before their admission they may call only inviters.  A user proves its key:

    relay    FGR1, a fresh key of X25519 (32 bytes)
    peer     its request (1 byte), its public key (32), the target's key (32), proof (32)
    relay    + or -, and to a listener:  C and a token (32) for each call, a dot now and then

    LISTEN   announce calls to me                   CALL     connect me to the holder of this key
    ANSWER   connect me to the call with this token      ECHO     send back my bytes, up to ECHO_BYTES

The keys are CURVE's: the proof is a MAC under the X25519 secret of the peer's key and the relay's fresh key, over all
that the peer sends.  After `+` the relay passes CURVE's ciphertext on.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from zmq.utils import z85

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, PeerError, reason
from fedgossip.core.run_format import INVITE, ORGANISER_KEY, PEER_KEY
from fedgossip.net.endpoints import public_keys
from fedgossip.net.identity import Identity, check_public, raw

INVITES = "invites"
ROSTER_CHARACTERS = 1 << 20
"""Maximum length of a file of keys."""


@dataclass(frozen=True)
class Allowed:
    """Public keys, 32 bytes each: of permitted users of the relay, and of inviters, which any key may call."""

    keys: frozenset[bytes] = frozenset()
    inviting: frozenset[bytes] = frozenset()


class _GuestKey(msgspec.Struct):
    key: str


class _Party(msgspec.Struct):
    guests: list[_GuestKey] = []


_PARTY = msgspec.json.Decoder(_Party)


class Roll:
    """Raises ConfigError for a file that cannot be read at the start; later its last valid content applies."""

    def __init__(self, path: Path) -> None:
        self._path, self._changed = path, -1
        self._allowed = Allowed()
        self._read()

    def allowed(self) -> Allowed:
        """Return the present permissions."""
        try:
            if self._file.stat().st_mtime_ns != self._changed:
                self._read()
        except (OSError, ConfigError):
            pass
        return self._allowed

    @property
    def _file(self) -> Path:
        return self._path / INVITE if self._path.is_dir() else self._path

    def _read(self) -> None:
        found = _load_folder(self._path) if self._path.is_dir() else _load_file(self._path)
        self._changed = self._file.stat().st_mtime_ns
        self._allowed = found


def _load_folder(folder: Path) -> Allowed:
    try:
        party = from_json(_PARTY, outside_files.read_bytes(folder / INVITE))
    except (OSError, UnreadableError) as error:
        advice = "Name the folder of one run of `fedgossip host`, such as hosting/lan, or a file of keys."
        raise ConfigError(f"{folder / INVITE}: cannot be read: {reason(error)}", advice) from None
    organiser = raw(Identity.load(folder.parent / ORGANISER_KEY).public)
    keys = [Identity.load(folder / PEER_KEY).public, *(guest.key for guest in party.guests)]
    return Allowed(frozenset({organiser, *map(raw, keys)}), frozenset({organiser}))


def _load_file(path: Path) -> Allowed:
    lines = _lines(path)
    if not (lines and _is_key(lines[0].partition(" ")[0])):
        return Allowed(frozenset(map(raw, public_keys(path))))
    keys, inviting = set[bytes](), set[bytes]()
    for line in lines:
        key, _, word = line.partition(" ")
        check_public(key, str(path))
        if word.strip() not in ("", INVITES):
            text = f"{path}: {word.strip()[:40]!r} after a key is no word of a roster"
            raise ConfigError(text, f"Write KEY, or KEY {INVITES}.")
        keys.add(raw(key))
        inviting |= {raw(key)} if word.strip() else set()
    return Allowed(frozenset(keys), frozenset(inviting))


def _lines(path: Path) -> list[str]:
    """Return the lines of a file with content; a key may begin with #, but not with "# "."""
    try:
        text = outside_files.read_text(outside_files.resolve(path), 4 * ROSTER_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise ConfigError(f"{path}: {reason}", "Name an endpoints.toml, a roster, or the folder of a host.") from None
    if len(text) > ROSTER_CHARACTERS:
        advice = f"Up to {ROSTER_CHARACTERS:,} are read."
        raise ConfigError(f"{path}: too many characters for a list of keys", advice)
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and line != "#" and not line.startswith("# ")]


def _is_key(word: str) -> bool:
    try:
        check_public(word, "")
    except ConfigError:
        return False
    return True


MAGIC = b"FGR1"
GREETING_BYTES, REQUEST_BYTES, TOKEN_BYTES = 36, 97, 32
LISTEN, CALL, ANSWER, ECHO = b"L", b"C", b"A", b"E"
YES, NO, CALLED, ALIVE = b"+", b"-", b"C", b"."
NO_TARGET = bytes(TOKEN_BYTES)

ECHO_BYTES = 8 << 20
"""Maximum bytes of one echo."""

_PURPOSE = b"fedgossip 1 proof of a key to a relay"


@dataclass(frozen=True)
class RelayRequest:
    """`key` and `target` are 32 bytes each; the target of an answer is a token."""

    want: bytes
    key: bytes
    target: bytes


def greeting(secret: X25519PrivateKey) -> bytes:
    """Return the greeting of a relay."""
    return MAGIC + secret.public_key().public_bytes_raw()


def request(identity: Identity, greeted: bytes, want: bytes, target: bytes) -> bytes:
    """Return the answer to a relay's greeting.  Raises PeerError if the greeting is not a relay's."""
    if len(greeted) != GREETING_BYTES or not greeted.startswith(MAGIC):
        raise PeerError("the server is no relay of fedgossip", "Is `fedgossip relay` running there?")
    theirs, ours = greeted[len(MAGIC) :], z85.decode(identity.secret)
    try:
        shared = X25519PrivateKey.from_private_bytes(ours).exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise PeerError("the relay's key is none", "Is `fedgossip relay` running there?") from None
    content = want + z85.decode(identity.public) + target
    return content + _proof(shared, content, theirs)


def verified_request(secret: X25519PrivateKey, content: bytes) -> RelayRequest | None:
    """Return the request if its sender has the secret of the key in it; None otherwise."""
    want, key, target, proof = content[:1], content[1:33], content[33:65], content[65:]
    if len(content) != REQUEST_BYTES or want not in (LISTEN, CALL, ANSWER, ECHO):
        return None
    try:
        shared = secret.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:  # a key of small order: its shared secret is public
        return None
    ours = secret.public_key().public_bytes_raw()
    return RelayRequest(want, key, target) if hmac.compare_digest(_proof(shared, content[:65], ours), proof) else None


def _proof(shared: bytes, content: bytes, relay: bytes) -> bytes:
    key = HKDF(SHA256(), 32, relay, _PURPOSE).derive(shared)
    return hmac.digest(key, content, "sha256")
