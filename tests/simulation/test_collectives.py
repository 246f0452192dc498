"""The tables of the collectives: sums, bits, bytes, steps and seconds, without machines or sockets."""

from __future__ import annotations

import numpy as np
import pytest

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.collectives.table import Table, Way, summed
from fedgossip.simulation.network import NS, NetworkSettings, SimulatedNetwork

SIZES = [*range(1, 18), 31, 32, 33, 63, 64]
NAMES = sorted(COLLECTIVES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", SIZES)
def test_all_ranks_end_with_the_same_bits_of_the_sum(name: str, m: int) -> None:
    rng = np.random.default_rng(m)
    for length in (1, max(1, m - 1), 1000, 1003):
        vectors = [rng.standard_normal(length).astype(np.float32) for _ in range(m)]
        table = COLLECTIVES[name].table(m)
        held = summed(table, vectors)
        exact = np.sum(np.array(vectors, np.float64), axis=0)
        bound = (m - 1) * np.finfo(np.float32).eps * np.abs(np.array(vectors, np.float64)).sum(axis=0)
        assert all(np.all(np.abs(one - exact) <= bound) for one in held), "one rounding an addition"
        if not table.exact:
            assert len({one.tobytes() for one in held}) == 1


def even(name: str, m: int) -> bool:
    """Whether the closed forms are exact: else some ranks begin a step while others still fold or climb."""
    return m & (m - 1) == 0 or name not in ("tree", "recursive-doubling", "halving-doubling")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", range(1, 65))
def test_closed_forms_are_those_of_the_table(name: str, m: int) -> None:
    of, table = COLLECTIVES[name], COLLECTIVES[name].table(m)
    length = 64 * m * table.parts  # without rests
    sent = [table.sent(rank, length) for rank in range(m)]
    assert max(sent) == pytest.approx(of.busiest(m) * length)
    assert sum(sent) == sum(table.received(rank, length) for rank in range(m))
    assert table.steps() == of.steps(m) if even(name, m) else table.steps() <= of.steps(m)


def test_what_each_rank_sends_is_what_the_papers_count() -> None:
    for m in (*range(2, 20), 31, 32, 33, 63, 64):
        for length in (1, m - 1, 1000, 1003):
            ring, naive = (COLLECTIVES[name].table(m) for name in ("ring", "ring-naive"))
            bounds = ring.bounds(length)
            size = [bounds[part + 1] - bounds[part] for part in range(m)]
            expected = [2 * length - size[(rank + 1) % m] - size[(rank + 2) % m] for rank in range(m)]
            assert [ring.sent(rank, length) for rank in range(m)] == expected
            last = [length] * min(2, m)
            assert [naive.sent(rank, length) for rank in range(m)] == [2 * length] * (m - 2) + last


def test_parts_are_cut_as_numpy_cuts_them() -> None:
    for length in (1, 7, 64, 1003):
        for m in (1, 3, 7, 8):
            table = COLLECTIVES["ring"].table(m)
            cut = [part.size for part in np.array_split(np.zeros(length), m)]
            assert np.diff(table.bounds(length)).tolist() == cut


def test_nobody_sends_an_empty_message() -> None:
    for name in NAMES:
        for m in (2, 5, 8):
            table = COLLECTIVES[name].table(m)
            for length in (1, m - 1):
                moves = [(rank, *one) for rank in range(m) for one in table.of(rank, length)]
                assert all(part.stop > part.start for _, _, part in moves)
                sent = sorted((rank, move.peer, part.start) for rank, move, part in moves if move.way is Way.SEND)
                came = sorted((move.peer, rank, part.start) for rank, move, part in moves if move.way is not Way.SEND)
                assert sent == came, "both ends leave out the same"


def seconds(table: Table, length: int, a: float, b: float) -> float:
    """When the last rank is done, on the virtual network; a rank sends whatever it can, and adds in no time."""
    net = SimulatedNetwork(NetworkSettings(latency=a, bandwidth=b, downlink=b), table.workers, 1)
    moves = [list(table.of(rank, length)) for rank in range(table.workers)]
    now = [0] * table.workers
    under_way: dict[tuple[int, int], list[int]] = {}
    while any(moves):
        ready = []  # sends in order of time, as a simulator would make them
        for rank, left in enumerate(moves):
            while left and left[0][0].way is not Way.SEND and under_way.get((left[0][0].peer, rank)):
                now[rank] = max(now[rank], under_way[left[0][0].peer, rank].pop(0))
                del left[0]
            if left and left[0][0].way is Way.SEND:
                ready.append((now[rank], rank))
        if ready:
            at, rank = min(ready)
            move, part = moves[rank].pop(0)
            arrival = net.passage(rank, move.peer, part.stop - part.start, at).arrival_ns
            under_way.setdefault((rank, move.peer), []).append(arrival)
    return max(now) / NS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7, 8, 16])
def test_virtual_time_is_that_of_the_formula(name: str, m: int) -> None:
    a, b, length = 0.003, 1e6, 16 * 15 * 14 * 13 * 11
    table = COLLECTIVES[name].table(m)
    took, formula = seconds(table, length, a, b), COLLECTIVES[name].seconds(m, length, a, b)
    off = 2e-6 * m if even(name, m) else a + length / b  # an early message of a step may hold up a late one of the fold
    assert took == pytest.approx(formula, abs=off)


def test_ranks_that_wait_for_each_other_are_named() -> None:
    table = COLLECTIVES["ring"].table(3)
    stuck = Table(3, tuple(moves[1:] for moves in table.moves))
    with pytest.raises(ValueError, match="wait for each other"):
        summed(stuck, [np.ones(3, np.float32)] * 3)
