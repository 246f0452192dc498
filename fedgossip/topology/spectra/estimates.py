"""Remaining disagreement after large cycles, without dense products: by random vectors, and by Lanczos on implicit
products.

With z of random signs E z'A z = tr A, so that the remaining squares of a few such vectors, round by round, estimate
||W_k ... W_1 - J||_F^2 is, with a 95 % interval; n_W, the floor and the typical rounds need no more of it.  The worst
direction is the largest eigenvalue of P'P, P = W_k ... W_1, applied round by round.

Sources: Hutchinson, A stochastic estimator of the trace of the influence matrix for Laplacian smoothing splines,
Communications in Statistics - Simulation and Computation 18 (1989); for Lanczos see `eigen`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgossip.base import seeds
from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.schedules.schedules import Schedule
from fedgossip.topology.spectra import eigen

PHASES = 64  # rounds of a period, from each of which it is begun; of longer ones it is not estimated
WORK = 1_000_000_000  # multiplications of each estimate, some seconds
LEAST_STEPS = 60  # of Lanczos, that must fit into it
LEFT = 1e-10  # of the squares: what is less is nothing
TAIL = 1e-6  # a remembered rest that is this share of the sum is left out


@dataclass(frozen=True)
class TraceEstimate:
    """A value, and half the width of its 95 % interval."""

    value: float
    error: float


def deviation(schedule: Schedule, gamma: float) -> TraceEstimate | None:
    """Return sum_{k>=1} gamma^(k-1) ||W_{r+k-1} ... W_r - J||_F^2, the mean over rounds r of a period.

    Of doubly stochastic rounds.  None for more than PHASES of them, and where it would take more than WORK.
    """
    if schedule.period > PHASES:
        return None
    z = _signs(schedule.n)
    total, work = np.zeros(z.shape[1]), 0.0
    for begin in range(schedule.period):
        x, remembered, seen = z, 1.0, np.zeros(z.shape[1])
        for round in range(begin, begin + 10**9):
            W = schedule.mixing(round).sparse()
            x = W @ x
            squares = np.einsum("ij,ij->j", x, x)
            seen += remembered * squares
            remembered *= gamma
            rest = float(squares.max())
            if rest < LEFT * schedule.n or remembered * rest < (1.0 - gamma) * TAIL * float(seen.max()):
                break
            work += W.nnz * z.shape[1]
            if work > WORK:
                return None
        total += seen
    each = total / schedule.period
    return TraceEstimate(float(each.mean()), eigen.interval(each))


def typical_left(schedule: Schedule, least: float) -> list[float] | None:
    """Return what 1, 2, ... rounds leave typically, a period at least, until it is `least`; None for too much work."""
    x = _signs(schedule.n)
    found: list[float] = []
    work = 0.0
    while not found or len(found) < schedule.period or found[-1] > least:
        W = schedule.mixing(len(found)).sparse()
        x = W @ x
        found.append(math.sqrt(float(np.mean(np.einsum("ij,ij->j", x, x))) / (schedule.n - 1)))
        work += W.nnz * x.shape[1]
        if work > WORK:
            return None
    return found


def worst_reached(schedule: Schedule, factor: float) -> int | None:
    """Return after how many rounds no direction has more than `factor` left; None where that is not resolved."""
    high = 1
    while (more := _more_left(schedule, high, factor)) is True:
        high *= 2
    low = high // 2
    while more is False and high - low > 1:
        middle = (low + high) // 2
        more = _more_left(schedule, middle, factor)
        low, high = (middle, high) if more else (low, middle)
        more = False if more is not None else None
    return high if more is False else None


def period_left(schedule: Schedule) -> float | None:
    """Return ||W_p ... W_1 - J||_2 of a period; None where Lanczos does not resolve it."""
    square, sure = _worst_square(schedule, schedule.period)
    return math.sqrt(square) if sure else None


def _more_left(schedule: Schedule, rounds: int, factor: float) -> bool | None:
    """Whether more than `factor` is left after so many rounds; None where Lanczos does not resolve it."""
    square, sure = _worst_square(schedule, rounds)
    if square > factor**2 * (1 + 1e-9):  # a Ritz value is never more than the largest eigenvalue
        return True
    return False if sure else None


def _worst_square(schedule: Schedule, rounds: int) -> tuple[float, bool]:
    """Return ||W_t ... W_1 - J||_2^2 as far as Lanczos sees it, from below, and whether it is resolved."""
    Ws = [schedule.mixing(round).sparse() for round in range(min(rounds, schedule.period))]
    order = [round % len(Ws) for round in range(rounds)]
    work = 2 * sum(Ws[round].nnz for round in order)
    if work * LEAST_STEPS > WORK:
        return 0.0, False
    turned = [W.T.tocsr() for W in Ws]

    def square(x: FloatArray) -> FloatArray:
        for round in order:
            x = Ws[round] @ x
        for round in reversed(order):
            x = turned[round] @ x
        return x

    ends = eigen.lanczos_ends(square, schedule.n, work, lambda low, high: max(high - low, 1e-300))
    return max(0.0, ends.high), ends.resolved or ends.high < LEFT


def _signs(n: int) -> FloatArray:
    """Return columns of random signs less their mean, reproducible."""
    z = seeds.stream(0, "trace", n).choice([-1.0, 1.0], (n, int(np.clip(2_000_000 // n, 8, 64))))
    return np.asarray(z - z.mean(axis=0))
