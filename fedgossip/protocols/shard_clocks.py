"""One shard of the model at its server: the pushes that are in it, and what workers may read of it.

A worker at clock c has pushed for the clocks below c.  Two ways to step on pushes:

    StepPerClock   all pushes of a clock make one mean, which takes one step: the bits of an all-reduce
    StepPerPush    each push takes a step when it comes; a worker reads what has the pushes of all workers
                   present for the clocks below c - s at least, and all of its own

The second is the rule of stale synchronous parallel computation: a worker at clock c sees all updates of clocks up to
c - s - 1, may see later ones, and always sees its own; so the fastest is at most s clocks ahead of the slowest.  The
condition is given as it is known from the literature; s = 0 there is not StepPerClock, for its updates are applied one
by one.

    invariant   clocks[w] only grows, and every push of w for a clock below it is in the shard once, or never will be

Source: Ho, Cipar, Cui, Lee, Kim, Gibbons, Gibson, Ganger and Xing, More effective distributed ML via a stale
synchronous parallel parameter server, NIPS 2013, section 2; rates by staleness: Zhang, Gupta, Lian and Liu,
Staleness-aware Async-SGD for distributed deep learning, IJCAI 2016.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.algorithms.descent.base import Descent, DescentState
from fedgossip.algorithms.federated.sums import REACH, ExactSum
from fedgossip.machine import NodeId
from fedgossip.vectors import Vector, summable

Rate = Callable[[int], float]
"""The step size of a clock."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardReading:
    """What a worker is given: the shard for its clock `clock`; see messages.Pulled."""

    clock: int
    version: int
    vector: Vector


class ShardClocks(ABC):
    """A shard [n] and whose pushes are in it."""

    def __init__(self, descent: Descent[Any], x: Vector, workers: Sequence[NodeId], rounds: int) -> None:
        self.descent, self.rounds = descent, rounds
        self.state: DescentState = descent.start(x)
        self.steps = 0
        self.clocks: dict[NodeId, int] = dict.fromkeys(workers, 0)
        self.missed: dict[NodeId, int] = dict.fromkeys(workers, 0)
        """Steps between what a worker had read and its last push."""

    @property
    def x(self) -> Vector:
        return self.state.x

    def enter(self, worker: NodeId, clock: int) -> None:
        """A worker comes, or comes back, and pushes from this clock on."""
        self.clocks[worker] = max(self.clocks[worker], clock)

    @abstractmethod
    def fits(self, weight: float, vector: Vector) -> bool:
        """Whether numbers of a push can be added: finite, and not so large that a sum could overflow."""

    @abstractmethod
    def push(self, worker: NodeId, weight: float, steps: int, vector: Vector, rate: Rate) -> bool:
        """Take the whole gradient [n] of a worker for the clock that it is in, at what had `steps` steps.

        Returns whether a step was taken at once.
        """

    @abstractmethod
    def close(self, present: Collection[NodeId], rate: Rate) -> bool:
        """Take the step that is due, with those present; return whether there was one, or a clock without any."""

    @abstractmethod
    def version(self, present: Collection[NodeId]) -> int:
        """The first clock of which a push of somebody present may be missing."""

    @abstractmethod
    def reading(
        self, worker: NodeId, clock: int, present: Collection[NodeId], *, anew: bool, late: bool
    ) -> ShardReading | None:
        """Return what a worker gets that pulls for `clock`; None where it is to wait.

        `anew`: it has nothing to push before; `late`: the others went on without it.
        """


class StepPerClock(ShardClocks):
    """Synchronous: closed clocks have one step each, on the mean by examples of all that pushed for it."""

    def __init__(self, descent: Descent[Any], x: Vector, workers: Sequence[NodeId], rounds: int) -> None:
        super().__init__(descent, x, workers, rounds)
        self.closed = 0
        self.before: Vector = x
        """The shard a clock earlier, for workers that come anew while another shard is there still."""
        self._sum: ExactSum | None = None

    def fits(self, weight: float, vector: Vector) -> bool:
        if not summable(vector):
            return False
        largest = max(float(vector.max()), -float(vector.min()))
        return weight * largest * len(self.clocks) < REACH / 2  # as large as all terms together

    def push(self, worker: NodeId, weight: float, steps: int, vector: Vector, rate: Rate) -> bool:  # noqa: ARG002
        if self._sum is None:
            self._sum = ExactSum(vector.size)
        self._sum.add(weight, vector)
        self.clocks[worker] += 1
        return False

    def close(self, present: Collection[NodeId], rate: Rate) -> bool:
        if not present or min(self.clocks[worker] for worker in present) <= self.closed:
            return False
        self.before = self.x
        if self._sum is not None:
            self.state = self.descent.step(self.state, self._sum.mean(self.x.dtype), rate(self.closed))
            self._sum, self.steps = None, self.steps + 1
        self.closed += 1
        self.clocks = {worker: max(clock, self.closed) for worker, clock in self.clocks.items()}
        return True

    def version(self, present: Collection[NodeId]) -> int:  # noqa: ARG002
        return self.closed

    def reading(
        self,
        worker: NodeId,  # noqa: ARG002
        clock: int,
        present: Collection[NodeId],  # noqa: ARG002
        *,
        anew: bool,
        late: bool,  # noqa: ARG002
    ) -> ShardReading | None:
        if anew and clock == self.closed - 1:
            return ShardReading(clock, clock, self.before)
        return ShardReading(self.closed, self.closed, self.x) if clock <= self.closed else None


class StepPerPush(ShardClocks):
    """Asynchronous, or stale synchronous: `staleness` clocks between the fastest and the slowest; None: no bound.

    `damped`: a push whose reading has missed k steps goes at rate / (1 + k).
    """

    def __init__(
        self,
        descent: Descent[Any],
        x: Vector,
        workers: Sequence[NodeId],
        rounds: int,
        staleness: int | None,
        damped: bool,
    ) -> None:
        super().__init__(descent, x, workers, rounds)
        self.staleness, self.damped = staleness, damped

    def fits(self, weight: float, vector: Vector) -> bool:  # noqa: ARG002
        return summable(vector)

    def push(self, worker: NodeId, weight: float, steps: int, vector: Vector, rate: Rate) -> bool:  # noqa: ARG002
        clock, missed = self.clocks[worker], self.steps - steps
        self.missed[worker] = missed
        self.state = self.descent.step(self.state, vector, rate(clock) / (1 + missed if self.damped else 1))
        self.steps, self.clocks[worker] = self.steps + 1, clock + 1
        return True

    def close(self, present: Collection[NodeId], rate: Rate) -> bool:  # noqa: ARG002
        return False

    def version(self, present: Collection[NodeId]) -> int:
        return min((self.clocks[worker] for worker in present), default=max(self.clocks.values()))

    def reading(
        self, worker: NodeId, clock: int, present: Collection[NodeId], *, anew: bool, late: bool
    ) -> ShardReading | None:
        clock = max(clock, self.clocks[worker]) if anew else clock
        if late and self.staleness is not None:
            others = [other for other in present if other != worker]
            clock = max(clock, self.version(others))
            self.enter(worker, clock)
        if self.clocks[worker] < clock:
            return None  # its own push is not here yet
        version = self.version([*present, worker])
        bound = 0 if clock >= self.rounds else self.staleness
        return None if bound is not None and clock - version > bound else ShardReading(clock, version, self.x)
