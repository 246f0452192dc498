"""Gossip on arrays that stay on their training device: the rounds and rows of `stacked`, read back when rows are
written.

    every round     batches go to the device; it trains and mixes; losses stay on a GPU
    watched rounds  the disagreement is read back, three numbers
    evaluated ones  the models, which are evaluated as vectors; also for an image, and at the end

Rows are written when losses are read: of watched rounds at once, of others on a GPU a few rounds later, and before an
image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fedgossip.algorithms.gossip.base import GossipAlgorithm
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.base.vectors import Vector
from fedgossip.core.metrics import Disagreement, Network, ResidentModels, ResidentTask
from fedgossip.core.records import EventRow, Row
from fedgossip.core.task import LocalTask
from fedgossip.simulation.stacked import (
    PLAIN,
    Edges,
    RoundBytes,
    Stack,
    StackedAttackers,
    StackedExchange,
    check_summable,
    first_stack,
    run_stacked,
)
from fedgossip.topology import Schedule


def run_arrays(
    task: LocalTask,
    schedule: Schedule,
    algorithm: GossipAlgorithm[Any],
    rounds: int,
    record: Network,
    write: Callable[[Row], None],
    exchange: StackedExchange = PLAIN,
    *,
    stack: Stack[Any] | None = None,
    between: Callable[[], None] = lambda: None,
    attackers: StackedAttackers | None = None,
) -> list[Vector]:
    """Run `run_stacked`, with the models on the task's device if they may stay there and nothing else is mixed."""
    stack = stack or first_stack(task, schedule.n, algorithm)
    if isinstance(task, ResidentTask) and type(algorithm) is DSGD and exchange is PLAIN and not attackers:
        run = ResidentRun(schedule, algorithm, record, write, exchange, stack, task.schema)
        models = task.resident_models(schedule.n, run.note)
        if models is not None:
            return run.finished(models, rounds, between)
    how: Any = {"stack": stack, "between": between, "attackers": attackers}
    return run_stacked(task, schedule, algorithm, rounds, record, write, exchange, **how)


class ResidentRun:
    """A run with its models on a device; `stack` is updated from it for an image, and at the end."""

    def __init__(
        self,
        schedule: Schedule,
        algorithm: DSGD,
        record: Network,
        write: Callable[[Row], None],
        exchange: StackedExchange,
        stack: Stack[Any],
        schema: str,
    ) -> None:
        self._schedule, self._algorithm, self._record, self._write = schedule, algorithm, record, write
        self._exchange, self._stack, self._schema = exchange, stack, schema
        self._edges = Edges(schedule)
        self._like = algorithm.model(stack.state)[:1]
        self._round = stack.round
        self._untold: list[tuple[int, RoundBytes]] = []

    def note(self, name: str, text: str) -> None:
        """Log that the device continues otherwise than planned."""
        self._write(EventRow(self._round, -1, name, text))

    def finished(self, models: ResidentModels, rounds: int, between: Callable[[], None]) -> list[Vector]:
        """Run the remaining rounds; return the final vectors, one per node."""
        self._models = models
        models.load(self._algorithm.model(self._stack.state))
        self._stack.settle = self._settle
        try:
            for number in range(self._stack.round, rounds):
                if self._record.over:
                    break
                between()
                self._advance(number)
        except KeyboardInterrupt:
            if self._untold and self._record.watched(self._untold[-1][0] + 1):
                self._untold.pop()  # it was interrupted before its disagreement was read
            self._write_rows(None)
            raise
        self._settle()
        return list(self._algorithm.model(self._stack.state))

    def _advance(self, number: int) -> None:
        mixing, period = self._schedule.mixing(number), self._schedule.period
        self._round = number + 1
        watched = self._record.watched(number + 1)
        phase = number % period if period else None
        found = self._models.advance(number, phase, mixing.rows_by_degree(), watched=watched)
        self._untold.append((number, self._exchange.carried(self._edges, number, self._schema, (self._like,))))
        if watched or len(self._untold) == self._models.unread:
            self._write_rows(found)

    def _write_rows(self, measured: Disagreement | None) -> None:
        unread, self._untold = self._untold, []
        if not unread:
            return
        known = self._models.losses()
        for (number, traffic), losses in zip(unread, known, strict=False):
            self._write_row(number + 1, losses.tolist(), traffic, measured)
        if len(known) < len(unread):
            self._models.losses()  # which raises

    def _write_row(self, round: int, losses: list[float], traffic: RoundBytes, measured: Disagreement | None) -> None:
        stack, record = self._stack, self._record
        stack.round = round
        stack.meters.carried(traffic)

        def disagreement() -> Disagreement:
            assert measured is not None, "a watched round is reported at once"
            return measured

        sent = int(traffic.sent[0].sum())
        rows = partial(stack.meters.rows, round, losses)
        for row in record.closed_at_once(round, losses, rows, sent, self._models.models, disagreement):
            self._write(row)

    def _settle(self) -> None:
        """Move the device's state into the record and the stack, for an image."""
        self._write_rows(None)
        models = self._models.models()
        check_summable(self._round, models)  # on the way there they stay on the device
        self._stack.state = self._algorithm.start(models)
