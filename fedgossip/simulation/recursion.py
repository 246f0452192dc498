"""Rounds of gossip with given updates: an algorithm's own recursion, on all nodes' vectors at once.

    x  <-  A_t x + B_t u

A forecast runs the algorithm object itself on updates that were not trained from x, so no formula is written twice.  It
holds where the object is linear in (x, u), which `is_linear` tests by calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.gossip.base import GossipAlgorithm, Step
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.simulation.realised import RealisedLosses, RealisedRounds
from fedgossip.simulation.stacked import StackedExchange, combined
from fedgossip.topology import Schedule

ASKED_ROUNDS = 8
"""Number of rounds in the test of an algorithm's linearity,"""
ASKED_SCALES = (1e-3, 1.0, 1e3)
"""and sizes of the vectors in them: a rule that clips differs beyond its threshold alone."""
LINEAR = 1e-9
"""Largest difference of a sum that is still rounding, as a share of the largest element."""


@dataclass(frozen=True, eq=False)
class GossipCourse:
    """One possible course of a run: an algorithm of all nodes on a schedule.  `name`: its name for people."""

    name: str
    schedule: Schedule
    algorithm: GossipAlgorithm[Any]
    exchange: StackedExchange


class Recursion:
    """All nodes' vectors [n, c] on a course; or one row [1, c] without neighbours, like the mean of all."""

    def __init__(self, course: GossipCourse, start: Vector, *, alone: bool = False) -> None:
        self._course, self._alone = course, alone
        realised = isinstance(course.schedule, RealisedRounds) and not alone
        self._late = RealisedLosses(course.schedule) if realised else None  # type: ignore[arg-type]
        self._state = course.algorithm.start(start)

    @property
    def model(self) -> Vector:
        """The vectors to train from."""
        return self._course.algorithm.model(self._state)

    def advance(self, updates: Vector | None, step: Step) -> None:
        """Do the round `step.round` with `updates`, like the vectors; None: no change."""
        course, before = self._course, self._state
        if self._late:
            before = self._late.made_up(course.algorithm, before, step.round, mixed=False)
        state, outgoing = course.algorithm.trained(before, updates, step)
        if self._alone:
            self._state = course.algorithm.mixed(state, outgoing)
            return
        groups = course.schedule.mixing(step.round).rows_by_degree()
        self._state = combined(course.algorithm, state, outgoing, groups, course.exchange)
        if self._late:
            self._late.note(step.round, outgoing)
            after = self._late.made_up(course.algorithm, self._state, step.round, mixed=True)
            self._state = self._late.without_the_absent(before, after, step.round)

    def there(self, round: int) -> Vector:
        """The vectors of the participants of `round`; of a past run not always all."""
        return self.model if self._late is None else frozen(self.model[self._late.rounds.present(round)])


def is_linear(course: GossipCourse) -> bool:
    """Whether the models of twice one history of updates, plus another, are twice the one's plus the other's.

    A median or a clipped sum is not linear: superposition does not forecast such a rule.  Raises TrainingError for a
    wrong return value of a user's algorithm.
    """
    for scale in ASKED_SCALES:
        width = max(3, course.algorithm.needs.elements)
        p, q = _history(course.schedule.n, width, 1.0, 0), _history(course.schedule.n, width, scale, 1)
        both = [frozen(2.0 * a + b) for a, b in zip(p, q, strict=True)]
        for a, b, sum_of_both in zip(*(_models(course, history) for history in (p, q, both)), strict=True):
            if float(np.abs(2.0 * a + b - sum_of_both).max()) > LINEAR * max(1.0, float(np.abs(sum_of_both).max())):
                return False
    return True


def _history(n: int, width: int, scale: float, draw: int) -> list[Vector]:
    """Return first vectors and updates [n, width] at random."""
    values = stream(0, "linear", n, draw).standard_normal((1 + ASKED_ROUNDS, n, width))
    return [frozen(scale * each) for each in values]


def _models(course: GossipCourse, history: list[Vector]) -> Iterator[Vector]:
    run = Recursion(course, history[0])
    found: list[npt.NDArray[np.floating]] = []
    for round, updates in enumerate(history[1:]):
        run.advance(updates, steps_of(round, course.schedule.n))
        found.append(run.model)
    return iter(found)


def steps_of(round: int, n: int, rate: float = 0.1) -> Step:
    """Return the step of a round in which all nodes take one at the same rate."""
    return Step(round, np.full((n, 1), rate), np.ones((n, 1)))
