"""Parameter servers and mapreduce by codecs: one digest, exact bytes, and the same bits whoever dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import server_seeds
from resuming import from_the_middle
from test_parameter_server import COPIED, quadratic

from fedgossip import simulate
from fedgossip.algorithms.codecs.base import CodecTurn, VectorLayout
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.codecs.senders import Memoryless, MomentumCorrection, sender_of
from fedgossip.algorithms.codecs.sparse import DeepGradient
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.machine import PeerJoined, Received, Started
from fedgossip.core.messages import CodedPulled, CodedPush, Pulled, ShardPush
from fedgossip.core.records import PeerRow
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.parallel import shared_steps
from fedgossip.protocols.allreduce.coded_fragments import LEFT_OUT

NAMES = ["bf16", "int8:16", "top-k:0.1", "random-k:0.25", "dgc:0.1:2", "qsgd:7", "terngrad", "sign"]
FLOAT = np.dtype(np.float32)


def coded(codec: str, servers: int = 2, method: str = "parameter-server", **more: Any) -> dict[str, Any]:
    parallel = {"codec": codec, "method": method, **more.pop("parallel", {})}
    run = quadratic(servers=servers, parallel=parallel, **more)
    if method != "parameter-server":
        del run["parallel"]["server"]
    return run


def peer_rows(run: Any) -> list[tuple[int, int, int, int]]:
    found = [row for row in run.rows if isinstance(row, PeerRow)]
    return sorted((row.round, row.peer, row.bytes_sent, row.payload_sent) for row in found)


@pytest.mark.parametrize("pull", ["", "bf16", "int8:16"])
@pytest.mark.parametrize("codec", ["top-k:0.1", "dgc:0.1:2", *(pytest.param(n, marks=pytest.mark.long) for n in NAMES)])
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_rows(codec: str, pull: str) -> None:
    experiment = coded(codec, server={"pull_codec": pull})
    runs = [simulate(experiment, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    assert peer_rows(runs[0]) == peer_rows(runs[1])


@pytest.mark.parametrize("codec", ["top-k:0.1", "dgc:0.1:2", *(pytest.param(n, marks=pytest.mark.long) for n in NAMES)])
def test_mapreduce_has_one_digest_and_the_bytes_of_a_payload_for_each_worker(codec: str) -> None:
    runs = [simulate(coded(codec, method="mapreduce"), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest and peer_rows(runs[0]) == peer_rows(runs[1])
    of, layout = make_codec(codec), VectorLayout.of_length(40, FLOAT)
    assert all(sent == of.size(layout, round - 1) for round, peer, _, sent in peer_rows(runs[0]) if peer < 4)


@pytest.mark.parametrize("codec", ["int8:16", "sign", "qsgd:7"])
def test_a_worker_sends_a_payload_to_each_shard_and_gets_one_back(codec: str) -> None:
    """The model after the last round comes whole: 4 bytes an element."""
    experiment = coded(codec, server={"pull_codec": "bf16"})
    run = simulate(experiment)
    plan: Any = compose.plan(load_experiment(experiment))
    lengths = [shard.length for shard in plan.placement_of(40).shards]
    up = sum(make_codec(codec).size(VectorLayout.of_length(one, FLOAT), 0) for one in lengths)
    assert {sent for _, peer, _, sent in peer_rows(run) if peer < 4} == {up}
    given = [sent for round, peer, _, sent in peer_rows(run) if peer >= 4]
    assert sum(given) == 4 * (7 * 2 * 40 + 4 * 40)


def test_what_workers_are_given_is_cast_and_what_servers_keep_is_not() -> None:
    """The last model is that of steps along gradients at cast models, from which nothing was cut."""
    run = simulate(coded("", server={"pull_codec": "bf16"}), engine="stacked")
    model: Any = run.vectors[0]
    assert (model.view(np.uint32) & 0xFFFF).any()
    dense: Any = simulate(coded(""), engine="stacked").vectors[0]
    assert 0 < np.abs(model - dense).max() < 2**-8 * np.abs(dense).max()


@pytest.mark.parametrize("codec", ["sign", pytest.param("top-k:0.1", marks=pytest.mark.long)])
def test_what_is_left_out_comes_later_and_without_that_the_descent_ends_elsewhere(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"rounds": 200, "train": {"lr": 0.05}, "task": {"sigma": 0.0, "placement": "random"}}

    def end(of: str) -> Any:
        return simulate(coded(of, **more), engine="stacked").vectors[0]

    dense, remembered = end(""), end(codec)
    monkeypatch.setattr(shared_steps, "sender_of", lambda made, *_: Memoryless(made))
    assert np.linalg.norm(remembered - dense) < 0.2 * np.linalg.norm(end(codec) - dense)


# --- who dies, and what is lost ---------------------------------------------------------------------------------------


LATER = [pytest.param({"after": seconds}, marks=pytest.mark.long) for seconds in (0.05, 0.8)]


@pytest.mark.parametrize("after", [{}, *LATER])
def test_whenever_one_of_three_servers_dies_the_bits_are_those_of_an_undisturbed_run(after: dict[str, float]) -> None:
    server = {"replication": 2, "pull_codec": "int8:16"}
    experiment = coded("top-k:0.1", 3, parallel=COPIED["parallel"], server=server)
    whole = simulate(experiment)
    for at in np.linspace(0.001, 0.9 * whole.summary["seconds"], 6):
        faults = [{"kind": "crash", "peers": [5], "start": float(at), **after}]
        run = simulate({**experiment, "faults": faults})
        assert run.digest == whole.digest, f"dies at {at}"


@pytest.mark.parametrize("codec", ["top-k:0.1", pytest.param("random-k:0.25", marks=pytest.mark.long)])
def test_lost_late_and_doubled_messages_change_no_bit(codec: str) -> None:
    faults = [
        {"kind": "drop", "probability": 0.15},
        {"kind": "duplicate", "probability": 0.2},
        {"kind": "delay", "seconds": 0.05, "probability": 0.2},
    ]
    run = simulate(coded(codec, faults=faults, simulation={"jitter": 0.02}, server={"pull_codec": "bf16"}))
    assert run.digest == simulate(coded(codec, server={"pull_codec": "bf16"})).digest


def test_every_push_counts_once_under_seeds_of_faults() -> None:
    """Of gradients whose elements are all alike signs are exact, so a digit says how often a push counts."""
    outcomes = [server_seeds.run(seed, codec="sign") for seed in range(5)]
    assert not [(one.seed, one.verdict) for one in outcomes if one.verdict]


@pytest.mark.long
@pytest.mark.parametrize("codec", ["top-k:1", "sign"])
def test_every_push_counts_once_under_many_seeds_of_faults(codec: str) -> None:
    for seed in range(200):
        assert not server_seeds.run(seed, codec=codec).verdict, seed


def test_a_worker_that_comes_back_goes_on_with_what_it_had_left_out() -> None:
    experiment = coded("top-k:0.1", 2, parallel={"deadline": 5.0, "least_deadline": 3.0})
    whole = simulate(experiment)
    for at in np.linspace(0.05, 0.8 * whole.summary["seconds"], 4):
        faults = [{"kind": "crash", "peers": [1], "start": float(at), "after": 0.1}]
        assert simulate({**experiment, "faults": faults}).digest == whole.digest


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_stopped_simulation_goes_on_bit_for_bit_with_what_was_left_out(engine: str, tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(coded("dgc:0.1:1", server={"pull_codec": "bf16"})))
    whole, again = from_the_middle(plan, tmp_path, engine)
    assert again.digest == whole.digest and again.rows == whole.rows


# --- what comes -------------------------------------------------------------------------------------------------------


def machine(node: int, **more: Any) -> Any:
    plan = compose.plan(load_experiment(coded("top-k:0.5", 1, server={"pull_codec": "bf16"}, **more)))
    made: Any = plan.machine(node, frozen(np.zeros(40, np.float32)), "s")
    made.handle(Started(), 0)
    for other in plan.partners(node):
        made.handle(PeerJoined(other), 0)
    return made


def payload() -> Vector:
    codec, layout = make_codec("top-k:0.5"), VectorLayout.of_length(40, FLOAT)
    return codec.encode(np.arange(40, dtype=np.float32), layout, CodecTurn(1, 0, 0, 1))


def push(part: Vector) -> CodedPush:
    return CodedPush(0, 0, 0, 0, 0, 8.0, 0, part.size, "s", (frozen(part),))


def test_a_push_that_no_worker_makes_is_refused_and_the_right_one_counts_after_it() -> None:
    server, good = machine(4), payload()
    bad = [good[:-1], np.full_like(good, 255), np.concatenate([np.full(4, 255, np.uint8), good[4:]])]
    for one in bad:
        with pytest.raises(ProtocolError, match="server 4, shard 0: a push of worker 0") as refused:
            server.handle(Received(0, push(one)), 0)
        assert refused.value.peer == 0 and server.shards[0].clocks[0] == 0
    dense = ShardPush(0, 0, 0, 0, 0, 8.0, 0, 40, "s", (frozen(np.zeros(40, np.float32)),))
    with pytest.raises(ProtocolError, match="without its codec"):
        server.handle(Received(0, dense), 0)
    server.handle(Received(0, push(good)), 0)
    assert server.shards[0].clocks[0] == 1


def test_a_shard_that_no_server_gives_is_refused() -> None:
    worker = machine(0)
    worker.phase, worker.wanted = "pulling", 1
    bad = frozen(np.full(80, 255, np.uint8))  # bf16 of nan
    for one, words in (
        (CodedPulled(0, 0, 1, 1, 1, 0, 0, 80, "s", (bad,)), "bf16 of 40 elements"),
        (CodedPulled(0, 0, 8, 8, 8, 0, 0, 80, "s", (bad,)), "by a codec"),  # the last comes whole
        (Pulled(0, 0, 1, 1, 1, 0, 0, 40, "s", (frozen(np.zeros(40, np.float32)),)), "without its codec"),
    ):
        with pytest.raises(ProtocolError, match=words):
            worker.handle(Received(4, one), 0)
    assert not worker.pulled.here


def test_a_checkpoint_holds_what_a_worker_left_out() -> None:
    experiment = coded("top-k:0.1")
    plan = compose.plan(load_experiment(experiment))
    made: Any = plan.machine(0, frozen(np.zeros(40, np.float32)), "s")
    assert set(made.parts.saved) == {f"{LEFT_OUT}0"}


# --- dgc --------------------------------------------------------------------------------------------------------------


def test_dgc_holds_each_gradient_to_its_share_of_the_length_of_the_mean() -> None:
    """1/sqrt(4) of clip_norm = 3: a gradient of length 5 is gathered as one of 1.5, one of length 1 as it is."""
    plan: Any = compose.plan(load_experiment(coded("dgc:0.5:0", 1, train={"clip_norm": 3.0})))
    sender = shared_steps.gradient_sender(plan.experiment, make_codec("dgc:0.5:0"))
    assert isinstance(sender, MomentumCorrection) and sender.longest == 1.5
    long, short = (frozen(np.array(one, np.float32)) for one in ([3, 4], [0.6, 0.8]))
    layout = VectorLayout.of(long)
    for given, expected in ((long, [0, 1.2]), (short, [0, 0.8])):
        said, _ = sender.send(sender.start(layout), given, layout, CodecTurn(0, 0, 0))
        sent = sender.codec.decode(said, layout, CodecTurn(0, 0, 0))
        np.testing.assert_allclose(sent, expected, rtol=1e-6)


def test_dgc_without_a_clip_is_as_it_was() -> None:
    assert sender_of(DeepGradient("dgc:0.5"), 0.9) == MomentumCorrection(DeepGradient("dgc:0.5"), 0.9)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"codec": "zip"}, "parallel.codec: there is no codec 'zip'"),
        ({"server": {"pull_codec": "zip"}}, "parallel.server.pull_codec: there is no codec 'zip'"),
        ({"server": {"pull_codec": "top-k:0.1"}}, "leaves too much of a model out, or is random"),
        ({"server": {"pull_codec": "int8:16:stochastic"}}, "leaves too much of a model out, or is random"),
        ({"method": "ring", "server": {"pull_codec": "bf16"}}, "parallel.server.pull_codec = 'bf16' with"),
        ({"codec": "dgc:0.1", "descent": "adam"}, "applies the momentum of sgd itself"),
    ],
)
def test_a_codec_that_does_not_go_with_the_rest_is_refused_with_advice(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        load_experiment({"parallel": {"workers": 4, "method": "parameter-server", **more}})
    assert refused.value.advice


def test_a_table_has_filters_and_no_codec() -> None:
    task = {"kind": "sparse-logistic", "dim": 100}
    with pytest.raises(ConfigError, match="codec 'sign' of a table"):
        simulate({"rounds": 2, "task": task, "parallel": coded("sign")["parallel"]})


def test_runs_without_a_codec_have_the_hash_that_they_had() -> None:
    content = load_experiment(quadratic()).to_dict()["parallel"]
    assert "pull_codec" not in content["server"] and "codec" not in content
    assert digest([simulate(quadratic()).vectors[0]]) == digest([simulate(coded("")).vectors[0]])  # type: ignore[list-item]
