"""Weights: rows and columns sum to one, so that the mean stays; a matrix that would move it is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base.errors import ConfigError
from fedgossip.topology import Mixing, Topology, build, forecast, push_weights, resolve, rule_names, spectrum
from fedgossip.topology.graphs import families as f

PAW = Topology.from_edges(4, [(0, 1), (0, 2), (1, 2), (2, 3)], "paw")


@st.composite
def connected_graphs(draw):
    """A random spanning tree and some more edges."""
    n = draw(st.integers(2, 14))
    tree = [(draw(st.integers(0, child - 1)), child) for child in range(1, n)]
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] != e[1])
    return Topology.from_edges(n, [*tree, *draw(st.lists(pair, max_size=20))])


RULES = st.sampled_from(["metropolis", "max-degree", "lazy", "best-constant"])


@given(connected_graphs(), RULES)
def test_rows_and_columns_sum_to_one(topology, rule):
    W = build(topology, rule).matrix()
    assert np.allclose(W.sum(axis=0), 1, atol=1e-12)
    assert np.allclose(W.sum(axis=1), 1, atol=1e-12)


@given(connected_graphs(), RULES)
def test_every_rule_is_symmetric_on_an_undirected_graph(topology, rule):
    mixing = build(topology, rule)
    assert mixing.symmetric
    assert np.array_equal(mixing.matrix(), mixing.matrix().T)


@given(connected_graphs(), RULES)
def test_only_neighbours_are_weighed(topology, rule):
    mixing = build(topology, rule)
    for node in range(topology.n):
        assert tuple(mixing.row(node)) == tuple(sorted((*topology.neighbours(node), node)))
        assert mixing.targets(node) == topology.neighbours(node)


def test_sources_are_counted_as_in_the_rows():
    without_itself = np.array([[0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
    for mixing in (
        build(resolve("erdos-renyi:0.4", 9, seed=1)),
        build(resolve("exponential", 8)),
        Mixing.from_matrix(without_itself, stochastic="rows"),
    ):
        n = mixing.n
        assert [mixing.sources(node) for node in range(n)] == [
            len(mixing.row(node).keys() - {node}) for node in range(n)
        ]


@given(connected_graphs())
def test_metropolis_is_one_over_one_plus_the_larger_degree(topology):
    """Xiao and Boyd (2004), local-degree weights with one added, so that no own weight vanishes."""
    mixing, degrees = build(topology), topology.degrees()
    for u, v in topology.edges.tolist():
        assert mixing.row(u)[v] == 1 / (1 + max(degrees[u], degrees[v]))


WEIGHED = """
import sys
from fedgossip.topology import build, resolve
for graph in sys.argv[1].split():
    mixing = build(resolve(graph, None if "x" in graph else 30), "best-constant")
    print({node: dict(mixing.row(node)) for node in (0, 1, 7)})
"""
UNLIKE = [
    {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX"},
    {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX2 FMA3"},
]
"""What lets NumPy and its LAPACK compute as on older x86-64 processors: there half of the graphs below have eigenvalues
with other last bits than on an EPYC with AVX-512, by up to 2e-15 of their size."""


def weighed(graphs: str, **environ: str) -> str:
    program = [sys.executable, "-W", "ignore", "-c", WEIGHED, graphs]
    done = subprocess.run(
        program, capture_output=True, text=True, check=True, env={**os.environ, **environ}, timeout=60
    )
    return done.stdout


@pytest.mark.sockets
def test_best_constant_weights_are_the_same_bits_on_unlike_processors():
    graphs = "ring path torus:4x4 grid:5x7 regular:4 regular:6 small-world:4,0.2 barabasi-albert:2 two-cliques tree"
    here = weighed(graphs)
    assert here.count("\n") == 10
    for unlike in UNLIKE:
        assert weighed(graphs, **unlike) == here


def test_rounding_costs_best_constant_weights_nothing_of_their_rate():
    """Xiao and Boyd (2004): 2 / (mu_2 + mu_n) leaves (mu_n - mu_2) / (mu_n + mu_2)."""
    for graph in (f.ring(30), f.grid(5, 6), f.star(30), PAW):
        mu = np.linalg.eigvalsh(nx.laplacian_matrix(graph.to_networkx()).toarray().astype(float))
        best = (mu[-1] - mu[1]) / (mu[-1] + mu[1])
        assert spectrum(build(graph, "best-constant")).slem == pytest.approx(best, abs=3e-11)


@given(connected_graphs())
def test_lazy_is_half_way_between_metropolis_and_keeping(topology):
    assert np.allclose(
        build(topology, "lazy").matrix(), (build(topology).matrix() + np.eye(topology.n)) / 2, atol=1e-15
    )


@given(connected_graphs())
def test_max_degree_gives_every_edge_the_same_weight(topology):
    mixing = build(topology, "max-degree")
    u, v = topology.edges[0].tolist()
    assert mixing.row(u)[v] == 1 / (1 + topology.degrees().max())


def test_uniform_is_the_plain_average_of_a_regular_graph():
    assert np.allclose(list(build(f.petersen(), "uniform").row(3).values()), 1 / 4, atol=1e-15)


@pytest.mark.parametrize("rule", ["metropolis", "uniform"])
def test_directed_exponential_averages_plainly(rule):
    """Ying et al. (2021): weights 1 / (1 + ceil(log2 n))."""
    mixing = build(f.directed_exponential(8), rule)
    assert mixing.rule == "uniform"
    assert mixing.row(0) == {0: 0.25, 4: 0.25, 6: 0.25, 7: 0.25}
    assert mixing.targets(0) == (1, 2, 4)


@settings(max_examples=25)
@given(connected_graphs(), RULES)
def test_groups_by_degree_hold_every_row_once(topology, rule):
    mixing = build(topology, rule)
    groups = mixing.rows_by_degree()
    rows = {
        int(node): dict(zip(ids.tolist(), weights.tolist(), strict=True))
        for nodes, all_ids, all_weights in groups
        for node, ids, weights in zip(nodes, all_ids, all_weights, strict=True)
    }
    assert rows == {node: mixing.row(node) for node in range(mixing.n)}
    assert all(list(row) == sorted(row) for row in rows.values())


def test_sparse_and_dense_are_the_same_matrix():
    mixing = build(resolve("karate"))
    assert np.array_equal(mixing.sparse().toarray(), mixing.matrix())


def test_a_mixing_is_a_schedule_of_period_one():
    mixing = build(f.ring(5))
    assert (mixing.n, mixing.period, mixing.mixing(7)) == (5, 1, mixing)


def test_without_edges_everybody_keeps_its_own():
    assert build(resolve("none", 3)).row(1) == {1: 1.0}


def test_best_constant_may_weigh_oneself_negatively():
    """Star of n: mu_2 = 1, mu_n = n, so the hub keeps 1 - 2 (n - 1) / (n + 1)."""
    assert build(f.star(8), "best-constant").row(0)[0] == pytest.approx(1 - 2 * 7 / 9)


def test_a_matrix_comes_back_as_it_went_in():
    W = build(PAW).matrix()
    mixing = Mixing.from_matrix(W)
    assert np.array_equal(mixing.matrix(), W)
    assert mixing.topology == PAW


def test_an_asymmetric_matrix_makes_a_directed_graph():
    W = build(f.directed_exponential(5)).matrix()
    mixing = Mixing.from_matrix(W)
    assert mixing.topology == f.directed_exponential(5)
    assert not mixing.symmetric


def test_weighted_edges_leave_the_rest_to_oneself():
    mixing = Mixing.from_weighted_edges(3, [(1, 2, 0.5), (1, 0, 0.25)])
    assert mixing.row(1) == {0: 0.25, 1: 0.25, 2: 0.5}


def test_weights_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        build(PAW).values[0] = 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build(PAW, "metroplis"), ("metroplis", "'metropolis'")),
        (lambda: build(PAW, "uniform"), ("degrees go from 1 to 3", "metropolis")),
        (lambda: build(Topology.from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)], directed=True)), ("push-sum",)),
        (lambda: build(f.directed_exponential(8), "best-constant"), ("undirected",)),
        (lambda: Mixing.from_matrix([[0.5, 0.5], [0.4, 0.5]]), ("row 1", "0.9")),
        (lambda: Mixing.from_matrix([[0.5, 0.5], [0.6, 0.4]]), ("column 0", "1.1")),
        (lambda: Mixing.from_matrix([[1.5, -0.5], [-0.5, 1.5]]), ("row 0", "node 1", "-0.5")),
        (lambda: Mixing.from_matrix([[np.nan, 0.5], [0.5, 0.5]]), ("row 0", "nan")),
        (lambda: Mixing.from_matrix([[1.0, 0.0]]), ("square",)),
        (lambda: Mixing.from_matrix(np.eye(2, dtype=complex)), ("complex",)),
        (lambda: Mixing.from_matrix(build(PAW).sparse()), ("toarray",)),
        (lambda: Mixing.from_matrix([[1.0], [0.5, 0.5]]), ("no weights", "real numbers")),
        (lambda: Mixing.from_matrix(build(f.complete(4)).matrix(), PAW), ("does not send",)),
        (lambda: Mixing.from_matrix(np.eye(3), PAW), ("3 nodes", "4")),
        (lambda: Mixing.from_weighted_edges(2, [(0, 1, 0.2), (1, 0, 0.2)]), ("twice",)),
        (lambda: Mixing.from_weighted_edges(3, [(0, 1, 0.7), (0, 2, 0.7)]), ("row 0", "-0.4")),
    ],
)
def test_weights_that_would_move_the_mean_are_refused(call, words):
    with pytest.raises(ConfigError) as caught:
        call()
    text = f"{caught.value} {caught.value.advice}"
    assert all(word in text for word in words), text
    assert caught.value.advice


def test_every_rule_has_a_name():
    assert set(rule_names()) >= {"metropolis", "max-degree", "uniform", "lazy", "best-constant", "push"}


# --- push-sum -----------------------------------------------------------------------------------------------------

CHORD = Topology.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)], "ring with a chord", directed=True)


def pushed(mixing: Mixing, rounds: int) -> np.ndarray:
    """x / y after `rounds` of push-sum from x_i = i + 1, y_i = 1 (Kempe, Dobra and Gehrke, FOCS 2003)."""
    W, x, y = mixing.matrix(), np.arange(1.0, mixing.n + 1), np.ones(mixing.n)
    for _ in range(rounds):
        x, y = W @ x, W @ y
    return x / y


@given(connected_graphs())
def test_push_gives_equal_shares_to_oneself_and_to_those_one_sends_to(topology):
    mixing = build(topology, "push")
    assert mixing.stochastic == "columns"
    W = mixing.matrix()
    for node in range(topology.n):
        column = np.zeros(topology.n)
        column[[node, *topology.successors(node)]] = 1 / (1 + len(topology.successors(node)))
        assert np.array_equal(W[:, node], column)


def test_push_shares_follow_the_arcs():
    mixing = push_weights(CHORD)
    assert mixing.targets(0) == (1, 2)
    assert mixing.row(2) == {0: 1 / 3, 1: 1 / 2, 2: 1 / 2}


def test_push_masses_go_to_the_perron_vector():
    """Ring of 5 with the chord 0 -> 2: W p = p for p = (3, 2, 4, 4, 4) / 17, by hand."""
    p = np.array([3, 2, 4, 4, 4]) / 17
    assert np.allclose(push_weights(CHORD).matrix() @ p, p, atol=1e-15)


@pytest.mark.parametrize(("rounds", "error"), [(10, 9.304447e-2), (20, 4.621784e-3), (40, 1.058273e-5)])
def test_push_sum_finds_the_mean_on_a_directed_graph(rounds, error):
    assert np.abs(pushed(push_weights(CHORD), rounds) - 3).max() == pytest.approx(error, rel=1e-6)


def test_without_the_masses_a_directed_graph_finds_another_number():
    """Plain averaging with rows normalised weighs node i by the left Perron vector, not by 1 / n."""
    W = push_weights(CHORD).matrix()
    rows = Mixing.from_matrix(W / W.sum(axis=1, keepdims=True), stochastic="rows")
    assert abs((np.linalg.matrix_power(rows.matrix(), 200) @ np.arange(1.0, 6))[0] - 3) > 0.1


def test_the_slem_of_push_is_its_rate_in_the_long_run():
    found = spectrum(push_weights(CHORD))
    assert found.slem == pytest.approx(0.73603188, abs=5e-9)
    promise = forecast(push_weights(CHORD))
    assert (promise.n_w, promise.mean_contraction, promise.floor) == (None, None, None)


def test_on_a_regular_graph_push_is_the_plain_average():
    assert np.allclose(push_weights(f.petersen()).matrix(), build(f.petersen(), "uniform").matrix(), atol=1e-15)


@pytest.mark.parametrize("stochastic", ["both", "rows"])
def test_columns_alone_are_not_taken_for_more(stochastic):
    with pytest.raises(ConfigError, match="row 0"):
        Mixing.from_matrix(push_weights(CHORD).matrix(), stochastic=stochastic)
