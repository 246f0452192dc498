"""Fault scripts: each kind does what its words say, the same each time, and nonsense is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgossip import simulate
from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Finish,
    Fired,
    Meet,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Send,
    SetTimer,
    Started,
)
from fedgossip.core.messages import Leaving
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.drivers.local import check_local
from fedgossip.experiment import faults_in, load_experiment
from fedgossip.faults import KINDS, MOST_IN_VAIN, NS, FaultScript, RunProgress, Strike, Turn
from fedgossip.faults.script import Drop
from fedgossip.learning.analytic import Averaging
from fedgossip.plans import compose
from fedgossip.plans.completeness import ExchangeCounts, count_missing_clients
from fedgossip.simulation.network import NetworkSettings, SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

RING = {(i, (i + 1) % 8) for i in range(8)}


def script(*faults: dict[str, Any], n: int = 8, seed: int = 1, links: Any = None) -> FaultScript:
    content = {"topology": {"graph": "ring", "n": n}, "faults": list(faults)}
    return FaultScript(load_experiment(content).faults, n, seed, links)


# --- the script alone -----------------------------------------------------------------------------------------------


def test_so_many_messages_are_lost_as_the_probability_says() -> None:
    drop = script({"kind": "drop", "probability": 0.25})
    lost = [drop.fate(0, 1, number, 0).lost for number in range(4000)]
    deviation = np.sqrt(4000 * 0.25 * 0.75)
    assert sum(lost) == pytest.approx(0.25 * 4000, abs=4 * deviation)


def test_what_becomes_of_a_message_depends_on_seed_link_and_count_alone() -> None:
    words = {"kind": "drop", "probability": 0.5}, {"kind": "reorder", "seconds": 2.0}
    one, same, other = script(*words), script(*words), script(*words, seed=2)
    messages = [(a, b, number) for a, b in RING for number in range(50)]
    backwards = {of: same.fate(*of, 7) for of in reversed(messages)}
    assert {of: one.fate(*of, 7) for of in messages} == backwards
    assert {of: other.fate(*of, 7) for of in messages} != backwards
    assert [one.fate(0, 1, n, 0).lost for n in range(50)] != [one.fate(1, 0, n, 0).lost for n in range(50)]


def test_a_fault_acts_in_its_window_and_on_its_links_only() -> None:
    drop = script({"kind": "drop", "links": [[0, 1]], "start": 1.0, "stop": 2.0})
    assert [drop.fate(0, 1, 0, int(at * NS)).lost for at in (0.99, 1.0, 1.99, 2.0)] == [False, True, True, False]
    assert drop.fate(1, 0, 0, NS).lost and not drop.fate(1, 2, 0, NS).lost
    near = script({"kind": "drop", "peers": [3]})
    assert near.fate(3, 4, 0, 0).lost and near.fate(2, 3, 0, 0).lost and not near.fate(1, 2, 0, 0).lost


def test_faults_of_one_message_add_up() -> None:
    both = script({"kind": "delay", "seconds": 0.5}, {"kind": "delay", "seconds": 0.25}, {"kind": "duplicate"})
    fate = both.fate(0, 1, 0, 0)
    assert (fate.delay_ns, fate.held_ns) == (NS * 3 // 4, (0, 0))
    slow = script({"kind": "slow", "factor": 2.0}, {"kind": "slow", "factor": 3.0, "peers": [1], "stop": 5.0})
    assert [slow.factor(1, 0), slow.factor(1, 5 * NS), slow.factor(0, 0)] == [6.0, 2.0, 2.0]


def test_single_messages_are_named_by_sender_receiver_and_number() -> None:
    named = script({"kind": "drop", "messages": [[0, 1, 5], [1, 0, 2]]}, links=RING)
    assert [number for number in range(9) if named.fate(0, 1, number, 0).lost] == [5]
    assert [number for number in range(9) if named.fate(1, 0, number, 0).lost] == [2]
    assert not named.fate(2, 1, 5, 0).lost
    assert script({"kind": "duplicate", "seconds": 0.5}).fate(0, 1, 0, 0).held_ns == (0, NS // 2)


def test_a_crash_behind_a_message_has_no_time_and_no_other_message() -> None:
    crash = script({"kind": "crash", "messages": [[0, 1, 5]], "after": 1.0}, {"kind": "drop"}, links=RING)
    assert [number for number in range(9) if crash.fate(0, 1, number, 0).fells] == [5]
    assert crash.fate(0, 1, 5, 0).lost and not crash.fate(1, 0, 5, 0).fells
    assert crash.touches_messages and crash.restarts and list(crash.happenings()) == []


def test_a_peer_that_crashes_within_a_step_has_sent_and_not_written() -> None:
    """Its neighbours have the model of a round that it takes again from the checkpoint before."""
    case = {"rounds": 12, "topology": {"graph": "ring", "n": 4}, "task": {"kind": "averaging", "dtype": "float64"}}
    crash = {"kind": "crash", "messages": [[0, 1, 4]], "after": 0.01}
    run = simulate(case | {"faults": [crash]})
    events = {name: run.summary["events"].get(name, 0) for name in ("crashed", "restarted")}
    assert events == {"crashed": 1, "restarted": 1} and run.summary["status"] == "finished"
    with pytest.raises(ConfigError, match="only simulated"):
        check_local(compose.plan(load_experiment(case | {"faults": [crash]})))


def test_peers_in_no_group_of_a_partition_are_one_more() -> None:
    parted = script({"kind": "partition", "groups": [[0, 1], [2]]})
    assert [parted.cut(a, b, 0) for a, b in ((0, 1), (0, 2), (0, 5), (5, 7))] == [False, True, True, False]


@given(st.integers(1, 50), st.integers(0, 40), st.none() | st.integers(41, 200))
def test_the_turns_of_a_flap_are_where_its_links_go_down_and_up(period: int, start: int, stop: int | None) -> None:
    times = {"seconds": period / 10, "start": start / 10, **({"stop": stop / 10} if stop else {})}
    flap = script({"kind": "flap", **times})
    turns = [turn for turn in flap.schedule(30.0) if isinstance(turn, Turn)]
    for turn in turns:
        down = turn.name == "link_down"
        assert (flap.cut(0, 1, turn.at_ns), flap.cut(0, 1, turn.at_ns - 1)) == (down, not down)
    assert [turn.name for turn in turns] == [("link_down", "link_up")[k % 2] for k in range(len(turns))]


def test_every_so_often_another_peer_is_struck_and_nobody_who_is_away() -> None:
    soak = script({"kind": "crash", "every": 5.0, "after": 12.0, "start": 5.0})
    strikes = [one for one in soak.schedule(2000.0) if isinstance(one, Strike)]
    assert [one.at_ns for one in strikes] == [5 * NS * (k + 1) for k in range(400)]
    assert {one.node for one in strikes} == set(range(8))
    for k, one in enumerate(strikes):
        assert one.node not in {before.node for before in strikes[max(0, k - 2) : k]}, "it was away"
        assert one.back_ns == one.at_ns + 12 * NS
    assert strikes == soak.schedule(2000.0)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ({"kind": "crsh"}, r"faults\[0\]: kind = 'crsh'"),
        ({}, r"faults\[0\]: no kind"),
        ({"kind": "drop", "factor": 2.0}, r"unknown key 'faults\[0\] \(drop\).factor'"),
        ({"kind": "drop", "probability": 1.1}, r"faults\[0\].probability"),
        ({"kind": "delay"}, "seconds"),
        ({"kind": "delay", "seconds": -1.0}, r"faults\[0\].seconds"),
        ({"kind": "slow", "factor": 0.5}, r"faults\[0\].factor"),
        ({"kind": "slow", "factor": 2.0, "peers": [8]}, r"faults\[0\] \(slow\): there is no peer 8"),
        ({"kind": "slow", "factor": 2.0, "peers": [-1]}, r"faults\[0\].peers\[0\]"),
        ({"kind": "drop", "peers": []}, "strikes no peer"),
        ({"kind": "drop", "links": [[0, 2]]}, "0 and 2 are no neighbours"),
        ({"kind": "drop", "links": [[0, 1, 2]]}, r"faults\[0\].links\[0\]"),
        ({"kind": "drop", "messages": [[0, 2, 5]]}, "0 and 2 are no neighbours"),
        ({"kind": "drop", "messages": [[0, 8, 5]]}, "there is no peer 8"),
        ({"kind": "drop", "messages": []}, "strikes no peer"),
        ({"kind": "drop", "messages": [[0, 1, 5]], "peers": [0]}, "give `messages`, or `peers` and `links`"),
        ({"kind": "crash", "messages": [[0, 1, 5]], "peers": [0]}, "give `messages`, or `peers` and `every`"),
        ({"kind": "crash", "messages": [[0, 2, 5]]}, "0 and 2 are no neighbours"),
        ({"kind": "flap", "seconds": 1.0, "messages": [[0, 1, 5]]}, "unknown key"),
        ({"kind": "drop", "start": 5.0, "stop": 5.0}, "not after start"),
        ({"kind": "partition", "groups": [[0, 1], [1, 2]]}, "peer 1 is in two groups"),
        ({"kind": "partition", "groups": [list(range(8))]}, "separate no peers"),
        ({"kind": "partition", "groups": []}, "separate no peers"),
        ({"kind": "sleep"}, "how long it sleeps"),
        ({"kind": "crash"}, "every peer crashes for ever"),
        ({"kind": "crash", "every": 1.0}, "every peer crashes for ever"),
        ({"kind": "flap", "seconds": 0.0}, r"faults\[0\].seconds"),
    ],
)
def test_nonsense_is_refused_and_named(fault: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        script(fault, links=RING)


def test_a_fault_script_replaces_the_faults_of_an_experiment_and_has_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('faults = [{ kind = "drop", messages = [[0, 1, 2]] }]')
    ring: dict[str, Any] = {"topology": {"graph": "ring", "n": 4}, "faults": [{"kind": "reorder", "seconds": 1.0}]}
    (drop,) = load_experiment(ring, faults=faults_in(file)).faults
    assert isinstance(drop, Drop) and drop.messages == ((0, 1, 2),)
    file.write_text("rounds = 3\nfaults = []")
    with pytest.raises(ConfigError, match="no fault script"):
        faults_in(file)


def test_an_experiment_with_faults_is_read_again_as_it_was_written() -> None:
    faults = [
        {"kind": "drop", "probability": 0.1, "links": [[0, 1]]},
        {"kind": "partition", "groups": [[0, 1], [2, 3]], "start": 1.0, "stop": 2.0},
        {"kind": "crash", "peers": [2], "after": 1.0},
    ]
    once = load_experiment({"topology": {"graph": "ring", "n": 4}, "faults": faults})
    assert load_experiment(once.to_dict()) == once and len(once.faults) == 3
    assert set(KINDS) >= {fault["kind"] for fault in faults}


# --- in the simulator ---------------------------------------------------------------------------------------------


class Teller:
    """Says a number to its neighbours every tenth of a second, `rounds` times, and remembers all that it is told."""

    def __init__(self, node: NodeId, neighbours: Sequence[NodeId], rounds: int = 100, first: int = 0) -> None:
        self.node, self.neighbours, self.rounds, self.round = node, list(neighbours), rounds, first
        self.first = first
        self.told: list[tuple[float, Event]] = []

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        self.told.append((now_ns / NS, event))
        match event:
            case Started():
                return [SetTimer("next", NS // 10)]
            case Fired("next"):
                self.round += 1
                kept = Checkpoint(self.round, {"x": np.full(1, self.round, np.float32)})
                said: list[Effect] = [Send(to, Leaving(self.round)) for to in self.neighbours]
                done: Effect = Finish(kept.vectors["x"]) if self.round >= self.rounds else SetTimer("next", NS // 10)
                return [*said, kept, done]
            case _:
                return []

    def heard(self, sender: NodeId) -> list[tuple[float, int]]:
        return [
            (at, event.message.round)
            for at, event in self.told
            if isinstance(event, Received) and event.sender == sender and isinstance(event.message, Leaving)
        ]

    def links(self, node: NodeId) -> list[tuple[float, str]]:
        """When it was told that the link to `node` is up or gone, after the beginning."""
        return [
            (round(at, 3), f"joined {event.incarnation}" if isinstance(event, PeerJoined) else "gone")
            for at, event in self.told
            if isinstance(event, PeerJoined | PeerGone) and event.node == node and at > 0
        ]


class Scene:
    """A pair, or a ring, of tellers in the simulator; latency 10 ms, detection 1 s."""

    def __init__(self, *faults: dict[str, Any], n: int = 2, rounds: int = 100, **options: Any) -> None:
        around = [sorted({(i - 1) % n, (i + 1) % n} - {i}) for i in range(n)]
        self.tellers = [Teller(i, around[i], rounds) for i in range(n)]
        self.reborn: list[tuple[NodeId, int, Checkpoint | None]] = []
        self.rows: list[Row] = []
        self.crashed: list[NodeId] = []
        task = Averaging(n, 1, seed=0)
        self.simulator = Simulator(
            self.tellers,
            options.pop("links", around),
            task,
            SimulatedNetwork(NetworkSettings(latency=0.01), n, 0),
            Network(n, rounds, rounds, task.evaluate),
            self.rows.append,
            script=script(*faults, n=n),
            rebirth=self._rebirth,
            on_crash=lambda node, _machine: self.crashed.append(node),
            **options,
        )
        self.results = self.simulator.run(limit_seconds=60.0)

    def _rebirth(self, node: NodeId, incarnation: int, saved: Checkpoint | None) -> Teller:
        self.reborn.append((node, incarnation, saved))
        before = self.tellers[node]
        self.tellers[node] = Teller(node, before.neighbours, before.rounds, saved.round if saved else 0)
        return self.tellers[node]

    def events(self, *names: str) -> list[tuple[str, int]]:
        return [(row.name, row.peer) for row in self.rows if isinstance(row, EventRow) and row.name in names]


def test_without_faults_everything_arrives_once_in_order_after_the_latency() -> None:
    quiet = Scene()
    expected = [(pytest.approx(0.1 * k + 0.01, abs=1e-6), k) for k in range(1, 101)]
    assert quiet.tellers[1].heard(0) == expected
    assert quiet.rows == [] and quiet.simulator.counts == {}


def test_drop_loses_messages_and_counts_them() -> None:
    scene = Scene({"kind": "drop", "start": 2.0, "stop": 3.0})
    assert [number for _, number in scene.tellers[1].heard(0)] == [*range(1, 20), *range(30, 101)]
    assert scene.simulator.counts == {"lost": 20}  # ten in each direction


def test_delay_holds_up_what_follows_on_the_link() -> None:
    scene = Scene({"kind": "delay", "seconds": 0.5, "start": 2.0, "stop": 2.05})
    heard = scene.tellers[1].heard(0)
    assert [number for _, number in heard] == list(range(1, 101))
    assert [round(at, 2) for at, number in heard if number in (19, 20, 21, 25)] == [1.91, 2.51, 2.51, 2.51]


def test_a_duplicated_message_arrives_twice() -> None:
    numbers = [number for _, number in Scene({"kind": "duplicate"}).tellers[1].heard(0)]
    assert numbers == [number for number in range(1, 101) for _ in range(2)]


def test_only_reordering_lets_messages_overtake_each_other() -> None:
    numbers = [number for _, number in Scene({"kind": "reorder", "seconds": 0.5}).tellers[1].heard(0)]
    assert sorted(numbers) == list(range(1, 101)) and numbers != sorted(numbers)


def test_slow_makes_training_take_so_many_times_longer() -> None:
    quiet = {"rounds": 10, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 4}}
    slow = {**quiet, "faults": [{"kind": "slow", "factor": 10.0}]}
    once = simulate({**quiet, "simulation": {"latency": 0.0}}).summary["seconds"]
    assert simulate({**slow, "simulation": {"latency": 0.0}}).summary["seconds"] == pytest.approx(10 * once, rel=0.001)


def test_a_short_cut_only_delays_and_is_told_to_nobody() -> None:
    scene = Scene({"kind": "partition", "groups": [[0], [1]], "start": 2.05, "stop": 2.55})
    heard = scene.tellers[1].heard(0)
    assert [number for _, number in heard] == list(range(1, 101))
    assert {round(at, 2) for at, number in heard if 21 <= number <= 25} == {2.56}
    assert scene.tellers[1].links(0) == [] and "lost" not in scene.simulator.counts
    assert scene.events("partition", "healed") == [("partition", 0), ("healed", 0)]


def test_a_long_cut_is_told_to_both_and_loses_what_was_said() -> None:
    scene = Scene({"kind": "partition", "groups": [[0], [1]], "start": 2.05, "stop": 5.05})
    for node in (0, 1):
        other = 1 - node
        assert scene.tellers[node].links(other) == [(3.06, "gone"), (5.06, "joined 0")]
        # what is said between the heal and the news of it is lost as well
        assert [number for _, number in scene.tellers[node].heard(other)] == [*range(1, 21), *range(51, 101)]


def test_a_flapping_link_is_noticed_only_where_it_is_down_for_long() -> None:
    quick = Scene({"kind": "flap", "seconds": 1.0})
    assert quick.tellers[0].links(1) == []
    assert [number for _, number in quick.tellers[1].heard(0)] == list(range(1, 101))
    long = Scene({"kind": "flap", "seconds": 4.0, "stop": 8.0})
    assert [what for _, what in long.tellers[0].links(1)] == ["gone", "joined 0"] * 2


def test_who_sleeps_takes_all_in_order_when_it_wakes() -> None:
    scene = Scene({"kind": "sleep", "peers": [1], "start": 2.05, "seconds": 0.5})
    sleeper = scene.tellers[1]
    held = [(round(at, 2), number) for at, number in sleeper.heard(0) if 20 < number < 27]
    assert held == [(2.55, 21), (2.55, 22), (2.55, 23), (2.55, 24), (2.55, 25), (2.61, 26)]
    assert round(sleeper.told[-1][0] - 10.0, 2) == 0.45  # its one timer fired on waking, 0.45 s late
    assert scene.tellers[0].links(1) == [] and scene.events("asleep", "awake") == [("asleep", 1), ("awake", 1)]


def test_who_sleeps_long_is_given_up_and_found_again() -> None:
    scene = Scene({"kind": "sleep", "peers": [1], "start": 2.05, "stop": 5.05})
    assert scene.tellers[0].links(1) == [(3.06, "gone"), (5.06, "joined 0")]
    assert scene.tellers[1].links(0) == []  # it has noticed nothing


def test_a_crash_for_ever_is_told_after_the_latency() -> None:
    scene = Scene({"kind": "crash", "peers": [1], "start": 2.05})
    assert scene.tellers[0].links(1) == [(2.06, "gone")]
    assert scene.crashed == [1] and set(scene.results) == {0} and not scene.reborn


def test_a_crash_with_restart_goes_on_from_the_newest_checkpoint() -> None:
    scene = Scene({"kind": "crash", "peers": [1], "start": 2.05, "after": 1.0})
    ((node, incarnation, saved),) = scene.reborn
    assert (node, incarnation) == (1, 1) and saved is not None and saved.round == 20
    assert scene.tellers[0].links(1) == [(2.06, "gone"), (3.06, "joined 1")]
    assert scene.tellers[1].links(0) == [(3.06, "joined 0")]
    assert [number for _, number in scene.tellers[0].heard(1)] == list(range(1, 101))
    assert [number for _, number in scene.tellers[1].heard(0)] == list(range(31, 101))
    assert set(scene.results) == {0, 1} and scene.events("crashed", "restarted") == [("crashed", 1), ("restarted", 1)]


def test_checkpoints_are_kept_as_seldom_as_asked() -> None:
    scene = Scene({"kind": "crash", "peers": [1], "start": 2.05, "after": 1.0}, checkpoint_every=8)
    assert scene.reborn[0][2] is not None and scene.reborn[0][2].round == 16


def test_a_quick_restart_is_told_as_gone_and_joined_and_old_words_do_not_reach_the_new_life() -> None:
    scene = Scene({"kind": "crash", "peers": [1], "start": 2.005, "after": 0.001})
    assert scene.tellers[0].links(1) == [(2.015, "gone"), (2.015, "joined 1")]
    assert scene.tellers[1].heard(0)[0][1] == 21  # number 20 was on the way


def test_what_the_dead_had_sent_still_arrives_but_never_after_its_next_life_has_called() -> None:
    late = {"kind": "reorder", "seconds": 5.0, "stop": 2.0}
    scene = Scene(late, {"kind": "crash", "peers": [1], "start": 2.05, "after": 1.0})
    told = [(at, event) for at, event in scene.tellers[0].told if isinstance(event, Received | PeerJoined)]
    joined = next(at for at, event in told if isinstance(event, PeerJoined) and event.incarnation == 1)
    between = [number for at, number in scene.tellers[0].heard(1) if 2.06 < at < joined]
    after = [number for at, number in scene.tellers[0].heard(1) if at > joined]
    assert between and all(number <= 20 for number in between)
    assert after == sorted(after) and after[0] == 21


def test_a_peer_that_comes_later_is_told_and_told_of() -> None:
    scene = Scene(starts={1: 3.0})
    assert scene.tellers[0].links(1) == [(3.01, "joined 0")] and scene.tellers[1].links(0) == [(3.01, "joined 0")]
    assert scene.tellers[1].told[0][0] == 3.0


def test_who_asks_to_meet_a_peer_gets_a_link_both_ways() -> None:
    class Asker(Teller):
        def handle(self, event: Event, now_ns: int) -> list[Effect]:
            more: list[Effect] = [Meet(2, "", "")] if event == Fired("next") and self.round == 9 else []
            return [*super().handle(event, now_ns), *more]

    n, task = 3, Averaging(3, 1, seed=0)
    tellers = [Asker(0, [1]), Teller(1, [0]), Teller(2, [])]
    record, network = Network(n, 100, 100, task.evaluate), SimulatedNetwork(NetworkSettings(latency=0.01), n, 0)
    Simulator(tellers, [[1], [0], []], task, network, record, lambda _: None).run()
    assert tellers[0].links(2) == [(1.01, "joined 0")] == tellers[2].links(0)


def test_who_has_finished_is_told_no_timer() -> None:
    class Ends(Teller):
        def handle(self, event: Event, now_ns: int) -> list[Effect]:
            super().handle(event, now_ns)
            return [SetTimer("late", 5), Finish(np.zeros(1))] if isinstance(event, Started) else []

    task = Averaging(1, 1, seed=0)
    alone, record = Ends(0, []), Network(1, 100, 100, task.evaluate)
    Simulator([alone], [[]], task, SimulatedNetwork(NetworkSettings(), 1, 0), record, lambda _: None).run()
    assert [what for _, what in alone.told] == [Started()]


# --- whole runs ---------------------------------------------------------------------------------------------------

EVERYTHING = [
    {"kind": "drop", "probability": 0.05},
    {"kind": "delay", "seconds": 0.1, "probability": 0.1},
    {"kind": "duplicate", "probability": 0.1},
    {"kind": "reorder", "seconds": 0.2, "probability": 0.1},
    {"kind": "slow", "peers": [2], "factor": 3.0},
    {"kind": "crash", "peers": [3], "start": 1.0},
    {"kind": "sleep", "every": 2.0, "seconds": 1.5, "stop": 10.0},
    {"kind": "partition", "groups": [[0, 1, 2]], "start": 3.0, "stop": 6.0},
    {"kind": "flap", "links": [[5, 6]], "seconds": 3.0},
]


def whole(*faults: dict[str, Any], rounds: int = 40, **top: Any) -> dict[str, Any]:
    task = {"kind": "averaging", "dim": 3}
    sections = {"topology": {"graph": "ring", "n": 8}, "algorithm": {"deadline": 0.5}}
    return {"rounds": rounds, "task": task, **sections, "faults": faults, **top}


def test_the_same_seed_gives_the_same_history_whatever_goes_wrong() -> None:
    once, again = simulate(whole(*EVERYTHING)), simulate(whole(*EVERYTHING))
    assert once.rows == again.rows and once.summary["events"] == again.summary["events"]
    assert simulate(whole(*EVERYTHING), seed=2).rows != once.rows


def test_a_run_with_everything_that_can_go_wrong_ends() -> None:
    events = simulate(whole(*EVERYTHING)).summary["events"]
    assert {"crashed", "asleep", "awake", "partition", "healed", "link_down", "slow", "lost"} <= set(events)


CRASHES = {"kind": "crash", "every": 0.1, "after": 0.05}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_series_of_crashes_faster_than_a_round_ends_and_is_told(mode: str) -> None:
    """Else nobody ever comes through a training, and the run goes on for ever."""
    run = simulate(whole(CRASHES, rounds=5, simulation={"training": 20.0}, algorithm={"mode": mode, "deadline": 0.5}))
    events = run.summary["events"]
    assert events["crashed"] == MOST_IN_VAIN * 8 and events["struck_in_vain"] == 1
    assert run.summary["rounds"] == 5


def test_a_series_of_crashes_between_which_rounds_are_done_goes_on_to_the_end() -> None:
    ring = {"graph": "ring", "n": 4}
    quick = simulate(whole(CRASHES, rounds=200, simulation={"training": 0.05}, topology=ring))
    assert quick.summary["events"]["crashed"] > MOST_IN_VAIN * 4
    assert "struck_in_vain" not in quick.summary["events"]


def test_a_round_that_is_done_again_from_an_older_checkpoint_is_no_progress() -> None:
    progress = RunProgress(2)
    for strike in range(2 * MOST_IN_VAIN):
        progress.reached(strike % 2, 1 + strike % 3)
        over = progress.struck()
    assert not over
    while not progress.struck():
        progress.reached(0, 3)
    progress.reached(0, 4)
    assert progress.over


def test_the_stacked_engine_has_no_faults() -> None:
    with pytest.raises(ConfigError, match="stacked"):
        simulate(whole({"kind": "duplicate"}), engine="stacked")


# --- one decision for dry run, run, launch and invite -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"topology": {"graph": "ring", "n": 4}, "faults": [{"kind": "crash", "peers": [9]}]}, "there is no peer 9"),
        (
            {"topology": {"graph": "ring", "n": 4}, "simulation": {"classes": [{"nodes": "7", "slower": 2.0}]}},
            "'7' names no nodes",
        ),
        (
            {
                "coordinator": {
                    "clients": 5,
                    "cohort": 4,
                    "algorithm": "trimmed-mean",
                    "options": {"cut": 2},
                    "secure": {"on": False},
                }
            },
            "trimmed-mean compares at least 5 updates, and 4 clients",
        ),
    ],
)
def test_a_plan_refuses_what_its_run_would_refuse(content: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        compose.plan(load_experiment({"rounds": 2, "task": {"kind": "quadratic"}, **content}))


def test_bits_that_cannot_count_the_weights_are_refused_by_name() -> None:
    plan = compose.plan(load_experiment({"coordinator": {"clients": 4}, "task": {"kind": "averaging"}}))
    assert plan.numbers.fixed_point(1, "").limit >= plan.weight_max
    with pytest.raises(ConfigError, match=r"secure.bits = 12: up to 2047, and weights up to 10000"):
        compose.plan(
            load_experiment({"coordinator": {"clients": 4, "secure": {"bits": 12}}, "task": {"kind": "averaging"}})
        )


@pytest.mark.parametrize("seconds", [0.4, 1.9])
def test_a_flap_without_an_end_is_over_with_the_run(seconds: float) -> None:
    content = {"rounds": 3, "task": {"kind": "quadratic"}, "topology": {"graph": "ring", "n": 5}}
    run = simulate({**content, "faults": [{"kind": "flap", "seconds": seconds}]})
    assert run.summary["status"] == "finished"
    assert run.summary["events"].get("link_up", 0) <= 1 + run.summary["seconds"] / seconds


HALF = {
    "losses on a graph": ({"topology": {"graph": "ring", "n": 4}}, {"kind": "drop", "probability": 0.6}, "missed"),
    "a worker that is away": (
        {"parallel": {"method": "parameter-server", "workers": 2, "deadline": 0.1}, "rounds": 20},
        {"kind": "crash", "peers": [1], "start": 0.2, "after": 1.0},
        "Worker 1 missed",
    ),
    "push-sum whose parcels count in later rounds": (
        {"topology": {"graph": "ring", "n": 3}, "algorithm": {"name": "push-sum", "deadline": 0.2}, "rounds": 60},
        {"kind": "crash", "peers": [2], "start": 0.5, "after": 0.5},
        "",
    ),
    "sums of private gossip that do not open": (
        {"topology": {"graph": "complete", "n": 4}, "algorithm": {"private": True}, "rounds": 20},
        {"kind": "drop", "probability": 0.3},
        "missed",
    ),
    "a private peer that is cut off": (
        {"topology": {"graph": "complete", "n": 4}, "algorithm": {"private": True, "deadline": 0.2}, "rounds": 20},
        {"kind": "crash", "peers": [2], "start": 0.2},
        "missed",
    ),
    "a few losses of private gossip": (
        {"topology": {"graph": "complete", "n": 4}, "algorithm": {"private": True}, "rounds": 20},
        {"kind": "drop", "probability": 0.02},
        "",
    ),
    "updates of fedbuff that are lost": (
        {"coordinator": {"clients": 4, "algorithm": "fedbuff", "secure": {"on": False}, "deadline": 2.0}},
        {"kind": "drop", "probability": 0.5},
        "The coordinator missed",
    ),
    "offers of asynchronous gossip without an answer": (
        {"topology": {"graph": "ring", "n": 4}, "algorithm": {"mode": "async"}, "rounds": 30, "seed": 2},
        {"kind": "drop", "probability": 0.3},
        "missed",
    ),
    "a few offers without an answer": (
        {"topology": {"graph": "ring", "n": 4}, "algorithm": {"mode": "async"}, "rounds": 30},
        {"kind": "drop", "probability": 0.05},
        "",
    ),
    "a few losses": ({"topology": {"graph": "ring", "n": 4}}, {"kind": "drop", "probability": 0.1}, ""),
}


@pytest.mark.parametrize(("run", "fault", "said"), HALF.values(), ids=HALF)
def test_a_run_half_of_whose_exchanges_are_missing_says_so_and_is_partial(run: Any, fault: Any, said: str) -> None:
    task = {"kind": "quadratic", "dim": 3}
    ended = simulate({"rounds": 8, "task": task, **run, "faults": [fault]})
    told = [row for row in ended.rows if getattr(row, "name", "") == "half_missing"]
    assert ended.summary["status"] == ("partial" if said else "finished")
    assert bool(told) == bool(said) == any(said and said in line for line in ended.summary["lacking"])
    assert all(row.round < ended.summary["rounds"] or row.peer == 3 for row in told)  # while it goes on


@pytest.mark.parametrize(
    ("fault", "said"),
    [({"kind": "crash", "start": 0.2}, ("Worker 1 missed 17 of 20 exchanges.",)), ({"kind": "slow", "factor": 20}, ())],
)
def test_rounds_that_a_worker_of_asynchronous_servers_never_did_are_missing_at_the_end(fault: Any, said: Any) -> None:
    served = {"method": "parameter-server", "workers": 3, "server": {"staleness": "async"}}
    task = {"kind": "quadratic", "dim": 3}
    ended = simulate({"rounds": 20, "task": task, "parallel": served, "faults": [{"peers": [1], **fault}]})
    assert (ended.summary["lacking"], ended.summary["status"]) == (said, "partial" if said else "finished")
    assert "half_missing" not in ended.summary["events"], "a slow worker may do its rounds yet"


def test_rounds_of_half_the_clients_are_counted_as_missing() -> None:
    assert count_missing_clients(PeerRow(1, 4, None, None, 0, 0, 0, 0, 0, 0, clients=1), 4) == (3, 4)


def test_a_round_is_missed_by_the_worker_without_a_row_of_it_and_made_up_for_by_a_late_row() -> None:
    of = ExchangeCounts(lambda row: (2 - row.peers, 2) if isinstance(row, NetworkRow) and row.round else (0, 0))
    told: list[EventRow] = []
    for round in range(12):
        told += of.take(PeerRow(round, 0, None, None, 0, 0, 0, 0, 0, 0)) + of.take(NetworkRow(round, 1, 0.0, 0))
    assert of.half == [(1, 11, 11)] and [(row.round, row.peer) for row in told] == [(8, 1)]
    for round in range(1, 8):
        of.take(PeerRow(round, 1, None, None, 0, 0, 0, 0, 0, 0))
    assert of.half == []


def test_rounds_that_a_peer_skips_are_missed() -> None:
    plan = compose.plan(load_experiment({"topology": {"graph": "ring", "n": 4}, "task": {"kind": "averaging"}}))
    assert plan.exchanges(EventRow(9, 2, "skipped", 4)) == (8, 8)


@pytest.mark.parametrize(("engine", "arrays"), [("sim", True), ("stacked", False)])
def test_peers_that_no_memory_holds_are_refused_before_the_run(
    engine: str, arrays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 kB a peer by machines, 5 kB on arrays, and two models of 4 kB each."""
    experiment = {"task": {"kind": "averaging", "dim": 1000}, "topology": {"graph": "ring", "n": 10}, "rounds": 1}
    monkeypatch.setattr("fedgossip.base.machine_memory.MEMORY", 479_999 if arrays else 129_999)
    with pytest.raises(ConfigError, match=r"10 participants with models of 4,000 bytes take at least") as refused:
        simulate(experiment, engine=engine)
    assert ("--on stacked" in refused.value.advice) == arrays
    monkeypatch.setattr("fedgossip.base.machine_memory.MEMORY", 480_000)
    simulate(experiment, engine=engine)
