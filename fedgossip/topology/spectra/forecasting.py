"""The forecast of every round from the graph alone: the remaining disagreement, and what learning adds.

With P_{r,t} = W_{r+t-1} ... W_r of the actual rounds,

    typical(t) = ||P_{0,t} - J||_F / sqrt(n - 1)     the root mean square over all directions
    worst(t)   = ||P_{0,t} - J||_2                   the largest share that any disagreement keeps

(`eigen` for columns or rows alone).  Where the updates of round s lie delta_s apart, in no special direction, D-PSGD's
distance (adapt, then combine) lies between

    fresh_t^2  = sum_s delta_s^2 ||P_{s,t-s} - J||_F^2 / (n - 1)      updates of different rounds have nothing in common
    steady_t^2 = ||sum_s delta_s (P_{s,t-s} - J)||_F^2 / (n - 1)      they all point the same way
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.schedules.schedules import Schedule
from fedgossip.topology.spectra import eigen

NODES_LIMIT = 512
"""Nodes up to which products are made whole; of more the typical share is that of DRAWS columns, within 1 % of it."""
DRAWS = 64
BAND_WORK = 200_000_000
"""Most products of numbers that a band of one run may take."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """Shares of a disagreement that are left after rounds 1, 2, ..., float64 [rounds].

    worst is None for more than NODES_LIMIT nodes.
    """

    typical: FloatArray
    worst: FloatArray | None

    @property
    def rounds(self) -> int:
        """Number of forecast rounds."""
        return len(self.typical)


def outlook(schedule: Schedule, rounds: int) -> Outlook:
    """Return what the first `rounds` of a schedule leave of a disagreement, round by round."""
    n, whole = schedule.n, schedule.n <= NODES_LIMIT
    draw = np.random.Generator(np.random.PCG64(0))
    product = np.eye(n) if whole else draw.standard_normal((n, DRAWS))
    weight, began = np.ones((n, 1)), product
    typical, worst = np.empty(rounds), np.empty(rounds)
    with eigen.one_thread():
        for round in range(rounds):
            W = schedule.mixing(round).sparse()
            product, weight = np.asarray(W @ product), np.asarray(W @ weight)
            if whole:
                typical[round] = eigen.typical(product, schedule.stochastic)
                worst[round] = eigen.worst(product, schedule.stochastic)
            else:
                typical[round] = _away(product / weight, schedule.stochastic, began)
    return Outlook(typical, worst if whole else None)


def disagreement_edges(schedule: Schedule, spread: Sequence[float]) -> tuple[FloatArray, FloatArray] | None:
    """Return (lower [t], upper [t]) of D-PSGD's distance after round t, from each round's spread of updates.

    None where only columns sum to one, and for too many nodes and rounds.
    """
    n = schedule.n
    entries = len(schedule.mixing(0).values)
    if schedule.stochastic == "columns" or 2 * entries * n * len(spread) > BAND_WORK or n > NODES_LIMIT:
        return None
    centred = np.eye(n) - 1.0 / n
    fresh, steady = np.zeros((n, n)), np.zeros((n, n))
    edges = np.empty((2, len(spread)))
    for round, delta in enumerate(spread):
        W = schedule.mixing(round).sparse()
        steady = np.asarray(W @ (steady + delta * centred))
        half = np.asarray(W @ (fresh + delta**2 * centred))
        fresh = np.asarray(W @ half.T)
        left = _centred(_centred(fresh).T), _centred(steady)
        edges[:, round] = math.sqrt(max(0.0, float(np.trace(left[0])))), float(np.linalg.norm(left[1]))
    edges /= math.sqrt(max(1, n - 1))
    return edges.min(axis=0), edges.max(axis=0)


def _centred(product: FloatArray) -> FloatArray:
    return np.asarray(product - product.mean(axis=0))


def _away(held: FloatArray, stochastic: str, began: FloatArray) -> float:
    """Return the remaining share of random columns' disagreement: each norm is about sqrt(n)."""
    mean = held.mean(axis=0) if stochastic == "rows" else began.mean(axis=0)
    return float(np.linalg.norm(held - mean) / np.linalg.norm(began - began.mean(axis=0)))
