"""The examples of a node's batches in a round: a function of (seed, node, round) only.

A node reads its examples in passes, each in a new random order.  With local_steps the passes form one endless sequence,
and round r takes the next local_steps * batch_size positions.  With local_epochs a round is that many passes, or fewer
with fewest_epochs, and a pass's last batch may be smaller.

With buckets every step has lines of one bucket, the next of the bucket's own endless sequence of passes.  In pass c
over all lines of the node the bucket b, of m_b lines, has

    floor((c + 1) m_b / batch_size) - floor(c m_b / batch_size)

steps, in a random order.  Every line is used equally often, to one batch, every batch is full, and no round depends on
earlier draws.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import Ragged
from fedgossip.learning.settings import TrainSettings

Indices = npt.NDArray[np.int64]

DRAWN_PLACES = 512  # passes over few examples are drawn together: opening a stream costs more than shuffling them


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The steps of one job: `indices` [steps, width] into the dataset; the first counts[step] of them are used."""

    indices: Indices
    counts: Indices

    @property
    def batches(self) -> list[Indices]:
        """The examples of each step."""
        return [row[:count] for row, count in zip(self.indices, self.counts, strict=True)]


class EndlessLine:
    """A node's examples in passes, each a new random order, one after another: a function of (seed, purpose, node)."""

    def __init__(self, shares: Sequence[Indices] | Mapping[int, Indices], seed: int, purpose: str) -> None:
        self._shares, self._seed, self._purpose = shares, seed, purpose
        self._latest: dict[int, tuple[int, Indices]] = {}  # node -> (stretch, its places): the next round needs it too

    def places(self, node: int, start: int, places: int) -> Indices:
        """Return positions start .. start + places of the line."""
        m = len(self._shares[node])
        length = m * max(1, DRAWN_PLACES // m)
        number, offset = divmod(start, length)
        parts = [self._stretch(node, number, length)[offset : offset + places]]
        left = places - len(parts[0])
        while left > 0:
            number += 1
            parts.append(self._stretch(node, number, length)[:left])
            left -= length
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _stretch(self, node: int, number: int, length: int) -> Indices:
        """Return positions number * length .. (number + 1) * length of the line."""
        latest = self._latest.get(node)
        if latest is not None and latest[0] == number:
            return latest[1]
        stretch = self.draw(node, number, length)
        self._latest[node] = (number, stretch)
        return stretch

    def draw(self, node: int, number: int, length: int) -> Indices:
        """Return a stretch: whole passes, `length` positions in total."""
        share, random = self._shares[node], stream(self._seed, self._purpose, node, number)
        passes = length // len(share)
        drawn = random.permutation(share) if passes == 1 else random.permuted(np.tile(share, (passes, 1)), axis=1)
        stretch: Indices = drawn.reshape(-1)
        return stretch


class Batches:
    """Draws plans.  `width` >= batch_size pads every step with unused positions to one shape."""

    def __init__(
        self, shares: Sequence[Indices] | Mapping[int, Indices], settings: TrainSettings, seed: int, width: int
    ) -> None:
        self._shares, self._settings, self._seed = shares, settings, seed
        self._size, self._width = settings.examples_per_step, width
        self._steps, self._epochs = settings.local_steps, settings.local_epochs
        self._full = np.full(self._steps or 0, self._size)
        self._line = EndlessLine(shares, seed, "batches")
        self._latest_of_all: dict[
            tuple[int, int], npt.NDArray[np.int32]
        ] = {}  # (size, stretch) -> [nodes of the size, places]

    def plan(self, node: int, round: int, steps: int | None = None) -> BatchPlan:
        """Return the batches of `node` in `round`; with `steps` this number of full batches, overriding the
        settings.
        """
        m = len(self._shares[node])
        steps = steps or self._steps
        if steps is not None:
            places = steps * self._size
            drawn = self._line.places(node, round * places, places).reshape(steps, self._size)
            return BatchPlan(self._padded(drawn), self._full if steps == self._steps else np.full(steps, self._size))
        assert self._epochs is not None
        passes = self._settings.passes(self._seed, node, round)
        drawn = self._line.places(node, round * self._epochs * m, passes * m).reshape(passes, m)
        return self._passes(drawn)

    def plan_rows(self, rows: Indices) -> BatchPlan:
        """Return one pass over these rows, in order."""
        return self._passes(rows.reshape(1, -1))

    def plan_all(self, round: int, n: int) -> Indices | None:
        """Return the steps of nodes 0 to n - 1 in `round`, [steps, n, width], each full; None with local_epochs."""
        if self._steps is None:
            return None
        places = self._steps * self._size
        sizes = np.array([len(self._shares[node]) for node in range(n)])
        drawn, latest = np.empty((n, places), np.int32), dict[tuple[int, int], npt.NDArray[np.int32]]()
        for m in np.unique(sizes).tolist():
            nodes = np.flatnonzero(sizes == m)
            drawn[nodes] = self._lines(nodes, m, round * places, places, latest)
        self._latest_of_all = latest
        by_steps = drawn.reshape(n * self._steps, self._size)
        return self._padded(by_steps).reshape(n, self._steps, self._width).transpose(1, 0, 2).astype(np.int64)

    def _lines(
        self, nodes: Indices, m: int, start: int, places: int, latest: dict[tuple[int, int], npt.NDArray[np.int32]]
    ) -> npt.NDArray[np.int32]:
        """Return the lines of nodes with m examples each, [nodes, places]; add the last stretch to `latest`."""
        length = m * max(1, DRAWN_PLACES // m)
        first, last = start // length, (start + places - 1) // length
        tables = []
        for number in range(first, last + 1):
            table = self._latest_of_all.get((m, number))
            if table is None:
                table = np.empty((len(nodes), length), np.int32)
                for row, node in enumerate(nodes.tolist()):
                    table[row] = self._line.draw(node, number, length)
            tables.append(table)
        latest[m, last] = tables[-1]
        begin = start - first * length
        return (tables[0] if first == last else np.concatenate(tables, axis=1))[:, begin : begin + places]

    def _passes(self, drawn: Indices) -> BatchPlan:
        epochs, m = drawn.shape
        steps = -(-m // self._size)
        indices = np.zeros((epochs, steps * self._size), np.int64)
        indices[:, :m] = drawn
        counts = np.full((epochs, steps), self._size)
        counts[:, -1] = m - (steps - 1) * self._size
        return BatchPlan(self._padded(indices.reshape(-1, self._size)), counts.reshape(-1))

    def _padded(self, drawn: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._width == self._size:
            return drawn
        wide = np.zeros((len(drawn), self._width), drawn.dtype)
        wide[:, : self._size] = drawn
        return wide


def smallest_batch(train: Dataset, shares: Iterable[Indices], settings: TrainSettings) -> int:
    """Return the fewest examples in one pass forward of these nodes; of processes that divide a batch, together."""
    size = settings.examples_per_step
    drawn = {len(share) for share in shares}
    if isinstance(train.x, Ragged):
        bucket = train.x.bucket
        drawn = {int(count) for share in shares for count in np.bincount(bucket[share]) if count}
    counts = {size if settings.local_steps else count % size or size for count in drawn}
    return min((_smallest_piece(count, settings) for count in counts), default=size)


def _smallest_piece(count: int, settings: TrainSettings) -> int:
    parts = settings.parts_of_batch if count >= settings.parts_of_batch else 1  # else each has the whole batch
    return parts * (count // parts // min(count // parts, settings.accumulate))


def check_lines(train: Dataset, settings: TrainSettings, *, private: bool) -> None:
    """Raise ConfigError for settings that lines of different lengths do not support."""
    if not isinstance(train.x, Ragged):
        return
    advice = "Take text:PATH, windows of one length"
    if private:
        text = f"{train.name}: single lines are private, and a step draws them independent of their lengths"
        raise ConfigError(text, f'{advice}; or privacy.unit = "client".')
    if settings.mesh.pipeline > 1:
        text = f"{train.name}: mesh.pipeline and lines of several lengths: stages know one"
        raise ConfigError(text, f"{advice}, or divide layers by mesh.tensor.")


class BucketBatches:
    """Draws plans as `Batches` does; bucket[k], one of `buckets`, is the bucket of example k."""

    def __init__(
        self,
        shares: Sequence[Indices] | Mapping[int, Indices],
        settings: TrainSettings,
        seed: int,
        bucket: Indices,
        buckets: int,
    ) -> None:
        owned = shares if isinstance(shares, Mapping) else dict(enumerate(shares))
        self._settings, self._seed, self._size = settings, seed, settings.examples_per_step
        self._steps, self._epochs = settings.local_steps, settings.local_epochs
        held = [{node: share[bucket[share] == b] for node, share in owned.items()} for b in range(buckets)]
        self._sizes = {node: [len(parts[node]) for parts in held] for node in owned}
        self._lines = [EndlessLine(parts, seed, f"batches of bucket {b}") for b, parts in enumerate(held)]

    def plan(self, node: int, round: int, steps: int | None = None) -> BatchPlan:
        """Return the batches of `node` in `round`; with `steps` this number of full batches, overriding the
        settings.
        """
        steps = steps or self._steps
        if steps is None:
            assert self._epochs is not None
            first = round * self._epochs
            passes = range(first, first + self._settings.passes(self._seed, node, round))
            batches = [one for number in passes for one in self._draw_pass(node, number)]
        else:
            batches = [self._full(node, step) for step in range(round * steps, (round + 1) * steps)]
        indices = np.zeros((len(batches), self._size), np.int64)
        for row, one in zip(indices, batches, strict=True):
            row[: len(one)] = one
        return BatchPlan(indices, np.array([len(one) for one in batches]))

    def _full(self, node: int, step: int) -> Indices:
        number = self._pass_of(node, step)
        order = self._order(node, number, self._counts(node, number))
        place = step - self._count_before(node, number)
        bucket = int(order[place])
        earlier = number * self._sizes[node][bucket] // self._size + int((order[:place] == bucket).sum())
        return self._lines[bucket].places(node, earlier * self._size, self._size)

    def _draw_pass(self, node: int, number: int) -> list[Indices]:
        batches = []
        for line, size in zip(self._lines, self._sizes[node], strict=True):
            drawn = line.places(node, number * size, size) if size else np.empty(0, np.int64)
            batches += [drawn[start : start + self._size] for start in range(0, size, self._size)]
        return [batches[place] for place in self._order(node, number, [1] * len(batches))]

    def _order(self, node: int, number: int, counts: Sequence[int]) -> Indices:
        """Return counts[0] zeros, counts[1] ones, ..., in a pass's random order."""
        drawn: Indices = stream(self._seed, "buckets", node, number).permutation(
            np.repeat(np.arange(len(counts)), counts)
        )
        return drawn

    def _counts(self, node: int, number: int) -> list[int]:
        size = self._size
        return [(number + 1) * m // size - number * m // size for m in self._sizes[node]]

    def _count_before(self, node: int, number: int) -> int:
        return sum(number * m // self._size for m in self._sizes[node])

    def _pass_of(self, node: int, step: int) -> int:
        """Return the pass of a step; a pass has about m / batch_size steps."""
        m, most = sum(self._sizes[node]), step + len(self._lines) + 1
        ends = range(1, most * self._size // m + 2)
        return bisect_right(ends, step, key=lambda end: self._count_before(node, end))
