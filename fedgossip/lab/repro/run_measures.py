"""Numbers of whole runs for results/*.toml: on stacked arrays, against attackers, of paired seeds (`sweeps`), and by
the cost model.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedgossip.algorithms.collectives.names import COLLECTIVES, EqualLinks, all_reduce
from fedgossip.algorithms.collectives.table import Way
from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.core.records import NetworkRow
from fedgossip.drivers.simulate import simulate
from fedgossip.lab.costs.base import neighbours
from fedgossip.lab.costs.methods import gossip_steps, seconds_of_rounds
from fedgossip.lab.sweeps.sweep import sweep
from fedgossip.lab.sweeps.table import SweepTable, paired_difference
from fedgossip.runs.run_directory import Run
from fedgossip.topology import Mixing, Topology, build, resolve_schedule

Content = Mapping[str, Any]


def stationary_disagreement(
    graph: str, n: int, placement: str, algorithm: str = "dsgd", weights: str = "", options: Content | None = None,
    rounds: int = 600,
) -> float:  # fmt: skip
    """Return the stationary mean ||x_i - mean||² of f_i = ½|x - b_i|², eta 0.1, no noise, float64."""
    run = _quadratic(graph, n, placement, algorithm, weights, options, rounds)
    return _get_distance(run) ** 2


def noisy_disagreement(
    graph: str, n: int, algorithm: str = "dsgd", weights: str = "", options: Content | None = None,
    dim: int = 4000, rounds: int = 150,
) -> float:  # fmt: skip
    """Return the part of mean (x_i - mean)² per coordinate due to unit noise: a run with it less one without."""
    more = {"task.sigma": 1.0, "task.dim": dim}
    with_noise = _quadratic(graph, n, "alternating", algorithm, weights, options, rounds, **more)
    without = _quadratic(graph, n, "alternating", algorithm, weights, options, rounds)
    found = _get_distance(with_noise) ** 2 / dim
    return found - _get_distance(without) ** 2


def _get_distance(run: Run) -> float:
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
    """Return the share of random vectors' disagreement left after `rounds` of averaging."""
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
    """Return an `end` (low or high) of Student's 95 % interval of one experiment's score less another's, same seeds;
    both override LEARNING.
    """
    scores = [
        {seed: float(_score(overrides, seed)[which]) for seed in range(1, seeds + 1)} for overrides in (ours, theirs)
    ]
    found = paired_difference(*scores)
    assert found is not None and found.student is not None
    return found.student[0 if end == "low" else 1]


def gain_over_rounds(ours: str, theirs: str, n: int = 25, rounds: int = 90, seeds: int = 5, end: str = "low") -> float:
    """Return an end of Student's 95 % interval of one graph's mean-peer score less another's, averaged over the second
    half of the rounds.
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
    """Return 1 if the mean peers' scores rise along the graphs, means over seeds, else 0."""
    means = [
        np.mean([float(_score([f"topology.graph={graph}", f"topology.n={n}", MILDER], seed)["mean_peer"])
                 for seed in range(1, seeds + 1)])
        for graph in graphs
    ]  # fmt: skip
    return float(all(a < b for a, b in itertools.pairwise(means)))


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
    """Return the mean score of the honest peers, or another score (`which`), of five in a ring, each with two malicious
    neighbours.
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
    honest = range(GOOD)
    edges = [edge for i in honest for edge in ((i, (i + 1) % GOOD), (i, i + GOOD), (i, i + 2 * GOOD))]
    n = 3 * GOOD
    if not honest_majority:
        edges, n = [*edges, (0, n)], n + 1
    W = build(Topology.from_edges(n, edges)).matrix()
    more = 1.0 - float(np.diag(W)[:GOOD].min())
    return Mixing.from_matrix((W + more * np.eye(n)) / (1.0 + more))


FOLDER = Path(__file__).parent / "sweeps"


def gain_in_sweep(file: str, ours: str, theirs: str, which: str = "mean_peer", end: str = "low") -> float:
    """Return an end of Student's 95 % interval of the score of one combination of a sweep less that of another.

    `ours`, `theirs`: words that all occur in exactly one combination, as "algorithm.name=d2".  `end`: low, mean or
    high.  Raises ConfigError with the first failed cell's error.
    """
    table = _table(file)
    found = table.difference(_find_combination(table, ours), _find_combination(table, theirs), which)
    if found is None or found.student is None:
        wrong = next((row["error"] for row in table.rows if row["error"]), "fewer than two seeds")
        raise ConfigError(f"the sweep {file} compares nothing: {wrong}", f"fedgossip sweep {FOLDER / file}.toml")
    return {"low": found.student[0], "mean": found.mean, "high": found.student[1]}[end]


def score_in_sweep(file: str, ours: str, which: str = "mean_peer") -> float:
    """Return the mean score of a combination over the seeds.  See `gain_in_sweep`, also for ConfigError."""
    table = _table(file)
    found = table.scores(_find_combination(table, ours), which)
    if not found:
        wrong = next((row["error"] for row in table.rows if row["error"]), "it has no score")
        raise ConfigError(f"the sweep {file}: {wrong}", f"fedgossip sweep {FOLDER / file}.toml")
    return fmean(found.values())


def _find_combination(table: SweepTable, words: str) -> str:
    (found,) = (name for name in table.combinations if set(words.split()) <= set(name.split()))
    return found


@cache
def _table(file: str) -> SweepTable:
    with tempfile.TemporaryDirectory() as folder:
        return sweep(FOLDER / f"{file}.toml", folder)


def waiting_for_neighbours(graph: str, n: int, rounds: int = 600) -> float:
    """Return the mean time of a round with computing times Exp(1) and each peer waiting only for its neighbours."""
    schedule = resolve_schedule(graph, n)
    times = seeds.stream(0, "waiting", n).exponential(1.0, (rounds, n))
    return seconds_of_rounds(gossip_steps(schedule, 0.0), n, EqualLinks(0.0), times)


def harmonic(n: int) -> float:
    """Return 1 + 1/2 + ... + 1/n, the expected maximum of n Exp(1) times."""
    return math.fsum(1 / k for k in range(1, n + 1))


DEVICES: dict[str, Any] = {
    "data": {"source": "digits"},
    "model": {"source": "softmax"},
    "train": {"local_steps": 1, "device": "cpu"},
    "coordinator": {"clients": 16, "secure": {"on": False}, "deadline": 1000.0},
    "simulation": {
        "training": 160.0,
        "latency": 2.5,
        "classes": [{"nodes": "6-10", "slower": 1.625}, {"nodes": "11-15", "slower": 2.875}],
    },
}
"""Sixteen devices of 60 s of training and 100, 200 or 400 s of delay, 2.5 s from and to their coordinator."""


def minutes_of_devices(rounds: int, buffered: int = 0) -> float:
    """Return the virtual minutes of synchronous rounds of all devices; with `buffered`, of versions by FedBuff.

    `buffered`: the number of updates of a version.
    """
    coordinator: dict[str, Any] = dict(DEVICES["coordinator"])
    if buffered:
        coordinator |= {"algorithm": "fedbuff", "goal": buffered, "at_once": 16, "most_stale": 1000}
    content = {**DEVICES, "rounds": rounds, "eval": {"every": rounds}, "coordinator": coordinator}
    seconds = simulate(content, seed=1).summary["seconds"]
    return (seconds or math.nan) / 60


def renewal_minutes(updates: int) -> float:
    """Return the minutes until these devices, each working without a pause, have sent `updates` updates."""
    times = [165.0] * 6 + [265.0] * 5 + [465.0] * 5
    ends = sorted(k * one for one in times for k in range(1, updates + 1))
    return ends[updates - 1] / 60


def bytes_of_busiest(name: str, workers: int) -> float:
    """Return the vectors sent by the busiest worker of an all-reduce."""
    length = 64 * workers
    table = COLLECTIVES[name].table(workers)
    sent = [
        sum(part.stop - part.start for move, part in table.of(rank, length) if move.way is Way.SEND)
        for rank in range(workers)
    ]
    return float(max(sent)) / length


def all_reduce_seconds(name: str, workers: int, size: float, latency: float, rate: float) -> float:
    """Return the seconds of an all-reduce by its closed form."""
    return all_reduce(name, workers, size, EqualLinks(latency, rate, rate))


def gossip_over_ring(workers: int, size: float, latency: float, rate: float, degree: float = 2) -> float:
    """Return the time of a ring all-reduce relative to that of an exchange with neighbours."""
    links = EqualLinks(latency, rate, rate)
    ring: float = all_reduce("ring", workers, size, links)
    return ring / neighbours(degree, size, links)
