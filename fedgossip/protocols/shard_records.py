"""What a server's checkpoint holds of its shards, and how they are as they were again.

    "3.x", "3.velocity", ...    the arrays of shard 3: the model's, what the descent remembers, and those of `before`
    "3"                         its plain numbers, and the clocks of its workers

Pushes that wait for others of their clock are not in it: their workers push them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgossip.algorithms.base import restored, saved
from fedgossip.machine import Checkpoint
from fedgossip.protocols.shard_clocks import ShardClocks, StepPerClock
from fedgossip.vectors import Vector

BEFORE = "before"


def saved_shards(version: int, shards: Mapping[int, ShardClocks], *, durable: bool) -> Checkpoint:
    """Return all that is needed to go on with these shards, `version` clocks after the beginning."""
    vectors: dict[str, Vector] = {}
    facts: dict[str, object] = {}
    for number, clocks in shards.items():
        arrays, numbers = saved(clocks.state)
        vectors |= {f"{number}.{name}": array for name, array in arrays.items()}
        if isinstance(clocks, StepPerClock):
            vectors[f"{number}.{BEFORE}"] = clocks.before
            numbers["closed"] = clocks.closed
        workers = {str(worker): clock for worker, clock in clocks.clocks.items()}
        facts[str(number)] = {**numbers, "of_all": clocks.steps, "workers": workers}
    return Checkpoint(version, vectors, facts, durable=durable)


def restore(shards: Mapping[int, ShardClocks], kept: Checkpoint) -> None:
    """Bring fresh shards to where they were.  Raises ValueError, KeyError for what is of others."""
    for number, clocks in shards.items():
        numbers: dict[str, Any] = dict(kept.facts[str(number)])  # type: ignore[call-overload]
        mark = f"{number}."
        arrays = {name.removeprefix(mark): one for name, one in kept.vectors.items() if name.startswith(mark)}
        clocks.steps = numbers.pop("of_all")
        clocks.clocks = {int(worker): clock for worker, clock in numbers.pop("workers").items()}
        if isinstance(clocks, StepPerClock):
            clocks.before, clocks.closed = arrays.pop(BEFORE), numbers.pop("closed")
            clocks.clocks = dict.fromkeys(clocks.clocks, clocks.closed)
        clocks.state = restored(clocks.state, arrays, numbers)
