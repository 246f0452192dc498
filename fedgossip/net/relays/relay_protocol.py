"""The handshake of a relay and its users before a call is connected: the user's identity, proved by its key.

    relay    FGR1, a fresh key of X25519 (32 bytes)
    peer     its request (1 byte), its public key (32), the target's key (32), proof (32)
    relay    + or -, and to a listener:  C and a token (32) for each call, a dot now and then

    LISTEN   announce calls to me                   CALL     connect me to the holder of this key
    ANSWER   connect me to the call with this token      ECHO     send back my bytes, up to ECHO_BYTES

The keys are those of CURVE, so no other secret is needed: the proof is a MAC under the X25519 secret of the peer's
secret key and the relay's fresh key, over all that the peer sends.  After `+` the relay passes bytes on and decrypts
none: the two ends speak CURVE with each other.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from zmq.utils import z85

from fedgossip.base.errors import PeerError
from fedgossip.net.identity import Identity

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
    """Return the first words of a relay."""
    return MAGIC + secret.public_key().public_bytes_raw()


def request(identity: Identity, greeted: bytes, want: bytes, target: bytes) -> bytes:
    """Return the answer to a relay's first words.  Raises PeerError for words of something else."""
    if len(greeted) != GREETING_BYTES or not greeted.startswith(MAGIC):
        raise PeerError("what answers is no relay of fedgossip", "Is `fedgossip relay` running there?")
    theirs, ours = greeted[len(MAGIC) :], z85.decode(identity.secret)
    try:
        shared = X25519PrivateKey.from_private_bytes(ours).exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise PeerError("the relay's key is none", "Is `fedgossip relay` running there?") from None
    content = want + z85.decode(identity.public) + target
    return content + _proof(shared, content, theirs)


def verified_request(secret: X25519PrivateKey, content: bytes) -> RelayRequest | None:
    """Return the request, if its sender has the secret of the key that it names; None otherwise."""
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
