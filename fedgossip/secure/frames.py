"""The signed frames of a secure sum.  The signature is checked before a byte of the body is read.

    frame = Ed25519 signature (64 bytes) of ("frame", sender, SHA-256(body)) | body, strict msgpack

The sender is known from the link; its key from the roster, the coordinator's from the client's policy.  An invalid
frame costs that frame only: ProtocolError.  The session's hash is in every body, the recipient in frames for one.
Forwarded keys, survivors and signatures are checked by clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from fedgossip.base.decoding import UnreadableError, from_msgpack
from fedgossip.base.errors import ProtocolError
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage, too_few
from fedgossip.secure.graph import COHORT_MAX
from fedgossip.secure.primitives import Sign, digest, memory, once, once_for, small_order, transcript, verify
from fedgossip.secure.session import NONE, Descriptor, Hash, Id, ParticipantRoster

FRAME_MAX = 1 << 20
SIGNATURE = 64
COORDINATOR = -1
"""The number of a sender without a place in the roster."""

Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE, max_length=SIGNATURE)]
Share = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Pair = Annotated[bytes, msgspec.Meta(min_length=80, max_length=80)]
"""Two sealed shares and the seal's tag."""
_Many = msgspec.Meta(max_length=COHORT_MAX)


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A message; its repr shows the name of its kind alone."""

    stage: ClassVar[Stage]

    def __repr__(self) -> str:
        return f"<{name_of(type(self))}>"


def name_of(kind: type[Frame]) -> str:
    """Return the name of frames of this kind on the wire, in transcripts and in errors."""
    return str(kind.__struct_config__.tag)


class Keys(Frame, frozen=True):
    """A client's signed keys for one round, forwarded to its neighbours; `origin`: the session that announced them,
    sid0 of their own or sid of the last.
    """

    stage = Stage.KEYS
    client: Id
    origin: Hash
    c_pk: Hash
    s_pk: Hash
    commitment: Hash
    signature: Signature

    def content(self, descriptor: Descriptor, round: int) -> bytes:
        """Return the content of the client's signature."""
        d = descriptor
        return transcript(
            "keys", self.origin, d.task_id, round, d.roster_hash, self.client, self.c_pk, self.s_pk, self.commitment
        )


def commitment(origin: bytes, client: int, b: bytes) -> bytes:
    """Return SHA-256(LABEL, "b", sid0, id, b)."""
    return digest("b", origin, client, b)


def hash_of_keys(keys: dict[int, Keys]) -> bytes:
    """Return h1, the hash of all of U1."""
    return digest("U1", *(part for v in sorted(keys) for part in (v, keys[v].c_pk, keys[v].s_pk, keys[v].commitment)))


@lru_cache(maxsize=8)
def hash_of_ids(ids: tuple[int, ...]) -> bytes:
    """Return SHA-256(U3), of the ascending ids."""
    return digest("ids", *ids)


def consent_content(sid: bytes, u3: bytes) -> bytes:
    """Return the content of a client's signature on the survivors."""
    return transcript("U3", sid, u3)


# --- from the coordinator ---------------------------------------------------------------------------------------------


class SessionInvite(Frame, frozen=True, tag="Invite"):
    """The session that the coordinator proposes."""

    stage = Stage.KEYS
    descriptor: Descriptor


class Neighbourhood(Frame, frozen=True):
    """The keys of the recipient's neighbours, and its own; `h1` is the hash of all keys."""

    stage = Stage.SHARES
    sid: Hash  # sid0: it is h1 that makes it sid
    to: Id
    h1: Hash
    keys: Annotated[tuple[Keys, ...], _Many]


class Delivery(Frame, frozen=True):
    """The sealed shares for the recipient, by the sealing client."""

    stage = Stage.MASKED
    sid: Hash
    to: Id
    sealed: Annotated[tuple[tuple[Id, Pair], ...], _Many]


class Survivors(Frame, frozen=True):
    """U3: the clients with a masked vector in the sum."""

    stage = Stage.CONSIST
    sid: Hash
    ids: Annotated[tuple[Id, ...], _Many]


class Consents(Frame, frozen=True):
    """Signatures of the recipient's neighbours on the survivors."""

    stage = Stage.UNMASK
    sid: Hash
    to: Id
    signatures: Annotated[tuple[tuple[Id, Signature], ...], _Many]


class Result(Frame, frozen=True):
    """The hash of the sum, of the survivors in it; its words follow in chunks."""

    stage = Stage.RESULT
    sid: Hash
    survivors: Hash
    digest: Hash


# --- from a client ----------------------------------------------------------------------------------------------------


class Advertise(Frame, frozen=True):
    stage = Stage.KEYS
    sid: Hash  # sid0
    keys: Keys


class Shares(Frame, frozen=True):
    """Sealed shares for each neighbour with keys."""

    stage = Stage.SHARES
    sid: Hash
    sealed: Annotated[tuple[tuple[Id, Pair], ...], _Many]


class MaskedHeader(Frame, frozen=True, tag="Masked"):
    """The masked vector's length in words and SHA-256; it follows in chunks.  `ahead`: keys for the next round."""

    stage = Stage.MASKED
    sid: Hash
    length: Id
    digest: Hash
    ahead: Keys | None = None


class Consent(Frame, frozen=True):
    stage = Stage.CONSIST
    sid: Hash
    signature: Signature


class Reveal(Frame, frozen=True):
    """One share of each neighbour: (owner, whether it survives, the share of b if so and of its mask key if not)."""

    stage = Stage.UNMASK
    sid: Hash
    shares: Annotated[tuple[tuple[Id, bool, Share], ...], _Many]


Kind = TypeVar("Kind")
Downward = SessionInvite | Neighbourhood | Delivery | Survivors | Consents | Result
Upward = Advertise | Shares | MaskedHeader | Consent | Reveal

_DOWN: msgspec.msgpack.Decoder[Downward] = msgspec.msgpack.Decoder(Downward)
_UP: msgspec.msgpack.Decoder[Upward] = msgspec.msgpack.Decoder(Upward)


def pack(message: Frame, sender: int, sign: Sign) -> bytes:
    body = msgspec.msgpack.encode(message)
    signed = _signed(sender, body)
    frame = sign(signed) + body
    if len(frame) <= FRAME_MAX and (here := memory()):
        here.keep(("frame", frame), (sender, signed, message), 2 * len(frame))
    return frame


def from_coordinator(frame: bytes, identity: bytes) -> Downward:
    """Return the coordinator's message.  Raises ProtocolError for any other frame."""
    found: Downward | None = _packed_here(frame, COORDINATOR, identity, Downward)
    return found or _decoded(_authentic(frame, COORDINATOR, identity), COORDINATOR, _DOWN)


def from_client(frame: bytes, client: int, identity: bytes) -> Upward:
    """Return the client's message.  Raises ProtocolError for any other frame."""
    found: Upward | None = _packed_here(frame, client, identity, Upward)
    return found or _decoded(_authentic(frame, client, identity), client, _UP)


def _packed_here(frame: bytes, sender: int, identity: bytes, kind: Any) -> Any:
    """Return the message of a frame that this process packed for this sender, or None."""
    if (here := memory()) is None or not (found := here.get(("frame", frame))):
        return None
    by, signed, message = found
    if by != sender or not isinstance(message, kind) or not verify(identity, frame[:SIGNATURE], signed):
        return None
    if not isinstance(message, SessionInvite | Survivors | Result):  # each of the others has one recipient
        here.take(("frame", frame), 2 * len(frame))
    return message


def body_hash(frame: bytes) -> bytes:
    """Return the SHA-256 of a frame's body, which its signature covers: logs name the frame by it."""
    return hashlib.sha256(frame[SIGNATURE:]).digest()


def signed_content(sender: int, body_hash: bytes) -> bytes:
    """Return the content of a frame's signature, checkable without the body."""
    return transcript("frame", sender, body_hash)


def _signed(sender: int, body: bytes) -> bytes:
    return signed_content(sender, hashlib.sha256(body).digest())


def _authentic(frame: bytes, sender: int, identity: bytes) -> bytes:
    if not SIGNATURE < len(frame) <= FRAME_MAX:
        raise refused(sender, f"a frame of {len(frame)} bytes")
    signature, body = bytes(frame[:SIGNATURE]), bytes(frame[SIGNATURE:])
    if not verify(identity, signature, _signed(sender, body)):
        raise refused(sender, "a frame that it did not sign")
    return body


def _decoded(body: bytes, sender: int, decoder: msgspec.msgpack.Decoder[Kind]) -> Kind:
    try:
        return from_msgpack(decoder, body)
    except UnreadableError:
        raise refused(sender, "a signed frame that is no message") from None  # the traceback has nothing of it


def refused(sender: int, what: str) -> ProtocolError:
    """Return the error for one frame that changes nothing."""
    who = "coordinator" if sender == COORDINATOR else f"client {sender}"
    return ProtocolError(f"{who}: {what}", "It was ignored.", peer=None if sender == COORDINATOR else sender)


def keys_are_signed(keys: Keys, descriptor: Descriptor, round: int, roster: ParticipantRoster) -> bool:
    """Return whether these keys carry their client's signature for this round."""
    identity, d = roster.identity(keys.client), descriptor
    return once(
        (keys, identity, d.task_id, round, d.roster_hash),
        lambda: verify(identity, keys.signature, keys.content(d, round)),
    )


def check_keys(
    message: Neighbourhood,
    descriptor: Descriptor,
    sid0: bytes,
    roster: ParticipantRoster,
    own: Keys,
    neighbours: Sequence[int],
) -> dict[int, Keys]:
    """Return the keys of the share group by client, all signed and distinct, including one's own.

    Raises RoundAbandoned for any others.
    """

    def wrong(reason: Reason, what: str, peer: int | None = None) -> RoundAbandoned:
        return RoundAbandoned(reason, what, peer=peer, stage=Stage.SHARES)

    found = {keys.client: keys for keys in message.keys}
    distinct = once_for(message.keys, "publics", lambda: len({p for k in message.keys for p in (k.c_pk, k.s_pk)}))
    if len(found) < len(message.keys) or distinct < 2 * len(message.keys):
        raise wrong(Reason.DUPKEY, "a client, or a key, occurs twice")
    strangers = found.keys() - {*neighbours, own.client}
    if strangers:
        raise wrong(Reason.ROSTER, f"keys of {min(strangers)}, who is no neighbour", min(strangers))
    if own.client not in found:
        raise wrong(Reason.ROSTER, "one's own keys are not among them")
    if found[own.client] != own:
        raise wrong(Reason.REPLAY, "other keys than one's own under one's own name", own.client)

    def check_each() -> bool:
        for v, keys in found.items():
            if keys.origin != sid0 and not keys.origin == descriptor.previous != NONE:
                raise wrong(Reason.REPLAY, f"keys of {v} from another session", v)
            if not keys_are_signed(keys, descriptor, descriptor.round, roster):
                raise wrong(Reason.SIG, f"keys that {v} did not sign", v)
            if small_order(keys.c_pk) or small_order(keys.s_pk):
                raise wrong(Reason.DUPKEY, f"a key of client {v} is of small order", v)
        return True

    once_for(message.keys, (sid0, roster.hash), check_each)
    if descriptor.graph == "complete" and message.h1 != once_for(message.keys, "U1", lambda: hash_of_keys(found)):
        raise wrong(Reason.SIG, "the hash of all keys is not of these")
    return found


def check_survivors(ids: tuple[int, ...], descriptor: Descriptor, me: int, group: Set[int], shared: Set[int]) -> None:
    """Raise RoundAbandoned for impossible or too few survivors; `shared` is U2 within the group."""

    def wrong(reason: Reason, what: str) -> RoundAbandoned:
        return RoundAbandoned(reason, what, stage=Stage.CONSIST)

    alive = set(ids)
    if list(ids) != sorted(alive):
        raise wrong(Reason.INCONSISTENT_U3, "survivors that are not in ascending order")
    if not alive <= set(descriptor.cohort):
        raise wrong(Reason.ROSTER, "survivors from outside the cohort")
    if me not in alive:
        raise wrong(Reason.INCONSISTENT_U3, "survivors without this client, who is there")
    if not alive & group <= shared:
        raise wrong(Reason.INCONSISTENT_U3, "survivors that never shared their secrets")
    if len(ids) < descriptor.n_min:
        raise too_few(Stage.CONSIST, len(ids), descriptor.n_min, "clients survive")


def check_consents(
    message: Consents,
    sid: bytes,
    me: int,
    roster: ParticipantRoster,
    group: Set[int],
    survivors: tuple[int, ...],
) -> int:
    """Return the number of other group members that signed these survivors, each once.

    Raises RoundAbandoned for an invalid signature.
    """
    content = consent_content(sid, hash_of_ids(survivors))
    signers = [v for v, _ in message.signatures]
    if len(set(signers)) < len(signers):
        raise RoundAbandoned(Reason.TWICE, "a signature occurs twice", stage=Stage.UNMASK)
    able = (group & set(survivors)) - {me}
    for v, signature in message.signatures:
        if v not in able:
            raise RoundAbandoned(
                Reason.ROSTER, f"a signature of {v}, who cannot have signed", peer=v, stage=Stage.UNMASK
            )
        if not verify(roster.identity(v), signature, content):
            raise RoundAbandoned(Reason.SIG, f"{v} did not sign these survivors", peer=v, stage=Stage.UNMASK)
    return len(signers)
