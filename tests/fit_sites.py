"""Sites with tables of their own that fit a model together: their experiment file, and a process for each of them."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from commands import COMMAND, Output, finish, free_ports, start, typed

from fedgossip import load_experiment
from fedgossip.algorithms.federated.base import Aggregate, is_over
from fedgossip.base.vectors import Vector
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.secure.encoding import as_vector, integers_of, words_in, words_of
from fedgossip.sites.plans.fits import planned_fit

SITES = 5

TIMES, YES_NO = "label=days,died&drop=ill", "label=ill&drop=days,died"
QUERY = {"kaplan-meier": TIMES, "cox": TIMES, "glm": YES_NO, "trees": YES_NO, "table1": YES_NO, "firth": YES_NO}
SOURCE = {
    "kaplan-meier": "kaplan-meier?every=90&until=360",
    "cox": "cox?every=60&until=600",
    "glm": "glm:logistic",
    "trees": "trees:3x2",
    "table1": "table1?by=arm",
    "firth": "firth?errors=robust",
}
ALIKE = {
    "weibull": ("cox", "weibull"),
    "cox-robust": ("cox", "cox?every=60&until=600&errors=robust"),
    "fine-gray": ("cox", "cox?every=60&until=600&competing=2"),
    "multinomial": ("glm", "multinomial"),
    "ordinal": ("glm", "ordinal"),
    "mixed-logistic": ("glm", "mixed-logistic"),
    "elastic-net": ("glm", "elastic-net?family=logistic&path=3&folds=2"),
}
"""Kinds of fit of the statistics that another has agreed on, and their model.source."""
IMPUTED = "imputed"
"""A kind of fit of the tables `gaps-N.csv`, with empty cells."""


def own_tables(name: str, query: str, *, agreed: str = "", source: str = "", more: str = "", least: int = 3) -> str:
    """Return an experiment on a table of each site's own, `query` saying of its columns; `source`: of the model."""
    model = f'[model]\nsource = "{source}"\n' if source else ""
    return f"""
name = "{name}"
[data]
source = "csv:site-{{peer}}.csv?{query}"
test = "csv:test.csv?{query}"
partition = {{ kind = "own" }}
scale = "federated"
categories = "agreed"
agreed = "{agreed or name}.json"
{more}
{model}
[coordinator]
clients = {SITES}
min_clients = {least}
"""


def patients(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "arm", "days", "died", "ill"])
        for _ in range(50):
            age, arm = rng.integers(30, 90), rng.choice(["new", "old"])
            time, end = rng.exponential(400 * np.exp(-0.04 * (age - 60) - 0.6 * (arm == "old"))), rng.uniform(100, 700)
            ill = "yes" if rng.random() < 1 / (1 + np.exp(3 - 0.05 * age)) else "no"
            writer.writerow([age, arm, int(np.ceil(min(time, end))), int(time <= end), ill])


def with_gaps(path: Path, seed: int, rows: int = 60, *, gaps: bool = True) -> None:
    """Write records with empty cells of a number and of yes or no, more of them where another column is large."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "bmi", "smoker", "cost", "visits", "ill"])
        for _ in range(rows):
            age = rng.normal(60, 10)
            smoker = rng.random() < 1 / (1 + np.exp(-(age - 60) / 20))
            bmi = 25 + 0.1 * (age - 60) + 2 * smoker + rng.normal(0, 3)
            eta = 0.04 * (age - 60) + 0.15 * (bmi - 25) + 0.6 * smoker
            ill = rng.random() < 1 / (1 + np.exp(0.5 - eta))
            cost, visits = 50 + 4 * eta + rng.normal(0, 3), rng.poisson(np.exp(1 + eta / 4))
            empty = gaps & (rng.random(2) < [0.1 + 0.3 * (cost > 51), 0.2])
            weight = "" if empty[0] else f"{bmi:.2f}"
            smokes = "" if empty[1] else "yes" if smoker else "no"
            writer.writerow([f"{age:.1f}", weight, smokes, f"{cost:.3f}", visits, "yes" if ill else "no"])


def imputed_tables(folder: Path) -> str:
    """Write the tables of all sites with gaps; return an experiment of a logistic fit, with three drawn tables."""
    for site in range(SITES):
        with_gaps(folder / f"gaps-{site}.csv", site, 50 + 10 * site)
    with_gaps(folder / "gaps.csv", 99, gaps=False)
    more = 'missing = "impute:3"'
    text = own_tables(IMPUTED, "label=ill&drop=cost,visits", source="glm:logistic", more=more)
    return text.replace("site-{peer}", "gaps-{peer}").replace("csv:test.csv", "csv:gaps.csv")


def every_kind(folder: Path) -> Path:
    """Write the tables of all sites, and an experiment of each kind of fit with what was agreed; return the folder."""
    for site in range(SITES):
        patients(folder / f"site-{site}.csv", site)
    patients(folder / "test.csv", 99)
    for kind, query in QUERY.items():
        more = '[task]\nkind = "regression"\n' if query == TIMES else ""
        (folder / f"{kind}.toml").write_text(own_tables(kind, query, source=SOURCE[kind], more=more))
        assert typed(["data", "agree", f"{kind}.toml"], folder).code == 0
    (folder / f"{IMPUTED}.toml").write_text(imputed_tables(folder))
    assert typed(["data", "agree", f"{IMPUTED}.toml"], folder).code == 0
    for kind, (other, source) in ALIKE.items():
        text = (folder / f"{other}.toml").read_text()
        text = text.replace(f'name = "{other}"', f'name = "{kind}"').replace(SOURCE[other], source)
        (folder / f"{kind}.toml").write_text(text)
    return folder


def files(kind: str) -> list[str]:
    """Return what all have of a fit."""
    return [f"{kind}.toml", f"{ALIKE.get(kind, (kind,))[0]}.json", "gaps.csv" if kind == IMPUTED else "test.csv"]


def machines(folder: Path, where: Path, files: Sequence[str], address: str = "") -> list[Path]:
    """Return a folder for each site, and the coordinator's: a key, everybody's, `files`, and the site's own table.

    `address`: the coordinator's; "": a free port.
    """
    address = address or f"tcp://127.0.0.1:{free_ports(1)[0]}"
    found, keys = [where / f"machine{node}" for node in range(SITES + 1)], []
    for node, machine in enumerate(found):
        machine.mkdir()
        own = [f"site-{node}.csv", f"gaps-{node}.csv"] if node < SITES else []
        for name in (*files, *(one for one in own if (folder / one).exists())):
            shutil.copy(folder / name, machine)
        at = ["--client"] if node < SITES else ["--address", address]
        keys.append(typed(["keys", "new", "--id", str(node), *at], machine).out)
    for machine in found:
        (machine / "endpoints.toml").write_text("\n".join(keys))
    return found


def fit_on(
    found: Sequence[Path], name: str, *more: str, dies: Mapping[int, int] | None = None, without: int | None = None
) -> list[Output]:
    """Fit NAME.toml with a process on each machine, but on that of one; site k kills itself in round `dies[k]`, counted
    from 0."""
    running: list[subprocess.Popen[str]] = []
    for node, machine in enumerate(found):
        if node == without:
            continue
        words = ["fit", f"{name}.toml", "--endpoints", "endpoints.toml", "--out", "log", "--to", "fit", *more]
        words += ["--id", str(node)] if node < SITES else []
        ends = (dies or {}).get(node)
        dying = [sys.executable, str(Path(__file__).with_name("dying_site.py")), str(ends)]
        running.append(start(words, machine, COMMAND if ends is None else dying))
    return [finish(one) for one in running]


def by_hand(folder: Path, kind: str, dies: Mapping[int, int]) -> bytes:
    """Return the file of a fit without messages: in each round the sums of those who live, one after another.

    `dies`: the round, from 0, from which a site tells nothing.
    """
    fit = planned_fit(load_experiment(folder / f"{kind}.toml"))
    plan, task, refused = fit.of_sites(range(SITES))
    assert not refused
    server = plan.federated.server
    state = server.start(task.initial(0))
    for number in range(plan.experiment.rounds):
        (x,) = server.broadcast(state)
        if is_over(server, x):
            break
        alive = [node for node in range(SITES) if number < dies.get(node, plan.experiment.rounds)]
        told = [update.difference for update in task.train([Job(node, number, x) for node in alive])]
        state = server.step(state, Aggregate((total(told, plan.exact.ring_bits),), len(alive), 1.0, number))
    return encoded(fit.result(server.broadcast(state)[0]))


def total(vectors: list[Vector | None], bits: int) -> Vector:
    numbers = []
    for vector in vectors:
        words = None if vector is None else words_in(vector)
        assert words is not None
        numbers.append(integers_of(words, bits))
    return as_vector(words_of([sum(one) for one in zip(*numbers, strict=True)], bits))
