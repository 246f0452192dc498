"""Peers followed along a graph's course: the response of their updates is measured there, in one round of three.

    r_i  =  u_i(x_i) - u_i(mean)          measured in rounds 1, 2, 4, 7, 10, ...; x_i: the model of peer i on this graph
    between these   r_i  ~  sum_k c_k r_i,k - a (e_i - sum_k c_k e_i,k)        e_i = x_i - mean

with c the least squares of e_i by the last four measured e_i,k: secants of the peer's own loss.  The remainder of e_i
is answered by the share a of the last measurement, as in a shadow run.

An optimiser with memory responds to earlier places too: peers of such a task are not followed.

Two recursions: one takes every measurement, the other every second.  Their difference bounds the error of the first, as
two step lengths do for a differential equation:

    fine^2 / (fine + apart)  <=  distance  <=  fine + apart

Source of the two step lengths: Hairer, Norsett and Wanner, Solving ordinary differential equations I, Springer 1993,
section II.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.gossip.base import Step
from fedgossip.base.vectors import Vector, consensus_distance, frozen, linear, subtract
from fedgossip.simulation.recursion import GossipCourse, Recursion

FIRST, EVERY = 2, 3
"""The first rounds in which answers are measured, and one of how many after these."""
KEPT = 4
"""Number of measurements combined into a response."""
RIDGE = 1e-3
"""Share of the measured lengths that is added to them: two measurements in nearly one direction carry no information
about their difference.
"""


@dataclass(frozen=True, eq=False)
class MeasuredAnswer:
    """How updates [n, d] differ from those at the mean, where peers are `away` [n, d] from it."""

    away: Vector
    answer: Vector

    @property
    def share(self) -> float:
        """Share of the deviation that the response takes back."""
        square = float(_products(self.away, self.away).sum())
        return -float(_products(self.away, self.answer).sum()) / square if square else 0.0


class SecantRecursion:
    """Rounds of gossip on a course, with updates at the mean plus the measured response to the deviation."""

    def __init__(self, course: GossipCourse, start: Vector) -> None:
        self._run = Recursion(course, start)
        self._measured: list[MeasuredAnswer] = []
        self._products = self._gram = np.zeros((len(start), 0, 0))
        self._beyond: list[Vector] = []
        self._share = 0.0

    @property
    def model(self) -> Vector:
        """The vectors [n, d]."""
        return self._run.model

    def take(self, one: MeasuredAnswer) -> None:
        """Take a measurement, for the rounds from this one on."""
        self._measured, self._share = [*self._measured, one][-KEPT:], one.share
        many, kept = len(self._measured), len(self._measured) - 1
        grown = np.empty((len(one.away), many, many))
        grown[:, :kept, :kept] = self._products[:, len(self._products[0]) - kept :, len(self._products[0]) - kept :]
        grown[:, kept] = grown[:, :, kept] = np.stack([_products(one.away, each.away) for each in self._measured], 1)
        self._products = grown
        lengths = np.trace(grown, axis1=1, axis2=2) / many
        self._gram = grown + (RIDGE * lengths + np.finfo(float).tiny)[:, None, None] * np.eye(many)
        share = one.away.dtype.type(one.share)
        self._beyond = [each.answer + share * each.away for each in self._measured]

    def advance(self, updates: Vector | None, at: Vector, step: Step) -> None:
        """Do a round with `updates` at the mean `at` [d]."""
        if updates is not None and self._measured:
            updates = frozen(updates + self._answer(subtract(self.model, at)))
        self._run.advance(updates, step)

    def _answer(self, away: Vector) -> Vector:
        told = np.stack([_products(one.away, away) for one in self._measured], axis=1)
        shares = np.linalg.solve(self._gram, told[:, :, None])[:, :, 0].astype(away.dtype)
        share = away.dtype.type(self._share)
        answer = -share * away
        for beyond, part in zip(self._beyond, shares.T, strict=True):
            answer += part[:, None] * beyond
        return frozen(answer)


class FollowedPeers:
    """The two recursions of one graph; `due` lists the rounds in which its peers compute an update at their own
    models.
    """

    def __init__(self, course: GossipCourse, start: Vector) -> None:
        self.fine, self._coarse = SecantRecursion(course, start), SecantRecursion(course, start)
        self._taken = 0

    @staticmethod
    def due(round: int) -> bool:
        """Whether answers are measured in a round, counted from 0."""
        return 1 <= round <= FIRST or round % EVERY == 1

    @property
    def models(self) -> list[Vector]:
        """Range of the peers' models: the results of both, the finer first, and as far on its other side."""
        fine, coarse = self.fine.model, self._coarse.model
        return [fine, coarse, linear((2, fine), (-1, coarse))]

    def take(self, away: Vector, answer: Vector) -> None:
        """Take the measurements of a due round."""
        one = MeasuredAnswer(away, answer)
        self.fine.take(one)
        if self._taken % 2 == 0:
            self._coarse.take(one)
        self._taken += 1

    def advance(self, updates: Vector | None, at: Vector, step: Step) -> None:
        """Do a round."""
        self.fine.advance(updates, at, step)
        self._coarse.advance(updates, at, step)

    def edges(self) -> tuple[float, float]:
        """Return the lower and the upper edge of the distance."""
        fine = consensus_distance(self.fine.model)
        apart = consensus_distance(subtract(self.fine.model, self._coarse.model))
        return (fine * fine / (fine + apart) if fine else 0.0), fine + apart


def _products(one: Vector, other: Vector) -> npt.NDArray[np.float64]:
    """Return the inner product of each row, float64 [n]."""
    # in the vectors' own type: in float64 this cost more than the trainings, and the ridge is far above its rounding
    return np.asarray(np.einsum("id,id->i", one, other), np.float64)
