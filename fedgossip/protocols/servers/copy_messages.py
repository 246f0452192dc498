"""What a shard's owner tells those that keep copies of it: its changes, and all that it is; of elements and of rows.

Of elements all go, in pieces.  Of a table's rows go those that were touched, each piece with their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.descent.rows import RowTable
from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.base.keyed_rows import Rows
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.messages import (
    ChangeMessage,
    CopyMessage,
    EmptyCopy,
    EmptyStep,
    RowCopy,
    RowStep,
    ShardCopy,
    ShardStep,
)
from fedgossip.protocols.servers.pieces import Assembly, RowAssembly, keyed_pieces, pieces
from fedgossip.protocols.servers.shard_clocks import ShardChange, ShardClocks

Whole = Vector | Rows | None
"""What the pieces of a change, or of a copy, make; None where there is nothing beside the numbers."""


def change_messages(epoch: int, shard: int, number: int, change: ShardChange, schema: str) -> Sequence[ChangeMessage]:
    """Return a change, the `number`-th of a shard, as messages."""
    head = epoch, shard, number, change.clock, change.rate, change.workers
    if change.gradient is None or not isinstance(change.gradient, Rows):
        if change.gradient is None:
            return [EmptyStep(*head)]
        return [ShardStep(*head, start, one.size, schema, (one,)) for start, one in pieces(change.gradient)]
    if not change.gradient.keys.size:
        return [EmptyStep(*head)]
    return [RowStep(*head, *place, schema, parts) for place, parts in keyed_pieces(change.gradient)]


def copy_messages(epoch: int, shard: int, number: int, clocks: ShardClocks, schema: str) -> Sequence[CopyMessage]:
    """Return all that a shard is after its `number`-th change as messages."""
    head = epoch, shard, number, clocks.closed, clocks.steps, tuple(clocks.clocks.values()), _counts(clocks)
    many = arrays_of(clocks)
    if not isinstance(clocks.state, RowTable):
        arrays = saved(clocks.state)[0]
        vector = frozen(np.concatenate([*(arrays[name] for name in sorted(arrays)), *clocks.extra]))
        return [ShardCopy(*head, many, start, one.size, schema, (one,)) for start, one in pieces(vector)]
    rows = _all_rows(clocks, clocks.state)
    if rows is None:
        return [EmptyCopy(*head)]
    return [RowCopy(*head, *place, schema, parts) for place, parts in keyed_pieces(rows)]


def arrays_of(clocks: ShardClocks) -> int:
    """Return how many arrays a shard is: the model's, what the descent remembers, those beside it."""
    state = clocks.state
    return len(state.blocks if isinstance(state, RowTable) else saved(state)[0]) + len(clocks.extra)


def _counts(clocks: ShardClocks) -> tuple[int, ...]:
    """The plain numbers of the descent, by name."""
    numbers = clocks.state.numbers if isinstance(clocks.state, RowTable) else saved(clocks.state)[1]
    return tuple(int(numbers[name]) for name in sorted(numbers))


def _all_rows(clocks: ShardClocks, table: RowTable) -> Rows | None:
    """Return of each touched row what it is in every array, one array after the other within the row."""
    if not table.keys.size:
        return None
    extra = [cast(RowTable, before).rows(table.keys) for before in clocks.extra]
    arrays = [*(table.touched(name) for name in sorted(table.blocks)), *extra]
    return Rows(table.keys, frozen(np.stack([one.reshape(len(table.keys), -1) for one in arrays], axis=1).reshape(-1)))


def arriving(message: ChangeMessage | CopyMessage, clocks: ShardClocks, length: int) -> Assembly | RowAssembly | None:
    """Return what puts the pieces together of which a message is one; None where that is all, or of another kind."""
    many = arrays_of(clocks) if isinstance(message, CopyMessage) else 1
    state = clocks.state
    if isinstance(message, RowStep | RowCopy) and isinstance(state, RowTable):
        return RowAssembly(message.of, many * state.table.width, state.dtype)
    if isinstance(message, ShardStep | ShardCopy) and not isinstance(state, RowTable):
        return Assembly(many * length, state.x.dtype)
    return None


def fits(message: ChangeMessage | CopyMessage, clocks: ShardClocks) -> bool:
    """Whether it is of such a shard: a table's, or a vector's, of the same workers and descent."""
    of_rows = isinstance(clocks.state, RowTable)
    if isinstance(message, EmptyStep):
        return True
    if isinstance(message, CopyMessage):
        alike = len(message.clocks) == len(clocks.clocks) and len(message.counts) == len(_counts(clocks))
        return alike and isinstance(message, RowCopy | EmptyCopy) == of_rows
    return isinstance(message, RowStep) == of_rows


def become(clocks: ShardClocks, message: CopyMessage, whole: Whole) -> None:
    """Make a shard what a copy of it says."""
    if isinstance(clocks.state, RowTable):
        names = sorted(clocks.state.numbers)
        table, before = _tables(clocks, cast("Rows | None", whole), dict(zip(names, message.counts, strict=True)))
        clocks.become(table, message.closed, message.steps, message.clocks, before)
        return
    arrays, numbers = saved(clocks.state)
    parts = [frozen(np.array(part)) for part in np.split(cast(Vector, whole), arrays_of(clocks))]
    facts = dict(zip(sorted(numbers), message.counts, strict=True))
    state = restored(clocks.state, dict(zip(sorted(arrays), parts, strict=False)), facts)
    clocks.become(state, message.closed, message.steps, message.clocks, parts[len(arrays) :])


def _tables(clocks: ShardClocks, rows: Rows | None, numbers: dict[str, int]) -> tuple[RowTable, list[RowTable]]:
    """Return the table, and the one a clock earlier where there is one, of which only the model's rows are read."""
    fresh = clocks.descent.start(None)
    if rows is None:
        return replace(fresh, numbers=numbers), [fresh] * len(clocks.extra)
    arrays = rows.values.reshape(len(rows.keys), arrays_of(clocks), -1)
    names = sorted(clocks.state.blocks)  # type: ignore[union-attr]
    table = fresh.with_rows(rows.keys, {name: _array(arrays, at) for at, name in enumerate(names)}, numbers)
    before = [fresh.with_rows(rows.keys, {"x": _array(arrays, at)}, {}) for at in range(len(names), arrays.shape[1])]
    return table, before


def _array(arrays: npt.NDArray[np.floating], at: int) -> Vector:
    return frozen(np.ascontiguousarray(arrays[:, at]).reshape(-1))
