"""What is learned where servers, or workers, are killed every five seconds for a minute: as much as where none is."""

from __future__ import annotations

from typing import Any

import pytest

from fedgossip import simulate

DIGITS = {"rounds": 100, "model": {"source": "mlp:64-32-10"}, "data": {"source": "digits"}, "eval": {"every": 100}}
TIMES = {"training": 0.6, "training_jitter": 0.5}
SOON = {"workers": 4, "deadline": 1.0, "least_deadline": 0.5}
POINT = 0.01


def copied(staleness: Any) -> dict[str, Any]:
    server = {"servers": 3, "replication": 2, "staleness": staleness}
    return {**SOON, "method": "parameter-server", "server": server}


WAYS: dict[str, tuple[dict[str, Any], float, list[int]]] = {
    "a worker of a ring": ({**SOON, "method": "ring"}, 0.2, [0, 1, 2, 3]),
    "a server": (copied(0), 0.2, [4, 5, 6]),
    "a server of stale workers": (copied(2), 0.05, [4, 5, 6]),
    "a server of asynchronous workers": (copied("async"), 0.05, [4, 5, 6]),
}
"""How they work together, at which rate, and who is killed."""


def accuracy(way: str, seed: int, *, killed: bool) -> float:
    parallel, rate, nodes = WAYS[way]
    kills = {"kind": "crash", "peers": nodes, "every": 5.0, "start": 5.0, "stop": 65.0, "after": 1.0}
    train = {"lr": rate, "batch_size": 32, "device": "cpu"}
    faults = [kills] if killed else []
    more = {"parallel": parallel, "train": train, "simulation": TIMES, "faults": faults, "seed": seed}
    run = simulate({**DIGITS, **more})
    assert run.summary["status"] == "finished" and run.summary["events"].get("crashed", 0) == 12 * killed
    return float(run.summary["score"]["averaged"])


@pytest.mark.parametrize(
    ("way", "seeds"),
    [
        ("a worker of a ring", 1),
        *(pytest.param(way, 5, marks=pytest.mark.long) for way in WAYS),
    ],
)
def test_twelve_deaths_in_a_minute_cost_no_point_of_accuracy(way: str, seeds: int) -> None:
    """On average of the seeds: a point is four of the 359 digits that are measured."""
    whole, killed = (sum(accuracy(way, seed, killed=one) for seed in range(seeds)) / seeds for one in (False, True))
    assert whole > 0.85 and killed >= whole - POINT
