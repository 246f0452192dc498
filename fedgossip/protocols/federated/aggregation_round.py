"""The aggregation of one round: in the clear here, in one phase; by a secure sum in several.

The coordinator opens an exchange, passes the clients' messages to it, and reads `result` after every event:

    result    None until the end;  then an Aggregate;  or Abandoned;  a LeafSum at a coordinator under another one

`phase` names the awaited messages; each has a separate deadline, which the coordinator sets when the name changes.

Trees: an unmasked sum of integers is a mean for the server's step, or a term of a higher coordinator's sum; the root's
sum does not depend on the tree.  Each coordinator checks a received sum's count, and every element against the bounds
for that number of clients.

Budgets: a spend is written to the log before its release, so a crash can only count too many releases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fedgossip.algorithms.federated.adapter_distance import AdapterDistance
from fedgossip.algorithms.federated.base import (
    Accumulator,
    Aggregate,
    ClientRule,
    ServerRule,
    State,
    Vectors,
    effective_steps,
    saved,
)
from fedgossip.algorithms.federated.coded import UploadCodec
from fedgossip.algorithms.federated.sums import NotSummableError, mean_of
from fedgossip.algorithms.sampling import Draw, Sampling
from fedgossip.base.errors import BudgetError, ProtocolError
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.vectors import Vector, all_finite, frozen
from fedgossip.core.gains import COUNTS
from fedgossip.core.machine import Effect, Log, NodeId, Report, Send
from fedgossip.core.messages import CodedContribution, Contribution, Invite, MaskedInput, Refusal, Secured, Subtotal
from fedgossip.core.records import ADAPTER_DISTANCE
from fedgossip.protocols.federated.client_round import Chances, means_of
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.encoding import NO_NOISE, Noise, NoiseRule, RingEncoding
from fedgossip.secure.fixed_point import CLIPPED, DecodedSum, Quantised, Words

NOT_FINITE = "NOT_FINITE"
"""The reason of a round abandoned because its model is not finite."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A round without effect: `have` contributions of `need`; or another `reason`, one word."""

    have: int
    need: int
    reason: str = "TOO_FEW"
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LeafSum:
    """The sum of a coordinator's clients in the ring, added to the sum of its parent coordinator; a Summand."""

    total: Words
    clients: int

    def integers(self, fixed: RingEncoding, chances: Chances, noise: Noise) -> Quantised:  # noqa: ARG002
        """Return the words unchanged: each client has rounded its input, and added its noise."""
        return Quantised.from_sum(self.total)


Given = Contribution | CodedContribution
"""A contribution in the clear."""

Answer = Given | Secured | MaskedInput | Subtotal | Refusal
"""Messages of a client that belong to a round."""


class Exchange(Protocol):
    """One round.  On ProtocolError it is unchanged."""

    @property
    def phase(self) -> str: ...
    @property
    def result(self) -> Aggregate | LeafSum | Abandoned | None: ...
    @property
    def counted(self) -> Iterable[NodeId]:
        """The clients with a contribution in the aggregate."""

    @property
    def waiting(self) -> Iterable[NodeId]:
        """The invited clients without an answer; at the end, those left out of the round."""

    @property
    def cut(self) -> bool:
        """Whether a deadline ended the round."""

    def begin(self) -> list[Effect]: ...
    def belongs(self, message: Answer) -> bool:
        """Return whether the message is of this round, and not of an earlier one."""

    def handle(self, sender: NodeId, message: Answer) -> list[Effect]:
        """Handle a message that belongs to this round."""

    def lost(self, node: NodeId) -> list[Effect]:
        """Record that a client is gone, or has left."""

    def back(self, node: NodeId, *, another: bool) -> list[Effect]:
        """Handle a returning client, or one that has lost its invitation; `another`: it was restarted."""

    def expired(self) -> list[Effect]:
        """End the phase at its deadline."""

    def facts(self) -> Mapping[str, object]:
        """Return the facts for the records."""


class Summation(Protocol):
    """The summation of rounds not in the clear."""

    @property
    def least(self) -> int:
        """Minimum number of clients of a sum."""

    @property
    def life(self) -> int:
        """Number of the coordinator's restarts."""

    @property
    def members(self) -> frozenset[NodeId] | None:
        """The fixed members of every further sum; None if they may change."""

    def cohort(self, sampling: Sampling, round: int, here: Collection[NodeId], left: Collection[NodeId]) -> Draw:
        """Return the clients to invite; some may be away.  `left`: those that will not return."""

    def exchange(
        self, round: int, draw: Draw, here: Collection[NodeId], invite: Invite, counted: Mapping[NodeId, int]
    ) -> Exchange: ...
    def saved(self) -> Mapping[str, object]:
        """Return the facts for a checkpoint that the next incarnation needs."""

    def forget(self, node: NodeId) -> None:
        """Drop the announcements of a client's earlier incarnation."""


class PlainRound:
    """Invite, and add contributions on arrival: the first `draw.wanted` count.

    It ends when these have arrived, when no answer is awaited, or at the deadline; below `quorum` it is abandoned.
    `counted_before`: the last round that counted each client.  `coding`: the codec of updates, if any.
    """

    phase = "update"

    def __init__(
        self,
        round: int,
        draw: Draw,
        quorum: int,
        rule: ClientRule,
        gathering: Gathered,
        counted_before: Mapping[NodeId, int],
        coding: UploadCodec | None = None,
    ) -> None:
        self.round, self.draw, self.quorum, self.rule = round, draw, quorum, rule
        self.gathering, self.counted_before, self.coding = gathering, counted_before, coding
        self.waiting = set(draw.invited)
        self.cut = False
        self.counted: set[NodeId] = set()
        self.result: Aggregate | Abandoned | None = None

    def begin(self) -> list[Effect]:
        made: dict[int, Invite] = {}  # equal invitations share one object
        effects: list[Effect] = []
        for node in self.draw.invited:
            counted = self.counted_before.get(node, -1)
            if counted not in made:
                made[counted] = self._invite(counted)
            effects.append(Send(node, made[counted]))
        self._end_if_complete()
        return effects

    def _invite(self, counted: int) -> Invite:
        return replace(self.gathering.like, counted=counted)

    def belongs(self, message: Answer) -> bool:
        return isinstance(message, Given | Refusal) and message.round == self.round

    def handle(self, sender: NodeId, message: Answer) -> list[Effect]:
        if isinstance(message, Refusal):
            return [Report("abstained", {"peer": sender, "reason": message.reason}, self.round), *self.lost(sender)]
        assert isinstance(message, Given)
        if sender in self.counted:
            return [Report("repeated", {"peer": sender, "round": self.round}, self.round)]
        if sender not in self.draw.invited:
            raise ProtocolError(f"round {self.round}: client {sender} answers, which is not invited", peer=sender)
        given = self._decode(sender, message)
        self.gathering.check(sender, given)
        self.gathering.add(sender, given, self.rule)
        self.counted.add(sender)
        self.waiting.discard(sender)
        self._end_if_complete()
        return []

    def _decode(self, sender: NodeId, message: Given) -> Contribution:
        """Return the contribution with a decoded update.  Raises ProtocolError if its codec is not the run's."""
        if isinstance(message, CodedContribution) != (self.coding is not None):
            kind = type(message).__name__.lower()
            text = f"round {self.round}: client {sender} answers with a {kind}"
            raise ProtocolError(text, "Give it the same experiment file, with the same coordinator.codec.", peer=sender)
        if isinstance(message, Contribution):
            return message
        assert self.coding
        try:
            return message.make_contribution(self.coding.update_of(message.vectors[0], sender, message.round))
        except ProtocolError as error:
            text = f"round {self.round}: the contribution of client {sender}: {error}"
            raise ProtocolError(text, error.advice, peer=sender) from None

    def lost(self, node: NodeId) -> list[Effect]:
        self.waiting.discard(node)
        self._end_if_complete()
        return []

    def back(self, node: NodeId, *, another: bool) -> list[Effect]:  # noqa: ARG002
        if node not in self.draw.invited or node in self.counted:
            return []
        self.waiting.add(node)
        return [Send(node, self._invite(self.counted_before.get(node, -1)))]

    def expired(self) -> list[Effect]:
        self.cut = True
        self._end()
        return []

    def _end_if_complete(self) -> None:
        if len(self.counted) >= self.draw.wanted or not self.waiting:
            self._end()

    def _end(self) -> None:
        if len(self.counted) >= max(1, self.quorum):
            self.result = self.gathering.aggregate()
        else:
            self.result = Abandoned(len(self.counted), self.quorum)

    def facts(self) -> Mapping[str, object]:
        return self.gathering.facts()


def stepped(server: ServerRule[State], before: State, aggregate: Aggregate) -> State | None:
    """Return the server's next state; None if it would not be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        state = server.step(before, aggregate)
    return state if all(map(all_finite, saved(state).values())) else None


@dataclass(frozen=True)
class ClientsBelow:
    """The allowed numbers of clients in a member coordinator's sum."""

    least: int
    most: int


@dataclass(frozen=True)
class SumReading:
    """A coordinator's rules for reading the sum of its members."""

    rule: ClientRule
    kind: np.dtype[np.floating]
    noise: NoiseRule | None = None
    """The noise of each client, also below other coordinators."""
    coding: UploadCodec | None = None
    """The codec of the summed elements, if they are coded."""
    below: Mapping[NodeId, ClientsBelow] = field(default_factory=dict)
    """The limits of member coordinators; other members are one client each."""
    onward: bool = False
    """Whether the sum is for another coordinator."""

    def decoded(self, total: Words, members: Sequence[NodeId], fixed: RingEncoding) -> DecodedSum:
        """Return the values in a sum over `members`.  Raises RoundAbandoned for a sum that they cannot produce."""
        noise = self.noise.compute_noise(fixed) if self.noise else NO_NOISE
        return fixed.decode(total, self._clients(total, members, fixed), noise.sigma, noise.bit_sigma)

    def _clients(self, total: Words, members: Sequence[NodeId], fixed: RingEncoding) -> int:
        if not self.below:
            return len(members)
        if total.shape != (fixed.words,):
            raise RoundAbandoned(Reason.SCHEMA, f"a sum of {total.size} words; {fixed.words} were agreed")
        count = fixed.clients_in(total)
        least = sum(self.below[node].least for node in members)
        most = sum(self.below[node].most for node in members)
        if not least <= count <= most:
            text = f"a sum of {count} clients, by coordinators with {least} to {most}"
            raise RoundAbandoned(Reason.OVERFLOW, text)
        return count

    def result(self, found: DecodedSum, total: Words, round: int) -> Aggregate | LeafSum:
        """Return the result of a round with this sum."""
        if self.onward:
            return LeafSum(total, found.clients)
        mean = frozen(found.mean.astype(self.kind))
        vectors = (self.coding.whole(mean, round),) if self.coding else split(mean, self.rule.vectors)
        return Aggregate(vectors, found.clients, found.metrics.get("steps", 1.0))

    def facts(self, found: DecodedSum, fixed: RingEncoding) -> dict[str, object]:
        """Return the facts for the records."""
        facts: dict[str, object] = {"clients": found.clients, **means_of(found.metrics)}
        if fixed.tells == CLIPPED:
            facts["clipped"] = found.clipped
        if fixed.weight_max > 1:
            facts["examples"] = round(found.samples)
        return facts | counts_in(found, fixed)


def counts_in(found: DecodedSum, fixed: RingEncoding) -> dict[str, int]:
    """Return the counts over clients in a sum; {} without any.  Exact: each client adds a rounded weight unit."""
    unit = fixed.limit / fixed.weight_max
    once = found.samples * unit / max(1, round(unit))
    counts = {name: round(value * once) for name, value in found.metrics.items() if name in COUNTS}
    return counts if any(counts.values()) else {}


def split(vector: Vector, count: int) -> Vectors:
    """Split a vector that `client_round.joined` has concatenated."""
    length = vector.size // count
    return tuple(vector[k * length : (k + 1) * length] for k in range(count))


LOSS_MOST = 1e30
"""Maximum loss that a client may report: sums over many clients with many examples stay finite."""


class Gathered:
    """The sum and `facts` of exactly the added contributions; memory is that of the accumulator.

    `like`: the invitation, with the layout of every contribution.  `score`: the clients' metric.  `adapters`: measures
    the distance of the averaged adapters, if any.
    """

    def __init__(
        self, accumulator: Accumulator, like: Invite, score: Score = ACCURACY, adapters: AdapterDistance | None = None
    ) -> None:
        self.accumulator, self.like, self.score, self.adapters = accumulator, like, score, adapters
        self.clients = self.examples = 0
        self.losses: list[tuple[int, float]] = []
        self.scores: list[tuple[int, float]] = []

    def check(self, sender: NodeId, message: Contribution) -> None:
        """Raise ProtocolError for a contribution of another layout, or with an impossible score."""
        where = _describe(sender, message)
        check_layout(where, sender, message.schema, message.vectors, self.like)
        measured = 0.0 <= message.measured <= 1.0 if self.score.share else abs(message.measured) <= LOSS_MOST
        bounded = abs(message.loss or 0.0) <= LOSS_MOST and measured  # both false for a nan
        if message.examples < 1 or message.steps < 1 or not bounded:
            counts = f"{message.examples} examples, {message.steps} steps, a loss of {message.loss}"
            raise ProtocolError(f"{where} is of {counts}", "Has the client data?", peer=sender)

    def add(self, sender: NodeId, message: Contribution, rule: ClientRule, share: float = 1.0) -> None:
        """Add a checked contribution, with `share` of its rule's weight.

        Raises ProtocolError, and changes nothing, if its numbers cannot be added.
        """
        weight, steps = rule.weight(message.examples) * share, effective_steps(rule, message.steps)
        try:
            self.accumulator.add(sender, weight, message.vectors, steps)
        except NotSummableError:
            text = f"{_describe(sender, message)} is not finite, or too large to be summed"
            raise ProtocolError(text, "Did its training explode?", peer=sender) from None
        if self.adapters:
            self.adapters.add(sender, weight, message.vectors[0])
        self.clients += 1
        self.examples += message.examples
        if message.loss is not None:
            self.losses.append((message.examples, message.loss))
        if message.tested:
            self.scores.append((message.tested, message.measured))

    def aggregate(self) -> Aggregate:
        return self.accumulator.aggregate()

    def facts(self) -> dict[str, object]:
        """Return the facts for the records: the number of clients and of examples, the mean loss, and any scores."""
        loss = mean_of(self.losses) if self.losses else None
        found: dict[str, object] = {"clients": self.clients, "examples": self.examples, "loss": loss}
        if self.scores:
            found["score"] = mean_of(self.scores)
            found["worst"] = self.score.worst(score for _, score in self.scores)
        if self.adapters and (apart := self.adapters.value()) is not None:
            found[ADAPTER_DISTANCE] = apart
        return found


def _describe(sender: NodeId, message: Contribution) -> str:
    return f"round {message.round}: the contribution of client {sender}"


def check_layout(where: str, sender: NodeId, schema: str, vectors: Vectors, like: Invite) -> None:
    """Raise ProtocolError if the vectors do not have the layout of `like`."""
    shapes = [(v.dtype, v.shape) for v in vectors]
    if schema != like.schema or shapes != [(v.dtype, v.shape) for v in like.vectors]:
        text = f"{where} is of another layout (schema {schema:.16}, ours {like.schema}; {len(vectors)} vectors)"
        raise ProtocolError(text, "Give every client the same [model] section and algorithm.", peer=sender)


EXHAUSTED = "BUDGET"
"""The reason of a refusal."""


class RoundBudget(Protocol):
    """The budget of one participant, less the spends of earlier incarnations."""

    @property
    def epsilon(self) -> float:
        """The spent epsilon."""

    def pay(self, round: int) -> Sequence[Mapping[str, int | float | str]]:
        """Spend the cost of one round, and return its lines of the log.  Raises BudgetError and then spends nothing."""


def log_spent(facts: Mapping[str, int | float | str]) -> Log:
    return Log("spent", facts)


def budget_reached(error: BudgetError, round: int) -> Report:
    """Return the report of a budget that does not allow the next round."""
    return Report("budget", {"text": str(error), "advice": error.advice}, round)
