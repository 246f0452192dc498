"""Schedules: the graph of a round is a function of (seed, round, n), and a whole period keeps what papers promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base.errors import ConfigError
from fedgossip.topology import (
    Mixing,
    Schedule,
    build,
    for_rounds,
    forecast,
    forecast_of,
    product_norm,
    resolve,
    resolve_schedule,
    schedule_names,
    union,
)
from fedgossip.topology.schedules.schedules import KEPT
from fedgossip.topology.spectra import sequences

DETERMINISTIC = ["one-peer-exponential", "base:1", "base:2", "simple-base:2", "window-doubling"]
DRAWN = ["random-matching", "el-oracle:2", "el-local:2"]
SIZES = st.integers(4, 40)


def product(schedule: Schedule, rounds: int, start: int = 0) -> np.ndarray:
    """W_{start+rounds-1} ... W_start."""
    P = np.eye(schedule.n)
    for number in range(start, start + rounds):
        P = schedule.mixing(number).matrix() @ P
    return P


def left_of(P: np.ndarray) -> float:
    """||P - J||_2: what is left of the worst disagreement."""
    return float(np.linalg.norm(P - 1 / len(P), 2))


# --- any schedule -------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*DETERMINISTIC, *DRAWN]), SIZES, st.integers(0, 200), st.integers(0, 1000))
def test_two_peers_make_the_same_round_without_talking(spec, n, number, seed):
    one, other = (resolve_schedule(spec, n, seed=seed) for _ in range(2))
    other.mixing(number + 7)  # whatever was asked before
    assert np.array_equal(one.mixing(number).matrix(), other.mixing(number).matrix())


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*DETERMINISTIC, *DRAWN]), SIZES, st.integers(0, 30))
def test_rows_sum_to_one_and_columns_too_unless_it_says_otherwise(spec, n, number):
    schedule = resolve_schedule(spec, n, seed=1)
    W = schedule.mixing(number).matrix()
    assert np.allclose(W.sum(axis=1), 1, atol=1e-12)
    assert schedule.mixing(number).stochastic == schedule.stochastic
    if schedule.stochastic == "both":
        assert np.allclose(W.sum(axis=0), 1, atol=1e-12)
    else:
        assert spec.startswith("el-local")


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*DETERMINISTIC, *DRAWN]), SIZES, st.data())
def test_nobody_speaks_with_others_than_its_partners(spec, n, data):
    schedule, node = resolve_schedule(spec, n, seed=1), data.draw(st.integers(0, n - 1))
    partners = schedule.partners(node)
    assert list(partners) == sorted(set(partners) - {node})
    for number in range(schedule.period or 5):
        assert set(schedule.mixing(number).partners(node)) <= set(partners)
    if schedule.period:
        assert set(union(schedule).neighbours(node)) == set(partners)


@pytest.mark.parametrize(
    ("spec", "rounds"), [("el-oracle:2", 5), ("el-local:2", 3), ("every:3:ring:random-matching", 7)]
)
def test_in_a_run_partners_are_those_met_in_its_rounds_and_nobody_else(spec, rounds):
    schedule = for_rounds(resolve_schedule(spec, 30, seed=3), rounds)
    for node in range(30):
        met = {other for number in range(rounds) for other in schedule.mixing(number).partners(node)}
        assert schedule.partners(node) == tuple(sorted(met)) and len(met) < 29


def test_in_a_long_run_of_drawn_rounds_everybody_is_a_partner():
    assert for_rounds(resolve_schedule("el-oracle:4", 30, seed=3), 10**9).partners(7) == (*range(7), *range(8, 30))


@pytest.mark.parametrize("spec", DETERMINISTIC)
def test_cycles_repeat_after_their_period(spec):
    schedule = resolve_schedule(spec, 25)
    for number in range(schedule.period):
        assert schedule.mixing(number) is schedule.mixing(number + 3 * schedule.period)


@pytest.mark.parametrize("spec", DRAWN)
def test_random_rounds_never_repeat(spec):
    schedule = resolve_schedule(spec, 25, seed=1)
    assert schedule.period == 0
    assert len({schedule.mixing(number).topology.digest for number in range(40)}) == 40
    assert schedule.mixing(0).topology != resolve_schedule(spec, 25, seed=2).mixing(0).topology


def test_a_round_is_made_once_while_peers_are_few_rounds_apart():
    schedule = resolve_schedule("el-oracle:4", 25, seed=1)
    first = schedule.mixing(0)
    for number in range(1, KEPT):
        schedule.mixing(number)
    assert schedule.mixing(0) is first
    schedule.mixing(KEPT)
    schedule.mixing(KEPT + 1)
    assert schedule.mixing(1) is not first  # and no more than KEPT are kept
    assert np.array_equal(schedule.mixing(0).matrix(), first.matrix())


def test_one_graph_is_a_schedule_of_one_mixing():
    schedule = resolve_schedule("ring", 6)
    assert isinstance(schedule, Mixing)
    assert (schedule.name, schedule.period, schedule.partners(0)) == ("ring", 1, (1, 5))
    assert np.array_equal(schedule.matrix(), build(resolve("ring", 6)).matrix())
    assert resolve_schedule("ring", 6, weights="lazy").rule == "lazy"
    assert forecast_of(schedule) == forecast(schedule)


# --- one-peer exponential and hypercube ---------------------------------------------------------------------------


def test_one_peer_exponential_sends_half_at_distances_that_double():
    """Ying et al. (2021): i sends to i + 2^(r mod ceil(log2 n))."""
    schedule = resolve_schedule("one-peer-exponential", 6)
    assert schedule.period == 3
    assert [schedule.mixing(r).targets(5) for r in range(4)] == [(0,), (1,), (3,), (0,)]
    assert schedule.mixing(2).row(0) == {0: 0.5, 2: 0.5}


EXPONENTIAL = {
    3: 0.25,
    5: 0.20225425,
    6: 0.21650635,
    7: 0.125,
    9: 0.11746158,
    12: 0.20912908,
    20: 0.18998701,
    31: 0.03125,
    33: 0.03110850,
    50: 0.19173706,
    100: 0.19164245,
    8: 0,
    32: 0,
    1024: 0,
}


@pytest.mark.parametrize(("n", "left"), EXPONENTIAL.items())
def test_one_peer_exponential_leaves_of_a_period_what_its_fourier_modes_say(n, left):
    """max_k prod_j |cos(pi k 2^j / n)| over k = 1..n-1: 0 for powers of two (Ying et al., NeurIPS 2021)."""
    k, j = np.arange(1, n)[:, None], np.arange((n - 1).bit_length())
    formula = np.abs(np.cos(np.pi * k * 2.0**j / n)).prod(axis=1).max()
    found = product_norm(resolve_schedule("one-peer-exponential", n))
    assert found == pytest.approx(formula, abs=1e-12)
    assert found == pytest.approx(left, abs=5e-9)


@pytest.mark.parametrize("n", [6, 7, 12, 33])
def test_the_closed_form_of_a_period_is_the_norm_of_its_product(n):
    schedule = resolve_schedule("one-peer-exponential", n)
    assert product_norm(schedule) == pytest.approx(left_of(product(schedule, schedule.period)), abs=1e-12)


def test_one_step_says_nothing_about_a_sequence():
    schedule = resolve_schedule("one-peer-exponential", 32)
    assert forecast(schedule.mixing(1)).slem == pytest.approx(1)  # even and odd nodes do not meet
    promise = forecast_of(schedule)
    assert (promise.exact_after, promise.rate, promise.slem, promise.spectral_gap) == (5, 0, None, None)


def test_one_peer_exponential_is_never_exact_elsewhere_and_says_its_rate():
    promise = forecast_of(resolve_schedule("one-peer-exponential", 12))
    assert promise.exact_after is None
    assert promise.rate == pytest.approx(0.20912908 ** (1 / 4), abs=1e-8)


@pytest.mark.parametrize("power", range(1, 8))
def test_one_peer_hypercube_is_exact_after_its_dimension(power):
    schedule = resolve_schedule("one-peer-hypercube", 2**power)
    assert schedule.period == power
    assert np.allclose(product(schedule, power), 1 / 2**power, atol=1e-15)
    assert all(len(schedule.mixing(r).targets(0)) == 1 for r in range(power))


# --- Base-(k+1) ---------------------------------------------------------------------------------------------------

# Takezawa et al. (NeurIPS 2023): rounds to the exact mean for k = 1..5; in brackets those of the Simple Base graph
LENGTHS = {
    3: "3 1 1 1 1",
    5: "5 3 3 1 1",
    6: "4(5) 2 2 2 1",
    7: "5 4 3 3 3",
    10: "6(7) 4(5) 4 2 2",
    12: "5(7) 3 2 2 2",
    17: "9 5 5 4 4",
    21: "9 5(6) 4(5) 4 4",
    25: "9 6 5 2 2",
    33: "11 6(7) 5(6) 5 4",
    64: "6 6 3 3 3",
    100: "11(13) 8(9) 6(7) 3 3",
}
CASES = [(n, k, word) for n, line in LENGTHS.items() for k, word in enumerate(line.split(), 1)]


@pytest.mark.parametrize(("n", "k", "lengths"), CASES)
def test_base_graphs_take_as_many_rounds_as_published_and_are_exact(n, k, lengths):
    base, _, simple = lengths.partition("(")
    for word, length in (("base", base), ("simple-base", simple.rstrip(")") or base)):
        schedule = resolve_schedule(f"{word}:{k}", n)
        assert schedule.period == int(length)
        assert np.abs(product(schedule, schedule.period) - 1 / n).max() < 1e-12
        assert 1 <= (forecast_of(schedule).exact_after or 0) <= int(length)  # its last rounds may change nothing


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(1, 5), st.sampled_from(["base", "simple-base"]))
def test_base_graphs_are_exact_for_every_n_with_at_most_k_links(n, k, word):
    schedule = resolve_schedule(f"{word}:{k}", n)
    assert np.abs(product(schedule, schedule.period) - 1 / n).max() < 1e-12
    assert max(schedule.mixing(r).topology.degrees().max() for r in range(schedule.period)) <= k


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 3000), st.integers(1, 5))
def test_base_is_never_longer_than_the_simple_one(n, k):
    """M + 1 + p_1 <= 2 log_(k+1) n + 2, O(log n) as in Takezawa et al. (NeurIPS 2023)."""
    base, simple = (resolve_schedule(f"{word}:{k}", n).period for word in ("base", "simple-base"))
    assert base <= simple <= 2 * np.log(n) / np.log(k + 1) + 2 + 1e-9


def test_all_have_to_begin_a_period_together():
    """Begun in the middle, the rounds of a period leave up to .647594 at n = 25, k = 1: they do not commute."""
    schedule = resolve_schedule("base:1", 25)
    left = [left_of(product(schedule, schedule.period, start)) for start in range(schedule.period)]
    assert left[0] < 1e-12
    assert max(left) == pytest.approx(0.647594, abs=5e-7)


@pytest.mark.parametrize(("n", "rounds"), [(16, 4), (25, 9), (64, 6), (100, 11)])
def test_base_two_shrinks_disagreement_to_a_thousandth_with_one_message(n, rounds):
    schedule = resolve_schedule("base:1", n)
    assert left_of(product(schedule, rounds)) < 1e-3 < left_of(product(schedule, rounds - 1))
    assert forecast_of(schedule).degree_max == 1


def test_window_doubling_promises_what_its_algorithm_keeps():
    """The rounds are permutations, whose product is one: only the algorithm's sums make a mean of them."""
    promise = forecast_of(resolve_schedule("window-doubling", 25))
    assert (promise.exact_after, promise.rounds_to_1_percent, promise.n_w) == (5, 5, None)


# --- random ones --------------------------------------------------------------------------------------------------


@given(st.integers(2, 30), st.integers(0, 50))
def test_a_matching_pairs_all_but_one_of_an_odd_number(n, number):
    mixing = resolve_schedule("random-matching", n, seed=3).mixing(number)
    degrees = mixing.topology.degrees()
    assert degrees.max() == 1
    assert (degrees == 0).sum() == n % 2
    assert set(np.unique(mixing.values)) <= {0.5, 1.0}


@given(st.integers(2, 30), st.data())
def test_the_oracle_gives_everybody_s_neighbours_and_equal_weights(n, data):
    s = data.draw(st.integers(1, n - 1).filter(lambda s: n * s % 2 == 0))
    mixing = resolve_schedule(f"el-oracle:{s}", n, seed=3).mixing(4)
    assert set(mixing.topology.degrees().tolist()) == {s}
    assert np.allclose(mixing.values, 1 / (s + 1), atol=1e-15)


@given(st.integers(2, 30), st.data())
def test_el_local_sends_to_s_others_and_averages_what_arrives(n, data):
    s = data.draw(st.integers(1, n - 1))
    mixing = resolve_schedule(f"el-local:{s}", n, seed=3).mixing(4)
    for node in range(n):
        assert len(mixing.targets(node)) == s
        row = mixing.row(node)
        assert set(row.values()) == {1 / len(row)}


def test_targets_are_drawn_uniformly():
    """Every ordered pair with probability s/(n-1), within five standard deviations."""
    n, s, rounds = 7, 3, 2000
    schedule, counts = resolve_schedule(f"el-local:{s}", n, seed=1), np.zeros((7, 7))
    for number in range(rounds):
        arcs = schedule.mixing(number).topology.edges
        counts[arcs[:, 0], arcs[:, 1]] += 1
    p = s / (n - 1)
    others = counts[~np.eye(n, dtype=bool)]
    assert np.abs(others - rounds * p).max() < 5 * np.sqrt(rounds * p * (1 - p))


def test_el_local_weighs_for_push_sum_where_asked():
    """Kempe et al. (2003): 1/(s+1) of the mass to each of s random others."""
    schedule = resolve_schedule("el-local:3", 20, weights="push", seed=1)
    assert schedule.stochastic == "columns"
    x, y = np.arange(20.0), np.ones(20)
    for number in range(60):
        W = schedule.mixing(number).matrix()
        x, y = W @ x, W @ y
    assert np.allclose(x / y, 9.5, atol=1e-9)


FORMULAS = [
    ("el-oracle:4", 16, 0.14666667),
    ("el-local:1", 16, 0.60175326),
    ("el-local:4", 16, 0.18158444),
    ("el-oracle:2", 25, 0.30555556),
    ("el-local:2", 25, 0.40154541),
    ("el-oracle:4", 25, 0.16666667),
    ("el-local:4", 25, 0.20571268),
    ("el-oracle:4", 1000, 0.19919920),
    ("el-local:4", 1000, 0.24447490),
    ("random-matching", 16, 0.46666667),
    ("el-oracle:1", 16, 0.46666667),
    ("random-matching", 25, 0.5),
]


@pytest.mark.parametrize(("spec", "n", "left"), FORMULAS)
def test_a_random_round_promises_the_published_share(spec, n, left):
    """Oracle (1/(s+1))(1 - s/(n-1)), local (1/s)(1 - (1 - s/(n-1))^n) - 1/(n-1) (de Vos et al., NeurIPS 2023);
    matching (||W||_F^2 - 1)/(n - 1)."""
    promise = forecast_of(resolve_schedule(spec, n, seed=1))
    assert promise.rate**2 == pytest.approx(left, abs=5e-9)
    assert promise.mean_contraction == promise.rate


@pytest.mark.parametrize("spec", ["el-oracle:4", "random-matching", "el-oracle:1"])
@pytest.mark.parametrize("n", [16, 26])
def test_a_relabelled_round_leaves_what_its_weights_sum_to(spec, n):
    """A fixed W relabelled at random leaves (||W||_F^2 - 1)/(n - 1): not one s-regular graph differs from another."""
    schedule = resolve_schedule(spec, n, seed=1)
    W = schedule.mixing(0).matrix()
    assert schedule.contraction == pytest.approx((np.sum(W**2) - 1) / (n - 1), abs=1e-14)


@pytest.mark.parametrize(("spec", "n", "left"), [case for case in FORMULAS if case[1] < 1000])
def test_simulated_rounds_leave_the_promised_share(spec, n, left):
    """Of sum ||x_i - mean||^2 about the mean before the round; 1000 rounds, within five standard errors."""
    schedule = resolve_schedule(spec, n, seed=7)
    random = np.random.Generator(np.random.PCG64(1))
    shares = []
    for number in range(1000):
        x = random.standard_normal(n)
        x -= x.mean()
        shares.append(np.sum((schedule.mixing(number).sparse() @ x) ** 2) / np.sum(x**2))
    assert np.mean(shares) == pytest.approx(left, abs=5 * np.std(shares) / np.sqrt(len(shares)))


@pytest.mark.parametrize(
    ("spec", "n", "rounds"), [("el-oracle:4", 16, 7.2), ("el-oracle:4", 100, 8.4), ("random-matching", 64, 19.5)]
)
def test_random_rounds_shrink_disagreement_as_published(spec, n, rounds):
    """Rounds to 1e-3: ln 1e-3 / ln sqrt(c)."""
    assert np.log(1e-3) / np.log(forecast_of(resolve_schedule(spec, n)).rate) == pytest.approx(rounds, abs=0.05)


# --- effective neighbours and floors ------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "n_w"), [(0.5, 2.994152), (0.9, 9.286398), (0.951, 14.309452), (0.99, 25.428995)])
def test_one_peer_exponential_has_the_effective_neighbours_of_the_paper(gamma, n_w):
    """[1/(1-g)] / mean_i sum_{k>=1} g^(k-1) ||row_i of the product of the first k||^2 (Vogels et al., NeurIPS 2022)."""
    assert forecast_of(resolve_schedule("one-peer-exponential", 32), gamma).n_w == pytest.approx(n_w, abs=5e-7)


def summed(schedule: Schedule, gamma: float, starts: int, rounds: int) -> tuple[float, float]:
    """(n_W, floor) by their definitions, the mean over products that begin in each round below `starts`."""
    memory = spread = 0.0
    for start in range(starts):
        P = np.eye(schedule.n)
        for k in range(rounds):
            P = schedule.mixing(start + k).sparse() @ P
            memory += gamma**k * np.sum(P**2) / schedule.n
            spread += np.sum((P - 1 / schedule.n) ** 2) / (schedule.n - 1)
    return starts / ((1 - gamma) * memory), np.sqrt(spread / starts)


@pytest.mark.parametrize(("spec", "n"), [("base:1", 7), ("base:2", 11), ("one-peer-exponential", 12)])
def test_a_cycle_is_weighed_from_every_round_that_an_update_may_begin_in(spec, n):
    schedule = resolve_schedule(spec, n)
    n_w, floor = summed(schedule, 0.9, schedule.period, 250)
    promise = forecast_of(schedule, 0.9)
    assert (promise.n_w, promise.floor) == pytest.approx((n_w, floor), rel=1e-9)


@pytest.mark.parametrize("spec", ["el-oracle:2", "random-matching"])
def test_expected_effective_neighbours_are_met_by_simulation(spec):
    """E ||W_k ... W_1 - J||_F^2 = (n - 1) c^k."""
    schedule = resolve_schedule(spec, 16, seed=5)
    n_w, floor = summed(schedule, 0.5, 100, 20)
    promise = forecast_of(schedule, 0.5)
    assert (promise.n_w, promise.floor) == pytest.approx((n_w, floor), rel=0.02)


@pytest.mark.parametrize("spec", ["el-oracle:2", "random-matching"])
def test_the_ceiling_of_a_random_schedule_is_the_disagreement_under_a_steady_push(spec):
    schedule, n = resolve_schedule(spec, 16, seed=5), 16
    push = np.random.Generator(np.random.PCG64(2)).standard_normal((n, 50))
    push -= push.mean(axis=0)
    x, squares = np.zeros_like(push), []
    for number in range(600):
        x = schedule.mixing(number).sparse() @ (x + push)
        squares.append(np.sum(x**2) / np.sum(push**2))
    assert np.sqrt(np.mean(squares[50:])) == pytest.approx(forecast_of(schedule).ceiling, rel=0.02)


def test_what_is_too_large_to_compute_is_none_and_not_wrong():
    promise = forecast_of(resolve_schedule("el-local:4", 2000))
    assert promise.n_w is None and promise.exact_after is None


# --- what is written wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "n", "weights", "words"),
    [
        ("base:0", 8, None, ("base:0", "base:1")),
        ("base", 8, None, ("base:1",)),
        ("base:x", 8, None, ("base:x", "base:1")),
        ("base:1", 1, None, ("1 nodes",)),
        ("base:2", None, None, ("number of nodes",)),
        ("one-peer-hypercube", 12, None, ("power of two", "8 or 16", "one-peer-exponential")),
        ("one-peer-exponential:3", 12, None, ("nothing may follow",)),
        ("random-matching", 1, None, ("at least 2",)),
        ("el-oracle:8", 8, None, ("el-oracle:8", "at most 7")),
        ("el-oracle:3", 7, None, ("odd", "el-oracle:4", "el-local:3")),
        ("el-oracle:0", 7, None, ("at least 1",)),
        ("el-local:7", 7, None, ("at most 6",)),
        ("base:1", 8, "lazy", ("lazy", "bring their own")),
        ("el-local:2", 8, "metropolis", ("uniform and push",)),
        ("one-peer-exponentail", 8, None, ("one-peer-exponential",)),
    ],
)
def test_what_is_written_wrong_is_named(spec, n, weights, words):
    with pytest.raises(ConfigError) as caught:
        resolve_schedule(spec, n, weights=weights)
    text = f"{caught.value} {caught.value.advice}"
    assert all(word in text for word in words), text


def test_a_schedule_is_not_taken_for_one_graph():
    with pytest.raises(ConfigError, match="not one graph"):
        resolve("base:2", 8)


def test_every_schedule_has_a_name():
    assert {spec.partition(":")[0] for spec in [*DETERMINISTIC, *DRAWN]} <= set(schedule_names())


@pytest.mark.parametrize("spec", ["one-peer-exponential", "base:2", "el-oracle:4", "el-local:4", "random-matching"])
def test_large_schedules_are_made_round_by_round(spec):
    schedule = resolve_schedule(spec, 10_000, seed=1)
    assert schedule.mixing(12).n == 10_000


@pytest.mark.parametrize(("spec", "halve", "percent"), [("random-matching", 5.8, 17.7), ("el-oracle:4", 2.5, 7.2)])
def test_the_worst_direction_of_drawn_rounds_is_that_of_their_products(spec, halve, percent):
    """Not of the expected square, which is what a direction that was fixed before the rounds were drawn keeps."""
    n = 26 if spec == "random-matching" else 25
    promise = forecast_of(resolve_schedule(spec, n))
    assert promise.rounds_to_halve == pytest.approx(halve, abs=1) and promise.draws == 64
    assert promise.rounds_to_1_percent == pytest.approx(percent, abs=1.5)
    assert promise.rounds_to_1_percent <= promise.late_to_1_percent and promise.rounds_to_halve <= promise.late_to_halve
    assert promise.typical_to_1_percent < promise.rounds_to_1_percent


@pytest.mark.parametrize(
    ("k", "n", "n_w", "messages", "floor"), [(1, 25, 10.985, 0.96, 1.0797), (3, 21, 14.458, 2.0, 0.6859)]
)
def test_the_base_graph_is_the_published_one(k, n, n_w, messages, floor):
    """Numbers of the authors' own program, with links among nodes that are left (inner edges)."""
    promise = forecast_of(resolve_schedule(f"base:{k}", n), 0.951)
    assert (promise.messages, promise.floor) == (pytest.approx(messages), pytest.approx(floor, abs=5e-4))
    assert promise.n_w == pytest.approx(n_w, abs=5e-4)


def test_the_base_2_graph_of_seven_nodes_links_those_that_the_paper_links():
    schedule = resolve_schedule("base:1", 7)
    links = [[tuple(map(int, edge)) for edge in schedule.mixing(r).topology.edges] for r in range(5)]
    assert links == [
        [(0, 1), (2, 3), (4, 5)], [(0, 2), (1, 3), (4, 5)], [(1, 5), (2, 4), (3, 6)],
        [(0, 1), (2, 3), (5, 6)], [(0, 2), (1, 3), (4, 5)],
    ]  # fmt: skip


# --- large cycles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "n"), [("base:1", 200), ("simple-base:2", 130), ("leja:torus:10x10", 100)])
def test_of_large_cycles_random_vectors_say_what_dense_products_do(monkeypatch, spec, n):
    """n_W within 5 standard errors, the floor near it, the rounds of worst directions by Lanczos to the round."""
    schedule = resolve_schedule(spec, n)
    dense = forecast_of(schedule)
    monkeypatch.setattr(sequences, "WORST_LIMIT", 50)
    found = forecast_of(schedule)
    assert found.method == "estimated" and 0 < found.n_w_error < 0.05 * found.n_w
    assert abs(found.n_w - dense.n_w) < 5 * found.n_w_error
    assert found.floor == pytest.approx(dense.floor, rel=0.03)
    assert (found.rounds_to_halve, found.rounds_to_1_percent) == (dense.rounds_to_halve, dense.rounds_to_1_percent)
    assert abs(found.typical_to_1_percent - dense.typical_to_1_percent) <= 1
    assert found.exact_after == dense.exact_after


def test_of_a_large_cycle_that_is_never_exact_the_rate_is_that_of_its_product(monkeypatch):
    schedule = resolve_schedule("every:4:ring:torus", 64)
    norm = left_of(product(schedule, schedule.period))
    monkeypatch.setattr(sequences, "WORST_LIMIT", 50)
    found = forecast_of(schedule)
    assert found.rate == pytest.approx(norm ** (1 / schedule.period), rel=1e-8)
    assert left_of(product(schedule, found.rounds_to_1_percent)) <= 0.01 * (1 + 1e-6)
    assert left_of(product(schedule, found.rounds_to_1_percent - 1)) > 0.01


def test_of_2048_peers_on_a_hypercube_the_estimate_meets_the_formula():
    """After k <= 11 rounds each has the mean of 2^k, whatever round is the first: ||P - J||_F^2 = n / 2^k - 1."""
    n, gamma = 2048, 0.9
    found = forecast_of(resolve_schedule("one-peer-hypercube", n), gamma)
    left = [n / 2**k - 1 for k in range(1, 12)]
    n_w = n / (1 + (1 - gamma) * sum(gamma**k * one for k, one in enumerate(left)))
    assert abs(found.n_w - n_w) < 5 * found.n_w_error < 0.1 * n_w
    assert found.floor == pytest.approx((sum(left) / (n - 1)) ** 0.5, rel=0.01)
    assert found.typical_to_halve in (2, 3), "0.2496 of the squares is left after 2 rounds, and a half is 0.25"
    assert (found.typical_to_1_percent, found.rounds_to_halve) == (11, 11)


@pytest.mark.parametrize(("graph", "n"), [("base:99", 16), ("one-peer-exponential", 2)])
def test_a_sequence_of_one_graph_has_the_spectrum_of_that_graph(graph: str, n: int) -> None:
    schedule = resolve_schedule(graph, n)
    assert schedule.period == 1
    assert forecast_of(schedule) == forecast(schedule.mixing(0))
    assert forecast_of(schedule).spectral_gap == pytest.approx(1.0, abs=1e-12)
