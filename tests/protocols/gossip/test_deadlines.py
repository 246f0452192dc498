"""The deadline that follows what was seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedgossip.protocols.gossip.partner_set import ENOUGH, WINDOW, Deadline

MS = 1_000_000
durations = st.lists(st.integers(0, 10**12), max_size=3 * WINDOW)


def after(seen: list[int], longest_ns: int = 10_000 * MS, least_ns: int = 10 * MS, factor: int = 8) -> int:
    deadline = Deadline(longest_ns, least_ns, factor)
    for duration_ns in seen:
        deadline.record(duration_ns)
    return deadline.now_ns()


@given(st.lists(st.integers(0, 10**12), max_size=ENOUGH - 1))
def test_the_longest_deadline_holds_until_enough_was_seen(seen: list[int]) -> None:
    assert after(seen) == 10_000 * MS


def test_where_it_costs_little_to_be_wrong_the_first_deadline_is_short() -> None:
    deadline = Deadline(10_000 * MS, 10 * MS, first_ns=1_000 * MS)
    assert deadline.now_ns() == 1_000 * MS
    assert Deadline(10_000 * MS, 10 * MS, first_ns=0).now_ns() == 10 * MS
    assert Deadline(10, 5, first_ns=1_000).now_ns() == 10


def test_a_stable_history_gives_a_short_deadline() -> None:
    assert after([50 * MS] * ENOUGH) == 8 * 50 * MS
    assert after([48 * MS, 50 * MS, 52 * MS] * 10) == 8 * (50 + 4 * 2) * MS


@given(durations)
def test_the_limits_are_never_left(seen: list[int]) -> None:
    assert 10 * MS <= after(seen) <= 10_000 * MS


@given(st.lists(st.integers(45 * MS, 55 * MS), min_size=8, max_size=WINDOW - 1), st.integers(0, 10**12))
def test_one_outlier_hardly_moves_it(seen: list[int], outlier: int) -> None:
    """Median and MAD move by at most the spread of the others, 10 ms each."""
    assert abs(after([*seen, outlier]) - after(seen)) <= 8 * (10 + 4 * 10) * MS
    assert after([*seen, outlier]) <= 8 * (55 + 4 * 10) * MS


def test_one_that_has_become_slower_is_believed_after_half_the_window() -> None:
    seen = [50 * MS] * WINDOW + [500 * MS] * (WINDOW // 2)
    assert after(seen) >= 8 * 500 * MS
    assert after([50 * MS] * WINDOW + [500 * MS] * 8) == 8 * 50 * MS


def test_equal_limits_make_it_constant() -> None:
    assert after([1 * MS] * 20, longest_ns=7, least_ns=7) == 7


@given(durations)
def test_what_lies_before_the_window_is_forgotten(seen: list[int]) -> None:
    recent = [20 * MS] * WINDOW
    assert after([*seen, *recent]) == after(recent)
