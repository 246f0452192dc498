"""The three real datasets of scikit-learn, read from its files without its (slow) import."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import REGRESSION


def digits() -> Dataset:
    """1797 images of 8x8 pixels as [m, 64], scaled from 0..16 to 0..1; 10 classes."""
    table = _table("digits.csv.gz", delimiter=",")
    return Dataset("digits", (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64), 10)


def breast_cancer() -> Dataset:
    """569 patients with 30 measurements, not yet standardised; class 1 is benign."""
    table = _table("breast_cancer.csv", delimiter=",", skiprows=1)
    return Dataset("breast-cancer", table[:, :-1].copy(), table[:, -1].astype(np.int64), 2, scale="standard")


def diabetes() -> Dataset:
    """442 patients with 10 measurements, not yet standardised; the label is the disease's progression in a year."""
    columns = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
    return Dataset(
        "diabetes",
        _table("diabetes_data_raw.csv.gz"),
        _table("diabetes_target.csv.gz")[:, None],
        0,
        scale="standard",
        columns=columns,
        kind=REGRESSION,
        label_names=("progression",),
    )


def _table(name: str, *, delimiter: str | None = None, skiprows: int = 0) -> npt.NDArray[np.float64]:
    found = find_spec("sklearn")
    folder = Path(found.origin).parent / "datasets" / "data" if found and found.origin else None
    if folder is None or not (folder / name).is_file():
        raise ConfigError(f"scikit-learn has no {name} here", "pip install 'scikit-learn>=1.4'")
    opened = gzip.open if name.endswith(".gz") else open
    with opened(folder / name, "rt", encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=delimiter, skiprows=skiprows)
