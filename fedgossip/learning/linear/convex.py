"""Linear models with a convex loss and lam/2 |w|^2, with a certified distance to the optimum; only numpy.

The lasso's regulariser is lam (|w|_1 + smooth/2 |w|^2), an elastic net with a small square term.

    x          the columns of the source and a 1, whose weight is the intercept: it is regularised like the others
    vector     [columns + 1 + 4], float64: weights, intercept; and four numbers for `cocoa`, 0 for other algorithms
    cocoa      coordinate steps on the dual variables of the job (`extra`); else mini-batch SGD

The loss of a job is the client's part of P, lam/2 |w|^2 included, so the mean over all is P.  Losses of a margin m = x
w:

            loss(m; y)              loss*(-a)                                       a
    hinge      max(0, 1 - y m)      -y a                                            0 <= y a <= 1
    logistic   log(1 + exp(-y m))   b log b + (1 - b) log(1 - b),  b = y a          0 <= y a <= 1
    squares    (m - y)^2 / 2        a^2 / 2 - a y                                   any

A coordinate step maximises  -loss*(-(a + t)) - m t - q t^2 / 2  over t, with q the curvature of the rest.

Source: Shalev-Shwartz and Zhang, Stochastic dual coordinate ascent methods for regularized loss minimization, JMLR 14
(2013), section 6.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.federated.cocoa import CERTIFICATE, CLIENTS, DUAL, EXAMPLES, PRIMAL, gap_of, shrunk
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Segment, Update
from fedgossip.data.dataset import Dataset, Indices
from fedgossip.learning.one_model.batches import Batches
from fedgossip.learning.settings import TrainSettings


class ConvexTask:
    """A GradientTask.  `shares`: indices into `train` by node; `whole`: whether `shares` covers all nodes.

    Raises ConfigError for labels that do not match the loss, and for a node without examples.
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self,
        train: Dataset,
        test: Dataset,
        shares: Mapping[NodeId, Indices],
        loss: str,
        lam: float,
        settings: TrainSettings,
        *,
        positive: str = "",
        smooth: float = 0.0,
        seed: int = 0,
        rounds: int = 1,
        whole: bool = True,
    ) -> None:
        for node, share in shares.items():
            if not len(share):
                raise ConfigError(f"node {node} has no training example", "Use fewer clients or another partition.")
        self.loss, self.settings, self._whole = LOSSES[loss], settings, whole
        self.l1, self.lam = (lam, lam * smooth) if loss == LASSO else (0.0, lam)
        sign = _labels if self.loss.classes else _numbers
        self._x, self._test_x = _columns(train), _columns(test)
        self._y, self._test_y = sign(train, loss, positive), sign(test, loss, positive)
        self._shares, self._seed, self._rounds = shares, seed, rounds
        self._square = np.square(self._x).sum(axis=1)
        self._batches = Batches(shares, settings, seed, settings.examples_per_step)
        self.length = self._x.shape[1] + CERTIFICATE
        about = f"convex/{self._x.shape[1]}/{loss}/{lam!r}/{positive}" + (f"/{smooth!r}" if self.l1 else "")
        self.schema = hashlib.sha256(about.encode()).hexdigest()[:16]

    @property
    def segments(self) -> Sequence[Segment]:
        weights = self.length - CERTIFICATE - 1
        parts = [("weights", weights), ("intercept", 1), ("certificate", CERTIFICATE)]
        starts = np.cumsum([0, *(size for _, size in parts)]).tolist()
        return [Segment(name, start, (size,)) for (name, size), start in zip(parts, starts, strict=False)]

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return frozen(np.zeros(self.length))

    # --- training -------------------------------------------------------------------------------------------------

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._ascent(job) if job.terms and job.terms.extra else self._descent(job) for job in jobs]

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [self._mean_gradient(job) for job in jobs]

    def _ascent(self, job: Job) -> Update:
        """Return the client's part of a round of CoCoA; a client without dual variables sends its number of
        examples.
        """
        assert job.terms is not None
        (sigma, passes), *memory = job.terms.extra
        share, w = self._shares[job.node], job.vector[:-CERTIFICATE]
        x, y, m = self._x[share], self._y[share], len(share)
        a = np.asarray(memory[0] if memory else np.zeros(m))
        if a.shape != (m,):
            text = f"node {job.node}: {a.size} dual variables for {m} examples"
            raise TrainingError(text, "Was it started before with other data?")
        out, decay = np.zeros(self.length), self._decay(w)
        values = self.loss.value(_margins(x, w), y)
        out[PRIMAL] = float(values.sum()) + m * self._penalty(w)
        out[DUAL] = -float(self.loss.conjugate(a, y).sum()) - m * decay
        metrics = {"loss": float(out[PRIMAL]) / m, "steps": 1, "rate": 1.0}
        if not memory:
            out[EXAMPLES], out[CLIENTS] = m, 1
            return Update(frozen(out), m, metrics, extra=(frozen(a),))
        order = _order(stream(self._seed, "dual coordinates", job.node, job.round), m, max(1, round(passes * m)))
        after = self._climbed(order, share, a, w, sigma, self.lam * float(job.vector[EXAMPLES]))
        out[:-CERTIFICATE] = np.add.reduce((after - a)[:, None] * x, axis=0) / self.lam
        return Update(frozen(out), m, {**metrics, "steps": len(order)}, extra=(frozen(after - a),))

    def _climbed(
        self, order: Sequence[int], share: Indices, a: Floats, w: Floats, sigma: float, scale: float
    ) -> Floats:
        """Return a after a coordinate step for each index in `order`, at w + sigma' times its change."""
        after, seen = a.copy(), np.array(w)
        x, y, square, ascend = self._x[share], self._y[share].tolist(), self._square[share].tolist(), self.loss.ascend
        for i in order:
            before = float(after[i])
            found = ascend(before, y[i], float(np.add.reduce(x[i] * seen)), sigma * square[i] / scale)
            if found != before:
                after[i] = found
                seen += x[i] * (sigma * (found - before) / scale)
        return after

    def _descent(self, job: Job) -> Update:
        rate, w = self.settings.rate(job.round, self._rounds), np.array(job.vector[:-CERTIFICATE])
        plan = self._batches.plan(job.node, job.round)
        losses = []
        for row, count in zip(plan.indices, plan.counts, strict=True):
            gradient, loss = self._slope(row[:count], w)
            w -= rate * gradient
            losses.append(loss)
        out = np.zeros(self.length)
        out[:-CERTIFICATE] = w - job.vector[:-CERTIFICATE]
        metrics = {"loss": math.fsum(losses) / len(losses), "steps": len(losses), "rate": rate}
        return self._make_update(job, out, metrics)

    def _mean_gradient(self, job: Job) -> Update:
        plan = self._batches.plan(job.node, job.round, job.accumulate)
        rows = np.concatenate([row[:count] for row, count in zip(plan.indices, plan.counts, strict=True)])
        out = np.zeros(self.length)
        out[:-CERTIFICATE], loss = self._slope(rows, job.vector[:-CERTIFICATE])
        return self._make_update(job, out, {"loss": loss, "steps": len(plan.counts), "rows": float(len(rows))})

    def _slope(self, rows: Indices, w: Floats) -> tuple[Floats, float]:
        x, y = self._x[rows], self._y[rows]
        m = _margins(x, w)
        gradient = np.add.reduce(self.loss.slope(m, y)[:, None] * x, axis=0) / len(rows) + self.lam * w
        if self.l1:
            gradient += self.l1 * np.sign(w)  # a subgradient
        return gradient, float(self.loss.value(m, y).mean()) + self._penalty(w)

    def _decay(self, w: Floats) -> float:
        return self.lam / 2 * float(np.add.reduce(w * w))

    def _penalty(self, w: Floats) -> float:
        return self._decay(w) + (self.l1 * float(np.add.reduce(np.abs(w))) if self.l1 else 0.0)

    def _make_update(self, job: Job, out: Floats, metrics: Mapping[str, float]) -> Update:
        if not (math.isfinite(metrics["loss"]) and np.isfinite(out).all()):
            raise TrainingError(f"node {job.node}, round {job.round}: the loss is {metrics['loss']}", "Lower train.lr.")
        return Update(frozen(out), len(self._shares[job.node]), metrics)

    # --- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        """Return "loss", "accuracy" or "rmse" on the test set, and "gap": with cocoa of the model at the start of its
        last round; else of this model, if all examples are local.
        """
        return [self._measured(vector) for vector in vectors]

    def _measured(self, vector: Vector) -> Mapping[str, float]:
        w, y = vector[:-CERTIFICATE], self._test_y
        m = _margins(self._test_x, w)
        found = {"loss": float(self.loss.value(m, y).mean())}
        if self.loss.classes:
            found["accuracy"] = float(np.mean((m > 0) == (y > 0)))
        else:
            found["rmse"] = math.sqrt(float(np.square(m - y).mean()))
        gap = gap_of(vector)
        if gap is None and not vector[CLIENTS] and self._whole:
            gap = self.gap(w)
        return found if gap is None else {**found, "gap": gap}

    def objective(self, w: Floats) -> float:
        """Return P(w) over all local training examples; w: [columns + 1]."""
        return float(self.loss.value(_margins(self._x, w), self._y).mean()) + self._penalty(w)

    def gap(self, w: Floats) -> float:
        """Return P(w) - D(a) for the a given by the slopes at w: an upper bound of P(w) - P(best), for every w."""
        a = -self.loss.slope(_margins(self._x, w), self._y)
        v = shrunk(np.add.reduce(a[:, None] * self._x, axis=0) / (self.lam * len(a)), self.l1 / self.lam)
        return self.objective(w) + float(self.loss.conjugate(a, self._y).mean()) + self._decay(v)


def _margins(x: Floats, w: Floats) -> Floats:
    """Return x w row by row: the bits do not depend on threads or other rows."""
    return np.asarray(np.add.reduce(x * w, axis=1))


def _order(drawn: np.random.Generator, m: int, steps: int) -> Sequence[int]:
    """Return the examples of `steps` steps, pass by pass, each pass in a new order."""
    passes = [drawn.permutation(m) for _ in range(-(-steps // m))]
    order: list[int] = np.concatenate(passes)[:steps].tolist()
    return order


def _columns(data: Dataset) -> Floats:
    if data.vocabulary is not None:
        raise ConfigError(f"{data.name}: text has no columns", "Take a table, or images.")
    rows = data.x.reshape(len(data), -1).astype(np.float64)
    return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)


def _labels(data: Dataset, loss: str, positive: str) -> Floats:
    if not data.classes:
        text = f"{data.name}: its labels are numbers, and {loss} is of two classes"
        raise ConfigError(text, 'Set task.loss = "squares".')
    names = list(data.class_names) or [str(number) for number in range(data.classes)]
    if positive and positive not in names:
        raise ConfigError(f"{data.name} has no class {positive!r}", f"task.positive is one of {', '.join(names)}.")
    if not positive and data.classes != 2:
        text = f"{data.name} has {data.classes} classes, and {loss} distinguishes two"
        raise ConfigError(text, f'Set task.positive = "{names[-1]}": that class against all others.')
    number = names.index(positive) if positive else 1
    return np.where(data.y == number, 1.0, -1.0)


def _numbers(data: Dataset, loss: str, _positive: str) -> Floats:
    if data.classes or data.y.ndim != 2 or data.y.shape[1] != 1:
        text = f"{data.name}: its labels are not one column of numbers, as {loss} wants them"
        raise ConfigError(text, 'Set task.loss = "hinge" or "logistic" for two classes.')
    numbers: Floats = data.y[:, 0].astype(np.float64)
    return numbers


Floats = npt.NDArray[np.floating]

STEPS_MOST = 100
"""Maximum number of steps of Newton's method for one coordinate; bisection alone would need 60."""


@dataclass(frozen=True)
class DualLoss:
    """`value`, `slope` of (margins, labels); `conjugate` of (a, labels); `ascend` of (a, label, margin, q): the new a;
    `classes`: labels are -1 and 1.
    """

    value: Callable[[Floats, Floats], Floats]
    slope: Callable[[Floats, Floats], Floats]
    conjugate: Callable[[Floats, Floats], Floats]
    ascend: Callable[[float, float, float, float], float]
    classes: bool = True


def _ascend_hinge(a: float, y: float, margin: float, q: float) -> float:
    return y * min(1.0, max(0.0, y * a + (1 - y * margin) / q))


def _ascend_squares(a: float, y: float, margin: float, q: float) -> float:
    return a + (y - margin - a) / (1 + q)


def _ascend_logistic(a: float, y: float, margin: float, q: float) -> float:
    """Find t with t + y m + q (sigmoid(t) - b) = 0, which rises everywhere; the new b is sigmoid(t)."""
    b, rest = y * a, y * margin
    low, high = -rest - q * (1 - b), -rest + q * b
    t = min(high, max(low, math.log(b / (1 - b)) if 0 < b < 1 else (low + high) / 2))
    for _ in range(STEPS_MOST):
        chance = _sigmoid(t)
        away = t + rest + q * (chance - b)
        low, high = (t, high) if away < 0 else (low, t)
        step = away / (1 + q * chance * (1 - chance))
        after = t - step if low < t - step < high else (low + high) / 2
        if abs(after - t) <= 1e-15 * (1 + abs(t)):
            break
        t = after
    return y * _sigmoid(t)


def _sigmoid(t: float) -> float:
    share = math.exp(-abs(t))
    return (1.0 if t >= 0 else share) / (1 + share)


def _entropy(b: Floats) -> Floats:
    return np.array([one * math.log(one) if one > 0 else 0.0 for one in b.tolist()])


def _softplus(t: Floats) -> Floats:
    """Return log(1 + exp(t)) by the C library: numpy's vector code rounds differently on other processors."""
    return np.array([max(one, 0.0) + math.log1p(math.exp(-abs(one))) for one in t.tolist()])


LASSO = "lasso"
"""The squared loss with |w|_1 added."""

LOSSES: dict[str, DualLoss] = {
    "hinge": DualLoss(
        lambda m, y: np.maximum(0.0, 1 - y * m),
        lambda m, y: np.where(y * m < 1, -y, 0.0),
        lambda a, y: -y * a,
        _ascend_hinge,
    ),
    "logistic": DualLoss(
        lambda m, y: _softplus(-y * m),
        lambda m, y: -y * np.array([_sigmoid(one) for one in (-y * m).tolist()]),
        lambda a, y: _entropy(y * a) + _entropy(1 - y * a),
        _ascend_logistic,
    ),
    "squares": DualLoss(
        lambda m, y: np.square(m - y) / 2,
        lambda m, y: m - y,
        lambda a, y: np.square(a) / 2 - a * y,
        _ascend_squares,
        classes=False,
    ),
}
LOSSES[LASSO] = LOSSES["squares"]
"""Losses by their names in an experiment file."""
