"""Fits of five sites by secure sums beside the same sums without masks and messages, in one process and in turns.

    python benchmarks/fits.py [--short] [--records 400] [--turns 5]

Processor seconds: by secure sums, as the command on one machine makes them; plain, each site's numbers of every round
added as they are.  Both end with the same file, to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedgossip import load_experiment
from fedgossip.algorithms.federated.base import Aggregate, is_over
from fedgossip.base.vectors import Vector
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.secure.encoding import as_vector, integers_of, words_in, words_of
from fedgossip.sites.plans.fits import planned_fit

SITES = 5
TIMES, YES_NO = "label=days,died&drop=ill", "label=ill&drop=days,died"
FITS = {"glm:logistic": YES_NO, "cox?every=60&until=600": TIMES, "kaplan-meier?every=60&until=600": TIMES,
        "trees:10x4": YES_NO}  # fmt: skip


def drawn(records: int) -> None:
    """Write the sites' tables, and a common one, of drawn patients."""
    for name in ("test", *(f"site-{site}" for site in range(SITES))):
        rng = np.random.default_rng(len(name) * 100 + ord(name[-1]))
        age, marker = rng.integers(30, 90, records), rng.normal(size=(records, 8))
        hazard = np.exp(0.03 * (age - 60) + 0.4 * marker[:, 0])
        days, end = rng.exponential(400 / hazard), rng.uniform(100, 700, records)
        ill = rng.random(records) < 1 / (1 + np.exp(-(age - 60) / 20 - marker[:, 1]))
        cells = np.column_stack([age, marker, np.ceil(np.minimum(days, end)), days <= end, ill])
        header = ",".join(["age", *(f"marker{k}" for k in range(8)), "days", "died", "ill"])
        kinds = ["%d", *["%.5g"] * 8, *["%d"] * 3]
        np.savetxt(f"{name}.csv", cells, kinds, delimiter=",", header=header, comments="")


def experiment(source: str, query: str) -> str:
    kind = "regression" if query == TIMES else "classification"
    return f"""
    data = {{ source = "csv:site-{{peer}}.csv?{query}", test = "csv:test.csv?{query}", partition = {{ kind = "own" }},
              scale = "federated", agreed = "{kind}.json" }}
    model = {{ source = "{source}" }}
    task = {{ kind = "{kind}" }}
    coordinator = {{ clients = {SITES} }}
    """.replace(",\n", ",")


def added(vectors: list[Vector | None], bits: int) -> Vector:
    numbers = [integers_of(words, bits) for one in vectors if one is not None and (words := words_in(one)) is not None]
    return as_vector(words_of([sum(one) for one in zip(*numbers, strict=True)], bits))


def timed(file: str) -> tuple[float, float]:
    """Return the processor seconds of one fit by secure sums, and of the plain sums."""
    fit = planned_fit(load_experiment(file))
    plan, task, _ = fit.of_sites(range(SITES))
    begun = time.process_time()
    by_masks = encoded(fit.result(simulate_plan(plan, task=task).vectors[plan.coordinator]))
    secure = time.process_time() - begun
    plan, task, _ = fit.of_sites(range(SITES))
    begun = time.process_time()
    server = plan.federated.server
    state = server.start(task.initial(0))
    for number in range(plan.experiment.rounds):
        (x,) = server.broadcast(state)
        if is_over(server, x):
            break
        told = [one.difference for one in task.train([Job(node, number, x) for node in range(SITES)])]
        state = server.step(state, Aggregate((added(told, plan.exact.ring_bits),), SITES, 1.0, number))
    plainly = encoded(fit.result(server.broadcast(state)[0]))
    plain = time.process_time() - begun
    assert by_masks == plainly, "masks change no byte"
    return secure, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    records, turns = (200, 1) if given.short else (given.records, given.turns)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        drawn(records)
        print(
            f"{SITES} sites of {records} records, medians of {turns} turns\n| fit | secure sums, s | plain, s | ratio |"
        )
        for place, (source, query) in enumerate(FITS.items()):
            file = Path(f"fit{place}.toml")
            file.write_text(experiment(source, query))
            if not Path(f"{'regression' if query == TIMES else 'classification'}.json").exists():
                agree = [sys.executable, "-m", "fedgossip", "data", "agree", str(file)]
                subprocess.run(agree, check=True, capture_output=True)
            timed(str(file))  # the first compiles
            found = [timed(str(file)) for _ in range(turns)]
            secure, plain = (statistics.median(one) for one in zip(*found, strict=True))
            ratio = statistics.median(one / other for one, other in found)
            print(f"| {source} | {secure:.2f} | {plain:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
