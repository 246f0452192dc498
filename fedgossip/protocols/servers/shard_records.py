"""The entries of a shard in a server's checkpoint, and its restoration.

        "3.x", "3.velocity", ...    the arrays of shard 3: the model's, the descent's, and those beside it
    "3"                         its plain numbers, and the clocks of its workers, ascending by id

Pushes that wait for others of their clock are not stored: their workers push them again.

Of a shard of a table the touched rows are stored, in blocks as they lie, which are shared and not copied:

        "3.keys", "3.places"        the rows, and their places
        "3.x.0", "3.x.1", ...       blocks of the model's array, and of each of the descent's
        "3.before.0", ...           the model's blocks that differed a clock earlier
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedgossip.algorithms.descent.rows import RowTable
from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint
from fedgossip.protocols.servers.shard_clocks import ShardClocks


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
            clocks.become(table, *at, [before] * len(clocks.extra))
            continue
        extra = [arrays.pop(f"extra{place}") for place in range(len(clocks.extra))]
        clocks.become(restored(clocks.state, arrays, facts["state"]), *at, extra)
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
    """Return the table a clock earlier, with the model's rows alone."""
    blocks = tuple(arrays.get(f"before.{at}", table.blocks["x"][at]) for at in range(facts["earlier"]))
    return table.older(facts["before"], {"x": blocks})
