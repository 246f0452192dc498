"""Boosted trees of five sites beside scikit-learn's of all records in one place, and what masks take of the time.

    python benchmarks/trees.py [--short] [--records 85]

Breast cancer, 426 records at five sites, 143 for the test, three divisions: accuracy and AUROC beside
HistGradientBoosting, and of a forest of six columns a tree beside RandomForest, of as many trees, as deep.  Then a run
of five sites of so many records each, by secure sums in one process: processor time by what it is spent in, the shares
of all that the run takes.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score
from small_bins import table, tables

from fedgossip import load_experiment
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.secure import fixed_point
from fedgossip.sites.fits.tree_sums import GrowingTrees, SiteMargins, grown_alone
from fedgossip.sites.plans.fits import planned_fit

SITES = 5
FEATURES = 30


def agreed() -> None:
    words = [sys.executable, "-m", "fedgossip", "data", "agree", "trees.toml"]
    subprocess.run(words, check=True, capture_output=True)


def beside_scikit_learn(seed: int, trees: int, forest: int = 0) -> str:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        tables(Path(), seed)
        agreed()
        fit = planned_fit(load_experiment("trees.toml", [f"model.source=trees:{trees}x6?forest_columns={forest}"]))
        growing = GrowingTrees(fit.layout, grown_alone(fit.layout, table(fit, "all.csv")))
        test = table(fit, "test.csv")
        ours = SiteMargins(fit.layout, test).margins(growing)[:, 0]
        rows, asked = (np.loadtxt(f"{one}.csv", delimiter=",", skiprows=1) for one in ("all", "test"))
        boosted = HistGradientBoostingClassifier(
            max_iter=trees, max_depth=6, max_leaf_nodes=None, max_bins=32, min_samples_leaf=10, l2_regularization=1.0,
            early_stopping=False,
        )  # fmt: skip
        of_draws = RandomForestClassifier(trees, max_depth=6, min_samples_leaf=10, random_state=seed)
        model = (of_draws if forest else boosted).fit(rows[:, :-1], rows[:, -1])
        theirs = model.predict_proba(asked[:, :-1])[:, 1] - 0.5
    figures = [f"{((one > 0) == test.y).mean():.3f} | {roc_auc_score(test.y, one):.3f}" for one in (ours, theirs)]
    return f"| {seed} | {f'forest of {forest}' if forest else 'boosted'} | {' | '.join(figures)} |"


def drawn(records: int) -> None:
    """Write five sites' tables of drawn records, with outcomes that depend on some columns."""
    header = ",".join([*(f"c{k}" for k in range(FEATURES)), "outcome"])
    for site in ("test", *range(SITES)):
        rng = np.random.default_rng(99 if site == "test" else int(site))
        x = rng.normal(size=(records, FEATURES))
        ill = rng.random(records) < 1 / (1 + np.exp(-x[:, 0] * x[:, 1] - x[:, 2]))
        name = "test.csv" if site == "test" else f"site-{site}.csv"
        kinds = ["%.5g"] * FEATURES + ["%d"]
        np.savetxt(name, np.column_stack([x, ill]), kinds, delimiter=",", header=header, comments="")


def counted(owner: Any, name: str, part: str, spent: dict[str, float]) -> None:
    """Have the processor time of a function count for a part."""
    called: Callable[..., Any] = getattr(owner, name)

    def timed(*words: Any, **keys: Any) -> Any:
        begun = time.process_time()
        try:
            return called(*words, **keys)
        finally:
            spent[part] += time.process_time() - begun

    setattr(owner, name, timed)


def shares(records: int, trees: int) -> str:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        tables(Path(), 0)  # the experiment
        drawn(records)
        agreed()
        fit = planned_fit(load_experiment("trees.toml", [f"model.source=trees:{trees}x6"]))
        plan, task, _ = fit.of_sites(range(SITES))
        spent = defaultdict[str, float](float)
        counted(fixed_point, "_apply", "masks", spent)
        counted(SiteMargins, "numbers", "histograms", spent)
        begun = time.process_time()
        simulate_plan(plan, task=task)
        whole = time.process_time() - begun
    parts = "; ".join(f"{part} {100 * seconds / whole:.0f} %" for part, seconds in spent.items())
    return f"{SITES} sites of {records} records, {trees} trees: {whole:.1f} s of processor time: {parts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--records", type=int, nargs="*", default=[85])
    given = parser.parse_args()
    trees = 5 if given.short else 100
    print("| division | trees | accuracy | AUROC | accuracy, scikit-learn | AUROC |")
    for seed in range(1 if given.short else 3):
        for forest in (0, 6):
            print(beside_scikit_learn(seed, trees, forest), flush=True)
    for records in given.records:
        print(shares(records, trees), flush=True)


if __name__ == "__main__":
    main()
