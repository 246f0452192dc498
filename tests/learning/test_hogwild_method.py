"""`parallel.method = "hogwild"`: a run of one participant whose workers are processes that wait for nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from test_hogwild import OneByOne

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.experiment import load_experiment
from fedgossip.lab.compare.cells import _together, experiment_for
from fedgossip.lab.compare.names import paradigm_of
from fedgossip.learning.processes import processes
from fedgossip.plans import compose
from fedgossip.report.page.reading import read_run
from fedgossip.report.page.sections import repeating

COMMON: dict[str, Any] = {
    "rounds": 3,
    "data": {"source": "digits"},
    "model": {"source": "mlp:64-12-10"},
    "eval": {"every": 3},
    "simulation": {"latency": 0.5, "bandwidth": 1e3, "per_example": 0.01},
}
TRAIN: dict[str, Any] = {"lr": 0.1, "batch_size": 8, "local_steps": 5, "device": "cpu"}


def racing(workers: int = 2, **train: Any) -> dict[str, Any]:
    return {**COMMON, "train": {**TRAIN, **train}, "parallel": {"method": "hogwild", "workers": workers}}


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OneByOne]]:
    """Groups whose members work in this process, in order of the ranks, and so lose nothing."""
    made: list[OneByOne] = []

    def group(setup: Any, examples: Any, _: str) -> OneByOne:
        made.append(OneByOne(setup, dict(examples)))
        return made[-1]

    monkeypatch.setattr(processes, "Group", group)
    yield made
    for one in made:
        one.close()


def test_workers_are_the_processes_of_one_participant_which_has_all_examples() -> None:
    e = load_experiment(racing(3, count_lost=True))
    assert (e.train.processes, e.train.parallel) == (3, "hogwild")
    assert load_experiment(e.to_dict()) == e, "what a run writes down is read again"
    plan = compose.plan(e)
    assert plan.n == plan.learners == 1 and plan.roles.wording == "1 participant" and not plan.gradients


def test_one_worker_has_the_model_of_a_peer_that_trains_alone(in_order: list[OneByOne]) -> None:
    alone = {**COMMON, "train": {**TRAIN, "parallel": "hogwild"}, "topology": {"graph": "none", "n": 1}}
    ours, theirs = fedgossip.simulate(racing(1)), fedgossip.simulate(alone)
    assert ours.digest == theirs.digest and len(in_order) == 2


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_processes_share_the_steps_send_nothing_and_take_their_own_time_alone(
    in_order: list[OneByOne], engine: str, tmp_path: Path
) -> None:
    """5 steps of 8 for 2 workers: the busier takes 3, on a processor of its own, at 0.01 s an example."""
    run = fedgossip.simulate(racing(2, count_lost=True), engine=engine, out=tmp_path / "run")
    assert run.summary["identical"] is False and run.summary["lost_updates"] == 0.0
    assert run.summary["algorithm"] == "hogwild" and run.summary["descent"] == "sgd"
    assert run.summary["bytes_sent"] == 0 and len(in_order[0].members) == 2
    told = repeating(read_run(tmp_path / "run"))
    assert not told.same and "without waiting for each other" in told.text
    if engine == "sim":
        assert run.summary["seconds"] == pytest.approx(3 * 3 * 8 * 0.01)


def test_a_comparison_has_it_beside_others_on_the_same_examples(
    in_order: list[OneByOne], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.toml").write_text("""
rounds = 4
data = { source = "digits" }
model = { source = "mlp:64-12-10" }
train = { lr = 0.1, batch_size = 8, local_steps = 2, device = "cpu" }
eval = { every = 2 }
parallel = { workers = 2, bucket = 0, server = { servers = 2 } }
simulation = { latency = 0.01, bandwidth = 1e6, downlink = 1e6, per_example = 0.001 }
""")
    words = ["compare", "all.toml", "--no-report", "--json", "--workers", "2", "--paradigms", "hogwild,ring"]
    said = commands.in_process(words, tmp_path, monkeypatch, capsys)
    assert said.code == 0, said.err
    ours, ring = json.loads(said.out)["table"]
    assert ours["rounds"] == 4 and ring["rounds"] == 8, "a round of local steps, and of one"
    assert ours["payload_of_busiest"] == ours["communicate"] == ours["wait"] == 0 < ring["payload_of_busiest"]
    assert ours["round_seconds"] == pytest.approx(ours["told"]["round_seconds"]) == pytest.approx(2 * 8 * 0.001)
    assert ours["told"]["formula"] == pytest.approx(2 * 8 * 0.001) and ours["compute"] == pytest.approx(ring["compute"])
    assert in_order
    summary = json.loads((tmp_path / "all-compared" / "hogwild-w2-s1" / "summary.json").read_text())
    assert summary["identical"] is False


@pytest.mark.parametrize(("workers", "most"), [(1, 4), (2, 4), (4, 4)])
def test_it_sees_as_many_examples_as_the_workers_of_others(workers: int, most: int) -> None:
    content = {**COMMON, "train": TRAIN, "parallel": {"workers": 4}, "coordinator": {"clients": 4}}
    ours, others = (
        experiment_for(content, paradigm_of(name), workers, most, 1, "a file") for name in ("hogwild", "fedavg")
    )
    assert ours.train.local_steps and others.train.local_steps
    assert (
        ours.train.local_steps * ours.train.batch_size == workers * others.train.local_steps * others.train.batch_size
    )
    clicks = {"task": {"kind": "sparse-logistic", "examples": 300, "dim": 1000}, "parallel": {"workers": 4}}
    assert experiment_for(clicks, paradigm_of("hogwild"), workers, most, 1, "a file").task.examples == 300 * workers


def test_data_of_one_participant_are_those_of_several_together() -> None:
    several = {"source": "a", "shares": [[1, 2], [3, 0]], "sizes": [3, 3]}
    assert _together(several) == {"source": "a", "shares": [[4, 2]], "sizes": [6]} == _together(_together(several))
    assert _together({"source": "a", "shares": None, "sizes": None})["sizes"] is None


@pytest.mark.parametrize(
    ("where", "change", "said", "advice"),
    [
        ("parallel", {"codec": "random-k:0.1"}, r"and parallel\.codec: its workers share one memory", "collective"),
        ("parallel", {"outer": {"lr": 0.7}}, r"and parallel\.outer: its workers share", "collective"),
        ("parallel", {"descent": "adam"}, r"and parallel\.descent: its workers share", "collective"),
        ("parallel", {"accumulate": 2}, r"and parallel\.accumulate: its workers share", "collective"),
        ("parallel", {"bucket": 0}, r"and parallel\.bucket: its workers share", "collective"),
        ("parallel", {"overlap": True}, "overlap with parallel.method = 'hogwild'", "collective"),
        ("parallel", {"backups": 1}, "backups with hogwild", "mapreduce"),
        ("parallel", {"server": {"servers": 2}}, "with parallel.method = 'hogwild'", "parameter-server"),
        ("train", {"processes": 3}, "2 workers are the processes, and train.processes = 3", "Leave both out"),
        ("train", {"parallel": "ddp"}, "parallel = 'ddp'", "Leave both out"),
        ("train", {"momentum": 0.9}, "would be a mixture", "without momentum"),
        ("train", {"local_steps": 1}, "local_steps = 1 for 2 processes", "to 2 or more"),
        ("task", {"kind": "quadratic"}, "of task.kind = quadratic", "sparse-logistic"),
        ("task", {"kind": "convex"}, "of task.kind = convex", "Learn from data by a model"),
    ],
)
def test_what_has_no_use_for_one_participant_is_refused(where: str, change: Any, said: str, advice: str) -> None:
    content = racing(2)
    content[where] = {**content.get(where, {}), **change}
    if where == "task":
        content.pop("model")
    with pytest.raises(ConfigError, match=said) as refused:
        load_experiment(content)
    assert advice in refused.value.advice


def test_a_dry_run_says_that_nothing_is_sent_and_nothing_repeats() -> None:
    e = load_experiment(racing(2))
    plan = compose.plan(e)
    outlook = plan.outlook(compose.task_of_dry_run(e, 1)[0])
    assert outlook.bytes_per_round == 0 and outlook.facts["identical"] is False
    assert "they share 5 steps a round and wait for nobody; nothing is sent" in outlook.lines[0]


@pytest.mark.long
@pytest.mark.sockets
def test_it_runs_as_a_participant_of_its_own(tmp_path: Path) -> None:
    text = """
rounds = 3
data = { source = "digits" }
model = { source = "mlp:64-32-10" }
train = { lr = 0.1, local_steps = 200, device = "cpu", count_lost = true }
parallel = { method = "hogwild", workers = 2 }
"""
    (tmp_path / "race.toml").write_text(text)
    said = commands.typed(["run", "race.toml", "--on", "local", "--no-report", "--out", "run"], tmp_path)
    assert said.code == 0, said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["identical"] is False and 0 <= summary["lost_updates"] < 0.5
    assert summary["score"]["averaged"] > 0.8 and np.isfinite(summary["test_loss"])
