"""Entries and verdicts: any order of news gives one roster, and what its author has not signed changes none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members import ORGANISER, entry_of, founders, graphs, signer, trust

from fedgossip.core.messages import ConfirmDead, Entry, News, Revocation, Suspicion
from fedgossip.protocols.members.membership_updates import check_suspicion, merge, signed
from fedgossip.protocols.members.roster import (
    BLOCK_ROUNDS,
    LAST_INCARNATION,
    LAST_ROUND,
    LEAD_ROUNDS,
    Roster,
    RosterSchedule,
    boundary_after,
)

N = 4
ROSTER, TRUST = Roster.founding(founders(N)), trust(N)


def entry(node: int, incarnation: int, since: int = 0, until: int = -1) -> Entry:
    plain = replace(entry_of(node, incarnation, since=since, admitted=node >= N), until=until)
    made = signed(plain, signer(plain.verify))
    assert isinstance(made, Entry)
    return made


def verdict(node: int, incarnation: int, until: int, by: int = 0) -> ConfirmDead:
    made = signed(ConfirmDead(node, incarnation, until, by), signer(f"sign{by}"))
    assert isinstance(made, ConfirmDead)
    return made


def taken(*batches: Sequence[News]) -> Roster:
    roster = ROSTER
    for batch in batches:
        roster = merge(roster, batch, TRUST).roster
    return roster


members = st.integers(0, N + 1)
lives = st.integers(1, 4)
# one entry per life, as an honest member says it; those who judge are there from the start
said: st.SearchStrategy[News] = st.one_of(
    st.builds(lambda node, life: entry(node, life, since=4 * (life + node)), members, lives),
    st.builds(verdict, st.integers(0, N - 1), st.integers(0, 4), st.integers(0, 40), st.integers(0, N - 1)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(said, max_size=12), st.integers(0, 40), st.booleans())
def test_the_participants_of_a_round_are_the_members_that_take_part_in_it(
    news: list[News], round: int, revokes: bool
) -> None:
    """Each roster's ids are sorted once and lose the absent ones; asked one by one, the members say the same."""
    roster = taken(news)
    revoked = {1: Revocation(1, "key1", "sign1")} if revokes else {}
    for one in (roster, replace(roster, revoked=revoked), taken(news, [entry(N + 1, 9)])):
        assert one.entries.ids == tuple(sorted(one.entries))
        found = one.participants(round)
        assert found == tuple(i for i in one.entries.ids if one.takes_part(i, round))
        assert len(found) < len(one.entries) or found is one.entries.ids


@settings(max_examples=200, deadline=None)
@given(st.lists(said, max_size=12), st.data())
def test_any_order_and_duplication_of_news_gives_the_same_roster(news: list[News], data: st.DataObject) -> None:
    again = data.draw(st.permutations(news + data.draw(st.lists(st.sampled_from(news), max_size=4)) if news else news))
    one_by_one = taken(*([item] for item in again), news)  # a verdict that came before its entry is said again
    assert one_by_one == taken(news)
    assert one_by_one.digest() == taken(news).digest()
    assert one_by_one.lost() == taken(news).lost()
    assert merge(one_by_one, news, TRUST).new == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(said, max_size=8), st.lists(said, max_size=8))
def test_two_that_compare_know_the_same_afterwards(ours: list[News], theirs: list[News]) -> None:
    one, other = taken(ours), taken(theirs)
    met = merge(one, other.newer_than(one.summarise()), TRUST).roster
    back = merge(other, one.newer_than(other.summarise()), TRUST).roster
    assert met == back


def test_a_higher_incarnation_refutes_a_verdict_and_a_lower_one_does_not() -> None:
    judged = [entry(1, 5), verdict(1, 5, 12), verdict(1, 5, 12, by=2)]
    assert taken(judged).participants(12) == (0, 2, 3)
    assert taken(judged, [entry(1, 6)]).participants(12) == (0, 1, 2, 3)
    assert taken(judged, [entry(1, 4)]).participants(12) == (0, 2, 3)


def test_who_takes_part_is_known_for_every_round() -> None:
    roster = taken([entry(4, 1, since=8), entry(2, 1, until=16), verdict(0, 0, 12, by=1), verdict(0, 0, 8, by=3)])
    assert [roster.participants(r) for r in (0, 7, 8, 12, 16)] == [
        (0, 1, 2, 3),
        (0, 1, 2, 3),
        (0, 1, 2, 3, 4),
        (1, 2, 3, 4),
        (1, 3, 4),
    ]
    assert roster.changes() == (8, 12, 16)
    assert [roster.end(node) for node in (0, 1, 2)] == [12, LAST_ROUND, 16]


@given(st.integers(0, 1000))
def test_changes_take_effect_at_boundaries_far_enough_ahead(round: int) -> None:
    at = boundary_after(round)
    assert at % BLOCK_ROUNDS == 0 and LEAD_ROUNDS < at - round <= LEAD_ROUNDS + BLOCK_ROUNDS


STRANGER = replace(entry_of(9, 1), admission="")
BAD: list[tuple[str, News]] = [
    ("signature", replace(entry(1, 7), address="tcp://10.9.9.9:1")),
    ("signature", replace(entry(1, 7), signature="")),
    ("signature", replace(verdict(1, 3, 8), by=2)),
    ("stale", entry(1, 2)),
    ("itself", verdict(1, 3, 8, by=1)),
    ("twin", signed(replace(entry(1, 3), address="tcp://10.9.9.9:1"), signer("sign1"))),
    ("identity", signed(replace(entry_of(2, 7), node=1), signer("sign2"))),  # claims another's id
    ("identity", signed(replace(entry(1, 7), verify="sign2"), signer("sign2"))),
    ("identity", signed(replace(entry(5, 1), key="key1"), signer("sign5"))),  # a second id with one key
    ("unadmitted", signed(STRANGER, signer("sign9"))),
    ("unadmitted", signed(replace(STRANGER, admission=entry(5, 1).admission), signer("sign9"))),
    ("range", signed(replace(entry(1, 7), since=2**40), signer("sign1"))),
    ("range", signed(replace(entry(1, 7), incarnation=0), signer("sign1"))),
    ("range", entry(1, LAST_INCARNATION + 1)),
    ("range", verdict(1, LAST_INCARNATION + 1, 8)),
    ("ahead", verdict(1, 4, 8)),
    ("stranger", verdict(8, 1, 8)),
    ("stranger", verdict(1, 3, 8, by=8)),
]


@pytest.mark.parametrize(("reason", "news"), BAD, ids=[f"{reason}-{k}" for k, (reason, _) in enumerate(BAD)])
def test_bad_news_is_refused_with_its_reason_and_changes_nothing(reason: str, news: News) -> None:
    roster = taken([entry(1, 3)])
    merged = merge(roster, [news], TRUST)
    assert [refusal.reason for refusal in merged.refused] == [reason]
    assert merged.roster is roster and merged.new == ()


def revocation(node: int, secret: str = ORGANISER, key: str = "") -> Revocation:
    made = signed(Revocation(node, key or f"key{node}", f"sign{node}"), signer(secret))
    assert isinstance(made, Revocation)
    return made


def test_one_that_was_sent_away_is_out_for_ever_and_nothing_of_it_is_heard() -> None:
    roster = taken([entry(1, 5), verdict(2, 0, 8, by=1), verdict(2, 0, 8)])
    assert roster.participants(8) == (0, 1, 3)
    away = merge(roster, [revocation(1), entry(1, 6)], TRUST)
    assert [type(news) for news in away.new] == [Revocation] and [r.reason for r in away.refused] == ["revoked"]
    assert away.roster.participants(0) == away.roster.participants(8) == (0, 2, 3)  # its verdict counts no more
    for said in (entry(1, 7), verdict(0, 0, 8, by=1), verdict(1, 5, 8)):
        assert [refusal.reason for refusal in merge(away.roster, [said], TRUST).refused] == ["revoked"]
    assert merge(away.roster, [revocation(1)], TRUST).new == ()


def test_the_order_in_which_one_hears_of_a_revocation_does_not_matter() -> None:
    news = [entry(1, 5), verdict(2, 0, 8, by=1), revocation(1), revocation(5), entry(5, 1)]
    rosters = [taken(*([item] for item in order)) for order in itertools.permutations(news)]
    assert len({roster.digest() for roster in rosters}) == 1
    assert {roster.participants(9) for roster in rosters} == {(0, 2, 3)}
    told = merge(ROSTER, rosters[0].newer_than(ROSTER.summarise()), TRUST).roster
    assert told.digest() == rosters[0].digest() and not told.lacks(rosters[0].summarise())


def test_only_the_organiser_revokes_and_only_who_is_meant() -> None:
    for news, reason in ((revocation(1, "sign2"), "signature"), (revocation(1, key="key9"), "identity")):
        merged = merge(ROSTER, [news], TRUST)
        assert [refusal.reason for refusal in merged.refused] == [reason] and merged.roster is ROSTER
    merged = merge(ROSTER, [revocation(1)], trust(N, organiser=""))
    assert [refusal.reason for refusal in merged.refused] == ["signature"]


def test_without_an_organiser_nobody_else_comes_in() -> None:
    merged = merge(ROSTER, [entry(5, 1)], trust(N, organiser=""))
    assert [refusal.reason for refusal in merged.refused] == ["unadmitted"]


def test_a_suspicion_is_believed_of_a_member_only() -> None:
    suspicion = signed(Suspicion(1, 0, 2), signer("sign2"))
    assert isinstance(suspicion, Suspicion)
    assert check_suspicion(ROSTER, suspicion, TRUST) == ""
    assert check_suspicion(ROSTER, replace(suspicion, by=3), TRUST) == "signature"
    assert check_suspicion(ROSTER, replace(suspicion, by=9), TRUST) == "stranger"
    for incarnation, reason in ((1, "ahead"), (2**64 - 1, "range")):
        said = signed(replace(suspicion, incarnation=incarnation), signer("sign2"))
        assert isinstance(said, Suspicion) and check_suspicion(ROSTER, said, TRUST) == reason


def test_every_peer_computes_the_same_graph_of_a_round_from_its_roster_alone() -> None:
    roster = taken([entry(4, 1, since=8), verdict(1, 0, 12), verdict(1, 0, 8, by=2)])
    schedule = RosterSchedule(roster, graphs)
    for round, ids in ((0, (0, 1, 2, 3)), (8, (0, 1, 2, 3, 4)), (12, (0, 2, 3, 4))):
        mixing = schedule.mixing(round)
        for node in ids:
            row = mixing.row(node)
            assert set(row) <= set(ids) and sum(row.values()) == pytest.approx(1.0)
            assert set(mixing.targets(node)) == set(row) - {node}
    assert schedule.mixing(12).row(1) == {1: 1.0} and schedule.mixing(12).targets(1) == ()
    assert schedule.partners(4) == (0, 3) and schedule.partners(2) == (0, 1, 3)
    views = [schedule.view(round) for round in (0, 7, 8, 11, 12, 99)]
    assert views[0] == views[1] != views[2] == views[3] != views[4] == views[5]
    assert views[0] == RosterSchedule(ROSTER, graphs).view(50)
