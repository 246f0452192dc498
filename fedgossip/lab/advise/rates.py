"""Convergence rate on isotropic random quadratics, for any graph: it determines the number of rounds.

Peer i draws h ~ N(0, I) in each round and computes x_i <- x_i - eta h h'x_i, then all mix.  E||x||² shrinks by the
factor 1 - r per round:

    r = 1 - (1 - eta)² - (zeta - 1) eta² / n_W(gamma),      gamma = (1 - eta)² / (1 - r)

zeta is the noise of a gradient; an isolated peer removes at most 1 / zeta per round.  n_W is 1 for isolated peers, and
n if all have the mean after each step.

Source: Vogels, Hendrikx and Jaggi, Beyond spectral gap, NeurIPS 2022; "fedgossip repro vogels-quadratics" measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgossip.base import seeds
from fedgossip.topology import Mixing, Schedule, forecast_of, spectrum
from fedgossip.topology.schedules.schedules import Random

Neighbours = Callable[[float], float]
"""gamma -> n_W."""

GRID = 20
"""Number of values of gamma for n_W of a cycle; monotone cubics interpolate between them."""

HALVINGS = 60


@dataclass(frozen=True)
class BestRate:
    """The best step of a graph, and the share of E||x||² that a round removes with it."""

    eta: float
    rate: float
    n_w: float

    def rounds(self, share: float) -> float:
        """Return the rounds until the distance to the optimum is `share` of the initial one."""
        return 2 * math.log(1 / share) / -math.log1p(-self.rate)


def neighbours_of(schedule: Schedule) -> Neighbours | None:
    """Return n_W as a function of gamma; None if unknown."""
    n = schedule.n
    if isinstance(schedule, Random):
        c = schedule.contraction
        return None if c is None else lambda g: 1 / (1 - g) / (1 / n / (1 - g) + (1 - 1 / n) * c / (1 - g * c))
    if isinstance(schedule, Mixing):
        found = spectrum(schedule)
        sizes = found.eigenvalues if found.modes is None else np.concatenate([[1.0], np.abs(found.modes)])
        if sizes is not None and found.normal:
            squares = np.asarray(sizes, np.float64) ** 2
            return lambda g: 1 / (1 - g) / float(np.mean(squares / (1 - g * squares)))
    memories = 1 - np.geomspace(1.0, 1e-3, GRID)
    known = [forecast_of(schedule, float(gamma)).n_w for gamma in memories]
    if any(value is None for value in known):
        return None
    from scipy.interpolate import PchipInterpolator

    between = PchipInterpolator(-np.log1p(-memories), [1 / value for value in known if value is not None])
    longest = float(memories[-1])
    return lambda g: 1 / float(between(-math.log1p(-min(g, longest))))


def rate_at(neighbours: Neighbours, eta: float, zeta: float) -> float:
    """Return r of a step; 0 or less if it does not converge."""
    kept = (1 - eta) ** 2
    low, high = 0.0, (1 - kept) * (1 - 1e-9)

    def over(rate: float) -> float:
        return 1 - kept - (zeta - 1) * eta**2 / neighbours(kept / (1 - rate)) - rate

    if over(low) <= 0:
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) > 0 else (low, middle)
    return low


def best_rate(neighbours: Neighbours, zeta: float) -> BestRate:
    """Return the best step and its rate, to four digits of the step."""
    etas = np.geomspace(1 / (4 * zeta), 1.0, 40)
    for _ in range(3):
        rates = [rate_at(neighbours, float(eta), zeta) for eta in etas]
        at = int(np.argmax(rates))
        etas = np.linspace(etas[max(0, at - 1)], etas[min(len(etas) - 1, at + 1)], 12)
    eta, rate = max(((float(eta), rate_at(neighbours, float(eta), zeta)) for eta in etas), key=lambda pair: pair[1])
    return BestRate(eta, rate, neighbours(min((1 - eta) ** 2 / (1 - rate), 1 - 1e-12)))


def alone(_gamma: float) -> float:
    """Return n_W of an isolated peer."""
    return 1.0


def everybody(n: int) -> Neighbours:
    """Return n_W of peers with the mean after each step."""
    return lambda _: float(n)


def measured_rate(schedule: Schedule, eta: float, dim: int, rounds: int, repeats: int) -> float:
    """Return r from the slope of log E||x||², on `repeats` quadratics of dim = zeta - 2 coordinates, without the first
    quarter.
    """
    n, stream = schedule.n, seeds.stream(0, "quadratics", schedule.n)
    x, lengths = stream.standard_normal((repeats, n, dim)), []
    for round in range(rounds):
        h = stream.standard_normal(x.shape)
        x = x - eta * h * np.sum(h * x, axis=2, keepdims=True)
        x = np.einsum("ij,rjd->rid", schedule.mixing(round).matrix(), x)
        lengths.append(math.log(float(np.mean(x**2))))
    start = rounds // 4
    return 1.0 - math.exp((lengths[-1] - lengths[start]) / (rounds - 1 - start))


def rounds_of_one_merge(n: int, zeta: float, share: float) -> float:
    """Return the local steps until the distance of the mean of all to the optimum is `share` of the initial one.

    E||mean||² = (1 - 1/n) (1 - eta)^2t + (1/n) (1 - r)^t with 1 - r = (1 - eta)² + (zeta - 1) eta², over the best
    constant step.
    """
    best = math.inf
    for eta in np.geomspace(1 / (4 * zeta), 2 / zeta * (1 - 1e-6), 120):
        common = 2 * math.log1p(-eta)
        own = math.log((1 - eta) ** 2 + (zeta - 1) * eta**2)
        if own >= 0:
            continue
        low, high = 0.0, 2 * math.log(1 / share) / min(-own, -common) + 1
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            left = (1 - 1 / n) * math.exp(common * middle) + math.exp(own * middle) / n
            low, high = (middle, high) if left > share**2 else (low, middle)
        best = min(best, high)
    return best
