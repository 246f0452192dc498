"""CHOCO-SGD: the same bits in every driver, the mean kept whatever is lost, and agreement where sparse models stall."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fault_seeds
import numpy as np
import pytest
from over_sockets import run_over_sockets
from resuming import from_the_middle

from fedgossip import simulate
from fedgossip.algorithms.codecs.base import CodecTurn, VectorLayout
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.codecs.sparse import largest
from fedgossip.algorithms.gossip.choco import Choco
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import PeerJoined, Received, Send, Started, Trained
from fedgossip.core.messages import Account, CodedModel, Model
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.gossip.replicas import WAITING, ReplicaGossip
from fedgossip.topology import build, resolve

CODECS = {
    "top-k:0.1": 0.1,
    "top-k:0.4": 0.3,
    "sign": 0.2,
    "int8:16": 0.9,
    "bf16": 1.0,
    "fp16": 1.0,
    "random-k:0.4": 0.2,
    "qsgd:7": 0.2,
}
"""Each with a gamma."""


def choco(codec: str, gamma: float | str | None = None, rounds: int = 12, **more: Any) -> dict[str, Any]:
    options = {"codec": codec, "gamma": CODECS[codec] if gamma is None else gamma}
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": 30, "sigma": 0.1, "placement": "random"},
        "topology": {"graph": "ring", "n": 6},
        "algorithm": {"name": "choco", "options": options, "deadline": 1e5},
        **more,
    }


@pytest.mark.parametrize("codec", CODECS)
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_rows(codec: str) -> None:
    runs = [simulate(choco(codec), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (
        sorted((row.round, row.peer, row.bytes_sent, row.payload_sent) for row in run.rows if isinstance(row, PeerRow))
        for run in runs
    )
    assert ours == theirs
    size = make_codec(codec).size(VectorLayout.of(runs[0].vectors[0]), 0)  # type: ignore[arg-type]
    assert {sent for round, *_, sent in ours if round} == {2 * size}, "from the first round on, to both neighbours"


@pytest.mark.sockets
def test_bits_over_sockets_are_those_of_the_simulator() -> None:
    plan = compose.plan(load_experiment(choco("top-k:0.4")))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == simulate(choco("top-k:0.4")).digest


def test_a_codec_that_leaves_nothing_out_makes_it_d_psgd_to_rounding() -> None:
    whole, like = choco("top-k:1", 1.0), choco("bf16")
    like["algorithm"] = {"name": "dsgd", "deadline": 1e5}
    ends = [np.stack(simulate(one, engine="stacked").vectors) for one in (whole, like)]  # type: ignore[arg-type]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-5)


def averaging(codec: str, gamma: float | str, rounds: int, dim: int, graph: str = "ring") -> dict[str, Any]:
    task = {"kind": "averaging", "dim": dim, "dtype": "float64"}
    every = {"every": rounds}
    return choco(codec, gamma, rounds, task=task, topology={"graph": graph, "n": 16}, eval=every)


def test_sparse_changes_agree_where_sparse_models_stall() -> None:
    """A tenth of the elements, on a ring of 16: to 1e-6; models of which a tenth is sent stay 1 and more apart."""
    run = simulate(averaging("top-k:0.1", 0.3, 1000, 60), engine="stacked")
    assert run.network()[-1].consensus_distance < 1e-6 < run.network()[0].consensus_distance
    assert stalled(0.1, 60, 1000) > 1


# --- gamma where none is named ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["complete", "star", pytest.param("hypercube", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("codec", "dim", "rounds"),
    [
        ("top-k:0.1", 60, 150),
        ("top-k:0.4", 30, 60),
        ("sign", 30, 60),
        ("qsgd:3", 60, 60),
        ("random-k:0.1", 60, 150),
    ],
)
def test_averaging_by_the_practical_gamma_comes_together(graph: str, codec: str, dim: int, rounds: int) -> None:
    """Where gamma is too large peers drift apart by orders of magnitude, not by chance: see the next test."""
    run = simulate(averaging(codec, "practical", rounds, dim, graph), engine="stacked")
    assert run.network()[-1].consensus_distance < 0.6 * run.network()[0].consensus_distance


def test_random_k_comes_together_by_its_gamma_and_drifts_apart_by_four_times_as_much() -> None:
    """On the complete graph, b = 1: c / (2 - c); twice that is where mean squares grow, and single runs a little on."""
    gamma, ends = gamma_of("random-k:0.1", "complete", 60), []
    assert gamma == pytest.approx(0.1 / 1.9, rel=0.05)
    for share in (1, 4):
        run = simulate(averaging("random-k:0.1", share * gamma, 300, 60, "complete"), engine="stacked")
        ends.append(run.network()[-1].consensus_distance / run.network()[0].consensus_distance)  # type: ignore[operator]
    assert ends[0] < 1e-4 and ends[1] > 10


def test_twice_the_practical_gamma_is_too_much_on_a_complete_graph() -> None:
    """So the rule leaves less than a factor of two."""
    run = simulate(
        averaging("top-k:0.1", 2 * gamma_of("top-k:0.1", "complete", 60), 200, 60, "complete"), engine="stacked"
    )
    assert not run.network()[-1].consensus_distance < run.network()[0].consensus_distance


def gamma_of(codec: str, graph: str, dim: int, rule: str = "practical") -> float:
    plan: Any = compose.plan(load_experiment(averaging(codec, rule, 1, dim, graph)))
    return float(plan.algorithm.gamma(dim))


def test_gamma_follows_from_codec_and_graph_as_told() -> None:
    """The ring of 16 with Metropolis weights has the eigenvalues 1/3 + 2/3 cos(2 pi k / 16): g and b by hand."""
    gap, norm = 2 / 3 * (1 - math.cos(math.pi / 8)), 4 / 3
    assert gamma_of("top-k:0.1", "ring", 60) == pytest.approx(0.2 / (1.2 * norm), rel=0.05)
    below = 16 * gap + gap**2 + 4 * norm**2 + 2 * gap * norm**2 - 8 * gap * 0.1
    assert gamma_of("top-k:0.1", "ring", 60, "theorem") == pytest.approx(gap**2 * 0.1 / below, rel=0.05)
    assert gamma_of("sign", "complete", 60) == pytest.approx(4 / math.pi / (1 + 4 / math.pi), rel=0.05)
    t = 1 + min(60 / 49, math.sqrt(60) / 7)  # of QSGD with 7 levels: E |Q(v)|^2 <= t |v|^2
    assert gamma_of("qsgd:7", "complete", 60) == pytest.approx(2 / t / (1 + 2 / t), rel=0.05)
    assert gamma_of("bf16", "complete", 60) == pytest.approx(2 / 3, rel=0.05)


def test_a_rule_is_told_before_anything_runs() -> None:
    plan: Any = compose.plan(load_experiment(choco("top-k:0.1", "practical")))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    told = plan.outlook(task)
    assert "contraction 0.1; mixed with gamma 0.13" in told.lines[1]
    rows = [
        row for row in simulate(choco("top-k:0.1", "practical")).rows if isinstance(row, PeerRow) and row.round == 1
    ]
    assert told.bytes_per_round == sum(
        row.bytes_sent for row in rows
    )  # later ones tell of a round that is done: 6 more


@pytest.mark.long
@pytest.mark.parametrize(("gamma", "rounds"), [(0.03, 12_000), ("practical", 20_000)])
def test_one_of_a_hundred_elements_is_enough_to_agree(gamma: float | str, rounds: int) -> None:
    run = simulate(averaging("top-k:0.01", gamma, rounds, 100), engine="stacked")
    assert run.network()[-1].consensus_distance < 1e-6
    assert stalled(0.01, 100, 12000) > 1


def stalled(share: float, dim: int, rounds: int) -> float:
    """How far peers end apart that mix the largest elements of their models, and nothing else of them."""
    mixing = np.asarray(build(resolve("ring", 16), "metropolis").matrix())
    x, k = np.random.default_rng(0).standard_normal((16, dim)), round(share * dim)
    for _ in range(rounds):
        said = np.zeros_like(x)
        for row, own in zip(said, x, strict=True):
            places = largest(own, k)
            row[places] = own[places]
        x = x + (mixing @ said - said)
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()))


# --- what is lost ---------------------------------------------------------------------------------------------------


def check_seeds(seeds: range) -> int:
    """Run seeds of the fault simulation by this algorithm; return how many changes were missed."""
    ways = (
        {"codec": "top-k:0.5", "gamma": 0.4},
        {"codec": "sign", "gamma": 0.3},
        {"codec": "qsgd:3", "gamma": 0.3},
        {"codec": "random-k:0.5", "gamma": 0.3},
    )
    return fault_seeds.changes_missed(seeds, "choco", lambda seed: ways[seed % 4])


def test_every_seed_ends_and_keeps_the_mean_or_reports_what_it_lost() -> None:
    assert check_seeds(range(40)) > 10


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_seeds(block: int) -> None:
    check_seeds(range(40 + 100 * block, 140 + 100 * block))


@pytest.mark.parametrize("codec", ["top-k:0.1", "qsgd:7"])
def test_replicas_are_what_their_owners_have_after_losses(codec: str) -> None:
    """Messages are lost in the first half of the run; at its end every neighbour's replica is its owner's version."""
    faults = [{"kind": "drop", "probability": 0.2, "start": 0.0, "stop": 0.6}]
    machines: list[Any] = []
    content = choco(codec, rounds=30, faults=faults)
    content["algorithm"] |= {"deadline": 3.0, "least_deadline": 0.2}
    plan: Any = compose.plan(load_experiment(content))
    made = type(plan).seated

    def seated(self: Any, seat: Any) -> Any:
        machines.append(made(self, seat))
        return machines[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(plan), "seated", seated)
        run = simulate_plan(plan)
    assert any(isinstance(row, EventRow) and row.name == "change_missed" for row in run.rows)
    peers = {machine.machine.node: machine for machine in machines}
    compared = 0
    for peer in peers.values():
        for other, (version, known) in peer.replicas.items():
            theirs = peers[other].learner.state
            if version == theirs.version:
                assert (known == theirs.known).all()
                compared += 1
    assert compared == 12


def test_a_stopped_simulation_goes_on_bit_for_bit(tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(choco("top-k:0.1")))
    whole, again = from_the_middle(plan, tmp_path)
    assert again.digest == whole.digest and again.rows == whole.rows


# --- one peer by hand -----------------------------------------------------------------------------------------------


def peer() -> tuple[ReplicaGossip, Any]:
    """Peer 0 of the ring, in its first round, both of its links up, its own change sent."""
    plan = compose.plan(load_experiment(choco("top-k:0.1", rounds=9)))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    machine: Any = plan.machine(0, task.initial(0), task.schema)
    for event in (Started(), PeerJoined(1, 0), PeerJoined(5, 0)):
        machine.handle(event, 0)
    sent = machine.handle(Trained(0, frozen(np.ones(30, np.float32)), 1, {}), 0)
    assert [type(one.message) for one in sent if isinstance(one, Send)] == [CodedModel, CodedModel]
    return machine, task


def change(task: Any, round: int, base: int, value: float, **more: Any) -> CodedModel:
    vector = np.full(30, value, np.float32)
    layout, turn = VectorLayout.of(vector), CodecTurn(0, 0, round)
    payload = frozen(make_codec("top-k:0.1").encode(vector, layout, turn))
    return CodedModel(round, base, payload.size, task.schema, (payload,), **more)


def test_a_change_that_lacks_the_one_before_waits_and_is_made_whole_when_that_is_here() -> None:
    machine, task = peer()
    machine.handle(Received(1, change(task, 1, 0, 2.0)), 0)
    assert machine.replicas[1][0] == -1
    machine.handle(Received(1, change(task, 0, -1, 1.0)), 0)
    version, known = machine.replicas[1]
    assert version == 1 and known[:3].tolist() == [3.0, 3.0, 3.0] and not machine.waiting[1]


def test_a_model_that_is_whole_takes_the_place_of_a_change_that_is_lost() -> None:
    machine, task = peer()
    machine.handle(Received(1, change(task, 1, 0, 2.0)), 0)
    whole = Model(0, task.schema, (np.full(30, 5.0, np.float32),))
    machine.handle(Received(1, whole), 0)
    assert machine.replicas[1][0] == 1 and machine.replicas[1][1][:4].tolist() == [7.0, 7.0, 7.0, 5.0]


def test_a_change_of_our_round_that_cannot_be_made_whole_is_asked_for_once() -> None:
    machine, task = peer()
    machine.replicas[1] = -2, machine.first  # as of a partner in a new life
    asked = [machine.handle(Received(1, change(task, 0, -1, 1.0)), 0) for _ in range(2)]
    found = [[one.message for one in sent if isinstance(one, Send)] for sent in asked]
    assert [(one.round, one.asks) for one in found[0] if isinstance(one, Account)] == [(0, True)] and not found[1]


def test_no_more_changes_wait_than_the_limit() -> None:
    machine, task = peer()
    for round in range(1, 9):
        machine.handle(Received(1, change(task, round, round - 1, 1.0)), 0)
    assert len(machine.waiting[1]) <= WAITING


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"base": 3, "round": 3}, "from version 3 to 3"),
        ({"base": -1, "round": 9}, "of 9 rounds"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(wrong: dict[str, int], words: str) -> None:
    machine, task = peer()
    before = dict(machine.replicas)
    with pytest.raises(ProtocolError, match=words):
        machine.handle(Received(1, change(task, wrong["round"], wrong["base"], 1.0)), 0)
    assert machine.replicas == before and not machine.waiting


def test_a_payload_that_no_codec_made_is_refused_and_changes_nothing() -> None:
    machine, task = peer()
    bad = change(task, 0, -1, 1.0)
    bad.vectors[0].flags.writeable = True
    bad.vectors[0][-1] = 255
    with pytest.raises(ProtocolError, match=r"from node 1: top-k:0\.1 of 30 elements") as refused:
        machine.handle(Received(1, bad), 0)
    assert refused.value.peer == 1 and machine.replicas[1][0] == -1


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"options": {"codec": "terngrad"}}, "it is no contraction"),
        ({"options": {"codec": "top-k:2"}}, "above 0 and at most 1"),
        ({"options": {"gamma": 0}}, "gamma is 0"),
        ({"options": {"gamma": 1.5}}, "gamma is 1.5"),
        ({"options": {"gamma": "theory"}}, "no rule 'theory' for gamma"),
        ({"options": {"gap": 0.5}}, "no option 'gap'"),
        ({"options": {"gama": 0.5}}, "no option 'gama'"),
        ({"mode": "async"}, "no async mode"),
        ({"combine": "median"}, "no meaning but in a sum"),
        ({"private": True}, "private"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_advice(algorithm: dict[str, Any], words: str) -> None:
    content = choco("sign")
    content["algorithm"] = {"name": "choco", **algorithm}
    with pytest.raises(ConfigError, match=words) as refused:
        compose.plan(load_experiment(content))
    assert refused.value.advice


@pytest.mark.parametrize("graph", ["one-peer-exponential", "directed-exponential"])
def test_a_graph_that_changes_or_that_is_not_the_same_both_ways_is_refused(graph: str) -> None:
    with pytest.raises(ConfigError, match="choco"):
        compose.plan(load_experiment(choco("sign", topology={"graph": graph, "n": 8})))


def test_the_source_of_one_peer_is_that_of_all() -> None:
    algorithm, x = Choco("sign", 0.5), np.random.default_rng(1).standard_normal((3, 20))
    from fedgossip.algorithms.gossip.base import Step

    together = algorithm.trained(algorithm.start(frozen(x)), None, Step(0))[1][0]
    alone = [algorithm.trained(algorithm.start(frozen(row)), None, Step(0))[1][0] for row in x]
    assert (np.stack(alone) == together).all()


def test_qsgd_divided_by_t_is_the_contraction_that_gamma_takes() -> None:
    """Koloskova, Stich and Jaggi 2019: E |Q(v) / t - v|^2 <= (1 - 1 / t) |v|^2, here over 400 rounds."""
    codec, d = Choco("qsgd:2").codec, 100
    v = frozen(np.random.default_rng(3).standard_normal(d).astype(np.float32))
    layout, off = VectorLayout.of(v), []
    for round in range(400):
        turn = CodecTurn(0, 0, round)
        off.append(float(np.square(codec.decode(codec.encode(v, layout, turn), layout, turn) - v).sum()))
    t = 1 + min(d / 4, math.sqrt(d) / 2)
    assert codec.contraction(layout) == pytest.approx(1 / t)
    assert np.mean(off) < (1 - 1 / t) * float(v @ v)
