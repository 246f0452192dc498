"""Spectra without a dense matrix: closed forms, twins, factors and Lanczos against dense solvers, or no number at all.

W is the mixing, l_k its eigenvalues; expected numbers come from numpy's dense solver or the formula in the docstring.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from fedgossip.topology import Mixing, Topology, build, resolve, spectrum
from fedgossip.topology.spectra import eigen
from fedgossip.topology.spectra.spectrum import WORK_LIMIT, banded_work, proven_ends

FORMULAS = {
    "path": (eigen.path, nx.path_graph),
    "ring": (eigen.ring, nx.cycle_graph),
    "star": (eigen.star, lambda n: nx.star_graph(n - 1)),
}


def dense(mixing: Mixing) -> np.ndarray:
    """Eigenvalues of W, the mean's left out, descending."""
    values = np.linalg.eigvalsh(mixing.matrix() - 1 / mixing.n)
    return np.delete(values, np.argmin(np.abs(values)))[::-1]


def mu(graph: nx.Graph) -> np.ndarray:
    return np.sort(np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray().astype(float)))


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("n", [3, 4, 7, 30])
def test_laplacians_have_their_formula(name, n):
    formula, graph = FORMULAS[name]
    assert formula(n) == pytest.approx(mu(graph(n)), abs=1e-12)


@pytest.mark.parametrize("sides", [(3, 3), (4, 7), (2, 5), (2, 2)])
def test_lattices_have_the_sums_of_their_sides(sides):
    """A torus with a side of 2 has one edge along it, not two."""
    assert eigen.grid(*sides) == pytest.approx(mu(nx.grid_2d_graph(*sides)), abs=1e-12)
    torus = resolve(f"torus:{sides[0]}x{sides[1]}").to_networkx()
    assert eigen.torus(*sides) == pytest.approx(mu(torus), abs=1e-12)
    assert eigen.hypercube(4) == pytest.approx(mu(nx.hypercube_graph(4)), abs=1e-12)


@pytest.mark.parametrize("rule", ["metropolis", "lazy", "best-constant", "push"])
@pytest.mark.parametrize("graph", ["ring", "exponential", "directed-exponential", "complete", "circulant:1,3,8"])
def test_a_circulant_without_its_arrays_is_the_one_with_them(graph, rule):
    """What is said of offsets alone holds of the edges: degrees, connection, symmetry and the row of each node."""
    if graph == "directed-exponential" and rule not in ("metropolis", "push"):
        pytest.skip("directed graphs have no such weights")
    mixing = build(resolve(graph, 16), rule)
    whole = Topology.from_edges(16, mixing.topology.edges, directed=mixing.topology.directed)
    assert mixing.topology.edge_count == len(whole.edges)
    assert (mixing.topology.degrees() == whole.degrees()).all()
    other = build(whole, rule)
    assert np.array_equal(mixing.matrix(), other.matrix())
    assert (mixing.stochastic, mixing.rule, mixing.symmetric) == (other.stochastic, other.rule, other.symmetric)
    row = dict(zip(*map(np.ndarray.tolist, mixing.turned), strict=True))
    assert row == pytest.approx(mixing.row(0), abs=1e-15)


def test_a_million_nodes_cost_a_sum_and_no_edges():
    """Ying et al. (2021): the gap of the static exponential graph is 2 / (1 + ceil(log2 n)) for even n."""
    mixing = build(resolve("directed-exponential", 1_000_000))
    assert spectrum(mixing).spectral_gap == pytest.approx(2 / 21, abs=1e-12)
    assert "edges" not in vars(mixing.topology)  # never made
    gap = spectrum(build(resolve("torus:1000x1000"))).spectral_gap
    assert gap == pytest.approx(2 / 5 * 2 * np.sin(np.pi / 1000) ** 2, rel=1e-12)


@pytest.mark.parametrize(
    ("graph", "n", "method"),
    [
        ("tree", 4001, "factors"),
        ("grid:100x100", None, "factors"),
        ("barbell:40,3500", None, "factors"),
        ("barbell:1600,5", None, "twins"),
        ("regular:4", 4000, "lanczos"),
    ],
)
def test_large_graphs_are_resolved_each_in_its_way(graph, n, method):
    """Against scipy's eigsh in shift-invert mode, or a dense solver, on the complement of the mean."""
    from scipy.sparse import identity
    from scipy.sparse.linalg import eigsh

    mixing = build(resolve(graph, n))
    found = spectrum(mixing)
    assert (found.method, found.resolved) == (method, True)
    if method == "lanczos":
        values = np.sort(eigsh(mixing.sparse(), k=2, which="LA", return_eigenvectors=False))
    else:
        shifted = (mixing.sparse() - identity(mixing.n)).tocsc()
        values = 1 + np.sort(eigsh(shifted, k=2, sigma=1e-6, return_eigenvectors=False))
    assert found.spectral_gap == pytest.approx(1 - values[0], rel=1e-5)
    if method == "factors":
        lower, upper = found.certified
        assert lower <= found.spectral_gap <= upper
        assert (upper - lower) / upper <= 1.1e-2


def _drawn(number: int) -> Mixing:
    random = np.random.default_rng(number)
    n = int(random.integers(30, 90))
    kind = number % 5
    graph = [
        lambda: nx.random_labeled_tree(n, seed=number),
        lambda: nx.connected_watts_strogatz_graph(n, 4, 0.1, seed=number),
        lambda: nx.barbell_graph(n // 3, n - 2 * (n // 3)),
        lambda: nx.complete_multipartite_graph(*random.integers(1, 9, 4).tolist(), 9),
        lambda: nx.barabasi_albert_graph(n, 2, seed=number),
    ][kind]()
    rule = ["metropolis", "lazy", "max-degree"][number % 3]
    return build(Topology.from_networkx(nx.convert_node_labels_to_integers(graph)), rule)


def test_of_200_graphs_every_number_is_that_of_a_dense_solver_or_there_is_none(monkeypatch):
    """With the dense solver closed to them; those that resolve are most, or the test says nothing."""
    monkeypatch.setattr(eigen, "DENSE_LIMIT", 20)
    resolved, methods = 0, set()
    for number in range(200):
        mixing = _drawn(number)
        found, values = spectrum(mixing), dense(mixing)
        methods.add(found.method)
        if not found.resolved:
            assert (found.slem, found.spectral_gap, found.lambda2, found.lambda_n) == (None,) * 4
            continue
        resolved += 1
        slem = max(abs(values[0]), abs(values[-1]))
        assert found.slem == pytest.approx(slem, abs=max(1e-9, 1.01 * found.residual)), number
        assert found.lambda2 == pytest.approx(values[0], abs=1e-8), number
        if found.certified:
            assert found.certified[0] - 1e-12 <= 1 - slem <= found.certified[1] + 1e-12
    assert resolved > 150
    assert methods >= {"twins", "lanczos"}


def test_factors_prove_both_ends_of_200_graphs_or_say_nothing():
    """The signs of D in L D L' (Sylvester): proven bounds hold against a dense solver."""
    proven = 0
    for number in range(200):
        mixing = _drawn(number)
        values = dense(mixing)
        found = proven_ends(mixing.sparse(), float(values[-1]))
        if found is None:
            continue
        proven += 1
        assert found.lower - 1e-12 <= 1 - values[0] <= found.upper + 1e-12, number
        assert found.ends.low == values[-1]
    assert proven > 180


def test_factors_refuse_a_low_end_that_is_none():
    mixing = build(resolve("grid:6x6"))
    assert proven_ends(mixing.sparse(), float(dense(mixing)[-1]) + 0.1) is None


def test_an_expander_is_not_factored():
    """Its factors would be dense: the work that a banded order would cost says so."""
    mixing = build(resolve("regular:4", 20_000))
    assert banded_work(mixing.sparse()) > WORK_LIMIT
    assert banded_work(build(resolve("tree", 20_000)).sparse()) < 1e6
