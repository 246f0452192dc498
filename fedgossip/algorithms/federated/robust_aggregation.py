"""Aggregation that tolerates malicious clients; the coordinator sees each contribution.

    median            the middle of each coordinate                                        breaks at half
    trimmed mean      the mean of each coordinate without its b smallest and b largest     breaks at b + 1
        Yin, Chen, Ramchandran and Bartlett, Byzantine-robust distributed learning, ICML 2018
    Krum              the one closest to its m - f - 2 nearest others                      m >= 2 f + 3
    multi-Krum        the mean of the `keep` best by that score
        Blanchard, El Mhamdi, Guerraoui and Stainer, Machine learning with adversaries, NeurIPS 2017
    geometric median  the point of least summed distance, by smoothed Weiszfeld steps      breaks at half
        Pillutla, Kakade and Harchaoui, Robust aggregation for federated learning, IEEE TSP 70 (2022)
    clipped mean      each scaled down to a norm first: bounds each client's effect      breaks at one

All clients have equal weights, as a stated weight could be false.  In float64, rows by ascending client id.  Memory
grows with the cohort, and a secure sum is impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.algorithms.federated.sums import NotSummableError
from fedgossip.base.vectors import frozen, summable
from fedgossip.core.machine import NodeId

Rows = npt.NDArray[np.float64]
"""[m, d], one contribution per row."""
Rule = Callable[..., Rows]
"""[m, d] and options -> [d]"""

COLUMNS = 1 << 16
"""Number of coordinates processed at a time, by coordinate or in sums: a float64 copy of all would be large."""


class Kept:
    """Stores the contributions, and applies the rule to each of their vectors in turn."""

    def __init__(self, by: ByRule, kind: np.dtype[np.floating]) -> None:
        self._by, self._kind = by, kind
        self._kept: dict[NodeId, tuple[Vectors, float]] = {}

    def add(self, node: NodeId, weight: float, vectors: Vectors, steps: float) -> None:  # noqa: ARG002
        """Store a contribution.  Raises NotSummableError if a sum with it would not be finite."""
        if not all(map(summable, vectors)):
            raise NotSummableError
        self._kept[node] = vectors, steps

    def aggregate(self) -> Aggregate:
        rows = [self._kept[node] for node in sorted(self._kept)]
        steps = sum(steps for _, steps in rows) / len(rows)
        stacked = (np.stack(vectors).astype(np.float64) for vectors in zip(*(row for row, _ in rows), strict=True))
        found = tuple(frozen(self._by.rule(one, **self._by.options).astype(self._kind)) for one in stacked)
        return Aggregate(found, len(rows), steps)


@dataclass(frozen=True)
class ByRule:
    """The aggregation by a rule with at least `least` contributions."""

    rule: Rule
    options: Mapping[str, float] = field(default_factory=dict)
    least: int = 1

    def accumulator(self, vectors: int, length: int, kind: np.dtype[np.floating]) -> Kept:  # noqa: ARG002
        return Kept(self, kind)


# --- coordinate by coordinate -----------------------------------------------------------------------------------------


def median(rows: Rows) -> Rows:
    """Return the middle [d] of each coordinate of rows [m, d]; of an even number the mean of the two."""
    return np.asarray(np.median(rows, axis=0))


def trimmed_mean(rows: Rows, cut: int) -> Rows:
    """Return the mean [d] of each coordinate of rows [m, d] without its `cut` smallest and largest; m > 2 cut."""
    m = len(rows)
    assert 0 <= 2 * cut < m, f"{m} contributions, {2 * cut} to be cut"
    out = np.empty(rows.shape[1])
    for start in range(0, rows.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        out[part] = np.sort(rows[:, part], axis=0)[cut : m - cut].mean(axis=0)
    return out


# --- by distance ------------------------------------------------------------------------------------------------------


def krum_scores(rows: Rows, faulty: int) -> Rows:
    """Return [m], of rows [m, d]: the sum of the squared distances to the m - faulty - 2 nearest others.

    Needs m >= 2 faulty + 3.
    """
    m = len(rows)
    assert m >= 2 * faulty + 3, f"{m} contributions, at least {2 * faulty + 3} are needed against {faulty} faulty ones"
    square = np.zeros((m, m))
    for start in range(0, rows.shape[1], COLUMNS):
        part = rows[:, start : start + COLUMNS]
        for i in range(m - 1):
            apart = part[i + 1 :] - part[i]
            square[i, i + 1 :] += np.einsum("ij,ij->i", apart, apart)
    square += square.T
    np.fill_diagonal(square, np.inf)
    return np.asarray(np.sort(square, axis=1)[:, : m - faulty - 2].sum(axis=1))


def krum(rows: Rows, faulty: int) -> Rows:
    """Return the row [d] with the lowest score; of equal ones the lowest id's."""
    return np.asarray(rows[int(np.argmin(krum_scores(rows, faulty)))])


def multi_krum(rows: Rows, faulty: int, keep: int) -> Rows:
    """Return the mean [d] of the `keep` rows with the lowest scores; at most m - faulty should be kept."""
    assert 1 <= keep <= len(rows) - faulty
    best = np.sort(np.argsort(krum_scores(rows, faulty), kind="stable")[:keep])
    return np.asarray(rows[best].mean(axis=0))


def geometric_median(rows: Rows, steps: int = 32, smoothing: float = 1e-6) -> Rows:
    """Return the point z of least sum_i ||rows_i - z||, after at most `steps` Weiszfeld steps from the median.

    A distance below `smoothing` times the median distance counts as that, since z may coincide with a contribution.
    """
    z = median(rows)
    for _ in range(steps):
        distances = np.sqrt(np.einsum("ij,ij->i", rows - z, rows - z))
        least = smoothing * float(np.median(distances))
        if not least:  # half of them lie there
            break
        pull = 1 / np.maximum(distances, least)
        before, z = z, np.einsum("i,ij->j", pull / pull.sum(), rows)
        if np.array_equal(before, z):
            break
    return z


def clipped_mean(rows: Rows, longest: float) -> Rows:
    """Return the mean [d] of the rows, each scaled down to at most the norm `longest`."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    scale = longest / np.maximum(norms, longest)
    return np.asarray((rows * scale[:, None]).mean(axis=0))
