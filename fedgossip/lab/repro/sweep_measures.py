"""Differences between methods that a sweep file compares, with paired seeds: computations behind results/*.toml.

The files lie in the folder `sweeps`, and are run by `fedgossip sweep FILE` as any other.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from statistics import fmean

from fedgossip.base.errors import ConfigError
from fedgossip.lab.sweeps.sweep import sweep
from fedgossip.lab.sweeps.table import SweepTable

FOLDER = Path(__file__).parent / "sweeps"


def gain_in_sweep(file: str, ours: str, theirs: str, which: str = "mean_peer", end: str = "low") -> float:
    """Return an end of Student's 95 % interval of the score of one combination of a sweep less that of another.

    `ours`, `theirs`: words that one combination alone has all of, as "algorithm.name=d2".  `end`: low, mean or high.
    Raises ConfigError where cells of the sweep cannot be run, with the first one's error.
    """
    table = _table(file)
    found = table.difference(_named(table, ours), _named(table, theirs), which)
    if found is None or found.student is None:
        wrong = next((row["error"] for row in table.rows if row["error"]), "fewer than two seeds")
        raise ConfigError(f"the sweep {file} compares nothing: {wrong}", f"fedgossip sweep {FOLDER / file}.toml")
    return {"low": found.student[0], "mean": found.mean, "high": found.student[1]}[end]


def score_in_sweep(file: str, ours: str, which: str = "mean_peer") -> float:
    """Return the mean score of a combination over the seeds; see `gain_in_sweep`.  Raises ConfigError as it."""
    table = _table(file)
    found = table.scores(_named(table, ours), which)
    if not found:
        wrong = next((row["error"] for row in table.rows if row["error"]), "it has no score")
        raise ConfigError(f"the sweep {file}: {wrong}", f"fedgossip sweep {FOLDER / file}.toml")
    return fmean(found.values())


def _named(table: SweepTable, words: str) -> str:
    (found,) = (name for name in table.combinations if set(words.split()) <= set(name.split()))
    return found


@cache
def _table(file: str) -> SweepTable:
    """Return the table of a sweep with all cells run, once per process."""
    with tempfile.TemporaryDirectory() as folder:
        return sweep(FOLDER / f"{file}.toml", folder)
