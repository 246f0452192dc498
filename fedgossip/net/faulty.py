"""Applies a fault script to one real peer: between its machine and its sockets, and to its training.

Sent messages are lost, doubled, delayed, held back.  A link cut by the script is reported as down, and as up when it
heals.  Messages sent within the host's grace period are delivered late; later ones are lost, except a synchronous run's
last, which `Links` repeats.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId, Report
from fedgossip.core.messages import AnyMessage, Leaving, OfARound
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.task import (
    HeldTask,
    Job,
    LocalTask,
    ReportingTask,
    RowTask,
    Update,
    give_memory,
    memory_of,
    model_likeness,
    perform_jobs,
    segments_of,
)
from fedgossip.faults import FaultScript, Flap, Partition, Slow
from fedgossip.net.transport import LinkDown, LinkEvent, LinkUp, Transport

PATIENCE_NS = 1_000_000_000
"""Time for which a cut link stores messages, in nanoseconds; at most the host's grace period for a broken link."""

CUT_MS = 20
"""Maximum delay of the begin or end of a cut, in milliseconds."""

WAITING_MESSAGES = 1024
"""Maximum number of messages held back; further ones are lost."""

AnyTransport = TypeVar("AnyTransport", bound=Transport)

Clock = Callable[[], int | None]
"""Returns nanoseconds since the run began; None before."""


class RunClock:
    """The run's time: nanoseconds since the start stored in `path`, by this machine's clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zero: int | None = None

    def __call__(self) -> int | None:
        if self._zero is None and self.path.exists():
            self._zero = int(outside_files.read_text(self.path))
        return None if self._zero is None else time.monotonic_ns() - self._zero


@dataclass(frozen=True)
class Faults:
    """The part of `script` that acts inside the process of peer `node`."""

    script: FaultScript
    node: NodeId
    clock: Clock

    def on_links(self, links: AnyTransport) -> AnyTransport:
        """Return `links` wrapped by the script."""
        return cast(AnyTransport, FaultyLinks(links, self)) if self.script.touches_messages else links

    def on_task(self, task: LocalTask) -> LocalTask:
        """Return `task`, slowed according to the script."""
        slowed = any(isinstance(fault, Slow) for fault in self.script.faults)
        return _slowed(task, self) if slowed else task


class FaultyLinks:
    """A Transport; methods that are missing here are those of the links."""

    def __init__(self, links: Transport, faults: Faults) -> None:
        self._links, self._faults = links, faults
        self._cuts = any(isinstance(fault, Flap | Partition) for fault in faults.script.faults)
        self._cut: dict[NodeId, int] = {}  # the beginning of each cut
        self._up: set[NodeId] = set()  # links that are really up
        self._held_back: dict[NodeId, list[AnyMessage]] = {}  # messages on cut links
        self._later: list[tuple[int, int, NodeId, AnyMessage]] = []  # due, order, to, what
        self._last_due: dict[NodeId, int] = {}
        self._sent: dict[NodeId, int] = {}
        self._sequence = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._links, name)

    def send(self, to: NodeId, message: AnyMessage) -> None:
        now_ns = self._faults.clock()
        if now_ns is None:
            self._links.send(to, message)
        elif to not in self._cut:
            self._pass(to, message, now_ns)
        elif len(self._held_back[to]) < WAITING_MESSAGES and (self._patient(to, now_ns) or _is_last_word(message)):
            self._held_back[to].append(message)

    def _pass(self, to: NodeId, message: AnyMessage, now_ns: int) -> None:
        self._release(now_ns)  # due messages go first, also between polls
        number = self._sent[to] = self._sent.get(to, -1) + 1
        fate = self._faults.script.fate(self._faults.node, to, number, now_ns)
        due = max(now_ns + fate.delay_ns, self._last_due.get(to, 0))  # in order, except for those held back
        self._last_due[to] = due
        for held_ns in fate.held_ns:
            if due + held_ns <= now_ns:
                self._links.send(to, message)
            elif len(self._later) < WAITING_MESSAGES:
                self._sequence += 1
                heapq.heappush(self._later, (due + held_ns, self._sequence, to, message))

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        """Poll the links, and report those cut by the script as down."""
        now_ns = self._faults.clock()
        if now_ns is not None and self._later:
            timeout_ms = max(0, min(timeout_ms, (self._later[0][0] - now_ns) // 1_000_000 + 1))
        events = self._record_links(self._links.poll(min(timeout_ms, CUT_MS) if self._cuts else timeout_ms))
        if (now_ns := self._faults.clock()) is not None:
            self._release(now_ns)
            if self._cuts:
                self._turn(now_ns, events)
        return events

    def _record_links(self, events: Sequence[LinkEvent]) -> list[LinkEvent]:
        """Record the true state of the links while they are cut."""
        passed_on: list[LinkEvent] = []
        for event in events:
            if isinstance(event, LinkUp | LinkDown):
                (self._up.add if isinstance(event, LinkUp) else self._up.discard)(event.node)
                if event.node in self._cut:
                    continue
            passed_on.append(event)
        return passed_on

    def _release(self, now_ns: int) -> None:
        while self._later and self._later[0][0] <= now_ns:
            _, _, to, message = heapq.heappop(self._later)
            self._links.send(to, message)

    def _turn(self, now_ns: int, events: list[LinkEvent]) -> None:
        for other in self._links.partners:
            apart = self._faults.script.cut(self._faults.node, other, now_ns)
            if apart and other not in self._cut:
                self._cut[other], self._held_back[other] = now_ns, []
                if other in self._up:
                    events.append(LinkDown(other))
            elif not apart and other in self._cut:
                self._heal(other, now_ns, events)

    def _heal(self, other: NodeId, now_ns: int, events: list[LinkEvent]) -> None:
        messages = self._held_back.pop(other)
        if not self._patient(other, now_ns):
            messages = [message for message in messages if _is_last_word(message)][-2:]
        del self._cut[other]
        if other in self._up:
            events.append(LinkUp(other))
        for message in messages:
            self._pass(other, message, now_ns)

    def _patient(self, other: NodeId, now_ns: int) -> bool:
        return now_ns - self._cut[other] < PATIENCE_NS

    def close(self, drain_seconds: float = 0.0) -> None:
        """Close the links; messages that were held back go first."""
        for _, _, to, message in sorted(self._later, key=lambda one: one[:2]):
            self._links.send(to, message)
        self._later.clear()
        self._links.close(drain_seconds)


def _is_last_word(message: AnyMessage) -> bool:
    return isinstance(message, OfARound | Leaving)


class SlowTask:
    """A task slowed by the factor of the script; other members are those of the task."""

    def __init__(self, task: LocalTask, faults: Faults) -> None:
        self._task, self._faults = task, faults
        self.length, self.dtype, self.schema = task.length, task.dtype, task.schema
        self.segments = segments_of(task)

    def initial(self, node: NodeId) -> Vector:
        return self._task.initial(node)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return self._task.evaluate(vectors)

    def report_to(self, write: Callable[[Report], None]) -> None:
        if isinstance(self._task, ReportingTask):
            self._task.report_to(write)

    def dismiss(self) -> None:
        if isinstance(self._task, HeldTask):
            self._task.dismiss()

    def state(self, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:
        return memory_of(self._task, node)

    def load_state(self, node: NodeId, state: Mapping[str, npt.NDArray[Any]]) -> None:
        give_memory(self._task, node, state)

    def likeness(self) -> Likeness:
        return model_likeness(self._task)

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return self.train(jobs)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        now_ns, began = self._faults.clock(), time.monotonic()
        updates = perform_jobs(self._task, jobs)
        factor = 1.0 if now_ns is None else self._faults.script.factor(self._faults.node, now_ns)
        time.sleep((factor - 1) * (time.monotonic() - began))
        return updates


class SlowRowTask(SlowTask):
    """The same for a task with a table as its model; a batch's rows are returned without delay."""

    def __init__(self, task: RowTask, faults: Faults) -> None:
        super().__init__(task, faults)
        self.table, self.watched, self.keys = task.table, task.watched, task.keys


def _slowed(task: LocalTask, faults: Faults) -> LocalTask:
    return SlowRowTask(task, faults) if isinstance(task, RowTask) else SlowTask(task, faults)
