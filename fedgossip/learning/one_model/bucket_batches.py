"""Lines that a node sees in a round, with lines of one bucket in every step: a function of (seed, node, round).

Each bucket of a node has an endless sequence of passes over the node's lines in it, and every step of that bucket takes
its next batch_size places.  The bucket of a step follows from passes over all lines of the node: in pass c the bucket
b, of m_b lines, has

    floor((c + 1) m_b / batch_size) - floor(c m_b / batch_size)

steps, as many full batches as its sequence has accumulated, and the steps of a pass are in a random order.  So every
line is seen as often as any other, to one batch, every batch is full, and no round depends on the draws of those before
it.  With local_epochs a round is whole passes, in which the last batch of each bucket may be smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import Ragged
from fedgossip.learning.one_model.batches import BatchPlan, EndlessLine, Indices
from fedgossip.learning.settings import TrainSettings


def check_lines(train: Dataset, settings: TrainSettings, *, private: bool) -> None:
    """Raise ConfigError for settings that lines of several lengths do not support."""
    if not isinstance(train.x, Ragged):
        return
    advice = "Take text:PATH, windows of one length"
    if private:
        text = f"{train.name}: single lines are private, and a step draws them whatever their lengths are"
        raise ConfigError(text, f'{advice}; or privacy.unit = "client".')
    if settings.mesh.pipeline > 1:
        text = f"{train.name}: mesh.pipeline and lines of several lengths: stages know one"
        raise ConfigError(text, f"{advice}, or divide layers by mesh.tensor.")


class BucketBatches:
    """Draws plans as `Batches` does; bucket[k], of `buckets` in all, is that of example k."""

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
        """Return the batches of `node` in `round`; with `steps` so many full batches, whatever the settings."""
        steps = steps or self._steps
        if steps is None:
            assert self._epochs is not None
            first = round * self._epochs
            passes = range(first, first + self._settings.passes(self._seed, node, round))
            batches = [one for number in passes for one in self._whole_pass(node, number)]
        else:
            batches = [self._full(node, step) for step in range(round * steps, (round + 1) * steps)]
        indices = np.zeros((len(batches), self._size), np.int64)
        for row, one in zip(indices, batches, strict=True):
            row[: len(one)] = one
        return BatchPlan(indices, np.array([len(one) for one in batches]))

    def _full(self, node: int, step: int) -> Indices:
        """Return the batch of a step, counted from the first round on."""
        number = self._pass_of(node, step)
        order = self._order(node, number, self._counts(node, number))
        place = step - self._before(node, number)
        bucket = int(order[place])
        earlier = number * self._sizes[node][bucket] // self._size + int((order[:place] == bucket).sum())
        return self._lines[bucket].places(node, earlier * self._size, self._size)

    def _whole_pass(self, node: int, number: int) -> list[Indices]:
        batches = []
        for line, size in zip(self._lines, self._sizes[node], strict=True):
            drawn = line.places(node, number * size, size) if size else np.empty(0, np.int64)
            batches += [drawn[start : start + self._size] for start in range(0, size, self._size)]
        return [batches[place] for place in self._order(node, number, [1] * len(batches))]

    def _order(self, node: int, number: int, counts: Sequence[int]) -> Indices:
        """Return 0 counts[0] times, 1 counts[1] times ... in the order of a pass."""
        drawn: Indices = stream(self._seed, "buckets", node, number).permutation(
            np.repeat(np.arange(len(counts)), counts)
        )
        return drawn

    def _counts(self, node: int, number: int) -> list[int]:
        """Return the steps of each bucket in a pass."""
        size = self._size
        return [(number + 1) * m // size - number * m // size for m in self._sizes[node]]

    def _before(self, node: int, number: int) -> int:
        """Return the steps of all passes before this one."""
        return sum(number * m // self._size for m in self._sizes[node])

    def _pass_of(self, node: int, step: int) -> int:
        """Return the pass that a step is in: m / batch_size steps are in one, but for less than a step a bucket."""
        m, most = sum(self._sizes[node]), step + len(self._lines) + 1
        ends = range(1, most * self._size // m + 2)
        return bisect_right(ends, step, key=lambda end: self._before(node, end))
