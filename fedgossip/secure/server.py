"""The coordinator's side of FG-SecAgg/1, as steps: each collects the clients' frames, and `close` returns the next.

    invite(...)  -> Inviting     frame                for all         take(client, frame)   keys
    .close()     -> Distributing frame_for(client)    their keys      take(client, frame)   sealed shares
    .close()     -> Summing      frame_for(client)    their shares    take(client, frame)   -> Intake: chunk, done
    .close()     -> Consenting   frame                the survivors   take(client, frame)   signatures
    .close()     -> Unmasking    frame_for(client)    the signatures  take(client, frame)   shares
    .close()     -> Summed       total, survivors, culprits, ahead; frame, for all

The driver decides when a stage is over.  `take` raises ProtocolError for an invalid or second frame: nothing has
changed.  `close` raises RoundAbandoned: TOO_FEW, or SHARE_INVALID.  A dropped client is not in the next set.  Memory
holds the sum and `lanes` vectors, for any number of clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NoReturn, TypeVar

import numpy as np

from fedgossip.base.errors import ProtocolError
from fedgossip.secure import frames, shamir
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage, too_few
from fedgossip.secure.encoding import RingEncoding
from fedgossip.secure.fixed_point import CHUNK_BYTES, Words, add, add_streams, chunks, little, subtract_streams
from fedgossip.secure.frames import commitment, keys_are_signed
from fedgossip.secure.primitives import Agreement, Sign, digest, public_of, small_order, verify
from fedgossip.secure.secrets import mask_infos, self_key
from fedgossip.secure.session import NONE, Descriptor, ParticipantRoster, check_sound, sid0_of

# The common part of the coordinator's steps: the session, and the single reply of each client.


Answer = TypeVar("Answer")
Wanted = TypeVar("Wanted", bound=frames.Frame)


@dataclass(frozen=True, eq=False, repr=False)
class Session:
    """The constant facts of all steps; `sid` is sid0 until the keys are known."""

    roster: ParticipantRoster
    descriptor: Descriptor
    sid: bytes
    words: int
    sign: Sign
    neighbours: Mapping[int, tuple[int, ...]]
    keys: dict[int, frames.Keys] = field(default_factory=dict)

    def group(self, client: int) -> frozenset[int]:
        return frozenset((*self.neighbours[client], client))

    def pack(self, message: frames.Frame) -> bytes:
        return frames.pack(message, frames.COORDINATOR, self.sign)

    def check(self, stage: Stage, there: frozenset[int], what: str) -> None:
        """Raise RoundAbandoned if `there` are too few: below n_min until the sum's members are fixed, then the
        threshold.
        """
        d = self.descriptor
        able = sum(len(self.group(client) & there) >= d.t for client in there)
        need = d.t if stage > Stage.MASKED else max(d.n_min, d.t)
        if able < need:
            raise too_few(stage, able, need, what)


class Collecting(Generic[Answer]):
    """A stage with one reply due from each client of `waiting`."""

    def __init__(self, session: Session, expected: frozenset[int]) -> None:
        self.session, self.expected = session, expected
        self.waiting = set(expected)
        """The clients without a reply so far."""
        self._answers: dict[int, Answer] = {}
        self._closed = False

    def _read(self, client: int, frame: bytes, kind: type[Wanted]) -> Wanted:
        """Return the client's message.  Raises ProtocolError if none is due."""
        if self._closed:
            raise frames.refused(client, "a frame for a stage that is over")
        if client not in self.expected:
            raise frames.refused(client, "not one of those that are asked")
        message = frames.from_client(frame, client, self.session.roster.identity(client))
        if not isinstance(message, kind) or message.sid != self.session.sid:
            raise frames.refused(client, f"{message!r} of another session, or where a {frames.name_of(kind)} is due")
        if client in self._answers:
            raise frames.refused(client, f"a second {message!r}")
        return message

    def _keep(self, client: int, answer: Answer) -> None:
        self._answers[client] = answer
        self.waiting.discard(client)

    def _end(self) -> dict[int, Answer]:
        """Close the stage.  Raises ProtocolError if it is closed."""
        if self._closed:
            raise ProtocolError(f"{self!r} is over", "Use the step that its close() returned.")
        self._closed = True
        return self._answers

    def __repr__(self) -> str:
        there = f"{len(self._answers)} of {len(self.expected)}"
        return f"<{type(self).__name__} round {self.session.descriptor.round}, {there}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a step of a secure sum is neither copied nor pickled")


# Removes the masks: secrets are restored and checked against their commitments, their streams subtracted.


Shares = Mapping[int, bytes]
"""Shares by the holder's place in the roster plus one."""


def unmask(
    total: Words, session: Session, survivors: tuple[int, ...], revealed: Mapping[int, Shares]
) -> tuple[tuple[int, int], ...]:
    """Remove all masks from `total`, in place; return (owner, holder) of each share that does not fit.

    `revealed`: of each client that sent shares, shares of its b if it survives, else of its mask key.  Raises
    RoundAbandoned (SHARE_INVALID), naming the client; `total` is then worthless.
    """
    culprits: list[tuple[int, int]] = []
    alive = set(survivors)
    secrets = {v: _recovered(session, v, shares, v in alive, culprits) for v, shares in revealed.items()}
    lost = {v: secret for v, secret in secrets.items() if v not in alive}
    width = session.descriptor.width
    subtract_streams(total, (self_key(session.sid, secrets[v], v, session.words) for v in survivors), width)
    # survivor u added it for v if u < v, and subtracted it if u > v
    below = _pairs(session, lost, lambda v: [u for u in session.neighbours[v] if u in alive and u < v])
    above = _pairs(session, lost, lambda v: [u for u in session.neighbours[v] if u in alive and u > v])
    subtract_streams(total, below, width)
    add_streams(total, above, width)
    return tuple(culprits)


def _recovered(session: Session, v: int, shares: Shares, alive: bool, culprits: list[tuple[int, int]]) -> bytes:
    """Return b of a survivor, or a lost client's mask key; suspect holders are used last."""
    keys = session.keys[v]

    def right(secret: bytes) -> bool:
        return commitment(keys.origin, v, secret) == keys.commitment if alive else public_of(secret) == keys.s_pk

    liars = {holder for _, holder in culprits}
    asked = sorted(shares, key=lambda place: (place - 1 in liars, place))
    found = shamir.recover({place: shares[place] for place in asked}, session.descriptor.t, right)
    if found is None:
        what = f"the shares of client {v} do not give the secret that it committed itself to"
        raise RoundAbandoned(Reason.SHARE_INVALID, what, peer=v, stage=Stage.UNMASK)
    secret, wrong = found
    culprits.extend((v, place - 1) for place in wrong)
    return secret


def _pairs(session: Session, lost: Mapping[int, bytes], partners: Callable[[int], list[int]]) -> Iterator[bytes]:
    for v, secret in lost.items():
        others = tuple(partners(v))
        publics, infos = [session.keys[u].s_pk for u in others], mask_infos(v, others, session.words)
        for (key,) in Agreement(secret, session.keys[v].s_pk).keys(publics, session.sid, infos):
            yield key


LANES = 4
"""Maximum number of vectors in transfer at one time."""


def invite(
    roster: ParticipantRoster,
    descriptor: Descriptor,
    fixed: RingEncoding,
    sign: Sign,
    ahead: Mapping[int, frames.Keys] | None = None,
) -> Inviting:
    """Open a session.  `ahead`: keys from the masked messages of `descriptor.previous`.

    Raises RoundAbandoned for an unacceptable descriptor.
    """
    check_sound(descriptor, roster, fixed)
    sid0 = sid0_of(descriptor)
    session = Session(roster, descriptor, sid0, fixed.words, sign, descriptor.neighbours(sid0))
    return Inviting(session, ahead or {})


class Inviting(Collecting[frames.Keys]):
    """S0: joining clients send their keys."""

    def __init__(self, session: Session, ahead: Mapping[int, frames.Keys]) -> None:
        super().__init__(session, frozenset(session.descriptor.cohort))
        self._used: set[bytes] = set()
        self.frame = session.pack(frames.SessionInvite(session.descriptor))
        for client in sorted(ahead.keys() & self.expected):
            if ahead[client].origin == session.descriptor.previous != NONE:
                self._accept(client, ahead[client])

    def take(self, client: int, frame: bytes) -> None:
        """Take a client's keys.  Raises ProtocolError, which changes nothing."""
        message = self._read(client, frame, frames.Advertise)
        if message.keys.origin != self.session.sid:
            raise frames.refused(client, "keys of another session")
        self._accept(client, message.keys)

    def _accept(self, client: int, keys: frames.Keys) -> None:
        d = self.session.descriptor
        if keys.client != client or not keys_are_signed(keys, d, d.round, self.session.roster):
            raise frames.refused(client, "keys that it did not sign")
        if small_order(keys.c_pk) or small_order(keys.s_pk):
            raise frames.refused(client, "a key of small order")
        publics = {keys.c_pk, keys.s_pk}
        if len(publics) < 2 or self._used & publics:
            raise frames.refused(client, "a key that exists already")
        self._used |= publics
        self._keep(client, keys)

    def close(self) -> Distributing:
        """Return the next step, with all clients that sent keys."""
        keys, s = dict(sorted(self._end().items())), self.session
        s.check(Stage.KEYS, frozenset(keys), "clients have keys and enough neighbours")
        h1 = frames.hash_of_keys(keys)
        return Distributing(replace(s, keys=keys, sid=digest("sid", s.sid, h1)), s.sid, h1)


class Distributing(Collecting[dict[int, bytes]]):
    """S1: each client seals a share of its secrets for each neighbour."""

    def __init__(self, session: Session, sid0: bytes, h1: bytes) -> None:
        super().__init__(session, frozenset(session.keys))
        self._sid0, self._h1 = sid0, h1
        self._all: tuple[frames.Keys, ...] = tuple(session.keys.values())

    def frame_for(self, client: int) -> bytes:
        s = self.session
        keys = self._all  # in the order of the clients
        if far := s.keys.keys() - s.group(client):
            keys = tuple(one for one in keys if one.client not in far)
        return s.pack(frames.Neighbourhood(self._sid0, client, self._h1, keys))

    def take(self, client: int, frame: bytes) -> None:
        """Take a client's sealed shares.  Raises ProtocolError, which changes nothing."""
        message = self._read(client, frame, frames.Shares)
        sealed, s = dict(message.sealed), self.session
        if len(sealed) < len(message.sealed) or sealed.keys() != (s.group(client) & s.keys.keys()) - {client}:
            raise frames.refused(client, "shares that are not one for each neighbour")
        self._keep(client, sealed)

    def close(self) -> Summing:
        sealed, s = self._end(), self.session
        s.check(Stage.SHARES, frozenset(sealed), "clients have shared, with enough neighbours")
        return Summing(s, sealed)


class Intake:
    """One client's vector in transfer: its signed hash has arrived, its chunks follow in order."""

    def __init__(self, summing: Summing, client: int, head: frames.MaskedHeader, buffer: Words) -> None:
        self.client, self.head = client, head
        self._summing, self._buffer = summing, buffer
        self._at, self._hash = 0, hashlib.sha256()

    def chunk(self, data: bytes | memoryview) -> None:
        """Add the next chunk.  Raises ProtocolError if it does not fit: the vector is then dropped."""
        into = self._buffer.view(np.uint8)
        size = memoryview(data).nbytes
        if not self._summing.receiving(self):
            raise frames.refused(self.client, "a chunk of a vector that was given up")
        if not 0 < size <= min(CHUNK_BYTES, into.size - self._at):
            self._summing.drop(self)
            raise frames.refused(self.client, f"a chunk of {size} bytes at byte {self._at} of {into.size}")
        into[self._at : self._at + size] = np.frombuffer(data, np.uint8)
        self._hash.update(data)
        self._at += size

    def done(self) -> None:
        """Add the vector to the sum.  Raises ProtocolError if its hash is not the signed one: it is dropped."""
        if not self._summing.receiving(self):
            raise frames.refused(self.client, "a vector that was given up")
        if self._at != self._buffer.nbytes or self._hash.digest() != self.head.digest:
            self._summing.drop(self)
            raise frames.refused(self.client, "another vector than it signed")
        self._summing.add(self, self._buffer)


class Summing(Collecting[None]):
    """S2: masked vectors are added on arrival.  A vector still incomplete when the stage closes is omitted."""

    def __init__(self, session: Session, sealed: dict[int, dict[int, bytes]], lanes: int = LANES) -> None:
        super().__init__(session, frozenset(sealed))
        self._sealed = sealed
        self._total = np.zeros(session.words, np.uint32)
        self._free: list[Words] = []
        self._lanes = lanes
        self._intakes: dict[int, Intake] = {}
        self._ahead: dict[int, frames.Keys] = {}

    def frame_for(self, client: int) -> bytes:
        s = self.session
        senders = sorted(v for v in s.neighbours[client] if v in self._sealed)
        pairs = tuple((v, self._sealed[v][client]) for v in senders)
        return s.pack(frames.Delivery(s.sid, client, pairs))

    @property
    def full(self) -> bool:
        """Return whether the maximum number of vectors is in transfer: the next client has to wait."""
        return len(self._intakes) >= self._lanes

    def take(self, client: int, frame: bytes) -> Intake:
        """Return the intake of a client's chunks; a second head drops those of the first.  Raises ProtocolError."""
        head = self._head(client, frame)
        if client in self._intakes:
            self.drop(self._intakes[client])
        if self.full:
            raise frames.refused(client, f"a vector while {self._lanes} others are on their way")
        buffer = self._free.pop() if self._free else np.empty(self.session.words, "<u4")
        self._intakes[client] = Intake(self, client, head, buffer)
        return self._intakes[client]

    def take_whole(self, client: int, frame: bytes, words: Words) -> None:
        """Add a vector received in one piece.  Raises ProtocolError if its hash is not the signed one."""
        head = self._head(client, frame)
        if words.shape != (head.length,) or hashlib.sha256(little(words)).digest() != head.digest:
            raise frames.refused(client, "another vector than it signed")
        self._add(client, head, words)

    def _head(self, client: int, frame: bytes) -> frames.MaskedHeader:
        head = self._read(client, frame, frames.MaskedHeader)
        d, s = self.session.descriptor, self.session
        if head.length != s.words:
            raise frames.refused(client, f"a vector of {head.length} words; {s.words} were agreed")
        ahead = head.ahead
        if ahead and not (
            (ahead.client, ahead.origin) == (client, s.sid) and keys_are_signed(ahead, d, d.round + 1, s.roster)
        ):
            raise frames.refused(client, "keys for the next round that it did not sign")
        return head

    def receiving(self, intake: Intake) -> bool:
        return not self._closed and self._intakes.get(intake.client) is intake

    def drop(self, intake: Intake) -> None:
        """Drop an incomplete vector; its client may begin again."""
        if self.receiving(intake):
            self._free.append(self._intakes.pop(intake.client)._buffer)

    def add(self, intake: Intake, words: Words) -> None:
        """Add a complete vector (called by its intake)."""
        self._add(intake.client, intake.head, words)
        self.drop(intake)

    def _add(self, client: int, head: frames.MaskedHeader, words: Words) -> None:
        add(self._total, words, self.session.descriptor.width)
        self._keep(client, None)
        if head.ahead:
            self._ahead[client] = head.ahead

    def close(self) -> Consenting:
        there, s = frozenset(self._end()), self.session
        self._intakes, self._free = {}, []
        s.check(Stage.MASKED, there, "clients have sent their vector, with enough neighbours")
        return Consenting(s, _MaskedSum(self._total, frozenset(self._sealed), tuple(sorted(there)), self._ahead))


@dataclass(frozen=True, eq=False, repr=False)
class _MaskedSum:
    """The masked sum, the clients that sent shares (U2) and those in it (U3), and the keys sent with it."""

    total: Words
    shared: frozenset[int]
    survivors: tuple[int, ...]
    ahead: dict[int, frames.Keys]


class Consenting(Collecting[bytes]):
    """S3: the survivors sign the list of survivors."""

    def __init__(self, session: Session, masked: _MaskedSum) -> None:
        super().__init__(session, frozenset(masked.survivors))
        self._sum = masked
        self._content = frames.consent_content(session.sid, frames.hash_of_ids(masked.survivors))
        self.frame = session.pack(frames.Survivors(session.sid, masked.survivors))

    def take(self, client: int, frame: bytes) -> None:
        """Take a client's signature.  Raises ProtocolError, which changes nothing."""
        message = self._read(client, frame, frames.Consent)
        if not verify(self.session.roster.identity(client), message.signature, self._content):
            raise frames.refused(client, "a signature on other survivors")
        self._keep(client, message.signature)

    def close(self) -> Unmasking:
        signatures, s = self._end(), self.session
        s.check(Stage.CONSIST, frozenset(signatures), "clients have signed the survivors, with enough neighbours")
        return Unmasking(s, self._sum, signatures)


class Unmasking(Collecting[dict[int, bytes]]):
    """S4: each member of a share group reveals one share of each client; then the masks are removed."""

    def __init__(self, session: Session, masked: _MaskedSum, signatures: dict[int, bytes]) -> None:
        super().__init__(session, frozenset(signatures))
        self._sum, self._signatures = masked, signatures

    def frame_for(self, client: int) -> bytes:
        """Return the number of other group members' signatures that, with the client's, make the threshold."""
        s = self.session
        others = sorted((s.group(client) & self._signatures.keys()) - {client})[: s.descriptor.t - 1]
        return s.pack(frames.Consents(s.sid, client, tuple((v, self._signatures[v]) for v in others)))

    def take(self, client: int, frame: bytes) -> None:
        """Take a client's shares.  Raises ProtocolError, which changes nothing."""
        message = self._read(client, frame, frames.Reveal)
        alive = set(self._sum.survivors)
        due = [(v, v in alive) for v in sorted(self.session.group(client) & self._sum.shared)]
        if [(v, lives) for v, lives, _ in message.shares] != due:
            raise frames.refused(client, "shares that are not one of each in its group, of the right kind")
        self._keep(client, {v: share for v, _, share in message.shares})

    def close(self) -> Summed:
        """Return the sum, with all masks removed.  Raises RoundAbandoned (TOO_FEW, SHARE_INVALID)."""
        answers, s = self._end(), self.session
        masked = self._sum
        revealed = {
            v: {holder + 1: answers[holder][v] for holder in sorted(s.group(v) & answers.keys())}
            for v in sorted(masked.shared)
        }
        for v, shares in revealed.items():
            if len(shares) < s.descriptor.t:
                raise too_few(Stage.UNMASK, len(shares), s.descriptor.t, f"shares of client {v} are here")
        culprits = unmask(masked.total, s, masked.survivors, revealed)
        result = frames.Result(
            s.sid, frames.hash_of_ids(masked.survivors), hashlib.sha256(little(masked.total)).digest()
        )
        return Summed(masked.total, masked.survivors, culprits, s.sid, masked.ahead, s.pack(result))


@dataclass(frozen=True, eq=False, repr=False)
class Summed:
    """S5: the sum over `survivors`, in the ring."""

    total: Words
    survivors: tuple[int, ...]
    culprits: tuple[tuple[int, int], ...]
    """Shares that do not fit, as (owner, holder): the holder changed them, or the owner dealt them so."""
    sid: bytes
    ahead: Mapping[int, frames.Keys]
    """Keys for the next round; the next descriptor's `previous` is `sid`."""
    frame: bytes
    """The result, for every client; the words follow in `chunks`."""

    def chunks(self) -> Iterator[memoryview]:
        """Yield the sum, at most 256 KiB at a time."""
        return chunks(self.total)
