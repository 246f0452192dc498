"""Federated rounds without messages, with the same bits: the cohort trains in one call, then the server takes its step.

A secure sum's contributions are rounded and added in the ring; masks cancel and are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgossip.algorithms.federated.base import (
    Aggregate,
    Federated,
    Vectors,
    Work,
    effective_steps,
    failures_of,
    is_over,
)
from fedgossip.algorithms.federated.coded import UploadCodec
from fedgossip.algorithms.federated.sums import mean_of
from fedgossip.algorithms.sampling import Sampling, SamplingByLosses
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.machine import Aggregated, LocalWork, NodeId
from fedgossip.core.messages import Invite
from fedgossip.core.meter import Meter
from fedgossip.core.metrics import Network
from fedgossip.core.records import FOLLOWED_MOST, EventRow, PeerRow, Row
from fedgossip.core.task import Job, LocalTask, Update, perform_jobs
from fedgossip.core.wire import wire_bytes
from fedgossip.protocols.federated.aggregation_round import counts_in, split
from fedgossip.protocols.federated.client_round import (
    EVERYTHING,
    Chances,
    PreparedContribution,
    SentMetrics,
    integers,
    means_of,
)
from fedgossip.secure.encoding import NO_NOISE, RingEncoding
from fedgossip.secure.fixed_point import RING_BITS, add


def check_cohorts(sampling: Sampling, clients: int) -> None:
    """Raise ConfigError if times matter: rounds end with the first answers, or cohorts depend on reported losses."""
    if isinstance(sampling, SamplingByLosses):
        raise ConfigError("the stacked engine draws no cohorts by reported losses", "Run it with --on sim.")
    draw = sampling.draw(0, range(clients))
    if draw.wanted < len(draw.invited):
        first = f"the first {draw.wanted} of {len(draw.invited)} answers"
        raise ConfigError(f"the stacked engine has no time: it cannot count {first}", "Run it with --on sim.")


@dataclass(frozen=True)
class Rounds:
    """The settings of a run's rounds.  `fixed`: rounding for the secure sum; `chances`: of each client, for it."""

    federated: Federated[Any]
    sampling: Sampling
    clients: int
    rounds: int
    least: int
    fixed: RingEncoding | None
    chances: Sequence[Callable[[int], Chances]]
    score: Score = ACCURACY
    sent_metrics: SentMetrics = EVERYTHING
    accumulate: int | None = None
    """As in `ClientSettings`."""
    coding: UploadCodec | None = None
    """The encoding of uploads; None: uncoded."""

    def start(self, task: LocalTask) -> Standing:
        """Return the initial state of a run, for cohorts that pass `check_cohorts`."""
        meters = [Meter(node) for node in range(self.clients + 1)]
        return Standing(0, self.federated.server.start(task.initial(self.clients)), {}, {}, meters)


@dataclass
class Standing:
    """The state of a run between two rounds: the server's, each client's memory, and the round that last `counted` it.

    `meters`: of the clients, then the coordinator.
    """

    round: int
    state: Any
    memory: dict[NodeId, Vectors]
    counted: dict[NodeId, int]
    meters: list[Meter]


def run_rounds(
    rounds: Rounds,
    standing: Standing,
    task: LocalTask,
    record: Network,
    write: Callable[[Row], None],
    *,
    tests: Callable[[int], bool] = lambda _round: False,
    between: Callable[[], None] = lambda: None,
) -> Vector:
    """Run all remaining rounds; return the global model.  `between` is called between two rounds.

    Rows equal those of a faultless simulation except for times, and for bytes of a secure sum: keys, shares and
    signatures are not counted.
    """
    server, coordinator = rounds.federated.server, standing.meters[-1]
    for number in range(standing.round, rounds.rounds):
        if record.over or is_over(server, server.broadcast(standing.state)[0]):
            break
        between()
        received = server.broadcast(standing.state)
        cohort = rounds.sampling.draw(number, range(rounds.clients)).invited
        if len(cohort) >= max(rounds.least, rounds.federated.aggregation.least):
            for worked in _round(rounds, standing, task, number, received, cohort, tested=tests(number)):
                for row in record.aside(worked):
                    write(row)
        if failed := failures_of(server, standing.state):
            write(EventRow(number, rounds.clients, "line_search_failed", dict(failed)))
        standing.round = number + 1
        model = server.broadcast(standing.state)[0]
        for row in record.mixed(coordinator.mixed(number + 1, 0, 0, None), model):
            write(row)
    return server.broadcast(standing.state)[0]


def _round(
    rounds: Rounds,
    standing: Standing,
    task: LocalTask,
    number: int,
    received: Vectors,
    cohort: Sequence[NodeId],
    *,
    tested: bool,
) -> list[PeerRow]:
    """Take the server's step with the cohort's contributions; return its rows."""
    if not all(map(summable, received)):
        text = f"the model of round {number} is not finite, or too large to be trained"
        raise TrainingError(text, "Look at the data, or lower train.lr and the server's rate.")
    rule, memory, rows = rounds.federated.clients, standing.memory, list[PeerRow]()
    terms = [rule.terms(received, memory.get(node, ())) for node in cohort]
    asked = zip(cohort, terms, strict=True)
    jobs = [Job(node, number, received[0], term, tested, rule.gradient, rounds.accumulate) for node, term in asked]
    sums = _Ring(rounds, number, received[0]) if rounds.fixed else _Exact(rounds, number, received[0])
    for node, update in zip(cohort, perform_jobs(task, jobs), strict=True):
        work = _work(update, received[0], rounds, node, number)
        up, kept = rule.upload(received, memory.get(node, ()), work)
        if kept:
            memory[node] = kept
        m = update.metrics
        contribution = rounds.sent_metrics.blank_unsent(PreparedContribution(
            up, int(rule.weight(work.examples)), work.examples, work.steps,
            effective_steps(rule, work.steps), m.get("loss"), float(m.get("score", 0.0)), int(m.get("tested", 0)),
            {name: m.get(name, 0.0) for name in rounds.sent_metrics.counts},
        ))  # fmt: skip
        sums.add(node, contribution)
        invite = Invite(number, task.schema, received, standing.counted.get(node, -1))
        down = wire_bytes(invite), invite.payload_bytes
        _exchanged(standing, node, down, _sizes_of(rounds, invite, contribution))
        score = float(m.get("score", 0.0)) if m.get("tested") else None
        standing.meters[node].train_ended(0, number, m, update.logged)
        rows.append(standing.meters[node].done(LocalWork(number + 1, score, None), 0, 0))
    standing.counted.update(dict.fromkeys(cohort, number))
    aggregate, facts = sums.close()
    standing.state = rounds.federated.server.step(standing.state, replace(aggregate, round=number))
    followed = {"counted": sorted(cohort)} if len(standing.meters) <= FOLLOWED_MOST + 1 else {}
    standing.meters[-1].aggregated(Aggregated(number, {**facts, **followed}))
    return rows


def _sizes_of(rounds: Rounds, invite: Invite, contribution: PreparedContribution) -> tuple[int, int]:
    if rounds.fixed:
        return 4 * rounds.fixed.words, 4 * rounds.fixed.words
    answer = contribution.answer_to(invite)
    return wire_bytes(answer), answer.payload_bytes


def _exchanged(standing: Standing, node: NodeId, down: tuple[int, int], up: tuple[int, int]) -> None:
    client, coordinator = standing.meters[node], standing.meters[-1]
    client.record_received(*down)
    client.record_sent(*up)
    coordinator.record_sent(*down)
    coordinator.record_received(*up)


def _work(update: Update, model: Vector, rounds: Rounds, node: NodeId, number: int) -> Work:
    moved = frozen(np.zeros_like(model)) if update.difference is None else update.difference
    m = update.metrics
    examples = update.examples if rounds.accumulate is None else int(m.get("rows", update.examples))
    return Work(moved, max(1, examples), int(m.get("steps", 1)), float(m.get("rate", 1.0)), node, number, update.extra)


class _Exact:
    """Contributions in the clear."""

    def __init__(self, rounds: Rounds, number: int, model: Vector) -> None:
        rule, self.score = rounds.federated.clients, rounds.score
        self.coding, self.number = rounds.coding, number
        self.total = rounds.federated.aggregation.accumulator(rule.vectors, model.size, model.dtype)
        self.clients = 0
        self.losses: list[tuple[float, float]] = []
        self.scores: list[tuple[float, float]] = []

    def add(self, node: NodeId, work: PreparedContribution) -> None:
        up = (self.coding.update_of(work.up[0], node, self.number),) if self.coding else work.up
        self.total.add(node, float(work.weight), up, work.counted)
        self.clients += 1
        if work.loss is not None:
            self.losses.append((work.examples, work.loss))
        if work.tested:
            self.scores.append((work.tested, work.measured))

    def close(self) -> tuple[Aggregate, dict[str, object]]:
        loss = mean_of(self.losses) if self.losses else None
        facts: dict[str, object] = {"clients": self.clients, "loss": loss}
        if self.scores:
            facts["score"], facts["worst"] = mean_of(self.scores), self.score.worst(one for _, one in self.scores)
        return self.total.aggregate(), facts


class _Ring:
    """Contributions as integers of the ring."""

    def __init__(self, rounds: Rounds, number: int, model: Vector) -> None:
        assert rounds.fixed
        self.fixed, self.rounds, self.number, self.model = rounds.fixed, rounds, number, model
        self.total = np.zeros(rounds.fixed.words, np.uint32)
        self.clients = 0

    def add(self, node: NodeId, work: PreparedContribution) -> None:
        chances = self.rounds.chances[node](self.number)
        values = integers(self.fixed, work, chances, NO_NOISE).values
        add(self.total, values, self.fixed.ring_bits // RING_BITS)
        self.clients += 1

    def close(self) -> tuple[Aggregate, dict[str, object]]:
        found = self.fixed.decode(self.total, self.clients)
        mean, coding = frozen(found.mean.astype(self.model.dtype)), self.rounds.coding
        vectors = (coding.whole(mean, self.number),) if coding else split(mean, self.rounds.federated.clients.vectors)
        facts: dict[str, object] = {"clients": found.clients, **means_of(found.metrics)}
        facts |= counts_in(found, self.fixed)
        return Aggregate(vectors, found.clients, found.metrics.get("steps", 1.0)), facts
