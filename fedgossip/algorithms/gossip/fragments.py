"""A vector in fragments, of which one goes out in a round: the others wait for their turn.

    round   0   1   2   3   4   5              fragments = 3: each goes every third round
    goes    0   1   2   0   1   2

So what a link carries at a time is a fragment, and not the model: the staggered synchronisation of Streaming DiLoCo
(Douillard and others, Streaming DiLoCo with overlapping communication, 2025), whose fragments are layers.  Here they
are as nearly equal as rows of tensors allow, so that the peak falls by their number whatever the layers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Segment

FRAGMENTS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Fragments:
    """`cuts`: ascending places from 0 to the vector's length; fragment f is from cut f to the next."""

    cuts: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.cuts) - 1

    @property
    def largest(self) -> int:
        """Elements of the largest."""
        return max(stop - start for start, stop in pairwise(self.cuts))

    def number(self, round: int) -> int:
        """Return which one goes out in a round."""
        return round % self.count

    def part(self, round: int) -> slice:
        """Return its elements."""
        return slice(*self.cuts[self.number(round) :][:2])


def fragments_of(length: int, segments: Sequence[Segment] = (), count: int = 1) -> Fragments:
    """Return `count` fragments of a vector [length] of these tensors, cut between rows of a tensor.

    A cut is at most half a row from where equal fragments would have it.  Raises ConfigError for more than there are
    rows for.
    """
    cuts = (0, *(_between_rows(length * f // count, segments) for f in range(1, count)), length)
    if any(stop <= start for start, stop in pairwise(cuts)):
        text = f"fragments = {count} of a model of {length:,} elements, which has too few rows for so many"
        raise ConfigError(text, "Take fewer: 4, say.")
    return Fragments(cuts)


def segments_within(segments: Sequence[Segment], part: slice) -> tuple[Segment, ...]:
    """Return the tensors of a fragment, the rows of each that are in it; places are counted from its beginning."""
    found = []
    for one in segments:
        start, stop = max(one.start, part.start), min(one.stop, part.stop)
        if start < stop:
            shape = (math.ceil((stop - start) / _row(one)), *one.shape[1:]) if one.shape else ()
            found.append(Segment(one.name, start - part.start, shape, one.kind))
    return tuple(found)


def _row(tensor: Segment) -> int:
    """Elements of a row, which is what follows the first axis."""
    return math.prod(tensor.shape[1:])


def _between_rows(place: int, segments: Sequence[Segment]) -> int:
    for one in segments:
        if one.start <= place < one.stop:
            row = _row(one)
            return one.start + (place - one.start + row // 2) // row * row
    return place
