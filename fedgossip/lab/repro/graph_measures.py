"""Numbers of graphs, sequences and processes, and of graphs learned from labels: the computations of results/*.toml."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgossip.drivers.simulate import simulate
from fedgossip.experiment import load_experiment
from fedgossip.lab.advise.rates import measured_rate, neighbours_of, rate_at
from fedgossip.lab.sweeps.table import paired_difference
from fedgossip.plans.gossip.own_graphs import build_mixing
from fedgossip.topology import Mixing, Topology, build, forecast_of, resolve, resolve_schedule, spectrum
from fedgossip.topology.graphs import families
from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.spectra.heterogeneity import expected, label_heterogeneity
from fedgossip.topology.spectra.sequences import product_norm

DRAWS = 400
"""Number of drawn rounds that measure an expectation."""


def slem(graph: str, n: int | None = None, weights: str = "metropolis") -> float:
    """Return the second largest eigenvalue of the weights, by size."""
    return _replace_none(spectrum(build(resolve(graph, n), weights)).slem)


def gap(graph: str, n: int | None = None, weights: str = "metropolis") -> float:
    """Return 1 - slem."""
    return 1.0 - slem(graph, n, weights)


def smallest(graph: str, n: int | None = None, weights: str = "metropolis") -> float:
    """Return the smallest eigenvalue of the weights."""
    return _replace_none(spectrum(build(resolve(graph, n), weights)).lambda_n)


def norm_after_a_period(graph: str, n: int) -> float:
    """Return ||W_p ... W_1 - J||, the share of the worst disagreement left after a period of a sequence."""
    return _replace_none(product_norm(resolve_schedule(graph, n)))


def norm_of_power(graph: str, n: int, rounds: int) -> float:
    """Return ||W^t - J||, the share of the worst disagreement left after `rounds` of one graph."""
    power = np.linalg.matrix_power(resolve_schedule(graph, n).mixing(0).matrix(), rounds)
    return float(np.linalg.norm(power - 1.0 / n, 2))


def norm_of_round(graph: str, n: int) -> float:
    """Return ||W - J|| of a graph with its own weights."""
    return _replace_none(spectrum(resolve_schedule(graph, n).mixing(0)).slem)


def square_left(graph: str, n: int | None = None) -> float:
    """Return ||E[W'W] - J||, the share of the worst expected sum of squares left after a drawn round."""
    found = forecast_of(resolve_schedule(graph, n))
    return _replace_none(found.rate) ** 2 if found.expected_contraction is None else found.expected_contraction


def rounds_to_the_mean(graph: str, n: int | None = None) -> float:
    """Return the number of rounds until every peer has exactly the mean; infinite for never."""
    found = forecast_of(resolve_schedule(graph, n)).exact_after
    return math.inf if found is None else found


def effective_neighbours(graph: str, n: int, gamma: float) -> float:
    """Return n_W(gamma)."""
    return _replace_none(forecast_of(resolve_schedule(graph, n), gamma).n_w)


def order_by_gap(graphs: Sequence[str], n: int) -> float:
    """Return 1 if the spectral gap falls along the graphs, else 0."""
    return float(_falls([gap(graph, n) for graph in graphs]))


def order_by_neighbours(graphs: Sequence[str], n: int, gamma: float) -> float:
    """Return 1 if n_W rises along the graphs, else 0."""
    return float(_falls([-effective_neighbours(graph, n, gamma) for graph in graphs]))


def drawn_contraction(graph: str, n: int) -> float:
    """Return the share of sum ||x_i - mean||² left after a drawn round, the mean over rounds and directions."""
    schedule = resolve_schedule(graph, n)
    centred = np.eye(n) - 1.0 / n
    left = []
    for round in range(DRAWS):
        product = schedule.mixing(round).sparse() @ centred
        left.append(float(np.sum((product - product.mean(axis=0)) ** 2)) / (n - 1))
    return float(np.mean(left))


def pairwise_rate(graph: str, n: int) -> float:
    """Return the second eigenvalue of the mean of all pairwise averagings, for a uniformly drawn pair of neighbours."""
    edges = resolve(graph, n).edges
    mean = np.eye(n)
    for u, v in edges:
        mean[[u, v], [u, v]] -= 0.5 / len(edges)
        mean[[u, v], [v, u]] += 0.5 / len(edges)
    return float(np.sort(np.linalg.eigvalsh(mean))[-2])


def push_sum_error(arcs: Sequence[tuple[int, int]], n: int, rounds: int) -> float:
    """Return max |x_i / w_i - mean| after `rounds` from x_i = i + 1, with equal shares sent."""
    mixing = _pushing(arcs, n)
    x, weight = np.arange(1.0, n + 1), np.ones(n)
    for _ in range(rounds):
        x, weight = mixing.sparse() @ x, mixing.sparse() @ weight
    return float(np.abs(x / weight - (n + 1) / 2).max())


def push_without_weights(arcs: Sequence[tuple[int, int]], n: int, node: int, rounds: int) -> float:
    """Return the limit of a node's value without division by its weight."""
    mixing = _pushing(arcs, n)
    x = np.arange(1.0, n + 1)
    for _ in range(rounds):
        x = mixing.sparse() @ x
    return float(x[node])


def second_of_push(arcs: Sequence[tuple[int, int]], n: int) -> float:
    """Return the size of the second eigenvalue of push-sum's shares."""
    return float(np.sort(np.abs(np.linalg.eigvals(_pushing(arcs, n).matrix())))[-2])


def quadratic_rate(graph: str, n: int, eta: float, zeta: float) -> float:
    """Return r of E||x||² ~ (1 - r)^t on isotropic random quadratics, from the graph's effective neighbours."""
    found = neighbours_of(resolve_schedule(graph, n))
    return math.nan if found is None else rate_at(found, eta, zeta)


def measured_quadratic_rate(graph: str, n: int, eta: float, dim: int, rounds: int, repeats: int) -> float:
    """Return r as measured: x <- W (x - eta h h'x) with h ~ N(0, I) drawn at each node, so zeta = dim + 2."""
    return measured_rate(resolve_schedule(graph, n), eta, dim, rounds, repeats)


def _pushing(arcs: Sequence[tuple[int, int]], n: int) -> Mixing:
    return build(Topology.from_edges(n, arcs, directed=True), "push")


def _falls(values: Sequence[float]) -> bool:
    return all(a > b for a, b in itertools.pairwise(values))


def _replace_none(value: float | None) -> float:
    return math.nan if value is None else value


def learned_heterogeneity(graph: str, n: int, classes: int) -> float:
    """Return H of a graph learned for n peers with one class each."""
    return label_heterogeneity(_build_graph(graph, n, classes), _one_class_each(n, classes))


def heterogeneity_by_chance(graph: str, n: int, classes: int) -> float:
    """Return the mean of H over all placements of n peers with one class each."""
    return expected(build(resolve(graph, n)), _one_class_each(n, classes))


def slem_of_learned(graph: str, n: int, classes: int) -> float:
    """Return the second largest eigenvalue of the weights, by size."""
    found = spectrum(_build_graph(graph, n, classes)).slem
    return float("nan") if found is None else found


def links_of_learned(graph: str, n: int, classes: int) -> float:
    """Return the number of its links."""
    return _build_graph(graph, n, classes).topology.edge_count


def share_of_all_links(graph: str, n: int, classes: int) -> float:
    """Return its links as a share of those of a complete graph."""
    return links_of_learned(graph, n, classes) / (n * (n - 1) / 2)


def _one_class_each(n: int, classes: int) -> FloatArray:
    return np.eye(classes)[np.arange(n) % classes]


def _build_graph(graph: str, n: int, classes: int) -> Mixing:
    word, _, argument = graph.partition(":")
    shares = _one_class_each(n, classes)
    if word == "stl-fw":
        return families.stl_fw(shares, int(argument))
    size, _, between = argument.partition(",")
    return build(families.d_cliques(shares, int(size), between, seed=1))


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
    mixing = build_mixing(graph, experiment, 40, None, seed)
    return float(simulate(ONE_CLASS_EACH, engine="stacked", seed=seed, mixing=mixing).score["mean_peer"])
