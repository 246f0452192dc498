"""Consistent hashing: who has which elements follows from who is there, and little moves when that changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.algorithms.hash_ring import owners, placed
from fedgossip.core.task import Segment

LENGTH = 20_000


@pytest.mark.parametrize("servers", [1, 2, 8])
def test_a_server_more_takes_its_share_from_the_others_and_nothing_else_moves(servers: int) -> None:
    """Karger et al.: of n + 1 servers the new one gets 1 / (n + 1); at 64 points each at most half more than that."""
    before, after = owners(LENGTH, servers, 64), owners(LENGTH, servers + 1, 64)
    moved = before != after
    assert set(after[moved]) == {servers}
    assert 0.5 < moved.mean() * (servers + 1) < 1.5


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 20), st.data())
@settings(max_examples=60, deadline=None)
def test_shards_are_every_element_once_and_whoever_dies_each_has_an_owner(
    length: int, servers: int, points: int, data: st.DataObject
) -> None:
    copies = data.draw(st.integers(1, servers))
    placement = placed(length, range(10, 10 + servers), points, copies)
    elements = [one for shard in placement.shards for start, stop in shard.ranges for one in range(start, stop)]
    assert sorted(elements) == list(range(length))
    assert [shard.number for shard in placement.shards] == list(range(len(placement.shards)))
    alive = data.draw(st.sets(st.integers(10, 9 + servers), min_size=1))
    for shard in placement.shards:
        holders = shard.holders(alive, copies)
        assert len(holders) == min(copies, len(alive)) and set(holders) <= alive
        whole = np.arange(length, dtype=np.float32)
        back = np.full(length, -1, np.float32)
        shard.put_into(back, shard.taken_from(whole))
        assert (back[back >= 0] == whole[back >= 0]).all() and (back >= 0).sum() == shard.length
    assert sum(placement.shares(sorted(alive))) == length


def test_what_the_dead_one_owned_goes_to_the_first_copy_and_the_rest_stays() -> None:
    placement = placed(LENGTH, range(5), 64, 2)
    for shard in placement.shards:
        first, second = shard.holders(range(5), 2)
        assert shard.holders([one for one in range(5) if one != first], 1) == (second,)
        for other in set(range(5)) - {first, second}:
            assert shard.holders([one for one in range(5) if one != other], 2) == (first, second)


def test_tensors_are_not_divided() -> None:
    shapes = {"a": (0, (30, 10)), "b": (300, (10,)), "c": (310, (50, 20)), "d": (1310, (50,))}
    segments = [Segment(name, *place) for name, place in shapes.items()]
    placement = placed(1360, range(3), 64, 2, segments)
    for one in segments:
        ranges = [place for shard in placement.shards for place in shard.ranges]
        (home,) = [(start, stop) for start, stop in ranges if start < one.stop and one.start < stop]
        assert home[0] <= one.start and one.stop <= home[1]


def test_the_circle_is_the_same_everywhere() -> None:
    """sha256, and no hash of the interpreter, which differs between processes."""
    assert placed(1000, range(3), 64, 1).shares(range(3)) == [319, 292, 389]
