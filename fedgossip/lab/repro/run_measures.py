"""Numbers of whole runs on stacked arrays, with the same bits as the simulator and real peers: computations behind
results/*.toml.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgossip.core.records import NetworkRow
from fedgossip.drivers.simulate import simulate
from fedgossip.lab.sweeps.paired import paired_difference
from fedgossip.runs.run_directory import Run

Content = Mapping[str, Any]


def stationary_disagreement(
    graph: str, n: int, placement: str, algorithm: str = "dsgd", weights: str = "", options: Content | None = None,
    rounds: int = 600,
) -> float:  # fmt: skip
    """Return the stationary mean ||x_i - mean||² of f_i = ½|x - b_i|², eta 0.1, no noise, float64."""
    run = _quadratic(graph, n, placement, algorithm, weights, options, rounds)
    return _apart(run) ** 2


def noisy_disagreement(
    graph: str, n: int, algorithm: str = "dsgd", weights: str = "", options: Content | None = None,
    dim: int = 4000, rounds: int = 150,
) -> float:  # fmt: skip
    """Return the part of mean (x_i - mean)² per coordinate due to noise of deviation 1 per coordinate.

    The same b, so that nothing else remains: the difference between a run with noise and one without.
    """
    more = {"task.sigma": 1.0, "task.dim": dim}
    with_noise = _quadratic(graph, n, "alternating", algorithm, weights, options, rounds, **more)
    without = _quadratic(graph, n, "alternating", algorithm, weights, options, rounds)
    found = _apart(with_noise) ** 2 / dim
    return found - _apart(without) ** 2


def _apart(run: Run) -> float:
    apart = run.summary["consensus_distance"]
    assert apart is not None  # a finished run has models
    return apart


def _quadratic(
    graph: str, n: int, placement: str, algorithm: str, weights: str, options: Content | None, rounds: int, **more: Any
) -> Run:  # fmt: skip
    content: dict[str, Any] = {
        "rounds": rounds,
        "eval": {"every": rounds},
        "task": {"kind": "quadratic", "placement": placement, "eta": 0.1, "dtype": "float64"},
        "topology": {"graph": graph, "n": n, **({"weights": weights} if weights else {})},
        "algorithm": {"name": algorithm, "options": dict(options or {})},
    }
    return simulate(content, engine="stacked", overrides=[f"{key}={value}" for key, value in more.items()])


def disagreement_after(graph: str, n: int, algorithm: str, rounds: int, weights: str = "") -> float:
    """Return the share of random vectors' disagreement left after so many rounds of averaging."""
    rows = _averaging(graph, n, algorithm, rounds, weights)
    return _distance(rows[-1]) / _distance(rows[0])


def rate_of_averaging(
    graph: str, n: int, algorithm: str, first: int, last: int, weights: str = "", options: Content | None = None
) -> float:
    """Return the share of random vectors' disagreement left by a round, the mean over rounds `first` to `last`."""
    rows = _averaging(graph, n, algorithm, last, weights, options)
    left: float = (_distance(rows[last]) / _distance(rows[first])) ** (1 / (last - first))
    return left


def _averaging(
    graph: str, n: int, algorithm: str, rounds: int, weights: str, options: Content | None = None
) -> Sequence[NetworkRow]:
    content: dict[str, Any] = {
        "rounds": rounds,
        "task": {"kind": "averaging", "dim": 64, "dtype": "float64"},
        "topology": {"graph": graph, "n": n, **({"weights": weights} if weights else {})},
        "algorithm": {"name": algorithm, "options": dict(options or {})},
    }
    return simulate(content, engine="stacked").network()


def _distance(row: NetworkRow) -> float:
    return float("nan") if row.consensus_distance is None else row.consensus_distance


LEARNING: Content = {
    "rounds": 60,
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.1}},
    "model": {"source": "softmax"},
    "train": {"lr": 0.1, "local_steps": 5, "device": "cpu"},
    "eval": {"every": 60},
    "topology": {"graph": "ring", "n": 16},
}
"""The task of claims about training: the digits, divided very unequally."""


SOME_EXAMPLES = "data.partition={kind='dirichlet', alpha=0.1, min_size=1}"
"""Equally unequal, for more peers."""

MILDER = "data.partition={kind='dirichlet', alpha=0.3}"
"""For more peers, each with some examples."""


def paired_gain(
    ours: Sequence[str], theirs: Sequence[str], seeds: int = 5, end: str = "low", which: str = "mean_peer"
) -> float:
    """Return an end of Student's 95 % interval of the score of one experiment less that of another, same seeds.

    `ours`, `theirs`: overrides of LEARNING.  `end`: low or high.
    """
    scores = [
        {seed: float(_score(overrides, seed)[which]) for seed in range(1, seeds + 1)} for overrides in (ours, theirs)
    ]
    found = paired_difference(*scores)
    assert found is not None and found.student is not None
    return found.student[0 if end == "low" else 1]


def gain_over_rounds(ours: str, theirs: str, n: int = 25, rounds: int = 90, seeds: int = 5, end: str = "low") -> float:
    """Return an end of Student's 95 % interval of one graph's score less another's: the mean peer's score, averaged
    over the second half of the rounds, so that the phase of a graph's period does not matter.
    """
    paired = range(1, seeds + 1)
    scores = [{seed: _mean_of_rounds(graph, n, rounds, seed) for seed in paired} for graph in (ours, theirs)]
    found = paired_difference(*scores)
    assert found is not None and found.student is not None
    return found.student[0 if end == "low" else 1]


def _mean_of_rounds(graph: str, n: int, rounds: int, seed: int) -> float:
    overrides = [f"rounds={rounds}", "eval.every=1", f"topology.graph={graph}", f"topology.n={n}", SOME_EXAMPLES]
    rows = simulate(LEARNING, engine="stacked", seed=seed, overrides=overrides).network()
    return float(np.mean([row.score_mean_peer for row in rows[-(rounds // 2) :]]))


def _score(overrides: Sequence[str], seed: int) -> Mapping[str, Any]:
    return simulate(LEARNING, engine="stacked", seed=seed, overrides=overrides).score


def spread_of_order(graphs: Sequence[str], n: int, seeds: int = 3) -> float:
    """Return 1 where the mean peers' scores rise along the graphs, means over seeds, else 0."""
    means = [
        np.mean([float(_score([f"topology.graph={graph}", f"topology.n={n}", MILDER], seed)["mean_peer"])
                 for seed in range(1, seeds + 1)])
        for graph in graphs
    ]  # fmt: skip
    return float(all(a < b for a, b in itertools.pairwise(means)))
