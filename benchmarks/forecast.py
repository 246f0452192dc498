"""CPU seconds of a forecast beside those of the runs that it is of: one shadow for all graphs, and every graph run.

    python benchmarks/forecast.py [--rounds 60] [--json]

Digits, 16 peers, Dirichlet 0.3, five steps a round, on stacked arrays, one thread; scores at the end alone.
"""

from __future__ import annotations

import argparse
import json
import time

from crew import machine

import fedgossip
from fedgossip.core.forecasts import kept

GRAPHS = (
    *("ring", "torus:4x4", "hypercube", "star", "path", "tree", "two-cliques", "regular:3", "one-peer-exponential"),
    *("base:1", "el-oracle:4", "random-matching", "directed-exponential", "complete"),
)
MODELS = ("softmax", "mlp:64-32-10", "mlp:64-256-128-10")


def measured(model: str, rounds: int) -> dict[str, float | str]:
    """Return CPU seconds of one run, of all runs, of the forecasts of one graph and of all, and what was kept."""
    experiment = {
        "rounds": rounds,
        "topology": {"graph": "ring", "n": 16},
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}},
        "model": {"source": model},
        "train": {"lr": 0.1, "batch_size": 16, "local_steps": 5, "device": "cpu"},
        "eval": {"every": rounds},
    }
    fedgossip.simulate(experiment, engine="stacked", overrides=["rounds=2"])  # what is loaded once
    at = time.process_time()
    fedgossip.forecast_run(experiment, "shadow")
    one, at = time.process_time() - at, time.process_time()
    forecasts = fedgossip.forecast_run(experiment, "shadow", graphs=GRAPHS)
    every, at = time.process_time() - at, time.process_time()
    nearer = fedgossip.forecast_run(experiment, "followed", graphs=GRAPHS)
    followed, at = time.process_time() - at, time.process_time()
    runs = [fedgossip.simulate(experiment, engine="stacked", overrides=[f"topology.graph={g}"]) for g in GRAPHS]
    ran = time.process_time() - at
    shares = [
        min(kept(forecast, run.network()) or 0.0 for forecast, run in zip(of_level, runs, strict=True))
        for of_level in (forecasts, nearer)
    ]
    return {
        "model": model, "run": ran / len(GRAPHS), "one": one, "all": every, "followed": followed, "runs": ran,
        "kept": shares[0], "followed_kept": shares[1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [measured(model, asked.rounds) for model in MODELS]
    if asked.json:
        print(json.dumps({"machine": machine(), "rows": rows}))
        return
    print(machine())
    print("of 14: a shadow, and followed; both by the 14 runs; the least share of rounds that kept to them")
    print("model               a run   forecast of 1   of 14   followed  14 runs     ratios      least kept")
    for row in rows:
        ratio, of_followed = (float(row[level]) / float(row["runs"]) for level in ("all", "followed"))
        print(
            f"{row['model']:<18}{row['run']:6.2f} s{row['one']:12.2f} s{row['all']:8.2f} s{row['followed']:8.2f} s"
            f"{row['runs']:7.2f} s{ratio:7.2f}{of_followed:6.2f}"
            f"{100 * float(row['kept']):9.1f}{100 * float(row['followed_kept']):7.1f} %"
        )


if __name__ == "__main__":
    main()
