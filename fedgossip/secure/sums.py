"""Secure sums inside other people's programs: `SumClient` and `SumServer` turn frames into frames, over any transport.

    server.begin(round, clients) -> {client: frame}      the invitations
    client.give(round, values)                           before the third frame of the round
    client.answer(frame)         -> frame | None         None: nothing to send
    server.take(client, frame)   -> {client: frame}      {} while others of the stage are awaited
    server.close()               -> {client: frame}      the deadline of a stage: its missing clients have dropped
    server.sum, server.result                            after the fifth stage

    server.collect(round, clients, send, receive)        the same loops, over two functions of a transport
    client.take_part(send, receive)

A frame is of the coordinator for one client, or the reverse; the masked vector follows its signed frame.  The transport
may lose, repeat and reorder frames, and be public; it names the sender, which the signature proves.  Outcomes as in
`client`; keys are new in each session.

A client's `state` follows from its key and the received frames.  Write it to disk before the answer leaves, and never
go back to an older one: two answers of one state could disclose the input.  A coordinator's state is the sums it began:
a restart costs the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.decoding import UnreadableError, from_msgpack
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.secure import frames, server
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.client import Advertised, Consented, Revealed, SecAggClient, Shared, VectorMasked
from fedgossip.secure.encoding import SumEncoding, SumResult, Values
from fedgossip.secure.fixed_point import RING_BITS, Quantised, little
from fedgossip.secure.graph import COHORT_MAX
from fedgossip.secure.primitives import Entropy, Sign, keystream, signer
from fedgossip.secure.session import (
    LIVES,
    ParticipantRoster,
    Policy,
    RosterMember,
    model_hash,
    proposal,
    ranges,
    round_of,
)
from fedgossip.secure.session_history import Past

KEY_BYTES, CARD_BYTES = 32, 96
FRAMES_MAX = 100
"""Maximum number of frames from one sender in a stage, or in a client's round; lost ones are sent again a few times."""
WORD_BYTES = RING_BITS // 8

_ClientStep = Advertised | Shared | VectorMasked | Consented | Revealed
_ServerStep = server.Inviting | server.Distributing | server.Summing | server.Consenting | server.Unmasking


def sign_card(key: bytes) -> bytes:
    """Return the card of a participant, 96 bytes: its public key, and its signature on it.

    `key`: 32 secret random bytes, kept for all sessions.  Raises ConfigError.
    """
    identity, sign = _signer(key)
    return identity + RosterMember(identity, "", "").signed(sign).signature


def _signer(key: bytes) -> tuple[bytes, Sign]:
    if len(key) != KEY_BYTES:
        raise ConfigError(f"a key of {len(key)} bytes", f"Draw {KEY_BYTES} secret bytes once, and keep them.")
    return signer(key)


def _identity(card: bytes) -> bytes:
    if len(card) != CARD_BYTES:
        raise ConfigError(f"a card of {len(card)} bytes", f"sign_card(key) returns the {CARD_BYTES} of a participant.")
    return card[:KEY_BYTES]


def _roster(members: Iterable[bytes]) -> ParticipantRoster:
    return ParticipantRoster(tuple(RosterMember(_identity(card), "", "", (), card[KEY_BYTES:]) for card in members))


class _OpenSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A session in progress: the memory before it, the key of its random bytes, and the received frames."""

    past: bytes
    seed: bytes
    model: bytes
    frames: tuple[bytes, ...]


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    round: int
    words: bytes
    fingerprint: bytes


class _SavedClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    past: bytes
    given: _Given | None
    session: _OpenSession | None


_SAVED = msgspec.msgpack.Decoder(_SavedClient)


ROUNDS = 1 << 53
"""Number of rounds that there may be."""


def _bytes_of(frame: object) -> bytes:
    """Return a frame.  Raises ProtocolError for what is none: bytes() of a number has as many zeros."""
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise ProtocolError("a frame that is not of bytes")
    return bytes(frame)


class SumClient:
    """One participant of secure sums.

    `key`: 32 secret bytes; `members`: all clients' cards, in one order for everybody, `coordinator`: the server's;
    `task`: the sums' name; `entropy`: os.urandom; `n_min`: the fewest clients in a sum that includes this one, 3 or
    more; `state`: of before a restart.

    Raises ConfigError, RoundAbandoned (ROSTER) for cards that their owners did not sign.
    """

    def __init__(
        self,
        key: bytes,
        members: Sequence[bytes],
        coordinator: bytes,
        encoding: SumEncoding,
        *,
        task: str,
        entropy: Entropy,
        n_min: int = 5,
        cohort_max: int = COHORT_MAX,
        state: bytes = b"",
    ) -> None:
        self.encoding = encoding
        self._roster, self._entropy = _roster(members), entropy
        identity, self._sign = _signer(key)
        places = [place for place, member in enumerate(self._roster.members) if member.identity == identity]
        if not places:
            raise ConfigError("this client's card is not among the members", "Give all participants the same list.")
        self.place = places[0]
        """The client's place in the list of members; the server addresses it by this."""
        self.sum_digest = b""
        """SHA-256 of the words of the last round's sum, signed by the coordinator."""
        self._policy = Policy(_identity(coordinator), task, encoding.ring, n_min, cohort_max)
        self._past = Past()
        self._given: _Given | None = None
        self._session: _OpenSession | None = None
        self._step: _ClientStep | None = None
        self._reply: bytes | None = None
        if state:
            self._restore(state)

    @property
    def state(self) -> bytes:
        """Return the state for a restarted client; secret while a session is open."""
        past = self._session.past if self._session else self._past.state()
        return msgspec.msgpack.encode(_SavedClient(past, self._given, self._session))

    def _restore(self, state: bytes) -> None:
        try:
            saved = from_msgpack(_SAVED, state)
            self._past = Past.from_state(saved.past)
        except UnreadableError:
            raise ConfigError("the state of a secure sum's client is damaged", "Use the bytes of `state`.") from None
        self._given = saved.given
        if session := saved.session:
            self._open(session.frames[0], session.model, session.seed)
            for frame in session.frames[1:]:
                self._advance(frame)

    def give(self, round: int, values: Values, *, weight: int = 1, metrics: Mapping[str, float] | None = None) -> None:
        """Set this client's part of a round's sum, [length].

        Raises RoundAbandoned (SCHEMA, OVERFLOW) for values outside of the encoding; nothing is set then.
        """
        if isinstance(round, bool) or not isinstance(round, int | np.integer) or not 0 <= round < ROUNDS:
            # of a framework's message, so of a server that may lie: in the state, it could not be read again
            raise RoundAbandoned(Reason.SCHEMA, "a round that is no whole number")
        part = self.encoding.encode(values, weight, metrics or {}, self._entropy)
        self._given = _Given(int(round), bytes(little(part.values)), part.fingerprint)

    def answer(self, frame: bytes, model: bytes = b"") -> bytes | None:
        """Return the reply to a frame of the server; a repeated frame has the same reply.

        `model`: bytes that the round's values depend on, compared for an invitation.  Raises ProtocolError,
        RoundAbandoned, and ConfigError before the values are given.
        """
        frame = _bytes_of(frame)
        if self._session and frame == self._session.frames[-1]:
            return self._reply
        if self._step is not None:
            try:
                return self._advance(frame)
            except ProtocolError:
                if not isinstance(frames.from_coordinator(frame, self._policy.coordinator), frames.SessionInvite):
                    raise
        return self._open(frame, model_hash(model), self._entropy(KEY_BYTES))

    def take_part(self, send: Callable[[bytes], object], receive: Callable[[], bytes], model: bytes = b"") -> None:
        """Reply to frames until the end of the round; those that change nothing are skipped.

        `send` may store `state` first; `receive` raises at its deadline.  Raises as `answer`, ProtocolError only after
        FRAMES_MAX frames.
        """
        for _ in range(FRAMES_MAX):
            with suppress(ProtocolError):
                if (reply := self.answer(receive(), model)) is None:
                    return
                send(reply)
        raise ProtocolError(f"{FRAMES_MAX} frames, and no end of the round", "Who else writes to this transport?")

    def _open(self, frame: bytes, model: bytes, seed: bytes) -> bytes:
        """Join a session; an accepted one ends the one in progress."""
        before, stream = self._past.state(), keystream(seed)
        party = SecAggClient(
            self.place, self._roster, self._policy, self._sign, lambda size: stream.update(bytes(size)), self._past
        )
        step = party.join(frame, model)
        self.abandon()
        self._session, self._step, self._reply = _OpenSession(before, seed, model, (frame,)), step, step.frame
        return step.frame

    def _advance(self, frame: bytes) -> bytes | None:
        try:
            step, reply = self._next(frame)
        except RoundAbandoned:
            self.abandon()
            raise
        session = self._session
        assert session is not None, "a step is of a session"
        self._step, self._reply = step, reply
        if step is None:
            self._session = self._given = None
        else:
            self._session = msgspec.structs.replace(session, frames=(*session.frames, frame))
        return reply

    def _next(self, frame: bytes) -> tuple[_ClientStep | None, bytes | None]:
        match self._step:
            case Advertised() as step:
                shared = step.share(frame)
                return shared, shared.frame
            case Shared() as step:
                step.check(frame)
                masked = step.mask(frame, self._part(round_of(step.descriptor.round)))
                masked.ahead.erase()
                return masked, masked.frame + bytes(little(masked.words))
            case VectorMasked() as step:
                consented = step.consent(frame)
                return consented, consented.frame
            case Consented() as step:
                revealed = step.reveal(frame)
                return revealed, revealed.frame
            case Revealed() as step:
                self.sum_digest = step.acknowledge(frame)
                return None, None
            case None:
                raise AssertionError("no session is open")

    def _part(self, round: int) -> Quantised:
        if self._given is None or self._given.round != round:
            there = "none were given" if self._given is None else f"those of round {self._given.round} were given"
            raise ConfigError(f"the values of round {round} are due; {there}", f"Call give({round}, values) first.")
        return Quantised(np.frombuffer(self._given.words, "<u4").astype(np.uint32), self._given.fingerprint)

    def abandon(self) -> None:
        """Leave the session in progress, as a client that drops out: its secrets are erased."""
        if self._step is not None:
            self._step.abandon()
        self._step = self._session = self._reply = None

    def __repr__(self) -> str:
        return f"<client {self.place} of secure sums, {self._step!r}>"


class SumServer:
    """The coordinator of secure sums: it receives the sum over enough clients, and no more.

    `key`, `members`, `encoding`, `task` as of its clients; `n_min`: the fewest clients in a sum, not below a client's;
    `state`: of before a restart.  Raises ConfigError, RoundAbandoned.
    """

    def __init__(
        self,
        key: bytes,
        members: Sequence[bytes],
        encoding: SumEncoding,
        *,
        task: str,
        n_min: int = 5,
        state: bytes = b"",
    ) -> None:
        self.encoding, self._task, self._n_min = encoding, task, n_min
        self._roster = _roster(members)
        _, self._sign = _signer(key)
        try:
            self._past = Past.from_state(state) if state else Past()
        except UnreadableError:
            raise ConfigError("the state of a secure sum's server is damaged", "Use the bytes of `state`.") from None
        self._step: _ServerStep | None = None
        self._result: SumResult | None = None
        self._round = 0

    @property
    def state(self) -> bytes:
        """Return the begun sums, without secrets: a server that restarts from it begins with a later round."""
        return self._past.state()

    @property
    def places(self) -> range:
        """Return the places of all members, for `begin`."""
        return range(len(self._roster.members))

    @property
    def waiting(self) -> frozenset[int]:
        """Return the clients without a reply in this stage."""
        return frozenset(self._step.waiting) if self._step else frozenset()

    @property
    def result(self) -> SumResult:
        """Return the sum of the round, with its weight, clients and metrics.  Raises ProtocolError before its end."""
        if self._result is None:
            raise ProtocolError(f"round {self._round} has no sum yet", f"Waiting for clients {sorted(self.waiting)}.")
        return self._result

    @property
    def sum(self) -> npt.NDArray[np.float64]:
        """Return the sum of weight times values, [length].  Raises ProtocolError before the end of the round."""
        return self.result.sum

    def begin(self, round: int, clients: Iterable[int], model: bytes = b"") -> dict[int, bytes]:
        """Return the invitation to a round for each client; a round in progress is given up.

        Rounds increase, over restarts too.  `clients`: places in the list of members; the same in every round, or two
        more or less: the difference of two sums must not be one client's values.  Raises RoundAbandoned: TOO_FEW,
        ROSTER (twice), OVERFLOW, REPLAY, POLICY.
        """
        if isinstance(round, bool) or not 0 <= round < LIVES:
            raise ConfigError(f"round {round!r}", f"Rounds are whole numbers from 0 to {LIVES - 1}, and increase.")
        self._step = self._result = None
        self._round, model = round, model_hash(model)
        descriptor = proposal(
            self._roster, self.encoding.ring, tuple(clients),
            task_id=self._task, round=round, model=model, n_min=self._n_min,
        )  # fmt: skip
        step = server.invite(self._roster, descriptor, self.encoding.ring, self._sign)
        self._past.check(descriptor)
        self._past.joined(descriptor.round)
        self._step = step
        return dict.fromkeys(descriptor.cohort, step.frame)

    def collect(
        self,
        round: int,
        clients: Iterable[int],
        send: Callable[[int, bytes], object],
        receive: Callable[[], tuple[int, bytes] | None],
        model: bytes = b"",
    ) -> SumResult:
        """Return the sum of a whole round; frames that change nothing are skipped.

        `receive` returns a client's number and reply, or None at the deadline of a stage.  Raises as `begin` and
        `take`, ProtocolError only after FRAMES_MAX frames of one client, or of no member: they would hold off
        the deadline.
        """
        due = self.begin(round, clients, model)
        while due:
            for client, frame in due.items():
                send(client, frame)
            due, received = {}, Counter[int | None]()
            while self.waiting and not due:
                if (reply := receive()) is None:
                    due = self.close()
                    continue
                sender = reply[0] if reply[0] in self.places else None
                received[sender] += 1
                if received[sender] > FRAMES_MAX:
                    who = "no member" if sender is None else f"client {sender}"
                    text = f"{who}: more than {FRAMES_MAX} frames in a stage"
                    raise ProtocolError(text, "Begin the next round without it.", peer=sender)
                with suppress(ProtocolError):
                    due = self.take(*reply)
        return self.result

    def take(self, client: int, frame: bytes) -> dict[int, bytes]:
        """Take a client's reply; return the next frames after the last of the stage, else {}.

        Raises ProtocolError for a frame that changes nothing, RoundAbandoned where the round ends without a sum.
        """
        frame = _bytes_of(frame)
        if client not in self.places:
            raise ProtocolError("a frame of no member", "Transports name a sender by its place among the members.")
        match self._step:
            case None:
                raise frames.refused(client, "a frame where no round is in progress")
            case server.Summing() as step:
                size = WORD_BYTES * self.encoding.ring.words
                if len(frame) <= size:
                    raise frames.refused(client, f"a frame of {len(frame)} bytes; {size} are of its vector")
                words = np.frombuffer(frame, "<u4", self.encoding.ring.words, len(frame) - size)
                step.take_whole(client, frame[:-size], words)
            case step:
                step.take(client, frame)
        return {} if self.waiting else self.close()

    def close(self) -> dict[int, bytes]:
        """Close the stage, as at its deadline; return the frames of the next one, or of the result.

        Raises RoundAbandoned (TOO_FEW, COMPANY, SHARE_INVALID, BOUND): the round has no sum.
        """
        step, self._step = self._step, None
        if step is None:
            raise ProtocolError("no round is in progress", "Call begin(round, clients).")
        closed = step.close()
        if isinstance(closed, server.Summed):
            self._result = self.encoding.decode(closed.total, closed.survivors, closed.culprits)
            self._past.summed(self._round)
            return dict.fromkeys(closed.survivors, closed.frame)
        d, there = closed.session.descriptor, sorted(closed.expected)
        if isinstance(closed, server.Summing):
            self._past.mask(d, closed.session.sid, together=self.encoding.ring.together)
        if isinstance(closed, server.Consenting) and self.encoding.ring.together:
            self._past.consent(d.round, self._roster.company(there), ranges(there))
        self._step = closed
        if isinstance(closed, server.Consenting):
            return dict.fromkeys(there, closed.frame)
        return {client: closed.frame_for(client) for client in there}

    def __repr__(self) -> str:
        return f"<server of secure sums, {self._step!r}>"
