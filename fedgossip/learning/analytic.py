"""Problems with a known solution: means of vectors, and quadratics with a closed-form stationary error; only numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError, nearest
from fedgossip.base.machine_memory import check_fits
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import BLOCK, Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Update

PLACEMENTS = ("smooth", "alternating", "random")


class Averaging:
    """n vectors drawn from N(0, I), without training; the solution is their mean.  A LocalTask."""

    def __init__(self, n: int, dim: int, *, dtype: npt.DTypeLike = np.float32, seed: int = 0) -> None:
        self.n, self.length, self.dtype = n, dim, _kind(dtype)
        self.schema = _schema("averaging", dim, self.dtype)
        self._seed = seed
        self._mean: npt.NDArray[np.float64] | None = None

    def initial(self, node: NodeId) -> Vector:
        values = stream(self._seed, "initial", node).standard_normal(self.length)
        return frozen(values.astype(self.dtype))

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The true mean of the n initial vectors, summed in float64."""
        if self._mean is None:
            total = np.zeros(self.length)
            for node in range(self.n):
                total += self.initial(node)
            self._mean = total / self.n
        return self._mean

    @property
    def idle(self) -> bool:
        """Whether `train` does nothing; False for a subclass with its own `train`."""
        return type(self).train is Averaging.train

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [Update(None, 0)] * len(jobs)

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return self.train(jobs)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return {"loss": mean over coordinates of the squared distance to the true mean}."""
        losses, at_once = list[float](), max(1, BLOCK // self.length)
        for start in range(0, len(vectors), at_once):
            away = np.stack(vectors[start : start + at_once]) - self.mean
            losses += np.mean(away**2, axis=1).tolist()
        return [{"loss": loss} for loss in losses]


class Quadratic:
    """f_i(x) = 1/2 ||x - b_i||^2, one gradient step with noise per round, equal in all coordinates.  A LocalTask.

    b_i on node i of n: "smooth" sqrt(2) cos(2 pi i / n), "alternating" +1 and -1 (sum b^2 = n for both), "random" N(0,
    1) per coordinate.  train gives -eta (x - b_i + xi) with xi ~ N(0, sigma^2) from (seed, node, round).  The optimum
    is mean(b); with a symmetric mixing the stationary consensus error has a closed form
    (tests/learning/test_analytic.py).
    """

    def __init__(
        self,
        n: int,
        dim: int = 1,
        *,
        placement: str = "smooth",
        eta: float = 0.1,
        sigma: float = 0.0,
        dtype: npt.DTypeLike = np.float64,
        seed: int = 0,
    ) -> None:
        self.n, self.length, self.dtype = n, dim, _kind(dtype)
        self.eta, self.sigma = eta, sigma
        self.schema = _schema("quadratic", dim, self.dtype)
        check_fits(
            f"the targets of {n:,} nodes of {dim:,} elements",
            n * dim * self.dtype.itemsize,
            "Use fewer participants or fewer dimensions; a model learned from data stores no targets.",
        )
        self.b = _placed(placement, n, dim, seed, self.dtype)
        self._seed = seed
        self._start = frozen(np.zeros(dim, self.dtype))
        self._spread: tuple[npt.NDArray[np.float64], float] | None = None

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self._start

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._step(job) for job in jobs]

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return x - b_i + xi per job; `accumulate` has no effect: all batches are the same example and noise."""
        found = (self._away(job) for job in jobs)
        return [Update(frozen(away), 1, {"loss": loss, "steps": 1, "rows": 1}) for away, loss in found]

    def full_gradient(self, vector: Vector, node: NodeId | None = None) -> tuple[float, Vector]:
        """Return f and its gradient [d] at a vector: of one node, or the mean over all nodes."""
        targets = self.b if node is None else self.b[node : node + 1]
        away = vector - targets.astype(np.float64)
        return float(np.mean(np.sum(away**2, axis=1)) / 2), frozen(away.mean(axis=0).astype(self.dtype))

    def _step(self, job: Job) -> Update:
        away, loss = self._away(job)
        if job.terms is not None and job.terms.correction is not None:
            away = away + job.terms.correction
        metrics = {"loss": loss, "steps": 1, "rate": self.eta}
        return Update(frozen(away * self.dtype.type(-self.eta)), 1, metrics)

    def _away(self, job: Job) -> tuple[Vector, float]:
        away = job.vector - self.b[job.node]
        loss = float(np.mean(np.square(away, dtype=np.float64))) * self.length / 2
        if not np.isfinite(loss):
            raise TrainingError(
                f"node {job.node}, round {job.round}: the loss is {loss}", f"Use a smaller eta than {self.eta:g}."
            )
        if self.sigma:
            noise = stream(self._seed, "noise", job.node, job.round).standard_normal(self.length)
            away = away + (self.sigma * noise).astype(self.dtype)
        return away, loss

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return {"loss": mean_i f_i(x)}."""
        if self._spread is None:
            self._spread = _spread_of(self.b)
        centre, spread = self._spread
        return [{"loss": (float(np.sum((vector - centre) ** 2)) + spread) / 2} for vector in vectors]


def _spread_of(b: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], float]:
    """Return the mean [d] of targets [n, d], and their mean squared distance from it."""
    centre, at_once = b.mean(axis=0, dtype=np.float64), max(1, BLOCK // b.shape[1])
    parts = [np.sum((b[first : first + at_once] - centre) ** 2, axis=1) for first in range(0, len(b), at_once)]
    return centre, float(np.mean(np.concatenate(parts)))


def _placed(placement: str, n: int, dim: int, seed: int, kind: np.dtype[np.floating]) -> npt.NDArray[np.floating]:
    if placement == "random":
        return stream(seed, "placement").standard_normal((n, dim)).astype(kind, copy=False)
    if placement == "smooth":
        column = np.sqrt(2) * np.cos(2 * np.pi * np.arange(n) / n)
    elif placement == "alternating":
        column = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    else:
        raise ConfigError(f"unknown placement {placement!r}", nearest(placement, PLACEMENTS))
    return np.repeat(column.astype(kind)[:, None], dim, axis=1)


def _kind(dtype: npt.DTypeLike) -> np.dtype[np.floating]:
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ConfigError(f"dtype {kind} of an analytic task", "Use float32 or float64.")
    return kind


def _schema(name: str, dim: int, dtype: np.dtype[np.floating]) -> str:
    return hashlib.sha256(f"{name}/{dim}/{dtype.str}".encode()).hexdigest()[:16]
