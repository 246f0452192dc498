"""Robustness of rules against attackers, in whole runs: computations behind results/*.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgossip.drivers.simulate import simulate
from fedgossip.topology import Mixing, Topology, build

GOOD = 5
TRAINING: Mapping[str, Any] = {
    "rounds": 300,
    "data": {"partition": {"kind": "iid"}},
    "model": {"source": "softmax"},
    "train": {"lr": 0.01, "momentum": 0.9, "local_steps": 1, "batch_size": 32, "device": "cpu"},
    "eval": {"every": 300},
    "topology": {"graph": "ring", "n": 3 * GOOD},
}
"""Step, momentum and batch as published; the digits."""


def score_on_malicious_ring(
    attack: str, options: Mapping[str, Any], rule: str, rule_options: Mapping[str, Any], honest_majority: bool,
    seeds: int = 3, which: str = "mean_peer",
) -> float:  # fmt: skip
    """Return the mean score of the honest, or another (`which`), of five in a ring, each with two malicious neighbours;
    one has three without an honest majority.
    """
    mixing = _malicious_ring(honest_majority)
    content = dict(TRAINING) | {
        "algorithm": {"combine": rule, "combine_options": dict(rule_options)},
        "adversary": {"peers": list(range(GOOD, mixing.n)), "attack": attack, "options": dict(options),
                      "knowledge": "all"},
        "topology": {"graph": "ring", "n": mixing.n},
    }  # fmt: skip
    scores = [simulate(content, engine="stacked", seed=seed, mixing=mixing).score for seed in range(1, seeds + 1)]
    return float(np.mean([float(score[which]) for score in scores]))


def _malicious_ring(honest_majority: bool) -> Mixing:
    """Return the graph with Metropolis weights, moved towards the self-weight as in the published program."""
    honest = range(GOOD)
    edges = [edge for i in honest for edge in ((i, (i + 1) % GOOD), (i, i + GOOD), (i, i + 2 * GOOD))]
    n = 3 * GOOD
    if not honest_majority:
        edges, n = [*edges, (0, n)], n + 1
    W = build(Topology.from_edges(n, edges)).matrix()
    more = 1.0 - float(np.diag(W)[:GOOD].min())
    return Mixing.from_matrix((W + more * np.eye(n)) / (1.0 + more))
