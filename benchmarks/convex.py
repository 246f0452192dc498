"""How many rounds CoCoA needs to be 1e-3 above the best, and to prove it, beside tuned SGD of the same clients.

    python benchmarks/convex.py [--short]

SGD takes a batch of each client a round and steps along the mean gradient, at the best of 32 rates and decays for each
size of batch, rate / (1 + decay round).  No floor of wall time: both talk once a round, so rounds are what counts.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import fedgossip
from fedgossip.algorithms.federated.cocoa import CERTIFICATE
from fedgossip.experiment import load_experiment
from fedgossip.learning.linear.convex import ConvexTask
from fedgossip.plans.tasks import task_of

NEAR = 1e-3
MOST = 1000
"""Rounds of SGD."""
RATES, DECAYS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0), (0.0, 0.003, 0.03, 0.3)
WHOLE = 10**6


def experiment(source: str, lam: float, clients: int, rounds: int, **options: Any) -> dict[str, Any]:
    task = {"kind": "convex", "loss": "logistic", "lam": lam, "positive": "3" if source == "digits" else ""}
    coordinator = {"clients": clients, "algorithm": "cocoa", "options": options, "secure": {"on": False}}
    return {"rounds": rounds, "data": {"source": source}, "task": task, "coordinator": coordinator}


def model(source: str, lam: float, clients: int, rounds: int, **options: Any) -> tuple[np.ndarray, int]:
    """The weights, and the rounds that the run had."""
    run = fedgossip.simulate(experiment(source, lam, clients, rounds, **options), engine="stacked")
    x = run.vectors[-1]
    assert x is not None
    return np.asarray(x[:-CERTIFICATE]), int(run.summary["rounds"])


def first_near(task: ConvexTask, best: float, **how: Any) -> int:
    """The first round whose model is near the best, counting the one that counts examples."""
    return next(r for r in range(1, MOST) if task.objective(model(rounds=r, **how)[0]) - best <= NEAR)


def rounds_of_sgd(task: Any, best: float, batch: int, rate: float, decay: float) -> int:
    drawn, w = np.random.default_rng(0), np.zeros(task.length - CERTIFICATE)
    shares = [np.asarray(share) for share in task._shares.values()]
    for r in range(MOST):
        rows = np.concatenate([share[drawn.permutation(len(share))[:batch]] for share in shares])
        slope = task.loss.slope(task._x[rows] @ w, task._y[rows])
        w = w - rate / (1 + decay * r) * (slope @ task._x[rows] / len(rows) + task.lam * w)
        if task.objective(w) - best <= NEAR:
            return r + 1
    return MOST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    sources = ("breast-cancer",) if short else ("breast-cancer", "digits")
    rates, decays, batches = (RATES, DECAYS, (8, 32, WHOLE)) if not short else ((1.0,), (0.0,), (WHOLE,))
    print("logistic, lam = 0.01, 4 clients; rounds to 1e-3 above the best\n")
    sizes = " | ".join("all" if b == WHOLE else f"{b} a client" for b in batches)
    print(f"| | CoCoA | proven by its gap | SGD: {sizes} |")
    for source in sources:
        how: dict[str, Any] = {"source": source, "lam": 0.01, "clients": 4}
        task, _ = task_of(load_experiment(experiment(rounds=1, **how)), 4)
        assert isinstance(task, ConvexTask)
        best = task.objective(model(rounds=MOST, gap=1e-6, **how)[0])
        near, (_, proven) = first_near(task, best, **how), model(rounds=MOST, gap=NEAR, **how)
        tuned = [min(rounds_of_sgd(task, best, b, lr, d) for lr in rates for d in decays) for b in batches]
        print(f"| {source} | {near} | {proven} | {' | '.join(f'{r} ({r / near:.1f} x)' for r in tuned)} |", flush=True)


if __name__ == "__main__":
    main()
