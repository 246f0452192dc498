"""Spectra against closed forms and published numbers; what did not converge is said, not guessed.

Expected numbers come from the formula or paper in each docstring.  W is the mixing, l_k its eigenvalues.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology import (
    Mixing,
    Topology,
    build,
    disagreement_band,
    effective_neighbours,
    forecast,
    resolve,
    rounds_to,
    spectrum,
)
from fedgossip.topology.graphs import families as f
from fedgossip.topology.spectra import eigen

DIGITS = 5.1e-11  # half a unit of the tenth printed digit, and rounding
EIGHT = 5.1e-9


def of(graph: str, n: int | None = None, rule: str = "metropolis"):
    return spectrum(build(resolve(graph, n), rule))


def ring16():
    return of("ring", 16)


# --- the words, on the ring of 16 -------------------------------------------------------------------------------


def test_slem_and_gap_of_the_ring_of_16():
    """1/3 + 2/3 cos(2 pi / 16)."""
    assert ring16().slem == pytest.approx(0.9492530217, abs=DIGITS)
    assert ring16().spectral_gap == pytest.approx(0.0507469783, abs=DIGITS)


def test_p_of_koloskova_is_one_minus_slem_squared():
    """Koloskova et al. (2020): p = 1 - l_2(E[W'W])."""
    W = build(resolve("ring", 16)).matrix()
    assert 1 - ring16().slem ** 2 == pytest.approx(0.0989187, abs=5e-8)
    assert 1 - np.linalg.eigvalsh(W.T @ W)[-2] == pytest.approx(1 - ring16().slem ** 2, abs=1e-12)


def test_relaxation_and_convergence_time_of_the_ring_of_16():
    """1 / gap, and Boyd's 1 / ln(1 / slem) = 1 / (gap + gap^2 / 2 + gap^3 / 3 + ...)."""
    assert 1 / ring16().spectral_gap == pytest.approx(19.70561, abs=5e-6)
    assert 1 / math.log(1 / ring16().slem) == pytest.approx(19.2013, abs=5e-5)


def test_algebraic_connectivity_of_the_ring_of_16():
    """mu_2 = 2 - 2 cos(2 pi / 16)."""
    assert ring16().algebraic_connectivity == pytest.approx(0.1522409350, abs=DIGITS)


def test_mixing_time_of_the_ring_of_16():
    """Smallest t with total variation max_i 1/2 sum_j |W^t_ij - 1/n| <= 1/4."""
    W = build(resolve("ring", 16)).matrix()
    far = [np.abs(np.linalg.matrix_power(W, t) - 1 / 16).sum(axis=1).max() / 2 for t in (17, 18)]
    assert far[0] > 0.25 >= far[1]


def test_kemeny_constant_of_the_ring_of_16():
    """sum_{k>=2} 1 / (1 - l_k) = (n^2 - 1) / 4 for a third of each weight."""
    assert (1 / (1 - ring16().eigenvalues[1:])).sum() == pytest.approx(63.75, abs=1e-9)


def test_effective_neighbours_of_the_ring_of_16():
    """Vogels et al. (2022), gamma = .951."""
    assert effective_neighbours(build(resolve("ring", 16)), 0.951) == pytest.approx(8.591672, abs=5e-7)


# --- static graphs, Metropolis ----------------------------------------------------------------------------------

RINGS = [
    (4, 0.3333333333, 0.6666666667, 0.3333333333),
    (5, 0.5393446629, 0.4606553371, 0.4472135955),
    (8, 0.8047378541, 0.1952621459, 0.7445208382),
    (10, 0.8726779962, 0.1273220038, 0.8256645486),
    (16, 0.9492530217, 0.0507469783, 0.9266704715),
    (25, 0.9790554408, 0.0209445592, 0.9689485059),
    (64, 0.9967898178, 0.0032101822, 0.9951962923),
    (100, 0.9986844856, 0.0013155144, 0.9980286734),
    (1000, 0.9999868406, 0.0000131594, 0.9999802611),
]


@pytest.mark.parametrize(("n", "second", "gap", "best"), RINGS)
def test_ring(n, second, gap, best):
    """l_2 = 1/3 + 2/3 cos(2 pi / n)."""
    found = of("ring", n)
    assert found.lambda2 == pytest.approx(second, abs=DIGITS)
    assert found.spectral_gap == pytest.approx(gap, abs=DIGITS)
    assert found.lambda_n == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi * (n // 2) / n), abs=1e-12)


@pytest.mark.parametrize(("n", "second", "gap", "best"), RINGS)
def test_best_constant_weights_on_a_ring(n, second, gap, best):
    """Xiao and Boyd (2004): a = 2 / (mu_2 + mu_n) gives (mu_n - mu_2) / (mu_n + mu_2)."""
    assert of("ring", n, "best-constant").slem == pytest.approx(best, abs=DIGITS)


def test_the_gap_of_a_ring_of_a_million_keeps_its_digits():
    """(4/3) sin^2(pi / n): 1 - l_2 in floating point would keep five."""
    found = of("ring", 1_000_000)
    assert found.spectral_gap == pytest.approx(1.315947e-11, rel=5e-7)
    assert found.spectral_gap == pytest.approx(4 / 3 * math.sin(math.pi / 1e6) ** 2, rel=1e-13)


@pytest.mark.parametrize(("n", "expected"), [(8, 0.9492530217), (16, 0.9871901869)])
def test_a_path_is_a_ring_of_twice_its_length(n, expected):
    """Both have l_2 = 1/3 + 2/3 cos(pi / n)."""
    assert of("path", n).slem == pytest.approx(expected, abs=DIGITS)


@given(st.integers(3, 60))
def test_star(n):
    """slem = 1 - 1/n; of two nodes it is the complete graph."""
    assert of("star", n).slem == pytest.approx(1 - 1 / n, abs=1e-12)


@pytest.mark.parametrize("d", range(1, 9))
def test_hypercube_ends_are_each_others_negative(d):
    """(d - 1) / (d + 1)."""
    found = of("hypercube", 2**d)
    assert found.lambda2 == pytest.approx((d - 1) / (d + 1), abs=1e-12)
    assert found.lambda_n == pytest.approx(-(d - 1) / (d + 1), abs=1e-12)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("torus:3x3", 0.4),
        ("torus:4x4", 0.6),
        ("torus:4x5", 0.7236067977),
        ("torus:4x8", 0.8828427125),
        ("torus:10x10", 0.9236067977),
        ("torus:32x32", 0.9923141122),
        ("torus:2x16", 0.9619397663),
        ("grid:4x4", 0.8686406183),
        ("grid:8x8", 0.9677046369),
    ],
)
def test_torus_and_grid(graph, expected):
    """Torus with sides >= 3: 1 - (2/5)(1 - cos(2 pi / longer side)); a side of 2 gives degree 3; the open grid."""
    assert of(graph).slem == pytest.approx(expected, abs=DIGITS)


@pytest.mark.parametrize("n", [4, 8, 16, 32, 64, 1024, 6, 10, 100])
def test_directed_exponential_of_even_size(n):
    """Ying et al. (2021): gap 2 / (1 + ceil(log2 n)) for even n."""
    assert of("directed-exponential", n).slem == pytest.approx(1 - 2 / (1 + math.ceil(math.log2(n))), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (5, 0.25),
        (7, 0.3535533906),
        (9, 0.4417866110),
        (13, 0.4563433475),
        (17, 0.5476209105),
        (25, 0.5108608709),
        (33, 0.6078000437),
        (65, 0.6481261970),
        (255, 0.6787622472),
    ],
)
def test_directed_exponential_of_odd_size_is_better(n, expected):
    """Ying et al. (2021): ||W - J||_2 strictly below the even formula."""
    assert of("directed-exponential", n).slem == pytest.approx(expected, abs=DIGITS)


@pytest.mark.parametrize(
    ("graph", "n", "second", "last"),
    [
        ("petersen", None, 0.5, -0.25),
        ("heawood", None, 0.60355339, -0.5),
        ("icosahedron", None, 0.53934466, -0.20601133),
        ("k5-5", None, 0.16666667, -0.66666667),
        ("barbell:16,0", None, 0.99342320, -0.05224673),
        ("circulant:1,2,4,8", 16, 0.5, -0.27244755),
    ],
)
def test_named_graphs(graph, n, second, last):
    """Adjacency spectra of these graphs are textbook; Metropolis on degree d is (A + I) / (d + 1)."""
    found = of(graph, n)
    assert (found.lambda2, found.lambda_n) == (pytest.approx(second, abs=EIGHT), pytest.approx(last, abs=EIGHT))


def test_petersen_has_algebraic_connectivity_two():
    """Adjacency eigenvalues 3, 1, -2."""
    assert of("petersen").algebraic_connectivity == pytest.approx(2, abs=1e-12)


def test_the_negative_end_decides_on_a_bipartite_graph():
    assert of("k5-5").slem == pytest.approx(2 / 3, abs=1e-12)


# --- published examples of weights ------------------------------------------------------------------------------

BOYD = Topology.from_edges(
    8, [(0, 1), (1, 2), (2, 3), (0, 4), (1, 7), (1, 3), (4, 5), (4, 6), (2, 6), (3, 7), (5, 6), (6, 7), (1, 6)]
)
PUBLISHED = {
    "boyd": (BOYD, 0.77430349, 0.71185802, 0.81255454),
    "path 4": (f.path(4), 0.70710678, 0.70710678, 0.80473785),
    "paw": (Topology.from_edges(4, [(0, 1), (0, 2), (1, 2), (2, 3)]), 0.66666667, 0.6, 0.75),
    "K2,3": (resolve("k2-3"), 0.66666667, 0.42857143, 0.5),
    "petersen": (f.petersen(), 0.66666667, 0.42857143, 0.5),
    "grid 4x4": (f.grid(4, 4), 0.83007564, 0.84198285, 0.86864062),
    "barbell(5, 0)": (f.barbell(5, 0), 0.94031242, 0.91473203, 0.95026035),
}


def one_over_larger_degree(topology: Topology) -> Mixing:
    degrees = topology.degrees()
    edges = [(u, v, 1 / max(degrees[u], degrees[v])) for u, v in topology.edges.tolist()]
    return Mixing.from_weighted_edges(topology.n, edges)


@pytest.mark.parametrize("name", PUBLISHED)
def test_metropolis_on_published_examples(name):
    """Graphs of Boyd, Diaconis and Xiao (2004) and the CVX example library; 1 / (1 + max degree)."""
    topology, _, _, expected = PUBLISHED[name]
    assert spectrum(build(topology)).slem == pytest.approx(expected, abs=EIGHT)


@pytest.mark.parametrize("name", PUBLISHED)
def test_best_constant_on_published_examples(name):
    """Xiao and Boyd (2004); on Petersen mu = 2, 5, hence (5 - 2) / (5 + 2)."""
    topology, _, expected, _ = PUBLISHED[name]
    assert spectrum(build(topology, "best-constant")).slem == pytest.approx(expected, abs=EIGHT)


@pytest.mark.parametrize("name", PUBLISHED)
def test_given_weights_on_published_examples(name):
    """The Metropolis-Hastings column of CVX's tables: 1 / max degree."""
    topology, expected, _, _ = PUBLISHED[name]
    assert spectrum(one_over_larger_degree(topology)).slem == pytest.approx(expected, abs=EIGHT)


def test_boyds_metropolis_never_settles_on_an_even_ring():
    """1 / max degree = 1/2 and nothing for oneself: the alternating vector only changes its sign."""
    found = forecast(one_over_larger_degree(f.ring(6)))
    assert found.slem == pytest.approx(1, abs=1e-12)
    assert (found.rounds_to_halve, found.floor, found.ceiling) == (None, None, None)


def test_matcha_at_full_budget():
    """Wang et al. (2019), base graph, every link in every round: ||E W'W - J|| = slem^2."""
    assert of("matcha-8", None, "best-constant").slem ** 2 == pytest.approx(0.653777, abs=5e-7)


@pytest.mark.parametrize(
    ("graph", "n", "expected"),
    [
        ("ring", 10, 0.98090170),
        ("ring", 16, 0.99524247),
        ("complete", 10, 0.88888889),
        ("complete", 16, 0.93333333),
        ("petersen", None, 0.93333333),
    ],
)
def test_pairwise_gossip_follows_from_the_algebraic_connectivity(graph, n, expected):
    """Boyd et al. (2006): l_2(E W) = 1 - mu_2 / (2 m)."""
    topology = resolve(graph, n)
    connectivity = spectrum(build(topology)).algebraic_connectivity
    assert 1 - connectivity / (2 * len(topology.edges)) == pytest.approx(expected, abs=EIGHT)


# --- effective neighbours ---------------------------------------------------------------------------------------

EFFECTIVE = {
    "star": (0.031250, 1.162683, 1.673581, 2.313464, 6.437949),
    "path": (0.003210, 3.526742, 6.016399, 7.787489, 13.938656),
    "ring": (0.012810, 3.719658, 6.632115, 8.855550, 17.075527),
    "two-cliques": (0.006577, 16.182803, 16.990623, 17.906754, 22.384886),
    "torus:4x8": (0.117157, 7.115818, 15.738563, 20.636457, 28.540294),
    "hypercube": (0.333333, 8.897196, 19.636364, 24.285777, 30.009032),
    "directed-exponential": (0.333333, 9.182895, 20.400462, 24.920810, 30.221075),
    "complete": (1.0, 32.0, 32.0, 32.0, 32.0),
}


@pytest.mark.parametrize("graph", EFFECTIVE)
def test_effective_neighbours_of_32(graph):
    """Vogels et al. (2022): [1/(1-g)] / mean_i sum_{k>=1} g^(k-1) ||(W^k)_i||^2."""
    mixing = build(resolve(graph, 32))
    gap, *expected = EFFECTIVE[graph]
    assert spectrum(mixing).spectral_gap == pytest.approx(gap, abs=5.1e-7)
    assert [effective_neighbours(mixing, g) for g in (0.5, 0.9, 0.951, 0.99)] == pytest.approx(expected, abs=5.1e-7)


def test_gap_and_effective_neighbours_rank_star_ring_and_two_cliques_the_other_way_round():
    found = [forecast(build(resolve(graph, 32))) for graph in ("star", "ring", "two-cliques")]
    assert sorted(found, key=lambda x: -x.spectral_gap) == found == sorted(found, key=lambda x: x.n_w)


def test_alone_one_has_one_effective_neighbour():
    assert effective_neighbours(build(resolve("none", 8)), 0.9) == pytest.approx(1)


def powers_n_w(W, gamma):
    total, power = 0.0, np.eye(len(W))
    for k in range(4000):
        power = power @ W
        total += gamma**k * (power**2).sum() / len(W)
    return 1 / (1 - gamma) / total


def lopsided(n: int) -> Mixing:
    """Doubly stochastic, neither symmetric nor normal: a blend of permutations."""
    random = seeds.stream(0, "lopsided", n)
    shares = random.dirichlet(np.ones(4))
    return Mixing.from_matrix(sum(s * np.eye(n)[random.permutation(n)] for s in shares))


@pytest.mark.parametrize("n", [6, 11])
def test_effective_neighbours_of_an_asymmetric_matrix_are_those_of_its_powers(n):
    """The definition, summed."""
    assert not spectrum(lopsided(n)).normal
    assert effective_neighbours(lopsided(n), 0.95) == pytest.approx(powers_n_w(lopsided(n).matrix(), 0.95), rel=1e-9)


def test_slem_of_an_asymmetric_matrix_is_the_norm_of_its_rest():
    """||W - J||_2."""
    W = lopsided(9).matrix()
    assert spectrum(lopsided(9)).slem == pytest.approx(np.linalg.norm(W - 1 / 9, 2), abs=1e-12)


# --- large graphs -----------------------------------------------------------------------------------------------


def test_random_regular_graph_of_a_hundred_thousand():
    """Near the Alon-Boppana value (2 sqrt(3) + 1) / 5 = .89282; measured .89265309 / -.49280743 on another draw."""
    mixing = build(resolve("regular:4", 100_000))
    found = spectrum(mixing)
    assert found.resolved
    assert found.lambda2 == pytest.approx(0.89265309, abs=4e-4)
    assert found.lambda_n == pytest.approx(-0.49280743, abs=4e-4)
    assert found.residual < 1e-9
    promise = forecast(mixing, 0.9, found)
    assert abs(promise.n_w - kesten_mckay_n_w(4, 100_000)) <= promise.n_w_error < 0.002 * promise.n_w


def kesten_mckay_n_w(d, n, gamma=0.9):
    """n_W of a random d-regular graph: its eigenvalues have the density d sqrt(r^2 - x^2) / (2 pi (d^2 - x^2)), r^2 =
    4 (d - 1), of which sqrt(r^2 - x^2) is r sin(t) for x = r cos(t)."""
    t = (np.arange(100_000) + 0.5) * np.pi / 100_000
    r = 2 * np.sqrt(d - 1)
    density, values = (
        d * (r * np.sin(t)) ** 2 / (2 * np.pi * (d * d - (r * np.cos(t)) ** 2)),
        (1 + r * np.cos(t)) / (1 + d),
    )
    others = np.sum(density * values**2 / (1 - gamma * values**2)) * np.pi / 100_000
    return 1 / ((1 - gamma) * (others + 1 / (1 - gamma) / n))


@pytest.fixture
def sparse_only(monkeypatch):
    monkeypatch.setattr(eigen, "DENSE_LIMIT", 50)


@pytest.mark.parametrize(("graph", "n"), [("regular:4", 600), ("small-world:6,0.3", 400), ("erdos-renyi:0.03", 500)])
def test_lanczos_agrees_with_the_dense_solver(graph, n, monkeypatch):
    mixing = build(resolve(graph, n))
    dense = spectrum(mixing)
    monkeypatch.setattr(eigen, "DENSE_LIMIT", 50)
    found = spectrum(mixing)
    assert found.method == "lanczos"
    assert (found.lambda2, found.lambda_n) == (
        pytest.approx(dense.lambda2, abs=1e-8),
        pytest.approx(dense.lambda_n, abs=1e-8),
    )
    assert found.algebraic_connectivity == pytest.approx(dense.algebraic_connectivity, abs=1e-7)


def test_lanczos_finds_the_norm_of_a_directed_matrix(sparse_only):
    mixing = lopsided(200)
    assert spectrum(mixing).slem == pytest.approx(np.linalg.norm(mixing.matrix() - 1 / 200, 2), abs=1e-6)


def test_estimated_effective_neighbours_lie_within_their_error(monkeypatch):
    mixing = build(resolve("regular:4", 1000))
    exact = effective_neighbours(mixing, 0.9)
    monkeypatch.setattr(eigen, "DENSE_LIMIT", 50)
    found = forecast(mixing, 0.9)
    assert 0 < found.n_w_error < 0.02 * found.n_w
    assert abs(found.n_w - exact) < 4 * found.n_w_error


def test_the_interval_of_an_estimated_trace_is_right_in_95_of_100_draws():
    """Of l^2 / (1 - .9 l^2), whose sum is that of n_W; 95 of 100 draws of the signs, to the error of a count."""
    mixing, weigh = build(resolve("regular:3", 120)), lambda values: values**2 / (1 - 0.9 * values**2)
    exact = weigh(np.sort(np.linalg.eigvalsh(mixing.matrix()))[:-1]).sum()
    traces = np.array([120, np.trace(mixing.matrix()), np.sum(mixing.matrix() ** 2)]) - 1
    found = [eigen.quadrature(mixing.sparse().dot, traces, weigh, 25, seed) for seed in range(100)]
    assert 89 <= sum(abs(value - exact) <= half for value, half in found) <= 99


def test_what_lanczos_cannot_see_is_called_unresolved(sparse_only, monkeypatch):
    """sqrt(gap) x steps <= 3: after 60 steps the Ritz value of a path of 2000 overstates its gap many times."""
    monkeypatch.setattr(eigen, "LANCZOS_STEPS", 60)
    monkeypatch.setattr("fedgossip.topology.spectra.spectrum.WORK_LIMIT", 0)
    found = forecast(build(f.tree(2000, 1)))  # a path, of which the tree knows no formula
    assert not found.resolved
    assert (found.lambda2, found.spectral_gap, found.slem, found.rounds_to_halve) == (None, None, None, None)


def test_best_constant_weights_need_a_resolved_spectrum(sparse_only, monkeypatch):
    monkeypatch.setattr(eigen, "LANCZOS_STEPS", 60)
    with pytest.raises(ConfigError, match="did not resolve"):
        build(f.tree(2000, 1), "best-constant")


def test_many_offsets_go_through_the_fft(monkeypatch):
    exact = of("circulant:1,2,5", 60)
    monkeypatch.setattr(eigen, "TABLE_LIMIT", 0)
    found = of("circulant:1,2,5", 60)
    assert found.method == "fft"
    assert np.allclose(found.eigenvalues, exact.eigenvalues, atol=1e-13)


# --- properties -------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(3, 24), st.floats(0.3, 1.0), st.integers(0, 1000))
def test_the_largest_eigenvalue_is_one_and_no_other_is_larger(n, p, seed):
    found = spectrum(build(f.erdos_renyi(n, max(p, min(1.0, 3 * math.log(n) / n)), seed)))
    assert found.eigenvalues[0] == 1
    assert 0 <= found.slem < 1
    assert np.all(np.diff(found.eigenvalues) <= 1e-12)


@pytest.mark.parametrize(
    ("graph", "n"), [("ring", 15), ("exponential", 12), ("complete", 9), ("directed-exponential", 12)]
)
def test_closed_form_and_dense_solver_agree(graph, n):
    mixing = build(resolve(graph, n))
    dense = spectrum(Mixing.from_matrix(mixing.matrix()))
    assert (spectrum(mixing).method, dense.method) == ("closed form", "dense")
    assert np.allclose(spectrum(mixing).eigenvalues, dense.eigenvalues, atol=1e-13)


def test_a_disconnected_graph_has_no_gap():
    found = forecast(build(Topology.from_edges(5, [(0, 1), (2, 3), (3, 4)])))
    assert (found.spectral_gap, found.rounds_to_halve, found.floor) == (0, None, None)


def test_one_node_is_always_at_its_mean():
    found = forecast(build(resolve("none", 1)))
    assert (found.slem, found.spectral_gap, found.n_w, found.mean_contraction) == (0, 1, 1, 0)


# --- what follows from a spectrum -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "slem", "rounds"),
    [(0.5, 0.5, 1), (0.25, 0.5, 2), (0.01, 0.1, 2), (0.5, 0.0, 1), (0.5, 1.0, None), (0.5, 1.2, None)],
)
def test_rounds_to_a_factor(factor, slem, rounds):
    """Smallest whole r with slem^r <= factor."""
    assert rounds_to(factor, slem) == rounds


@given(st.floats(0.01, 0.9999), st.floats(0.001, 0.99))
def test_one_round_fewer_is_not_enough(slem, factor):
    rounds = rounds_to(factor, slem)
    assert slem**rounds <= factor * (1 + 1e-6)
    assert rounds == 1 or slem ** (rounds - 1) > factor * (1 - 1e-6)


def test_rounds_of_a_large_ring_are_counted_from_the_gap():
    """ln 2 / gap, for a gap of 3e-10: 1 - slem would keep six digits."""
    found = forecast(build(f.ring(200_000)))
    assert found.rounds_to_halve == pytest.approx(math.log(2) / (4 / 3 * math.sin(math.pi / 2e5) ** 2), rel=1e-9)


@pytest.mark.parametrize("graph", ["karate", "abilene", "torus:4x4"])
def test_one_round_of_a_random_direction_leaves_mean_contraction(graph):
    """E ||W x||^2 / E ||x||^2 over x orthogonal to the mean = mean_{k>=2} l_k^2."""
    mixing = build(resolve(graph))
    others = spectrum(mixing).eigenvalues[1:]
    assert forecast(mixing).mean_contraction == pytest.approx(math.sqrt((others**2).mean()), abs=1e-12)


def test_the_band_is_its_definition():
    """fresh^2 = sum_s delta_s^2 mean_k |l_k|^(2(t-s+1)); steady^2 = mean_k |sum_s l_k^(t-s+1) delta_s|^2."""
    modes, spread = spectrum(build(resolve("karate"))).eigenvalues[1:], np.array([1.0, 0.5, 2.0, 0.1])
    lower, upper = disagreement_band(modes, spread)
    for t in range(4):
        terms = modes[:, None] ** (t - np.arange(t + 1) + 1) * spread[: t + 1]
        fresh, steady = math.sqrt((terms**2).sum(axis=1).mean()), math.sqrt((terms.sum(axis=1) ** 2).mean())
        assert (lower[t], upper[t]) == (pytest.approx(min(fresh, steady)), pytest.approx(max(fresh, steady)))


@pytest.mark.parametrize(
    ("graph", "n", "ceiling"),
    [("directed-exponential", 16, 0.59468), ("directed-exponential", 25, 0.4794), ("directed-exponential", 9, 0.3952),
     ("hypercube", 16, 0.80111)],
)  # fmt: skip
def test_the_steady_disagreement_goes_by_eigenvalues_with_their_signs(graph, n, ceiling):
    """The stationary x of x <- W(x + u) with the same centred u every round, averaged over all u, by solving for it."""
    mixing = build(resolve(graph, n))
    W = mixing.matrix() - 1 / n
    solved = np.linalg.norm(np.linalg.solve(np.eye(n) - W, W)) / math.sqrt(n - 1)
    found = spectrum(mixing)
    modes = found.eigenvalues[1:] if found.modes is None else found.modes
    assert forecast(mixing).ceiling == pytest.approx(solved) == pytest.approx(ceiling, abs=5e-5)
    lower, upper = disagreement_band(modes, np.ones(3000))
    fresh = np.sqrt(np.mean(np.abs(modes) ** 2 / (1 - np.abs(modes) ** 2)))
    assert sorted([solved, fresh]) == [pytest.approx(lower[-1]), pytest.approx(upper[-1])]


def by_products(mixing, factor):
    """The first rounds after which the product of the rounds so far is this near to the mean: worst, typical."""
    n, product, reached = mixing.n, np.eye(mixing.n), [None, None]
    for t in range(1, 2000):
        product = mixing.matrix() @ product
        estimates = product / product.sum(axis=1, keepdims=True) if mixing.stochastic == "columns" else product
        rest = estimates - 1 / n
        for side, share in enumerate([np.linalg.norm(rest, 2), np.linalg.norm(rest) / math.sqrt(n - 1)]):
            reached[side] = t if reached[side] is None and share <= factor else reached[side]
        if None not in reached:
            return tuple(reached)
    raise AssertionError("not reached")


def de_bruijn(n):
    """Node i sends to 2i and 2i + 1 modulo n = 2^k: no eigenvalue but 1 and 0."""
    W = np.zeros((n, n))
    for i in range(n):
        W[[2 * i % n, (2 * i + 1) % n], i] = 0.5
    return Mixing.from_matrix(W)


def kautz():
    """K(2, 3): words of three letters of {0, 1, 2} without equal neighbours; each goes to its two successors."""
    words = [(a, b, c) for a in range(3) for b in range(3) for c in range(3) if a != b != c]
    W = np.eye(12) / 3
    for i, (_, b, c) in enumerate(words):
        for d in {0, 1, 2} - {c}:
            W[words.index((b, c, d)), i] = 1 / 3
    return Mixing.from_matrix(W)


def chord(n, begins=(0,)):
    """A directed ring with arcs across, weighted by senders."""
    arcs = [(i, (i + 1) % n) for i in range(n)] + [(i, (i + n // 2) % n) for i in begins]
    return build(Topology.from_edges(n, arcs, "chord", directed=True), "push")


DIRECTED = [
    (de_bruijn(16), 4, 4), (kautz(), None, 8), (chord(8), 7, 29), (chord(10, (0, 2)), 7, 26), (chord(10), 9, 39),
    (build(f.path(16), "push"), 53, 331),
]  # fmt: skip


@pytest.mark.parametrize(("mixing", "halve", "percent"), DIRECTED)
def test_rounds_of_a_mixing_that_is_not_normal_are_those_of_its_powers(mixing, halve, percent):
    promise = forecast(mixing)
    assert (promise.rounds_to_halve, promise.typical_to_halve) == by_products(mixing, 0.5)
    assert (promise.rounds_to_1_percent, promise.typical_to_1_percent) == by_products(mixing, 0.01)
    assert promise.rounds_to_1_percent == percent and halve in (None, promise.rounds_to_halve)


def test_a_mixing_with_no_eigenvalue_but_the_means_is_exact_after_as_many_rounds_as_it_takes():
    for n, rounds in ((4, 2), (16, 4), (64, 6)):
        promise = forecast(de_bruijn(n))
        assert (promise.exact_after, promise.rate) == (rounds, 0.0)


def test_the_rate_of_the_long_run_is_the_eigenvalue_and_one_round_may_leave_more():
    promise = forecast(kautz())
    assert promise.rate == pytest.approx(1 / 3) and promise.slem == pytest.approx(0.8539, abs=1e-4)


@pytest.mark.parametrize("graph", ["karate", "ring", "hypercube", "directed-exponential"])
def test_typical_rounds_of_a_normal_mixing_are_those_of_its_powers(graph):
    mixing = build(resolve(graph, None if graph == "karate" else 16))
    promise = forecast(mixing)
    assert (promise.rounds_to_halve, promise.typical_to_halve) == by_products(mixing, 0.5)
    assert (promise.rounds_to_1_percent, promise.typical_to_1_percent) == by_products(mixing, 0.01)


def test_a_long_band_ends_at_floor_and_ceiling():
    found = forecast(build(f.ring(8), "lazy"))
    lower, upper = disagreement_band(spectrum(build(f.ring(8), "lazy")).eigenvalues[1:], np.ones(3000))
    assert (lower[-1], upper[-1]) == (pytest.approx(found.floor), pytest.approx(found.ceiling))


def test_fresh_noise_settles_at_the_floor():
    """x <- W (x + noise): stationary disagreement per unit of spread, sqrt(mean_{k>=2} l_k^2 / (1 - l_k^2))."""
    mixing, random = build(f.ring(8)), seeds.stream(0, "noise")
    x, W, seen, spread = np.zeros((8, 4000)), mixing.matrix(), [], []
    for _ in range(300):
        noise = random.standard_normal(x.shape)
        x = W @ (x + noise)
        seen.append(((x - x.mean(axis=0)) ** 2).mean())
        spread.append(((noise - noise.mean(axis=0)) ** 2).mean())
    measured = math.sqrt(np.mean(seen[150:]) / np.mean(spread))
    assert measured == pytest.approx(forecast(mixing).floor, rel=0.01)


@pytest.mark.parametrize(("graph", "n"), [("ring", 16), ("none", 3), ("directed-exponential", 8), ("karate", None)])
def test_a_forecast_is_json(graph, n):
    found = forecast(build(resolve(graph, n))).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("gamma", [-0.1, 1.0, 1.5, math.nan])
def test_gamma_outside_zero_to_one_is_refused(gamma):
    with pytest.raises(ConfigError, match="gamma"):
        effective_neighbours(build(f.ring(4)), gamma)


@pytest.mark.parametrize("factor", [0.0, 1.0, -1.0])
def test_shrinking_to_nothing_or_to_all_is_refused(factor):
    with pytest.raises(ConfigError, match="shrink"):
        rounds_to(factor, 0.5)
