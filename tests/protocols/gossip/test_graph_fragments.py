"""DiLoCo on graphs, a fragment of each model in a round: against plain loops, its bytes, its bits, what is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fault_seeds
import numpy as np
import pytest
from over_sockets import run_over_sockets
from resuming import from_the_middle
from test_outer import Dyadic, workers

from fedgossip import simulate
from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import PeerJoined, Received, Send, Started, Trained
from fedgossip.core.messages import Account, Model, ModelFragment
from fedgossip.core.records import NetworkRow, PeerRow
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.topology import build, resolve

MILD = {"lr": 1.0, "beta": 0.5}


def peers(rounds: int, count: int, *, dim: int = 41, graph: str = "ring", n: int = 5, **more: Any) -> dict[str, Any]:
    """Peers on a graph, 41 elements in so many fragments."""
    options = {**MILD, **more.pop("options", {}), "fragments": count}
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": dim, "sigma": 0.1, "placement": "random"},
        "topology": {"graph": graph, "n": n},
        "algorithm": {"name": "diloco", "options": options, "deadline": 1e5},
        "eval": {"every": rounds},
        **more,
    }


def test_it_is_what_plain_loops_make_of_the_formula_to_the_bit() -> None:
    """Each peer's own model, from which it trains on; fragment f is mixed in rounds r with r mod 2 = f."""
    task, lr, beta = Dyadic(), 0.5, 0.5
    weights = np.array([build(resolve("complete", 4), "metropolis").row(i)[j] for i in range(4) for j in range(4)])
    assert set(weights) == {0.25}  # a power of two: nothing is rounded
    known, velocity, models = np.zeros((4, 4)), np.zeros((4, 4)), np.zeros((4, 4))
    for round in range(6):
        models = models + (task.b - models) / 2
        part = slice(2 * (round % 2), 2 * (round % 2) + 2)
        moved = models[:, part].mean(axis=0) - known[:, part]
        velocity[:, part] = beta * velocity[:, part] + moved
        known[:, part] += lr * (beta * velocity[:, part] + moved)
        models[:, part] = known[:, part]
    content = peers(6, 2, graph="complete", n=4, options={"lr": lr, "beta": beta})
    for engine in ("sim", "stacked"):
        run = simulate(content, task=Dyadic(), engine=engine)
        assert np.stack(run.vectors).tobytes() == models.astype(run.vectors[0].dtype).tobytes()  # type: ignore[union-attr]


def test_on_the_complete_graph_it_is_that_of_workers_by_a_collective_and_what_each_has_not_sent() -> None:
    outer = {"lr": 0.5, "beta": 0.5, "fragments": 2}
    shared = simulate(workers(6, outer=outer, bucket=0), task=Dyadic()).vectors[0]
    found = simulate(peers(6, 2, graph="complete", n=4, options={"lr": 0.5, "beta": 0.5}), task=Dyadic()).vectors
    last = slice(2, 4)  # of round 5, the last
    assert shared is not None and {one[last].tobytes() for one in found if one is not None} == {shared[last].tobytes()}
    assert all(one is not None and one[:2].tobytes() != shared[:2].tobytes() for one in found)


@pytest.mark.parametrize("graph", ["ring", "star", "random-matching", "directed-exponential"])
def test_simulator_and_arrays_have_one_digest_and_the_same_rows(graph: str) -> None:
    runs = [simulate(peers(9, 4, graph=graph, n=6), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (
        sorted((row.round, row.peer, row.bytes_sent, row.payload_sent) for row in run.rows if isinstance(row, PeerRow))
        for run in runs
    )
    assert ours == theirs


@pytest.mark.sockets
def test_peers_over_sockets_have_it_too() -> None:
    content = peers(9, 4)
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == simulate(content, engine="stacked").digest


@pytest.mark.parametrize("count", [2, 5])
def test_a_message_has_the_elements_of_its_fragment_and_no_more(count: int) -> None:
    cuts = [41 * f // count for f in range(count + 1)]
    run = simulate(peers(2 * count, count))
    rows = [row for row in run.rows if isinstance(row, PeerRow)]
    for row in rows:
        number = (row.round - 1) % count
        assert row.payload_sent == 2 * 4 * (cuts[number + 1] - cuts[number])  # to two neighbours, float32
    assert len(rows) == 5 * 2 * count
    plan = compose.plan(load_experiment(peers(2 * count, count)))
    told = plan.outlook(compose.task_of(plan.experiment, plan.n)[0])
    sent = sum(row.bytes_sent for row in rows if row.round > 1) / (2 * count - 1)
    assert told.bytes_per_round == pytest.approx(sent, rel=0.05)
    assert any(f"{count} fragments" in line for line in told.lines)


def test_without_training_the_mean_stays_and_peers_agree() -> None:
    task = {"kind": "averaging", "dim": 12, "dtype": "float64"}
    content = {**peers(240, 4, n=6, options={"lr": 0.7, "beta": 0.5}), "task": task, "eval": {"every": 240}}
    run = simulate(content, engine="stacked")
    begun = np.mean([compose.task_of(load_experiment(content), 6)[0].initial(node) for node in range(6)], axis=0)
    assert np.abs(np.mean(np.stack(run.vectors), axis=0) - begun).max() < 1e-12  # type: ignore[arg-type]
    assert run.network()[-1].consensus_distance < 1e-3 * run.network()[0].consensus_distance


def check_seeds(seeds: range) -> int:
    """Run these seeds; return how many late models were made up for."""
    repaired = 0
    for seed in seeds:
        content = fault_seeds.scenario(seed)
        if content["topology"]["graph"] not in fault_seeds.SCHEDULES["any"]:
            continue
        options = {"lr": 1.0, "beta": 0.0, "fragments": 2 + seed % 2}  # with a momentum one that is late moves the mean
        algorithm = {**content["algorithm"], "name": "diloco", "mode": "sync", "options": options}
        outcome = fault_seeds.run(seed, keys={"algorithm": algorithm, "task": {**content["task"], "dim": 7}})
        assert not outcome.verdict, f"seed {seed}: {outcome.verdict}"
        repaired += outcome.counts.get("repaired", 0)
    return repaired


def test_the_mean_is_kept_whatever_is_lost_or_the_loss_is_told() -> None:
    assert check_seeds(range(15)) > 5


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_a_thousand_seeds(block: int) -> None:
    check_seeds(range(15 + 100 * block, 115 + 100 * block))


def test_a_peer_that_is_killed_again_and_again_stalls_nobody() -> None:
    content = peers(30, 3)
    content["algorithm"] |= {"deadline": 2.0, "least_deadline": 0.5, "start_timeout": 20.0}
    crash = {"kind": "crash", "peers": [2], "every": 6.0, "after": 1.0, "stop": 25.0}
    run = simulate({**content, "simulation": {"training": 1.0, "detection": 0.2}, "faults": [crash]})
    assert run.summary["status"] == "finished" and run.summary["seconds"] < 1.5 * 30
    assert max(row.round for row in run.rows if isinstance(row, NetworkRow)) == 30


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_stopped_simulation_goes_on_bit_for_bit_with_what_was_not_sent(engine: str, tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(peers(9, 4)))
    whole, again = from_the_middle(plan, tmp_path, engine)
    assert again.digest == whole.digest and again.rows == whole.rows


def peer() -> tuple[Any, Any]:
    """Peer 0 of a ring, in its first round, with what it has said."""
    plan = compose.plan(load_experiment(peers(6, 2, dim=5)))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    machine: Any = plan.machine(0, task.initial(0), task.schema)
    machine.handle(Started(), 0)
    for other in (1, 4):
        machine.handle(PeerJoined(other, 0), 0)
    return machine, task


def fragment(task: Any, round: int, size: int) -> ModelFragment:
    return ModelFragment(round, size, task.schema, (frozen(np.ones(size, np.float32)),))


@pytest.mark.parametrize("wrong", ["size", "whole", "stranger", "round"])
def test_what_is_no_fragment_of_its_round_is_refused_and_changes_nothing(wrong: str) -> None:
    machine, task = peer()
    words: dict[str, Any] = {
        "size": (1, fragment(task, 0, 3)),  # that of round 1
        "whole": (1, Model(0, task.schema, (frozen(np.ones(5, np.float32)),))),
        "stranger": (2, fragment(task, 0, 2)),
        "round": (1, fragment(task, 6, 2)),
    }
    with pytest.raises(ProtocolError):
        machine.handle(Received(*words[wrong]), 0)
    assert not machine.machine.mailbox.has(1, 0)
    machine.handle(Received(1, fragment(task, 0, 2)), 0)
    assert machine.machine.mailbox.has(1, 0)


def test_what_is_asked_for_again_is_the_very_fragment_that_went_to_all() -> None:
    """So that a link knows what waits already."""
    machine, task = peer()
    sent = machine.handle(Trained(0, frozen(np.arange(5, dtype=np.float32)), 1, {}), 0)
    told = [one.message for one in sent if isinstance(one, Send)]
    assert [(type(one), one.round, one.vectors[0].size) for one in told] == [(ModelFragment, 0, 2)] * 2
    assert told[0] is told[1]
    for other in (1, 4):
        machine.handle(Received(other, fragment(task, 0, 2)), 0)
    assert machine.machine.round == 1
    (again,) = machine.handle(Received(1, Account(0, asks=True)), 10**12)
    assert again.message.round == 0 and again.message.vectors is told[0].vectors


def test_what_is_late_counts_in_its_own_fragment_alone() -> None:
    algorithm = FragmentedDiLoCo(OuterStep(0.5, 0.5), 2)
    state = algorithm.start(frozen(np.zeros(4)))
    for round in range(3):
        state, goes = algorithm.trained(state, frozen(np.ones(4)), Step(round))
        state = algorithm.mixed(state, goes)
    late = frozen(np.array([0.0, 0.0, 1.0, 1.0]))
    after = algorithm.corrected(state, (late,))
    assert (after.x - state.x).tolist() == [0, 0, 0.75, 0.75] and (after.v - state.v).tolist() == [0, 0, 1, 1]
    assert after.rest.tolist() == state.rest.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fragments": 0}, "fragments = 0"),
        ({"fragments": 2.5}, "fragments is 2.5"),
        ({"fragments": 4, "codec": "sign"}, "a whole model"),
        ({"fragments": 50}, "fragments = 50 in 40 rounds"),
    ],
)
def test_fragments_that_cannot_be_are_refused_with_advice(options: dict[str, Any], words: str) -> None:
    content = peers(40, 2)
    content["algorithm"]["options"] = options
    with pytest.raises(ConfigError, match=words) as refused:
        compose.plan(load_experiment(content))
    assert refused.value.advice


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_a_model_that_has_no_such_fragments_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    """As by a dry run, by the simulator and by real peers; on graphs and in a collective."""
    for content in (
        peers(8, 8, dim=4),
        {**workers(8, outer={"fragments": 8}), "task": {"kind": "quadratic", "dim": 4}},
    ):
        plan = compose.plan(load_experiment(content))
        for run in (simulate_plan, run_local_plan):
            with pytest.raises(ConfigError, match="fragments = 8 of a model of 4 elements"):
                run(plan, out=tmp_path / "run")
            assert not (tmp_path / "run").exists()


def test_a_model_with_an_element_for_each_fragment_is_no_fault() -> None:
    """Whether the run is linear is asked of vectors that are as long."""
    assert simulate(peers(8, 8, dim=8, n=3)).summary["status"] == "finished"


def test_options_of_an_outer_step_that_there_is_not_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel.outer.fragments without parallel.outer.lr"):
        load_experiment(workers(8, outer={"lr": 0.0, "fragments": 2}))
