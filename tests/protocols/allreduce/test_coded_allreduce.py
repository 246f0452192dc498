"""All-reduce by codecs: the same bits in every driver, the bytes that are promised, what is left out comes later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine_fuzz
import numpy as np
import pytest
from commands import Output, in_process
from fuzz_casts import PEERS, SCENES, Scene, workers
from over_sockets import run_over_sockets
from resuming import from_the_middle
from test_allreduce import learning, quadratic

from fedgossip import simulate
from fedgossip.algorithms.codecs.base import VectorLayout
from fedgossip.algorithms.codecs.names import CODECS, make_codec
from fedgossip.algorithms.codecs.senders import Memoryless
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.parallel import shared_steps
from fedgossip.protocols.allreduce.coded_fragments import LEFT_OUT
from fedgossip.protocols.allreduce.reduction import Chunk
from fedgossip.protocols.allreduce.round_sums import ChunkExchange

SHARES = {"int8": ":16", "top-k": ":0.1", "random-k": ":0.25", "dgc": ":0.1:2", "qsgd": ":7"}
NAMES = [name + SHARES.get(name, "") for name in CODECS]


MORE = ["top-k:0.1", "int8:16", "dgc:0.1:1"]


def coded(codec: str, method: str = "ring", workers: int = 4, rounds: int = 8, **more: Any) -> dict[str, Any]:
    parallel = {"codec": codec, **more.pop("parallel", {})}
    return quadratic(workers, method, rounds, parallel=parallel, **more)


@pytest.mark.parametrize("method", ["ring", "all-to-all"])
@pytest.mark.parametrize("codec", NAMES)
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_rows(codec: str, method: str) -> None:
    runs = [simulate(coded(codec, method), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (
        sorted((row.round, row.peer, row.bytes_sent, row.payload_sent) for row in run.rows if isinstance(row, PeerRow))
        for run in runs
    )
    assert ours == theirs and len(ours) == 8 * 4


@pytest.mark.long
def test_learning_has_one_digest_in_both_too() -> None:
    experiment = learning(3, parallel={"codec": "sign"})
    runs = [simulate(experiment, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("codec", [name for name in NAMES if not name.startswith("random-k")])
def test_a_worker_sends_a_payload_for_each_other(codec: str, workers: int) -> None:
    run = simulate(coded(codec, workers=workers))
    for row in run.rows:
        if isinstance(row, PeerRow) and row.round:
            size = make_codec(codec).size(VectorLayout.of(run.vectors[0]), row.round - 1)  # type: ignore[arg-type]
            assert row.payload_sent == (workers - 1) * size


@pytest.mark.parametrize("method", ["ring", "tree", "star", "halving-doubling"])
def test_random_k_goes_by_every_collective_in_a_share_of_its_bytes(method: str) -> None:
    """40 elements and the tail of 2 become 10 and the tail."""
    sent = [
        sum(row.payload_sent for row in simulate(experiment).rows if isinstance(row, PeerRow))
        for experiment in (quadratic(4, method, 8, parallel={"bucket": 0}), coded("random-k:0.25", method))
    ]
    assert sent[1] * 42 == sent[0] * 12


@pytest.mark.parametrize("codec", ["sign", *(pytest.param(one, marks=pytest.mark.long) for one in MORE)])
def test_what_is_left_out_comes_later_and_without_that_the_descent_ends_elsewhere(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No noise, and a step that stays: what is left of the distance to the dense descent's end is 1/5 at most."""
    more = {"train": {"lr": 0.05}, "task": {"kind": "quadratic", "dim": 40, "sigma": 0.0, "placement": "random"}}

    def end(of: str) -> Any:
        return simulate({**coded(of, rounds=200), **more}, engine="stacked").vectors[0]

    dense, remembered = end(""), end(codec)
    monkeypatch.setattr(shared_steps, "sender_of", lambda made, *_: Memoryless(made))
    assert np.linalg.norm(remembered - dense) < 0.2 * np.linalg.norm(end(codec) - dense)


@pytest.mark.parametrize("codec", ["top-k:0.1", "random-k:0.25", "sign"])
def test_lost_late_and_doubled_messages_change_no_bit(codec: str) -> None:
    faults = [
        {"kind": "drop", "probability": 0.15},
        {"kind": "duplicate", "probability": 0.2},
        {"kind": "delay", "seconds": 0.05, "probability": 0.2},
    ]
    run = simulate(coded(codec, faults=faults, simulation={"jitter": 0.02}))
    assert run.digest == simulate(coded(codec)).digest


@pytest.mark.parametrize("codec", ["dgc:0.1:1", "random-k:0.25"])
def test_survivors_and_one_that_comes_back_end_with_the_same_bits(codec: str) -> None:
    whole = simulate(coded(codec, workers=5)).summary["seconds"]
    for at in np.linspace(0.001, whole * 0.45, 5):  # later, the others have done all rounds before it is back
        faults = [
            {"kind": "crash", "peers": [1], "start": float(at)},
            {"kind": "crash", "peers": [4], "start": float(at) + 0.05, "after": 0.1},
        ]
        run = simulate(coded(codec, workers=5, faults=faults))
        assert len({digest([run.vectors[node]]) for node in (0, 2, 3, 4)}) == 1  # type: ignore[list-item]


@pytest.mark.parametrize("codec", ["dgc:0.1:1", "top-k:0.1"])
@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_stopped_simulation_goes_on_bit_for_bit_with_what_was_left_out(
    codec: str, engine: str, tmp_path: Path
) -> None:
    plan = compose.plan(load_experiment(coded(codec)))
    whole, again = from_the_middle(plan, tmp_path, engine)
    assert again.digest == whole.digest and again.rows == whole.rows


def test_a_checkpoint_holds_what_a_worker_left_out_and_a_next_life_goes_on_with_it() -> None:
    plan = compose.plan(load_experiment(coded("top-k:0.1")))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    machine: Any = plan.machine(0, task.initial(0), task.schema)
    left = frozen(np.arange(40, dtype=np.float32))
    machine.at.coded.memory = (left,)
    held = machine.at.checkpoint(machine.group.saved())
    assert set(held.vectors) >= {f"{LEFT_OUT}0"}
    again: Any = plan.machine(0, task.initial(0), task.schema, resumed=held, incarnation=1)
    assert (again.at.coded.memory[0] == left).all()


def test_a_run_does_not_go_on_with_another_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'rounds = 3\ntask = { kind = "quadratic", dim = 8 }\n[parallel]\nworkers = 2\ncodec = "top-k:0.5"\n'
    )

    def fedgossip(*words: str) -> Output:
        return in_process(words, tmp_path, monkeypatch, capsys)

    assert fedgossip("run", "run.toml", "--out", "of").code == 0
    again = fedgossip("run", "run.toml", "--resume", "of", "--set", "parallel.codec=sign")
    assert again.code == 8 and "parallel.codec" in again.err


@pytest.mark.sockets
def test_bits_over_sockets_are_those_of_the_simulator() -> None:
    experiment = load_experiment(coded("dgc:0.1:1", workers=3))
    plan = compose.plan(experiment)
    task, _ = compose.task_of(experiment, plan.learners)
    vectors, rows = run_over_sockets(plan, task)
    simulated = simulate(coded("dgc:0.1:1", workers=3))
    assert digest(vectors) == simulated.digest
    sent = [sum(row.payload_sent for row in one if isinstance(row, PeerRow)) for one in (rows, simulated.rows)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("codec", ["int8:16", "random-k:0.25"])
def test_one_whose_payload_cannot_be_decoded_is_out_at_once(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = ChunkExchange._send_chunks

    def lying(self: ChunkExchange, chunks: Sequence[Chunk], round: int, now_ns: int) -> Any:
        if self.group.node == 2 and round >= 5:
            wrong = [np.full_like(one.vector, 255 if one.vector.dtype == np.uint8 else np.nan) for one in chunks]
            chunks = [replace(one, vector=frozen(bad)) for one, bad in zip(chunks, wrong, strict=True)]
        return sent(self, chunks, round, now_ns)

    monkeypatch.setattr(ChunkExchange, "_send_chunks", lying)
    run = simulate(coded(codec, parallel={"start_timeout": 2.0}))
    assert run.summary["status"] == "partial"
    assert len({digest([run.vectors[node]]) for node in (0, 1, 3)}) == 1  # type: ignore[list-item]
    told = [row for row in run.rows if isinstance(row, EventRow) and row.name == "refused"]
    assert told and told[0].value["from"] == 2


@pytest.mark.long
def test_a_worker_that_lies_may_end_a_run_and_makes_nobody_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_fuzz.quick(monkeypatch)
    monkeypatch.setitem(SCENES, "coded", Scene(lambda: workers("ring", 4, codec="top-k:0.5"), PEERS))
    for seed in range(4):
        try:
            machine_fuzz.checked("coded", "neighbour", seed)
        except machine_fuzz.Broken as broken:
            assert "ends after" in str(broken)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"codec": "zip"}, "there is no codec 'zip'"),
        ({"codec": "top-k:0"}, "above 0 and at most 1"),
        ({"codec": "top-k:1.5"}, "above 0 and at most 1"),
        ({"codec": "sign", "method": "tree"}, "cannot be added, and tree adds at every step"),
        ({"codec": "sign", "overlap": True}, "needs the whole gradient"),
        ({"codec": "dgc:0.01", "descent": "adam"}, "applies the momentum of sgd itself"),
    ],
)
def test_a_codec_that_does_not_go_with_the_rest_is_refused_with_advice(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        load_experiment({"parallel": {"workers": 4, **more}})
    assert refused.value.advice


def test_runs_without_a_codec_have_the_hash_that_they_had() -> None:
    assert "codec" not in load_experiment(quadratic()).to_dict()["parallel"]
