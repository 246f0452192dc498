"""Runs of all-reduce: one digest in every driver, the same bits where they are promised, and workers that die."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine_fuzz
import numpy as np
import pytest
from fuzz_casts import PEERS, SCENES, Scene, workers
from resuming import from_the_middle

import fedgossip
from fedgossip import simulate
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.base.errors import ConfigError, FedgossipError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.messages import TAIL
from fedgossip.core.records import EventRow, PeerRow, read_rows
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.allreduce.reduction import Chunk
from fedgossip.protocols.allreduce.round_sums import ChunkExchange

NAMES = sorted(COLLECTIVES)


def learning(workers: int = 4, method: str = "ring", **more: Any) -> dict[str, Any]:
    train = {"lr": 0.1, "momentum": 0.9, "batch_size": 32, "device": "cpu", **more.pop("train", {})}
    parallel = {"workers": workers, "method": method, "bucket": 1000, **more.pop("parallel", {})}
    model = {"source": "softmax"}
    return {"rounds": 4, "model": model, "train": train, "parallel": parallel, "eval": {"every": 2}, **more}


def quadratic(workers: int = 4, method: str = "ring", rounds: int = 12, **more: Any) -> dict[str, Any]:
    """x <- x - eta mean (x - b_i + xi_i): cheap, and every worker's gradient is its own."""
    parallel = {"workers": workers, "method": method, "bucket": 64, **more.pop("parallel", {})}
    task = {"kind": "quadratic", "dim": 40, "sigma": 0.3}
    train = {"lr": 0.1, **more.pop("train", {})}
    return {"rounds": rounds, "task": task, "train": train, "parallel": parallel, **more}


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_rows(method: str, workers: int) -> None:
    runs = [simulate(quadratic(workers, method), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (
        [(row.round, row.peer, row.bytes_sent, row.loss) for row in run.rows if isinstance(row, PeerRow)]
        for run in runs
    )
    assert sorted(ours) == sorted(theirs) and len(ours) == 12 * workers


def test_learning_has_one_digest_in_both_too() -> None:
    runs = [simulate(learning(3, "halving-doubling"), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest and runs[0].summary["status"] == "finished"


def test_methods_that_sum_exactly_have_the_same_bits() -> None:
    assert simulate(learning(3, "star")).digest == simulate(learning(3, "all-to-all")).digest


@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize("method", NAMES)
def test_the_bits_depend_on_the_bucket_in_a_ring_alone(method: str, workers: int) -> None:
    """Its parts are added from different ranks on, and a bucket says which part an element is in."""
    ends = {simulate(quadratic(workers, method, 3, parallel={"bucket": bucket})).digest for bucket in (0, 12, 64)}
    assert (len(ends) == 1) == (method != "ring" and (method, workers) != ("hierarchical", 3)), "one rack is a ring"


def test_all_methods_agree_to_rounding() -> None:
    ends = [np.array(simulate(quadratic(5, method)).vectors[0]) for method in NAMES]
    assert all(np.allclose(end, ends[0], rtol=1e-5, atol=1e-6) for end in ends)


PLAIN = {"momentum": 0.0}


@pytest.mark.parametrize("train", [{}, {"optimizer": "adam", "momentum": 0.0, "lr": 0.01}, PLAIN])
def test_one_worker_is_local_training(train: dict[str, Any]) -> None:
    """To the bit; plain descent to rounding, for its local training adds a layer's products into the weights."""
    alone = {"topology": {"graph": "none", "n": 1}, "rounds": 4, "model": {"source": "softmax"}}
    settings = {"lr": 0.1, "momentum": 0.9, "batch_size": 32, "device": "cpu", "local_steps": 1, **train}
    one, local = simulate(learning(1, train=train)), simulate({**alone, "train": settings})
    if train is PLAIN:
        np.testing.assert_allclose(one.vectors[0], local.vectors[0], rtol=1e-5, atol=1e-7)  # type: ignore[arg-type]
    else:
        assert one.digest == local.digest


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("method", NAMES)
def test_what_is_sent_is_what_the_table_says_and_a_bounded_rest(method: str, workers: int) -> None:
    """Of chunks: their elements; beside them a header for each and an acknowledgement, and the goodbyes."""
    experiment = quadratic(workers, method, rounds=3, parallel={"bucket": 0})
    run, table = simulate(experiment), COLLECTIVES[method].table(workers)
    dim = run.vectors[0].size
    kind = run.vectors[0].dtype.itemsize
    for rank in range(workers):
        rows = [row for row in run.rows if isinstance(row, PeerRow) and row.peer == rank and row.round]
        payload, moves = table.sent(rank, dim + TAIL) * kind, len(list(table.of(rank, dim + TAIL)))
        for row in rows:
            assert payload <= row.bytes_sent <= payload + 260 * moves


ONE_MODEL = [*NAMES, "mapreduce", "parameter-server"]


@pytest.mark.parametrize("method", ONE_MODEL)
def test_all_workers_have_one_model_after_every_round(method: str) -> None:
    experiment = learning(3, method, parallel={"bucket": None})
    assert compose.plan(load_experiment(experiment)).one_model
    rows = simulate(experiment).network()
    assert [row.consensus_distance for row in rows] == [0.0] * 5
    measured = [row for row in rows if row.score_averaged is not None]
    assert measured and all(row.score_averaged == row.score_worst_peer for row in measured)


def test_servers_that_do_not_wait_for_all_have_no_one_model() -> None:
    server = {"bucket": None, "server": {"staleness": "async"}}
    assert not compose.plan(load_experiment(learning(3, "parameter-server", parallel=server))).one_model


@pytest.mark.sockets
def test_processes_with_one_model_leave_its_measuring_to_who_collects(tmp_path: Path) -> None:
    experiment = learning(3, "ring")
    run, simulated = fedgossip.run_local(experiment, tmp_path / "run", report=False), simulate(experiment)
    assert run.digest == simulated.digest
    assert [row.score_worst_peer for row in run.network()] == [row.score_worst_peer for row in simulated.network()]
    own = read_rows(tmp_path / "run" / "peers" / "02" / "metrics.jsonl")
    assert {row.score for row in own if isinstance(row, PeerRow)} == {None}


def reference(workers: int, rounds: int, until: int, gone: frozenset[int]) -> str:
    """The digest of a survivor's model where `gone` count in the rounds before `until` and not after: exact sums."""
    experiment = load_experiment(quadratic(workers, "all-to-all", rounds))
    plan: Any = compose.plan(experiment)
    task, _ = compose.task_of(experiment, plan.learners)
    from fedgossip.algorithms.federated.sums import ExactSum
    from fedgossip.core.task import Job

    descent = plan.descent_of(plan.segments)
    state = descent.start(task.initial(0))
    for number in range(rounds):
        counted = [node for node in range(workers) if number < until or node not in gone]
        updates = task.gradients([Job(node, number, state.x, gradient=True, accumulate=1) for node in counted])
        total = ExactSum()
        for update in updates:
            total.add(1.0, update.difference)
        state = descent.step(state, total.mean(state.x.dtype), experiment.train.rate(number, rounds))
    return digest([state.x])


@pytest.mark.parametrize("method", ["all-to-all", "star"])
def test_wherever_one_dies_each_round_counts_it_or_not_at_all_survivors(method: str) -> None:
    """One of four at 25 points of time: all end with all rounds, in one model, that of some round on without it."""
    whole = simulate(quadratic(4, method)).summary["seconds"]
    possible = {reference(4, 12, until, frozenset({2})): until for until in range(13)}
    seen = set()
    for at in np.linspace(0.001, whole * 0.98, 25):
        faults = [{"kind": "crash", "peers": [2], "start": float(at)}]
        run = simulate(quadratic(4, method, faults=faults))
        ends = {digest([run.vectors[node]]) for node in (0, 1, 3) if run.vectors[node] is not None}
        assert len(ends) == 1 and ends <= possible.keys(), f"killed at {at}"
        seen.add(possible[ends.pop()])
        rounds = [(row.round, row.peer) for row in run.rows if isinstance(row, PeerRow) and row.peer != 2]
        assert len(rounds) == len(set(rounds)) == 36, "no round twice, and none left out"
    assert len(seen) > 8, "in many different rounds"


@pytest.mark.parametrize("method", ["ring", "halving-doubling", "tree", "recursive-doubling", "ring-naive"])
def test_survivors_of_any_method_end_with_the_same_bits(method: str) -> None:
    whole = simulate(quadratic(5, method)).summary["seconds"]
    for at in np.linspace(0.001, whole * 0.95, 12):
        faults = [{"kind": "crash", "peers": [1, 4], "start": float(at)}]
        run = simulate(quadratic(5, method, faults=faults))
        assert len({digest([run.vectors[node]]) for node in (0, 2, 3)}) == 1
        assert any(isinstance(row, EventRow) and row.name == "regrouped" for row in run.rows)


def test_half_of_the_workers_do_not_go_on_alone() -> None:
    faults = [{"kind": "crash", "peers": [1, 2], "start": 0.3}]
    with pytest.raises(FedgossipError, match="more than half") as caught:
        simulate(quadratic(4, faults=faults))
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("method", NAMES)
def test_lost_late_and_doubled_messages_change_no_bit(method: str) -> None:
    quiet = simulate(quadratic(4, method))
    faults = [
        {"kind": "drop", "probability": 0.15},
        {"kind": "duplicate", "probability": 0.2},
        {"kind": "delay", "seconds": 0.05, "probability": 0.2},
    ]
    for seed in range(3):
        run = simulate(quadratic(4, method, rounds=12, faults=faults, simulation={"jitter": 0.02}), overrides=())
        assert run.digest == quiet.digest, seed


def test_a_cut_that_is_short_changes_no_bit() -> None:
    faults = [{"kind": "partition", "groups": [[0, 1], [2, 3]], "start": 0.2, "stop": 0.5}]
    assert simulate(quadratic(faults=faults)).digest == simulate(quadratic()).digest


def test_slow_workers_change_no_bit() -> None:
    slow = simulate(quadratic(simulation={"speed_spread": 1.5, "training_jitter": 1.0, "jitter": 0.05}))
    assert slow.digest == simulate(quadratic()).digest


def test_a_stopped_simulation_goes_on_bit_for_bit(tmp_path: Any) -> None:

    plan = compose.plan(load_experiment(quadratic()))
    whole, again = from_the_middle(plan, tmp_path)
    assert again.digest == whole.digest and again.rows == whole.rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 65}, "65 workers, and 64 can all know each other"),
        ({"workers": 4, "method": "rign"}, "rign"),
        ({"workers": 4, "descent": "sdg"}, "sdg"),
        ({"workers": 4, "bucket": -1}, "bucket"),
        ({"workers": 4, "accumulate": 0}, "accumulate"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_experiment({"parallel": change})


@pytest.mark.parametrize(
    "more",
    [
        {"task": {"kind": "averaging"}},
        {"train": {"personal": "layer.*"}},
        {"train": {"buffers": "local"}},
        {"algorithm": {"name": "dsgd"}},
        {"topology": {"graph": "ring", "n": 4}},
    ],
)
def test_what_has_no_place_beside_a_collective_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load_experiment({"parallel": {"workers": 4}, **more})


@pytest.mark.parametrize(("workers", "dim"), [(8, 1), (8, 3), (5, 4), (1, 1)])
def test_fewer_elements_than_workers_and_a_bucket_of_one_byte(workers: int, dim: int) -> None:
    experiment = quadratic(workers, rounds=3, parallel={"bucket": 1})
    experiment["task"]["dim"] = dim
    assert simulate(experiment).digest == simulate(experiment, engine="stacked").digest


def test_a_worker_that_lies_may_end_a_run_and_makes_nobody_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_fuzz.quick(monkeypatch)
    for name in ("ring", "star"):
        monkeypatch.setitem(SCENES, name, Scene(lambda name=name: workers(name, 4), PEERS))  # type: ignore[misc]
        for seed in range(machine_fuzz.WORLDS):
            try:
                machine_fuzz.checked(name, "neighbour", seed)
            except machine_fuzz.Broken as broken:
                assert "ends after" in str(broken)


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("liar", [0, 2])
def test_one_whose_numbers_cannot_be_added_is_out_at_once(
    method: str, liar: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No deadline is waited for, no round is counted twice, and the others end with all rounds and one model."""
    sent = ChunkExchange._send_chunks

    def lying(self: ChunkExchange, chunks: Sequence[Chunk], round: int, now_ns: int) -> Any:
        if self.group.node == liar and round >= 5:
            chunks = [replace(one, vector=frozen(np.full_like(one.vector, np.nan))) for one in chunks]
        return sent(self, chunks, round, now_ns)

    quiet = simulate(quadratic(4, method)).summary["seconds"]
    monkeypatch.setattr(ChunkExchange, "_send_chunks", lying)
    run = simulate(quadratic(4, method, parallel={"start_timeout": 2.0}))
    others = [node for node in range(4) if node != liar]
    assert run.summary["status"] == "partial"
    assert len({digest([run.vectors[node]]) for node in others}) == 1
    if method in ("star", "all-to-all"):
        assert digest([run.vectors[others[0]]]) == reference(4, 12, 5, frozenset({liar}))
    rounds = [(row.round, row.peer) for row in run.rows if isinstance(row, PeerRow) and row.peer != liar]
    assert len(rounds) == len(set(rounds)) == 36
    last = max(row.seconds for row in run.rows if isinstance(row, PeerRow) and row.peer in others)
    assert last < 2 * quiet, "the shortest deadline alone is five seconds"
    told = [row for row in run.rows if isinstance(row, EventRow) and row.name == "refused"]
    assert told and told[0].value["from"] == liar and "cannot be added up" in told[0].value["text"]


def any_faults(seed: int) -> dict[str, Any]:
    """A run with losses, delays, cuts and deaths of fewer than half, drawn from a seed."""
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(2, 7))
    span = [float(t) for t in sorted(rng.uniform(0.05, 1.5, 2))]
    faults: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        faults.append({"kind": "drop", "probability": float(rng.uniform(0, 0.2))})
    if rng.random() < 0.5:
        faults.append({"kind": "duplicate", "probability": float(rng.uniform(0, 0.5))})
    if rng.random() < 0.5:
        faults.append({"kind": "delay", "seconds": float(rng.uniform(0, 0.3)), "probability": 0.2})
    if rng.random() < 0.4:
        cut = int(rng.integers(1, workers))
        groups = [list(range(cut)), list(range(cut, workers))]
        faults.append({"kind": "partition", "groups": groups, "start": span[0], "stop": span[1]})
    dead = rng.permutation(workers)[: int(rng.integers(0, (workers + 1) // 2))].tolist()
    faults += [{"kind": "crash", "peers": [node], "start": float(rng.uniform(0.01, 1.5))} for node in dead]
    simulation = {"jitter": float(rng.uniform(0, 0.05)), "training_jitter": float(rng.uniform(0, 2))}
    method = NAMES[int(rng.integers(len(NAMES)))]
    parallel = {"bucket": int(rng.choice([0, 16, 64])), "overlap": bool(seed % 2)}
    return {
        **quadratic(workers, method, 8, parallel=parallel, faults=faults, simulation=simulation),
        "seed": seed,
    }


def after_any_faults(seed: int) -> str:
    """Run it; all who came to the end have one model and one row a round.  Returns how it ended."""
    experiment = any_faults(seed)
    try:
        run = simulate(experiment)
    except FedgossipError as error:
        assert error.exit_code in (3, 7), f"seed {seed}: {error}"
        return "failed"
    dead = {fault["peers"][0] for fault in experiment["faults"] if fault["kind"] == "crash"}
    rows = [(row.round, row.peer) for row in run.rows if isinstance(row, PeerRow)]
    assert len(rows) == len(set(rows)), f"seed {seed}: a round twice"
    whole = [node for node in range(experiment["parallel"]["workers"]) if (8, node) in rows and node not in dead]
    assert len({digest([run.vectors[node]]) for node in whole if run.vectors[node] is not None}) <= 1, f"seed {seed}"
    return str(run.summary["status"])


def test_whatever_is_lost_and_whoever_dies_those_who_end_have_one_model() -> None:
    ended = [after_any_faults(seed) for seed in range(30)]
    assert ended.count("finished") > 10 and ended.count("partial") > 2


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_whatever_is_lost_in_two_thousand_runs() -> None:
    ended = [after_any_faults(seed) for seed in range(2000)]
    assert ended.count("finished") > 700 and ended.count("partial") > 200


def test_links_slower_than_the_first_wait_end_a_run_without_a_storm_of_repeats() -> None:
    """A chunk takes 6 s, and is sent again after 2 at first; how long one takes is known when a few have arrived."""
    links = {"bandwidth": 40.0, "downlink": 40.0, "latency": 0.01}
    patient = {"bucket": 0, "deadline": 4000.0, "least_deadline": 4000.0}
    experiment = quadratic(3, "ring", 6, parallel=patient, simulation=links)
    run = simulate(experiment)
    assert run.digest == simulate({**experiment, "simulation": {}}).digest
    sent = [sum(row.bytes_sent for row in run.rows if isinstance(row, PeerRow) and row.round == at) for at in (1, 6)]
    quiet = simulate({**experiment, "simulation": {}})
    assert sent[1] <= 1.02 * sum(r.bytes_sent for r in quiet.rows if isinstance(r, PeerRow) and r.round == 6)
    assert sent[0] < 16 * sent[1], "each of four chunks four times at most"
