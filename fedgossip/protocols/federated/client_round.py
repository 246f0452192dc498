"""A client's part in a round: it answers in the clear, or takes part in a secure sum.

The client opens a part for every invitation and sends the effects that it returns:

    open    --Invite-->  training  --Trained-->  answered                                           PlainPart
    joined  --keys-->  shared  --delivery and Trained-->  masked  --survivors-->  consented
            --consents-->  revealed  --result-->  done                                              SecurePart

A repeated request is answered again, and carried out once.  A session that no honest coordinator would run ends with a
`Refusal` and its reason.

Metrics sent with a client's vectors, declared once for machines and plan texts:

    of unit      exact                                     covered: has noise, or follows from noisy values
    none         examples, steps, loss, kept, tests, cut,  -
                 and of personal models gains, twentieth,
                 of users' own loops logged
    record       examples, steps                           cut; kept and tests, if the count has its own noise
    client       -                                         shorter, if the clip follows the updates

An undeclared fact is never sent: its fields are BLANK in a `Contribution`, and a secure sum has no coordinate for it.
`tests`, the number of right answers on held-out examples, counts single records: if records are protected it stays at
the client, or gets noise there (`test_noise` of [coordinator.privacy]).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from fedgossip.algorithms.federated.base import Vectors
from fedgossip.base.errors import ProtocolError
from fedgossip.base.limits import MOST
from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.gains import BEHIND, COUNTS, TWENTIETHS
from fedgossip.core.machine import Effect, Log, NodeId, Report, Send
from fedgossip.core.messages import (
    CodedContribution,
    Contribution,
    Invite,
    MaskedInput,
    Message,
    Refusal,
    Secured,
    Subtotal,
)
from fedgossip.protocols.gossip.failures import refused_by
from fedgossip.secure import frames
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage
from fedgossip.secure.client import Advertised, Consented, Revealed, SecAggClient, Shared, VectorMasked
from fedgossip.secure.encoding import Noise, RingEncoding
from fedgossip.secure.fixed_point import Quantised, words
from fedgossip.secure.noise import discrete_gaussian
from fedgossip.secure.primitives import Entropy
from fedgossip.secure.secrets import Ahead
from fedgossip.secure.session import ids_in, ranges
from fedgossip.secure.session_history import UNRECORDED, Past


def ended_early(round: int, rounds: int) -> Report:
    """Report that the coordinator ended the run after `round` of `rounds`, which are MOST if loops end it."""
    return Report("ended_early", {"rounds": round} | ({"of": rounds} if rounds < MOST else {}), round)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedContribution:
    """The prepared answer: the vectors, the numbers of examples and steps, and facts for the mean of all clients."""

    up: Vectors
    weight: int
    """Its weight in the mean, a whole number."""
    examples: int
    steps: int
    counted: float
    """The contribution of its steps to a sum (`effective_steps`)."""
    loss: float | None
    measured: float = 0.0
    """The score of the received model, on `tested` examples held out for it."""
    tested: int = 0
    counts: Mapping[str, float] = field(default_factory=dict)
    """Its contributions to counts over clients, by name; only a secure sum contains them."""

    def answer_to(self, invite: Invite) -> Contribution | CodedContribution:
        """Return the answer in the clear."""
        contents = self.up, self.examples, self.steps, self.loss, self.measured, self.tested
        if self.up[0].dtype == np.uint8:
            return CodedContribution(invite.round, self.up[0].size, invite.schema, *contents)
        return Contribution(invite.round, invite.schema, *contents)

    def metrics(self, names: Sequence[str]) -> dict[str, float]:
        """Return metrics for a weighted sum: counts are divided by the weight, so that each client adds the count."""
        metrics_sent = {"steps": self.counted, "loss": self.loss, "measured": self.measured}
        metrics_sent |= {"logged": float(self.loss is not None), "tested": float(self.tested > 0)}
        metrics_sent |= {name: count / self.weight for name, count in self.counts.items()}
        return {name: float(metrics_sent[name] or 0.0) for name in names}

    @property
    def clients(self) -> int:
        return 1

    def integers(self, fixed: RingEncoding, chances: Chances, noise: Noise) -> Quantised:
        return integers(fixed, self, chances, noise)


class Summand(Protocol):
    """A participant's term of a sum of integers: a client's answer, or the sum of a coordinator's clients."""

    @property
    def clients(self) -> int:
        """Number of clients in the term."""

    def integers(self, fixed: RingEncoding, chances: Chances, noise: Noise) -> Quantised:
        """Return its words in the ring.  Raises RoundAbandoned."""


class ClientPart(Protocol):
    """On ProtocolError it is unchanged."""

    @property
    def over(self) -> bool:
        """Whether the part is over: it returns nothing more."""

    def begin(self) -> list[Effect]: ...
    def trained(self, work: PreparedContribution) -> list[Effect]: ...
    def handle(self, message: Message) -> list[Effect]: ...
    def again(self) -> list[Effect]:
        """Return the effects that repeat the last message."""

    def give_up(self) -> list[Effect]:
        """End the part: another round has begun, or the coordinator is silent."""

    def coordinator_restarted(self) -> list[Effect]:
        """Handle a restart of the coordinator, which loses this round."""


class OneAnswer:
    """A part with one message, repeated on request; the coordinator sends only the invitation."""

    def __init__(self, coordinator: NodeId, invite: Invite) -> None:
        self.coordinator, self.invite = coordinator, invite
        self.answer: Contribution | CodedContribution | Subtotal | Refusal | None = None
        self.over = False

    def begin(self) -> list[Effect]:
        return []

    def again(self) -> list[Effect]:
        return [Send(self.coordinator, self.answer)] if self.answer else []

    def give_up(self) -> list[Effect]:
        self.over = True
        return []

    def coordinator_restarted(self) -> list[Effect]:
        return []  # it repeats the request, and gets the same answer


class PlainPart(OneAnswer):
    """Answers with a `Contribution`, or an encoded one."""

    def trained(self, work: PreparedContribution) -> list[Effect]:
        invite = self.invite
        self.answer = work.answer_to(invite)
        facts = {"round": invite.round, "to": self.coordinator, "bytes": self.answer.payload_bytes}
        return [Log("contribution", facts, work.up), *self.again()]

    def handle(self, message: Message) -> list[Effect]:
        kind = type(message).__name__.lower()
        raise ProtocolError(f"a message of kind {kind!r} in a round without a secure sum", peer=self.coordinator)


_Facts = dict[str, int | str]
_Step = Advertised | Shared | VectorMasked | Consented | Revealed
Stepped = TypeVar("Stepped", bound=_Step)

_DUE: dict[type[object], Stage] = {
    Advertised: Stage.SHARES,
    Shared: Stage.MASKED,
    VectorMasked: Stage.CONSIST,
    Consented: Stage.UNMASK,
    Revealed: Stage.RESULT,
}
"""The stage of the frame that each step awaits."""


class SecurePart:
    """One session of a secure sum; `ahead`: the keys announced in the last session; `party`: this client."""

    def __init__(
        self,
        party: SecAggClient,
        coordinator: NodeId,
        invite: Invite,
        chances: Callable[[int], Chances],
        ahead: Ahead | None,
        look: Callable[[], None] | None = None,
    ) -> None:
        """`chances`: random streams of a round.  `look`: checks the request; raises RoundAbandoned."""
        self.party, self.coordinator, self.invite, self.chances = party, coordinator, invite, chances
        self.ahead = ahead
        """The keys for the next session, after the masked vector."""
        self.over = False
        self.survivors, self.sum_digest = 0, b""
        """Number of clients in the sum, and the hash of the sum signed by the coordinator; 0 and b"" before."""
        self._look = look
        self._step: _Step | None = None
        self._said: list[Effect] = []
        self._answered: list[bytes] = []  # the answered frames, one of each stage
        self._early: dict[int, bytes] = {}  # frames of later stages, received before their predecessors
        self._delivery = b""  # received before the end of the training
        self._work: Summand | None = None

    def begin(self) -> list[Effect]:
        try:
            if look := self._look:
                self._look = None  # it holds the part before this one
                look()
            step = self.party.join(self.invite.frame, bytes.fromhex(digest(self.invite.vectors)), self.ahead)
            if step.descriptor.round != self.invite.session:  # the session's name in the log
                raise step.abandon(Reason.REPLAY, f"session {step.descriptor.round} as session {self.invite.session}")
        except RoundAbandoned as refused:
            if self.ahead:
                self.ahead.erase()
            return self._refuse(refused)
        self.ahead = None
        self._step = step
        d = step.descriptor
        facts = _Facts(clients=len(d.cohort), cohort=ranges(d.cohort), threshold=d.t, least=d.n_min)
        keys = step.frame or b""
        return [
            self._log("joined", Stage.KEYS, keys, **facts),
            *self._send([self._secured(Stage.KEYS, keys)] if keys else []),
        ]

    # --- received frames ----------------------------------------------------------------------------------------------

    def handle(self, message: Message) -> list[Effect]:
        if not isinstance(message, Secured):
            kind = type(message).__name__.lower()
            raise ProtocolError(f"a message of kind {kind!r} in a secure sum", peer=self.coordinator)
        if self.over or message.session != self.invite.session:
            return [Report("late", {"peer": self.coordinator, "session": message.session}, self.invite.round)]
        if message.frame in self._answered:
            return self.again() if message.frame == self._answered[-1] else []
        due = _DUE[type(self._step)]
        if message.stage > due:
            self._early[int(min(message.stage, Stage.RESULT))] = message.frame
            return []
        try:
            effects = self._take(message.frame)
        except RoundAbandoned as refused:
            return self._refuse(refused)
        return effects + self._overtaken()

    def _overtaken(self) -> list[Effect]:
        """Handle the early frame, if it is due; an invalid one keeps earlier effects."""
        if self.over or (frame := self._early.pop(due := _DUE[type(self._step)], None)) is None:
            return []
        try:
            return self.handle(Secured(self.invite.session, due, frame))
        except ProtocolError as error:
            return [refused_by(error, self.invite.round)]

    def _take(self, frame: bytes) -> list[Effect]:
        match self._step:
            case Advertised() as step:
                shared = step.share(frame)
                self._step = self._next(shared, frame)
                return self._leave("shares", Stage.SHARES, shared.frame)
            case Shared() as step:
                step.check(frame)
                self._keep(frame)
                return self._mask()
            case VectorMasked() as step:
                consented = step.consent(frame)
                self._step = self._next(consented, frame)
                about = _Facts(survivors=len(consented.survivors), of=ranges(consented.survivors))
                if (fixed := self.party.policy.fixed).together:
                    past = self.party.past
                    about |= {"sites": past.members, "company": past.company, "layout": fixed.schema.hex()}
                self.survivors = len(consented.survivors)
                return self._leave("consent", Stage.CONSIST, consented.frame, **about)
            case Consented() as step:
                revealed = step.reveal(frame)
                self._step = self._next(revealed, frame)
                facts = {"alive": ranges(revealed.alive), "dropped": ranges(revealed.dropped)}
                return self._leave("reveal", Stage.UNMASK, revealed.frame, **facts)
            case Revealed() as step:
                digest = step.acknowledge(frame)
                self._step, self.over, self.sum_digest = None, True, digest
                return [self._log("result", Stage.RESULT, b"", sum_sha256=digest.hex())]
            case None:
                raise ProtocolError("a frame for a session that is over", peer=self.coordinator)

    def _next(self, step: Stepped, frame: bytes) -> Stepped:
        self._answered.append(frame)
        return step

    def _keep(self, delivery: bytes) -> None:
        """Store the first delivery of the others' shares until the vector is masked."""
        if self._delivery and delivery != self._delivery:
            raise RoundAbandoned(Reason.TWICE, "a second, different delivery", stage=Stage.MASKED)
        self._delivery = delivery

    # --- the masked vector ------------------------------------------------------------------------------------------

    def trained(self, work: Summand) -> list[Effect]:
        self._work = work
        try:
            effects = self._mask()
        except RoundAbandoned as refused:
            return self._refuse(refused)
        return effects + self._overtaken()

    def _mask(self) -> list[Effect]:
        step, work = self._step, self._work
        if not (isinstance(step, Shared) and work and self._delivery):
            return []
        d = step.descriptor
        quantised = work.integers(self.party.policy.numbers(d), self.chances(self.invite.round), d.dp)
        masked = step.mask(self._delivery, quantised)
        self._step, self._delivery, self._work = self._next(masked, self._delivery), b"", None
        self.ahead = masked.ahead
        message = MaskedInput(self.invite.session, int(Stage.MASKED), masked.frame, self.invite.schema, (masked.words,))
        facts = _Facts(vector_sha256=masked.digest.hex(), words=masked.words.size, input=quantised.fingerprint.hex())
        return [self._log("masked", Stage.MASKED, masked.frame, **facts), *self._send([message])]

    # --- sent frames --------------------------------------------------------------------------------------------------

    def _leave(self, kind: str, stage: Stage, frame: bytes, **facts: int | str) -> list[Effect]:
        return [self._log(kind, stage, frame, **facts), *self._send([self._secured(stage, frame)])]

    def _secured(self, stage: Stage, frame: bytes) -> Secured:
        return Secured(self.invite.session, int(stage), frame)

    def _send(self, messages: Sequence[Message]) -> list[Effect]:
        self._said = [Send(self.coordinator, message) for message in messages]
        return list(self._said)

    def _log(self, kind: str, stage: Stage, frame: bytes, **facts: int | str) -> Log:
        about: dict[str, int | float | str] = {
            "session": self.invite.session,
            "round": self.invite.round,
            "stage": stage.name,
            "to": self.coordinator,
            "bytes": len(frame),
        }
        if frame:
            about["sha256"] = frames.body_hash(frame).hex()
        return Log(kind, {**about, **facts})

    def again(self) -> list[Effect]:
        return list(self._said)

    def give_up(self) -> list[Effect]:
        if self.over or self._step is None:
            return []
        abandoned = self._step.abandon()
        return [self._ended(abandoned.reason)]

    def coordinator_restarted(self) -> list[Effect]:
        return self.give_up()

    def _refuse(self, refused: RoundAbandoned) -> list[Effect]:
        """End the session; the log gets the reason without the refused frame."""
        if self._step is not None:
            self._step.abandon()
        about = {"reason": refused.reason.value, "text": str(refused), "advice": refused.advice}
        if refused.reason in (Reason.COMPANY, Reason.POINT):
            about["asked"] = f"{refused.what}.  {refused.advice}"
        refusal = Refusal(self.invite.round, self.invite.session, refused.reason.value)
        return [
            self._ended(refused.reason),
            Report("abandoned_here", about, self.invite.round),
            *self._send([refusal]),
        ]

    def _ended(self, reason: Reason) -> Log:
        self._step, self._delivery, self._work, self.over = None, b"", None, True
        return self._log("refused", Stage.RESULT, b"", reason=reason.value)


@dataclass(frozen=True)
class Chances:
    """Random streams of one client in one round: for rounding, possibly public, and for noise, secret."""

    rounding: Entropy
    noise: Entropy


def integers(fixed: RingEncoding, work: PreparedContribution, chances: Chances, noise: Noise) -> Quantised:
    """Return a client's input to the sum: rounded, and hidden by its share of the noise, if any."""
    metrics = work.metrics([name for name, _ in fixed.metrics])
    weight = 1 if fixed.weight_max == 1 else work.weight
    quantised = fixed.encode(joined(work.up), weight, metrics, chances.rounding)
    if noise.on:
        quantised.values[: fixed.length] += words(discrete_gaussian(noise.sigma, fixed.length, chances.noise))
    if noise.bit_sigma:
        place = slice(fixed.length + 1, fixed.length + 2)  # behind the weight
        quantised.values[place] += words(discrete_gaussian(noise.bit_sigma, 1, chances.noise))
    return quantised


def joined(vectors: Vectors) -> Vector:
    """Return the concatenation of vectors; of a single one itself."""
    return vectors[0] if len(vectors) == 1 else frozen(np.concatenate(vectors))


def past_of(log: Sequence[tuple[str, Mapping[str, object]]]) -> Past:
    """Return a client's record of its earlier incarnations, read from its log."""
    past, cohort = Past(), list[int]()
    for kind, facts in log:
        session = int(str(facts.get("session", -1)))
        match kind:
            case "joined":
                past.joined(session)
                cohort = ids_in(str(facts["cohort"]))
            case "masked":
                past.masked(session, cohort, bytes.fromhex(str(facts["input"])))
            case "consent" if "company" in facts:
                past.company, past.members = str(facts["company"]), str(facts["sites"])
            case "consent":
                past.agree(session, str(facts.get("of", UNRECORDED)))
            case "result":
                past.summed(session)
    return past


@dataclass(frozen=True)
class Fact:
    """`fields`: of a `Contribution`, or coordinates of a secure sum."""

    name: str
    fields: tuple[str, ...]
    words: str


FACTS = (
    Fact("examples", ("examples",), "the number of examples"),
    Fact("steps", ("steps",), "the number of training steps"),
    Fact("loss", ("loss",), "the mean loss"),
    Fact("logged", ("logged",), "whether its loop logs a loss"),
    Fact("kept", ("tested",), "whether it keeps examples for tests, in the clear how many"),
    Fact("tests", ("measured",), "how well the model does on the examples kept for tests"),
    Fact("gains", BEHIND, "whether its own model does worse than the shared one, and than one trained alone"),
    Fact("twentieth", TWENTIETHS, "the twentieth in which its own model's share of right answers lies"),
    Fact("cut", ("clipped",), "whether an update was cut to the bound"),
    Fact("shorter", ("shorter",), "whether an update was shorter than the clip"),
)

SENT_SCORE = "read_score"

BLANK: Mapping[str, float | None] = {"examples": 1, "steps": 1, "loss": None, "measured": 0.0, "tested": 0}
"""The values of unsent fields of a `Contribution`."""


@dataclass(frozen=True)
class SentMetrics:
    """The facts that the clients of a run send, by the names of FACTS."""

    exact: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    """Facts covered by the noise of the budget: with separate noise, or computed from noisy values."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a `Contribution`, or coordinates of a sum, that contain a fact."""
        return _fields_of((*self.exact, *self.covered))

    @property
    def measured(self) -> str:
        """The metric of a training with the score to send: with noise, if that covers it."""
        return SENT_SCORE if "tests" in self.covered else "score"

    def blank_unsent(self, work: PreparedContribution) -> PreparedContribution:
        """Return the work with blank values for unsent facts."""
        fields = self.fields
        blank: Any = {field: value for field, value in BLANK.items() if field not in fields}
        return replace(work, **blank) if blank else work

    @property
    def counts(self) -> tuple[str, ...]:
        """The fields that count participants: each adds 0 or 1, regardless of its weight."""
        return tuple(name for name in self.fields if name in COUNTS)

    def words(self, names: tuple[str, ...]) -> list[str]:
        return [fact.words for fact in FACTS if fact.name in names]


@cache
def _fields_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(field for fact in FACTS if fact.name in fields for field in fact.fields)


EVERYTHING = SentMetrics(
    tuple(fact.name for fact in FACTS if fact.name not in ("shorter", "gains", "twentieth", "logged"))
)
"""All facts in the clear, if nothing is protected and clients test."""


def metrics_of(
    unit: str,
    *,
    secure: bool,
    by_examples: bool,
    tested: bool,
    adaptive: bool,
    noisy_tests: bool = False,
    compared: Sequence[str] = (),
    loops: bool = False,
) -> SentMetrics:
    """Return the facts that clients send if a budget protects `unit`: "none", "record" or "client".

    `secure`: by a secure sum, which reveals the totals of examples (`by_examples`) and of clipped updates.  `tested`:
    clients test the received model; `noisy_tests`: with noise on the count.  `adaptive`: the clip follows the updates.
    `compared`: facts on personal models.  `loops`: users' own loops, some of which may log no loss.
    """
    if unit == "client":
        return SentMetrics(covered=("shorter",) if adaptive else ())
    counts = ("examples", "steps") if by_examples or not secure else ("steps",)
    cut = ("cut",) if secure else ()
    kept = ("kept",) if tested else ()
    if unit == "record" and tested and noisy_tests:
        return SentMetrics((*counts, *kept), ("tests", *cut))
    if unit == "record":
        return SentMetrics(counts, cut)
    own = compared if secure and tested else ()
    loss = ("loss", "logged") if secure and loops else ("loss",)
    return SentMetrics((*counts, *loss, *kept, *(["tests"] if tested else []), *own, *cut))


def means_of(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return the mean loss (None: no client has one) and the mean scores in a secure sum, weighted like the sum."""
    logged, tested = metrics.get("logged", 1.0), metrics.get("tested")
    found: dict[str, float | None] = {"loss": metrics["loss"] / logged if "loss" in metrics and logged else None}
    return found | ({"score": metrics["measured"] / tested} if tested and "measured" in metrics else {})
