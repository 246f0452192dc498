"""A shadow run: all nodes train from their exact mean, and a recursion computes every graph's disagreement from it.

    U_t   <-  updates at the mean, one job per node                the run of a complete graph
    X_g   <-  A_g,t X_g + B_g,t (U_t - a_t (X_g - mean))           for every graph g, by the algorithm object

The mean follows the mean update on every graph, so one training serves all graphs.  A peer away from the mean has
another update, which pulls it back to first order by a share a_t that differs by direction.  The upper edge uses a = 0;
the lower edge uses the share along the updates' differences, the direction of strongest curvature.  If the share is
equal in all directions (a quadratic), both edges are the run itself.  For methods that cancel the updates' lasting part
(D2, gradient tracking) the upper edge is at least hypot(||X_a - mean||, ||X_0 - X_a||), as if the removed part were
orthogonal.

The share is measured during the training, by one more job per node:

    a  =  -<u(mean + C) - u(mean), C> / ||C||^2        C: the updates less their mean; the same batch in both

An optimiser with state responds in later rounds too.  The next round repeats a share rho of the response; another job
per node measures rho, at the mean with the displaced optimiser's state.  The pull is then r <- rho r - a (X_g - mean).

Memory: two states of the algorithm per graph, [n, d] per slot.  `followed` peers are trained along a graph's course,
which costs a third of a training more:

    r_i  =  u_i(x_i) - u_i(mean)          measured in rounds 1, 2, 4, 7, 10, ...; x_i: the model of peer i on this graph
    between these   r_i  ~  sum_k c_k r_i,k - a (e_i - sum_k c_k e_i,k)        e_i = x_i - mean

with c the least-squares fit of e_i by the last four measured e_i,k: secants of the peer's loss; the remainder responds
by the last share a.  An optimiser with state responds to earlier positions too: its peers are not followed.

One recursion uses every measurement, another every second; their difference bounds the error:

    fine^2 / (fine + apart)  <=  distance  <=  fine + apart

Source of the two step lengths: Hairer, Norsett and Wanner, Solving ordinary differential equations I, Springer 1993,
section II.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.gossip.base import Step
from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.vectors import Vector, consensus_distance, frozen, linear, mean, subtract
from fedgossip.core.task import Job, LocalTask, give_memory, memory_of
from fedgossip.simulation.realised import GossipCourse, Recursion
from fedgossip.simulation.stacked import stacked_step, stacked_updates

PROBES = 10
"""Minimum number of measurements of the response in a run; they are made in rounds 0, 1, 2, 4, 8, ..."""
ISOTROPIC = 1e-4
"""Maximum share of a response in another direction if it still counts as the same in all directions."""

LASTING_MOST = 0.99
"""Maximum share of a response that the next round may repeat."""

Interval = tuple[float, float]


@dataclass
class Shadowed:
    """The forecast of one graph after each round: the distance without and with a response, between both (`apart`), the
    `followed` peers' edges, and scores if evaluated.

    Scores are `averaged`, and the values at both edges for mean and worst peer, in the order of `evaluated`.
    """

    name: str
    free: list[float] = field(default_factory=list)
    pulled: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    followed: list[Interval] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    averaged: list[float] = field(default_factory=list)
    mean_peer: list[Interval] = field(default_factory=list)
    worst_peer: list[Interval] = field(default_factory=list)

    @property
    def highest(self) -> list[float]:
        """The upper edge."""
        if self.followed:
            return [high for _, high in self.followed]
        edges = zip(self.free, self.pulled, self.apart, strict=True)
        return [max(free, pulled, math.hypot(pulled, apart)) for free, pulled, apart in edges]

    @property
    def lowest(self) -> list[float]:
        """The lower edge."""
        if self.followed:
            return [low for low, _ in self.followed]
        return [min(edges) for edges in zip(self.free, self.pulled, strict=True)]


@dataclass(frozen=True)
class Response:
    """Response of an update to a deviation from the mean: the share `a`, whether it is equal in all directions, and the
    share `lasting` that the next round repeats.
    """

    round: int
    share: float
    isotropic: bool
    lasting: float = 0.0


class Shadow:
    """A shadow run of `courses` of one algorithm; `advance` computes a round.  A `realised` course is the only one,
    with `own_mean`.

    `score`: the metric.  `own_mean`: use the mean of the one course, which its graph moves; else that of a peer without
    neighbours.  `follow`: follow the peers, for a task without memory.
    """

    def __init__(
        self,
        task: LocalTask,
        courses: Sequence[GossipCourse],
        rounds: int,
        score: Score = ACCURACY,
        *,
        own_mean: bool = False,
        follow: bool = False,
    ) -> None:
        self.found = [Shadowed(course.name) for course in courses]
        self.responses: list[Response] = []
        self.jobs = 0
        self._task, self._score, self._rounds, self._n = task, score, rounds, courses[0].schedule.n
        start = frozen(np.stack([task.initial(node) for node in range(self._n)]))
        self._edges = [(Recursion(course, start), Recursion(course, start)) for course in courses]
        self._followed = [FollowedPeers(course, start) for course in courses] if follow else []
        self._pulls: list[Vector | None] = [None] * len(courses)
        self._displaced: tuple[Vector, list[Mapping[str, Any]]] | None = None
        self._centre = self._edges[0][1]
        self._alone = None if own_mean else Recursion(courses[0], frozen(mean(list(start))[None]), alone=True)
        self._due = self._round = 0

    @property
    def exact(self) -> bool:
        """Whether both edges equal the run itself: each response was the same in all directions."""
        return all(response.isotropic for response in self.responses)

    @property
    def mean(self) -> Vector:
        """The mean of all peers, [d]."""
        return mean(list(self._alone.model if self._alone else self._centre.select_present(self._round)))

    def advance(self, round: int, *, evaluate: bool) -> None:
        """Compute `round`, counted from 0, and measure; with scores if `evaluate`."""
        self._round = round
        at = self.mean
        memory = self.memory()
        updates, step = self._trained(round, [at] * self._n)
        if self._displaced and updates is not None:
            self._probe_lasting(round, at, updates, *self._displaced)
        if round == self._due:
            self._due += max(1, min(round, self._rounds // PROBES))
            if updates is not None:
                self._probe(round, at, updates, memory)
        if any(self.memory()):
            self._followed = []  # see `followed`
        for followed in self._followed:
            self._follow(followed, round, at, updates, step, memory)
        for place, (free, pulled) in enumerate(self._edges):
            free.advance(updates, step)
            pulled.advance(self._pulled(place, updates, pulled.model, at), step)
        if self._alone:
            self._alone.advance(None if updates is None else frozen(mean(list(updates))[None]), _average_step(step))
        self._measure()
        if evaluate:
            self._evaluate(round + 1)

    def _trained(self, round: int, vectors: Sequence[Vector]) -> tuple[Vector | None, Step]:
        updates = self._task.train([Job(node, round, vector) for node, vector in enumerate(vectors)])
        self.jobs += self._n
        return stacked_updates(updates), stacked_step(round, updates, vectors[0].dtype)

    def _probe(self, round: int, at: Vector, updates: Vector, before: Sequence[Mapping[str, Any]]) -> None:
        """Measure the response along the updates; the task's memory is restored."""
        after, away = self.memory(), updates - mean(list(updates))
        self.remember(before)
        there, _ = self._trained(round, [frozen(at + one) for one in away])
        displaced = self.memory()
        self.remember(after)
        assert there is not None, "a task changes every vector or none"
        found, remembers = response_of(round, away, there - updates), any(displaced)
        lasting = self.responses[-1].lasting if self.responses else 0.0  # until the next round's measurement
        self.responses.append(replace(found, isotropic=found.isotropic and not remembers, lasting=lasting))
        self._displaced = (away, displaced) if remembers and found.share else None

    def _probe_lasting(
        self, round: int, at: Vector, updates: Vector, away: Vector, displaced: Sequence[Mapping[str, Any]]
    ) -> None:
        after, last = self.memory(), self.responses[-1]
        self.remember(displaced)
        there, _ = self._trained(round, [at] * self._n)
        self.remember(after)
        assert there is not None, "a task changes every vector or none"
        again = response_of(round, away, there - updates).share / last.share
        self.responses[-1], self._displaced = replace(last, lasting=min(max(again, 0.0), LASTING_MOST)), None

    def _pulled(self, place: int, updates: Vector | None, model: Vector, at: Vector) -> Vector | None:
        if updates is None or not self.responses:
            return updates
        last, kind = self.responses[-1], updates.dtype.type
        pull, before = kind(-last.share) * (model - at), self._pulls[place]
        if last.lasting:
            pull = pull if before is None else pull + kind(last.lasting) * before
            self._pulls[place] = pull
        return frozen(updates + pull)

    def _follow(
        self, followed: FollowedPeers, round: int, at: Vector, updates: Vector | None, step: Step,
        before: Sequence[Mapping[str, Any]],
    ) -> None:  # fmt: skip
        if updates is not None and followed.due(round):
            after = self.memory()
            self.remember(before)
            there, _ = self._trained(round, list(followed.fine.model))
            self.remember(after)
            assert there is not None, "a task changes every vector or none"
            followed.take(subtract(followed.fine.model, at), subtract(there, updates))
        followed.advance(updates, at, step)

    def memory(self) -> list[Mapping[str, Any]]:
        """The task's memory of each node."""
        return [memory_of(self._task, node) for node in range(self._n)]

    def remember(self, memory: Sequence[Mapping[str, Any]]) -> None:
        """Restore the task's memory of each node."""
        for node, one in enumerate(memory):
            give_memory(self._task, node, one)

    def _measure(self) -> None:
        for found, edges in zip(self.found, self._edges, strict=True):
            free, pulled = (edge.select_present(self._round) for edge in edges)
            found.free.append(consensus_distance(free))
            found.pulled.append(consensus_distance(pulled))
            found.apart.append(consensus_distance(subtract(free, pulled)))
        for found, followed in zip(self.found, self._followed, strict=False):
            found.followed.append(followed.edges())

    def _evaluate(self, round: int) -> None:
        if self._scores([self.mean]) == [None]:
            return
        for place, found in enumerate(self.found):
            centre, models = self._expected(place)
            each = [self._scores(list(model)) for model in models]
            known = [[value for value in values if value is not None] for values in each]
            found.evaluated.append(round)
            found.averaged.extend(value for value in self._scores([centre]) if value is not None)
            found.mean_peer.append(_ends([float(np.mean(values)) for values in known]))
            found.worst_peer.append(_ends([self._score.worst(values) for values in known]))

    def _expected(self, place: int) -> tuple[Vector, list[Vector]]:
        if self._followed and not self.exact:
            models = self._followed[place].models
            return mean(list(models[0])), models
        edges = self._edges[place]
        return self.mean, [edge.model for edge in (edges[1:] if self.exact else edges)]

    def _scores(self, vectors: Sequence[Vector]) -> list[float | None]:
        return [metrics.get(self._score.name) for metrics in self._task.evaluate(vectors)]


def run_shadow(
    shadow: Shadow, rounds: int, evaluated: Collection[int] = (), watch: Callable[[int], None] = lambda _: None
) -> Shadow:
    """Compute all rounds of a shadow run, restore its task's memory, and return it.

    `evaluated`: rounds, from 1, with scores.  `watch` is called after each.  Raises TrainingError if training diverges.
    """
    before = shadow.memory()
    try:
        for round in range(rounds):
            shadow.advance(round, evaluate=round + 1 in evaluated)
            watch(round + 1)
    finally:
        shadow.remember(before)
    return shadow


def response_of(round: int, away: Vector, difference: Vector) -> Response:
    """Return the response to a displacement `away` [n, d], from the difference of updates there and at the mean; zero
    if either is zero.
    """
    e, moved = away.astype(np.float64).ravel(), difference.astype(np.float64).ravel()
    square, size = float(e @ e), float(np.linalg.norm(moved))
    if square == 0 or size == 0:
        return Response(round, 0.0, isotropic=True)
    share = -float(moved @ e) / square
    return Response(round, share, isotropic=float(np.linalg.norm(moved + share * e)) <= ISOTROPIC * size)


def _average_step(step: Step) -> Step:
    return Step(step.round, step.rate.mean(keepdims=True), step.steps.mean(keepdims=True))


def _ends(values: Sequence[float]) -> Interval:
    return min(values), max(values)


FIRST, EVERY = 2, 3
"""Number of first rounds in which answers are measured, and distance of the later ones."""
KEPT = 4
"""Number of measurements combined into a response."""
RIDGE = 1e-3
"""Share of the measured lengths added to them, for measurements in nearly one direction."""


@dataclass(frozen=True, eq=False)
class MeasuredAnswer:
    """Difference of updates [n, d] from those at the mean, for peers displaced by `away` [n, d]."""

    away: Vector
    answer: Vector

    @property
    def share(self) -> float:
        """Share of the deviation that the response removes."""
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
        """Use a measurement for the rounds from this one on."""
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
        """Compute a round with `updates` at the mean `at` [d]."""
        if updates is not None and self._measured:
            updates = frozen(updates + self._answer(subtract(self.model, at)))
        self._run.advance(updates, step)

    def _answer(self, away: Vector) -> Vector:
        products = np.stack([_products(one.away, away) for one in self._measured], axis=1)
        shares = np.linalg.solve(self._gram, products[:, :, None])[:, :, 0].astype(away.dtype)
        share = away.dtype.type(self._share)
        answer = -share * away
        for beyond, part in zip(self._beyond, shares.T, strict=True):
            answer += part[:, None] * beyond
        return frozen(answer)


class FollowedPeers:
    """The two recursions of one graph; in the rounds of `due` its peers compute an update at their models."""

    def __init__(self, course: GossipCourse, start: Vector) -> None:
        self.fine, self._coarse = SecantRecursion(course, start), SecantRecursion(course, start)
        self._taken = 0

    @staticmethod
    def due(round: int) -> bool:
        """Whether answers are measured in a round, counted from 0."""
        return 1 <= round <= FIRST or round % EVERY == 1

    @property
    def models(self) -> list[Vector]:
        """Range of the peers' models: the finer result, the coarser one, and its mirror image about the finer one."""
        fine, coarse = self.fine.model, self._coarse.model
        # the error of the coarser result has an unknown sign; its mirror image covers the other one
        return [fine, coarse, linear((2, fine), (-1, coarse))]

    def take(self, away: Vector, answer: Vector) -> None:
        """Add the measurements of a due round."""
        one = MeasuredAnswer(away, answer)
        self.fine.take(one)
        if self._taken % 2 == 0:
            self._coarse.take(one)
        self._taken += 1

    def advance(self, updates: Vector | None, at: Vector, step: Step) -> None:
        """Compute a round."""
        self.fine.advance(updates, at, step)
        self._coarse.advance(updates, at, step)

    def edges(self) -> tuple[float, float]:
        """Return the lower and the upper edge of the distance."""
        fine = consensus_distance(self.fine.model)
        apart = consensus_distance(subtract(self.fine.model, self._coarse.model))
        return (fine * fine / (fine + apart) if fine else 0.0), fine + apart


def _products(one: Vector, other: Vector) -> npt.NDArray[np.float64]:
    """Return the inner product of each row, float64 [n]."""
    # In the vectors' type: in float64 this took longer than the trainings, and the ridge is far above its rounding.
    return np.asarray(np.einsum("id,id->i", one, other), np.float64)
