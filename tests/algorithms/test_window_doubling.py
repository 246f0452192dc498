"""Window doubling: the exact mean in ceil(log2 n) rounds for every n, with one vector sent per round.

Source: Ding, Jin, Ying, Yuan and Yin, DSGD-CECA: decentralized SGD with communication-optimal exact consensus
algorithm, ICML 2023.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.algorithms.gossip.base import Step, restored, saved
from fedgossip.algorithms.gossip.window_doubling import WindowDoubling
from fedgossip.base.vectors import add, frozen, ordered_mix, ordered_mix_rows
from fedgossip.topology import Mixing, resolve_schedule


def vectors(n: int, d: int = 3, kind=np.float64) -> np.ndarray:
    return frozen(np.random.Generator(np.random.PCG64(n)).standard_normal((n, d)).astype(kind))


def mixed(mixing: Mixing, stacked: np.ndarray) -> np.ndarray:
    out = np.empty_like(stacked)
    ordered_mix_rows(mixing.rows_by_degree(), stacked, out)
    return frozen(out)


def one_round(algorithm, schedule, state, number, update=None):
    begun, (sent,) = algorithm.trained(state, update, Step(number))
    return algorithm.mixed(begun, (mixed(schedule.mixing(number), sent),))


def averaged(n: int, rounds: int):
    """All peers' models after `rounds` without training, and what they began with."""
    x, schedule, algorithm = vectors(n), resolve_schedule("window-doubling", n), WindowDoubling(n)
    state = algorithm.start(x)
    for number in range(rounds):
        state = one_round(algorithm, schedule, state, number)
    return algorithm.model(state), x


@settings(deadline=None)
@given(st.integers(2, 150))
def test_all_have_the_exact_mean_after_log2_n_rounds(n):
    schedule = resolve_schedule("window-doubling", n)
    assert schedule.period == int(np.ceil(np.log2(n)))
    found, x = averaged(n, schedule.period)
    assert np.abs(found - x.mean(axis=0)).max() < 1e-12


@pytest.mark.parametrize(("n", "rounds"), [(16, 4), (25, 5), (64, 6), (100, 7)])
def test_disagreement_is_gone_after_as_many_rounds_as_published(n, rounds):
    """ceil(log2 n), the fewest rounds in which anybody can have heard of n others, one message each."""
    found, x = averaged(n, rounds)
    before, _ = averaged(n, rounds - 1)
    assert np.ptp(found, axis=0).max() < 1e-3 * np.ptp(x, axis=0).max() < np.ptp(before, axis=0).max()


def test_each_sends_and_hears_one_message_per_round():
    schedule = resolve_schedule("window-doubling", 25)
    for number in range(schedule.period):
        mixing = schedule.mixing(number)
        assert all(len(mixing.targets(node)) == 1 for node in range(25))
        assert all(sorted(mixing.row(node).values()) == [0.0, 1.0] for node in range(25))


def test_disagreement_never_grows_within_a_window():
    """The model is the mean of a window that grows, so it nears the mean before the window is full."""
    spreads = [np.linalg.norm(found - found.mean(axis=0)) for found, _ in (averaged(100, r) for r in range(8))]
    assert spreads == sorted(spreads, reverse=True)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 40), st.integers(1, 15), st.data())
def test_no_update_is_lost_and_none_counts_twice(n, rounds, data):
    """mean_i model_i = mean_i x_i + the mean of all updates so far, after every round."""
    schedule, algorithm, x = resolve_schedule("window-doubling", n), WindowDoubling(n), vectors(n)
    state, expected = algorithm.start(x), x.mean(axis=0)
    for number in range(rounds):
        update = data.draw(st.sampled_from([None, vectors(n + number + 1)[:n]]))
        state = one_round(algorithm, schedule, state, number, update)
        expected = expected if update is None else expected + update.mean(axis=0)
        assert np.allclose(algorithm.model(state).mean(axis=0), expected, atol=1e-12)


def test_updates_are_common_to_all_a_window_after_the_one_in_which_they_were_made():
    n = 11
    schedule, algorithm, x = resolve_schedule("window-doubling", n), WindowDoubling(n), vectors(n)
    state, window = algorithm.start(x), schedule.period
    for number in range(window):
        state = one_round(algorithm, schedule, state, number, x)
    assert np.ptp(algorithm.model(state), axis=0).max() > 1
    for number in range(window, 2 * window):
        state = one_round(algorithm, schedule, state, number)
    assert np.allclose(algorithm.model(state), (1 + window) * x.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_one_peer_and_all_at_once_give_the_same_bits(kind):
    n, x = 13, vectors(13, kind=kind)
    schedule, together = resolve_schedule("window-doubling", n), WindowDoubling(n)
    alone = [WindowDoubling(n) for _ in range(n)]
    all_states, states = together.start(x), [alone[node].start(x[node]) for node in range(n)]
    for number in range(9):
        update = None if number % 3 == 2 else vectors(n + number, kind=kind)[:n]
        mixing = schedule.mixing(number)
        all_states = one_round(together, schedule, all_states, number, update)
        given = [None if update is None else update[i] for i in range(n)]
        begun = [alone[i].trained(states[i], given[i], Step(number)) for i in range(n)]
        heard = [ordered_mix([(w, begun[j][1][0]) for j, w in mixing.row(i).items()]) for i in range(n)]
        states = [alone[i].mixed(begun[i][0], (heard[i],)) for i in range(n)]
        models = np.stack([alone[i].model(states[i]) for i in range(n)])
        assert models.tobytes() == together.model(all_states).tobytes()


def test_with_two_peers_it_is_dsgd():
    """A window of one round: x <- mean_j (x_j + u_j)."""
    schedule, algorithm, x = resolve_schedule("window-doubling", 2), WindowDoubling(2), vectors(2)
    state = one_round(algorithm, schedule, algorithm.start(x), 0, x)
    assert np.allclose(algorithm.model(state), 2 * x.mean(axis=0), atol=1e-15)


@pytest.mark.parametrize("lost_in", range(4))
def test_a_late_message_is_made_up_for_before_the_next_round(lost_in):
    """Node 3 mixed without its source, the weight went to itself; then the source's message came after all."""
    n, x = 13, vectors(13)
    schedule, algorithm = resolve_schedule("window-doubling", n), WindowDoubling(n)
    state = algorithm.start(x)
    for number in range(schedule.period):
        state, (sent,) = algorithm.trained(state, None, Step(number))
        arrived = mixed(schedule.mixing(number), sent).copy()
        late = np.zeros_like(arrived)
        if number == lost_in:
            late[3] = arrived[3] - sent[3]
            arrived[3] = sent[3]
        state = algorithm.corrected(algorithm.mixed(state, (frozen(arrived),)), (late,))
    assert np.allclose(algorithm.model(state), x.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("rounds", range(6))
def test_a_saved_state_goes_on_as_it_would_have(rounds):
    n, x = 13, vectors(13)
    schedule, algorithm = resolve_schedule("window-doubling", n), WindowDoubling(n)
    state = algorithm.start(x)
    for number in range(rounds):
        state = one_round(algorithm, schedule, state, number, x if number % 2 else None)
    again = restored(algorithm.start(x), *saved(state))
    for number in range(rounds, rounds + 5):
        state = one_round(algorithm, schedule, state, number, x)
        again = one_round(algorithm, schedule, again, number, x)
    assert algorithm.model(again).tobytes() == algorithm.model(state).tobytes()


def test_nothing_is_changed_in_place():
    n, x = 5, vectors(5)
    schedule, algorithm = resolve_schedule("window-doubling", n), WindowDoubling(n)
    state = one_round(algorithm, schedule, algorithm.start(x), 0, x)
    kept = [vector.copy() for vector in saved(state)[0].values()]
    one_round(algorithm, schedule, state, 1, add(x, x))
    assert all(np.array_equal(a, b) for a, b in zip(kept, saved(state)[0].values(), strict=True))
