"""The synchronous machine alone, and in pairs whose messages are moved by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_hand import reports

from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen, ordered_mix
from fedgossip.core.machine import (
    Finish,
    Fired,
    PeerGone,
    PeerJoined,
    Received,
    Rostered,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.core.messages import Account, Leaving, Model
from fedgossip.protocols.gossip.awaited_round import SyncSettings
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.topology import Topology, build, resolve

SCHEMA = "s"


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float32))


def graph_of(graph: str, n: int) -> Topology:
    if graph == "cycle":
        return Topology.from_edges(n, [(i, (i + 1) % n) for i in range(n)], name="cycle", directed=True)
    return resolve(graph, n)


def machine(node: int, graph: str = "ring", n: int = 4, rounds: int = 3) -> SyncGossip[Vector]:
    mixing = build(graph_of(graph, n), "metropolis")
    return SyncGossip(node, mixing, DSGD(), vector(node, 10 * node), SCHEMA, SyncSettings(rounds))


def kinds(effects: Any) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def training(node: int = 0, **keys: Any) -> SyncGossip[Vector]:
    """A machine whose links are all up, in training."""
    m = machine(node, **keys)
    m.handle(Started(), 0)
    for partner in m.company.partners:
        m.handle(PeerJoined(partner), 0)
    assert m.phase == "training"
    return m


def waiting(node: int = 0, **keys: Any) -> SyncGossip[Vector]:
    """A machine that has sent its model of round 0."""
    m = training(node, **keys)
    m.handle(Trained(0, None), 0)
    assert m.phase in ("waiting", "training")
    return m


def model(round: int, *values: float) -> Model:
    return Model(round, SCHEMA, (vector(*values),))


def test_training_begins_when_every_link_is_up() -> None:
    m = machine(0)
    assert kinds(m.handle(Started(), 0)) == ["SetTimer", "SetTimer"]
    assert m.handle(PeerJoined(1), 0) == []
    (train,) = m.handle(PeerJoined(3), 0)
    assert isinstance(train, Train) and train.job == 0 and train.vector.tolist() == [0, 0]


def test_a_peer_without_neighbours_needs_nobody() -> None:
    m = machine(0, graph="none", rounds=1)
    assert kinds(m.handle(Started(), 0)) == ["Train"]
    effects = m.handle(Trained(0, vector(1, 2)), 0)
    assert isinstance(effects[-1], Finish) and effects[-1].result.tolist() == [1, 2]


def test_what_was_trained_goes_to_every_neighbour_with_a_deadline() -> None:
    effects = training(0).handle(Trained(0, vector(1, 1)), 0)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert [send.to for send in sends] == [1, 3]
    assert all(isinstance(s.message, Model) and s.message.vectors[0].tolist() == [1, 1] for s in sends)
    assert [effect.key for effect in effects if isinstance(effect, SetTimer)] == [("deadline", 0), ("ask", 0, 0)]


def test_a_model_that_does_not_come_is_asked_for_and_said_again() -> None:
    m = waiting(0)
    m.handle(Received(1, model(0, 0, 0)), 0)
    (ask,) = [e for e in m.handle(Fired(("ask", 0, 0)), 0) if isinstance(e, Send)]
    assert (ask.to, ask.message) == (3, Account(0, asks=True))
    (again,) = waiting(0).handle(Received(3, Account(0, asks=True)), 0)
    assert isinstance(again, Send) and isinstance(again.message, Model) and again.message.round == 0


def test_the_mix_is_the_ordered_sum_whatever_the_order_of_arrival() -> None:
    third = 1 / 3
    expected = ordered_mix([(third, vector(0, 0)), (third, vector(1, 10)), (third, vector(3, 30))])
    for order in ([1, 3], [3, 1]):
        m = waiting(0)
        for sender in order:
            effects = m.handle(Received(sender, model(0, sender, 10 * sender)), 0)
        assert np.array_equal(reports(effects)["round_done"], expected)
        assert isinstance(effects[-1], Train) and effects[-1].job == 1


def test_an_early_model_waits_for_its_round() -> None:
    m = waiting(0)
    m.handle(Received(1, model(0, 1, 1)), 0)
    assert m.handle(Received(1, model(1, 5, 5)), 0) == []
    m.handle(Received(3, model(0, 3, 3)), 0)
    assert (m.round, m.phase) == (1, "training")
    m.handle(Trained(1, None), 0)
    effects = m.handle(Received(3, model(1, 7, 7)), 0)
    assert "round_done" in reports(effects)


def test_a_late_model_is_data_for_the_log() -> None:
    m = waiting(0, rounds=5)
    for sender in (1, 3):
        m.handle(Received(sender, model(0, 0, 0)), 0)
    assert reports(m.handle(Received(1, model(0, 0, 0)), 0)) == {"late": {"peer": 1, "round": 0}}


def test_a_repeated_model_changes_nothing() -> None:
    m = waiting(0)
    m.handle(Received(1, model(0, 1, 1)), 0)
    assert reports(m.handle(Received(1, model(0, 9, 9)), 0)) == {"repeated": {"peer": 1, "round": 0}}
    effects = m.handle(Received(3, model(0, 2, 2)), 0)
    assert np.allclose(reports(effects)["round_done"], [1, 1])


def test_the_weight_of_one_who_misses_the_deadline_goes_to_oneself() -> None:
    m = waiting(0)
    m.handle(Received(1, model(0, 3, 30)), 0)
    effects = m.handle(Fired(("deadline", 0)), 0)
    assert reports(effects)["missed"] == [3]
    assert np.allclose(reports(effects)["round_done"], [1, 10])  # 2/3 of own [0, 0], 1/3 of [3, 30]


def test_who_missed_a_deadline_is_not_waited_for_until_it_is_heard_again() -> None:
    m = waiting(0)
    m.handle(Fired(("deadline", 0)), 0)
    assert m.round == 1
    effects = m.handle(Trained(1, None), 0)
    assert m.round == 2 and reports(effects)["missed"] == [1, 3]
    m.handle(Received(1, model(2, 6, 6)), 0)
    m.handle(Received(3, model(2, 6, 6)), 0)
    effects = m.handle(Trained(2, None), 0)
    assert "missed" not in reports(effects)


def test_a_stale_deadline_does_nothing() -> None:
    m = waiting(0)
    for sender in (1, 3):
        m.handle(Received(sender, model(0, 0, 0)), 0)
    m.handle(Trained(1, None), 0)
    assert m.handle(Fired(("deadline", 0)), 0) == [] and m.phase == "waiting"


def test_a_neighbour_that_dies_is_left_out_at_once() -> None:
    m = waiting(0)
    m.handle(Received(1, model(0, 3, 30)), 0)
    effects = m.handle(PeerGone(3), 0)
    assert reports(effects)["gone"] == 3 and reports(effects)["missed"] == [3]


def test_one_left_behind_takes_the_newest_round() -> None:
    """Neighbours two rounds ahead have given up on us; their models of the rounds between are lost."""
    m = training(0, rounds=9)
    for number in range(5):
        for sender in (1, 3):
            m.handle(Received(sender, model(number, 3, 3)), 0)
    assert all(len(m.mailbox.rounds(sender)) <= 2 for sender in (1, 3))
    effects = m.handle(Trained(0, None), 0)
    assert reports(effects)["skipped"] == 4
    assert np.allclose(reports(effects)["round_done"], [2, 2]) and m.round == 5


def test_a_mailbox_keeps_two_models_per_neighbour_however_many_come() -> None:
    m = training(0, rounds=1000)
    for number in range(999):
        m.handle(Received(1, model(number, 0, 0)), 0)
        assert len(m.mailbox.rounds(1)) <= 2
    assert m.mailbox.rounds(1) == [0, 998]


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (2, model(0, 0, 0)),  # no neighbour on the ring of four
        (1, model(3, 0, 0)),  # a run of three rounds
        (1, model(-1, 0, 0)),
        (1, Model(0, "other", (vector(0, 0),))),
        (1, model(0, 0, 0, 0)),
        (1, Model(0, SCHEMA, (frozen(np.zeros(2)),))),
        (1, Model(0, SCHEMA, (vector(0, 0),) * 2)),
    ],
    ids=["stranger", "future", "past", "schema", "length", "dtype", "count"],
)
def test_a_bad_message_costs_that_message_only(sender: int, message: Model) -> None:
    m = waiting(0)
    with pytest.raises(ProtocolError) as caught:
        m.handle(Received(sender, message), 0)
    assert caught.value.peer == sender
    assert (m.round, m.phase, m.mailbox.of) == (0, "waiting", {})


def test_the_start_timer_starts_with_those_who_came() -> None:
    m = machine(0)
    m.handle(Started(), 0)
    m.handle(PeerJoined(1), 0)
    effects = m.handle(Fired(("start",)), 0)
    assert reports(effects) == {"started_without": [3]} and isinstance(effects[-1], Train)


def test_to_learn_alone_is_no_gossip() -> None:
    m = machine(0)
    m.handle(Started(), 0)
    effects = m.handle(Fired(("start",)), 0)
    assert reports(effects) == {"nobody_came": [1, 3]} and isinstance(effects[-1], Finish)


def test_a_finished_peer_stays_until_its_neighbours_leave() -> None:
    m = waiting(0, rounds=1)
    m.handle(Received(1, model(0, 0, 0)), 0)
    effects = m.handle(Received(3, model(0, 0, 0)), 0)
    goodbyes = [e.to for e in effects if isinstance(e, Send) and isinstance(e.message, Leaving)]
    assert goodbyes == [1, 3] and m.phase == "leaving"
    assert m.handle(Received(1, Leaving(1)), 0) == [Send(1, Leaving(1, used=0, done=True))]
    assert m.handle(Received(1, Leaving(1, done=True)), 0) == []
    assert isinstance(m.handle(Received(3, Leaving(1, done=True)), 0)[-1], Finish)
    assert m.handle(Received(3, model(0, 0, 0)), 0) == []


def test_the_drain_timer_ends_the_stay() -> None:
    m = waiting(0, rounds=1)
    for sender in (1, 3):
        m.handle(Received(sender, model(0, 0, 0)), 0)
    assert m.phase == "leaving"
    assert isinstance(m.handle(Fired(("drain",)), 0)[-1], Finish)


def test_stopping_says_goodbye_and_keeps_the_model() -> None:
    effects = waiting(2).handle(Stopping(), 0)
    assert kinds(effects) == ["Send", "Send", "Finish"]
    assert isinstance(effects[-1], Finish) and effects[-1].result.tolist() == [2, 20]


def test_one_who_leaves_early_is_not_waited_for() -> None:
    m = waiting(0)
    m.handle(Received(1, model(0, 0, 0)), 0)
    assert "round_done" in reports(m.handle(Received(3, Leaving(0)), 0))


def test_what_one_did_not_mix_before_it_left_stays_open_with_nobody() -> None:
    """It got our model and left in training: nothing is to be settled, and neither waits for the other at its end."""
    m, other = waiting(0, graph="path", n=2, rounds=2), training(1, graph="path", n=2, rounds=2)
    other.handle(Received(0, model(0, 0, 0)), 0)
    goodbyes = [e for e in other.handle(Stopping(over=True), 0) if isinstance(e, Send)]
    effects = m.handle(Received(1, goodbyes[0].message), 0)
    assert "missed" in reports(effects) and not m.open_with(1)
    m.handle(Fired(("pace", 0)), 0)
    ended = m.end()
    assert "unsettled" not in reports(ended) and m.leaving(1).done
    said = [e.message for e in ended if isinstance(e, Send)]
    assert isinstance(other.handle(Received(0, said[-1]), 0)[-1], Finish)


def test_an_open_round_is_settled_by_a_goodbye_from_before_it() -> None:
    m = waiting(0, graph="path", n=2)
    m.handle(Fired(("deadline", 0)), 0)
    assert m.open_with(1)
    assert m.handle(Received(1, Leaving(0)), 0) is not None and not m.open_with(1)


def test_what_one_mixed_before_it_left_counts_at_both_ends() -> None:
    m = waiting(0, graph="path", n=2)
    m.handle(Fired(("deadline", 0)), 0)
    m.handle(Received(1, Leaving(1, used=0)), 0)
    assert m.open_with(1), "its model of that round is to be asked for"
    m.handle(Trained(1, vector(1, 1)), 0)
    assert "repaired" in reports(m.handle(Received(1, model(0, 2, 20)), 0)) and not m.open_with(1)


def test_on_a_directed_graph_models_flow_along_the_arcs_only() -> None:
    m = training(0, graph="directed-exponential", n=8)
    effects = m.handle(Trained(0, None), 0)
    assert [e.to for e in effects if isinstance(e, Send)] == [1, 2, 4]
    for sender in (7, 6):
        assert m.handle(Received(sender, model(0, 0, 0)), 0) == []
    assert "round_done" in reports(m.handle(Received(4, model(0, 0, 0)), 0))


def test_one_that_skipped_keeps_the_model_of_the_round_it_took() -> None:
    """Found by the random schedules: old models left in the mailbox pushed the current one out."""
    m = training(0, rounds=20)
    m.handle(Received(1, model(0, 1, 1)), 0)
    m.handle(Received(3, model(0, 1, 1)), 0)
    m.handle(Received(3, model(4, 1, 1)), 0)
    m.handle(Trained(0, None), 0)
    assert m.round == 4
    m.handle(Received(3, model(5, 1, 1)), 0)
    assert "round_done" in reports(m.handle(Received(1, model(4, 1, 1)), 0))


def test_a_later_model_says_that_this_rounds_was_lost() -> None:
    """Links keep the order, so nobody waits for the deadline when the next round's model comes first."""
    m = waiting(0)
    m.handle(Received(1, model(0, 1, 1)), 0)
    assert reports(m.handle(Received(3, model(1, 1, 1)), 0))["missed"] == [3]


def test_one_late_by_a_round_is_waited_for_again() -> None:
    m = waiting(0, rounds=9)
    m.handle(Received(1, model(0, 0, 0)), 0)
    m.handle(Fired(("deadline", 0)), 0)
    assert m.company.absent == {3}
    m.handle(Received(3, model(0, 0, 0)), 0)
    m.handle(Trained(1, None), 0)
    assert m.company.absent == set() and m.handle(Received(1, model(1, 0, 0)), 0) == []


def test_what_was_on_the_way_from_a_dead_peer_does_not_bring_it_back() -> None:
    m = training(0)
    m.handle(PeerGone(3), 0)
    m.handle(Received(3, model(0, 0, 0)), 0)
    assert m.company.absent == {3}


def test_neighbours_that_leave_before_the_start_are_not_waited_for() -> None:
    m = machine(0)
    m.handle(Started(), 0)
    m.handle(PeerJoined(1), 0)
    assert m.handle(Received(1, Leaving(0)), 0) == []
    assert isinstance(m.handle(PeerJoined(3), 0)[-1], Train)
    m = machine(0)
    m.handle(Started(), 0)
    m.handle(Received(1, Leaving(0)), 0)
    assert isinstance(m.handle(Received(3, Leaving(0)), 0)[-1], Finish)


def test_a_source_that_does_not_hear_us_may_run_ahead_and_nothing_is_lost() -> None:
    """On the directed cycle 0 -> 1 -> 2 -> 3 -> 0 peer 3 can be three rounds ahead of peer 0, which feeds it last."""
    m = training(0, graph="cycle", rounds=9)
    assert m.mailbox.leads == {1: 1, 3: 3}
    for number in range(4):
        m.handle(Received(3, model(number, 0, 0)), 0)
    assert m.mailbox.rounds(3) == [0, 1, 2, 3]
    for number in range(4):
        effects = m.handle(Trained(number, None), 0)
        assert "skipped" not in reports(effects) and "missed" not in reports(effects)


def test_a_model_that_is_not_finite_is_refused() -> None:
    m = waiting(0)
    with pytest.raises(ProtocolError, match="not finite"):
        m.handle(Received(1, model(0, float("nan"), 0)), 0)
    assert m.open.sources.missing == {1, 3}


def test_one_neighbour_that_speaks_of_a_far_round_is_not_followed() -> None:
    m = training(0, rounds=2000)
    m.handle(Received(1, model(1, 0, 0)), 0)
    m.handle(Received(3, model(999, 0, 0)), 0)
    effects = m.handle(Trained(0, None), 0)
    assert reports(effects)["far_ahead"] == {"peer": 3, "round": 999} and m.round <= 2


def test_a_roster_that_changes_between_sending_and_mixing_moves_no_mean() -> None:
    """Found in review: what was sent under one view must be mixed under it, or one end counts and the other not."""
    m = waiting(0)
    m.handle(Received(1, model(0, 9, 9)), 0)

    class Renamed:
        period = 1
        mixing, partners = m.schedule.mixing, m.schedule.partners

        @staticmethod
        def view(round: int) -> str:
            return "new"

    m.handle(Rostered(Renamed()), 0)
    other = Model(0, SCHEMA, (vector(9, 9),), view="new")
    effects = m.handle(Received(3, other), 0)
    after = reports(effects)["round_done"]
    assert np.allclose(after, [3, 3])  # 1/3 of neighbour 1; neighbour 3 mixes under another view
