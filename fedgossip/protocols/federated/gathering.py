"""Contributions in the clear, added on arrival: of one round, or of one step of a buffered server.

The spending of a privacy budget by a machine: a line in its log first, then the release that it pays for.

In this order a crash can only count a release that was never made.  An exhausted budget ends the machine's part:
nothing unpaid is released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fedgossip.algorithms.federated.adapter_distance import AdapterDistance
from fedgossip.algorithms.federated.base import Accumulator, Aggregate, ClientRule, Vectors, effective_steps
from fedgossip.algorithms.federated.sums import NotSummableError, mean_of
from fedgossip.base.errors import BudgetError, ProtocolError
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.core.adapter_names import ADAPTER_DISTANCE
from fedgossip.core.machine import Log, NodeId, Report
from fedgossip.core.messages import Contribution, Invite

LOSS_MOST = 1e30
"""Maximum loss that a client may report: sums over many clients with many examples stay finite."""


class Gathered:
    """`aggregate` and `facts` contain exactly the added contributions; memory is that of the accumulator.

    `like`: the invitation, with the layout of every contribution.  `score`: what clients measure.  `adapters`: measures
    what the mean of the updates makes of adapters, if any.
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
        where = _of(sender, message)
        check_layout(where, sender, message.schema, message.vectors, self.like)
        measured = 0.0 <= message.measured <= 1.0 if self.score.share else abs(message.measured) <= LOSS_MOST
        bounded = abs(message.loss or 0.0) <= LOSS_MOST and measured  # both false for a nan
        if message.examples < 1 or message.steps < 1 or not bounded:
            counts = f"{message.examples} examples, {message.steps} steps, a loss of {message.loss}"
            raise ProtocolError(f"{where} is of {counts}", "Has the client data?", peer=sender)

    def add(self, sender: NodeId, message: Contribution, rule: ClientRule, share: float = 1.0) -> None:
        """Add a checked contribution, with `share` of the weight that its rule gives it.

        Raises ProtocolError, and changes nothing, where its numbers cannot be added.
        """
        weight, steps = rule.weight(message.examples) * share, effective_steps(rule, message.steps)
        try:
            self.accumulator.add(sender, weight, message.vectors, steps)
        except NotSummableError:
            text = f"{_of(sender, message)} is not finite, or too large to be summed"
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


def _of(sender: NodeId, message: Contribution) -> str:
    return f"round {message.round}: the contribution of client {sender}"


def check_layout(where: str, sender: NodeId, schema: str, vectors: Vectors, like: Invite) -> None:
    """Raise ProtocolError where the vectors do not have the layout of `like`."""
    shapes = [(v.dtype, v.shape) for v in vectors]
    if schema != like.schema or shapes != [(v.dtype, v.shape) for v in like.vectors]:
        text = f"{where} is of another layout (schema {schema:.16}, ours {like.schema}; {len(vectors)} vectors)"
        raise ProtocolError(text, "Give every client the same [model] section and algorithm.", peer=sender)


EXHAUSTED = "BUDGET"
"""The reason of a refusal."""


class RoundBudget(Protocol):
    """The budget of one participant, less the spending of earlier lives."""

    @property
    def epsilon(self) -> float:
        """The spent epsilon."""
        ...

    def pay(self, round: int) -> Sequence[Mapping[str, int | float | str]]:
        """Spend the cost of one round, and return its lines of the log.  Raises BudgetError; nothing is spent then."""
        ...


def spent(facts: Mapping[str, int | float | str]) -> Log:
    return Log("spent", facts)


def budget_reached(error: BudgetError, round: int) -> Report:
    """Return the report of a budget that does not allow the next round."""
    return Report("budget", {"text": str(error), "advice": error.advice}, round)
