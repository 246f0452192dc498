"""Two public tables of hospitals, with models trained over sites and evaluated at them: computations for
results/*.toml.

Data: folder hospitals/NAME of FEDGOSSIP_DATA, train-0.csv, test-0.csv, ... per site.  Tuning is by cross-validation on
training records; test records are read after the choice.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.decoding import json_value
from fedgossip.base.errors import ConfigError
from fedgossip.base.kernels import PYTHON
from fedgossip.core import run_format
from fedgossip.data.bundled import diabetes
from fedgossip.data.idx import VARIABLE
from fedgossip.drivers.simulate import simulate

FOLDS = 3
RIDGES = (1000.0, 3000.0, 10_000.0)
"""Ridges tried for Cox's regression, on columns of deviation 1; with a smaller one a site refuses the second step."""
DECAYS = (0.0, 0.01, 0.1, 1.0)
"""Weight decay tried for the logistic model; the first is none."""
FIT_SECONDS = 600.0
SITES = {"tcga": 6, "heart": 4}
LABELS = {"tcga": ("time", "event"), "heart": ("sick",)}

Values = npt.NDArray[np.float64]


class HospitalRecords:
    """Records of one site: numbers by column name."""

    def __init__(self, names: Sequence[str], rows: Values) -> None:
        self.names, self.rows = list(names), rows

    def column(self, name: str) -> Values:
        found: Values = self.rows[:, self.names.index(name)]
        return found

    def inputs(self, labels: Sequence[str]) -> Values:
        return self.rows[:, [at for at, name in enumerate(self.names) if name not in labels]]

    def part(self, fold: int, *, held: bool) -> HospitalRecords:
        """Return the held-out records of a fold, every third one, or the others."""
        mine = np.arange(len(self.rows)) % FOLDS == fold
        return HospitalRecords(self.names, self.rows[mine if held else ~mine])

    def write(self, path: Path) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.names, *self.rows.tolist()])
        path.write_text(text.getvalue())


def cox_concordance(choice: str = "untuned", where: str = "sites") -> float:
    """Return Harrell's concordance of Cox's regression by exact sums over six sites, on their test records.

    `choice`: untuned, the smallest of RIDGES; or tuned by cross-validation.  `where`: sites, their mean; or pooled.
    """
    train, test = _sites("tcga", "train"), _sites("tcga", "test")
    ridge = RIDGES[0] if choice == "untuned" else chosen_ridge()
    weights = _cox(train, ridge)
    return _judged(test, where, partial(_ordered, weights))


def logistic_accuracy(choice: str = "exact", where: str = "sites", seeds: int = 5) -> float:
    """Return the accuracy of a logistic model of four sites, on their test records.

    `choice`: exact, the likelihood's maximum by exact sums; fedavg without weight decay, the mean over seeds; tuned,
    with the best of DECAYS in cross-validation.
    """
    train, test = _sites("heart", "train"), _sites("heart", "test")
    if choice == "exact":
        weights = _fitted("heart", train, "glm:logistic", {})
        return _judged(test, where, partial(_right, weights))
    decay = DECAYS[0] if choice == "fedavg" else chosen_decay()
    models = [_fedavg(train, decay, seed) for seed in range(1, seeds + 1)]
    return fmean(_judged(test, where, partial(_right, one)) for one in models)


def chosen_decay() -> float:
    """Return the weight decay that cross-validation at the sites chooses."""
    return _best_decay()


@cache
def _best_decay() -> float:
    """Return the weight decay chosen by cross-validation; the smallest on a tie."""
    train, found = _sites("heart", "train"), dict.fromkeys(DECAYS, 0.0)
    for fold in range(FOLDS):
        kept, held = ([site.part(fold, held=of) for site in train] for of in (False, True))
        for decay in DECAYS:
            found[decay] += _judged(held, "sites", partial(_right, _fedavg(kept, decay, 1)))
    return max(DECAYS, key=lambda decay: round(found[decay], 12))


def chosen_ridge() -> float:
    """Return the ridge that cross-validation at the sites chooses."""
    return _best_ridge()


@cache
def _best_ridge() -> float:
    train, found = _sites("tcga", "train"), dict.fromkeys(RIDGES, 0.0)
    for fold in range(FOLDS):
        kept, held = ([site.part(fold, held=of) for site in train] for of in (False, True))
        scores: dict[float, float] = {}
        for ridge in RIDGES:
            with contextlib.suppress(FitRefusedError):
                scores[ridge] = _judged(held, "sites", partial(_ordered, _cox(kept, ridge)))
        for ridge in RIDGES if scores else ():
            found[ridge] += scores.get(ridge, -math.inf)
    if not any(found.values()) or not any(map(math.isfinite, found.values())):
        raise ConfigError("tcga: sites refuse every fold of the cross-validation", "Try larger ridges.")
    return max(RIDGES, key=lambda ridge: found[ridge])


class FitRefusedError(ConfigError):
    """The sites refuse a fit."""


def _judged(sites: Sequence[HospitalRecords], where: str, score: Callable[[HospitalRecords], float]) -> float:
    if where == "pooled":
        return score(HospitalRecords(sites[0].names, np.concatenate([site.rows for site in sites])))
    known = [value for site in sites if not math.isnan(value := score(site))]
    return fmean(known) if known else math.nan


def _concordance(site: HospitalRecords, hazard: Values) -> float:
    """Return the share of comparable pairs whose earlier event has the larger hazard; equal hazards count half.

    Source: Harrell, Califf, Pryor, Lee and Rosati, Evaluating the yield of medical tests, JAMA 247 (1982).
    """
    time, event = site.column("time"), site.column("event") > 0
    later = (time[:, None] < time[None, :]) | ((time[:, None] == time[None, :]) & ~event[None, :])
    pairs = event[:, None] & later
    np.fill_diagonal(pairs, val=False)
    apart = hazard[:, None] - hazard[None, :]
    counted = int(pairs.sum())
    return float(((apart > 0) + 0.5 * (apart == 0))[pairs].sum()) / counted if counted else math.nan


def _ordered(weights: Values, site: HospitalRecords) -> float:
    return _concordance(site, site.inputs(LABELS["tcga"]) @ weights)


def _right(weights: Values, site: HospitalRecords) -> float:
    logits = site.inputs(LABELS["heart"]) @ weights[1:] + weights[0]
    return float(((logits > 0) == (site.column("sick") > 0)).mean())


def _cox(sites: Sequence[HospitalRecords], ridge: float) -> Values:
    return _fitted("tcga", sites, f"cox?every=30&until=7000&ridge={ridge:g}", {"task": {"kind": "regression"}})


def _fitted(name: str, sites: Sequence[HospitalRecords], source: str, more: Mapping[str, Any]) -> Values:
    """Return a model's estimates, in the columns' units, by the commands that sites run."""
    import tomli_w

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for at, site in enumerate(sites):
            site.write(folder / f"train-{at}.csv")
        label = ",".join(LABELS[name])
        data = {
            "source": f"csv:train-{{peer}}.csv?label={label}", "test": f"csv:train-0.csv?label={label}",
            "partition": {"kind": "own"}, "scale": "federated", "categories": "agreed", "agreed": run_format.AGREED,
        }  # fmt: skip
        content = {"name": "fit", "data": data, "model": {"source": source}, "coordinator": {"clients": len(sites)}}
        (folder / "fit.toml").write_text(tomli_w.dumps({**content, **more}))
        _command(folder, "data", "agree", "fit.toml")
        _command(folder, "fit", "fit.toml", "--to", "fitted")
        fit: Any = json_value(outside_files.read_bytes(folder / "fitted" / run_format.FIT))
    estimates = {one["name"]: one["estimate"] or 0.0 for one in fit["coefficients"]}
    inputs = [one for one in sites[0].names if one not in LABELS[name]]
    names = ["(intercept)", *inputs] if "(intercept)" in estimates else inputs
    return np.array([estimates.get(one, 0.0) for one in names])


def tree_error(sites: int = 5) -> float:
    """Return the RMSE on held-out records of 50 boosted trees over `sites` (scikit-learn's diabetes; every fourth
    record held out).
    """
    return _tree_model(sites)[1]


def unlike_trees(sites: Sequence[int]) -> float:
    """Return how many of these numbers of sites produce other trees than the first."""
    first, *others = [_tree_model(one)[0] for one in sites]
    return float(sum(one != first for one in others))


@cache
def _tree_model(sites: int) -> tuple[bytes, float]:
    import tomli_w

    table = diabetes()
    y = table.y[:, 0]
    names, rows = [*(f"x{k}" for k in range(table.x.shape[1])), "y"], np.column_stack([table.x, y])
    held = np.arange(len(rows)) % 4 == 3
    data = {
        "source": "csv:train-{peer}.csv?label=y", "test": "csv:test.csv?label=y", "partition": {"kind": "own"},
        "scale": "federated", "categories": "agreed", "agreed": run_format.AGREED,
    }  # fmt: skip
    content = {"name": "fit", "data": data, "model": {"source": "trees:50x3"}, "task": {"kind": "regression"}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        HospitalRecords(names, rows[held]).write(folder / "test.csv")
        for at in range(sites):
            HospitalRecords(names, rows[~held][at::sites]).write(folder / f"train-{at}.csv")
        (folder / "fit.toml").write_text(tomli_w.dumps({**content, "coordinator": {"clients": sites}}))
        _command(folder, "data", "agree", "fit.toml")
        _command(folder, "fit", "fit.toml", "--to", "fitted")
        _command(folder, "predict", "fitted", "test.csv", "--out", "told.csv")
        lines = list(csv.reader(io.StringIO(outside_files.read_text(folder / "told.csv"))))
        trees = outside_files.read_bytes(folder / "fitted" / run_format.MODEL / run_format.TREES)
    answers = np.array([float(line[-1]) for line in lines[1:]])
    return trees, float(np.sqrt(np.mean((answers - y[held]) ** 2)))


def _command(folder: Path, *words: str) -> None:
    command = [*PYTHON, "-m", "fedgossip", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FIT_SECONDS, check=False)
    if done.returncode:
        raise FitRefusedError(
            f"fedgossip {' '.join(words)}: {done.stderr.strip()[-300:]}", "Run it by hand to see all."
        )


def _fedavg(sites: Sequence[HospitalRecords], decay: float, seed: int) -> Values:
    """Return a logistic model by federated averaging: 30 rounds of 10 steps of 16 records."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for at, site in enumerate(sites):
            site.write(folder / f"train-{at}.csv")
        content = {
            "rounds": 30, "eval": {"every": 30}, "model": {"source": "softmax"},
            "data": {"source": f"csv:{folder}/train-{{peer}}.csv?label=sick", "partition": {"kind": "own"},
                     "test": f"csv:{folder}/train-0.csv?label=sick"},
            "train": {"lr": 0.05, "local_steps": 10, "batch_size": 16, "weight_decay": decay, "device": "cpu"},
            "coordinator": {"clients": len(sites), "secure": {"on": False}},
        }  # fmt: skip
        run = simulate(content, seed=seed)
    vector = np.asarray(run.vectors[0], np.float64)
    d = len(sites[0].names) - 1
    weights = vector[: 2 * d].reshape(2, d)
    found = np.concatenate([[vector[2 * d + 1] - vector[2 * d]], weights[1] - weights[0]])
    score = run.score["averaged"]
    if abs(_right(found, sites[0]) - score) > 1e-6:
        raise ConfigError("the model's elements are not those of a linear model", "This is a fault of fedgossip.")
    return found


@cache
def _sites(name: str, part: str) -> list[HospitalRecords]:
    root = os.environ.get(VARIABLE)
    if not root or not (Path(root) / "hospitals" / name).is_dir():
        raise ConfigError(
            f"{name}: no hospitals/{name} in the folder {VARIABLE}",
            "It holds train-0.csv, test-0.csv, ... of each site, as FLamby divides the table.",
        )
    sites = []
    for at in range(SITES[name]):
        path = Path(root) / "hospitals" / name / f"{part}-{at}.csv"
        lines = list(csv.reader(io.StringIO(outside_files.read_text(path))))
        try:
            rows = np.array([[float(cell) for cell in line] for line in lines[1:]], np.float64)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}", "Every cell is a number.") from None
        if rows.ndim != 2 or not set(LABELS[name]) <= set(lines[0]):
            raise ConfigError(f"{path}: no records, or no column {LABELS[name]}", "Copy the table again.")
        sites.append(HospitalRecords(lines[0], rows))
    return sites
