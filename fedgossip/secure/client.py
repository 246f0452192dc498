"""The client's side of FG-SecAgg/1, as steps that cannot be misordered: each returns the next and is used up by it.

    SecAggClient.join(invite, model) -> Advertised    S0  fresh keys, signed          (or those announced a round ahead)
    Advertised.share(neighbourhood) -> Shared         S1  shares of both secrets, sealed for each neighbour
    Shared.mask(delivery, integers) -> VectorMasked   S2  the vector under its masks, in chunks; keys for the next round
    VectorMasked.consent(survivors) -> Consented      S3  a signature on the survivors, one per session
    Consented.reveal(consents)      -> Revealed       S4  one share of each neighbour, then everything is erased
    Revealed.finish(result, words)  -> Words          S5  the sum, if it is the agreed one

A used step raises RoundAbandoned (TWICE) and cannot be copied.  Outcomes:

- the next step;
- ProtocolError: the frame is not authentic, or not of this session and stage; nothing has changed; the step is usable;
- RoundAbandoned: the coordinator signed a frame that no honest one would, or too few are left; all secrets are erased.

Differences to Bonawitz et al. (CCS 2017): the mask seed is committed to; every message is bound to a session hash over
the model, the roster and all parameters; a second, different message of a stage ends the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, NoReturn, TypeVar

import numpy as np

from fedgossip.secure import frames
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage, too_few
from fedgossip.secure.fixed_point import Quantised, Words, chunks, little
from fedgossip.secure.frames import check_consents, check_keys, check_survivors
from fedgossip.secure.primitives import Entropy, Secret, Sign, digest
from fedgossip.secure.secrets import (
    Ahead,
    Ended,
    Erasable,
    Holding,
    OwnKeys,
    SharePairs,
    Sharing,
    add_masks,
    erased_on_failure,
    fresh_keys,
    opened,
    pair_keys,
    sealed,
    split,
)
from fedgossip.secure.session import Descriptor, ParticipantRoster, Policy, ranges, sid0_of
from fedgossip.secure.session_history import Past

Held = TypeVar("Held", bound=Erasable)
Wanted = TypeVar("Wanted", bound=frames.Frame)


class SecAggClient:
    """One participant in many sessions.  `entropy`: os.urandom; `past`: the sessions before a restart."""

    def __init__(
        self, me: int, roster: ParticipantRoster, policy: Policy, sign: Sign, entropy: Entropy, past: Past | None = None
    ) -> None:
        self.me, self.roster, self.policy = me, roster, policy
        self._sign, self._entropy, self.past = sign, entropy, past or Past()

    def join(self, invite: bytes, model: bytes, ahead: Ahead | None = None) -> Advertised:
        """Join the session that the coordinator proposes; `model` is the hash of the global model here.

        `ahead`: the keys that the last masked message announced, used if they are for this session, else erased.
        Raises ProtocolError, RoundAbandoned; a refusing client has sent nothing.
        """
        message = frames.from_coordinator(invite, self.policy.coordinator)
        if not isinstance(message, frames.SessionInvite):
            raise frames.refused(frames.COORDINATOR, f"{message!r} where an invitation is due")
        d = message.descriptor
        self.policy.check(d, self.roster, self.me, model)
        self.past.check(d)
        self.past.joined(d.round)
        sid0 = sid0_of(d)
        own = ahead.take(d) if ahead else None
        session = _Session(
            self.me, d, sid0, self.roster, self.policy, d.neighbours(sid0)[self.me], self._sign, self._entropy,
            self.past,
        )  # fmt: skip
        session.seen[frames.name_of(frames.SessionInvite)] = hashlib.sha256(invite).digest()
        if own:
            return Advertised(session, own, b"")
        own = fresh_keys(sid0, d, d.round, self.me, self._sign, self._entropy)
        with erased_on_failure(own):
            return Advertised(session, own, session.pack(frames.Advertise(sid0, own.public)))

    def __repr__(self) -> str:
        return f"<client {self.me} after session {self.past.session}>"


@dataclass(frozen=True, eq=False, repr=False)
class _Session:
    """The constant facts of all steps; `sid` is sid0 until the keys are known."""

    me: int
    descriptor: Descriptor
    sid: bytes
    roster: ParticipantRoster
    policy: Policy
    neighbours: tuple[int, ...]
    sign: Sign
    entropy: Entropy
    past: Past
    seen: dict[str, bytes] = field(default_factory=dict)
    """The hash of the frame of each kind."""

    @property
    def group(self) -> frozenset[int]:
        """Return the share group: the neighbours and the client itself."""
        return frozenset((*self.neighbours, self.me))

    def pack(self, message: frames.Frame) -> bytes:
        return frames.pack(message, self.me, self.sign)

    def enough(self, stage: Stage, have: int, what: str) -> None:
        if have < self.descriptor.t:
            raise too_few(stage, have, self.descriptor.t, what)


class _Step(Generic[Held]):
    """One step: its secrets are handed to the next, or erased."""

    def __init__(self, session: _Session, held: Held, frame: bytes) -> None:
        self._session, self._held, self.frame = session, held, frame
        self._used = False
        self._checked: tuple[bytes, frames.Downward] | None = None

    @property
    def descriptor(self) -> Descriptor:
        """Return the session, as the coordinator proposed it."""
        return self._session.descriptor

    def abandon(
        self, reason: Reason = Reason.DEADLINE, what: str = "no message of the coordinator arrived"
    ) -> RoundAbandoned:
        """Abandon the session: erase everything, return the error to raise or report."""
        self._used = True
        self._held.erase()
        return RoundAbandoned(reason, what)

    def _read(self, frame: bytes, kind: type[Wanted]) -> Wanted:
        if self._used:
            raise RoundAbandoned(Reason.TWICE, f"{self!r} has been used", stage=kind.stage)
        if self._checked and isinstance(self._checked[1], kind) and self._checked[0] == frame:
            return self._checked[1]
        s = self._session
        message = frames.from_coordinator(frame, s.policy.coordinator)
        if isinstance(message, frames.SessionInvite) or message.sid != s.sid or getattr(message, "to", s.me) != s.me:
            raise frames.refused(frames.COORDINATOR, f"{message!r} of another session, or for another client")
        name = hashlib.sha256(frame).digest()
        if not isinstance(message, kind):
            if s.seen.get(frames.name_of(type(message)), name) != name:
                reason = Reason.INCONSISTENT_U3 if isinstance(message, frames.Survivors) else Reason.TWICE
                raise self.abandon(reason, f"a second, different {message!r}")
            raise frames.refused(frames.COORDINATOR, f"{message!r} where a {frames.name_of(kind)} is due")
        s.seen[frames.name_of(kind)] = name
        return message

    @contextmanager
    def _spend(self) -> Iterator[Held]:
        """Use the step up; its secrets are erased if the next one is not reached."""
        self._used = True
        try:
            yield self._held
        except BaseException:
            self._held.erase()
            raise

    def __repr__(self) -> str:
        used = ", used" if self._used else ""
        return f"<{type(self).__name__} client {self._session.me}, round {self._session.descriptor.round}{used}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a step of a secure sum is neither copied nor pickled")


class Advertised(_Step[OwnKeys]):
    """After S0: the keys are announced.  `frame` is empty for keys announced a round ahead."""

    def share(self, neighbourhood: bytes) -> Shared:
        """Split both secrets over the share group, and seal each neighbour's shares for it alone."""
        message = self._read(neighbourhood, frames.Neighbourhood)
        with self._spend() as own:
            s = self._session
            keys = check_keys(message, s.descriptor, s.sid, s.roster, own.public, s.neighbours)
            s.enough(Stage.SHARES, len(keys), "of the share group have keys")
            session = replace(s, sid=digest("sid", s.sid, message.h1))
            pairs = split(own, sorted(keys), s.descriptor.t, s.entropy)
            seals, openers, masks = pair_keys(session.sid, own, keys, s.policy.fixed.words)
            sharing = Sharing(own.b, masks, openers, Secret(pairs.pop(s.me)))
            with erased_on_failure(sharing):
                frame = session.pack(frames.Shares(session.sid, sealed(session.sid, s.me, seals, pairs)))
                own.c.erase()
                own.s.erase()
                return Shared(session, sharing, frame)


class Shared(_Step[Sharing]):
    """After S1: the shares are sealed."""

    def check(self, delivery: bytes) -> None:
        """Raise ProtocolError for any frame but the delivery of this session; a valid one may be used later."""
        self._checked = delivery, self._read(delivery, frames.Delivery)

    def mask(self, delivery: bytes, integers: Quantised) -> VectorMasked:
        """Open the others' shares, and hide `integers` under one's own mask and one per neighbour that sent shares."""
        message = self._read(delivery, frames.Delivery)
        with self._spend() as held:
            s = self._session
            self._check_input(integers)
            shares = opened(s.sid, s.me, held, message.sealed)
            with erased_on_failure(shares):
                s.enough(Stage.MASKED, len(shares.owners), "of the share group have shared")
                s.past.mask(s.descriptor, integers.fingerprint, together=s.policy.fixed.together)
                words = integers.values.copy()
                add_masks(words, s.sid, s.me, held, shares.owners, s.descriptor.width)
                held.erase()
                return self._masked(words, shares)

    def _masked(self, words: Words, shares: SharePairs) -> VectorMasked:
        s, d = self._session, self._session.descriptor
        ahead = Ahead(fresh_keys(s.sid, d, d.round + 1, s.me, s.sign, s.entropy), d.task_id, d.round + 1)
        with erased_on_failure(ahead):
            head = frames.MaskedHeader(s.sid, words.size, hashlib.sha256(little(words)).digest(), ahead.public)
            words.flags.writeable = False
            return VectorMasked(s, Holding(shares), s.pack(head), words, head.digest, ahead)

    def _check_input(self, integers: Quantised) -> None:
        need = self._session.policy.fixed.words
        if integers.values.dtype != np.uint32 or integers.values.shape != (need,):
            what = f"{integers.values.dtype} {integers.values.shape} to be masked; {need} words of 32 bits were agreed"
            raise RoundAbandoned(Reason.SCHEMA, what, stage=Stage.MASKED)


class VectorMasked(_Step[Holding]):
    """After S2: send `frame`, then every chunk.  `ahead` holds the keys for the next round: keep it, or erase it."""

    def __init__(
        self,
        session: _Session,
        held: Holding,
        frame: bytes,
        words: Words,
        digest: bytes,
        ahead: Ahead,
    ) -> None:
        super().__init__(session, held, frame)
        self.words, self.digest, self.ahead = words, digest, ahead

    def chunks(self) -> Iterator[memoryview]:
        """Yield the masked vector, at most 256 KiB at a time."""
        return chunks(self.words)

    def consent(self, survivors: bytes) -> Consented:
        """Sign the survivors, if they are possible and enough."""
        message = self._read(survivors, frames.Survivors)
        with self._spend() as held:
            s = self._session
            check_survivors(message.ids, s.descriptor, s.me, s.group, {*held.shares.owners})
            s.enough(Stage.CONSIST, len(s.group & set(message.ids)), "of the share group survive")
            if s.policy.fixed.together:
                s.past.consent(s.descriptor.round, s.roster.company(message.ids), ranges(message.ids))
            else:
                s.past.agree(s.descriptor.round, ranges(message.ids))
            signature = s.sign(frames.consent_content(s.sid, frames.hash_of_ids(message.ids)))
            held.survivors = message.ids
            return Consented(s, held, s.pack(frames.Consent(s.sid, signature)))


class Consented(_Step[Holding]):
    """After S3: the survivors are signed."""

    def __init__(self, session: _Session, held: Holding, frame: bytes) -> None:
        super().__init__(session, held, frame)
        self.survivors = held.survivors

    def reveal(self, consents: bytes) -> Revealed:
        """Reveal one share of each client in the group: of b if it survives, of its mask key if not."""
        message = self._read(consents, frames.Consents)
        with self._spend() as held:
            s = self._session
            signed = check_consents(message, s.sid, s.me, s.roster, s.group, held.survivors)
            s.enough(Stage.UNMASK, signed + 1, "of the share group have signed these survivors")
            shares = held.shares.give({*held.survivors})
            frame = s.pack(frames.Reveal(s.sid, shares))
            of_b, of_key = (tuple([v for v, lives, _ in shares if lives is alive]) for alive in (True, False))
            return Revealed(s, Ended(held.survivors, of_b, of_key), frame)


class Revealed(_Step[Ended]):
    """After S4: no secret is left."""

    @property
    def alive(self) -> tuple[int, ...]:
        """Return the members of the share group with revealed shares of b, for the removal of their own masks."""
        return self._held.alive

    @property
    def dropped(self) -> tuple[int, ...]:
        """Return the members of the share group with revealed shares of mask keys, for the removal of their masks."""
        return self._held.dropped

    def finish(self, result: bytes, words: Words) -> Words:
        """Return the sum, uint32 words, if it is the survivors' with the signed hash.  Raises RoundAbandoned."""
        with self._ending(result) as digest:
            right = words.dtype == np.uint32 and words.shape == (self._session.policy.fixed.words,)
            if not right or digest != hashlib.sha256(little(words)).digest():
                raise RoundAbandoned(Reason.SCHEMA, "not the sum that the coordinator signed", stage=Stage.RESULT)
            return words

    def acknowledge(self, result: bytes) -> bytes:
        """Return the digest of the sum as the coordinator signed it, for a client that does not receive the sum."""
        with self._ending(result) as digest:
            return digest

    @contextmanager
    def _ending(self, result: bytes) -> Iterator[bytes]:
        message = self._read(result, frames.Result)
        with self._spend() as held:
            if message.survivors != frames.hash_of_ids(held.survivors):
                raise RoundAbandoned(Reason.INCONSISTENT_U3, "a sum of other clients", stage=Stage.RESULT)
            yield message.digest
            self._session.past.summed(self._session.descriptor.round)
