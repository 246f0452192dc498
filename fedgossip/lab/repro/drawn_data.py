"""Data that papers draw from formulas, named by `data.source` of sweep files here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedgossip.base import seeds

DEVICES, CLASSES, FEATURES = 30, 10, 60
LARGEST = 500
"""Maximum number of examples of a device; the paper has no maximum, and its largest devices have thousands."""


def synthetic_1_1() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return x [m, 60], labels [m] and devices [m] of synthetic(1, 1): models and inputs of 30 devices differ.

    Source: T. Li et al., Federated optimization in heterogeneous networks, MLSys 2020, section 5.1: u_k, B_k ~ N(0, 1);
    W_k, b_k ~ N(u_k, 1); v_k ~ N(B_k, 1); x ~ N(v_k, diag(j^-1.2)); y = argmax(W_k x + b_k); 50 examples of a device
    and exp(N(4, 4)) more, here at most LARGEST.
    """
    random = seeds.stream(0, "synthetic(1, 1)")
    deviation = np.arange(1, FEATURES + 1) ** -0.6
    xs, ys, devices = [], [], []
    for device in range(DEVICES):
        size = min(LARGEST, 50 + int(random.lognormal(4, 2)))
        u, b = random.standard_normal(2)
        weights, bias = random.normal(u, 1, (CLASSES, FEATURES)), random.normal(u, 1, CLASSES)
        x = random.normal(b, 1, FEATURES) + random.standard_normal((size, FEATURES)) * deviation
        xs.append(x.astype(np.float32))
        ys.append((x @ weights.T + bias).argmax(axis=1))
        devices.append(np.full(size, device))
    return np.concatenate(xs), np.concatenate(ys).astype(np.int64), np.concatenate(devices)
