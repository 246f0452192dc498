"""Numbers of graphs learned from the peers' labels, and of training on them: computations behind results/*.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgossip.drivers.simulate import simulate
from fedgossip.experiment import load_experiment
from fedgossip.lab.sweeps.paired import paired_difference
from fedgossip.plans.gossip.made_graphs import made_for
from fedgossip.topology import Mixing, build, resolve, spectrum
from fedgossip.topology.graphs import learned
from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.spectra.heterogeneity import expected, label_heterogeneity


def learned_heterogeneity(graph: str, n: int, classes: int) -> float:
    """Return H of a graph learned for n peers with one class each."""
    return label_heterogeneity(_made(graph, n, classes), _one_class_each(n, classes))


def heterogeneity_by_chance(graph: str, n: int, classes: int) -> float:
    """Return the mean of H over all placements of n peers with one class each."""
    return expected(build(resolve(graph, n)), _one_class_each(n, classes))


def slem_of_learned(graph: str, n: int, classes: int) -> float:
    """Return the second largest eigenvalue of the weights, by size."""
    found = spectrum(_made(graph, n, classes)).slem
    return float("nan") if found is None else found


def links_of_learned(graph: str, n: int, classes: int) -> float:
    """Return the number of its links."""
    return _made(graph, n, classes).topology.edge_count


def share_of_all_links(graph: str, n: int, classes: int) -> float:
    """Return its links as a share of those of a complete graph."""
    return links_of_learned(graph, n, classes) / (n * (n - 1) / 2)


def _one_class_each(n: int, classes: int) -> FloatArray:
    return np.eye(classes)[np.arange(n) % classes]


def _made(graph: str, n: int, classes: int) -> Mixing:
    word, _, argument = graph.partition(":")
    shares = _one_class_each(n, classes)
    if word == "stl-fw":
        return learned.stl_fw(shares, int(argument))
    size, _, between = argument.partition(",")
    return build(learned.d_cliques(shares, int(size), between, seed=1))


ONE_CLASS_EACH: Mapping[str, Any] = {
    "rounds": 100,
    "data": {"partition": {"kind": "pathological", "classes_per_peer": 1}},
    "model": {"source": "softmax"},
    "train": {"lr": 0.1, "local_steps": 1, "batch_size": 8, "device": "cpu"},
    "eval": {"every": 100},
    "topology": {"graph": "ring", "n": 40},
}
"""The digits, 40 peers with one digit each; the graph is an argument."""


def gain_of_learned(ours: str, theirs: str, seeds: int = 5, end: str = "low") -> float:
    """Return an end of Student's 95 % interval of the mean peer's score on one graph less that on another."""
    scores = [{seed: _score(graph, seed) for seed in range(1, seeds + 1)} for graph in (ours, theirs)]
    found = paired_difference(*scores)
    assert found is not None and found.student is not None
    return found.student[0 if end == "low" else 1]


def _score(graph: str, seed: int) -> float:
    experiment = load_experiment({**ONE_CLASS_EACH, "seed": seed})
    mixing = made_for(graph, experiment, 40, None, seed)
    return float(simulate(ONE_CLASS_EACH, engine="stacked", seed=seed, mixing=mixing).score["mean_peer"])
