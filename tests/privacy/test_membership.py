"""Membership in virtual time: many seeds of losses, crashes, partitions and sleep; no false verdict survives."""

from __future__ import annotations

import pytest
from members import World, membership, signer

from fedgossip.core.machine import Moved, PeerGone, PeerJoined, Received, Refused, Rostered, Started
from fedgossip.core.messages import ConfirmDead, MembershipUpdate, Ping, Pong, Suspicion
from fedgossip.protocols.members.membership_updates import signed

SEEDS = range(12)
NOTICED = 15.0
"""Seconds within which a crash is known to all of a small network: some pings, helpers, and the suspect's time."""


class Learning(World):
    """Members that finish a round each second, as if they learned beside."""

    def before(self, node: int) -> None:
        machine = self.machines[node]
        if machine.me.since >= 0 and machine.contact:
            machine.round = int(self.now)


def world(n: int, seed: int = 0, **keys: float) -> World:
    return Learning({node: membership(node, n, seed=seed) for node in range(n)}, seed, **keys)


def agreed(w: World) -> bool:
    return len({w.machines[node].roster.digest() for node in w.living}) == 1


def gone(w: World) -> set[int]:
    rosters = [w.machines[node].roster for node in w.living]
    return {node for roster in rosters for node in roster.entries if roster.is_gone(node)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_no_false_verdict_survives_whatever_is_lost(seed: int, loss: float) -> None:
    w = world(3 + seed % 7, seed, loss=loss)
    w.run(120)
    w.loss = 0.0
    w.run(30)
    assert agreed(w) and gone(w) == set()
    assert loss or not w.named("suspected")


@pytest.mark.parametrize("notice", [False, True], ids=["silence", "broken links"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_crash_is_known_by_all_within_a_bound(seed: int, notice: bool) -> None:
    n = 3 + seed
    w = world(n, seed, loss=0.05)
    w.run(20)
    victim = seed % n  # the first one is like any other
    w.crash(victim, notice=notice)
    w.run(NOTICED)
    assert all(w.machines[node].roster.is_gone(victim) for node in w.living)
    assert {node for _, node, event in w.told if event == PeerGone(victim)} == set(w.living)
    w.run(20)
    assert agreed(w) and gone(w) == {victim}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_is_named_on_both_sides_and_merges_when_it_heals(seed: int) -> None:
    n = 4 + seed
    w = world(n, seed)
    w.run(10)
    left = set(range(2 + seed % (n - 3)))
    right = set(range(n)) - left
    w.sides = dict.fromkeys(right, 1)
    w.run(40)
    for side, other in ((left, right), (right, left)):
        named = {node: [set(value["unreachable"]) for _, _, value in w.named("partition", [node])] for node in side}
        assert all(found and set.union(*found) == other for found in named.values())
        assert all(w.machines[node].roster.participants(90) == tuple(sorted(side)) for node in side)
    w.sides = {}
    w.run(40)
    assert agreed(w) and gone(w) == set()
    assert {node for _, node, _ in w.named("merged")} == set(range(n))
    assert w.machines[0].roster.participants(200) == tuple(range(n))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_slept_for_minutes_blames_nobody_and_comes_back(seed: int) -> None:
    n = 3 + seed % 5
    w = world(n, seed)
    w.run(10)
    w.asleep.add(1)
    w.run(180)
    assert all(w.machines[node].roster.is_gone(1) for node in w.living if node != 1)
    before = len(w.named("suspected", [1]))
    w.wake(1)
    w.run(20)
    assert len(w.named("suspected", [1])) == before and w.named("slept", [1])
    assert agreed(w) and gone(w) == set()
    back = [node for at, node, event in w.told if at > 190 and isinstance(event, PeerJoined) and event.node == 1]
    assert set(back) == set(range(n)) - {1}


def test_one_that_leaves_is_not_suspected_and_the_graph_goes_on_without_it() -> None:
    w = world(4)
    w.run(10)
    for effect in w.machines[2].announce(0, until=16):
        w.perform(2, effect)
    w.run(1)
    w.crash(2)
    w.run(30)
    assert not w.named("suspected") and agreed(w)
    assert [w.machines[0].roster.participants(round) for round in (15, 16)] == [(0, 1, 2, 3), (0, 1, 3)]


@pytest.mark.parametrize("first_dies", [False, True])
def test_a_new_member_comes_in_through_any_other(first_dies: bool) -> None:
    w = world(2)
    w.run(10)
    if first_dies:
        w.crash(0)
        w.run(NOTICED)
    newcomer = membership(2, 2, since=-1, life=50)
    through = 1
    w.start(2, newcomer)
    w.push(0, through, Received(-1, newcomer.introduction()))
    w.run(5)
    assert agreed(w) and newcomer.contact and not newcomer.returning
    assert 2 not in w.machines[1].roster.participants(1000)
    since = 40
    for effect in newcomer.announce(since):
        w.perform(2, effect)
    w.run(5)
    there = (1, 2) if first_dies else (0, 1, 2)
    assert agreed(w) and w.machines[1].roster.participants(since) == there
    assert any(isinstance(event, Rostered) for at, node, event in w.told if node == 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_crashed_knows_that_it_was_here_before(seed: int) -> None:
    w = world(3 + seed % 4, seed)
    w.run(10)
    w.crash(0, notice=True)
    w.run(2 if seed % 2 else 30)
    again = membership(0, 3 + seed % 4, life=2)
    w.start(0, again)
    w.run(5)
    assert again.contact and again.returning
    for effect in again.announce(200):
        w.perform(0, effect)
    w.run(5)
    assert agreed(w) and gone(w) == set()


@pytest.mark.parametrize("verdict", [False, True], ids=["before the verdict", "after it"])
def test_one_whose_clock_went_back_comes_back_all_the_same(verdict: bool) -> None:
    w = Learning({node: membership(node, 3, life=1000) for node in range(3)})
    w.run(10)
    w.crash(0, notice=True)
    w.run(30 if verdict else 1)
    again = membership(0, 3, life=500)
    w.start(0, again)
    w.run(5)
    assert again.returning and not again.superseded and again.roster.is_gone(0) == verdict
    for effect in again.announce(200):
        w.perform(0, effect)
    w.run(5)
    assert agreed(w) and gone(w) == set() and again.me.incarnation > 1000
    assert not w.named("superseded")


@pytest.mark.parametrize("incarnation", [2**53 + 1, 2**64 - 1])
@pytest.mark.parametrize("kind", [Suspicion, ConfirmDead])
def test_nobody_is_made_to_refute_what_is_said_of_no_life_of_its_own(
    kind: type[Suspicion] | type[ConfirmDead], incarnation: int
) -> None:
    w = world(3)
    w.run(5)
    victim = w.machines[1]
    life = victim.me.incarnation
    for said_of in (incarnation, life + 1):
        said = Suspicion(1, said_of, 2) if kind is Suspicion else ConfirmDead(1, said_of, 8, 2)
        w.push(0, 1, Received(2, MembershipUpdate((signed(said, signer("sign2")),))))
    w.run(5)
    assert victim.me.incarnation == life and gone(w) == set()
    assert sorted(victim._spread.refusals) == sorted([f"ahead 1 {life + 1}", f"range 1 {incarnation}"])


@pytest.mark.parametrize("kind", [Ping, Pong])
def test_a_round_that_the_run_has_not_changes_nothing(kind: type[Ping] | type[Pong]) -> None:
    machine = membership(0, 3, rounds=100)
    machine.handle(Started(), 0)
    machine.handle(PeerJoined(1), 0)
    before = machine.network_round()
    (report,) = machine.handle(Received(1, kind(1, 101, machine.roster.digest())), 1)
    assert isinstance(report, Refused) and report.reason == "far_ahead"
    assert machine.network_round() == before
    machine.handle(Received(1, kind(1, 100, machine.roster.digest())), 1)
    assert machine.network_round() == 100


def test_of_two_processes_with_one_identity_the_older_one_stops_and_nobody_else_minds() -> None:
    w = world(3)
    w.run(10)
    twin = membership(2, 3, life=1000)
    for effect in twin.announce(0):
        if type(effect).__name__ == "Send":
            w.perform(2, effect)
    w.push(0, 0, Received(2, MembershipUpdate((twin.me,))))
    w.run(10)
    assert w.machines[2].superseded and not w.machines[0].superseded
    assert len(w.named("superseded")) == 1 and gone(w) == set()


def test_a_hundred_members_need_a_few_messages_each_second() -> None:
    w = world(100)
    w.run(20)
    before = w.sent
    w.run(10)
    assert agreed(w) and not w.named("suspected")
    assert (w.sent - before) / 10 / 100 < 4
    w.crash(17)
    w.run(30)
    assert all(w.machines[node].roster.is_gone(17) for node in w.living)


def test_one_that_has_moved_is_called_at_its_new_address_by_all_and_tells_it_again_to_who_was_cut_off() -> None:
    w = world(4)
    w.run(5)
    machine, where = w.machines[2], "tcp://10.9.9.9:5700"
    w.tell(2, Moved(where))
    w.run(3)
    assert {w.machines[node].roster.entries[2].address for node in w.living} == {where} and agreed(w)
    assert w.named("moved") and not gone(w)
    life = machine.me.incarnation
    again = machine.handle(Moved(where), w.now_ns)
    assert machine.me.incarnation == life  # nothing new: the same words to all that have a link
    assert {effect.to for effect in again} == machine.linked
