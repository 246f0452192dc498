"""Remaining disagreement after rounds of mixing, from the products themselves: in the worst direction, and typically.

With P_t = W_t ... W_2 W_1 and J = 11'/n, per unit of disagreement before the first round,

    worst(t)   = ||P_t - J||_2                    the largest share that any disagreement keeps
    typical(t) = ||P_t - J||_F / sqrt(n - 1)      the root mean square over all directions

Where only columns sum to one (push-sum) Z_t = diag(P_t 1)^-1 P_t, the matrix of the estimates x / w, stands in place of
P_t; where only rows do, (I - J) P_t, what is left of the differences, in place of P_t - J.

Eigenvalues give this for symmetric and other normal mixings.  For others they give only the rate in the long run: the
de Bruijn graph of 16 nodes has no eigenvalue but 1 and 0, and is at the mean after 4 rounds, not after one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.spectra import eigen
from fedgossip.topology.weights.mixing import Mixing

LIMIT = 300  # nodes; beyond it products, which are dense, and their norms cost too much
STEPS = 32  # rounds that are tried one by one; beyond them powers are found by doubling
MOST_DOUBLINGS = 40
EXACT = 1e-12  # a product this near to J is J,
DROP = 1e-6  # where the round before it was still this far away: else it has only shrunk

Share = Callable[[int], float]
"""Remaining share after t rounds, t >= 1."""


@dataclass(frozen=True)
class Reached:
    """The first rounds after which a share is left: in the worst direction, and typically; None for never."""

    worst: int | None
    typical: int | None


def worst(product: FloatArray, stochastic: str) -> float:
    """Return what a product of mixings, all `stochastic` alike, leaves in the worst direction; [n, n]."""
    rest = _rest(product, stochastic)
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(rest @ rest.T)[-1])))


def typical(product: FloatArray, stochastic: str) -> float:
    """Return what it leaves typically."""
    return float(np.linalg.norm(_rest(product, stochastic))) / math.sqrt(max(1, len(product) - 1))


def _rest(product: FloatArray, stochastic: str) -> FloatArray:
    if stochastic == "columns":
        product = product / product.sum(axis=1, keepdims=True)
    return product - (product.mean(axis=0) if stochastic == "rows" else 1.0 / len(product))


class Powers:
    """The powers of one mixing of at most LIMIT nodes."""

    def __init__(self, mixing: Mixing) -> None:
        self._stochastic = mixing.stochastic
        self._squares = [mixing.matrix()]  # W, W^2, W^4, ...

    def reached(self, factor: float) -> Reached:
        """Return when `factor` is left.  Beyond STEPS rounds shares are taken to fall from round to round."""
        with eigen.one_thread():
            return Reached(self._first(worst, factor), self._first(typical, factor))

    def _first(self, share_of: Callable[[FloatArray, str], float], factor: float) -> int | None:
        if share_of(self._begin[-1], self._stochastic) <= factor:
            return next(t for t, power in enumerate(self._begin, 1) if share_of(power, self._stochastic) <= factor)
        bit, before = 0, math.inf
        while (share := share_of(self._square(bit), self._stochastic)) > factor:
            if share > (1 - 1e-9) * before or bit == MOST_DOUBLINGS:
                return None
            bit, before = bit + 1, share if bit else math.inf
        product, rounds = np.eye(len(self._squares[0])), 0
        for lower in range(bit, -1, -1):
            further = self._square(lower) @ product
            if share_of(further, self._stochastic) > factor:
                product, rounds = further, rounds + (1 << lower)
        return rounds + 1

    @cached_property
    def _begin(self) -> list[FloatArray]:
        return list(itertools.accumulate(itertools.repeat(self._squares[0], STEPS), np.matmul))

    def _square(self, bit: int) -> FloatArray:
        while bit >= len(self._squares):
            self._squares.append(self._squares[-1] @ self._squares[-1])
        return self._squares[bit]

    @cached_property
    def exact_after(self) -> int | None:
        """The rounds after which everybody has the exact mean; None for never, or for more than 64."""
        n = len(self._squares[0])
        x = np.random.Generator(np.random.PCG64(0)).standard_normal((n, 2))
        held, weight = x, np.ones((n, 1))
        before = math.inf
        for round in range(1, min(n, 64) + 1):
            held, weight = self._squares[0] @ held, self._squares[0] @ weight
            mean = held.mean(axis=0) if self._stochastic == "rows" else x.mean(axis=0)
            away = float(np.abs(held / weight - mean).max())
            if away < EXACT < DROP < before:
                return round
            before = away
        return None


def first(share: Share, factor: float) -> int | None:
    """Return the first t at which share(t) <= factor, of a share that falls; None for more than 2^40 rounds."""
    high = 1
    while share(high) > factor:
        high *= 2
        if high > 1 << MOST_DOUBLINGS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if share(middle) <= factor else (middle, high)
    return high


def typical_of(sizes: FloatArray) -> Share:
    """Return what a normal mixing leaves typically, from the sizes of its eigenvalues [n - 1], the mean's left out."""
    return lambda rounds: math.sqrt(float(np.mean(sizes ** (2 * rounds)))) if sizes.size else 0.0
