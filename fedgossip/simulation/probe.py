"""A probe: three jobs per node at the first models' mean determine the expected disagreement.

    C, C'    updates less their mean, on two batches             G_ij = <C_i, C'_j>: the lasting part, by pairs of nodes
    s^2      1/2 mean_i ||u_i - u'_i||^2                          the part drawn independently in each round
    a        response of an update to a deviation from the mean   see `shadow`

    D_t^2  =  the algorithm's recursion on G  +  s^2 / n sum over the rounds of the remaining part of their noise

Both are computed by the algorithm object, in float64 on few columns, for any algorithm, order, graph and schedule; G
contains the data's distribution.  For D-PSGD with symmetric W, modes (l_k, v_k) and B_k^2 = v_k' G v_k,

    D^2  =  1/n sum_{k>=2} [ (l_k / (1 - (1-a) l_k))^2 B_k^2  +  s^2 l_k^2 / (1 - (1-a)^2 l_k^2) ]

in the long run.  It is exact for quadratics; other updates change during the training, and a shadow run follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.gossip.base import Step
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen, mean
from fedgossip.core.task import Job, LocalTask, give_memory, memory_of
from fedgossip.simulation.realised import GossipCourse, Recursion
from fedgossip.simulation.shadow import Response, response_of
from fedgossip.simulation.stacked import stacked_step, stacked_updates

FloatArray = npt.NDArray[np.float64]

IMPULSES_LIMIT = 256  # nodes; of more, and of rounds that never repeat, noise is drawn in
DRAWS = 256  # columns


@dataclass(frozen=True, eq=False)
class Probe:
    """The result of three jobs per node.

    gram: float64 [2n, 2n], inner products of the first vectors, and of the updates' lasting part, less their means.
    noise: s^2, the expected square of the other part.  step: of all nodes.  jobs: number of trainings.
    """

    gram: FloatArray
    noise: float
    response: Response
    step: Step
    jobs: int

    @property
    def lasting(self) -> FloatArray:
        """Rows [n, n] with the inner products <C_i, C'_j> of the updates' lasting part less their mean; negative
        eigenvalues count as 0.
        """
        half = len(self.gram) // 2
        values, directions = np.linalg.eigh(self.gram[half:, half:])
        return np.asarray(directions * np.sqrt(np.maximum(values, 0.0)))

    @property
    def exact(self) -> bool:
        """Whether one probe determines a quadratic: the same response in all directions, and no random draws."""
        return self.response.isotropic and self.noise == 0.0


def probe(task: LocalTask, n: int) -> Probe:
    """Train three updates per node with `task`; its memory is restored.  Raises TrainingError as the task does."""
    before = [memory_of(task, node) for node in range(n)]
    start = np.stack([task.initial(node) for node in range(n)])
    at = mean(list(start))
    asked = 0

    def trained(round: int, vectors: Sequence[Vector]) -> tuple[Vector, Step]:
        nonlocal asked
        updates = task.train([Job(node, round, vector) for node, vector in enumerate(vectors)])
        asked += n
        for node, memory in enumerate(before):
            give_memory(task, node, memory)
        found = stacked_updates(updates)
        return np.zeros_like(start) if found is None else found, stacked_step(round, updates, np.dtype(np.float64))

    (u, step), (again, _) = trained(0, [at] * n), trained(1, [at] * n)
    away = _centred(u)
    there, _ = trained(0, [frozen((at + one).astype(at.dtype)) for one in away])
    e, lasting = _centred(start), _centred(again)
    cross = e @ (away + lasting).T / 2
    gram = np.block([[e @ e.T, cross], [cross.T, (away @ lasting.T + lasting @ away.T) / 2]])
    noise = float(np.mean(np.sum((u.astype(np.float64) - again) ** 2, axis=1))) / 2
    return Probe(gram, noise, response_of(0, away, there.astype(np.float64) - u), step, asked)


def expected_distances(found: Probe, course: GossipCourse, rounds: int, share: float) -> list[float]:
    """Return the expected distance after each round, [rounds], if all directions have the response `share`."""
    n = course.schedule.n
    squares = _compute_lasting_squares(found, course, rounds, share)
    if found.noise:
        squares = squares + found.noise / n * _compute_noise_squares(found, course, rounds, share)
    return [float(root) for root in np.sqrt(np.maximum(squares, 0.0))]


def _compute_lasting_squares(found: Probe, course: GossipCourse, rounds: int, share: float) -> FloatArray:
    """Return the mean square [rounds] of the course for the first vectors and the lasting updates."""
    n = course.schedule.n
    values, directions = np.linalg.eigh(found.gram)
    columns = directions * np.sqrt(np.abs(values))
    run, lasting = Recursion(course, frozen(columns[:n].copy())), columns[n:]
    squares = np.empty(rounds)
    for round in range(rounds):
        _advance(run, found.step, round, lasting, share)
        squares[round] = np.sum(_centred(run.model) ** 2, axis=0) @ np.sign(values) / n  # a batch's product may be < 0
    return squares


def _compute_noise_squares(found: Probe, course: GossipCourse, rounds: int, share: float) -> FloatArray:
    """Return the sum of squares [rounds] of the course for unit noise at every node in every round."""
    n, period = course.schedule.n, course.schedule.period
    if not period or n > IMPULSES_LIMIT:
        return _estimate_noise_squares(found, course, rounds, share)
    left = [_compute_impulse_squares(found, course, rounds, share, phase) for phase in range(min(period, rounds))]
    squares = np.zeros(rounds)
    for begun in range(rounds):
        squares[begun:] += left[begun % period][: rounds - begun]
    return squares


def _compute_impulse_squares(found: Probe, course: GossipCourse, rounds: int, share: float, phase: int) -> FloatArray:
    """Return the sum of squares after 1, 2, ... rounds for unit noise in round `phase` alone."""
    n = course.schedule.n
    run, nothing = Recursion(course, frozen(np.zeros((n, n)))), np.zeros((n, n))
    squares = np.empty(rounds)
    for round in range(phase + rounds):
        _advance(run, found.step, round, np.eye(n) if round == phase else nothing, share)
        if round >= phase:
            squares[round - phase] = np.sum(_centred(run.model) ** 2)
    return squares


def _estimate_noise_squares(found: Probe, course: GossipCourse, rounds: int, share: float) -> FloatArray:
    n = course.schedule.n
    run, draw = Recursion(course, frozen(np.zeros((n, DRAWS)))), stream(0, "forecast noise", n)
    squares = np.empty(rounds)
    for round in range(rounds):
        _advance(run, found.step, round, draw.choice([-1.0, 1.0], (n, DRAWS)), share)
        squares[round] = np.sum(_centred(run.model) ** 2) / DRAWS
    return squares


def _advance(run: Recursion, step: Step, round: int, updates: FloatArray, share: float) -> None:
    run.advance(frozen(updates - share * _centred(run.model)), replace(step, round=round))


def _centred(vectors: npt.NDArray[Any]) -> FloatArray:
    exact = vectors.astype(np.float64)
    return np.asarray(exact - exact.mean(axis=0))
