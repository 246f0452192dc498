"""The same fault scripts in real peers: between machine and sockets, around training, and upon whole processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import over_sockets
import pytest
from commands import alive, no_secrets_in

from fedgossip import simulate
from fedgossip.base.vectors import digest
from fedgossip.core.messages import Ack, AnyMessage, Leaving
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.core.task import Job, Update
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.peer_processes import PeerProcesses, Striker
from fedgossip.experiment import load_experiment
from fedgossip.faults import NS, FaultScript
from fedgossip.net.faulty import Faults, SlowTask
from fedgossip.net.host import Host
from fedgossip.net.transport import LinkDown, LinkEvent, LinkUp
from fedgossip.plans import compose
from fedgossip.runs.collect import last_word
from fedgossip.runs.peer_files import life_totals_in
from fedgossip.runs.run_directory import Run


def averaging(rounds: int, *faults: dict[str, Any], n: int = 4, **algorithm: float) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "topology": {"graph": "ring", "n": n},
        "task": {"kind": "averaging", "dim": 5},
        "algorithm": {"deadline": 1.0, "start_timeout": 30.0, **algorithm},
        "eval": {"every": rounds},
        "faults": list(faults),
    }


def script(*faults: dict[str, Any], n: int = 4) -> FaultScript:
    return FaultScript(load_experiment(averaging(1, *faults, n=n)).faults, n, 1)


# --- the links of one peer, in a time that is set by hand -----------------------------------------------------------


class FakeLinks:
    """Peer 0 of a ring of four, whose links are up."""

    partners = (1, 3)
    bytes_sent = 17

    def __init__(self) -> None:
        self.sent: list[tuple[int, AnyMessage]] = []
        self.coming: list[LinkEvent] = [LinkUp(1), LinkUp(3)]
        self.waited: list[int] = []
        self.closed = False

    def send(self, to: int, message: AnyMessage) -> None:
        self.sent.append((to, message))

    def poll(self, timeout_ms: int) -> list[LinkEvent]:
        self.waited.append(timeout_ms)
        events, self.coming = self.coming, []
        return events

    def close(self, drain_seconds: float = 0.0) -> None:
        self.closed = True


class Desk:
    """Peer 0 with faults; time stands until it is moved."""

    def __init__(self, *faults: dict[str, Any]) -> None:
        self.now: float | None = 0.0
        self.below = FakeLinks()
        self.links: Any = Faults(script(*faults), 0, self._clock).on_links(self.below)  # type: ignore[arg-type]
        self.links.poll(500)

    def _clock(self) -> int | None:
        return None if self.now is None else int(self.now * NS)

    def at(self, second: float) -> list[LinkEvent]:
        self.now = second
        events: list[LinkEvent] = self.links.poll(500)
        return events

    def say(self, *numbers: int, to: int = 1) -> None:
        for number in numbers:
            self.links.send(to, Ack(number))

    def heard(self, of: int = 1) -> list[int]:
        """The numbers that went out to `of`."""
        return [m.number for to, m in self.below.sent if to == of and isinstance(m, Ack)]


CUT = {"kind": "partition", "groups": [[0, 3], [1, 2]], "start": 2.0}


def test_links_without_such_faults_are_left_alone() -> None:
    links = FakeLinks()
    slow = Faults(script({"kind": "slow", "factor": 2.0}), 0, lambda: 0)
    assert slow.on_links(links) is links  # type: ignore[arg-type, comparison-overlap]


def test_a_message_is_lost_or_said_twice_before_it_reaches_the_socket() -> None:
    desk = Desk({"kind": "drop", "start": 1.0, "stop": 2.0}, {"kind": "duplicate", "start": 2.0})
    for at in (0.0, 1.0, 2.0):
        desk.at(at)
        desk.say(int(at))
    assert desk.heard() == [0, 2, 2]


def test_nothing_is_done_before_the_run_has_begun() -> None:
    desk = Desk({"kind": "drop"})
    desk.now = None
    desk.say(1)
    desk.now = 0.0
    desk.say(2)
    assert desk.heard() == [1]


def test_what_is_said_late_goes_behind_what_was_due_before_it() -> None:
    desk = Desk({"kind": "delay", "seconds": 0.2, "stop": 0.1})
    desk.say(1)
    desk.now = 0.3  # the first is due, and nobody has polled since
    desk.say(2)
    assert desk.heard() == [1, 2]


def test_a_delayed_message_keeps_its_place_and_the_sleep_ends_when_it_is_due() -> None:
    desk = Desk({"kind": "delay", "seconds": 0.2, "stop": 0.1})
    desk.say(1)
    desk.at(0.15)
    desk.say(2)  # not delayed itself, but behind the first
    assert desk.heard() == [] and desk.below.waited[-1] <= 201
    desk.at(0.21)
    assert desk.heard() == [1, 2]


def test_a_message_that_is_held_back_is_overtaken() -> None:
    desk = Desk({"kind": "reorder", "seconds": 1.0, "stop": 0.1})
    desk.say(1)
    desk.at(0.1)
    desk.say(2)
    desk.at(1.1)
    assert desk.heard() == [2, 1]


def test_what_is_held_back_goes_out_before_the_links_close() -> None:
    desk = Desk({"kind": "delay", "seconds": 5.0})
    desk.say(1, 2)
    desk.links.close(1.0)
    assert desk.heard() == [1, 2] and desk.below.closed


def test_a_short_cut_is_told_to_the_host_and_delivers_late() -> None:
    desk = Desk({**CUT, "stop": 2.5})
    assert desk.at(2.0) == [LinkDown(1)]
    desk.say(1, 2)
    desk.say(7, to=3)
    assert desk.heard() == [] and desk.heard(3) == [7] and desk.below.waited[-1] <= 20
    assert desk.at(2.5) == [LinkUp(1)] and desk.heard() == [1, 2]


def test_a_long_cut_loses_all_but_the_last_words_of_a_synchronous_run() -> None:
    desk = Desk({**CUT, "stop": 9.0})
    desk.at(2.0)
    desk.say(1)
    for round in range(4):
        desk.links.send(1, Leaving(round))
    desk.at(9.0)
    assert [message for _, message in desk.below.sent] == [Leaving(2), Leaving(3)]


def test_a_link_that_breaks_in_truth_while_it_is_cut_is_not_told_as_up() -> None:
    desk = Desk({**CUT, "stop": 9.0})
    desk.at(2.0)
    desk.below.coming = [LinkDown(1)]
    assert desk.at(3.0) == [] and desk.at(9.0) == []
    desk.below.coming = [LinkUp(1)]
    assert desk.at(9.5) == [LinkUp(1)]


def test_whatever_else_the_host_wants_of_its_links_is_theirs() -> None:
    assert Desk({"kind": "drop"}).links.bytes_sent == 17


def test_a_slow_peer_takes_so_many_times_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Task:
        length, dtype, schema = 2, np.dtype("float32"), "of the task"

        def train(self, jobs: Sequence[Job]) -> list[Update]:
            return [Update(None, 0)]

    slept: list[float] = []
    clock = iter([10.0, 10.5])
    monkeypatch.setattr("fedgossip.net.faulty.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("fedgossip.net.faulty.time.sleep", slept.append)
    faults = Faults(script({"kind": "slow", "factor": 4.0, "peers": [0]}), 0, lambda: 0)
    slow: Any = faults.on_task(Task())  # type: ignore[arg-type]
    slow.train([])
    assert isinstance(slow, SlowTask) and slow.schema == "of the task" and slept == [1.5]


# --- hosts and real sockets -----------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_delays_and_duplicates_over_real_sockets_leave_the_digest_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links keep the order of what they delay: every model comes, and comes in its round."""
    faults = [{"kind": "delay", "seconds": 0.02, "probability": 0.3}, {"kind": "duplicate", "probability": 0.3}]
    experiment = averaging(30, deadline=60.0, least_deadline=60.0)
    vectors, _ = over_faulty_sockets(experiment, monkeypatch, *faults)
    assert digest(vectors) == simulate(experiment).digest


@pytest.mark.sockets
def test_hosts_whose_messages_are_lost_or_reordered_still_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [{"kind": "drop", "probability": 0.1}, {"kind": "reorder", "seconds": 0.05, "probability": 0.2}]
    experiment = averaging(20, deadline=0.2, least_deadline=0.2)
    vectors, rows = over_faulty_sockets(experiment, monkeypatch, *faults)
    assert len(vectors) == 4 and np.isfinite(np.stack(vectors)).all()
    assert any(isinstance(row, EventRow) and row.name == "missed" for row in rows)


def over_faulty_sockets(experiment: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *faults: dict[str, Any]) -> Any:
    def host(node: int, machine: Any, links: Any, *rest: Any) -> Host:
        return Host(node, machine, Faults(script(*faults), node, time.monotonic_ns).on_links(links), *rest)

    monkeypatch.setattr(over_sockets, "Host", host)
    plan = compose.plan(load_experiment(experiment))
    return over_sockets.run_over_sockets(plan, compose.task_of(plan.experiment, plan.n)[0])


# --- whole processes ------------------------------------------------------------------------------------------------


class Recorded:
    """Processes that remember what was done to them."""

    def __init__(self) -> None:
        self.exited: dict[int, int] = {}
        self.done: list[tuple[str, int, int]] = []

    def start(self, spec: dict[str, Any]) -> None:
        self.exited.pop(spec["node"], None)
        self.done.append(("start", spec["node"], int(spec["resume"])))

    def signal(self, node: int, number: int) -> None:
        self.done.append(("signal", node, int(number)))


def striker(*faults: dict[str, Any]) -> tuple[Striker, Recorded, list[tuple[str, int]]]:
    processes = Recorded()
    notes: list[tuple[str, int]] = []
    specs = {node: {"node": node} for node in range(4)}
    made = Striker(script(*faults), processes, specs, lambda name, peer, _: notes.append((name, peer)))
    return made, processes, notes


def test_a_killed_peer_is_started_again_when_it_is_dead_and_its_time_has_come() -> None:
    strike, processes, notes = striker({"kind": "crash", "peers": [2], "start": 1.0, "after": 0.5})
    strike.act(NS // 2, [])
    assert processes.done == [] and not strike.away
    strike.act(NS, [])
    assert processes.done == [("signal", 2, 9)] and list(strike.away) == [2] and notes == []
    strike.act(2 * NS, [])  # its end is not known yet
    processes.exited[2] = -9
    strike.act(2 * NS, [])
    assert processes.done[1:] == [("start", 2, 1)] and not strike.away
    assert notes == [("crashed", 2), ("restarted", 2)]


def test_a_peer_that_finished_before_it_was_hit_is_not_started_again() -> None:
    strike, processes, notes = striker({"kind": "crash", "peers": [2], "after": 0.5}, {"kind": "sleep", "seconds": 1.0})
    processes.exited.update({0: 0, 1: 0, 3: 0})
    strike.act(0, [])
    processes.exited[2] = 0
    strike.act(5 * NS, [])
    assert notes == [] and not strike.away and processes.done == [("signal", 2, 9)]


def test_a_series_without_an_end_is_over_when_somebody_has_finished() -> None:
    """Else who takes leave is killed and started again for ever."""
    strike, processes, notes = striker({"kind": "crash", "start": 1.0, "every": 1.0, "after": 0.1})
    strike.act(NS, [])
    ((_, struck, _),) = processes.done
    processes.exited[struck] = -9
    strike.act(int(1.5 * NS), [])
    assert notes == [("crashed", struck), ("restarted", struck)]
    processes.exited[0] = 0
    before = list(processes.done)
    strike.act(100 * NS, [])
    assert processes.done == before and not strike.away


def test_a_series_ends_where_it_kills_faster_than_anybody_comes_a_round_further() -> None:
    strike, processes, notes = striker({"kind": "crash", "every": 1.0, "after": 0.1, "stop": 1e6})

    def kills(since: int, seconds: int, rounds: list[int]) -> int:
        before = len(processes.done)
        for second in range(since, since + seconds):
            strike.act(second * NS, rounds)
            processes.exited.update({node: -9 for what, node, _ in processes.done[-2:] if what == "signal"})
        return len([what for what, *_ in processes.done[before:] if what == "signal"])

    assert kills(0, 79, [3, 3, 3, 3]) == 79 and "struck_in_vain" not in dict(notes)
    assert kills(79, 79, [3, 3, 4, 3]) == 79 and "struck_in_vain" not in dict(notes)
    assert kills(158, 79, [3, 3, 3, 3]) == 1 and [name for name, _ in notes].count("struck_in_vain") == 1
    assert kills(237, 79, [9, 9, 9, 9]) == 0 and not strike.away


def test_who_sleeps_is_woken() -> None:
    strike, processes, notes = striker({"kind": "sleep", "peers": [1], "seconds": 2.0})
    strike.act(0, [])
    strike.act(2 * NS, [])
    assert [number for _, _, number in processes.done] == [19, 18]  # SIGSTOP, SIGCONT
    assert notes == [("asleep", 1), ("awake", 1)]


def run(experiment: dict[str, Any], out: Path) -> tuple[Run, PeerProcesses]:
    with PeerProcesses(learning=False) as family:
        finished = run_local_plan(compose.plan(load_experiment(experiment)), out, family=family, report=False)
    assert not any(alive(pid) for pid in family.pids.values())
    return finished, family


def events(run: Run, *names: str) -> list[tuple[str, int]]:
    return [(row.name, row.peer) for row in run.rows if isinstance(row, EventRow) and row.name in names]


def rounds(rows: Sequence[Row], peer: int) -> list[int]:
    return [row.round for row in rows if isinstance(row, PeerRow) and row.peer == peer]


PACED = {"kind": "delay", "seconds": 0.02}
"""Every message takes 20 ms: some fifty rounds a second on any machine."""


@pytest.mark.sockets
def test_a_process_that_is_killed_and_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    crash = {"kind": "crash", "peers": [2], "start": 1.5, "after": 0.5}
    done, family = run(averaging(250, PACED, crash, deadline=5.0), tmp_path / "run")
    assert events(done, "crashed", "restarted", "resumed", "died", "hung") == [
        ("crashed", 2),
        ("restarted", 2),
        ("resumed", 2),
    ]
    assert done.summary["status"] == "finished" and all(vector is not None for vector in done.vectors)
    (resumed,) = [row for row in done.rows if isinstance(row, EventRow) and row.name == "resumed"]
    assert 0 < resumed.round < 250 and rounds(done.rows, 2)[-1] == 250
    assert no_secrets_in(tmp_path / "run") and (tmp_path / "run/peers/02/key.txt").exists()
    assert family.exited == dict.fromkeys(range(4), 0)
    of_all_lives = Counter(row.name for row in done.rows if isinstance(row, EventRow))
    assert all(done.summary["events"][name] >= count for name, count in of_all_lives.items())
    folder = tmp_path / "run/peers/02"
    totals, word = life_totals_in(folder), last_word(folder)
    assert totals and word and all(totals.payload[to] > sent for to, sent in word.payload.items())


@pytest.mark.sockets
def test_a_process_that_is_killed_for_ever_leaves_a_partial_run(tmp_path: Path) -> None:
    crash = {"kind": "crash", "peers": [1], "start": 1.0}
    done, _ = run(averaging(200, PACED, crash, deadline=5.0), tmp_path / "run")
    assert done.summary["status"] == "partial" and events(done, "crashed") == [("crashed", 1)]
    assert [vector is None for vector in done.vectors] == [False, True, False, False]
    assert not (tmp_path / "run/peers/01/key.txt").exists()


@pytest.mark.sockets
def test_processes_that_are_parted_and_suspended_find_together_again(tmp_path: Path) -> None:
    parted = {"kind": "partition", "groups": [[0, 1], [2, 3]], "start": 0.5, "stop": 2.5}
    asleep = {"kind": "sleep", "peers": [3], "start": 3.0, "seconds": 1.0}
    done, _ = run(averaging(300, PACED, parted, asleep, least_deadline=0.3), tmp_path / "run")
    told = events(done, "partition", "healed", "asleep", "awake", "died", "hung")
    assert told == [("partition", 0), ("healed", 0), ("asleep", 3), ("awake", 3)]
    gone = {(row.peer, row.value) for row in done.rows if isinstance(row, EventRow) and row.name == "gone"}
    assert {(0, 3), (3, 0), (1, 2), (2, 1)} <= gone
    assert done.summary["status"] == "finished"
    together = np.stack([vector for vector in done.vectors if vector is not None])
    assert np.abs(together - together.mean(axis=0)).max() < 1e-3
