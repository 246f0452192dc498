"""Advice: the rates on quadratics, the three regimes, times held to the simulator, and what cannot be advised on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Output, in_process, typed

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.collectives.names import EqualLinks
from fedgossip.cli.topology.advise import sentence
from fedgossip.lab.advise import candidates
from fedgossip.lab.advise.candidates import (
    GRAPHS,
    PRESETS,
    AdviceAsked,
    AdvisedLinks,
    front,
    links_of,
    times_of,
    verified,
    ways,
)
from fedgossip.lab.advise.mesh import MeshAsked, StepCosts, measured_links
from fedgossip.lab.advise.mesh import advised as advised_meshes
from fedgossip.lab.advise.rates import alone, best_rate, everybody, neighbours_of, rounds_of_one_merge
from fedgossip.lab.costs.base import FittedLink, neighbours
from fedgossip.learning.processes.step_costs import LINKED
from fedgossip.learning.settings import TrainSettings
from fedgossip.topology import forecast_of, resolve_schedule

RESNET_50 = 25.6e6 * 4
"""Bytes."""


def asked(n: int = 32, size: float = RESNET_50, links: str = "lan", compute: str = "0.05") -> AdviceAsked:
    return AdviceAsked(n, size, links_of(links, n), times_of(compute))


def seconds(what: AdviceAsked, graphs: Sequence[str] = GRAPHS) -> dict[str, float]:
    return {way.name: way.seconds for way in ways(what, graphs)}


@pytest.mark.parametrize(
    ("graph", "eta", "rate"),
    [("ring", 0.091382, 0.1256646), ("one-peer-exponential", 0.11121, 0.1658634), ("hypercube", 0.183888, 0.2436831)],
)
def test_the_best_step_of_a_graph_is_that_of_the_fixed_point(graph: str, eta: float, rate: float) -> None:
    """n = 32, zeta = 50: the fixed point of Vogels et al. 2022, solved apart with numpy."""
    known = neighbours_of(resolve_schedule(graph, 32))
    assert known is not None
    found = best_rate(known, 50)
    assert found.rate == pytest.approx(rate, rel=1e-3) and found.eta == pytest.approx(eta, rel=0.02)


def test_alone_a_step_removes_one_part_in_zeta_and_together_n_parts_in_zeta_and_n() -> None:
    """r = 2 eta - zeta eta² at eta = 1/zeta; with the mean of n gradients eta = n / (n + zeta - 1), r the same."""
    assert best_rate(alone, 50).rate == pytest.approx(1 / 50, rel=1e-6)
    assert best_rate(everybody(32), 50).rate == pytest.approx(32 / (32 + 49), rel=1e-6)


@pytest.mark.parametrize("graph", ["torus", "directed-exponential", "el-oracle:4", "one-peer-exponential", "base:1"])
def test_effective_neighbours_are_those_of_the_forecast(graph: str) -> None:
    schedule = resolve_schedule(graph, 25)
    known = neighbours_of(schedule)
    for gamma in (0.5, 0.9, 0.951):
        told = forecast_of(schedule, gamma).n_w
        assert known is not None and told is not None
        assert known(gamma) == pytest.approx(told, rel=2e-3)


def test_one_merge_at_the_end_is_what_a_mean_of_lone_trainings_is() -> None:
    """E||mean||² of x <- x - eta h h'x, by drawing, after as many steps as are told for what is left."""
    n, zeta, eta, share = 8, 12, 0.5 / 12, 0.3
    random = np.random.default_rng(0)
    x = np.ones((3000, 1, zeta - 2)).repeat(n, axis=1)
    left = [1.0]
    while left[-1] > share**2:
        h = random.standard_normal(x.shape)
        x = x - eta * h * np.sum(h * x, axis=2, keepdims=True)
        left.append(float(np.mean(np.sum(x.mean(axis=1) ** 2, axis=1))) / (zeta - 2))
    t = len(left) - 1
    told = (1 - 1 / n) * (1 - eta) ** (2 * t) + ((1 - eta) ** 2 + (zeta - 1) * eta**2) ** t / n
    assert told == pytest.approx(left[-1], rel=0.03)
    assert rounds_of_one_merge(n, zeta, share) <= t + 1, "whose step is the best"


def test_three_regimes_of_a_large_model() -> None:
    """n = 32, 25.6 million parameters, 50 ms a step, 1e-3 of the distance: the formulas by hand."""
    cluster, lan, wan = (seconds(asked(links=name)) for name in ("cluster", "lan", "wan"))
    assert cluster["all-reduce, ring"] == pytest.approx(1.9, rel=0.01)
    known = neighbours_of(resolve_schedule("directed-exponential", 32))
    assert known is not None
    alone_seconds = 0.05 + neighbours(5, RESNET_50, PRESETS["cluster"])
    assert best_rate(known, 50).rounds(1e-3) * alone_seconds == pytest.approx(4.4, rel=0.01), "one round alone"
    assert 4.4 < cluster["directed-exponential"] < 5.0 and min(cluster, key=lambda name: cluster[name])[:3] == "all"
    assert lan["all-reduce, ring"] == pytest.approx(7.4, rel=0.01)
    assert lan["one-peer-exponential"] == pytest.approx(10.1, rel=0.01)
    assert wan["all-reduce, ring"] == pytest.approx(489, rel=0.01)
    assert wan["one-peer-exponential"] == pytest.approx(630, rel=0.01)
    assert min(wan, key=lambda name: wan[name]) == "alone"


def test_gossip_is_first_where_latency_is_long_and_the_model_small() -> None:
    what = asked(256, 0.2e6, "0.05,12.5e6")
    found = ways(what)
    assert found[0].kind == "gossip" and sentence("0.001 of the distance", found).startswith("Gossip on ")


def test_one_straggler_in_each_round_turns_all_reduce_into_gossip() -> None:
    graphs = ["ring", "hypercube", "one-peer-exponential", "directed-exponential"]
    steady, straggling = (ways(asked(size=1e4, compute=c), graphs) for c in ("0.05", "straggler:10:0.05"))
    assert steady[0].kind != "gossip" and straggling[0].kind == "gossip"


@pytest.mark.parametrize("n", [16, 64])
def test_what_gossip_is_compared_with_is_always_there(n: int) -> None:
    names = [way.name for way in ways(asked(n), ["ring"])]
    assert set(names) == {
        "ring", "all-reduce, ring", "all-reduce, tree", "all-reduce, halving-doubling", "parameter server",
        "one merge at the end", "alone",
    }  # fmt: skip


def test_the_front_has_what_nothing_beats() -> None:
    found = ways(asked())
    best = front(found)
    for way in found:
        better = [o for o in found if o.seconds <= way.seconds and o.payload <= way.payload
                  and (o.survives or 0) >= (way.survives or 0) and o is not way]  # fmt: skip
        assert (way.name in best) or better


QUICK = ("ring", "regular:3", "star", "one-peer-exponential")


@pytest.mark.parametrize("graph", [g if g in QUICK else pytest.param(g, marks=pytest.mark.long) for g in GRAPHS])
def test_a_round_takes_in_the_simulator_what_was_told(graph: str) -> None:
    """Messages of 200 kB: two per cent, headers and all."""
    what = asked(16, 2e5, "0.005,1e7")
    (gossip,) = (way for way in ways(what, [graph]) if way.kind == "gossip")
    assert candidates.round_in_the_simulator(what, gossip) == pytest.approx(gossip.round_seconds, rel=0.02)


def test_the_rate_that_is_told_is_the_rate_that_is_measured() -> None:
    what = asked(8, 2e5)
    ring, gossip, rate = verified(what, ways(what, ["hypercube"]))
    assert ring.holds and gossip.holds
    assert rate.what.startswith("rate of") and rate.holds and 0 < rate.predicted < 1


def test_a_slow_link_slows_those_that_use_it(tmp_path: Path) -> None:
    pairs = [f"{u},{v},0.001,{1e6 if (u, v) == (0, 1) else 1e9}" for u in range(8) for v in range(8) if u != v]
    (tmp_path / "links.csv").write_text("\n".join(["from,to,latency,rate", *pairs]))
    found = seconds(AdviceAsked(8, 1e6, links_of(str(tmp_path / "links.csv"), 8), times_of("0.05")), ["ring"])
    even = seconds(AdviceAsked(8, 1e6, links_of("0.001,1e9", 8), times_of("0.05")), ["ring"])
    assert found["ring"] > 10 * even["ring"] and found["alone"] == even["alone"]
    assert AdvisedLinks(links_of("lan", 8).usual).over([(2, 3)]) == links_of("lan", 8).usual


def test_the_longest_of_n_exponential_times_is_a_harmonic_number() -> None:
    assert times_of("exp:2").longest(16) == pytest.approx(2 * 3.380729, rel=1e-6)
    assert times_of("straggler:10:0.5").longest(16) == 5.0


def advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Output:
    return in_process(["topology", "advise", "--n", "16", "--parameters", "1e4", *words], tmp_path, monkeypatch, capsys)


def test_the_command_says_first_what_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = advised(tmp_path, monkeypatch, capsys, "--graphs", "ring torus", "--fail", "2")
    assert said.code == 0 and " is first: " in said.out.splitlines()[0]
    assert "  torus " in said.out and "  ring " not in said.out
    told = json.loads(advised(tmp_path, monkeypatch, capsys, "--json").out)
    assert told["ways"][0]["seconds"] == min(way["seconds"] for way in told["ways"])
    assert all(math.isfinite(way["seconds"]) for way in told["ways"])


DIGITS = """
rounds = 24
[topology]
graph = "ring"
n = 8
[data]
partition = { kind = "dirichlet", alpha = 1.0 }
[train]
local_steps = 5
batch_size = 16
device = "cpu"
[eval]
every = 2
"""


def test_advice_on_data_counts_the_rounds_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Held against the runs: the round in which the mean peer is there, to an evaluation; two vectors cost twice."""
    (tmp_path / "e.toml").write_text(DIGITS)
    words = ["--target", "accuracy:0.85", "--graphs", "torus:2x4 base:1", "--algorithms", "dsgd gradient-tracking"]
    typed = ["topology", "advise", "--data", "e.toml", *words, "--links", "wan", "--json"]
    told = {way["way"]: way for way in json.loads(in_process(typed, tmp_path, monkeypatch, capsys).out)["ways"]}
    for algorithm in ("dsgd", "gradient-tracking"):
        changed = ["topology.graph=base:1", f"algorithm.name={algorithm}"]
        run = simulate(load_experiment(tmp_path / "e.toml", changed), engine="stacked")
        there = [row.round for row in run.network() if (row.score_mean_peer or 0) >= 0.85]
        assert abs(told[f"base:1, {algorithm}"]["rounds"] - min(there)) <= 2
    one, two = (told[f"base:1, {name}"] for name in ("dsgd", "gradient-tracking"))
    assert two["bytes_of_busiest"] / two["rounds"] == pytest.approx(2 * one["bytes_of_busiest"] / one["rounds"])
    lone = told["alone"]["rounds"]  # none: never, in these rounds
    assert lone is None or lone > told["base:1, dsgd"]["rounds"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "e.toml", "--target", "accuracy:0.9"], "do not go with --data"),
        (["--target", "accuracy:0.9"], "a score goes with --data"),
        (["--algorithms", "d2"], "--algorithms goes with --data"),
        (["--links", "wann"], "links 'wann' cannot be read"),
        (["--links", "0.1,-3"], "-3 bytes per second"),
        (["--links", "nowhere.csv"], "nowhere.csv: no such file"),
        (["--compute", "soon"], "compute 'soon' cannot be read"),
        (["--compute", "straggler:0.1:1"], "cannot be read"),
        (["--graphs", "rings"], "no graph is called 'rings'"),
        (["--target", "2"], "--target"),
        (["--n", "1"], "--n"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    said = advised(tmp_path, monkeypatch, capsys, *words)
    assert said.code == 2 and told in said.err and len(said.errors) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("from,to\n0,1\n", "no column 'latency'"),
        ("from,to,latency,rate\n0,1,1_0,1\n", "line 2, column 'latency': '1_0' is not a number"),
        ("from,to,latency,rate\n0,99,1,1\n", "line 2: a link of 0 and 99"),
        ("from,to,latency,rate\n0,1,1,0\n", "line 2: 1 s and 0 bytes"),
        ("from,to,latency,rate\n", "no rows"),
    ],
)
def test_a_file_of_links_is_read_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str, told: str
) -> None:
    (tmp_path / "links.csv").write_text(content)
    said = advised(tmp_path, monkeypatch, capsys, "--links", "links.csv")
    assert said.code == 2 and told in said.err and len(said.errors) == 1


def experiment_of_a_mesh(folder: Path, model: str = "mlp:64-128-64-10", data: str = "digits", batch: int = 32) -> Path:
    path = folder / "mesh.toml"
    path.write_text(
        f'data = {{ source = "{data}" }}\nmodel = {{ source = "{model}" }}\ntrain = {{ batch_size = {batch} }}\n'
        '[topology]\ngraph = "ring"\nn = 2\n'
    )
    return path


@pytest.fixture
def advise_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Output]:
    def typed(*words: str) -> Output:
        given = ["advise", "mesh", "mesh.toml", "--processes", "4", *words]
        return in_process(given, tmp_path, monkeypatch, capsys)

    return typed


def meshes_of(said: Output) -> dict[tuple[str, str], dict[str, Any]]:
    assert said.code == 0, said.err
    return {(one["name"], one["how"]): one for one in json.loads(said.out)["meshes"]}


def test_the_steps_of_meshes_are_those_of_the_formulas_and_what_does_not_fit_is_refused(
    tmp_path: Path, advise_mesh: Callable[..., Output]
) -> None:
    """mlp:64-128-64-10, 32 rows, 2 pieces; b = 1 MB/s, a = 1 ms, 1 ms a row: each term by hand."""
    experiment_of_a_mesh(tmp_path)
    words = ["--links", "0.001,1e6", "--compute", "0.032"]
    words += ["--set", "train.microbatches=2", "--json"]
    found = meshes_of(advise_mesh(*words, "--cores", "4", "--memory", "150kB"))
    parameters = 4 * (65 * 128 + 129 * 64 + 65 * 10)

    def ring(n: int, size: float) -> float:
        return 2 * (n - 1) * (0.001 + size / n / 1e6)

    whole = found["4 x 1 x 1 x 1", "ddp"]
    assert whole["work"] == pytest.approx(0.008) and whole["messages"] == pytest.approx(ring(4, parameters))
    assert whole["memory"] == 2 * parameters
    rows = found["4 x 1 x 1 x 1", "fsdp, zero 3"]  # three layers in the list, and no other parameters
    assert rows["messages"] == pytest.approx(3 * 3 * (3 * 0.001 + parameters / 4 / 1e6))
    staged = found["2 x 1 x 2 x 1", "ddp"]  # stages of two layers and one: 64 numbers of 8 rows between them
    work = {0: 4 * 64 * 128 + 6 * 128 * 64, 1: 6 * 64 * 10}  # multiplications and sums; the input has no gradient
    longest = 0.008 * work[0] / (work[0] + work[1])
    assert staged["work"] == pytest.approx(0.008) and staged["idle"] == pytest.approx(3 * longest - 0.008)
    first = 4 * (65 * 128 + 129 * 64)
    assert staged["messages"] == pytest.approx(4 * (0.001 + 8 * 4 * 64 / 1e6) + ring(2, first))
    both = found["2 x 2 x 1 x 1", "ddp"]  # forward a sum of 64 numbers a row, back none at the first layer, 10 gathered
    held = 4 * (65 * 128 // 2 + 128 * 64 // 2 + 64 + 650 // 2)
    forward, back, gathered = ring(2, 16 * 4 * 64), ring(2, 16 * 4 * 64), 0.001 + 16 * 4 * 10 / 2 / 1e6
    assert both["messages"] == pytest.approx(forward + back + gathered + ring(2, held))
    refused = {one["name"]: one["refused"] for one in found.values() if one["refused"]}
    assert (
        "no attention over places" in refused["2 x 1 x 1 x 2"] and "3 layers with weights" in refused["1 x 1 x 4 x 1"]
    )
    crowded = meshes_of(advise_mesh(*words, "--cores", "2", "--memory", "135kB"))
    assert crowded["2 x 1 x 2 x 1", "ddp"]["work"] == pytest.approx(0.016), "four processes on two processors"
    assert crowded["4 x 1 x 1 x 1", "ddp"]["refused"] == "a process holds 138\u202fkB, and may hold 135\u202fkB"


def test_every_axis_takes_the_time_of_its_own_link(tmp_path: Path) -> None:
    """Two processes, latency alone: DDP 2 messages in turn; tensor 2 sums and one gathering; FSDP 3 layers x 2 or 3;
    pipeline 4 pieces forward and back.
    """
    asked = MeshAsked.from_experiment(experiment_of_a_mesh(tmp_path), (), 2, 1e9)
    latencies = {"data": 1.0, "tensor": 10.0, "rows": 100.0, "pipeline": 1000.0, "context": math.nan}
    links = {axis: EqualLinks(latency) for axis, latency in latencies.items()}
    found = advised_meshes(asked, StepCosts(FittedLink(0.0, math.inf, 0.0), links, 2))
    times = {(one.name, one.how): one.messages for one in found if not one.refused}
    assert times == {
        ("2 x 1 x 1 x 1", "ddp"): 2.0,
        ("1 x 2 x 1 x 1", "ddp"): 10.0 * (2 + 2 + 1),
        ("2 x 1 x 1 x 1", "fsdp, zero 2"): 100.0 * 3 * 2,
        ("2 x 1 x 1 x 1", "fsdp, zero 3"): 100.0 * 3 * 3,
        ("1 x 1 x 2 x 1", "ddp"): 1000.0 * 2 * 4,
    }


@pytest.mark.sockets
def test_the_link_of_every_axis_is_measured_between_real_processes() -> None:
    found = measured_links(TrainSettings(device="cpu"), 2)
    assert found.keys() == set(LINKED)
    assert all(one.latency >= 0 and one.rate > 0 and math.isfinite(one.latency) for one in found.values())


def test_context_and_text_have_their_messages_and_the_table_names_the_soonest(
    tmp_path: Path, advise_mesh: Callable[..., Output]
) -> None:
    text = tmp_path / "play.txt"
    text.write_text("".join(f"A{k}:\n{'to be or not to be, ' * 20}\n\n" for k in range(4)))
    experiment_of_a_mesh(tmp_path, "gpt:2-16-4", f"text:{text}?context=16&min_chars=40", 8)
    words = ["--links", "0.001,1e6", "--compute", "0.5", "--cores", "4"]
    found = meshes_of(advise_mesh(*words, "--json"))
    around, across = found["2 x 1 x 1 x 2", "ddp, ring"], found["2 x 1 x 1 x 2", "ddp, ulysses"]
    part = 4 * (8 / 2) * 8 * 16  # bytes of queries of a process: 4 texts, 8 places, 16 wide
    ring, exchanged = 0.001 + 2 * part / 1e6 + 2 * (0.001 + 4 * part / 1e6), 8 * (0.001 + part / 2 / 1e6)
    assert around["messages"] - across["messages"] == pytest.approx(2 * (ring - exchanged))
    shown = advise_mesh(*words)
    first = min((one for one in found.values() if not one["refused"]), key=lambda one: one["seconds"])
    assert shown.out.startswith(f"{first['name']} (data x tensor x pipeline x context), {first['how']}, is first")
    assert "mesh.context with mesh.pipeline" in shown.out


def test_experts_are_divided_and_other_meshes_of_them_are_refused(
    tmp_path: Path, advise_mesh: Callable[..., Output]
) -> None:
    text = tmp_path / "play.txt"
    text.write_text("".join(f"A{k}:\n{'to be or not to be, ' * 20}\n\n" for k in range(4)))
    experiment_of_a_mesh(tmp_path, "gpt:2-16-4?experts=4", f"text:{text}?context=16&min_chars=40", 8)
    words = ["--links", "0.001,1e6", "--compute", "0.5", "--cores", "4"]
    found = meshes_of(advise_mesh(*words, "--json"))
    (fits,) = (one for one in found.values() if not one["refused"])
    assert fits["name"] == "1 x 1 x 1 x 1 x 4" and fits["work"] == 0.125 and fits["counted"]
    assert "capacity and balance" in found["4 x 1 x 1 x 1", "ddp"]["refused"]
    said = advise_mesh(*words)
    assert "pipeline x context x expert), ddp, is first of 1" in said.out and "context = 1, expert = 4 }" in said.out
    keys = [word for key in fits["keys"] for word in ("--set", key)]
    dry = typed(["run", "mesh.toml", *keys, "--set", "train.device=cpu", "--dry-run", "--json"], tmp_path)
    assert dry.code == 0, dry.err
    held = [2 * one["parameters"] + one["slots"] + one["activations"] for one in json.loads(dry.out)["processes"]]
    assert max(held) == fits["memory"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--memory", "16 apples"], "'16 apples' is no size. Write 16GB"),
        (["--memory", "16"], "'16' would be bytes. Write the unit too: 16GB"),
        (["--set", "task.kind=quadratic", "--set", "model.source=softmax"], "torch trains no model by it"),
        (["--processes", "1"], "1 is not in the range 2<=x<=64"),
    ],
)
def test_bad_words_of_a_mesh_are_refused_in_one_line(
    tmp_path: Path, advise_mesh: Callable[..., Output], words: list[str], told: str
) -> None:
    experiment_of_a_mesh(tmp_path)
    said = advise_mesh(*words)
    assert said.code == 2 and told in said.err, said.err


def test_where_no_mesh_is_possible_the_code_is_2_and_each_reason_stands_once_and_whole(
    tmp_path: Path, advise_mesh: Callable[..., Output]
) -> None:
    experiment_of_a_mesh(tmp_path)
    words = ["--links", "lan", "--compute", "0.05", "--cores", "2", "--memory", "1kB"]
    said = advise_mesh(*words)
    assert said.code == 2 and said.out.startswith("None of ") and "a step" not in said.out
    assert said.out.count("mesh.context = 2: ") == 1 and "8 such as 2 x 1 x 1 x 2" in said.out
    assert "torch gathers the rows of stages out of step on a CPU\n" in said.out
    assert advise_mesh(*words, "--json").code == 2


def test_a_private_experiment_has_no_mesh_and_is_not_advised_to_leave_out_what_is_required(
    tmp_path: Path, advise_mesh: Callable[..., Output]
) -> None:
    path = experiment_of_a_mesh(tmp_path)
    private = '[coordinator]\nclients = 3\n[coordinator.privacy]\nunit = "record"\nnoise = 2.0\n'
    path.write_text(path.read_text().partition("[topology]")[0] + private)
    said = advise_mesh("--links", "lan")
    assert said.code == 2 and "processes = 4 where single records are private" in said.err
    assert "A private participant trains in one process" in said.err and "Leave" not in said.err
