"""Five sites with files of their own, what they agree on, and the model of a run: to be judged, and released."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from commands import typed

SITES = 5
TOML = """
name = "judged"
rounds = 6

[data]
source = "csv:site-{peer}.csv?label=outcome&drop=sex"
test = "csv:test.csv?label=outcome&drop=sex"
partition = { kind = "own" }
scale = "federated"
local_test = 0.4
groups = "sex"

[data.columns]
sex = { categories = ["f", "m", "x", "rare"] }

[train]
device = "cpu"
lr = 0.5

[study]
sites = ["North", "South", "East", "West", "Harbour & Sons"]
purpose = "To find <i>what</i> is to be looked at first"
contact = "Dr. A. Weber, data@north.example"

[coordinator]
clients = 5
min_clients = 3
"""


def patients(path: Path, seed: int, rows: int, rare: int = 0, sexes: str = "ffmmm") -> None:
    """Write records; women are answered for less well, and few records are of the others."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(list(sexes), rows).tolist()
    sex[:rare] = ["rare"] * rare
    sex[-1] = ""
    x = rng.normal(size=(rows, 3))
    spread = np.where(np.array(sex) == "f", 2.5, 0.7)
    ill = x.sum(axis=1) + spread * rng.normal(size=rows) > 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "sex", "outcome"])
        writer.writerows([*values.tolist(), one, int(y)] for values, one, y in zip(x, sex, ill, strict=True))


def trained_in(folder: Path) -> Path:
    """Make the sites' files, let them agree, and train; return the folder."""
    (folder / "own.toml").write_text(TOML)
    for site in range(SITES):
        patients(folder / f"site-{site}.csv", site, 60 + 20 * site, rare=20 if site == 2 else 0)
    patients(folder / "test.csv", 99, 60, sexes="fm")
    assert typed(["data", "agree", "own.toml"], folder).code == 0
    assert typed(["run", "own.toml", "--out", "run", "--no-report"], folder).code == 0
    return folder
