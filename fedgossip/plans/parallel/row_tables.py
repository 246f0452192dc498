"""A model that is a table, at parameter servers: the table, checks of the experiment, and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fedgossip.algorithms.descent.row_filters import FILTERS, KEY_CACHE, Memory, Pushing, RowFilter, make_filter
from fedgossip.algorithms.descent.rows import RowTable
from fedgossip.base.errors import ConfigError, TrainingError, nearest
from fedgossip.base.keyed_rows import KeyedTable, Rows, frozen_keys, no_rows
from fedgossip.base.signatures import CalledWith
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Checkpoint
from fedgossip.core.task import LocalTask, RowTask
from fedgossip.data.custom import function, given_by, is_function
from fedgossip.data.objectives import SPARSE
from fedgossip.experiment import ParallelExperiment
from fedgossip.experiment.parallel_sections import SERVED
from fedgossip.learning.linear.word_tables import word_table
from fedgossip.plans.plan import RunOutlook
from fedgossip.protocols.servers.shard_clocks import ShardClocks
from fedgossip.protocols.servers.shard_records import restore

FILTER = CalledWith(("pushing", "memory"), "Write def filter(pushing, memory): return pushing.gradient, memory")
"""Of a filter of the user's own, see `algorithms.descent.row_filters`."""


def check_table(experiment: ParallelExperiment, table: KeyedTable | None) -> None:
    """Raise ConfigError for what a table cannot have, or a vector."""
    s, step = experiment.parallel.server, experiment.parallel.descent or experiment.train.optimizer
    if table is None:
        if s.filters:
            text = f"parallel.server.filters = {s.filters}, and the model is no table"
            raise ConfigError(text, "Filters choose rows; leave them out, or see docs/together/parallel.md for tables.")
        return
    if s.placement != "ranges" or step in ("lars", "lamb"):
        what = f"parallel.server.placement = {s.placement!r}" if s.placement != "ranges" else step
        raise ConfigError(f"{what} of a table, which has no whole tensors", "Leave it out.")
    if codec := experiment.parallel.codec or s.pull_codec:
        text = f"codec {codec!r} of a table, whose rows go one by one"
        raise ConfigError(text, "Leave it out: parallel.server.filters choose what of a table is worth sending.")
    filters_of(experiment)


def filters_of(experiment: ParallelExperiment) -> Mapping[str, RowFilter | None]:
    """Return the filters by their texts; None for the key-cache, which is none of rows.  Raises ConfigError."""
    l1, texts = experiment.parallel.l1, experiment.parallel.server.filters
    if len(set(texts)) < len(texts):
        raise ConfigError(f"parallel.server.filters = {texts}", "Name each once.")
    return {text: None if text == KEY_CACHE else make_filter(text, l1, own_filter) for text in texts}


def named_table(experiment: ParallelExperiment) -> KeyedTable | None:
    """Return the table that an experiment's own task has; None for a vector.  Raises ConfigError."""
    if experiment.task.kind == SPARSE:
        return KeyedTable(experiment.task.dim, seed=experiment.seed)
    sizes = word_table(experiment.model.source) if experiment.learns else None
    return sizes.table(experiment.seed) if sizes else None


def own_filter(text: str) -> RowFilter:
    """Return the user's own filter that "module:function" names.  Raises ConfigError."""
    if not is_function(text):
        raise ConfigError(f"filter {text!r} is not known", nearest(text, FILTERS))
    return OwnFilter(text)


@dataclass(frozen=True)
class OwnFilter:
    """A user's own function, imported at its call; its result is checked."""

    text: str

    def __post_init__(self) -> None:
        function(self.text, None, FILTER)

    def __call__(self, pushing: Pushing, memory: Memory) -> tuple[Rows, Memory]:
        found = given_by(self.text, function(self.text), pushing, memory)
        rows = found[0] if isinstance(found, tuple) and len(found) == 2 else None
        if not isinstance(rows, Rows) or rows.values.size != rows.keys.size * pushing.gradient.matrix.shape[1]:
            text = f"{self.text} gives {type(found).__name__} of which no rows can be made"
            raise TrainingError(text, "A filter returns (Rows, memory); see fedgossip.algorithms.descent.row_filters.")
        return rows, found[1]


def outlook_of_rows(
    experiment: ParallelExperiment, table: KeyedTable, task: LocalTask, shares: Sequence[int]
) -> RunOutlook:
    """Return the needs of the first batches, over all workers, without filters and measured rows."""
    assert isinstance(task, RowTask), "a plan with a table has its task"
    accumulate, workers = experiment.parallel.accumulate, experiment.parallel.workers
    counts = [task.keys(node, 0, accumulate).size for node in range(workers)]
    row = table.width * table.dtype.itemsize
    dense, replication = table.rows * row, experiment.parallel.server.replication
    copies = f"; {replication} copies of each" if replication > 1 else ""
    lines = [
        f"{workers} workers, {len(shares)} servers with {', '.join(f'{share:,}' for share in shares)} rows of {row}"
        f" bytes, made when they are touched{copies}",
        f"{max(counts):,} rows of {table.rows:,} in a worker's first batch: {max(counts) * row:,} bytes each way,"
        f" and 4 bytes a key; a dense model would be {dense:,}",
    ]
    facts: dict[str, Any] = {"method": SERVED, "workers": workers, "servers": len(shares), "rows": counts}
    return RunOutlook(sum(2 * count * row + 4 * count for count in counts), facts, lines)


def all_touched(lives: Sequence[tuple[Checkpoint, dict[int, ShardClocks]]], table: KeyedTable) -> Rows:
    """Return all rows that were touched, by the checkpoints of servers, each with fresh shards to be restored.

    Of a shard that several have, the one with the most clocks and steps counts, for a copy may be behind.  Raises
    ValueError, KeyError.
    """
    newest: dict[int, tuple[tuple[int, int, int], RowTable]] = {}
    for kept, shards in lives:
        missing = restore(shards, kept)
        for number, clocks in shards.items():
            age = clocks.closed, clocks.steps, int(kept.facts["epoch"])  # type: ignore[call-overload]
            if number not in missing and (number not in newest or age > newest[number][0]):
                newest[number] = age, cast(RowTable, clocks.state)
    parts = [Rows(one.keys, one.touched()) for _, one in newest.values() if one.keys.size]
    if not parts:
        return no_rows(table.dtype)
    keys, matrix = np.concatenate([one.keys for one in parts]), np.concatenate([one.matrix for one in parts])
    order = np.argsort(keys)
    return Rows(frozen_keys(keys[order]), frozen(matrix[order].reshape(-1)))
