"""One shard of the model at its server: its pushes, and the versions that workers may read.

A worker at clock c has pushed for the clocks below c.  Two ways to step on pushes:

    StepPerClock   all pushes of a clock make one mean, which takes one step: the bits of an all-reduce
    StepPerPush    each push takes a step on arrival; a worker reads a shard with the pushes of all present workers for
                   the clocks below c - s at least, and all of the worker's pushes

The second is stale synchronous parallel computation: the fastest worker is at most s clocks ahead of the slowest.  Its
s = 0 is not StepPerClock, as updates are applied one by one.

    invariant   clocks[w] only grows, and every push of w for a clock below it is in the shard once, or never will be

Source: Ho, Cipar, Cui, Lee, Kim, Gibbons, Gibson, Ganger and Xing, More effective distributed ML via a stale
synchronous parallel parameter server, NIPS 2013, section 2; rates by staleness: Zhang, Gupta, Lian and Liu,
Staleness-aware Async-SGD for distributed deep learning, IJCAI 2016.

A shard's entries in a server's checkpoint:

    "3.x", "3.velocity", ...    the arrays of shard 3: the model's, the descent's, and further ones
    "3"                         its plain numbers, and the clocks of its workers, ascending by id

Pushes that wait for others of their clock are not stored: they are pushed again.  For a table's shard the touched rows
are stored, in blocks that are shared and not copied:

    "3.keys", "3.places"        the rows, and their places
    "3.x.0", "3.x.1", ...       blocks of the model's array, and of each of the descent's
    "3.before.0", ...           the model's blocks that differed a clock earlier
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from fedgossip.algorithms.descent.base import DescentState
from fedgossip.algorithms.descent.rows import RowSum, RowTable
from fedgossip.algorithms.federated.sums import REACH, ExactSum
from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.base.keyed_rows import Keys, Rows
from fedgossip.base.vectors import Vector, frozen, largest, summable
from fedgossip.core.machine import Checkpoint, NodeId

Rate = Callable[[int], float]
"""The step size of a clock."""
ShardDescent = Any
"""A Descent of a vector [n], or a RowDescent of rows."""
Content = Vector | RowTable
"""The content of a shard: its elements [n], or its touched rows."""
Gradient = Vector | Rows
"""A pushed gradient: of all elements, or of some rows."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardReading:
    """The shard that a worker receives for its clock `clock`; see messages.Pulled."""

    clock: int
    version: int
    content: Content

    def vector_of(self, keys: Keys | None) -> Vector:
        """Return the shard [n], or of a table the rows of these keys."""
        if keys is None:
            assert not isinstance(self.content, RowTable), "rows go by keys"
            return self.content
        assert isinstance(self.content, RowTable), "elements have no keys"
        return self.content.rows(keys)


@dataclass(frozen=True, slots=True, eq=False)
class ShardChange:
    """A change of a shard: a step of `rate` along `gradient` that closes `clock` of `workers`; () for all.

    No gradient: a clock without pushes, or a push without rows.
    """

    clock: int
    rate: float
    workers: tuple[NodeId, ...]
    gradient: Gradient | None
    """Frozen: it is sent to copies after its step; otherwise the step could reuse its memory."""

    def __post_init__(self) -> None:
        numbers = self.gradient.values if isinstance(self.gradient, Rows) else self.gradient
        if numbers is not None:
            frozen(numbers)


class ShardClocks(ABC):
    """A shard and the clocks of its pushes.  It begins with x [n]; a table's begins without touched rows."""

    def __init__(self, descent: ShardDescent, x: Any, workers: Sequence[NodeId], rounds: int) -> None:
        self.descent, self.rounds = descent, rounds
        self.state: DescentState | RowTable = descent.start(x)
        self.steps = 0
        self.clocks: dict[NodeId, int] = dict.fromkeys(workers, 0)
        self.closed = 0
        """Number of clocks with a completed step; 0 if each push has one."""
        self.missed: dict[NodeId, int] = dict.fromkeys(workers, 0)
        """Number of steps between each worker's last reading and its push."""

    @property
    def x(self) -> Content:
        return self.state.x

    @property
    def extra(self) -> Sequence[Content]:
        """Further arrays next to the state of the descent, each as large as x."""
        return ()

    @abstractmethod
    def overwrite(
        self,
        state: DescentState | RowTable,
        closed: int,
        steps: int,
        clocks: Sequence[int],
        extra: Sequence[Content],
    ) -> None:
        """Overwrite the state by a received one: `clocks` of the workers, ascending by id."""

    def enter(self, worker: NodeId, clock: int) -> None:
        """Record a worker that joins or returns, and pushes from this clock on."""
        self.clocks[worker] = max(self.clocks[worker], clock)

    @abstractmethod
    def fits(self, weight: float, vector: Vector) -> bool:
        """Return whether numbers of a push can be added: finite, and too small for a sum to overflow."""

    @abstractmethod
    def push(self, worker: NodeId, weight: float, steps: int, gradient: Gradient, rate: Rate) -> ShardChange | None:
        """Add a worker's whole gradient for its clock, computed at step `steps`; return the step to apply, if any."""

    @abstractmethod
    def close(self, present: Collection[NodeId], rate: Rate) -> ShardChange | None:
        """Return the due step for the `present` workers, or a clock closed without pushes; the caller applies it."""

    @abstractmethod
    def apply(self, change: ShardChange) -> None:
        """Apply a change, at the owner and at the keepers of copies: the same bits everywhere."""

    @abstractmethod
    def version(self, present: Collection[NodeId]) -> int:
        """Return the first clock that may lack a push of a present worker."""

    @abstractmethod
    def reading(
        self, worker: NodeId, clock: int, present: Collection[NodeId], *, anew: bool, late: bool
    ) -> ShardReading | None:
        """Return the reading for a pull for `clock`; None if it must wait.

        `anew`: nothing to push before; `late`: others continued without this worker.
        """


class StepPerClock(ShardClocks):
    """Synchronous: each closed clock has one step, on the mean of all its pushes, weighted by examples."""

    def __init__(self, descent: ShardDescent, x: Any, workers: Sequence[NodeId], rounds: int) -> None:
        super().__init__(descent, x, workers, rounds)
        self.before: Content = self.x
        """The shard one clock earlier, for workers that join while another shard is still at that clock."""
        self._sum: ExactSum | RowSum | None = None

    @property
    def extra(self) -> Sequence[Content]:
        return (self.before,)

    def overwrite(
        self,
        state: DescentState | RowTable,
        closed: int,
        steps: int,
        clocks: Sequence[int],  # noqa: ARG002
        extra: Sequence[Content],
    ) -> None:
        self.state, self.closed, self.steps, (self.before,) = state, closed, steps, extra
        self._sum, self.clocks = None, dict.fromkeys(self.clocks, closed)  # waiting pushes are pushed again

    def fits(self, weight: float, vector: Vector) -> bool:
        if not summable(vector):
            return False
        return weight * largest(vector) * len(self.clocks) < REACH / 2  # as large as the sum of all terms

    def push(self, worker: NodeId, weight: float, steps: int, gradient: Gradient, rate: Rate) -> None:  # noqa: ARG002
        if self._sum is None:
            self._sum = RowSum() if isinstance(gradient, Rows) else ExactSum()
        self._sum.add(weight, gradient)  # type: ignore[arg-type]
        self.clocks[worker] += 1

    def close(self, present: Collection[NodeId], rate: Rate) -> ShardChange | None:
        if not present or min(self.clocks[worker] for worker in present) <= self.closed:
            return None
        mean = self._sum.mean(self.x.dtype) if self._sum is not None else None
        self._sum = None
        return ShardChange(self.closed, rate(self.closed), (), mean)

    def apply(self, change: ShardChange) -> None:
        self.before = self.x
        if change.gradient is not None:
            self.state, self.steps = self.descent.step(self.state, change.gradient, change.rate), self.steps + 1
        self.closed = change.clock + 1
        self.clocks = {worker: max(clock, self.closed) for worker, clock in self.clocks.items()}

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
    """Asynchronous, at most `staleness` clocks apart (None: no bound); `damped`: after k missed steps the rate is rate
    / (1 + k).
    """

    def __init__(
        self,
        descent: ShardDescent,
        x: Any,
        workers: Sequence[NodeId],
        rounds: int,
        staleness: int | None,
        damped: bool,
    ) -> None:
        super().__init__(descent, x, workers, rounds)
        self.staleness, self.damped = staleness, damped

    def overwrite(
        self,
        state: DescentState | RowTable,
        closed: int,  # noqa: ARG002
        steps: int,
        clocks: Sequence[int],
        extra: Sequence[Content],  # noqa: ARG002
    ) -> None:
        self.state, self.steps = state, steps
        self.clocks = dict(zip(self.clocks, clocks, strict=True))

    def fits(self, weight: float, vector: Vector) -> bool:  # noqa: ARG002
        return summable(vector)

    def push(self, worker: NodeId, weight: float, steps: int, gradient: Gradient, rate: Rate) -> ShardChange:  # noqa: ARG002
        clock, missed = self.clocks[worker], self.steps - steps
        self.missed[worker] = missed
        return ShardChange(clock, rate(clock) / (1 + missed if self.damped else 1), (worker,), gradient)

    def close(self, present: Collection[NodeId], rate: Rate) -> None:  # noqa: ARG002
        return None

    def apply(self, change: ShardChange) -> None:
        if change.gradient is not None:
            self.state = self.descent.step(self.state, change.gradient, change.rate)
        self.steps += 1
        for worker in change.workers:
            self.clocks[worker] = change.clock + 1

    def version(self, present: Collection[NodeId]) -> int:
        return min((self.clocks[worker] for worker in present), default=max(self.clocks.values()))

    def reading(
        self,
        worker: NodeId,
        clock: int,
        present: Collection[NodeId],
        *,
        anew: bool,  # noqa: ARG002
        late: bool,
    ) -> ShardReading | None:
        if late and self.staleness is not None:
            others = [other for other in present if other != worker]
            clock = max(clock, self.version(others))
            self.enter(worker, clock)
        if self.clocks[worker] < clock:
            return None  # its own push is not here yet
        clock = self.clocks[worker]
        version = self.version([*present, worker])
        bound = 0 if clock >= self.rounds else self.staleness
        return None if bound is not None and clock - version > bound else ShardReading(clock, version, self.x)


def saved_shards(version: int, shards: Mapping[int, ShardClocks], epoch: int, *, durable: bool) -> Checkpoint:
    """Return the checkpoint of these shards, `version` clocks after the beginning."""
    vectors: dict[str, Vector] = {}
    facts: dict[str, object] = {"epoch": epoch}
    for number, clocks in shards.items():
        arrays, numbers = _saved_rows(clocks) if isinstance(clocks.state, RowTable) else _saved_elements(clocks)
        vectors |= {f"{number}.{name}": array for name, array in arrays.items()}
        workers = list(clocks.clocks.values())
        facts[str(number)] = {"state": numbers, "closed": clocks.closed, "steps": clocks.steps, "workers": workers}
    return Checkpoint(version, vectors, facts, durable=durable)


def restore(shards: Mapping[int, ShardClocks], kept: Checkpoint) -> list[int]:
    """Restore fresh shards, and return those without an entry.

    Raises ValueError, KeyError for entries of other shards.
    """
    missing = []
    for number, clocks in shards.items():
        if str(number) not in kept.facts:
            missing.append(number)
            continue
        facts: dict[str, Any] = dict(kept.facts[str(number)])  # type: ignore[call-overload]
        mark = f"{number}."
        arrays = {name.removeprefix(mark): one for name, one in kept.vectors.items() if name.startswith(mark)}
        at = facts["closed"], facts["steps"], facts["workers"]
        if isinstance(clocks.state, RowTable):
            table = _restored_rows(clocks.state, arrays, facts["state"])
            before = _restored_before(table, arrays, facts["state"]) if clocks.extra else table
            clocks.overwrite(table, *at, [before] * len(clocks.extra))
            continue
        extra = [arrays.pop(f"extra{place}") for place in range(len(clocks.extra))]
        clocks.overwrite(restored(clocks.state, arrays, facts["state"]), *at, extra)
    return missing


def _saved_elements(clocks: ShardClocks) -> tuple[dict[str, Vector], dict[str, Any]]:
    arrays, numbers = saved(clocks.state)
    extra = {f"extra{place}": cast(Vector, array) for place, array in enumerate(clocks.extra)}
    return {**arrays, **extra}, numbers


def _saved_rows(clocks: ShardClocks) -> tuple[dict[str, Vector], dict[str, Any]]:
    table = cast(RowTable, clocks.state)
    arrays: dict[str, Any] = {"keys": table.keys, "places": table.places} if table.keys.size else {}
    for name, blocks in table.blocks.items():
        arrays |= {f"{name}.{at}": block for at, block in enumerate(blocks)}
    facts = {"numbers": dict(table.numbers), "blocks": {name: len(blocks) for name, blocks in table.blocks.items()}}
    for before in cast("list[RowTable]", clocks.extra):
        facts["before"] = len(before.keys)
        changed = [at for at, block in enumerate(before.blocks["x"]) if block is not table.blocks["x"][at]]
        arrays |= {f"before.{at}": before.blocks["x"][at] for at in changed}
        facts["earlier"] = len(before.blocks["x"])
    return arrays, facts


def _restored_rows(fresh: RowTable, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> RowTable:
    nothing = np.empty(0, np.uint32)
    blocks = {name: tuple(arrays[f"{name}.{at}"] for at in range(facts["blocks"][name])) for name in fresh.blocks}
    keys, places = arrays.get("keys", nothing), arrays.get("places", nothing)
    return replace(fresh, keys=keys, places=places, blocks=blocks, numbers=dict(facts["numbers"]))


def _restored_before(table: RowTable, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> RowTable:
    blocks = tuple(arrays.get(f"before.{at}", table.blocks["x"][at]) for at in range(facts["earlier"]))
    return table.older(facts["before"], {"x": blocks})
