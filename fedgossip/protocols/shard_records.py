"""What a server's checkpoint, or a copy of a shard, holds of it, and how a fresh one becomes the same.

    "3.x", "3.velocity", ...    the arrays of shard 3: the model's, what the descent remembers, and those beside it
    "3"                         its plain numbers, and the clocks of its workers, ascending by id

Pushes that wait for others of their clock are not in it: their workers push them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgossip.algorithms.base import restored, saved
from fedgossip.machine import Checkpoint
from fedgossip.messages import ShardCopy
from fedgossip.protocols.shard_clocks import ShardClocks
from fedgossip.vectors import Vector, frozen


def saved_shards(version: int, shards: Mapping[int, ShardClocks], epoch: int, *, durable: bool) -> Checkpoint:
    """Return all that is needed to go on with these shards, `version` clocks after the beginning."""
    vectors: dict[str, Vector] = {}
    facts: dict[str, object] = {"epoch": epoch}
    for number, clocks in shards.items():
        arrays, numbers = saved(clocks.state)
        vectors |= {f"{number}.{name}": array for name, array in arrays.items()}
        vectors |= {f"{number}.extra{place}": array for place, array in enumerate(clocks.extra)}
        workers = list(clocks.clocks.values())
        facts[str(number)] = {"state": numbers, "closed": clocks.closed, "steps": clocks.steps, "workers": workers}
    return Checkpoint(version, vectors, facts, durable=durable)


def restore(shards: Mapping[int, ShardClocks], kept: Checkpoint) -> list[int]:
    """Bring fresh shards to where they were, and return those of which there is nothing.

    Raises ValueError, KeyError for what is of others.
    """
    missing = []
    for number, clocks in shards.items():
        if str(number) not in kept.facts:
            missing.append(number)
            continue
        facts: dict[str, Any] = dict(kept.facts[str(number)])  # type: ignore[call-overload]
        mark = f"{number}."
        arrays = {name.removeprefix(mark): one for name, one in kept.vectors.items() if name.startswith(mark)}
        extra = [arrays.pop(f"extra{place}") for place in range(len(clocks.extra))]
        state = restored(clocks.state, arrays, facts["state"])
        clocks.become(state, facts["closed"], facts["steps"], facts["workers"], extra)
    return missing


def arrays_of(clocks: ShardClocks) -> int:
    """Return how many arrays [n] a shard is."""
    return len(saved(clocks.state)[0]) + len(clocks.extra)


def packed(clocks: ShardClocks) -> tuple[tuple[int, ...], Vector]:
    """Return a shard's plain numbers, by name, and its arrays one after the other."""
    arrays, numbers = saved(clocks.state)
    counts = tuple(int(numbers[name]) for name in sorted(numbers))
    return counts, frozen(np.concatenate([*(arrays[name] for name in sorted(arrays)), *clocks.extra]))


def unpack(clocks: ShardClocks, copy: ShardCopy, vector: Vector) -> None:
    """Make a shard what a copy of it says."""
    arrays, numbers = saved(clocks.state)
    parts = [frozen(np.array(part)) for part in np.split(vector, arrays_of(clocks))]
    names = sorted(arrays)
    state = restored(
        clocks.state, dict(zip(names, parts, strict=False)), dict(zip(sorted(numbers), copy.counts, strict=True))
    )
    clocks.become(state, copy.closed, copy.steps, copy.clocks, parts[len(names) :])
