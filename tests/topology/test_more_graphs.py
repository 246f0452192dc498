"""Graphs with weights of their own, schedules made of others, optimal weights: against papers and plain formulas."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest
from fedgossip.plans import compose
from fedgossip.topology import Cycle, Mixing, Topology, build, forecast_of, ready, resolve, resolve_schedule, spectrum
from fedgossip.topology.graphs import families
from fedgossip.topology.schedules import cycles, random_schedules

EIGHT = 5.1e-9


def left_of(schedule: Any, rounds: int) -> float:
    """||W_rounds ... W_1 - J||_2."""
    P = np.eye(schedule.n)
    for number in range(rounds):
        P = schedule.mixing(number).matrix() @ P
    return float(np.linalg.norm(P - 1 / len(P), 2))


def shares(W: np.ndarray) -> float:
    """(||W||_F^2 - 1)/(n - 1): what one round leaves of the square, over all directions."""
    return float(((W**2).sum() - 1) / (len(W) - 1))


# --- de Bruijn and Kautz --------------------------------------------------------------------------------------------


@given(st.sampled_from(["debruijn", "kautz"]), st.integers(3, 60), st.data())
def test_words_are_doubly_stochastic_for_every_n(word, n, data):
    """Imase and Itoh (1981): every node is reached by k others; loops are what a node keeps."""
    k = data.draw(st.integers(1, n - 1))
    mixing = resolve_words(word, n, k)
    W = mixing.matrix()
    assert np.allclose(W.sum(axis=0), 1)
    assert np.allclose(W.sum(axis=1), 1)
    for i in range(n):
        others = [(k * i + r) % n if word == "debruijn" else -(k * i + r + 1) % n for r in range(k)]
        share = 1 / k if word == "debruijn" else 1 / (k + 1)
        assert all(W[j, i] == pytest.approx(share + (j == i) * (word == "kautz") * share) for j in others)


def resolve_words(word: str, n: int, k: int) -> Mixing:
    from fedgossip.topology.graphs import grammar

    return {"debruijn": grammar.debruijn, "kautz": grammar.kautz}[word](n, k)


@pytest.mark.parametrize(("n", "k", "rounds"), [(16, 2, 4), (25, 5, 2), (64, 4, 3), (100, 10, 2)])
def test_debruijn_is_exact_after_log_k_n_rounds(n, k, rounds):
    schedule = resolve_schedule(f"debruijn:{k}", n)
    assert left_of(schedule, rounds) < 1e-14 < left_of(schedule, rounds - 1)
    assert forecast_of(schedule).exact_after == rounds


def test_debruijn_elsewhere_and_kautz():
    """n = 25, K = 2: .192116 left after 5 rounds, |l2| = 1/2; K(2, 3): |l2| = 1/3, ||W - J|| = .85385."""
    schedule = resolve_schedule("debruijn:2", 25)
    assert left_of(schedule, 5) == pytest.approx(0.192116, abs=5e-7)
    assert forecast_of(schedule).rate == pytest.approx(0.5, abs=1e-9)
    assert forecast_of(resolve_schedule("debruijn:5", 25)).n_w == pytest.approx(17.8571, abs=5e-5)
    assert forecast_of(resolve_schedule("debruijn:2", 16)).n_w == pytest.approx(7.8011, abs=5e-5)
    kautz = forecast_of(resolve_schedule("kautz:2", 12))
    assert kautz.slem == pytest.approx(0.85385, abs=5e-6)
    assert kautz.rate == pytest.approx(1 / 3, abs=1e-6)


# --- EquiTopo -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["equi-static:5", "u-equi-static:5"])
@pytest.mark.parametrize("n", [2, 9, 16])
def test_a_static_one_is_the_mean_of_its_shifts(spec, n):
    """Song et al. (NeurIPS 2022): (n-1)/n to the node a further on and 1/n to oneself, for each of M shifts."""
    mixing = resolve_schedule(spec, n, seed=3)
    from fedgossip.base import seeds

    shifts = seeds.stream(3, "equi-static", n, 5).integers(1, n, 5)
    W = sum(((n - 1) * np.roll(np.eye(n), a, axis=0) + np.eye(n)) / n / 5 for a in shifts)
    assert np.allclose(mixing.matrix(), (W + W.T) / 2 if spec.startswith("u") else W, atol=1e-15)
    if n > 2:
        assert mixing.generator is not None  # so that a million nodes have a closed form
        assert spectrum(mixing).slem == pytest.approx(np.linalg.norm(mixing.matrix() - 1 / n, 2), abs=1e-12)


def test_the_rate_of_static_ones_does_not_grow_with_n():
    """M = 8 ln(2n/p) / (3 eps^2) shifts keep rho below eps with probability 1 - p: 20 seeds, p = .05, eps = .6."""
    for n in (300, 1000, 3000):
        m = math.ceil(8 * math.log(2 * n / 0.05) / (3 * 0.6**2))
        found = [spectrum(resolve_schedule(f"equi-static:{m}", n, seed=seed)).slem for seed in range(20)]
        assert sum(slem < 0.6 for slem in found) >= 19


@pytest.mark.parametrize(("n", "eta"), [(8, 0.5), (25, 0.5), (16, 0.53), (9, 1.0)])
def test_equi_dynamic_leaves_the_share_of_its_formula(n, eta):
    """c^2 + s^2 - 2cs/(n-1), c = 1 - eta + eta/n, s = eta (n-1)/n; eta = 1/2: (n-1)/(2n)."""
    spec = "equi-dynamic" if eta == 0.5 else f"equi-dynamic:{eta}"
    schedule = resolve_schedule(spec, n, seed=1)
    c, s = 1 - eta + eta / n, eta * (n - 1) / n
    assert schedule.contraction == pytest.approx(c**2 + s**2 - 2 * c * s / (n - 1), abs=1e-14)
    assert shares(schedule.mixing(0).matrix()) == pytest.approx(schedule.contraction, abs=1e-12)
    if eta == 0.5:
        assert schedule.contraction == pytest.approx((n - 1) / (2 * n), abs=1e-14)


@pytest.mark.parametrize(("n", "printed"), [(8, 0.50781250), (16, 0.54113926), (25, 0.55839692)])
def test_pairs_along_a_shift_leave_their_published_share_of_the_worst_direction(n, printed):
    """l_2(E[W'W]) over all shifts and starts, by counting them all; the moment of the schedule is the same matrix."""
    given, total = 0.5 * (n - 1) / n, np.zeros((n, n))
    for shift in range(1, n):
        for start in range(n):
            W = np.eye(n)
            for i, j in families.pairs_along(n, shift, start):
                W[i, i] = W[j, j] = 1 - given
                W[i, j] = W[j, i] = given
            total += W.T @ (np.eye(n) - 1 / n) @ W
    total /= n * (n - 1)
    assert np.linalg.eigvalsh(total)[-1] == pytest.approx(printed, abs=EIGHT)
    schedule = resolve_schedule("u-equi-dynamic", n, seed=1)
    assert np.allclose(schedule.moment(np.eye(n) - 1 / n), total, atol=1e-14)


def test_a_pair_is_a_shift_apart_and_nobody_has_two():
    pairs = families.pairs_along(9, 4, 7)
    assert pairs[0].tolist() == [7, 2]
    assert ((pairs[:, 1] - pairs[:, 0]) % 9 == 4).all()
    assert len(set(pairs.ravel().tolist())) == pairs.size


# --- MATCHA ---------------------------------------------------------------------------------------------------------

MATCHINGS = [[(1, 5), (6, 7), (0, 4), (2, 3)], [(1, 7), (3, 6)], [(1, 0), (3, 7), (5, 6)], [(1, 2), (7, 0)], [(3, 1)]]


@pytest.mark.parametrize(("budget", "printed"), [(0.5, 0.643977), (0.75, 0.607932), (0.25, 0.816113)])
def test_matcha_finds_the_published_probabilities(budget, printed):
    """Wang et al. (2019), their 8 nodes and matchings; printed from a projected ascent, so to about 2e-6."""
    laplacians = [random_schedules.laplacian(8, np.array(m)) for m in MATCHINGS]
    p = random_schedules.activation(laplacians, budget)
    step, left = random_schedules.best_step(laplacians, p)
    assert left == pytest.approx(printed, abs=3e-6)
    ready = resolve_schedule(f"matcha:{budget}:matcha-8", seed=1)
    assert np.linalg.eigvalsh(ready.moment(np.eye(8) - 1 / 8))[-1] == pytest.approx(printed, abs=3e-6)
    assert forecast_of(ready).expected_contraction == pytest.approx(printed, abs=3e-6)
    assert p.sum() <= 5 * budget + 1e-9
    if budget == 0.5:
        assert p == pytest.approx([0.983728, 0, 0.758138, 0.758134, 0], abs=3e-5)
        assert step == pytest.approx(0.396429, abs=1e-5)


def test_a_drawn_matching_contracts_as_its_formula_has_it():
    """W = (I + P) / 2 of a matching P is a projection, so E[W'W] = E[W]; E[P] = (n J - I) / (n - 1)."""
    found = forecast_of(resolve_schedule("random-matching", 16, seed=1)).expected_contraction
    assert found == pytest.approx(0.5 - 1 / 30, abs=1e-12)
    assert forecast_of(resolve_schedule("one-peer-exponential", 16)).expected_contraction is None  # nothing is drawn


def test_probabilities_are_the_best_there_are():
    """l_2(sum p L) is concave: no other p within the budget has more, of 2000 drawn; and it is near what it says."""
    laplacians = [random_schedules.laplacian(8, np.array(m)) for m in MATCHINGS]
    value = lambda p: np.linalg.eigvalsh(np.tensordot(p, np.array(laplacians), 1))[1]  # noqa: E731
    p, random = random_schedules.activation(laplacians, 0.4), np.random.default_rng(0)
    best = value(p)
    for _ in range(2000):
        other = np.clip(p + random.normal(0, 10 ** random.uniform(-4, 0), 5), 0, 1)
        other = other * min(1, 2.0 / other.sum())
        assert value(other) <= best * (1 + random_schedules.GAP)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 25), st.floats(0.05, 1), st.integers(0, 1000))
def test_edges_are_coloured_with_at_most_one_colour_more_than_the_degree(n, p, seed):
    """Vizing: every matching has each node once, together they are the edges."""
    graph = Topology.from_networkx(nx.gnp_random_graph(n, p, seed=seed))
    found = random_schedules.decomposed(graph)
    assert len(found) <= int(graph.degrees().max(initial=0)) + 1
    assert all(len(set(m.ravel().tolist())) == m.size for m in found)
    assert sorted(tuple(e) for m in found for e in m.tolist()) == sorted(map(tuple, graph.edges.tolist()))


def test_matcha_promises_what_its_rounds_leave():
    """E ||W_k ... W_1 - J||_F^2 / (n - 1) by the second moment, against the mean of 400 draws."""
    schedule = resolve_schedule("matcha:0.5:matcha-8", seed=1)
    promise = forecast_of(schedule)
    M = np.eye(8) - 1 / 8
    drawn = [np.eye(8)] * 400
    others = [dataclasses.replace(schedule, seed=seed) for seed in range(400)]
    for number in range(3):
        M = schedule.moment(M)
        drawn = [other.mixing(number).matrix() @ P for other, P in zip(others, drawn, strict=True)]
    left = [((P - 1 / 8) ** 2).sum() for P in drawn]
    assert np.mean(left) == pytest.approx(np.trace(M), abs=5 * np.std(left) / 20)
    one = schedule.moment(np.eye(8) - 1 / 8)
    assert promise.expected_contraction == pytest.approx(np.linalg.norm(one, 2), abs=1e-12)
    assert promise.mean_contraction**2 == pytest.approx(np.trace(one) / 7, abs=1e-12)
    full = resolve_schedule("matcha:1:matcha-8", seed=1)
    assert spectrum(full.mixing(0)).slem == pytest.approx(0.80856489, abs=1e-6)  # every link: best-constant


# --- Leja, shuffled, every, spanning trees --------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "n", "rounds"), [("ring", 64, 32), ("torus:4x4", None, 4), ("hypercube", 16, 4)])
def test_leja_ends_at_the_exact_mean_of_a_fixed_graph(graph, n, rounds):
    """I - L/mu over the distinct mu (ring 64: error 3.6e-14 published for this order, 2.7e-3 in ascending order)."""
    schedule = resolve_schedule(f"leja:{graph}", n)
    assert schedule.period == rounds
    assert left_of(schedule, rounds) < 3.6e-14
    assert forecast_of(schedule).exact_after == rounds


def test_leja_refuses_a_graph_on_which_rounding_would_grow():
    with pytest.raises(ConfigError, match=r"leja:karate: 29 distinct eigenvalues"):
        resolve_schedule("leja:karate")
    mu = cycles.distinct(ready("karate"))
    assert cycles.growth(cycles.leja_order(mu)) > cycles.MOST_GROWTH


def test_shuffled_gives_a_graph_new_places_in_every_round():
    """(||W||_F^2 - 1)/(n - 1) is left, whatever the direction: mean of 3000 draws of one vector, 5 standard errors."""
    schedule = resolve_schedule("shuffled:star", 9, seed=2)
    W = build(resolve("star", 9)).matrix()
    assert schedule.contraction == pytest.approx(shares(W), abs=1e-14)
    x = np.array([3.0, -1, -2, *[0] * 6])
    kept = [float(((schedule.mixing(number).matrix() @ x) ** 2).sum()) / 14 for number in range(3000)]
    assert np.mean(kept) == pytest.approx(schedule.contraction, abs=5 * np.std(kept) / math.sqrt(3000))
    assert {schedule.mixing(number).topology.degrees().argmax() for number in range(99)} == set(range(9))
    directed = resolve_schedule("shuffled:debruijn:2", 9, seed=2)
    assert np.allclose(directed.mixing(3).matrix().sum(axis=0), 1)


def test_every_leaves_no_round_of_a_cycle_out():
    """every:3:complete:base:1 on 5 nodes: rounds 2, 5, ... are complete, the others go on through base:1."""
    schedule, base = resolve_schedule("every:3:complete:base:1", 5), resolve_schedule("base:1", 5)
    usual = [schedule.mixing(number) for number in range(schedule.period) if number % 3 != 2]
    assert schedule.period == 15  # 5 rounds of base:1, of which a block of three takes two: five blocks
    assert all(one is base or np.array_equal(one.matrix(), base.mixing(k).matrix()) for k, one in enumerate(usual))
    assert np.allclose(schedule.mixing(2).matrix(), 1 / 5)
    random = resolve_schedule("every:4:ring:el-oracle:2", 12, seed=1)
    assert (random.period, random.mixing(3).topology.name) == (0, "ring")
    assert set(random.mixing(0).partners(0)) <= set(random.partners(0))


def test_names_may_stand_in_names():
    deep = resolve_schedule("every:4:shuffled:regular:4:every:2:complete:ring", 12)
    assert (deep.mixing(3).topology.name, deep.mixing(1).topology.name) == ("shuffled:regular", "complete")
    nested = resolve_schedule("every:4:complete:every:2:star:ring", 12)
    assert isinstance(nested, Cycle)
    assert nested.mixing(1).topology.name == "star"


@pytest.mark.parametrize(("graph", "n"), [("karate", None), ("torus:4x5", None), ("regular:3", 20), ("path", 7)])
def test_a_spanning_tree_is_one_and_of_shortest_ways(graph, n):
    whole, tree = resolve(graph, n), resolve(f"spanning-tree:{graph}", n)
    assert tree.is_connected
    assert len(tree.edges) == whole.n - 1
    assert set(map(tuple, tree.edges.tolist())) <= set(map(tuple, whole.edges.tolist()))
    root = int(whole.degrees().argmax())
    ways = nx.single_source_shortest_path_length
    assert ways(tree.to_networkx(), root) == ways(whole.to_networkx(), root)


# --- weights --------------------------------------------------------------------------------------------------------

OPTIMAL = [
    ("boyd-8", None, 0.64333140, 0.68096068),
    ("path", 4, 0.70710678, 0.70710678),
    ("paw", None, 0.57735027, 0.63636364),
    ("k2-3", None, 0.42857143, 0.42857143),
    ("petersen", None, 0.42857143, 0.42857143),
    ("grid:4x4", None, 0.82438864, 0.82438864),
    ("barbell:5,0", None, 0.89442719, 0.91774188),
]


@pytest.mark.parametrize(("graph", "n", "fdla", "fmmc"), OPTIMAL)
def test_the_fastest_weights_are_the_published_ones(graph, n, fdla, fmmc):
    """CVX's examples (Boyd); star and ring below in closed form."""
    topology = resolve(graph, n)
    assert spectrum(build(topology, "fdla")).slem == pytest.approx(fdla, abs=EIGHT)
    found = build(topology, "fmmc")
    assert spectrum(found).slem == pytest.approx(fmmc, abs=EIGHT)
    assert found.values.min() >= 0


def test_the_fastest_weights_of_stars_and_rings():
    """Star: FDLA (n-1)/(n+1), FMMC 1 - 1/(n-1); ring: best-constant is the fastest."""
    assert spectrum(build(resolve("star", 9), "fdla")).slem == pytest.approx(8 / 10, abs=EIGHT)
    assert spectrum(build(resolve("star", 9), "fmmc")).slem == pytest.approx(1 - 1 / 8, abs=EIGHT)
    ring = resolve("ring", 10)
    assert spectrum(build(ring, "fmmc")).slem == pytest.approx(0.8256645486, abs=EIGHT)


def test_sinkhorn_balances_a_ring_with_a_chord():
    """n = 5, 0 -> 2: ||W - J|| = .82516615, |l2| = .73203032."""
    chord = Topology.from_edges(5, [*[(i, (i + 1) % 5) for i in range(5)], (0, 2)], directed=True)
    found = spectrum(build(chord, "sinkhorn"))
    assert (found.slem, found.rate) == (pytest.approx(0.82516615, abs=EIGHT), pytest.approx(0.73203032, abs=EIGHT))
    open_end = Topology.from_edges(4, [(0, 1), (1, 2), (2, 0), (2, 3)], directed=True)
    with pytest.raises(ConfigError, match="row 3 receives from node 2"):
        build(open_end, "sinkhorn")


def test_inverse_weights_are_a_plain_average_of_what_is_heard():
    mixing = build(resolve("star", 5), "inverse")
    assert mixing.row(0) == dict.fromkeys(range(5), 0.2)
    assert (mixing.row(3), mixing.stochastic) == ({0: 0.5, 3: 0.5}, "rows")


def test_pi_weights_keep_the_weighted_mean(tmp_path):
    """Hastings (1970): pi W = pi; with equal numbers Metropolis to the bit."""
    pi = tmp_path / "sizes.txt"
    pi.write_text("# examples\n1\n2\n3\n4\n5\n")
    mixing = build(resolve("star", 5), f"pi:{pi}")
    weights = np.arange(1.0, 6) / 15
    assert np.allclose(weights @ mixing.matrix(), weights, atol=1e-15)
    assert mixing.stochastic == "rows"
    assert (mixing.values >= 0).all()
    pi.write_text("2\n2\n2\n2\n2\n")
    even = build(resolve("star", 5), f"pi:{pi}")
    assert np.allclose(even.matrix(), build(resolve("star", 5)).matrix(), atol=1e-16)


@pytest.mark.parametrize(
    ("text", "message"), [("1\n2\n", "2 values for 4 nodes"), ("1\n0\n1\n1\n", "node 1 has 0"), ("1\nx\n", "line 2")]
)
def test_a_bad_file_of_pi_is_named(tmp_path, text, message):
    (tmp_path / "pi.txt").write_text(text)
    with pytest.raises(ConfigError, match=message):
        build(resolve("ring", 4), f"pi:{tmp_path / 'pi.txt'}")


@pytest.mark.parametrize(
    ("spec", "n", "message"),
    [
        ("debruijn:16", 16, "debruijn:16 of 16 nodes"),
        ("kautz:0", 16, "kautz:0 of 16"),
        ("equi-static:0", 16, "equi-static:0"),
        ("equi-dynamic:1.5", 16, "equi-dynamic:1.5"),
        ("matcha:0:ring", 16, "budget of 0"),
        ("matcha:1.2:ring", 16, "budget of 1.2"),
        ("matcha:ring", 16, "no budget"),
        ("matcha:0.5:rign", 16, "rign"),
        ("matcha:0.5:directed-exponential", 16, "is directed"),
        ("leja:directed-exponential", 16, "is directed"),
        ("shuffled", 16, "names no graph"),
        ("every:1:complete:ring", 16, "every 1 rounds"),
        ("every:x:complete:ring", 16, "cannot be read"),
        ("every:3:complete:window-doubling", 16, "for the algorithm"),
        ("every:3:karate:ring", None, "number of nodes"),
        ("spanning-tree:directed-exponential", 16, "is directed"),
    ],
)
def test_what_cannot_be_is_said_in_a_line_with_advice(spec, n, message):
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_schedule(spec, n)
    assert caught.value.advice


def test_weights_that_graphs_bring_cannot_be_others():
    with pytest.raises(ConfigError, match="brings its own"):
        resolve_schedule("debruijn:2", 8, weights="metropolis")
    assert resolve_schedule("shuffled:ring", 8, weights="lazy").rule == "lazy"
    with pytest.raises(ConfigError, match="201 nodes"):
        build(resolve("ring", 201), "fmmc")


# --- in runs --------------------------------------------------------------------------------------------------------

RUN = ["debruijn:2", "kautz:2", "equi-static:3", "u-equi-static:3", "u-equi-dynamic", "leja:ring", "shuffled:ring"]
RUN += ["every:3:complete:ring", "spanning-tree:torus:2x4"]


def averaging(graph: str) -> dict[str, Any]:
    task = {"kind": "averaging", "dim": 5, "dtype": "float64"}
    return {"rounds": 9, "task": task, "topology": {"graph": graph, "n": 8}, "algorithm": {"deadline": 1e5}}


@pytest.mark.parametrize("graph", [*RUN, "matcha:0.5:regular:3", "equi-dynamic"])
def test_simulator_and_stacked_arrays_give_the_same_bits(graph):
    wild = {"training_jitter": 2.0, "speed_spread": 0.5, "jitter": 0.3}
    expected = simulate(averaging(graph), engine="stacked")
    assert simulate({**averaging(graph), "simulation": wild}).digest == expected.digest


@pytest.mark.sockets
@pytest.mark.parametrize("graph", ["matcha:0.5:regular:3", "equi-dynamic"])
def test_peers_draw_the_same_rounds_over_sockets_without_talking(graph):
    plan = compose.plan(load_experiment(averaging(graph)))
    task, _ = compose.task_of(plan.experiment, plan.n)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == simulate(averaging(graph), engine="stacked").digest
