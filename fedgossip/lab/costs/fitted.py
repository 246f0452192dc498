"""A link's latency and bandwidth from transfer times of messages of several sizes: t = a + s / b, by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FittedLink:
    """`latency` in seconds, `rate` in bytes per second; `residual`: the largest relative error of a time."""

    latency: float
    rate: float
    residual: float

    def seconds(self, size: float) -> float:
        """Return the transfer time of a message of `size` bytes."""
        return self.latency + size / self.rate


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> FittedLink:
    """Fit a line to transfer times, with relative errors squared, so that small messages weigh as much as large ones.

    Raises ValueError for fewer than two sizes, and for times that do not grow with the size.
    """
    s, t = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    if len(np.unique(s)) < 2:
        raise ValueError("two sizes at least are needed for a line")
    columns = np.stack([1.0 / t, s / t], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(t)), rcond=None)
    if slope <= 0:
        raise ValueError("longer messages did not take longer")
    residual = float(np.max(np.abs((latency + s * slope) / t - 1)))
    return FittedLink(max(0.0, float(latency)), 1.0 / float(slope), residual)
