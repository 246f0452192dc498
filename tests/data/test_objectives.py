"""Regression and several labels: trained as classes are, told by scores of their own, refused where nothing fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from sklearn.linear_model import Ridge
from test_learning import grouped, jobs_of, on_cpu, random_groups
from torch.nn import functional

import fedgossip
from fedgossip.base import kernels
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import frozen
from fedgossip.core.records import PeerRow
from fedgossip.core.task import Job
from fedgossip.data.data import load, split
from fedgossip.data.dataset import Dataset, from_arrays
from fedgossip.data.objectives import MULTI_LABEL, REGRESSION, Objective, objective_of
from fedgossip.data.partitions import partition
from fedgossip.experiment import load_experiment
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy
from fedgossip.learning.many_nodes.stacked_engine import LayerStack
from fedgossip.learning.models import models
from fedgossip.learning.one_model.batches import Batches
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose
from fedgossip.report.page.page import write_report

ON_DIABETES: dict[str, Any] = {
    "data": {"source": "diabetes"},
    "task": {"metrics": ["r2", "rmse", "mae"]},
    "train": {"device": "cpu", "lr": 0.02, "local_epochs": 1, "batch_size": 16, "schedule": "cosine"},
    "rounds": 60,
    "eval": {"every": 20},
}
RING = {"topology": {"graph": "ring", "n": 6}}
CLIENTS = {"coordinator": {"clients": 6}}


def columns(kind: str = REGRESSION, outputs: int = 1, features: int = 12, examples: int = 150) -> Dataset:
    draw = stream(0, "columns", outputs, features, examples)
    x = draw.standard_normal((examples, features)).astype(np.float32)
    y = x @ draw.standard_normal((features, outputs)) + 0.1 * draw.standard_normal((examples, outputs))
    y = (y > 0).astype(np.float32) if kind == MULTI_LABEL else y.astype(np.float32)
    return Dataset("columns", x, y, 0, kind=kind)


def task_of(model: str, data: Dataset, how: TrainSettings, loss: str, n: int = 9, **more: Any) -> TorchTask:
    shares = partition("size-skewed", data.labels, n, seed=3)
    objective = objective_of(data.kind, loss, ())
    return TorchTask(data, data, shares, model, how, seed=1, rounds=20, objective=objective, **more)


# --- training ---------------------------------------------------------------------------------------------------------

SHAPES: list[tuple[str, int, str, dict[str, Any]]] = [
    ("softmax", 1, "mse", {}),
    ("softmax", 1, "mae", {"batch_size": 1}),
    ("mlp:12-7-1", 1, "mse", {"batch_size": 5, "momentum": 0.9}),
    ("mlp:12-9-1", 1, "huber", {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "local_epochs": 1}),
    ("mlp:12-9-3", 3, "mse", {"lr": 0.02, "clip_norm": 0.5}),
    ("softmax", 4, "bce", {"batch_size": 7}),
    ("mlp:12-33-5", 5, "bce", {"optimizer": "adam", "lr": 0.01}),
    ("mlp:12-8-1", 1, "bce", {"local_epochs": 2, "batch_size": 8}),
]


def of_loss(loss: str, outputs: int) -> Dataset:
    return columns(MULTI_LABEL if loss == "bce" else REGRESSION, outputs)


@pytest.mark.parametrize(("model", "outputs", "loss", "how"), SHAPES)
def test_numbers_are_learned_with_the_same_bits_alone_and_together(model, outputs, loss, how):
    data = of_loss(loss, outputs)
    fresh = lambda: task_of(model, data, on_cpu(**{"lr": 0.05, **how}), loss)  # noqa: E731 momentum stays in a task
    task = fresh()
    assert isinstance(task._engine, LayerStack)
    jobs = jobs_of(task)
    alone = grouped(task, jobs, [[k] for k in range(9)])
    for seed in range(3):
        together = grouped(fresh(), jobs, random_groups(9, seed))
        for k in range(9):
            assert np.array_equal(alone[k].difference, together[k].difference)
            assert alone[k].metrics == together[k].metrics


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=3),
    outputs=st.integers(1, 4),
    batch=st.integers(1, 33),
    loss=st.sampled_from(["mse", "huber", "bce"]),
    seed=st.integers(0, 1000),
)
def test_any_stack_of_any_loss_gives_the_same_bits_alone_and_together(sizes, outputs, batch, loss, seed):
    data = columns(MULTI_LABEL if loss == "bce" else REGRESSION, outputs, sizes[0], 60)
    model = "mlp:" + "-".join(map(str, [*sizes, outputs]))
    task = task_of(model, data, on_cpu(batch_size=batch, local_steps=2, lr=0.01), loss)
    jobs = jobs_of(task, 9, seed)
    together = task.train(jobs)
    alone = grouped(task, jobs, [*random_groups(9, seed), [4]])
    assert all(np.array_equal(together[k].difference, alone[k].difference) for k in range(9))


TWINS = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
    "bce": functional.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize(("model", "outputs", "loss", "how"), SHAPES)
def test_hand_written_errors_equal_autograd(model, outputs, loss, how):
    data, how = of_loss(loss, outputs), on_cpu(**{"lr": 0.05, **how})
    task = task_of(model, data, how, loss)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[how.optimizer]
    for job, update in zip(jobs := jobs_of(task), task.train(jobs), strict=True):
        module = models.build(model, data.shape, outputs, 1)
        task.layout.write(module, job.vector)
        extra = {"momentum": how.momentum} if how.optimizer == "sgd" else {}
        optimiser = kind(module.parameters(), lr=how.lr, weight_decay=how.weight_decay, **extra)
        shares = partition("size-skewed", data.labels, 9, seed=3)
        plan = Batches(shares, how, 1, how.batch_size).plan(job.node, job.round)
        losses = []
        for row, count in zip(plan.indices, plan.counts, strict=True):
            optimiser.zero_grad()
            x, y = (torch.from_numpy(part[row[:count]]) for part in (data.x, data.y))
            value = TWINS[loss](module(x), y)
            value.backward()
            losses.append(float(value.detach()))
            if how.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(module.parameters(), how.clip_norm)
            optimiser.step()
        np.testing.assert_allclose(update.difference, task.layout.read(module) - job.vector, atol=2e-5)
        assert update.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


def test_the_stack_and_the_loop_over_modules_measure_the_same():
    for loss, outputs in (("mse", 2), ("bce", 3)):
        data = of_loss(loss, outputs)
        stack = task_of("softmax", data, on_cpu(), loss)
        loop = task_of("softmax", data, on_cpu(precision="bfloat16"), loss)
        assert not isinstance(loop._engine, LayerStack)
        vector = jobs_of(stack)[3].vector
        (one,), (other,) = stack.evaluate([vector]), loop.evaluate([vector])
        assert one == pytest.approx(other, rel=1e-5)


def test_records_of_a_regression_are_hidden_each_for_itself():
    """Without noise and with a clip that nothing reaches, DP-SGD's sum is that of the single gradients."""
    data, how = columns(), on_cpu(lr=0.01, local_steps=2, batch_size=1000)
    hidden = task_of("softmax", data, how, "mse", 2, privacy=RecordPrivacy(1e4, 0.0))
    node = 1
    update = hidden.train([Job(node, 0, hidden.initial(node))])[0]
    module, rows = models.build("softmax", data.shape, 1, 1), partition("size-skewed", data.labels, 2, seed=3)[node]
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(2):
        optimiser.zero_grad()
        functional.mse_loss(module(torch.from_numpy(data.x[rows])), torch.from_numpy(data.y[rows])).backward()
        optimiser.step()
    found = hidden.layout.read(module) - hidden.initial(node)
    assert float(np.linalg.norm(update.difference - found)) < 5e-2 * float(np.linalg.norm(found))
    assert "loss" not in update.metrics


# --- metrics ----------------------------------------------------------------------------------------------------------


def measured(data: Dataset, metrics: list[str], vector_of: int = 3) -> tuple[dict[str, float], np.ndarray]:
    """The metrics of an untrained model, and what it gives for the examples."""
    objective = replace(objective_of(data.kind, "", ()), metrics=tuple(metrics))
    shares = [np.arange(len(data))]
    task = TorchTask(data, data, shares, "softmax", on_cpu(), seed=1, rounds=1, objective=objective)
    module = models.build("softmax", data.shape, data.outputs, 1)
    vector = jobs_of(task, 9)[vector_of].vector
    task.layout.write(module, vector)
    return dict(task.evaluate([vector])[0]), module(torch.from_numpy(data.x)).detach().numpy()


def test_scores_of_regressions_are_scikit_learns():
    found, outputs = measured(data := columns(outputs=3), ["r2", "rmse", "mae", "loss"])
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(data.y, outputs), rel=1e-5)
    assert found["mae"] == pytest.approx(sklearn_metrics.mean_absolute_error(data.y, outputs), rel=1e-5)
    each = np.sqrt(((data.y - outputs) ** 2).mean(axis=0))
    assert found["rmse"] == pytest.approx(each.mean(), rel=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_of_classes_are_scikit_learns(classes):
    draw = stream(0, "classes")
    y = draw.integers(0, classes, 200)
    x = (draw.standard_normal((200, 6)) + y[:, None]).astype(np.float32)
    found, outputs = measured(data := Dataset("classes", x, y, classes), ["auroc", "f1", "accuracy"])
    chances = torch.softmax(torch.from_numpy(outputs), 1).double().numpy()
    chances = chances[:, 1] if classes == 2 else chances / chances.sum(axis=1, keepdims=True)
    assert found["auroc"] == pytest.approx(sklearn_metrics.roc_auc_score(data.y, chances, multi_class="ovr"), rel=1e-4)
    guessed = outputs.argmax(axis=1)
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(data.y, guessed, average="macro"))
    assert found["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(data.y, guessed))


def test_scores_of_several_labels_are_scikit_learns():
    found, outputs = measured(data := columns(MULTI_LABEL, 4), ["f1", "auroc", "accuracy"])
    guessed = outputs > 0
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(data.y, guessed, average="macro"))
    assert found["auroc"] == pytest.approx(sklearn_metrics.roc_auc_score(data.y, outputs, average="macro"), rel=1e-6)
    assert found["accuracy"] == pytest.approx((guessed == (data.y > 0)).mean())


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [RING, CLIENTS])
def test_a_regression_from_a_file_reaches_the_score_of_ridge(tmp_path: Path, method: dict[str, Any]) -> None:
    """The penalty a |w|^2 of ridge's sum of squares is a decay of 2 a / m in the mean of m (Hoerl and Kennard 1970)."""
    train, test = split(load("diabetes"), 0.2, 1)
    expected = Ridge(20.0).fit(train.x, train.y).score(test.x, test.y)
    how = {**ON_DIABETES["train"], "lr": 0.1, "batch_size": 59, "weight_decay": 2 * 20.0 / len(train)}
    content = {**ON_DIABETES, **method, "train": how, "rounds": 80, "seed": 1}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(content))
    run = fedgossip.simulate(tmp_path / "run.toml")
    assert run.score["name"] == "r2"
    assert run.score["averaged"] == pytest.approx(expected, rel=0.02)
    assert run.score["worst_peer"] == pytest.approx(expected, rel=0.02)


def test_simulator_and_stacked_arrays_agree_on_a_regression():
    content = {**ON_DIABETES, **RING, "rounds": 5, "model": {"source": "mlp:10-8-1"}}
    runs = [fedgossip.simulate(content, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    assert runs[0].score == runs[1].score


PORTABLY = """
import fedgossip
from test_objectives import ON_DIABETES, RING
content = {**ON_DIABETES, **RING, "rounds": 3, "model": {"source": "mlp:10-8-1"}}
content["train"] = {**ON_DIABETES["train"], "portable": True}
print(*(fedgossip.simulate(content, engine=engine).digest for engine in ("sim", "stacked")))
"""


@pytest.mark.sockets
def test_a_portable_regression_is_the_same_alone_and_together():
    path = os.pathsep.join([str(Path(__file__).parents[2]), *(part for part in sys.path if part)])
    env = {**os.environ, **kernels.PORTABLE, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PORTABLY], env=env, capture_output=True, text=True, check=False)
    if done.returncode and "processor" in done.stderr:
        pytest.skip("portable runs are for x86-64 processors with AVX2")
    one, other = done.stdout.split()
    assert one == other, done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"coordinator": {"clients": 6, "algorithm": "fedprox", "options": {"mu": 0.1}}, "data": {"local_test": 0.2}},
        {"coordinator": {"clients": 6, "algorithm": "scaffold", "secure": {"on": False}}, "data": {"local_test": 0.2}},
        {"coordinator": {"clients": 6}, "train": {"personal": "layer2.*"}, "model": {"source": "mlp:10-8-1"}},
        {"coordinator": {"clients": 6, "privacy": {"unit": "record", "max_epsilon": 1e6}}},
        {"topology": {"graph": "regular:3", "n": 6}, "algorithm": {"private": True}},
        {**RING, "data": {"partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 1}}},
        {"topology": {"graph": "ring", "n": 6}, "algorithm": {"mode": "async"}},
    ],
)
def test_what_classes_have_numbers_have_too(change: dict[str, Any]) -> None:
    content = {**ON_DIABETES, "rounds": 8, "eval": {"every": 4}, **change}
    for section in ("data", "train"):
        content[section] = {**ON_DIABETES[section], **change.get(section, {})}
    run = fedgossip.simulate(content)
    assert run.summary["status"] == "finished"
    assert run.score["name"] == "r2" and run.score["averaged"] > 0.0
    if content["data"].get("local_test"):
        assert any(isinstance(row, PeerRow) and row.score_clients is not None for row in run.rows)


def test_the_worst_peer_of_an_error_is_the_one_with_the_largest():
    content = {**ON_DIABETES, **RING, "rounds": 2, "task": {"metrics": ["rmse"]}}
    run = fedgossip.simulate(content)
    last = [row.score for row in run.rows if isinstance(row, PeerRow) and row.round == 2]
    assert run.score["worst_peer"] == max(last) > min(last)  # type: ignore[type-var]
    assert 30 < run.score["averaged"] < 200, "in the label's unit"


def test_nothing_says_accuracy_of_a_regression(tmp_path: Path) -> None:
    fedgossip.simulate({**ON_DIABETES, **RING, "rounds": 4, "eval": {"every": 2}}, out=tmp_path / "run")
    write_report(tmp_path / "run")
    written = [path for path in (tmp_path / "run").iterdir() if path.suffix in (".html", ".json", ".jsonl", ".toml")]
    assert len(written) >= 4
    for path in written:
        assert "accura" not in path.read_text().lower(), path.name
    page = (tmp_path / "run" / "report.html").read_text()
    assert "R² by round" in page and "higher is better" in page
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["score"]["better"] == "higher"


# --- labels -----------------------------------------------------------------------------------------------------------


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "table.csv").write_text(text)
    return f"csv:{tmp_path / 'table.csv'}"


def test_label_columns_of_a_table_are_numbers(tmp_path: Path) -> None:
    source = written(tmp_path, "a,b,c,d\n1,2,0.5,1\n3,4,1.5,0\n5,6,2.5,1\n")
    one = load(f"{source}?label=c", kind=REGRESSION)
    assert one.y.tolist() == [[0.5], [1.5], [2.5]] and one.columns == ("a", "b", "d") and one.outputs == 1
    two = load(f"{source}?label=c,d", kind=REGRESSION)
    assert two.y.shape == (3, 2) and two.label_names == ("c", "d")
    assert load(f"{source}?label=d", kind=MULTI_LABEL).y.tolist() == [[1], [0], [1]]


def test_labels_that_are_standardised_are_scored_in_their_own_unit(tmp_path: Path) -> None:
    rows = "\n".join(f"{k},{1000 + 50 * k}" for k in range(100))
    data = load(f"{written(tmp_path, 'a,y' + chr(10) + rows)}?label=y&scale=standard", kind=REGRESSION)
    train, test = split(data, 0.2, 1)
    assert float(train.y.std()) == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(train.in_units(train.y).min(), 1000.0, rtol=1e-5)
    task = TorchTask(train, test, [np.arange(len(train))], "softmax", on_cpu(), seed=1, rounds=1)
    zero = frozen(np.zeros(task.length, np.float32))  # says the mean of the training labels of everybody
    away = np.abs(test.in_units(test.y) - train.label_mean[0])
    assert task.evaluate([zero])[0]["mae"] == pytest.approx(float(away.mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "query", "kind", "said"),
    [
        ("a,y\n1,high\n2,low\n", "label=y", REGRESSION, "'high' is not a number"),
        ("a,y\n1,2\n2,0\n", "label=y", MULTI_LABEL, "a label is 2, for multi-label"),
        ("a,y,z\n1,2,3\n2,0,3\n", "label=y,z", "classification", "2 label columns, and the task is classification"),
        ("a,y\n" + "\n".join(f"{k},{k}.5" for k in range(40)), "label=y", "classification", "that is regression"),
    ],
)
def test_labels_that_do_not_fit_the_kind_are_refused(
    tmp_path: Path, text: str, query: str, kind: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load(f"{written(tmp_path, text)}?{query}", kind=kind)
    assert refused.value.advice


def test_classes_are_no_numbers_and_numbers_no_classes():
    with pytest.raises(ConfigError, match="its labels are for classification, and the task is regression"):
        load("digits", kind=REGRESSION)
    with pytest.raises(ConfigError, match="its labels are for regression, and the task is classification"):
        load("diabetes", kind="classification")
    with pytest.raises(ConfigError, match="not finite"):
        from_arrays("mine", np.zeros((2, 1)), [1.0, np.nan], kind=REGRESSION)


# --- what an experiment may ask for -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "said", "advice"),
    [
        ({"kind": "regresion"}, "task.kind = 'regresion'", "regression"),
        ({"kind": "regression", "loss": "cross-entropy"}, "this task is regression", "mse, mae, huber"),
        ({"loss": "mse"}, "this task is classification", "cross-entropy"),
        ({"kind": "regression", "metrics": ["rsme"]}, "'rsme' is not known", "rmse"),
        ({"metrics": ["r2"]}, "'r2' is for regression", "accuracy, f1, auroc"),
        ({"kind": "regression", "metrics": ["mae", "mae"]}, "twice", ""),
        ({"kind": "averaging", "loss": "mse"}, "a problem with a known answer", "out"),
        ({"kind": "regression", "metrics": ["mine:score?better=more"]}, "better = 'more'", "higher or lower"),
    ],
)
def test_a_task_that_cannot_be_is_refused_with_advice(task: dict[str, Any], said: str, advice: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment({**RING, "task": task})
    assert said in str(refused.value) and advice in refused.value.advice


def test_noise_on_tests_is_for_a_count_of_right_answers():
    privacy = {"unit": "record", "test_noise": 4.0}
    content = {**ON_DIABETES, "coordinator": {"clients": 6, "privacy": privacy}}
    content["data"] = {"source": "diabetes", "local_test": 0.2}
    with pytest.raises(ConfigError, match="a count of right answers, and the score is r2"):
        compose.plan(load_experiment(content))


def test_peers_with_another_objective_are_refused_by_their_first_words():
    hellos = {
        compose.hello_of(compose.plan(load_experiment({**ON_DIABETES, **RING, "task": task})), "schema").experiment
        for task in ({}, {"kind": "regression", "loss": "huber"}, {"loss": "mae"}, {"metrics": ["mae"]})
    }
    assert len(hellos) == 4


def test_an_experiment_without_task_keys_has_the_hash_that_it_had():
    assert "loss" not in load_experiment(RING).to_dict()["task"]
    fingerprint: Any = compose.plan(load_experiment(CLIENTS)).fingerprint
    assert "score_max" not in fingerprint["coordinator"]["secure"]


# --- functions of the user's own --------------------------------------------------------------------------------------

OWN = """
import torch

def pinball(outputs, labels):
    away = labels - outputs
    return torch.maximum(0.9 * away, -0.1 * away).mean()

def no_scalar(outputs, labels):
    return (outputs - labels) ** 2

def raises(outputs, labels):
    return 1 / 0

def endless(outputs, labels):
    return (outputs - labels).mean() * float("inf")

def missed(outputs, labels):
    return float((labels > outputs).mean())

def worded(outputs, labels):
    return "good"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{abs(hash(tmp_path)):x}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return name


def on_mine(**task: Any) -> dict[str, Any]:
    return {**ON_DIABETES, **RING, "rounds": 4, "task": task}


def test_a_loss_and_a_metric_of_ones_own_are_used(mine: str) -> None:
    metric = f"{mine}:missed?better=lower&unit=share above the forecast"
    faster = {"rounds": 40, "train": {**ON_DIABETES["train"], "lr": 0.2}}
    run = fedgossip.simulate({**on_mine(loss=f"{mine}:pinball", metrics=[metric, "mae"]), **faster})
    assert run.score["name"] == "missed" and run.score["better"] == "lower"
    assert run.score["averaged"] < 0.25, "nine of ten labels lie below what the pinball loss of 0.9 learns"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_scalar", "returned a tensor of shape"),
        ("raises", "raised ZeroDivisionError"),
        ("endless", "endless is"),
    ],
)
def test_a_loss_that_is_none_is_named(mine: str, name: str, said: str) -> None:
    with pytest.raises(TrainingError) as refused:
        fedgossip.simulate(on_mine(loss=f"{mine}:{name}"))
    assert f"{mine}:{name}" in str(refused.value) and said in str(refused.value) and refused.value.advice


def test_a_metric_that_gives_no_number_is_named(mine: str) -> None:
    with pytest.raises(TrainingError, match=f"the metric {mine}:worded"):
        fedgossip.simulate(on_mine(metrics=[f"{mine}:worded"]))


def test_a_loss_of_ones_own_is_part_of_what_peers_agree_on(mine: str, tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(on_mine(loss=f"{mine}:pinball")))
    task, _ = compose.task_of(plan.experiment, plan.n)
    before = compose.likeness_of(plan, task).code
    (tmp_path / f"{mine}.py").write_text(OWN.replace("0.9", "0.8"))
    assert before != compose.likeness_of(plan, task).code


def test_a_model_with_too_few_outputs_is_told_how_many(mine: str, tmp_path: Path) -> None:
    (tmp_path / f"{mine}_model.py").write_text(
        "import torch\ndef model(shape, outputs):\n    return torch.nn.Linear(shape[0], 3)\n"
    )
    with pytest.raises(TrainingError) as refused:
        fedgossip.simulate({**on_mine(), "model": {"source": f"{mine}_model:model"}})
    assert "3) for labels of" in str(refused.value) and "1 output" in refused.value.advice


@pytest.mark.sockets
def test_several_processes_train_a_regression_as_one_does():
    data, how = columns(outputs=2), on_cpu(local_steps=2, lr=0.01)
    one = task_of("mlp:12-6-2", data, how, "mse", 2)
    several = task_of("mlp:12-6-2", data, replace(how, processes=2), "mse", 2)
    job = Job(1, 0, one.initial(1))
    np.testing.assert_allclose(several.train([job])[0].difference, one.train([job])[0].difference, atol=1e-5)
    assert several.evaluate([job.vector])[0] == pytest.approx(one.evaluate([job.vector])[0], rel=1e-5)
    whole = Objective("multi-label", "bce", ("auroc",))
    with pytest.raises(ConfigError, match="auroc needs all answers at once"):
        shares = [np.arange(10)]
        labels = columns(MULTI_LABEL, 2)
        TorchTask(labels, labels, shares, "softmax", replace(how, processes=2), seed=1, rounds=1, objective=whole)
