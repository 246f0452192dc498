"""Share of the opened sums of boosted trees that are over 1 to 4 records, and what coarser bins cost in accuracy.

    python benchmarks/small_bins.py [--divisions 1]

Breast cancer at five sites, 426 records, 143 for the test, three divisions; trees of all records in one place, which
are those of the sites to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from fedgossip import load_experiment
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.tree_result import trees_fit
from fedgossip.sites.fits.tree_sums import GrowingTrees, SiteMargins, SiteTable, grown_alone
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.plans.sums import PlannedFit
from fedgossip.sites.plans.trees import read_table

SITES, TRAINED = 5, 426
EXPERIMENT = """
[data]
source = "csv:site-{peer}.csv?label=outcome"
test = "csv:test.csv?label=outcome"
partition = { kind = "own" }
scale = "federated"
[model]
source = "trees:100x6"
[coordinator]
clients = 5
"""
QUERIES = ("", "bin_records=5", "bin_records=10", "bin_records=20", "bin_records=40")


def tables(folder: Path, seed: int) -> None:
    data = load_breast_cancer()
    order = np.random.default_rng(seed).permutation(len(data.target))
    train, test = order[:TRAINED], order[TRAINED:]
    parts = {f"site-{site}": rows for site, rows in enumerate(np.array_split(train, SITES))}
    header = ",".join([*(name.replace(" ", "_") for name in data.feature_names), "outcome"])
    for name, rows in (parts | {"all": train, "test": test}).items():
        cells = np.column_stack([data.data[rows], data.target[rows]])
        kinds = ["%.6g"] * data.data.shape[1] + ["%d"]
        np.savetxt(folder / f"{name}.csv", cells, kinds, delimiter=",", header=header, comments="")
    (folder / "trees.toml").write_text(EXPERIMENT)


def table(fit: PlannedFit, name: str) -> SiteTable:
    agreed = msgspec.structs.replace(fit.agreed, noise=1.0)  # without it a site with all records is refused
    return read_table(fit.layout, agreed, TableFile(Path(name)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--divisions", type=int, default=3)
    for seed in range(parser.parse_args().divisions):
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            tables(Path(), seed)
            agree = [sys.executable, "-m", "fedgossip", "data", "agree", "trees.toml"]
            subprocess.run(agree, check=True, capture_output=True)
            for query in QUERIES:
                experiment = load_experiment("trees.toml", [f"model.source=trees:100x6{query and '?' + query}"])
                fit = planned_fit(experiment)
                growing = GrowingTrees(fit.layout, grown_alone(fit.layout, table(fit, "all.csv")))
                found = trees_fit(growing, SITES)
                assert found is not None
                test = table(fit, "test.csv")
                margins = SiteMargins(fit.layout, test).margins(growing)[:, 0]
                right, area = ((margins > 0) == test.y).mean(), roc_auc_score(test.y, margins)
                small = f"{found.small:,} of {found.opened:,} ({100 * found.small / found.opened:.1f} %)"
                print(f"{seed}  {query or '-':16}  {small}  accuracy {right:.3f}  AUROC {area:.4f}", flush=True)


if __name__ == "__main__":
    main()
