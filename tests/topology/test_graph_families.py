"""Graphs: families have the nodes and edges that they promise; what was written wrong is named."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base.errors import ConfigError
from fedgossip.topology import Topology, family_names, require_connected, resolve
from fedgossip.topology.graphs import families as f

SEEDS = st.integers(0, 2**31)


def degree_set(topology: Topology) -> set[int]:
    return set(topology.degrees().tolist())


def refused(call, *words: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call()
    text = f"{caught.value} {caught.value.advice}"
    assert all(word in text for word in words), text
    assert caught.value.advice
    return caught.value


# --- the arrays -------------------------------------------------------------------------------------------------


@given(st.integers(2, 12), st.data())
def test_edges_are_sorted_unique_and_without_loops(n, data):
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] != e[1])
    edges = data.draw(st.lists(pair, max_size=30))
    found = Topology.from_edges(n, edges).edges.tolist()
    assert found == sorted(list(edge) for edge in {tuple(sorted(edge)) for edge in edges})


def test_neighbours_come_in_ascending_order():
    assert Topology.from_edges(5, [(3, 2), (0, 3), (4, 3)]).neighbours(3) == (0, 2, 4)


def test_an_arc_means_that_the_first_sends_to_the_second():
    topology = Topology.from_edges(3, [(0, 1), (2, 1)], directed=True)
    assert (topology.successors(0), topology.predecessors(1), topology.successors(1)) == ((1,), (0, 2), ())


def test_edges_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        f.ring(4).edges[0, 0] = 3


def test_equal_graphs_are_equal_whatever_they_are_called():
    ring = Topology.from_edges(3, [(2, 1), (0, 1), (2, 0)], name="triangle")
    assert ring == f.complete(3)
    assert len({ring, f.complete(3), f.path(3)}) == 2


def test_a_direction_makes_another_graph():
    assert Topology.from_edges(2, [(0, 1)]) != Topology.from_edges(2, [(0, 1)], directed=True)


def test_networkx_names_become_labels_in_their_order():
    graph = nx.Graph([("b", "a"), ("a", "c")])
    topology = Topology.from_networkx(graph)
    assert topology.labels == ("b", "a", "c")
    assert topology.neighbours(1) == (0, 2)


def test_networkx_weights_are_left_out():
    assert Topology.from_networkx(nx.karate_club_graph()) == resolve("karate")


def test_a_graph_survives_networkx_and_back():
    assert Topology.from_networkx(f.petersen().to_networkx()) == f.petersen()


def test_one_way_around_is_strongly_connected_and_a_path_of_arcs_is_not():
    arcs = [(0, 1), (1, 2), (2, 0)]
    assert Topology.from_edges(3, arcs, directed=True).is_connected
    assert not Topology.from_edges(3, arcs[:2], directed=True).is_connected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Topology.from_edges(3, [(0, 3)]), ("(0, 3)", "0..2")),
        (lambda: Topology.from_edges(3, [(-1, 2)]), ("(-1, 2)",)),
        (lambda: Topology.from_edges(3, [(1, 1)]), ("node 1", "itself")),
        (lambda: Topology.from_edges(0, []), ("0 nodes",)),
        (lambda: Topology.from_edges(2, [(0, 1, 2)]), ("pairs",)),
        (lambda: Topology.from_edges(2, [(0.5, 1.0)]), ("integer",)),
        (lambda: Topology.from_edges(2, [(0, 1)], labels=("a",)), ("1 labels for 2 nodes",)),
        (lambda: Topology.from_edges(2, [(0, 1)], labels=("a", "a")), ("'a'",)),
        (lambda: Topology.from_edges(2, [(0, 1)], positions=[(0, 0)]), ("positions",)),
    ],
)
def test_a_bad_edge_list_is_refused_by_name(call, words):
    refused(call, *words)


def test_components_are_named_with_their_sizes_and_a_node():
    topology = Topology.from_edges(5, [(0, 1), (2, 3), (3, 4)], labels=("a", "b", "c", "d", "e"))
    refused(lambda: require_connected(topology), "2 components", "3 with node c", "2 with node a")


# --- families ---------------------------------------------------------------------------------------------------


@given(st.integers(3, 40))
def test_ring_path_star_complete_and_tree_have_their_edges(n):
    sizes = [len(make(n).edges) for make in (f.ring, f.path, f.star, f.complete, f.tree)]
    assert sizes == [n, n - 1, n - 1, n * (n - 1) // 2, n - 1]


@given(st.integers(2, 40))
def test_simple_families_are_connected(n):
    assert all(make(n).is_connected for make in (f.ring, f.path, f.star, f.complete, f.tree, f.exponential))


@given(st.integers(3, 8), st.integers(3, 8))
def test_a_torus_with_sides_of_at_least_three_has_degree_four(rows, columns):
    assert degree_set(f.torus(rows, columns)) == {4}


def test_a_torus_with_a_side_of_two_has_degree_three():
    assert degree_set(f.torus(2, 16)) == {3}


@given(st.integers(2, 7), st.integers(2, 7))
def test_a_grid_is_networkx_grid(rows, columns):
    assert len(f.grid(rows, columns).edges) == nx.grid_2d_graph(rows, columns).number_of_edges()


@given(st.integers(1, 8))
def test_a_hypercube_has_degree_log2_n(d):
    assert degree_set(f.hypercube(2**d)) == {d}


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16, 17, 1000])
def test_directed_exponential_sends_to_ceil_log2_n(n):
    """Ying et al. (2021): out-degree ceil(log2 n)."""
    topology = f.directed_exponential(n)
    assert set(topology.out_degrees.tolist()) == set(topology.in_degrees.tolist()) == {math.ceil(math.log2(n))}


def test_exponential_of_sixteen_joins_at_1_2_4_8():
    assert f.exponential(16) == Topology.from_networkx(nx.circulant_graph(16, [1, 2, 4, 8]))


@given(st.integers(2, 30), st.lists(st.integers(1, 29), min_size=1, max_size=4))
def test_circulant_is_networkx_circulant(n, offsets):
    offsets = [o for o in offsets if o % n]
    if offsets:
        assert f.circulant(n, tuple(offsets)) == Topology.from_networkx(nx.circulant_graph(n, [o % n for o in offsets]))


@given(st.integers(2, 9), st.integers(0, 4))
def test_barbell_is_networkx_barbell(clique, between):
    made = f.barbell(clique, between)
    assert made == Topology.from_networkx(nx.barbell_graph(clique, between))


@given(st.integers(2, 20))
def test_two_cliques_have_one_edge_between(half):
    assert len(f.two_cliques(2 * half).edges) == half * (half - 1) + 1


@pytest.mark.parametrize("branching", [1, 2, 3])
def test_tree_is_networkx_full_tree(branching):
    assert f.tree(14, branching) == Topology.from_networkx(nx.full_rary_tree(branching, 14))


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(4, 20), SEEDS)
def test_random_regular_is_regular_and_connected(degree, half, seed):
    topology = f.random_regular(2 * half, degree, seed)
    assert degree_set(topology) == {degree}
    assert topology.is_connected


@settings(max_examples=20)
@given(st.integers(8, 30), SEEDS)
def test_drawn_families_are_connected(n, seed):
    made = (f.erdos_renyi(n, 0.6, seed), f.small_world(n, 4, 0.2, seed), f.barabasi_albert(n, 2, seed))
    assert all(topology.is_connected for topology in made)


@pytest.mark.parametrize("graph", ["regular:3", "erdos-renyi:0.4", "small-world:4,0.3", "barabasi-albert:2"])
def test_the_seed_decides_the_graph(graph):
    assert resolve(graph, 20, seed=1) == resolve(graph, 20, seed=1) != resolve(graph, 20, seed=2)


def test_none_has_no_edge_and_is_allowed():
    assert len(resolve("none", 5).edges) == 0


def test_a_million_nodes_are_cheap():
    ring = f.ring(1_000_000)
    assert ring.is_connected
    assert ring.neighbours(0) == (1, 999_999)


# --- names ------------------------------------------------------------------------------------------------------

SAMPLES = {
    "circulant": "circulant:1,2,4",
    "regular": "regular:3",
    "erdos-renyi": "erdos-renyi:0.4",
    "small-world": "small-world:4,0.1",
    "barabasi-albert": "barabasi-albert:2",
    "barbell": "barbell:5,0",
    "spanning-tree": "spanning-tree:torus",
}


@pytest.mark.parametrize("name", family_names())
def test_every_family_can_be_named(name):
    fixed = {"petersen": 10, "heawood": 14, "icosahedron": 12, "barbell": 10}
    assert resolve(SAMPLES.get(name, name), fixed.get(name, 16)).n == fixed.get(name, 16)


@pytest.mark.parametrize(("spec", "n", "twin"), [("torus", 32, "torus:4x8"), ("grid", 12, "grid:3x4")])
def test_a_lattice_by_size_is_as_square_as_can_be(spec, n, twin):
    assert resolve(spec, n) == resolve(twin)


@pytest.mark.parametrize(
    ("graph", "n", "words"),
    [
        ("rign", 8, ("rign", "'ring'")),
        ("karat", None, ("'karate'",)),
        ("ring", None, ("needs a number of nodes", "--n")),
        ("ring:5", 5, ("colon",)),
        ("torus", 13, ("13", "12 and 14")),
        ("hypercube", 12, ("12", "8 and 16")),
        ("two-cliques", 7, ("6 and 8",)),
        ("regular:3", 7, ("6 and 8",)),
        ("regular:9", 8, ("10",)),
        ("regular:x", 8, ("regular:3",)),
        ("regular:0", 8, ("at least 1",)),
        ("torus:4", None, ("torus:4x4",)),
        ("torus:1x8", None, ("at least 2",)),
        ("torus:4x4", 20, ("16 nodes, not 20",)),
        ("petersen", 12, ("10 nodes, not 12",)),
        ("karate", 12, ("34 nodes, not 12",)),
        ("circulant:2,4", 16, ("2 components",)),
        ("circulant:0", 16, ("offsets",)),
        ("circulant", 16, ("circulant:1,2,4",)),
        ("erdos-renyi:0.001", 50, ("none of", "Raise p")),
        ("erdos-renyi:1.5", 50, ("between 0 and 1",)),
        ("small-world:3,0.1", 20, ("even number",)),
        ("small-world:2.5,0.1", 20, ("small-world:4,0.1",)),
        ("barabasi-albert:9", 5, ("10",)),
        ("barbell:1,0", None, ("at least 2",)),
        ("tree:0", 5, ("at least 1",)),
        ("complete", 100_000, ("edges",)),
        ("", 5, ("no graph",)),
    ],
)
def test_what_cannot_be_named_is_refused_with_advice(graph, n, words):
    refused(lambda: resolve(graph, n), *words)


@pytest.mark.sockets
@pytest.mark.parametrize("module", ["fedgossip.topology", "fedgossip.cli.topology.topology"])
def test_importing_stays_cheap(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'scipy', 'networkx', 'matplotlib') if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert run.stdout.strip() == "[]"


def test_positions_of_an_open_grid_are_its_places():
    assert np.array_equal(f.grid(2, 3).positions[4], [1, -1])
