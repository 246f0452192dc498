"""Runs for the forecasts of times and losses: six settings, three kinds of speeds, three of losses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

DIGITS = {
    "seed": 3,
    "data": {"source": "digits", "partition": {"kind": "iid"}},
    "train": {"lr": 0.1, "batch_size": 8, "local_steps": 1, "device": "cpu"},
}
GOSSIP = {"topology": {"graph": "ring", "n": 6}}
BUFFER = {"algorithm": "fedbuff", "goal": 2, "at_once": 6, "most_stale": 1000, "clients": 6, "secure": {"on": False}}
BATCHES = DIGITS | {"train": {"lr": 0.1, "batch_size": 8, "device": "cpu"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "gossip": DIGITS | GOSSIP | {"rounds": 12, "algorithm": {"mode": "async"}},
    "in step": DIGITS | GOSSIP | {"rounds": 12},
    "buffer": DIGITS | {"rounds": 20, "coordinator": BUFFER},
    "deadline": DIGITS | {"rounds": 8, "coordinator": {"clients": 6, "deadline": 0.3, "secure": {"on": False}}},
    "stale servers": BATCHES | {"rounds": 12, "parallel": {
        "method": "parameter-server", "workers": 5, "server": {"staleness": 2}}},
    "free servers": BATCHES | {"rounds": 12, "parallel": {
        "method": "parameter-server", "workers": 5, "server": {"staleness": "async"}}},
}  # fmt: skip
SPEEDS: dict[str, dict[str, Any]] = {
    "equal": {"training_jitter": 0.3},
    "spread": {"speed_spread": 0.5},
    "a slow one": {"training_jitter": 0.1, "classes": [{"nodes": "0", "slower": 4.0}]},
}
LOSSES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "two in a hundred": [{"kind": "drop", "probability": 0.02}],
    "late": [{"kind": "delay", "probability": 0.2, "seconds": 0.05}],
}


def all_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the experiment of the 54 runs."""
    for setting, speed, loss in itertools.product(SETTINGS, SPEEDS, LOSSES):
        yield f"{setting}, {speed}, {loss}", SETTINGS[setting] | {"simulation": SPEEDS[speed], "faults": LOSSES[loss]}
