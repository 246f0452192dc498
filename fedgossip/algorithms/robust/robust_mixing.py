"""Rules that combine a peer's model with its neighbours': weighted sums, and robust rules against malicious peers.

    linear             sum_j w_ij x_j                                       one malicious peer moves it arbitrarily far
    clipped            x_i + sum_j w_ij s_j (x_j - x_i), s_j = min(1, tau / ||x_j - x_i||)
        He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022
    trimmed-mean       the mean of each coordinate without its f smallest and f largest
        Yin, Chen, Ramchandran and Bartlett, ICML 2018
    median             the middle of each coordinate
    geometric-median   the point of least summed distance, by smoothed Weiszfeld steps
        Pillutla, Kakade and Harchaoui, Robust aggregation for federated learning, IEEE TSP 70 (2022)
    nna                the mean of the local model and all others but the f farthest from it
        Farhadkhani et al., Robust collaborative learning with linear gradient overhead, ICML 2023

Only linear and clipped use the weights; only linear keeps the mean of all peers.  Where we differ from `clipped`'s
paper: its theory takes tau from honest neighbours' distances, which are unknown; its program uses 0.1; `tau =
"adaptive"` is the largest distance without the f largest.

Distances are summed in float64 in blocks of a fixed length: the same bits on every machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.limits import chosen, table
from fedgossip.base.vectors import BLOCK, RowGroups, Vector, empty, frozen, ordered_mix

Row = Mapping[int, float]
"""{id: weight}, ascending, including the peer's id."""
Models = Mapping[int, Vector]
"""{id: vector [d]} of the same ids."""


class Combination(Protocol):
    """A rule.  `linear`: a weighted sum, so that late models can be added afterwards."""

    @property
    def linear(self) -> bool:
        """Whether it is the weighted sum."""

    @property
    def tolerates(self) -> int:
        """Number of malicious neighbours that it tolerates; a neighbourhood needs more members."""

    def combine(self, node: int, row: Row, models: Models) -> Vector:
        """Return the combined model of peer `node`, [d], frozen, in the models' type; nothing is changed."""


class Linear:
    """The weighted sum, in ascending order."""

    linear, tolerates = True, 0

    def combine(self, node: int, row: Row, models: Models) -> Vector:  # noqa: ARG002
        return ordered_mix([(weight, models[j]) for j, weight in row.items()])


class Clipped:
    """`tau`: maximum pull of a neighbour, or "adaptive", by `f`.  If all neighbours are within tau: the bits of
    `Linear`.

    Raises ConfigError for another tau, or an f below 0.
    """

    linear = False

    def __init__(self, tau: float | str = "adaptive", f: int = 1) -> None:
        if tau != "adaptive" and not (isinstance(tau, int | float) and not isinstance(tau, bool) and tau >= 0):
            text = f'algorithm.combine_options: tau is {tau!r}; expected a length from 0 on, or "adaptive"'
            raise ConfigError(text, 'Leave it out, and give f: { tau = "adaptive", f = 1 }.')
        self.tau, self.tolerates = tau, liars(f) if tau == "adaptive" else 0

    def combine(self, node: int, row: Row, models: Models) -> Vector:
        lengths = {j: distance(models[j], models[node]) for j in row if j != node}
        tau = float(self.tau) if self.tau != "adaptive" else self._choose_radius(list(lengths.values()))
        shares = {j: 1.0 if length <= tau else tau / length for j, length in lengths.items()}
        own = row[node] + sum(row[j] * (1.0 - shares[j]) for j in sorted(shares))
        return ordered_mix([(own if j == node else row[j] * shares[j], models[j]) for j in row])

    def _choose_radius(self, lengths: Sequence[float]) -> float:
        left = sorted(lengths)[: max(0, len(lengths) - self.tolerates)]
        return left[-1] if left else 0.0


class TrimmedMean:
    """`f` from 0; with too few models, all but one are cut off."""

    linear = False

    def __init__(self, f: int = 1) -> None:
        self.tolerates = liars(f)

    def combine(self, node: int, row: Row, models: Models) -> Vector:  # noqa: ARG002
        cut = min(self.tolerates, (len(row) - 1) // 2)
        return _average_by_coordinate(
            [models[j] for j in row], lambda part: np.sort(part, axis=0)[cut : len(part) - cut]
        )


class CoordinateMedian:
    """Of an even number the mean of the two in the middle."""

    linear, tolerates = False, 0

    def combine(self, node: int, row: Row, models: Models) -> Vector:  # noqa: ARG002
        cut = (len(row) - 1) // 2
        return _average_by_coordinate(
            [models[j] for j in row], lambda part: np.sort(part, axis=0)[cut : len(part) - cut]
        )


class GeometricMedian:
    """At most `steps` Weiszfeld steps from the median; distances count as at least a millionth of the median."""

    linear, tolerates = False, 0

    def __init__(self, steps: int = 8) -> None:
        if not (isinstance(steps, int) and not isinstance(steps, bool) and 1 <= steps <= 1000):
            text = f"algorithm.combine_options: steps is {steps!r}; expected a number from 1 to 1000"
            raise ConfigError(text, "Leave it out for 8.")
        self.steps = steps

    def combine(self, node: int, row: Row, models: Models) -> Vector:
        vectors, z = [models[j] for j in row], CoordinateMedian().combine(node, row, models)
        for _ in range(self.steps):
            lengths = [distance(vector, z) for vector in vectors]
            least = 1e-6 * sorted(lengths)[len(lengths) // 2]
            if not least:  # half of them lie there
                break
            pulls = [1 / max(length, least) for length in lengths]
            whole = math.fsum(pulls)
            z = ordered_mix([(pull / whole, vector) for pull, vector in zip(pulls, vectors, strict=True)])
        return z


class NearestMean:
    """`f` from 0: number of others left out, the farthest; of equally distant ones those with the highest ids."""

    linear = False

    def __init__(self, f: int = 1) -> None:
        self.tolerates = liars(f)

    def combine(self, node: int, row: Row, models: Models) -> Vector:
        others = sorted((j for j in row if j != node), key=lambda j: (distance(models[j], models[node]), j))
        near = sorted([node, *others[: max(0, len(others) - self.tolerates)]])
        return ordered_mix([(1 / len(near), models[j]) for j in near])


def distance(one: Vector, other: Vector) -> float:
    """Return ||one - other|| in float64, squares summed in blocks of BLOCK; at most the largest finite number."""
    total = 0.0
    with np.errstate(over="ignore"):
        for start in range(0, one.size, BLOCK):
            apart = one[start : start + BLOCK].astype(np.float64)
            apart -= other[start : start + BLOCK]
            total += float(np.add.reduce(apart * apart))
    return min(math.sqrt(total), sys.float_info.max)


def liars(f: Any) -> int:
    """Return an option that is a number of peers, 0 or more.  Raises ConfigError for anything else."""
    if isinstance(f, int) and not isinstance(f, bool) and f >= 0:
        return f
    raise ConfigError(f"algorithm.combine_options: f is {f!r}; expected a number of peers from 0 on", "Take 1.")


def _average_by_coordinate(vectors: Sequence[Vector], kept: Callable[[Any], Any]) -> Vector:
    """Return the mean of the kept values [m, width] per coordinate, summed in float64."""
    out = empty(vectors[0].size, vectors[0].dtype)
    for start in range(0, out.size, BLOCK):
        part = kept(np.stack([vector[start : start + BLOCK] for vector in vectors]))
        total = part[0].astype(np.float64)
        for values in part[1:]:
            total += values
        out[start : start + BLOCK] = total / len(part)
    return frozen(out)


def combine_rows(rule: Combination, groups: RowGroups, stacked: Vector, out: Vector) -> None:
    """Write every peer's combined model: out[i] from the rows of `stacked` [n, d], with the same bits as one by one."""
    for nodes, ids, weights in groups:
        for node, near, shares in zip(nodes.tolist(), ids.tolist(), weights.tolist(), strict=True):
            out[node] = rule.combine(node, dict(zip(near, shares, strict=True)), {j: stacked[j] for j in near})


LINEAR = Linear()

COMBINATIONS: Mapping[str, Callable[..., Combination]] = table(
    ("linear", Linear),
    ("clipped", Clipped),
    ("trimmed-mean", TrimmedMean),
    ("median", CoordinateMedian),
    ("geometric-median", GeometricMedian),
    ("nna", NearestMean),
)
"""Values of `algorithm.combine`."""


def combination(name: str, options: Mapping[str, Any]) -> Combination:
    """Return a rule with its options.  Raises ConfigError for an unknown name or option."""
    return chosen("algorithm.combine", name, COMBINATIONS, options)
