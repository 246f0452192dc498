"""Convex losses of a margin m = x w, with what dual coordinate ascent needs of them.

            loss(m; y)              loss*(-a)                                       a
    hinge      max(0, 1 - y m)      -y a                                            0 <= y a <= 1
    logistic   log(1 + exp(-y m))   b log b + (1 - b) log(1 - b),  b = y a          0 <= y a <= 1
    squares    (m - y)^2 / 2        a^2 / 2 - a y                                   any

A coordinate step makes  -loss*(-(a + t)) - m t - q t^2 / 2  largest in t, with q the curvature of the rest.

Source: Shalev-Shwartz and Zhang, Stochastic dual coordinate ascent methods for regularized loss minimization, JMLR 14
(2013), section 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

STEPS_MOST = 100
"""Maximum number of steps of Newton's method for one coordinate; bisection alone would need 60."""


@dataclass(frozen=True)
class DualLoss:
    """`value` and `slope` of (margins, labels); `conjugate` of (a, labels); `ascend` of (a, label, margin, q) gives
    the new a; `classes`: whether labels are -1 and 1."""

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
    """Return log(1 + exp(t)) by the C library, one by one: numpy's own vectors round otherwise on other processors."""
    return np.array([max(one, 0.0) + math.log1p(math.exp(-abs(one))) for one in t.tolist()])


LASSO = "lasso"
"""Squares, with |w|_1 beside."""

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
"""By the names of an experiment file."""
