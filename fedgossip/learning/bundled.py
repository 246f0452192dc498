"""The three real datasets that come with scikit-learn and need no network."""

from __future__ import annotations

import numpy as np

from fedgossip.learning.dataset import Dataset
from fedgossip.learning.objectives import REGRESSION


def digits() -> Dataset:
    """1797 images of 8x8 pixels as [m, 64], scaled from 0..16 to 0..1; 10 classes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Dataset("digits", (x / 16).astype(np.float32), y.astype(np.int64), 10)


def breast_cancer() -> Dataset:
    """569 patients with 30 measurements, to be standardised; class 1 is benign."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return Dataset("breast-cancer", x.astype(np.float64), y.astype(np.int64), 2, scale="standard")


def diabetes() -> Dataset:
    """442 patients with 10 measurements, to be standardised; the label says how far the disease went within a year."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    columns = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
    labels = y.astype(np.float64)[:, None]
    return Dataset(
        "diabetes",
        x.astype(np.float64),
        labels,
        0,
        scale="standard",
        columns=columns,
        kind=REGRESSION,
        label_names=("progression",),
    )
