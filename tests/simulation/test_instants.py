"""What comes up in virtual time comes by its instant, and within one by its number, however it was put there."""

from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from fedgossip.core.machine import Started
from fedgossip.simulation.network import NO_COST, Instants

NOW = 0, 0


@given(st.lists(st.tuples(st.sampled_from("aaip"), st.integers(0, 4), st.integers(0, 3))))
def test_events_come_as_from_one_heap_of_times_and_numbers(asked: list[tuple[str, int, int]]) -> None:
    """`i`: one is put off under the number that it has, or has added up and comes before all others."""
    instants, heap, clock = Instants(), list[tuple[int, int, int]](), 0
    for what, wait, node in asked:
        if what == "a":
            number = instants.add(clock + wait, node, Started(), NO_COST, NOW)
            heapq.heappush(heap, (clock + wait, number, node))
        elif what == "i":
            number = min(instants.number, 3) or -1
            same = (clock + 1 + wait, number, node)
            if same not in heap:
                instants.insert(same[0], (number, node, Started(), NO_COST, NOW))
                heapq.heappush(heap, same)
        elif instants.times:
            clock = instants.times[0]
            for queued in instants.pop():
                assert (clock, *queued[:2]) == heapq.heappop(heap)
    assert sorted({at for at, _, _ in heap}) == sorted(instants.times)


def test_what_is_added_to_an_instant_that_is_over_comes_up_at_it_again() -> None:
    instants = Instants()
    instants.add(7, 0, Started(), NO_COST, NOW)
    assert len(instants.pop()) == 1 and not instants.times
    instants.add(7, 1, Started(), NO_COST, NOW)
    assert instants.times == [7] and [queued[1] for queued in instants.pop()] == [1]
