"""A user's loops as a task: a training is answered when the loop has called `step()` often enough.

    order      the loop's own weights y,  the machine's vector v,  the loop's weights at its start b
    answer     update = y - b;  the machine adds it to v: `expected`, bit for bit
    next       the machine's new vector w:  w = expected: nothing was mixed in, the loop's weights stay unchanged;
               else a waiting loop takes w, and one that has trained on adds w - expected

So a loop without exchanges keeps its bits: v + (y - b) may be rounded differently from y.  The driver sends orders and
the loop answers, each in its own thread, one order at a time:

    driver                                  loop
    ask(TrainFrom(round, vector))  ->       next() when it calls step(); trains on
                                   <-       give(Learned(vector, ...)) after local_steps calls
    ask(Measure(vector))           ->       next(), beside or between them
                                   <-       give(Measured(metrics))
    release(...)                   ->       next(): the run is over for this loop
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError
from fedgossip.base.vectors import Vector, add, subtract
from fedgossip.core.machine import NodeId, Terms
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.task import Job, Segment, Update


class LoopTask:
    """A LocalTask of this process's loops; `first[i]`: loop i's first weights, `meetings[i]` takes its orders.

    `like`: properties that others' models must share.
    """

    def __init__(
        self,
        meetings: Mapping[NodeId, Meeting],
        first: Mapping[NodeId, Vector],
        segments: Sequence[Segment],
        schema: str,
        like: Likeness,
    ) -> None:
        self.meetings, self.first = meetings, dict(first)
        self.segments, self.schema, self._like = tuple(segments), schema, like
        one = next(iter(first.values()))
        self.length, self.dtype = one.size, one.dtype
        self._expected: dict[NodeId, Vector] = dict(first)

    def initial(self, node: NodeId) -> Vector:
        """Return the initial weights of the loop of `node`; a coordinator begins with those of its first client."""
        return self.first.get(node) if node in self.first else self.first[min(self.first)]  # type: ignore[return-value]

    def likeness(self) -> Likeness:
        return self._like

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._train(job) for job in jobs]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Measure in the first present loop that measures: all measure equally, on examples of their choice."""
        return [self._measured(vector) for vector in vectors]

    def dismiss(self) -> None:
        for meeting in self.meetings.values():
            meeting.dismiss()

    def released(self, node: NodeId, vector: Vector | None) -> Released:
        """Return the final order to the loop of `node`, whose machine has finished with `vector`."""
        return Released(vector, None if vector is None else self._change(node, vector))

    def _change(self, node: NodeId, vector: Vector) -> Vector | None:
        expected = self._expected.get(node)
        if expected is None:
            return vector
        return None if _same_bits(expected, vector) else subtract(vector, expected)

    def begins_anew(self, node: NodeId) -> None:
        """Record that the loop of `node` has lost its state."""
        self._expected.pop(node, None)

    def _train(self, job: Job) -> Update:
        change = self._change(job.node, job.vector)
        match self.meetings[job.node].ask(TrainFrom(job.round, job.vector, change, job.terms)):
            case Learned() as learned:
                return self._update(job, learned)
            case Raised(error):
                raise _training_error(error, job.node, job.round)
            case _:  # it has ended, or its answer was cancelled
                return Update(None, 0, over=True)

    def _update(self, job: Job, learned: Learned) -> Update:
        changed = not _same_bits(learned.held, learned.began)
        difference = subtract(learned.held, learned.began) if changed else None
        self._expected[job.node] = add(job.vector, difference) if difference is not None else job.vector
        return Update(difference, learned.examples, learned.metrics, learned.logged)

    def _measured(self, vector: Vector) -> Mapping[str, float]:
        for node in sorted(self.meetings):
            match self.meetings[node].ask(Measure(vector)):
                case Measured(metrics) if metrics:
                    return metrics
                case Raised(error):
                    raise _training_error(error, node, None)
                case _:  # it has no function that measures, or has ended
                    continue
        return {}


def _same_bits(one: Vector, other: Vector) -> bool:
    return one is other or np.array_equal(one.view(np.uint8), other.view(np.uint8))


def _training_error(error: BaseException, node: NodeId, round: int | None) -> FedgossipError:
    """Return the error for a loop that raised; its own propagates in the loop."""
    where = f"node {node}" + ("" if round is None else f", round {round}")
    if isinstance(error, FedgossipError):
        return error
    failure = TrainingError(f"{where}: the loop raised {type(error).__name__}: {error}", "The fault is in the script.")
    failure.__cause__ = error
    return failure


class DescribedTask:
    """A LocalTask of a model described by another process: averaged and saved here, not trained; `measure` requests
    metrics elsewhere.
    """

    def __init__(self, first: Vector, segments: Sequence[Segment], schema: str, like: Likeness) -> None:
        self._first, self.segments, self.schema, self._like = first, tuple(segments), schema, like
        self.length, self.dtype = first.size, first.dtype

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self._first

    def likeness(self) -> Likeness:
        return self._like

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:  # noqa: ARG002
        raise ConfigError("a loop's model is trained by its loop alone", "Start it: fedgossip launch ... train.py")

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]


def without_first(like: Likeness) -> Likeness:
    """Return the properties that clients of a coordinator must share: it sends them the first model."""
    return replace(like, probe=())


POLL_SECONDS = 0.1
"""Seconds between two checks by a waiting loop that its driver is alive."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainFrom:
    """Order: train on from `vector`.  `change` is its difference from the loop's own weights; None: no difference."""

    round: int
    vector: Vector
    change: Vector | None
    terms: Terms | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """Order: measure the metrics of `vector`."""

    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """The run is over for this loop, with this model, `change` as in TrainFrom; `error`: the run failed."""

    vector: Vector | None = None
    change: Vector | None = None
    error: BaseException | None = None


Order = TrainFrom | Measure | Released


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """The loop's weights after its steps, and those before them."""

    held: Vector
    began: Vector
    examples: int
    metrics: Mapping[str, float]
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Over:
    """The loop has ended by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Raised:
    """The loop, or a function given by it, raised this."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Dismissed:
    """The order was cancelled."""


LoopAnswer = Learned | Measured | Over | Raised | Dismissed
_Reply = queue.SimpleQueue[LoopAnswer]


class Meeting:
    """The handoff of orders to one loop.  `turn` is called with true before the loop may run, and with false when it
    waits again.
    """

    def __init__(self, turn: Callable[[bool], None] = lambda _: None) -> None:
        self._orders: queue.SimpleQueue[tuple[Order, _Reply]] = queue.SimpleQueue()
        self._turn = turn
        self._asking = threading.Lock()  # a training, and requests to measure
        self._training: _Reply | None = None  # the reply queue of the open training
        self._dismissed = False
        self._last: LoopAnswer | None = None  # the loop has raised, and answers no further orders
        self._replies: list[_Reply] = []  # of the orders taken by the loop, the newest last

    # --- the driver's side ----------------------------------------------------------------------------------------

    def ask(self, order: Order) -> LoopAnswer:
        """Give an order and wait for its answer without limit; `dismiss` ends a training's wait."""
        with self._asking:
            reply: _Reply = queue.SimpleQueue()
            if isinstance(order, TrainFrom):
                self._training = reply
                if self._dismissed:
                    return Dismissed()
            if self._last is not None:
                return self._last
            self._turn(True)
            self._orders.put((order, reply))
            answer = reply.get()
            self._turn(False)
            self._last = answer if isinstance(answer, Raised) else self._last
            return answer

    def dismiss(self) -> None:
        """Cancel the open training, and refuse further ones."""
        self._dismissed = True
        if self._training is not None:
            self._training.put(Dismissed())

    def abandon(self) -> None:
        """Answer the open order and all later ones with Over, for a loop that has left."""
        self._last = Over()
        while self._replies:
            self._replies.pop().put(self._last)

    def release(self, how: Released) -> None:
        """Send the loop the end of its run."""
        self._orders.put((how, queue.SimpleQueue()))

    # --- the loop's side ------------------------------------------------------------------------------------------

    def give(self, answer: LoopAnswer) -> None:
        """Answer the newest unanswered order."""
        self._replies.pop().put(answer)

    def next(self, alive: Callable[[], bool], seconds: float | None = None) -> Order | None:
        """Return the next order; None without one within `seconds` (0: no wait), or if the driver has ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                return self._take(self._orders.get(block=seconds != 0, timeout=POLL_SECONDS))
            except queue.Empty:
                if seconds == 0 or (until is not None and time.monotonic() > until):
                    return None
            if not alive() and self._orders.empty():
                return None

    def _take(self, received: tuple[Order, _Reply]) -> Order:
        order, reply = received
        if not isinstance(order, Released):
            self._replies.append(reply)
        return order
