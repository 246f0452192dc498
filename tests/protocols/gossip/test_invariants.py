"""What the docstring of each part of a gossip machine promises, whatever is done to it and in whatever order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from gossip_kinds import SCHEMA, vector
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.algorithms.gossip.base import Step, Vectors
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import Model, RunKey, RunKeys
from fedgossip.protocols.gossip.awaited_round import RoundClock
from fedgossip.protocols.gossip.edge_ledger import KEPT_ROUNDS, EdgeLedger
from fedgossip.protocols.gossip.learner import Learner
from fedgossip.protocols.gossip.mailbox import ExchangedRound, Mailbox, OwnWeights
from fedgossip.protocols.gossip.pairing import ATTEMPTS, DOUBLINGS, LEAST_SPREAD_NS, Pairing, UniformPartner
from fedgossip.protocols.gossip.partner_set import PartnerSet
from fedgossip.protocols.private_gossip import KeyBook, MaskedSums
from fedgossip.protocols.push_sum.push_sum import ParcelMail
from fedgossip.secure.pairs import SeededPairs
from fedgossip.topology import Topology, build

NODES, ROUNDS = st.integers(1, 4), st.integers(0, 40)
some = settings(max_examples=60, deadline=None)


def share(number: int, weight: float = 0.5) -> Vectors:
    return frozen(np.array([float(number)])), frozen(np.array([weight]))


@some
@given(st.lists(st.tuples(NODES, ROUNDS, st.sampled_from("pppphgrf"))), st.integers(1, 5))
def test_a_mailbox_holds_no_round_that_is_over_and_no_more_than_a_neighbour_can_be_ahead(ops: Any, lead: int) -> None:
    box, current = Mailbox(dict.fromkeys(range(1, 5), lead)), 0
    for node, round, what in ops:
        if what == "p" and round >= current:
            had = box.has(node, round)
            assert box.keep(node, Model(round, SCHEMA, (vector(0),)), current) is not had
        elif what == "h":
            box.note_round(node, round)
        elif what == "g":
            current = max(current, min(round, current + 3))
            box.go_to(current)
        elif what == "r":
            box.reborn(node, current)
        elif what == "f":
            box.unbelieved([1, 2, 3, 4], current)
        assert all(r >= current and here for r, here in box.of.items())
        assert all(len(box.rounds(node)) <= lead + 2 for node in range(1, 5))
        assert all(r > current for _, r in box.ahead(current))


@some
@given(st.lists(st.tuples(NODES, st.sampled_from("xxmmhas"), st.integers(-1, 3), st.integers(-1, 3)), max_size=80))
def test_an_edge_ledger_keeps_what_may_be_asked_for_alone_and_knows_its_view(ops: Any) -> None:
    ledger, round, outgoing = EdgeLedger(SCHEMA), 0, (vector(0),)
    ledger.opens(0, "v0")
    ledger.models(0, outgoing, range(1, 5))
    for node, what, used, missing in ops:
        past, open_ = max(-1, round - used) if used >= 0 else -1, max(-1, round - missing) if missing >= 0 else -1
        if what == "x":
            ledger.closes(round, outgoing)
            round += 1
            ledger.opens(round, f"v{round // 7}")
            ledger.models(round, outgoing, range(1, 5))
        elif what == "m":
            model = Model(round, SCHEMA, outgoing, past, open_, f"v{round // 7}")
            ledger.counted(round, [node], {node: model})
        elif what == "h":
            ledger.update(node, round, past, open_)
            ledger.help(node, max(open_, 0), round, 10**9 * round, 1)
        elif what == "a":
            ledger.edge(node).missed(round, 0.25, outgoing)
        else:
            ledger.repeat(node, max(0, round - 1), round, (), 10**9 * round, 1)
        ledger.forget(round)
        wanted = {edge.used for edge in ledger.edges.values() if not edge.confirmed}
        assert ledger.sent.keys() <= wanted and len(ledger.sent) <= KEPT_ROUNDS
        again = {*ledger.sent, *(edge.missing for edge in ledger.edges.values() if edge.open)}
        assert again <= ledger.views.keys() and len(ledger.views) <= KEPT_ROUNDS + 1 + len(ledger.edges)


@some
@given(st.lists(st.tuples(NODES, ROUNDS, st.sampled_from("ppppt"))))
def test_all_mass_that_is_put_into_the_mail_is_taken_once(ops: Any) -> None:
    mail, current, held, number = ParcelMail({0: -1, **dict.fromkeys(range(1, 5), 2)}), 0, 0.0, 0
    for node, round, what in ops:
        if what == "p":
            number += 1
            mail.keep(node, round, share(number), current)
            held += number
        else:
            held -= sum(float(one[0][0]) for *_, one in mail.take(current))
            late = mail.take_late()
            held -= float(late[0][0]) if late else 0.0
            current += 1
        inside = [float(one[0][0]) for kept in mail.kept.values() for one in kept.values()]
        assert sum(inside) + (float(mail.late[0][0]) if mail.late else 0.0) == held
        assert all(len(kept) <= 3 + 1 for kept in mail.kept.values()), "the rounds that it can be in"


@some
@given(st.lists(st.sampled_from("mmpooad"), max_size=60), st.integers(1, 3), st.integers(0, 9))
def test_an_exchange_is_planned_or_on_the_way_and_never_both(ops: Any, exchanges: int, seed: int) -> None:
    pairing, offers = Pairing(0, UniformPartner(seed, 0), seed, exchanges), 0
    for at, what in enumerate(ops):
        if what == "m":
            pairing.more()
        elif what == "p":
            pairing.moment_ns(10**6 if at % 2 else None)
        elif what == "o" and pairing.planned:
            to = pairing.choose([1, 2, 3])
            assert to is not None and (to not in pairing.tried)
            pairing.begin(to, at, at)
            offers += 1
        elif what in "ad" and pairing.flight:
            if what == "d" and pairing.declined(pairing.flight.to, at):
                assert offers < ATTEMPTS
            else:
                pairing.over()
                offers = 0
        assert not (pairing.planned and pairing.flight) and pairing.due >= 0 and len(pairing.tried) <= ATTEMPTS
        assert pairing.due or not (pairing.planned or pairing.flight)


def test_the_only_partner_is_offered_an_exchange_again_after_waits_that_double() -> None:
    """It may wait for a lost answer: without longer waits thousands of offers a second are declined."""
    pairing, waits = Pairing(0, UniformPartner(1, 0), 1, 1), list[int]()
    pairing.more()
    for number in range(60):
        wait_ns = pairing.moment_ns(None)
        assert wait_ns is not None and pairing.choose([1]) == 1
        waits.append(wait_ns)
        pairing.begin(1, number, 0)
        assert pairing.declined(1, 0)
    assert max(waits[:3]) <= LEAST_SPREAD_NS < max(waits) <= LEAST_SPREAD_NS << DOUBLINGS
    assert sum(waits) > 10**9, "a lost answer is queried after a second"
    pairing.over()
    assert pairing.declines == 0


@some
@given(st.lists(st.tuples(NODES, st.integers(0, 12), st.booleans())), st.integers(0, 3))
def test_a_sender_counts_once_in_a_round_of_masked_sums(ops: Any, lead: int) -> None:
    sums, current, seen = MaskedSums(lead), 0, Counter[int]()
    counted: set[tuple[int, int]] = set()
    for node, round, goes in ops:
        if goes:
            current += 1
            sums.go_to(current)
        if round >= current:
            new = sums.add(node, round, np.full(3, node, np.uint32), current)
            counted |= {(node, round)} if new and round <= current + lead else set()
        assert all(current <= r <= current + lead for r in sums.of) and len(sums.of) <= lead + 1
    for round in sorted(sums.of):
        heard = sums.senders(round)
        seen[round] = sum(node for node, r in counted if r == round)
        assert heard == {node for node, r in counted if r == round}
        assert sums.take(round).tolist() == [seen[round]] * 3


@some
@given(st.lists(st.tuples(st.sampled_from("tmca"), st.integers(-5, 5)), max_size=40))
def test_every_correction_counts_once_and_none_while_a_round_is_open(ops: Any) -> None:
    learner: Learner[Any] = Learner(DSGD(), vector(0.0))
    settled = trained = waiting = 0
    for what, number in ops:
        if what == "t" and not learner.outgoing:
            trained = number
            learner.trained(vector(number), Step(0))
        elif what == "m" and learner.outgoing:
            learner.mixed(learner.outgoing)
            settled, waiting = settled + trained + waiting, 0
        elif what == "a":
            learner.abandoned()
            settled, waiting = settled + waiting, 0
        elif what == "c":
            if learner.outgoing:
                waiting += number
            else:
                settled += number
            learner.corrected((vector(number),))
        assert learner.model.tolist() == [settled]
        assert bool(learner.corrections) <= bool(learner.outgoing)


@some
@given(st.lists(st.tuples(NODES, st.sampled_from("jjlgda"), st.integers(0, 2))))
def test_nobody_is_here_and_gone_at_once(ops: Any) -> None:
    company = PartnerSet(0, range(1, 5))
    for node, what, life in ops:
        if what == "j":
            if company.joined(node, life):
                assert node not in company.left | company.done | company.told
        elif what == "l":
            company.left.add(node)
        elif what == "g":
            news = company.lost(node, 3)
            assert node not in company.linked and not (news and node in company.left)
            assert not company.lost(node, 3), "once is enough"
        here = set(company.list_present())
        assert here <= company.linked - company.left
        assert not set(company.awaited()) & (company.linked | company.left | company.absent)
        assert not set(company.missing()) & (company.linked | company.left)


@some
@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda arc: arc[0] != arc[1]), min_size=1))
def test_the_sources_of_a_round_are_its_row_and_those_one_way_hear_nothing(arcs: Any) -> None:
    mixing = build(Topology.from_edges(6, sorted(arcs), name="any", directed=True), "push")
    for node in range(6):
        round = ExchangedRound.from_weights(OwnWeights.from_mixing(node, mixing), range(0, 6, 2))
        sources = {u for u, v in arcs if v == node}
        assert round.sources.all == sources >= round.sources.missing == {j for j in sources if j % 2}
        assert round.one_way == sources - {v for u, v in arcs if u == node}
        assert round.sources.alone == (bool(sources) and all(j % 2 for j in sources))


@some
@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**10))), st.integers(0, 9))
def test_the_clock_of_a_round_stays_within_its_limits(rounds: Any, times: int) -> None:
    clock = RoundClock(30, 5, 7)
    for began, heard in rounds:
        clock.note_arrival(heard)
        clock.note_round(began)
        assert 5 <= clock.deadline.now_ns() <= 30
        assert 7 <= clock.patience_ns(times) <= clock.patience_ns(times + 1)


def test_a_key_of_a_neighbour_is_passed_on_once() -> None:
    class Known(SeededPairs):
        """As `AgreedPairs` tell: one's own key, and those of the peers that were asked for."""

        def keys_for(self, of: Any) -> list[RunKey]:
            return [RunKey(node, 0, "00") for node in of]

        def news(self, key: RunKey) -> bool:
            return not key.public

    book = KeyBook(0, Known(0, 1), [1, 2, 3], [0, 1, 2, 3])
    first = book.take(1, [RunKey(1, 0, "00")], [1, 2])
    assert [(send.to, send.message) for send in first] == [(2, RunKeys((RunKey(1, 0, "00"),)))]
    assert book.take(1, [RunKey(1, 0, "00")], [1, 2]) == [] and book.lacking == frozenset()
