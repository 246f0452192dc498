"""Participants of unlike architectures, which exchange logits: whole runs, bounds, gains and refusals."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

import fedgossip
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import frozen
from fedgossip.cli.run.run import _model, _reached, facts, show_plan
from fedgossip.core.gains import ALONE, PERSONAL
from fedgossip.core.machine import Received, Started
from fedgossip.core.messages import Hello, Invite
from fedgossip.core.records import PeerRow
from fedgossip.data.data import load, split
from fedgossip.drivers.resume import resume
from fedgossip.learning.models.loaded_model import load_model
from fedgossip.learning.unlike import UnlikeTasks
from fedgossip.learning.untrained import layout_of_answers
from fedgossip.net.transport import refused
from fedgossip.plans import compose
from fedgossip.report.page import sections
from fedgossip.report.page.forecast import band, sentence
from fedgossip.report.page.reading import read_run

Content = dict[str, Any]
SOURCES = ["softmax", "mlp:64-16-10", "cnn:small"]
QUICK = {"epochs": 1, "student": 1}
ZEROS = frozen(np.zeros(len(split(load("digits"), 0.2, 0)[1]) * 10, np.float32))
CLEAR = {"secure": {"on": False}}


def content(**more: Any) -> Content:
    return {
        "rounds": 2,
        "data": {"local_test": 0.25, "common": "random:40"},
        "model": {"source": "mlp:64-16-10", "sources": SOURCES},
        "train": {"local_steps": 3, "device": "cpu"},
        "eval": {"every": 2},
    } | more


def federated(algorithm: str = "feddf", **more: Any) -> Content:
    return content(coordinator={"clients": 3, "algorithm": algorithm, "options": QUICK, **more})


def gossip(method: str) -> Content:
    return content(topology={"graph": "ring", "n": 4}, algorithm={"personal": f"{method}?epochs=1&student=1"})


def scores(run: fedgossip.Run) -> list[tuple[int, int, float, float]]:
    rows = [row for row in run.rows if isinstance(row, PeerRow) and PERSONAL in (row.logged or {})]
    return sorted((r.round, r.peer, r.logged[PERSONAL], r.logged[ALONE]) for r in rows if r.logged)  # type: ignore[misc]


@pytest.mark.parametrize("algorithm", ["feddf", "fedmd"])
def test_clients_end_with_one_digest_in_the_simulator_and_on_arrays_and_secure_is_clear_to_the_encoding(
    algorithm: str,
) -> None:
    ends = []
    for secure in ({}, CLEAR):
        runs = [fedgossip.simulate(federated(algorithm, **secure), engine=engine) for engine in ("sim", "stacked")]
        assert len({run.digest for run in runs}) == 1 and scores(runs[0]) == scores(runs[1]) and scores(runs[0])
        ends.append(np.asarray(runs[0].vectors[-1]))
    assert ends[0].size == 40 * 10 and np.abs(ends[1]).max() > 0.01
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-4)  # of logits over 32, in 24 bits


@pytest.mark.parametrize("one", [gossip("feddf"), gossip("fedmd")])
def test_peers_of_a_ring_learn_from_their_neighbours_logits_with_one_digest(one: Content, tmp_path: Path) -> None:
    runs = [
        fedgossip.simulate(one, engine="sim", out=tmp_path / "run", report=False),
        fedgossip.simulate(one, engine="stacked"),
    ]
    assert len({run.digest for run in runs}) == 1 and scores(runs[0]) == scores(runs[1])
    own = fmean(score for at, _, score, _ in scores(runs[0]) if at == max(scores(runs[0]))[0])
    assert dict(facts(runs[0].summary, runs[0].rows))["own models"].startswith(f"{own:.4f} the mean, ")
    said = dict([*_reached(runs[0].summary), *_model(runs[0])])
    assert said["test accuracy"].endswith(", of a model distilled from the mean logits")
    assert said["model"].endswith("distilled from the mean logits: no participant's own")
    page, recorded = str(sections.head(read_run(tmp_path / "run"))), read_run(tmp_path / "run")
    places = [page.find(word) for word in ("Own models, mean", "Own models, worst", "Distilled model")]
    assert -1 not in places and places == sorted(places)
    assert "Averaged model" not in page and "Mean peer" not in page and f"{100 * own:.1f}" in page
    assert band(recorded) is None and "the band" not in sentence(recorded, band(recorded))


def test_own_models_that_nothing_tests_are_named_so(tmp_path: Path) -> None:
    one = gossip("feddf") | {"data": {"common": "random:40"}, "rounds": 1}
    run = fedgossip.simulate(one, out=tmp_path / "run", report=False)
    assert dict(facts(run.summary, run.rows))["own models"].startswith("not measured: data.local_test")
    assert "not measured: data.local_test" in sections.head(read_run(tmp_path / "run"))


@pytest.mark.sockets
def test_processes_end_with_the_digest_of_the_simulator(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    whole = [federated("fedmd"), federated(**CLEAR), gossip("feddf")]
    for place, one in enumerate(whole if request.config.getoption("--long") else whole[1:2]):
        run, simulated = fedgossip.run_local(one, tmp_path / str(place), report=False), fedgossip.simulate(one)
        assert run.digest == simulated.digest and scores(run) == scores(simulated)


def test_a_stopped_run_goes_on_with_models_of_unlike_sizes(tmp_path: Path) -> None:
    one, rows = federated(**CLEAR) | {"rounds": 3}, []

    def stop(row: Any) -> None:
        rows.append(row)
        if len(rows) == 9:
            raise KeyboardInterrupt

    whole = fedgossip.simulate(one)
    fedgossip.simulate(one, out=tmp_path / "run", watch=stop)
    again = resume(tmp_path / "run", report=False)
    assert again.digest == whole.digest and scores(again) == scores(whole)
    student = load_model(tmp_path / "run")  # what the mean alone teaches: a model of model.source
    assert student.facts.source == "mlp:64-16-10"


@pytest.mark.parametrize("absurd", [0.0, 1e9, -math.inf])
def test_a_site_moves_the_mean_no_further_than_the_bound(absurd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sites each element of the mean of logits / 32 moves by 2 / 3 at most, in a secure sum and without."""
    honest = UnlikeTasks.answers
    for secure in ({}, CLEAR):
        one = federated(**secure) | {"rounds": 1}
        plain = np.asarray(fedgossip.simulate(one).vectors[-1])
        with monkeypatch.context() as patch:
            patch.setattr(
                UnlikeTasks,
                "answers",
                lambda self, node, model: (
                    np.full_like(honest(self, node, model), absurd) if node == 0 else honest(self, node, model)
                ),
            )
            sent = np.asarray(fedgossip.simulate(one).vectors[-1])
        assert 0 < np.abs(sent - plain).max() <= 2 / 3 and np.abs(sent).max() < 0.5


def test_logits_of_another_class_order_have_another_schema_and_a_client_refuses_them() -> None:
    test = split(load("digits"), 0.2, 0)[1]
    named = [replace(test, class_names=tuple(order)) for order in ("0123456789", "1023456789")]
    layouts = [layout_of_answers(one, one) for one in named]
    ours, theirs = (layout.schema for layout in layouts)
    assert layouts[0].length == layouts[1].length and ours != theirs
    met = refused(1, Hello(theirs, "e", "v"), Hello(ours, "e", "v"))
    assert met and "other columns, classes or common examples" in str(met)
    client = compose.plan(fedgossip.load_experiment(federated(**CLEAR))).machine(0, ZEROS, ours)
    client.handle(Started(), 0)
    with pytest.raises(ProtocolError, match="of another layout"):
        client.handle(Received(3, Invite(0, theirs, (ZEROS,))), 0)
    assert client.handle(Received(3, Invite(0, ours, (ZEROS,))), 0)


def test_a_dry_run_has_the_layout_of_what_is_sent_and_names_the_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    plan = compose.plan(fedgossip.load_experiment(federated()))
    (dry, told), (made, said) = (of(plan.experiment, 3) for of in (compose.task_of_dry_run, compose.task_of))
    assert dry.length == made.length == 400 and dry.schema == made.schema
    assert told.notes == said.notes and "40 common examples, 1,600 bytes" in told.notes[-1]
    assert "softmax 2,600" in told.notes[-1]
    sizes = [len(made._task._tasks["softmax"]._shares[node]) for node in range(3)]  # type: ignore[attr-defined]
    assert f"each trains with {min(sizes)} to {max(sizes)} of its examples" in told.notes[0]
    assert sum(sizes) < 0.8 * sum(told.sizes or [])
    show_plan(plan, on="sim", as_json=False)
    shown = capsys.readouterr().out
    assert "# 400 logits in float32" in shown and "parameters" not in shown and told.notes[0] in shown


SHOWN = ["softmax", "mlp:64-32-10", "cnn:small"]
PAGE = (Path(__file__).parents[2] / "docs" / "use" / "unlike.md").read_text()


def shown_of(algorithm: str, common: str | float) -> list[list[float]]:
    """Return the page's scores together and alone, the gain and half its interval in points, of each model."""
    table = PAGE.partition("| common examples |")[2].partition("drawn |")[0 if isinstance(common, float) else 2]
    (row,) = [line for line in table.splitlines() if f"| `{algorithm}` |" in line]
    return [[float(one) for one in re.findall(r"[\d.]+", cell)] for cell in row.split("|")[-4:-1]]


def study(algorithm: str, seed: int, common: str | float, **more: Any) -> list[tuple[float, float]]:
    """Return of each architecture the score on its own held-out examples, together and alone."""
    one = federated(algorithm, **CLEAR) | {"seed": seed, "rounds": 20, "eval": {"every": 20}}
    one |= {"data": {"test": 0.1, "local_test": 0.85 if isinstance(common, float) else 0.9, "common": common}}
    one |= {"train": {"local_steps": 20, "device": "cpu"}, "model": {"source": SHOWN[1], "sources": SHOWN}} | more
    one["coordinator"]["options"] = {"student": 1}
    found = scores(fedgossip.simulate(one, engine="stacked"))
    return [(own, alone) for round, _, own, alone in found if round == one["rounds"]]


def test_a_softmax_an_mlp_and_a_cnn_are_better_together_than_alone() -> None:
    found = study("feddf", 1, 0.5, rounds=6, eval={"every": 6})
    assert len(found) == 3 and all(own > alone for own, alone in found)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("common", [0.5, "random:500"])
@pytest.mark.parametrize("algorithm", ["feddf", "fedmd"])
def test_over_five_seeds_all_three_are_better_together_than_alone(algorithm: str, common: str | float) -> None:
    """On common examples of the kind by more than the 95 % interval of the paired differences; on drawn ones on average
    of all."""
    seeds = [study(algorithm, seed, common) for seed in range(1, 6)]
    for shown, of in zip(shown_of(algorithm, common), zip(*seeds, strict=True), strict=True):
        gains = [own - alone for own, alone in of]
        half = 2.776 * stdev(gains) / math.sqrt(len(gains))
        found = [fmean(own for own, _ in of), fmean(alone for _, alone in of), 100 * fmean(gains), 100 * half]
        assert found[:2] == pytest.approx(shown[:2], abs=0.01) and found[2:] == pytest.approx(shown[2:], abs=1.0)
        assert fmean(gains) > (half if isinstance(common, float) else 0)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (federated() | {"data": {"common": 1.5}}, "common = 1.5 is no share"),
        (federated() | {"data": {"common": "csv:site-{peer}.csv?label=y"}}, "a file of each one's own"),
        (federated() | {"data": {"source": "diabetes"}}, "logits of classes"),
        (federated() | {"task": {"kind": "quadratic"}, "data": {}, "model": {}, "train": {}}, "logits of classes"),
        (federated() | {"train": {"buffers": "local"}}, "buffers = 'local'"),
        (federated() | {"model": {"sources": SOURCES * 2}}, "6 models of 3 participants"),
        (federated("fedavg", options={}), "model.sources = .* without a method that exchanges logits.*'fedavg'"),
        (federated("fedavg", options={}) | {"model": {}}, "data.common = .* without a method"),
        (federated(personal="feddf"), "a method too"),
        (federated(options={"epochs": 0}), "epochs = 0 is out of range"),
        (federated(options={"lr": 1}), "no option 'lr'"),
        (federated("fedbuff", personal="feddf", options={}, **CLEAR), "an older mean"),
        (federated(codec="top-k:0.1", **CLEAR), "adds what it left out"),
        (federated("scaffold", personal="fedmd", options={}), "by a rule of its own"),
        (gossip("feddf") | {"algorithm": {"personal": "feddf", "mode": "async"}}, "updates of usual training"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_run(one: Content, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        compose.plan(fedgossip.load_experiment(one))
    assert error.value.advice and "\n" not in str(error.value.args[0])


@pytest.mark.parametrize(
    ("common", "words"),
    [("random:none", "random:none"), ("random:0", "random:0"), ("breast-cancer", "shape"), ("nothing", "unknown data")],
)
def test_common_examples_that_do_not_fit_are_refused(common: str, words: str) -> None:
    plan = compose.plan(fedgossip.load_experiment(federated() | {"data": {"common": common}}))
    with pytest.raises(ConfigError, match=words):
        compose.task_of_dry_run(plan.experiment, 3)
