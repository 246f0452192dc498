"""Whole numbers of many words: summed exactly under masks, each bit of them hidden, nothing told beside their sum."""

from __future__ import annotations

import numpy as np
import pytest
import secure_kit as kit
from hypothesis import given
from hypothesis import strategies as some

from fedgossip.base.errors import ConfigError
from fedgossip.secure import fixed_point
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.encoding import WIDE, ExactSums, as_vector, integers_of, words_in, words_of

NUMBERS = some.integers(-(1 << 255), (1 << 255) - 1)


@given(some.lists(NUMBERS, min_size=1, max_size=6))
def test_numbers_come_back_out_of_their_words(numbers: list[int]) -> None:
    words = words_of(numbers)
    assert integers_of(words) == numbers
    again = words_in(as_vector(words))
    assert again is not None and integers_of(again) == numbers


@given(some.lists(some.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6))
def test_words_are_added_with_their_carries(pairs: list[tuple[int, int]]) -> None:
    total = words_of([a for a, _ in pairs])
    fixed_point.add(total, words_of([b for _, b in pairs]), WIDE // 32)
    assert [value % (1 << WIDE) for value in integers_of(total)] == [(a + b) % (1 << WIDE) for a, b in pairs]


def test_streams_that_are_added_and_subtracted_leave_every_word_as_it_was() -> None:
    """In more than one block, and in another order."""
    rng = np.random.default_rng(3)
    before = rng.integers(0, 1 << 32, fixed_point.BLOCK + 8 * 3, dtype=np.uint64).astype(np.uint32)
    total, keys = before.copy(), [bytes([one]) * 32 for one in range(5)]
    fixed_point.add_streams(total, keys, 8)
    carried = total.copy()
    assert not np.array_equal(total, before)
    fixed_point.subtract_streams(total, keys[::-1], 8)
    np.testing.assert_array_equal(total, before)
    by_words = before.copy()
    fixed_point.add_streams(by_words, keys)
    assert not np.array_equal(by_words, carried), "words of their own would not carry"


FIXED = ExactSums((1 << 200, 10, 5), layout="a test")


def test_a_sum_is_of_the_bounds_that_were_agreed_on() -> None:
    encode = lambda numbers: FIXED.encode(as_vector(words_of(numbers)), 1, {}, kit.entropy_of(0))  # noqa: E731
    total = encode([-(1 << 200), 7, 0]).values.copy()
    fixed_point.add(total, encode([(1 << 200) - 1, -10, 5]).values, FIXED.width)
    assert integers_of(words_in(FIXED.decode(total, 2).mean)) == [-1, -3, 5]  # type: ignore[arg-type]
    with pytest.raises(RoundAbandoned) as told:
        encode([0, 11, 0])
    assert told.value.reason == Reason.OVERFLOW
    with pytest.raises(RoundAbandoned, match="2 clients, where 3 exist"):
        FIXED.decode(total, 3)
    beyond = words_of([0, 21, 0, 2])
    with pytest.raises(RoundAbandoned) as told:
        FIXED.decode(beyond, 2)
    assert told.value.reason == Reason.BOUND
    with pytest.raises(RoundAbandoned, match="no words"):
        FIXED.encode(np.full(FIXED.length, 0.5), 1, {}, kit.entropy_of(0))
    with pytest.raises(ConfigError):
        ExactSums((1,), 96)
    with pytest.raises(RoundAbandoned):
        ExactSums((1 << 254,)).check_sum(3)
