"""Uploads of federated clients by codecs: one digest in all drivers, exact bytes, what did not count stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import reports
from commands import Output, in_process
from frozen import federated
from resuming import from_the_middle

from fedgossip import simulate
from fedgossip.algorithms.codecs.base import VectorLayout
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.codecs.senders import Memoryless
from fedgossip.algorithms.federated.base import Work
from fedgossip.algorithms.federated.coded import CodedClient, UploadCodec
from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint, PeerJoined, Received, Send, Started, Train, Trained
from fedgossip.core.messages import CodedContribution, Contribution, Invite
from fedgossip.core.records import PeerRow
from fedgossip.core.task import Segment
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.federated.client import Client, ClientSettings
from fedgossip.protocols.federated.coordinator import Coordinator, CoordinatorSettings

OPEN = {"secure": {"on": False}}
FINE = {"secure": {"weight_max": 1}}
"""A sum that rounds to 1e-7: these clients have one example each."""
NAMES = ["bf16", "fp16", "int8:4", "top-k:0.3", "random-k:0.5", "qsgd:7", "terngrad", "sign"]
SEED, DIM = 3, 12


def coding(codec: str, length: int = DIM) -> UploadCodec:
    return UploadCodec(make_codec(codec), VectorLayout.of_length(length, np.dtype(np.float32)), SEED)


def update(seed: int) -> Vector:
    return frozen(np.random.default_rng(seed).standard_normal(DIM).astype(np.float32))


# --- the drivers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [OPEN, {"cohort": 5, **OPEN}], ids=["all", "cohorts"])
@pytest.mark.parametrize("codec", NAMES)
def test_simulator_and_stacked_clients_have_one_digest_and_the_same_rows(codec: str, more: dict[str, Any]) -> None:
    runs = [simulate(federated(codec=codec, **more), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (
        sorted((row.round, row.peer, row.bytes_sent, row.payload_sent) for row in run.rows if isinstance(row, PeerRow))
        for run in runs
    )
    assert ours == theirs and len(ours) == 4 * (more.get("cohort", 8) + 1)


@pytest.mark.parametrize("codec", NAMES)
def test_a_client_sends_the_bytes_that_its_codec_says_and_no_more(codec: str) -> None:
    run = simulate(federated(codec=codec, **OPEN), engine="stacked")
    size = make_codec(codec).size(VectorLayout.of_length(7, np.dtype(np.float32)), 0)
    sent = {row.payload_sent for row in run.rows if isinstance(row, PeerRow) and row.peer < 8}
    assert sent == {size}


def test_a_secure_sum_masks_the_elements_that_all_draw_alike_and_no_others() -> None:
    """A word an element that is sent; weight, cut, count, and the metrics steps and loss beside them."""
    runs = [simulate(federated(codec="random-k:0.3"), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    words = {row.payload_sent for row in runs[0].rows if isinstance(row, PeerRow) and row.peer < 8}
    whole = {row.payload_sent for row in simulate(federated()).rows if isinstance(row, PeerRow) and row.peer < 8}
    assert words == {one - 4 * (7 - 2) for one in whole}


def test_with_and_without_a_secure_sum_the_models_are_the_same_to_rounding() -> None:
    ends = [simulate(federated(codec="random-k:0.3", **more)).vectors[-1] for more in (FINE, OPEN)]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["sign", pytest.param("top-k:0.3", marks=pytest.mark.long)])
def test_what_is_left_out_comes_later_and_without_that_the_end_is_elsewhere(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No noise, clients that all take part: nearer to the end of whole updates than without a memory."""

    def end(of: str) -> Any:
        task = {"kind": "quadratic", "dim": 40, "sigma": 0.0, "placement": "random"}
        content = {**federated(codec=of, options={"lr": 0.2}, **OPEN), "task": task, "rounds": 150}
        return simulate(content, engine="stacked").vectors[-1]

    dense, remembered = end(""), end(codec)
    monkeypatch.setattr("fedgossip.algorithms.federated.coded.sender_of", Memoryless)
    assert np.linalg.norm(remembered - dense) < 0.2 * np.linalg.norm(end(codec) - dense)


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_stopped_run_goes_on_bit_for_bit_with_what_its_clients_left_out(engine: str, tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(federated(codec="top-k:0.3", cohort=5, **OPEN)))
    whole, again = from_the_middle(plan, tmp_path, engine)
    assert again.digest == whole.digest and again.rows == whole.rows


def test_whenever_the_coordinator_dies_the_bits_are_those_of_an_undisturbed_run() -> None:
    experiment = {**federated(codec="top-k:0.3", cohort=5, **OPEN), "rounds": 8}
    whole = simulate(experiment)
    for at in np.linspace(0.01, 0.9 * whole.summary["seconds"], 5):
        faults = [{"kind": "crash", "peers": [8], "start": float(at), "after": 0.02}]
        assert simulate({**experiment, "faults": faults}).digest == whole.digest, at


def test_a_run_does_not_go_on_with_another_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task, section = '{ kind = "quadratic", dim = 8 }', 'clients = 3\ncodec = "top-k:0.5"\nsecure.on = false'
    (tmp_path / "run.toml").write_text(f"rounds = 2\ntask = {task}\n[coordinator]\n{section}\n")

    def fedgossip(*words: str) -> Output:
        return in_process(words, tmp_path, monkeypatch, capsys)

    assert fedgossip("run", "run.toml", "--out", "of").code == 0
    again = fedgossip("run", "run.toml", "--resume", "of", "--set", "coordinator.codec=sign")
    assert again.code == 8 and "coordinator.codec" in again.err


# --- one client -------------------------------------------------------------------------------------------------------


def client(codec: str, resumed: Checkpoint | None = None) -> Client:
    rule = CodedClient(make("fedavg", clients=2).clients, coding(codec))
    machine = Client(0, 1, rule, update(0), "schema", ClientSettings(9), resumed)
    machine.handle(Started(), 0)
    machine.handle(PeerJoined(1), 0)
    return machine


def answered(machine: Client, round: int, given: Vector, counted: int) -> CodedContribution:
    invite = Invite(round, "schema", (frozen(np.full(DIM, round, np.float32)),), counted)
    assert any(isinstance(one, Train) for one in machine.handle(Received(1, invite), 0))
    effects = machine.handle(Trained(round, given, 5, {"steps": 1}), 0)
    (said,) = [one.message for one in effects if isinstance(one, Send)]
    assert isinstance(said, CodedContribution)
    return said


def test_sent_and_left_out_are_all_that_was_given() -> None:
    """In float64 of the test, exactly: top-k sends elements as they are."""
    machine, sent = client("top-k:0.25"), np.zeros(DIM)
    given = [frozen(np.round(update(k) * 8).astype(np.float32)) for k in range(6)]  # whole: no rounding in sums
    for round, one in enumerate(given):
        said = answered(machine, round, one, round - 1)
        sent += coding("top-k:0.25").update_of(said.vectors[0], 0, round)
    assert (sent + machine.pending[0] == np.sum(given, axis=0, dtype=np.float64)).all()


def test_an_answer_that_was_not_counted_changes_nothing_of_what_is_left_out() -> None:
    counted, missed = client("top-k:0.25"), client("top-k:0.25")
    answered(counted, 0, update(1), -1)
    answered(missed, 0, update(1), -1)
    answered(missed, 1, update(2), 0)
    with_it = answered(counted, 2, update(3), 0).vectors[0]
    assert (answered(missed, 2, update(3), 0).vectors[0] == with_it).all()  # that of round 1 was not


def test_a_client_that_comes_back_goes_on_with_what_it_had_left_out() -> None:
    machine = client("top-k:0.25")
    invite = Invite(0, "schema", (update(9),), -1)
    machine.handle(Received(1, invite), 0)
    (kept,) = [one for one in machine.handle(Trained(0, update(1), 5, {}), 0) if isinstance(one, Checkpoint)]
    again = client("top-k:0.25", kept)
    ours, theirs = (answered(one, 1, update(2), 0) for one in (machine, again))
    assert (ours.vectors[0] == theirs.vectors[0]).all() and ours.length == theirs.length


# --- the coordinator --------------------------------------------------------------------------------------------------


def coordinator(codec: str) -> Coordinator[Any]:
    of = coding(codec) if codec else None
    about = make("fedavg", clients=2), Uniform(0, (0, 1), 2), frozen(np.zeros(DIM, np.float32)), "schema"
    machine = Coordinator(2, (0, 1), *about, CoordinatorSettings(3), coding=of)
    for event in (Started(), PeerJoined(0), PeerJoined(1)):
        machine.handle(event, 0)
    return machine


def given(payload: np.ndarray[Any, Any], round: int = 0) -> CodedContribution:
    return CodedContribution(round, payload.size, "schema", (frozen(payload),), 5, 1, 0.5)


def payload_of(codec: str, node: int) -> np.ndarray[Any, Any]:
    of = coding(codec)
    rule = CodedClient(make("fedavg", clients=2).clients, of)
    (payload,), _ = rule.upload((update(0),), (), Work(update(node + 1), 5, node=node))
    return np.array(payload)


BAD = {
    "too short": lambda one: one[:-1],
    "a place beyond the end": lambda one: np.concatenate([one[:12], np.full(one.size - 12, 255, np.uint8)]),
    "not finite": lambda one: np.concatenate([np.full(12, 255, np.uint8), one[12:]]),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_payload_that_no_client_makes_is_refused_and_the_round_goes_on(kind: str) -> None:
    machine, good = coordinator("top-k:0.25"), payload_of("top-k:0.25", 0)
    with pytest.raises(ProtocolError, match=r"round 0: the contribution of client 0: top-k:0\.25 of 12") as refused:
        machine.handle(Received(0, given(BAD[kind](good))), 0)
    assert refused.value.peer == 0
    machine.handle(Received(0, given(good)), 0)
    effects = machine.handle(Received(1, given(payload_of("top-k:0.25", 1))), 0)
    assert reports(effects)["aggregated"]["clients"] == 2 and machine.round == 1


@pytest.mark.parametrize("codec", ["", "top-k:0.25"])
def test_a_client_with_another_codec_is_told_so(codec: str) -> None:
    machine = coordinator(codec)
    whole = Contribution(0, "schema", (update(1),), 5, 1, 0.5)
    wrong = whole if codec else given(payload_of("top-k:0.25", 0))
    with pytest.raises(ProtocolError, match=r"answers with a (coded)?contribution") as refused:
        machine.handle(Received(0, wrong), 0)
    assert "coordinator.codec" in refused.value.advice


def test_scales_are_of_the_tensors_of_the_model() -> None:
    plan = compose.plan(load_experiment(federated(codec="sign", **OPEN)))
    of: Any = plan.with_segments((Segment("a", 0, (3,)), Segment("b", 3, (2, 2))))
    assert of.coding(7, np.dtype(np.float32)).codec.size(of.coding(7, np.dtype(np.float32)).layout, 0) == 4 * 2 + 1


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"codec": "zip"}, "coordinator.codec: there is no codec 'zip'"),
        ({"codec": "top-k:0"}, "above 0 and at most 1"),
        ({"codec": "top-k:0.1"}, "with a secure sum, which can only add elements that all clients draw equally"),
        ({"codec": "dgc:0.1", **OPEN}, "applies the momentum of single steps"),
        ({"codec": "sign", "algorithm": "median", **OPEN}, "with median, which compares whole updates"),
        ({"codec": "sign", "algorithm": "krum", **OPEN}, "with krum, which compares whole updates"),
        ({"codec": "sign", "algorithm": "fedbuff", **OPEN}, "do not learn which of their answers counted"),
        ({"codec": "sign", "algorithm": "scaffold", **OPEN}, "which sends 2 vectors that belong together"),
        ({"codec": "random-k:0.1", "privacy": {"unit": "client"}}, "whose clip and noise are of whole updates"),
    ],
)
def test_a_codec_that_does_not_go_with_the_rest_is_refused_with_advice(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        compose.plan(load_experiment(federated(**more)))
    assert refused.value.advice


def test_runs_without_a_codec_have_the_hash_that_they_had() -> None:
    assert "codec" not in compose.plan(load_experiment(federated())).fingerprint["coordinator"]  # type: ignore[operator]
