"""Every schedule of small runs of the real machines: what their docstrings promise holds in each state.

python tests/faults/test_exploration.py [WORDS [STATES]]    the long form of the runs so named, and what it took

A counter-example is written as a fault script into a temporary folder, if the simulator breaks under one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import explored
import pytest
from commands import in_process
from explored import async_gossip, members, push_sum, ring, secure, servers, sync_gossip
from exploring import Action, Budget, CannotCopyError, Copier, Explorer, Found, OutOfRoomError, World
from scheduled_faults import NoScriptError, WatchedRun, counter_example, write_script

from fedgossip.core.machine import Checkpoint, SetTimer
from fedgossip.protocols.federated.coordinator import Coordinator
from fedgossip.protocols.gossip.async_gossip import AsyncGossip, Ledger
from fedgossip.protocols.gossip.awaited_round import AwaitedRound
from fedgossip.protocols.gossip.edge_ledger import Edge, EdgeLedger
from fedgossip.protocols.gossip.pairing import Pairing
from fedgossip.protocols.members.failure_detector import FailureDetector
from fedgossip.protocols.push_sum.push_peer import Arcs
from fedgossip.protocols.servers.server import ParameterServer
from fedgossip.protocols.servers.shard_clocks import StepPerClock

FAULTS = Budget(drops=2, repeats=1, crashes=1, hastes=1)


class Run(NamedTuple):
    """A run to explore.  `short`: the number of states seen in every run of the tests."""

    world: Callable[[], World]
    budget: Budget = FAULTS
    short: int = 750


RUNS: Mapping[str, Run] = {
    "gossip, 2 peers, 3 rounds": Run(lambda: sync_gossip(2, 3)),
    "gossip, 3 peers, 2 rounds": Run(lambda: sync_gossip(3, 2)),
    "async gossip, 2 peers, 3 rounds": Run(lambda: async_gossip(2, 3)),
    "async gossip, 3 peers, 2 rounds": Run(lambda: async_gossip(3, 2)),
    "push-sum, 2 peers, 3 rounds": Run(lambda: push_sum(2, 3)),
    "push-sum, 3 peers, 2 rounds": Run(lambda: push_sum(3, 2)),
    "async push-sum, 2 peers, 3 rounds": Run(lambda: push_sum(2, 3, "async")),
    "async push-sum, 3 peers, 2 rounds": Run(lambda: push_sum(3, 2, "async")),
    "ring, 3 workers": Run(lambda: ring(3, 1)),
    "ring, 2 workers, 2 rounds": Run(lambda: ring(2, 2)),
    "2 workers, 2 servers": Run(lambda: servers(2, 2, 1)),
    "2 workers, 2 servers, 2 clocks": Run(lambda: servers(2, 2, 2)),
    "secure round, 3 clients": Run(lambda: secure(3, 1)),
    "secure rounds, 3 clients, 2 rounds": Run(lambda: secure(3, 2)),
    "members, 3": Run(lambda: members(3, 8.0)),
}
LONG = 10**6
"""Maximum number of states of one run in the long form."""


def budgets(whole: Budget) -> list[Budget]:
    """Every fault alone, then all: the schedules of few faults are seen to their end."""
    each = [Budget(**{name: min(1, number)}) for name, number in whole._asdict().items() if number]
    return [Budget(), *each, whole]


@pytest.mark.parametrize("name", RUNS)
def test_no_schedule_breaks_what_is_promised(name: str) -> None:
    run = RUNS[name]
    for budget in (Budget(drops=1), Budget(hastes=1), run.budget):
        found = Explorer(run.world(), budget).explore(run.short // 3)
        assert not found.wrong, str(found)


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("gossip, 3 peers, 2 rounds", Budget(drops=1)),
        ("gossip, 3 peers, 2 rounds", Budget(repeats=1)),
        pytest.param("ring, 3 workers", Budget(drops=1), marks=pytest.mark.long),
    ],
)
def test_every_schedule_of_a_small_run_with_one_fault_keeps_the_promise(name: str, budget: Budget) -> None:
    """Together 13 000 states, each of them to its end; the long form adds 24 000."""
    found = Explorer(RUNS[name].world(), budget).explore()
    assert found.complete, str(found)


@pytest.mark.parametrize("name", ["secure round, 3 clients", "ring, 3 workers", "2 workers, 2 servers"])
def test_steps_that_commute_are_left_out_and_no_end_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = Explorer(RUNS[name].world()).explore()
    monkeypatch.setattr(Explorer, "_reduced", lambda _self, _state, actions: actions)
    every = Explorer(RUNS[name].world()).explore()
    assert fewer.ends == every.ends and fewer.complete and every.complete
    assert fewer.states < 0.7 * every.states


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("gossip, 2 peers, 3 rounds", Budget(drops=1)),
        ("gossip, 2 peers, 3 rounds", Budget(repeats=1)),
        pytest.param("push-sum, 2 peers, 3 rounds", Budget(drops=1), marks=pytest.mark.long),
        pytest.param("secure round, 3 clients", Budget(drops=1), marks=pytest.mark.long),
        pytest.param("ring, 3 workers", Budget(repeats=1), marks=pytest.mark.long),
        pytest.param("2 workers, 2 servers", Budget(drops=1), marks=pytest.mark.long),
        pytest.param("gossip, 2 peers, 3 rounds", Budget(crashes=1), marks=pytest.mark.long),
    ],
)
def test_runs_whose_first_fault_is_at_equal_participants_have_as_many_ends(
    name: str, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Explorer._is_representative

    def ends(moved: tuple[int, ...]) -> int:
        def at_another(self: Explorer, action: Action) -> bool:
            sender = moved[action.detail] if action.what in ("drop", "repeat") else action.detail
            return original(self, action._replace(at=moved[action.at], detail=sender))

        monkeypatch.setattr(Explorer, "_is_representative", at_another)
        found = Explorer(RUNS[name].world(), budget).explore()
        assert found.complete
        return found.ends

    assert len({ends(moved) for moved in RUNS[name].world().equal}) == 1


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", RUNS)
def test_no_schedule_of_the_long_form_does(name: str) -> None:
    for budget in budgets(RUNS[name].budget):
        found = Explorer(RUNS[name].world(), budget).explore(LONG)
        print(name, tuple(budget), found)
        assert not found.wrong, str(found)


# --- machines with a fault --------------------------------------------------------------------------------------------


def _counted_without_a_look(self: EdgeLedger, round: int, nodes: Any, here: Any) -> list[int]:
    for node in (counted := list(nodes)):
        self.edge(node).used = round
        self.edge(node).confirmed = False
    self._asking[round] = self._asking.get(round, 0) + len(counted)
    return counted


def _repaired_for_ever(self: Edge) -> Any:
    return None if self.open is None or not self.open.counted or self.open.theirs is None else self.open


def _offer_without_a_timer(self: AsyncGossip[Any], now_ns: int) -> list[Any]:
    return [effect for effect in OFFER(self, now_ns) if not isinstance(effect, SetTimer)]


def _taken(self: Arcs, sender: int, number: int) -> bool:
    self.taken[sender] = max(number, self.taken.get(sender, -1))
    return True


def _kept_sum(self: StepPerClock, present: Any, rate: Any) -> Any:
    kept = self._sum
    change = CLOSE(self, present, rate)
    self._sum = kept
    return change


def _sent_before_the_disk(self: Coordinator[Any], event: Any, now_ns: int) -> list[Any]:
    return sorted(HANDLE(self, event, now_ns), key=lambda effect: isinstance(effect, Checkpoint))


def _pushed_again(self: ParameterServer, sender: int, push: Any, now_ns: int) -> Any:
    clocks = self.shards[push.shard]
    clocks.clocks[sender] = max(push.clock, clocks.closed)
    return PUSHED(self, sender, push, now_ns)


class Mutation(NamedTuple):
    """A fault in a machine, and the run in which it is found.  `short`: found in every run of the tests."""

    run: str
    owner: Any
    name: str
    fault: Any
    budget: Budget
    short: bool = True
    scripted: bool = True
    """Whether a fault script breaks the same in the simulator; not of machines that no experiment has."""


_GOSSIP, _ASYNC, _PUSH = "gossip, 2 peers, 3 rounds", "async gossip, 2 peers, 3 rounds", "push-sum, 2 peers, 3 rounds"
_SERVERS = "2 workers, 2 servers, 2 clocks"
OFFER, CLOSE, HANDLE, PUSHED = AsyncGossip._offer, StepPerClock.close, Coordinator.handle, ParameterServer._pushed

MUTATIONS: Mapping[str, Mutation] = {
    "an edge is mixed although its account is open": Mutation(
        _GOSSIP, EdgeLedger, "counted", _counted_without_a_look, Budget(drops=2, hastes=1)
    ),
    "a repair is added twice": Mutation(
        _GOSSIP, Edge, "repair", _repaired_for_ever, Budget(drops=2, repeats=1, hastes=2)
    ),
    "an offer has no deadline": Mutation(
        _ASYNC, AsyncGossip, "_offer", _offer_without_a_timer, Budget(drops=1), short=False
    ),
    "a missing model is never asked for, and no deadline": Mutation(
        _GOSSIP, AwaitedRound, "fired", lambda *_: [], Budget(drops=2)
    ),
    "an offer that comes twice is answered twice": Mutation(
        _ASYNC, Ledger, "repeated", lambda *_: None, Budget(repeats=1)
    ),
    "an answered offer stays open": Mutation(
        _ASYNC, Ledger, "close", lambda self, to, number: self.open.get(to) == number, Budget(repeats=1)
    ),
    "a declined peer offers again at once, for ever": Mutation(
        _ASYNC, Pairing, "declined", explored.declined_without_count, Budget(drops=1), short=False
    ),
    "a repeated parcel is taken again": Mutation(_PUSH, Arcs, "take", _taken, Budget(repeats=1)),
    "an acceptance is ignored": Mutation(_PUSH, Arcs, "accepted", lambda *_: False, Budget(drops=1)),
    "a clock's sum is kept for the next": Mutation(_SERVERS, StepPerClock, "close", _kept_sum, Budget()),
    "a repeated push is added twice": Mutation(_SERVERS, ParameterServer, "_pushed", _pushed_again, Budget(repeats=1)),
    "a coordinator invites before the round is on disk": Mutation(
        "secure rounds, 3 clients, 2 rounds",
        Coordinator,
        "handle",
        _sent_before_the_disk,
        Budget(crashes=1),
        short=False,
    ),
    "an answered ping counts as silence": Mutation(
        "members, 3", FailureDetector, "_answered", lambda *_: False, Budget(), scripted=False
    ),
    "a parcel that comes back is kept out": Mutation(
        _PUSH,
        Arcs,
        "accepted",
        lambda self, to, _: self.out.pop(to, None) is not None,
        Budget(drops=1, hastes=1),
    ),
}


def found_with(mutation: Mutation, patch: pytest.MonkeyPatch, most: int) -> list[dict[str, Any]]:
    """Explore with the fault; the counter-example must go wrong with it each time, and not without it.

    Return its fault script, of which the same must hold in the simulator.
    """
    world, budget = RUNS[mutation.run].world, mutation.budget
    with patch.context() as faulty:
        faulty.setattr(mutation.owner, mutation.name, mutation.fault)
        found = Explorer(world(), budget).explore(most)
        assert found.wrong, f"not found in {found}"
        assert Explorer(world(), budget).replay(found.schedule)
        if mutation.scripted:
            script = counter_example(world(), budget, found.schedule)
            assert WatchedRun(world(), budget).wrong(script)
        else:
            with pytest.raises(NoScriptError):
                counter_example(world(), budget, found.schedule)
    assert Explorer(world(), budget).replay(found.schedule) == ""
    assert not mutation.scripted or WatchedRun(world(), budget).wrong(script) == ""
    return script if mutation.scripted else []


@pytest.mark.parametrize("name", [name for name, one in MUTATIONS.items() if one.short])
def test_a_fault_in_a_machine_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found_with(MUTATIONS[name], monkeypatch, 3000)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_fault_in_a_machine_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found_with(MUTATIONS[name], monkeypatch, LONG)


def test_a_counter_example_is_a_script_that_run_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean of all peers is the solution of averaging: its loss is zero, unless an edge counts at one end only."""
    mutation = MUTATIONS["a repair is added twice"]
    script = found_with(mutation, monkeypatch, 3000)
    _, *words = write_script(tmp_path, RUNS[mutation.run].world(), script).split()

    def loss(out: str) -> float:
        ran = in_process([*words, "--json", "--no-report", "--out", out], tmp_path, monkeypatch, capsys)
        return float(json.loads(ran.out)["test_loss"])

    assert loss("sound") < 1e-30
    monkeypatch.setattr(mutation.owner, mutation.name, mutation.fault)
    assert loss("broken") > 0.01


# --- what the machines must bear --------------------------------------------------------------------------------------


class Clocked:
    """A machine that holds what no copy can have."""

    def __init__(self) -> None:
        import threading

        self.lock = threading.Lock()


def test_a_machine_that_cannot_be_copied_or_compared_is_named() -> None:
    for what in (Copier().copy, Copier().name):
        with pytest.raises(CannotCopyError, match=r"_thread.lock in Clocked.lock"):
            what(Clocked())


def test_an_exploration_without_room_ends_with_its_progress() -> None:
    with pytest.raises(OutOfRoomError, match=r"4096 states seen, \d+ participants.* MB are more than 1;"):
        Explorer(push_sum(2, 3), FAULTS, most_mb=1).explore(5000)


def explore_named(words: str = "", most: str = str(LONG)) -> None:
    for title, one in RUNS.items():
        if words in title:
            for each in budgets(one.budget):
                found = Explorer(one.world(), each).explore(int(most))
                print(title, tuple(each), found, flush=True)
                if found.wrong:
                    world = one.world()
                    try:
                        script = counter_example(world, each, found.schedule)
                        print(write_script(Path(tempfile.mkdtemp()), world, script), flush=True)
                    except NoScriptError as error:
                        print(f"no fault script: {error}", flush=True)


@pytest.mark.parametrize(("words", "most"), [((), LONG), (("gossip, 2 peers",), LONG), (("members", "10"), 10)])
def test_the_command_takes_a_name_and_a_number_of_states(
    words: tuple[str, ...], most: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Explorer, "explore", lambda _self, most: Found(most))
    explore_named(*words)
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(f"all {most} states" in line for line in lines)


if __name__ == "__main__":
    explore_named(*sys.argv[1:])
