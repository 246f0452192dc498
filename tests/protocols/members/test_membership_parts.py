"""The parts of membership, each alone: what it promises holds for whatever comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from members import entry_of, founders, graphs, signer, trust

from fedgossip.base import seeds
from fedgossip.core.machine import NodeId, PeerJoined, Received, Send, SetTimer
from fedgossip.core.messages import BUCKETS, NEWS_MAX, Compare, CompareBuckets, Entry, MembershipUpdate, Suspicion
from fedgossip.protocols.members.entries import Entries
from fedgossip.protocols.members.failure_detector import (
    BLAMES_KEPT,
    REFUSALS_REPORTED,
    ROWS,
    Blames,
    Dissemination,
    FailureDetector,
    MemberSettings,
    PartitionWatch,
)
from fedgossip.protocols.members.membership import Membership
from fedgossip.protocols.members.membership_updates import NewsRefusal, merge, signed
from fedgossip.protocols.members.roster import Roster

SETTINGS = MemberSettings()


class Around:
    """Members 1 to 6; to the even ones there is a link."""

    def __init__(self) -> None:
        self.linked = {2, 4, 6}

    def word(self) -> tuple[int, str]:
        return 0, "digest"

    def watched(self) -> set[NodeId]:
        return {1, 2, 3, 4, 5, 6}

    def helpers(self, silent: NodeId) -> Sequence[NodeId]:
        return sorted(self.linked - {silent})


nodes = st.integers(1, 6)
happenings = st.one_of(
    st.tuples(st.sampled_from(["ask", "heard"]), nodes), st.tuples(st.just("timer"), st.integers(0, 20))
)


@given(st.lists(happenings, max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_member_is_asked_one_question_at_a_time_and_each_ends(what: list[tuple[str, int]]) -> None:
    detector = FailureDetector(Around(), SETTINGS, seeds.stream(1, "detector"))
    waiting: list[tuple[str, int]] = []
    began: dict[int, NodeId] = {}

    def take(effects: Any) -> None:
        waiting.extend(e.key[1:] for e in effects if isinstance(e, SetTimer))

    def fire(place: int, now_ns: int) -> None:
        kind, number = waiting.pop(place)
        if kind == "late":
            take(detector.late(number))
        elif (silent := detector.ended(number)) is not None:
            assert detector.heard.get(silent, -1) < now_ns

    for now_ns, (kind, value) in enumerate(what, 1):
        match kind:
            case "ask":
                before = len(waiting)
                take(detector.ask(value, now_ns))
                began.update({number: value for _, number in waiting[before:]})
            case "heard":
                detector.heard[value] = now_ns
            case "timer" if waiting:
                fire(value % len(waiting), now_ns)
        open_now = [one.node for one in detector._asking.values()]
        assert len(open_now) == len(set(open_now)) and set(detector._asking) <= {number for _, number in waiting}
    while waiting:
        fire(0, 100)
    assert not detector._asking


@given(st.lists(st.sets(nodes), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_every_member_that_stays_comes_once_before_any_comes_again(there: list[set[int]]) -> None:
    detector = FailureDetector(Around(), SETTINGS, seeds.stream(2, "detector"))
    always = set.intersection(*there)
    seen: list[NodeId] = []
    for now in there * 3:
        if (node := detector.next(now)) is not None:
            assert node in now
            seen.append(node)
    for node in always:
        places = [place for place, one in enumerate(seen) if one == node]
        between = [seen[a + 1 : b] for a, b in pairwise(places)]
        assert all(others.count(other) <= 2 for others in between for other in always)


@given(st.lists(st.tuples(nodes, nodes, st.integers(0, 50)), max_size=60))
def test_an_author_blames_a_member_once_in_a_while(blamed: list[tuple[int, int, int]]) -> None:
    blames, now_ns = Blames(), 0
    last: dict[tuple[int, int], int] = {}
    for by, node, later in blamed:
        now_ns += later
        counts = blames.counts(by, node, now_ns, 100)
        assert counts == (now_ns - last.get((by, node), -100) >= 100)
        if counts:
            last[by, node] = now_ns


def test_no_storm_of_blames_takes_memory() -> None:
    blames = Blames()
    for number in range(2 * BLAMES_KEPT):
        assert blames.counts(number, 0, 0, 100)
    assert len(blames._at) == BLAMES_KEPT and not blames.counts(2 * BLAMES_KEPT - 1, 0, 0, 100)


@given(st.lists(st.tuples(st.sampled_from(["lost", "found", "parted", "merged"]), nodes), max_size=60))
def test_only_those_that_were_lost_are_named_and_only_those_named_come_back(what: list[tuple[str, int]]) -> None:
    watch, ever, named = PartitionWatch(1), set[int](), set[int]()
    for now_ns, (kind, node) in enumerate(what):
        match kind:
            case "lost":
                watch.lost(node, now_ns)
                ever.add(node)
            case "found":
                assert not watch.record_return(node) or node in named
            case "parted":
                found = watch.parted(now_ns, 10)
                assert set(found) <= ever and len(found) != 1
                named |= set(found)
            case _:
                back = watch.merged()
                assert set(back) <= named
                named -= set(back)


@given(st.integers(0, 400), st.integers(0, 9))
def test_what_is_new_goes_in_pages_to_a_few_that_did_not_say_it(news: int, sender: int) -> None:
    spread = Dissemination(9, SETTINGS, seeds.stream(3, "spread"))
    items = [Entry(number, 1, "", "", "") for number in range(news)]
    sent = spread.pass_on(set(range(9)), sender, items)
    to = {effect.to for effect in sent if isinstance(effect, Send)}
    assert len(to) <= (9 if sender == 9 else SETTINGS.relays) and (sender == 9 or sender not in to)
    for node in to:
        heard = [effect.message for effect in sent if isinstance(effect, Send) and effect.to == node]
        pages = [message.news for message in heard if isinstance(message, MembershipUpdate)]
        assert [item for page in pages for item in page] == items


@given(st.lists(st.tuples(st.sampled_from(["ahead", "range"]), nodes), max_size=40))
def test_each_kind_of_refused_news_is_told_once_and_all_are_counted(what: list[tuple[str, int]]) -> None:
    spread = Dissemination(0, SETTINGS, seeds.stream(4, "spread"))
    told = [spread.refuse(NewsRefusal(reason, Suspicion(node, 1, 2)), 5, 0) for reason, node in what]  # type: ignore[arg-type]
    assert sum(map(len, told)) == len(set(what)) and sum(spread.refusals.values()) == len(what)
    for number in range(2 * REFUSALS_REPORTED):
        spread.refuse(NewsRefusal("range", Suspicion(100 + number, 1, 2)), 5, 0)
    assert len(spread.refusals) <= REFUSALS_REPORTED


def large_rosters(n: int) -> tuple[Roster, Membership]:
    """The roster of n announced members, and the last member, which has only the founders' addresses."""
    entries = [signed(entry_of(node, 1), signer(f"sign{node}")) for node in range(n)]
    announced = Roster(Entries(one for one in entries if isinstance(one, Entry)))
    own = Roster.founding(founders(n), n - 1)
    joiner = Membership(entry_of(n - 1, 1), own, trust(n), signer(f"sign{n - 1}"), graphs, SETTINGS, 0, 100)
    return announced, joiner


def test_a_joiner_of_a_large_network_fetches_all_entries_from_one_member() -> None:
    n = 3 * BUCKETS
    announced, joiner = large_rosters(n)
    old = Membership(entry_of(0, 1), replace(announced, own=0), trust(n), signer("sign0"), graphs, SETTINGS, 0, 100)
    old.announced = old.contact = True
    both, sent = {0: old, n - 1: joiner}, list[Any]()
    under_way = [(0, one) for one in old.handle(PeerJoined(n - 1), 1)]
    under_way += [(n - 1, one) for one in joiner.handle(PeerJoined(0), 1)]
    while under_way:
        sender, effect = under_way.pop(0)
        if isinstance(effect, Send) and effect.to in both:
            sent.append(effect.message)
            under_way += [(effect.to, one) for one in both[effect.to].handle(Received(sender, effect.message), 2)]
    assert joiner.contact and joiner.roster.digest() == old.roster.digest()
    assert isinstance(sent[0], CompareBuckets) and len(sent) < n / NEWS_MAX + 20
    assert max(len(one.known) for one in sent if isinstance(one, Compare)) <= ROWS


def test_two_large_rosters_that_differ_in_one_member_compare_its_bucket_alone() -> None:
    announced, joiner = large_rosters(3 * BUCKETS)
    newer = merge(announced, [signed(entry_of(7, 2), signer("sign7"))], joiner.trust).roster
    assert newer.unequal(announced.hashes) == [7] and newer.digest() != announced.digest()
    assert [one.buckets[k] is announced.entries.buckets[k] for one in [newer.entries] for k in (6, 7, 8)] == [1, 0, 1]
    spread = Dissemination(0, SETTINGS, seeds.stream(1, "spread"))
    (asked,) = spread.answer_hashes(1, announced, newer.hashes)
    assert isinstance(asked, Send) and isinstance(asked.message, Compare)
    assert asked.message.buckets == (7,) and [node % BUCKETS for node, _, _ in asked.message.known] == [7, 7, 7]
    assert newer.newer_than(asked.message.known, asked.message.buckets) == [newer.entries[7]]
