"""One member lies about all others: they learn on as if it had said nothing, and it loses its voice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from members import ORGANISER, SECOND, entry_of, founders, signer, trust
from test_join import Learning, member

from fedgossip.base import seeds
from fedgossip.base.vectors import consensus_distance, frozen
from fedgossip.core.machine import Effect, Event, Fired, NodeId, PeerJoined, Received, Send, Started, Train, Trained
from fedgossip.core.messages import Compare, ConfirmDead, Entry, MembershipUpdate, News, Revocation, Suspicion
from fedgossip.protocols.members.membership_updates import merge, signed
from fedgossip.protocols.members.roster import SILENT_ROUNDS, Roster, boundary_after, quorum

LIAR = 1
Lie = Callable[[NodeId, int, int], News]
"""(node, its incarnation, the liar's round): what is said of it."""


def verdict_on(node: NodeId, life: int, round: int, by: NodeId = LIAR) -> News:
    return signed(ConfirmDead(node, life, boundary_after(max(round, 0)), by), signer(f"sign{by}"))


def early_verdict_on(node: NodeId, life: int, round: int) -> News:
    return signed(ConfirmDead(node, life, 0, LIAR), signer(f"sign{LIAR}"))


def late_verdict_on(node: NodeId, life: int, round: int) -> News:
    return signed(ConfirmDead(node, life, boundary_after(max(round, 0)) + 1000 * life, LIAR), signer(f"sign{LIAR}"))


def suspicion_on(node: NodeId, life: int, round: int) -> News:
    return signed(Suspicion(node, life, LIAR), signer(f"sign{LIAR}"))


class Liar:
    """A member as any other, that says of each other one that it is gone, again after each refutation."""

    def __init__(self, honest: Any, lie: Lie) -> None:
        self.honest, self.lie = honest, lie
        self.told: dict[NodeId, int] = {}

    @property
    def membership(self) -> Any:
        return self.honest.membership

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        match event:
            case Received(sender, MembershipUpdate(news)):  # it does not believe itself
                event = Received(sender, MembershipUpdate(tuple(one for one in news if getattr(one, "by", -1) != LIAR)))
        effects = list(self.honest.handle(event, now_ns))
        if now_ns < 3 * SECOND:
            return effects
        here = self.membership
        for node, entry in here.roster.entries.items():
            if node != LIAR and self.told.get(node, -1) < entry.incarnation:
                self.told[node] = entry.incarnation
                said = MembershipUpdate((self.lie(node, entry.incarnation, here.round),))
                effects += [Send(other, said) for other in here.roster.entries if other != LIAR]
        return effects


class Pulled(Learning):
    """Each peer is pulled to a place of its own, and a little about it, as by its own data."""

    def other(self, node: NodeId, effect: Effect | Event) -> None:
        match effect:
            case Train(job, vector):
                rng = seeds.stream(3, "pull", node, job)
                place = np.array([node % 3, node, -1.0]) + 0.1 * rng.standard_normal(3)
                self.push(0.1, node, Trained(job, frozen(0.05 * (place - vector))))
            case _:
                super().other(node, effect)


@functools.cache
def disagreement(n: int, lie: Lie | None, seed: int = 0) -> tuple[float, Pulled]:
    """Of those that do not lie, after 20 s."""
    machines: dict[NodeId, Any] = {node: member(node, n, seed=seed) for node in range(n)}
    if lie:
        machines[LIAR] = Liar(machines[LIAR], lie)
    w = Pulled(machines, seed)
    w.run(20)
    models = [w.machines[node].giver.latest[1] for node in range(n) if node != LIAR]
    return consensus_distance(models), w


LIES: list[Lie] = [verdict_on, early_verdict_on, late_verdict_on, suspicion_on]
CASES = [(3, verdict_on), (10, verdict_on), *((6, lie) for lie in LIES)]


@pytest.mark.parametrize(("n", "lie"), CASES, ids=lambda case: str(getattr(case, "__name__", case)))
def test_unjust_verdicts_do_not_disturb_what_is_learned(n: int, lie: Lie) -> None:
    undisturbed, quiet = disagreement(n, None)
    disturbed, w = disagreement(n, lie)
    assert disturbed == pytest.approx(undisturbed, rel=0.05, abs=1e-9)
    assert min(w.rounds().values()) >= min(quiet.rounds().values()) - 2
    assert not w.named("gone") and not w.named("partition")


@pytest.mark.parametrize("lie", [verdict_on, early_verdict_on])
def test_one_that_was_refuted_is_not_answered_any_more(lie: Lie) -> None:
    _, w = disagreement(6, lie)
    lives = {node: w.machines[node].membership.me.incarnation for node in range(6) if node != LIAR}
    assert set(lives.values()) == {2}  # each refuted once; without an end each climbed by hundreds
    roster = w.machines[0].membership.roster
    assert {roster.voice(LIAR, one.until) for node in lives for one in roster.verdicts[node]} == {False}


def test_a_liar_does_not_keep_the_others_from_noticing_a_crash() -> None:
    machines: dict[NodeId, Any] = {node: member(node, 6) for node in range(6)}
    machines[LIAR] = Liar(machines[LIAR], verdict_on)
    w = Pulled(machines)
    w.run(8)
    w.crash(4)
    w.run(15)
    assert all(w.machines[node].membership.roster.is_gone(4) for node in (0, 2, 3, 5))
    assert w.machines[0].membership.roster.participants(10**6) == (0, 1, 2, 3, 5)


def test_one_that_says_that_we_were_here_before_and_shows_nothing_does_not_make_us_seek_a_model() -> None:
    peer = member(0, 3)
    peer.handle(Started(), 0)
    peer.handle(PeerJoined(1), 0)
    peer.handle(Received(1, Compare(((0, 7, 99), (1, 1, 0), (2, 0, 0)))), 1)
    peer.handle(Fired(("member", "tick")), SECOND)
    assert peer.membership.contact and not peer.membership.returning and not peer.joining


# --- which verdicts count ---------------------------------------------------------------------------------------------


def roster_of(n: int, news: Sequence[News], own: NodeId = 0) -> Roster:
    return merge(Roster.founding(founders(n), own), news, trust(n)).roster


def said(node: NodeId, by: NodeId, until: int = 12, life: int = 0) -> News:
    return signed(ConfirmDead(node, life, until, by), signer(f"sign{by}"))


def risen(node: NodeId, life: int) -> Entry:
    entry = signed(entry_of(node, life), signer(f"sign{node}"))
    assert isinstance(entry, Entry)
    return entry


@pytest.mark.parametrize(("n", "needed"), [(2, 1), (3, 2), (7, 2), (8, 3), (16, 4), (24, 5), (2000, 5)])
def test_as_many_judges_are_needed_as_the_network_has_a_quorum(n: int, needed: int) -> None:
    assert quorum(n) == needed
    votes = [said(0, by) for by in range(1, needed + 1)]
    assert not roster_of(n, votes[: needed - 1], own=-1).is_gone(0)
    assert roster_of(n, votes[:needed], own=-1).is_gone(0)


def test_the_end_is_not_earlier_than_some_honest_judge_says() -> None:
    assert roster_of(4, [said(1, 2, 0), said(1, 3, 16)]).end(1) == 16
    assert roster_of(4, [said(1, 2, 2**31 - 1), said(1, 3, 16), said(1, 0, 12)]).end(1) == 16


def test_the_last_of_three_and_two_of_eight_that_are_cut_off_judge_alone() -> None:
    assert roster_of(3, [said(1, 0), said(2, 0)]).participants(12) == (0,)
    side = [said(node, by) for node in range(2, 8) for by in (0, 1)]
    for own in (0, 1):
        assert roster_of(8, side, own).participants(12) == (0, 1)
    assert roster_of(8, side, own=5).participants(12) == tuple(range(8))  # who hears the others needs three


def test_a_verdict_that_was_refuted_silences_its_judge_for_a_while_except_where_enough_agreed() -> None:
    alone = [said(1, 2), risen(1, 5)]
    assert not roster_of(4, alone).voice(2, 12 + SILENT_ROUNDS - 1) and roster_of(4, alone).voice(2, 12 + SILENT_ROUNDS)
    assert not roster_of(4, [*alone, said(3, 2, 16), said(3, 0, 16)], own=1).is_gone(3)
    assert roster_of(4, [*alone, said(3, 1, 16), said(3, 0, 16)], own=1).is_gone(3)
    together = [said(1, 2), said(1, 3), risen(1, 5)]  # as after a partition
    assert roster_of(4, together).voice(2, 12) and roster_of(4, together).voice(3, 12)


def test_all_who_know_the_same_and_hear_enough_others_agree_on_who_is_out() -> None:
    for seed in range(40):
        rng = seeds.stream(seed, "votes")
        n = int(rng.integers(3, 12))
        judges = range(n // 2)  # the others have judged nobody
        drawn = zip(rng.integers(0, n, 20).tolist(), rng.integers(0, len(judges), 20).tolist(), strict=True)
        votes = [said(x, y, int(rng.integers(0, 40))) for x, y in sorted(set(drawn)) if x != y]
        orders = [[votes[k] for k in rng.permutation(len(votes))] for _ in range(n)]
        views = {roster_of(n, orders[own], own).lost() for own in range(len(judges), n)}
        assert len(views) == 1


# --- one that was sent away -------------------------------------------------------------------------------------------


def revocation(node: NodeId) -> News:
    return signed(Revocation(node, f"key{node}", f"sign{node}"), signer(ORGANISER))


def test_one_that_was_sent_away_ends_and_the_others_learn_on_without_it() -> None:
    w = Pulled({node: member(node, 5) for node in range(5)})
    w.run(5)
    w.push(0, 3, Received(3, MembershipUpdate((revocation(LIAR),))))
    w.run(10)
    assert LIAR in w.results and [who for _, who, _ in w.named("sent_away")] == [LIAR]
    assert {who for _, who, _ in w.named("revoked")} == {0, 2, 3, 4}
    assert {(node, gone) for _, node, gone in w.parted} == {(node, LIAR) for node in (0, 2, 3, 4)}
    assert all(w.machines[node].membership.roster.participants(0) == (0, 2, 3, 4) for node in (0, 2, 3, 4))
    before = w.rounds()[0]
    again = member(LIAR, 5, life=99)
    w.start(LIAR, again)
    w.run(5)
    assert w.rounds()[0] > before + 20 and w.machines[0].membership.roster.participants(10**6) == (0, 2, 3, 4)


if __name__ == "__main__":  # for the record: what the lies do to the disagreement
    for lie in LIES:
        print(lie.__name__, [(n, disagreement(n, None)[0], disagreement(n, lie)[0]) for n in (3, 6, 10)])
