"""Which examples a node sees in a round: a function of (seed, node, round) alone.

A node goes through its examples in passes, each a new random order.  With local_steps the passes are one endless
line, and round r takes the next local_steps * batch_size places of it, so that every batch is full; with
local_epochs a round is that many whole passes, or fewer with fewest_epochs; the last batch of a pass may be smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.seeds import stream
from fedgossip.learning.settings import TrainSettings

Indices = npt.NDArray[np.int64]

DRAWN_PLACES = 512  # passes over few examples are drawn together: opening a stream costs more than shuffling them


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The steps of one job: `indices` [steps, width] into the dataset, the first counts[step] of them in use."""

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
        """Return places start .. start + places of the line."""
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
        """Return the places number * length .. (number + 1) * length of the line: whole passes from one stream."""
        latest = self._latest.get(node)
        if latest is not None and latest[0] == number:
            return latest[1]
        stretch = self.drawn(node, number, length)
        self._latest[node] = (number, stretch)
        return stretch

    def drawn(self, node: int, number: int, length: int) -> Indices:
        """Return a stretch: whole passes, `length` places in all."""
        share, random = self._shares[node], stream(self._seed, self._purpose, node, number)
        passes = length // len(share)
        drawn = random.permutation(share) if passes == 1 else random.permuted(np.tile(share, (passes, 1)), axis=1)
        stretch: Indices = drawn.reshape(-1)
        return stretch


class Batches:
    """Draws plans.  `width` >= batch_size pads every step with unused places to one shape."""

    def __init__(
        self, shares: Sequence[Indices] | Mapping[int, Indices], settings: TrainSettings, seed: int, width: int
    ) -> None:
        self._shares, self._settings, self._seed = shares, settings, seed
        self._size, self._width = settings.examples_per_step, width
        self._steps, self._epochs = settings.local_steps, settings.local_epochs
        self._full = np.full(self._steps or 0, self._size)
        self._line = EndlessLine(shares, seed, "batches")
        self._latest_of_all: dict[int, npt.NDArray[np.int32]] = {}  # stretch -> [n, places], where all have as many

    def plan(self, node: int, round: int, steps: int | None = None) -> BatchPlan:
        """Return the batches of `node` in `round`; with `steps` so many full batches, whatever the settings."""
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

    def whole(self, rows: Indices) -> BatchPlan:
        """Return one pass over these rows, in their order."""
        return self._passes(rows.reshape(1, -1))

    def of_all(self, round: int, n: int) -> Indices | None:
        """Return the steps of nodes 0 to n - 1 in `round`, [steps, n, width], each full; None with local_epochs."""
        if self._steps is None:
            return None
        places = self._steps * self._size
        sizes = {len(self._shares[node]) for node in range(n)}
        if len(sizes) == 1:
            drawn = self._lines(n, sizes.pop(), round * places, places)
        else:
            drawn = np.stack([self._line.places(node, round * places, places) for node in range(n)])
        by_steps = drawn.reshape(n * self._steps, self._size)
        return self._padded(by_steps).reshape(n, self._steps, self._width).transpose(1, 0, 2).astype(np.int64)

    def _lines(self, n: int, m: int, start: int, places: int) -> npt.NDArray[Any]:
        """Return the line of all of n nodes with m examples each, [n, places]."""
        length = m * max(1, DRAWN_PLACES // m)
        first, last = start // length, (start + places - 1) // length
        for number in range(first, last + 1):
            if number not in self._latest_of_all:
                self._latest_of_all[number] = table = np.empty((n, length), np.int32)
                for node in range(n):
                    table[node] = self._line.drawn(node, number, length)
        self._latest_of_all = {number: self._latest_of_all[number] for number in range(first, last + 1)}
        tables, begin = list(self._latest_of_all.values()), start - first * length
        table = tables[0] if first == last else np.concatenate(tables, axis=1)
        return table[:, begin : begin + places]

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
