"""Runs of parameter servers: the bits of an all-reduce, closed forms of what is sent, and whoever is slow or dies."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from typing import Any

import machine_fuzz
import numpy as np
import pytest
import server_seeds
from fuzz_casts import SCENES, STRANGER, Scene, Sender, workers
from over_sockets import run_over_sockets
from resuming import from_the_middle
from server_seeds import BASE, Counters

from fedgossip import simulate
from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError, ProtocolError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import (
    Checkpoint,
    Finish,
    Fired,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Send,
    SetTimer,
    Started,
    Trained,
)
from fedgossip.core.messages import Expected, Leaving, ServerReady, ShardLost, ShardPull, ShardPush, Tenure, TenureTaken
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.core.task import Job, Update
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import Endpoints
from fedgossip.net.host import Host
from fedgossip.net.host_ports import Ports
from fedgossip.net.identity import Identity
from fedgossip.net.links.mesh import Links
from fedgossip.plans import compose
from fedgossip.plans.parallel.parameter_server import ServerPlan
from fedgossip.protocols.servers.model_parts import PIECE_BYTES
from fedgossip.protocols.servers.shard_clocks import saved_shards


def quadratic(workers: int = 4, servers: int = 2, rounds: int = 8, **more: Any) -> dict[str, Any]:
    """x <- x - eta mean (x - b_i + xi_i): cheap, and every worker's gradient is its own."""
    server = {"servers": servers, **more.pop("server", {})}
    parallel = {"workers": workers, "method": "parameter-server", "server": server, **more.pop("parallel", {})}
    task = {"kind": "quadratic", "dim": 40, "sigma": 0.3, **more.pop("task", {})}
    train = {"lr": 0.1, **more.pop("train", {})}
    return {"rounds": rounds, "task": task, "train": train, "parallel": parallel, **more}


def star(like: dict[str, Any]) -> dict[str, Any]:
    """The same run as an all-reduce that sums exactly."""
    parallel = {key: value for key, value in like["parallel"].items() if key != "server"}
    return {**like, "parallel": {**parallel, "method": "star"}}


@pytest.mark.parametrize("points", [1, 16, 64])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_every_number_of_servers_and_points_has_the_bits_of_a_star(servers: int, points: int) -> None:
    run = quadratic(servers=servers, server={"virtual_nodes": points})
    assert simulate(run).digest == simulate(star(run)).digest


@pytest.mark.parametrize(("workers", "copies"), [(1, 1), (2, 1), (5, 1), (2, 2), (4, 3)])
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_rows(workers: int, copies: int) -> None:
    """All copies are counted, at those that send them and at those that keep them."""
    experiment = quadratic(workers, 3, server={"replication": copies})
    runs = [simulate(experiment, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (told(run) for run in runs)
    assert ours == theirs and len(ours) == 8 * (workers + 3)
    foretold = compose.plan(load_experiment(experiment)).outlook(Counters(40))
    sent = [payload for round, peer, _, _, payload, _, _ in ours if round == 8]
    assert sent == [share // 2 for share in foretold.facts["payload"]][: len(sent)], "of float64 there, of float32 here"


def told(run: Any) -> list[Any]:
    """(round, peer, bytes sent, received, payload sent, received, loss) of all rows, ascending."""
    rows = [row for row in run.rows if isinstance(row, PeerRow) and row.round]
    bytes_of = [(row.bytes_sent, row.bytes_received, row.payload_sent, row.payload_received) for row in rows]
    return sorted((row.round, row.peer, *sizes, row.loss) for row, sizes in zip(rows, bytes_of, strict=True))


@pytest.mark.parametrize("copies", [1, 2])
def test_one_that_has_no_part_in_a_clock_has_no_row_in_any_engine(copies: int) -> None:
    """Of 16 servers with a point each, some have none of 16 elements, and some have copies alone; a manager never has
    any."""
    experiment = quadratic(2, 16, rounds=2, server={"virtual_nodes": 1, "replication": copies}, task={"dim": 16})
    plan = compose.plan(load_experiment(experiment))
    assert isinstance(plan, ServerPlan)
    placement = plan.placement_of(16)
    busy = [server for server in plan.servers if placement.held(server, plan.servers)]
    assert len(busy) < 16
    runs = [told(simulate(experiment, engine=engine)) for engine in ("sim", "stacked")]
    assert runs[0] == runs[1] and sorted(row[1] for row in runs[0]) == sorted([0, 1, *busy] * 2)


@pytest.mark.parametrize(("workers", "servers", "dim"), [(1, 1, 1), (3, 2, 5), (4, 3, 1000), (2, 2, 700_001)])
def test_a_clock_is_d_each_way_of_a_worker_and_w_shares_each_way_of_a_server(
    workers: int, servers: int, dim: int
) -> None:
    """The closed forms, exact: of vectors alone; the rest is bounded: 300 bytes for each piece, push and pull."""
    experiment = quadratic(workers, servers, rounds=3, task={"dim": dim})
    run, plan = simulate(experiment), compose.plan(load_experiment(experiment))
    assert isinstance(plan, ServerPlan)
    shares = [4 * share for share in plan.placement_of(dim).shares(plan.servers)]
    assert sum(shares) == 4 * dim
    rows = [row for row in run.rows if isinstance(row, PeerRow) and row.round]
    assert len(rows) == 3 * (workers + servers)
    for row in rows:
        payload = 4 * dim if row.peer < workers else workers * shares[row.peer - workers]
        assert (row.payload_sent, row.payload_received) == (payload, payload), row
        number = servers if row.peer < workers else workers
        assert row.bytes_sent - payload <= 300 * (number + payload // PIECE_BYTES + 1)


@pytest.mark.sockets
@pytest.mark.parametrize("staleness", [0, "async"])
def test_over_sockets_the_payload_is_the_same_and_all_workers_end_with_one_model(staleness: Any) -> None:
    experiment = quadratic(3, 2, rounds=4, server={"staleness": staleness})
    plan = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, rows = run_over_sockets(plan, task)
    assert len({digest([vector]) for vector in vectors[:3]}) == 1
    sent = [row for row in rows if isinstance(row, PeerRow) and row.peer < 3 and row.round]
    assert len(sent) == 12 and {row.payload_sent for row in sent} == {160}
    assert sum(row.payload_received for row in sent) == 12 * 160
    if staleness == 0:
        assert digest(vectors[:3]) == simulate(experiment).digest


LOSSES = [
    {"kind": "drop", "probability": 0.15},
    {"kind": "duplicate", "probability": 0.2},
    {"kind": "delay", "seconds": 0.05, "probability": 0.2},
]


def events(run: Any, name: str) -> list[Any]:
    return [row.value for row in run.rows if isinstance(row, EventRow) and row.name == name]


def test_lost_late_and_doubled_messages_change_no_bit() -> None:
    quiet = simulate(quadratic())
    for seed in range(3):
        experiment = quadratic(faults=LOSSES, simulation={"jitter": 0.02})
        run = simulate({**experiment, "faults": [{**one, "start": seed * 0.01} for one in LOSSES]})
        assert run.digest == quiet.digest, seed


@pytest.mark.parametrize("at", [0.07, 0.16, 0.25])
def test_a_server_that_comes_back_has_lost_nothing(at: float) -> None:
    """Its checkpoint is written before it answers; workers push again what it had not answered."""
    faults = [{"kind": "crash", "peers": [5], "start": at, "after": 0.4}]
    run = simulate(quadratic(servers=2, faults=faults))
    assert run.digest == simulate(quadratic()).digest and run.summary["status"] == "finished"


@pytest.mark.parametrize("staleness", [1, "async"])
def test_no_push_is_lost_or_counted_twice_when_a_server_comes_back(staleness: Any) -> None:
    """One step of a push each: as many steps as pushes, whatever was said again."""
    faults = [*LOSSES, {"kind": "crash", "peers": [4], "start": 0.3, "after": 0.4}]
    run = simulate(quadratic(servers=2, faults=faults, server={"staleness": staleness}))
    assert run.summary["status"] == "finished"
    assert counted(run, 5) == 4 * 8


def counted(run: Any, server: int) -> int:
    """The pushes that a server has counted in its last life."""
    seen = [row.value for row in run.rows if isinstance(row, EventRow) and (row.name, row.peer) == ("read_lag", server)]
    return sum(seen[-1]["clocks"].values())


def test_a_server_that_does_not_come_back_ends_the_run_and_its_elements_are_named() -> None:
    faults = [{"kind": "crash", "peers": [5], "start": 0.2}]
    with pytest.raises(FedgossipError, match=r"server 5 is gone, and with it elements \d+ to \d+") as caught:
        simulate(quadratic(faults=faults, parallel={"deadline": 2.0}))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("linked", "seconds", "words"), [(True, 300, "does not answer"), (False, 30, "is gone")])
def test_a_server_that_runs_and_waits_for_its_disk_ends_no_worker(linked: bool, seconds: int, words: str) -> None:
    """Without an answer: a server with a link is waited for as at the beginning, one without it for the deadline."""
    worker: Any = compose.plan(load_experiment(quadratic(1, 1))).machine(0, np.zeros(40, np.float32), "s")
    gone = [] if linked else [PeerGone(1)]
    trained = Trained(0, np.ones(40, np.float32), 1, {"loss": 0.0})
    effects: list[Any] = []
    for event in [Started(), PeerJoined(1, 0), trained, *gone]:
        effects += worker.handle(event, 0)
    failure, waited = _in_time(worker, effects, 1000)
    assert seconds <= waited <= seconds + 2 and f"server 1 {words}" in failure.text and "--resume" in failure.advice


def test_a_worker_that_dies_is_left_out_and_one_that_comes_back_counts_again() -> None:
    parallel = {"deadline": 2.0, "least_deadline": 0.3}
    for after in ({}, {"after": 3.0}):
        faults = [{"kind": "crash", "peers": [1], "start": 0.2, **after}]
        run = simulate(quadratic(rounds=40, faults=faults, parallel=parallel))
        assert any(1 in value for value in events(run, "silent_workers"))
        assert run.summary["status"] == ("finished" if after else "partial")
        ends = [np.array(vector) for node, vector in enumerate(run.vectors[:4]) if vector is not None and node != 1]
        assert all((end == ends[0]).all() for end in ends)
        rounds = [row.round for row in run.rows if isinstance(row, PeerRow) and row.peer == 1]
        assert (40 in rounds) == bool(after) and len(rounds) == len(set(rounds))


@pytest.mark.parametrize("staleness", [0, 2, "async"])
def test_a_stopped_simulation_goes_on_bit_for_bit(tmp_path: Any, staleness: Any) -> None:
    experiment = quadratic(3, server={"staleness": staleness}, simulation={"training_jitter": 1.0})
    plan = compose.plan(load_experiment(experiment))
    whole, again = from_the_middle(plan, tmp_path)
    assert again.digest == whole.digest and again.rows == whole.rows


SLOW = {"classes": [{"nodes": "0", "slower": 10.0}]}


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_worker_is_further_ahead_than_it_may_be(staleness: int) -> None:
    run = simulate(quadratic(rounds=20, server={"staleness": staleness}, simulation=SLOW))
    for seen in events(run, "read_lag"):
        assert max(seen["clocks"]) == staleness, "and the bound is used"
        assert sum(seen["clocks"].values()) == 4 * 20


def test_a_push_from_what_is_too_old_is_refused() -> None:
    experiment = quadratic(2, 1, server={"staleness": 2})
    plan = compose.plan(load_experiment(experiment))
    server: Any = plan.machine(2, np.zeros(40, np.float32), "s")
    part = np.zeros(40, np.float32)
    server.handle(Started(), 0)
    for clock in range(4):
        server.handle(Received(0, ShardPush(0, 0, clock, 0 if clock < 3 else 1, 0, 1.0, 0, 40, "s", (part,))), 0)
    with pytest.raises(ProtocolError, match="at most 2 earlier"):
        server.handle(Received(0, ShardPush(0, 0, 4, 1, 0, 1.0, 0, 40, "s", (part,))), 0)


@pytest.mark.parametrize("told", [False, True])
def test_a_server_whom_nobody_reaches_does_not_wait_for_ever(told: bool) -> None:
    """All workers wait for it, for a copy that nobody takes; then they end, whether or not it hears of that."""
    plan = compose.plan(load_experiment(quadratic(2, 2, server={"replication": 2})))
    assert isinstance(plan, ServerPlan)
    server: Any = plan.machine(2, np.zeros(40, np.float32), "s")
    (shard,) = plan.placement_of(40).owned(2, plan.servers)
    part = np.zeros(shard.length, np.float32)
    pushes = [Received(w, ShardPush(0, shard.number, 0, 0, 0, 1.0, 0, part.size, "s", (part,))) for w in (0, 1)]
    pulls = [Received(w, ShardPull(0, shard.number, 1, 0)) for w in (0, 1)]
    gone = [PeerGone(node) for node in (0, 1, 3)] if told else []
    effects = []
    for event in [Started(), *(PeerJoined(node, 0) for node in (0, 1, 3)), *pushes, *pulls, *gone]:
        effects += server.handle(event, 0)
    failure, seconds = _in_time(server, effects, 1000)
    assert seconds == 300 and "no worker is left" in failure.text


def test_a_clock_that_closes_without_gradients_is_reported() -> None:
    """Workers that begin at clock 1 of a server whose shard is at clock 0: the step of clock 0 is lost."""
    plan = compose.plan(load_experiment(quadratic(2, 1)))
    server: Any = plan.machine(2, np.zeros(40, np.float32), "s")
    server.handle(Started(), 0)
    effects = [one for worker in (0, 1) for one in server.handle(Received(worker, ShardPull(0, 0, 1, 1)), 0)]
    assert Report("step_without_gradients", 0, 0) in effects


def _in_time(machine: Any, effects: list[Any], seconds: int) -> tuple[Any, float]:
    """What a machine ends with, and after how long, of which nobody hears a word more."""
    timers: dict[Any, int] = {}
    at = 0
    while True:
        for effect in effects:
            if isinstance(effect, Finish):
                return effect.failure, at / 1e9
            if isinstance(effect, SetTimer):
                timers[effect.key] = at + effect.after_ns
        key = min(timers, key=timers.__getitem__)
        at = timers.pop(key)
        assert at <= seconds * 1_000_000_000, "it never ends"
        effects = machine.handle(Fired(key), at)


def test_late_pushes_go_at_a_smaller_rate_where_they_are_damped() -> None:
    """Three of four workers' steps are made before a worker's own: x moves by 1 + 1/2 + 1/3 + 1/4 of the rate."""
    plan = compose.plan(load_experiment(quadratic(4, 1, server={"staleness": "async", "damp": True})))
    server: Any = plan.machine(4, np.zeros(40, np.float32), "s")
    server.handle(Started(), 0)
    for worker in range(4):
        part = np.ones(40, np.float32)
        server.handle(Received(worker, ShardPush(0, 0, 0, 0, 0, 1.0, 0, 40, "s", (part,))), 0)
    np.testing.assert_allclose(server.model, -0.1 * (1 + 1 / 2 + 1 / 3 + 1 / 4), rtol=1e-6)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"servers": 0}, "servers"),
    ({"servers": 33}, "servers"),
    ({"virtual_nodes": 0}, "virtual_nodes"),
    ({"replication": 0}, "replication"),
    ({"servers": 2, "replication": 3}, "replication"),
    ({"staleness": -1}, "staleness"),
    ({"staleness": "asink"}, "asink"),
    ({"placement": "rows"}, "rows"),
    ({"damp": True}, "damp"),
    ({"n_push": 0, "staleness": "async"}, "n_push"),
    ({"n_push": 2}, "n_push = 2 at staleness 0, whose clocks count every gradient"),
    ({"n_fetch": 4, "n_push": 2, "staleness": "async"}, "n_push = 2 is no multiple of n_fetch = 4"),
    ({"n_push": 3, "staleness": "async"}, "n_push = 3 for 8 rounds: the last gradients would reach no server"),
    ({"n_push": 2, "staleness": "async", "pull_codec": "bf16"}, "n_push = 2 with a codec"),
]


@pytest.mark.parametrize(("server", "words"), WRONG)
def test_values_that_cannot_be_are_refused_by_name(server: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_experiment(quadratic(server=server))


def test_what_does_not_fit_together_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="lars goes by whole tensors"):
        load_experiment(quadratic(parallel={"descent": "lars"}))
    with pytest.raises(ConfigError, match=r"servers = 2 with parallel\.method"):
        load_experiment(star(quadratic()) | {"parallel": {"workers": 2, "server": {"servers": 2}}})
    with pytest.raises(ConfigError, match="5 servers for a model of 3 elements"):
        simulate(quadratic(servers=5, task={"dim": 3}))
    with pytest.raises(ConfigError, match="stacked arrays have no time"):
        simulate(quadratic(server={"staleness": "async"}), engine="stacked")


@pytest.mark.parametrize(("fetch", "push"), [(1, 1), (1, 4), (2, 4), (4, 4)])
def test_downpour_is_algorithm_1_of_distbelief(fetch: int, push: int) -> None:
    """Dean et al. 2012, algorithm 1.1, in a plain loop: one worker, Adagrad at the servers, to the bit."""
    every = {"staleness": "async", "n_fetch": fetch, "n_push": push}
    run = quadratic(1, rounds=12, server=every, parallel={"descent": "adagrad"})
    plan = compose.plan(load_experiment(run))
    assert isinstance(plan, ServerPlan)
    task, _ = compose.task_of(plan.experiment, 1)
    descent = plan.descent_of(())
    served = descent.start(task.initial(0))
    parameters, accrued, losses = task.initial(0), np.zeros(40, np.float32), []
    for step in range(12):
        (update,) = task.gradients([Job(0, step, parameters, gradient=True)])  # type: ignore[attr-defined]
        accrued, parameters = accrued + update.difference, parameters - np.float32(0.1) * update.difference
        losses.append(update.metrics["loss"])
        if step % push == push - 1:
            served, accrued = descent.step(served, frozen(accrued), 0.1), np.zeros(40, np.float32)
        if step % fetch == fetch - 1:
            parameters = served.x
    found = simulate(run)
    assert found.digest == digest([served.x])
    rows = [row for row in found.rows if isinstance(row, PeerRow) and row.round and row.peer == 0]
    assert [(row.round, row.loss) for row in rows] == list(enumerate(losses, 1))


def test_of_downpour_workers_every_gradient_counts_once() -> None:
    """Gradients of -64^worker at a rate of 1, 12 of each of four workers that pull twice within a push."""
    server = {"staleness": "async", "n_fetch": 2, "n_push": 4, "replication": 2}
    run = quadratic(4, 2, rounds=12, server=server, task={"dim": 8, "dtype": "float64"}, train={"lr": 1.0})
    found = simulate(run, task=Counters(8))
    assert found.digest == digest([np.full(8, 12.0 * sum(BASE**worker for worker in range(4)))] * 4)
    rows = [row for row in found.rows if isinstance(row, PeerRow) and row.peer == 0]
    assert [row.round for row in rows] == list(range(1, 13))


KINDS: dict[str, dict[str, Any]] = {
    "summed": {"servers": 2},
    "stale": {"servers": 2, "staleness": 1},
    "copied": {"servers": 3, "replication": 2},
}
SENDERS = {"worker": Sender(0, 0), "server": Sender(3, 3), "stranger": Sender(None, STRANGER)}


@pytest.mark.parametrize("who", SENDERS)
def test_one_that_lies_may_spoil_a_run_and_makes_nobody_raise(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_fuzz.quick(monkeypatch)
    for name, server in KINDS.items():
        scene = Scene(lambda server=server: workers("parameter-server", 3, **server), SENDERS)  # type: ignore[misc]
        monkeypatch.setitem(SCENES, name, scene)
        for seed in range(machine_fuzz.WORLDS):
            machine_fuzz.checked(name, who, seed)


class Valley(Counters):
    """f(x) = |x - 1|^2 / 2 for every worker."""

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        away = [job.vector - 1.0 for job in jobs]
        return [Update(frozen(one), 1, {"loss": float(one @ one) / 2}) for one in away]


def test_one_straggler_of_eight_costs_a_synchronous_run_most_and_an_asynchronous_one_least() -> None:
    """Virtual seconds until the loss is a hundredth, one of eight workers ten times slower; steps are damped."""
    seconds = {}
    for staleness in (0, 3, "async"):
        server = {"staleness": staleness, "damp": staleness != 0}
        run = simulate(quadratic(8, 2, rounds=60, server=server, simulation=SLOW), task=Valley(8))
        rows = [row for row in run.rows if isinstance(row, PeerRow) and row.peer == 1 and row.loss is not None]
        seconds[staleness] = min(row.seconds for row in rows if row.loss is not None and row.loss < 0.04)
    assert seconds[0] > seconds[3] > seconds["async"]
    assert seconds[0] >= 3 * seconds["async"], seconds


COPIED = {"parallel": {"deadline": 5.0, "least_deadline": 0.3}, "server": {"replication": 2}}


@pytest.mark.parametrize("after", [{}, {"after": 0.05}, {"after": 0.8}])
def test_whenever_one_of_three_servers_dies_the_bits_are_those_of_an_undisturbed_run(after: dict[str, float]) -> None:
    whole = simulate(quadratic(servers=3, rounds=20)).digest
    for turn, at in enumerate(np.linspace(0.05, 1.3, 6)):
        faults = [{"kind": "crash", "peers": [4 + turn % 3], "start": float(at), **after}]
        run = simulate(quadratic(servers=3, rounds=20, faults=faults, **COPIED))
        assert (run.digest, run.summary["status"]) == (whole, "finished"), at


@pytest.mark.parametrize("staleness", [0, 2, "async"])
def test_every_push_counts_once_though_a_server_is_killed_every_five_seconds(staleness: Any) -> None:
    """A minute; a worker's pushes are digits of their own of the model's elements."""
    faults = [{"kind": "crash", "peers": [4 + kill % 3], "start": 5.0 * (kill + 1), "after": 2.0} for kill in range(11)]
    experiment = quadratic(4, 3, rounds=60, faults=faults, train={"lr": 1.0}, simulation={"training": 0.9}, **COPIED)
    experiment["parallel"]["server"]["staleness"] = staleness
    run = simulate(experiment, task=Counters(40))
    assert run.summary["status"] == "finished" and run.summary["seconds"] > 50
    assert sum(row.name == "crashed" for row in run.rows if isinstance(row, EventRow)) >= 9
    pushes = sum(BASE**worker for worker in range(4)) * 60
    expected = pushes / 4 if staleness == 0 else pushes
    assert all((vector == expected).all() for vector in run.vectors[:4] if vector is not None)


def test_a_manager_that_comes_back_fails_servers_over_again() -> None:
    whole = simulate(quadratic(servers=3, rounds=40)).digest
    faults = [
        {"kind": "crash", "peers": [7], "start": 0.3, "after": 1.0},
        {"kind": "crash", "peers": [5], "start": 0.5},
    ]
    run = simulate(quadratic(servers=3, rounds=40, faults=faults, **COPIED))
    assert run.digest == whole and len(events(run, "tenure")) == 1


def test_a_keeper_counts_as_having_a_copy_when_it_says_so() -> None:
    """Server 2 is gone, and 3 is to keep what 4 has: until it does nobody takes the place of 4."""
    for epochs, rules in (([], False), ([0], False), ([1], True)):
        manager = _after_a_death(ServerReady(epoch) for epoch in epochs)
        effects = [*manager.handle(PeerGone(4), 0), *manager.handle(Fired(("gone", 4)), 0)]
        assert any(isinstance(one, Report) and one.name == "tenure" for one in effects) == rules, epochs
        assert any(isinstance(one, SetTimer) and one.key == ("last", 4) for one in effects) != rules, epochs


def test_what_a_tenure_answered_is_there_after_the_death_of_all_servers_and_their_manager() -> None:
    """Server 2 is gone, 5 sends its copies slowly, and then all die: 2 is back with what it had when it died."""
    slow = {"training": 0.02, "latency": 0.005, "jitter": 0.02, "classes": [{"nodes": "5", "bandwidth": 1e4}]}
    faults = [
        {"kind": "crash", "peers": [2], "start": 0.2, "after": 0.5},
        {"kind": "crash", "peers": [3, 4, 5, 6], "start": 0.65, "after": 0.05},
    ]
    run = simulate(
        quadratic(2, 4, rounds=30, faults=faults, train={"lr": 1.0}, simulation=slow, **COPIED), task=Counters(300)
    )
    assert len(events(run, "tenure")) == 2 and run.summary["status"] == "finished"
    assert all((vector == (1 + BASE) * 30 / 2).all() for vector in run.vectors[:2] if vector is not None)


def test_a_manager_names_the_elements_that_are_lost() -> None:
    (end,) = _after_a_death([]).handle(Received(3, ShardLost(1, 0)), 0)
    assert re.match(r"no server has a copy of elements \d+ to \d+", end.failure.text)


def test_where_all_restart_the_manager_waits_for_the_servers_of_the_last_tenure() -> None:
    """A copy on a disk may be older than what its owner answered: nobody takes the place of one that is late."""
    plan = compose.plan(load_experiment(quadratic(2, 3, server={"replication": 2})))
    before = _after_a_death([])
    assert before.whole == (2, 3, 4), "until all have their copies"
    kept, *sent = [one for node in (3, 4) for one in before.handle(Received(node, ServerReady(1)), 0)]
    assert isinstance(kept, Checkpoint) and kept.durable and kept.facts["whole"] == [3, 4]
    told = {one.to: one.message for one in sent if isinstance(one, Send)}
    assert told[3] == told[4] == Tenure(1, (3, 4), whole=True), "once that is on disk"
    kept = Checkpoint(0, kept.vectors, {**kept.facts, "epoch": 2, "servers": [4], "whole": [2, 3]})  # 3 died
    manager: Any = plan.machine(5, np.zeros(40, np.float32), "s", kept, incarnation=1)
    for event in [Started(), PeerJoined(2, 1), PeerJoined(4, 1)]:
        manager.handle(event, 0)
    assert manager.handle(Fired(("begin",)), 0) == [SetTimer(("begin", "late"), 30_000_000_000)]
    (end,) = copy.deepcopy(manager).handle(Fired(("begin", "late")), 0)
    assert "server 3 of the last tenure is not back" in end.failure.text
    effects = manager.handle(PeerJoined(3, 1), 0)
    tenure = next(one.message for one in effects if isinstance(one, Send))
    assert tenure == Tenure(3, (2, 3), (4,), anew=True)
    for event in [*(Received(node, TenureTaken(3)) for node in (2, 4)), PeerGone(3)]:
        manager.handle(event, 0)
    assert manager.handle(Fired(("gone", 3)), 0) == [SetTimer(("last", 3), 30_000_000_000)], "2 may have an older copy"
    again = next(one.message for one in manager.handle(PeerJoined(3, 2), 0) if isinstance(one, Send))
    assert again == Tenure(4, (2, 3), (4,), anew=True), "its shards are on its disk"


def test_a_copy_from_a_disk_takes_no_place_of_its_owner_s_shard() -> None:
    plan = compose.plan(load_experiment(quadratic(2, 3, server={"replication": 2})))
    first: Any = plan.machine(4, np.zeros(40, np.float32), "s")
    kept = saved_shards(1, first.tenure.everything, 0, durable=True)
    copies = set(first.tenure.copies.here)
    again: Any = plan.machine(4, np.zeros(40, np.float32), "s", kept, incarnation=1)
    again.handle(Started(), 0)
    effects = again.handle(Received(5, Tenure(1, (2, 3, 4), (), anew=True)), 0)
    places = [type(one.message if isinstance(one, Send) else one) for one in effects]
    assert places[-1] is TenureTaken and Checkpoint in places, "a tenure is taken once its shards are on disk"
    assert copies and not copies & again.tenure.everything.keys()
    effects = again.handle(Received(5, Tenure(2, (4,))), 0)
    assert any(isinstance(one, Send) and isinstance(one.message, ShardLost) for one in effects)


def test_a_server_restores_what_it_held_in_the_last_tenure_and_no_copy_that_it_never_received() -> None:
    plan = compose.plan(load_experiment(quadratic(2, 3, server={"replication": 2})))
    assert isinstance(plan, ServerPlan)
    numbers = {shard.number for shard in plan.placement_of(40).shards}
    first = {shard.number for shard in plan.placement_of(40).held(4, plan.servers)}
    server: Any = plan.machine(4, np.zeros(40, np.float32), "s")
    server.handle(Started(), 0)
    server.handle(Received(5, Tenure(1, (3, 4))), 0)
    assert server.tenure.everything.keys() == first < numbers, "copies of the others are on their way"
    whole = {**server.tenure.everything, **server.tenure.copies.here}
    kept = saved_shards(1, whole, 1, durable=True)  # once they are here
    again: Any = plan.machine(4, np.zeros(40, np.float32), "s", kept, incarnation=1)
    again.handle(Started(), 0)
    again.handle(Received(5, Tenure(2, (4,), (), anew=True)), 0)
    assert again.shards.keys() == numbers and again.phase == "serving"


def _after_a_death(words: Iterable[Any]) -> Any:
    """The manager of servers 2, 3 and 4 after 2 is gone and 3 has said this."""
    plan = compose.plan(load_experiment(quadratic(2, 3, server={"replication": 2})))
    manager: Any = plan.machine(5, np.zeros(40, np.float32), "s")
    for event in [Started(), *(PeerJoined(node, 0) for node in range(5)), PeerGone(2), Fired(("gone", 2))]:
        manager.handle(event, 0)
    for node in (3, 4):
        manager.handle(Received(node, TenureTaken(1)), 0)
    for word in words:
        manager.handle(Received(3, word), 0)
    return manager


def test_one_that_is_no_manager_is_not_heard_as_one() -> None:
    plan = compose.plan(load_experiment(quadratic(2, 3, server={"replication": 2})))
    for node in (0, 2):  # a worker, and a server
        machine: Any = plan.machine(node, np.zeros(40, np.float32), "s")
        machine.handle(Started(), 0)
        for other in (1, 3, 4):
            with pytest.raises(ProtocolError, match=r"sends no such message|no server"):
                machine.handle(Received(other, Tenure(5, (3, 4))), 0)
        assert machine.epoch == 0
        for servers in ((2, 3), (3, 4)):
            answer = machine.handle(Received(5, Tenure(1, servers)), 0)[0]
        assert answer == Send(5, TenureTaken(1)), "another first tenure is that of a second manager"
        assert (machine if node == 0 else machine.tenure).alive == (2, 3)


def test_a_second_manager_ends_with_a_line_when_servers_tell_it_of_the_first() -> None:
    """Also one that was started again without its folder: it would say tenures that nobody hears."""
    plan = compose.plan(load_experiment(quadratic(2, 3, server={"replication": 2})))
    server, second = (plan.machine(node, np.zeros(40, np.float32), "s") for node in (2, 5))
    for machine in (server, second):
        machine.handle(Started(), 0)
    assert server.handle(PeerJoined(5, 0), 0) == [], "of the first tenure all know"
    server.handle(Received(5, Tenure(1, (2, 3))), 0)
    (word,) = server.handle(PeerJoined(5, 0), 0)
    assert isinstance(word, Send)
    assert second.handle(Received(2, word.message), 0) == [], "one may be wrong, or lie"
    (end,) = second.handle(Received(3, word.message), 0)
    assert isinstance(end, Finish) and end.failure and end.failure.kind == "network"
    assert end.failure.text == "servers 2 and 3 go by tenure 1 of another manager; manager 5 has issued 0"


def test_no_word_of_one_worker_or_server_ends_a_manager() -> None:
    """A worker knows of no other manager, and one server of three, or one that owns no part of a loss, may lie."""
    manager = _after_a_death([])
    for worker in (0, 1):
        with pytest.raises(ProtocolError, match=f"worker {worker} goes by tenure 999"):
            manager.handle(Received(worker, TenureTaken(999)), 0)
    for epoch in (999, 1000, 1001):
        assert manager.handle(Received(4, TenureTaken(epoch)), 0) == []
    others = [shard.number for shard in manager.placement.shards if shard.holders((3, 4), 1) == (3,)]
    for number in (*others[:1], 10_000):
        with pytest.raises(ProtocolError, match="sends no such message"):
            manager.handle(Received(4, ShardLost(1, number)), 0)
    assert manager.phase == "ruling"


def test_no_goodbye_of_one_worker_ends_the_run_of_those_at_work() -> None:
    """It said that it had done all rounds: the run was over 30 s later, whatever the others did."""
    plan = compose.plan(load_experiment(quadratic(3, 2, server={"replication": 2})))
    manager: Any = plan.machine(5, np.zeros(40, np.float32), "s")
    for event in [Started(), *(PeerJoined(node, 0) for node in range(5))]:
        manager.handle(event, 0)
    manager.handle(Received(0, Leaving(plan.experiment.rounds)), 0)
    (again,) = manager.handle(Fired(("over",)), 0)
    assert isinstance(again, SetTimer) and again.key == ("over",) and manager.phase == "ruling"
    manager.handle(Received(1, Leaving(plan.experiment.rounds)), 0)
    (end,) = manager.handle(Fired(("over",)), 0)  # two of three: the third hangs
    assert isinstance(end, Finish) and end.failure is None


@pytest.mark.sockets
def test_a_second_process_with_the_managers_key_takes_over_nothing() -> None:
    """Nobody calls it, for the run's addresses have the first; it ends when it has waited for workers, and says so."""
    experiment = quadratic(2, 2, rounds=30, server={"replication": 2})
    plan, hasty = (compose.plan(load_experiment(experiment | {"parallel": {**experiment["parallel"], **more}}))
                   for more in ({}, {"start_timeout": 1.0}))  # fmt: skip
    task, _ = compose.task_of(plan.experiment, plan.learners)
    said: list[str] = []

    def second(identities: Sequence[Identity], endpoints: Endpoints) -> None:
        links, hello = Links(4, "tcp://127.0.0.1:*", identities[4]), compose.hello_of(plan, task.schema)
        links.connect(plan.partners(4), endpoints, Expected(task.schema, task.dtype.name, task.length), hello)
        machine = hasty.machine(4, task.initial(4), task.schema)
        ports = Ports(lambda _: None, lambda *_: None, lambda *_: None, lambda: False)
        with pytest.raises(NetworkError) as caught:
            Host(4, machine, links, task, hello, ports).run()
        said.append(str(caught.value))

    vectors, rows = run_over_sockets(plan, task, besides=second)
    assert digest(vectors[:2]) == simulate(experiment).digest
    assert said == ["no worker has connected to manager 4"]
    assert not [row for row in rows if isinstance(row, EventRow) and row.name == "tenure"]


def test_fewer_servers_than_copies_are_told_and_go_on() -> None:
    faults = [{"kind": "crash", "peers": [node], "start": 0.2 + (node - 4)} for node in (4, 5)]
    run = simulate(quadratic(servers=3, rounds=40, faults=faults, **COPIED))
    assert run.summary["status"] == "finished" and events(run, "unreplicated") == [[6]]


def test_a_run_whose_copies_all_die_ends_and_names_what_is_lost() -> None:
    faults = [{"kind": "crash", "peers": [node], "start": 0.2} for node in (4, 5)]
    with pytest.raises(FedgossipError, match=r"no server has a copy of elements \d+ to \d+") as caught:
        simulate(quadratic(servers=3, rounds=40, faults=faults, **COPIED))
    assert caught.value.exit_code == 3


def test_copies_cost_one_shard_a_clock_and_copy() -> None:
    """Of the vectors alone: a server sends W + r - 1 times its part in a clock, and hears as much with its copies."""
    workers, dim, copies = 3, 1000, 2
    experiment = quadratic(workers, 3, rounds=6, task={"dim": dim}, server={"replication": copies})
    rows = [row for row in simulate(experiment).rows if isinstance(row, PeerRow) and workers <= row.peer < workers + 3]
    assert sum(row.payload_sent for row in rows) == 6 * 4 * dim * (workers + copies - 1)
    assert sum(row.payload_received for row in rows) == 6 * 4 * dim * (workers + copies - 1)


def test_whatever_is_lost_and_whoever_dies_pushes_count_once() -> None:
    outcomes = [server_seeds.run(seed) for seed in range(30)]
    assert not [(one.seed, one.verdict) for one in outcomes if one.verdict], "python tests/server_seeds.py SEED"
    assert sum(one.seen["tenure"] for one in outcomes) > 5


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(10))
def test_whatever_is_lost_in_two_thousand_runs(block: int) -> None:
    for seed in range(200 * block, 200 * (block + 1)):
        outcome = server_seeds.run(seed)
        assert not outcome.verdict, f"{outcome.verdict}; python tests/server_seeds.py {seed}"
