"""A vector in fragments; one is sent per round, and the others wait for their turn.

    round   0   1   2   3   4   5              fragments = 3: each is sent every third round
    sent    0   1   2   0   1   2

The staggered synchronisation of Streaming DiLoCo (Douillard and others, Streaming DiLoCo with overlapping
communication, 2025).  Its fragments are layers; here they have nearly equal lengths, so a link's peak falls by their
number for any layers.

DiLoCo on any graph, a fragment at a time; with f the fragment of the round, and v and rest beginning with 0:

    train from x_i + rest_i                 -> u_i
    rest_i     <-  rest_i + u_i             trained and not sent so far
    D_i[f]     =   sum_j W_ij (x_j + rest_j)[f] - x_i[f]
    v_i[f]     <-  beta v_i[f] + D_i[f]
    x_i[f]     <-  x_i[f] + lr (beta v_i[f] + D_i[f])
    rest_i[f]  <-  0

The paper has a collective in place of the graph's round; one fragment is `diloco`.  An outgoing vector is 0 outside the
fragment, and a link carries the fragment alone (`protocols/gossip/sync_gossip`): a late model counts in its own round's
fragment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import EllipsisType

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, frozen, linear, subtract
from fedgossip.core.task import Segment

FRAGMENTS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Fragments:
    """`cuts`: ascending indices from 0 to the vector's length; fragment f is from cut f to the next."""

    cuts: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.cuts) - 1

    @property
    def largest(self) -> int:
        """Number of elements of the largest fragment."""
        return max(stop - start for start, stop in pairwise(self.cuts))

    def number(self, round: int) -> int:
        """Return the number of the fragment sent in a round."""
        return round % self.count

    def part(self, round: int) -> slice:
        """Return the elements sent in a round."""
        return slice(*self.cuts[self.number(round) :][:2])


def fragments_of(length: int, segments: Sequence[Segment] = (), count: int = 1) -> Fragments:
    """Return `count` fragments of a vector [length], cut between rows of its tensors, within half a row of equal ones.

    Raises ConfigError for more fragments than rows allow.
    """
    cuts = (0, *(_between_rows(length * f // count, segments) for f in range(1, count)), length)
    if any(stop <= start for start, stop in pairwise(cuts)):
        text = f"fragments = {count} of a model of {length:,} elements, which has too few rows for so many"
        raise ConfigError(text, "Take fewer, for example 4.")
    return Fragments(cuts)


def segments_within(segments: Sequence[Segment], part: slice) -> tuple[Segment, ...]:
    """Return the tensors of a fragment, with their rows inside it; positions are relative to its start."""
    found = []
    for one in segments:
        start, stop = max(one.start, part.start), min(one.stop, part.stop)
        if start < stop:
            shape = (math.ceil((stop - start) / _row(one)), *one.shape[1:]) if one.shape else ()
            found.append(Segment(one.name, start - part.start, shape, one.kind))
    return tuple(found)


def _row(tensor: Segment) -> int:
    return math.prod(tensor.shape[1:])


def _between_rows(place: int, segments: Sequence[Segment]) -> int:
    for one in segments:
        if one.start <= place < one.stop:
            row = _row(one)
            return one.start + (place - one.start + row // 2) // row * row
    return place


@dataclass(frozen=True, eq=False)
class Unsent:
    """Arrays [d] or [n, d]: the model that others have, the outer momentum, and the trained part not sent so far."""

    x: Vector
    v: Vector
    rest: Vector
    round: int = -1
    """The round of `rest`, of the current or last sent fragment; -1: none."""


class FragmentedDiLoCo:
    """`count` fragments, 1 to FRAGMENTS_MAX.  Raises ConfigError for others."""

    slots = (MODEL,)

    def __init__(self, outer: OuterStep, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= FRAGMENTS_MAX:
            text = f"diloco: fragments = {count!r}; expected a whole number from 1 to {FRAGMENTS_MAX:,}"
            raise ConfigError(text, "For example 4: each is sent in every fourth round.")
        self.outer, self.count = outer, count
        self.needs = Needs(linear=True, elements=count)

    def fragments(self, length: int) -> Fragments:
        """Return the fragments of models [length].  Raises ConfigError for fewer elements than fragments."""
        return fragments_of(length, count=self.count)

    def start(self, x: Vector) -> Unsent:
        zeros = frozen(np.zeros_like(x))
        return Unsent(x, zeros, zeros)

    def trained(self, state: Unsent, update: Vector | None, step: Step) -> tuple[Unsent, Vectors]:
        grown = state.rest if update is None else add(state.rest, update)
        part = self._part(state.x, step.round)
        left, goes = grown.copy(), np.zeros_like(state.x)
        left[part], goes[part] = 0, add(state.x[part], grown[part])
        return replace(state, rest=frozen(left), round=step.round), (frozen(goes),)

    def mixed(self, state: Unsent, mixed: Vectors) -> Unsent:
        part = self._part(state.x, state.round)
        x, v = state.x.copy(), state.v.copy()
        x[part], v[part] = self.outer.taken(x[part], v[part], subtract(mixed[0][part], x[part]))
        return replace(state, x=frozen(x), v=frozen(v))

    def model(self, state: Unsent) -> Vector:
        return add(state.x, state.rest)

    def seen(self, state: Unsent, outgoing: Vectors) -> Vector:
        part, model = self._part(state.x, state.round), self.model(state).copy()
        model[part] = outgoing[0][part]
        return frozen(model)

    def corrected(self, state: Unsent, differences: Vectors) -> Unsent:
        """Count a late model as `diloco` does; it is 0 outside the fragment of its round."""
        (late,) = differences
        return replace(state, x=linear((1, state.x), (self.outer.gain, late)), v=add(state.v, late))

    def rejoined(self, state: Unsent, model: Vector) -> Unsent:
        """Keep the unsent remainder."""
        return replace(state, x=subtract(model, state.rest))

    def _part(self, x: Vector, round: int) -> tuple[EllipsisType, slice]:
        """Return the index of a round's fragment in [d], or in each row of [n, d]."""
        return (..., self.fragments(x.shape[-1]).part(round))
