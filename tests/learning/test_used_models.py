"""A model is used where nothing of its run is: folder, load_model, predict, evaluate."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import in_process
from pages import Reader, page

import fedgossip
from fedgossip import ConfigError, load_model, simulate
from fedgossip.base.errors import TrainingError
from fedgossip.base.untrusted_text import cell_text
from fedgossip.core.task import memory_of, segments_of
from fedgossip.data.data import load, split_indices
from fedgossip.learning.models import model_files, scored_tables
from fedgossip.learning.models.model_files import facts_of, tensors_of
from fedgossip.learning.models.scored_tables import examples_of
from fedgossip.plans import compose
from fedgossip.runs.run_directory import Run, save_model

OWN_MODEL = """
import torch
from mine_layers import WIDTH

def model(shape, outputs):
    first = torch.nn.Linear(shape[0], WIDTH)
    first.requires_grad_(False)
    return torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Linear(WIDTH, outputs))

def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, label_smoothing=0.1)
"""

TEXT = "\n\n".join(f"{who}:\nto be or not to be that is the question here and now" for who in ("A", "B", "C") * 8)


def experiment(source: str = "digits", model: str = "softmax", **more: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "topology": {"graph": "ring", "n": 3},
        "data": {"source": source},
        "model": {"source": model},
        "train": {"local_steps": 2, "device": "cpu"},
        **more,
    }


def table(path: Path, kind: str, rows: int = 60) -> Path:
    """Write a table of two columns whose labels are of this kind."""
    rng = np.random.default_rng(5)
    x = rng.normal(3, 2, (rows, 2))
    labels = {
        "classification": {"kind": np.where(x[:, 0] > 3, "high", "low")},
        "regression": {"cost": 100 + 7 * x[:, 0] - x[:, 1]},
        "multi-label": {"a": (x[:, 0] > 3).astype(int), "b": (x[:, 1] > 3).astype(int)},
    }[kind]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["height", "weight", *labels])
        of_rows = zip(*labels.values(), strict=True)
        writer.writerows([*row, *label] for row, label in zip(x.tolist(), of_rows, strict=True))
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def trained(tmp_path: Path, content: dict[str, Any]) -> Run:
    return simulate(content, out=tmp_path / "run", engine="stacked")


def held_out(content: dict[str, Any]) -> Any:
    """The test set of the run as it was read, and what its task measures of the averaged model."""
    loaded = fedgossip.load_experiment(content)
    source, kind = loaded.data.source, loaded.objective.kind
    whole = load(source, seed=loaded.seed, kind=kind)
    return whole.subset(split_indices(whole, loaded.data.test, loaded.seed)[1])


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("digits", "softmax"),
        ("digits", "mlp:64-16-10"),
        ("digits", "cnn:small"),
        ("digits", "cnn:small-bn"),
        ("digits", "cnn:4-8-16"),
        ("breast-cancer", "softmax"),
        ("diabetes", "mlp:10-4-1"),
        ("text", "chars:8"),
        ("text", "gpt:1-8-2"),
    ],
)
def test_a_model_of_every_kind_gives_out_of_its_folder_what_its_run_measured(
    source: str, model: str, tmp_path: Path
) -> None:
    if source == "text":
        (tmp_path / "play.txt").write_text(TEXT)
        source = f"text:{tmp_path}/play.txt?context=16&min_chars=100"
    content = experiment(source, model)
    run = trained(tmp_path, content)
    moved = shutil.move(tmp_path / "run" / "model", tmp_path / "elsewhere")
    loaded = load_model(moved)
    measured = loaded.evaluate(held_out(content))
    assert measured[run.score["name"]] == pytest.approx(run.score["averaged"], rel=1e-5)
    assert measured["loss"] == pytest.approx(run.summary["test_loss"], rel=1e-5)
    assert loaded.facts.score["value"] == run.score["averaged"] and loaded.facts.versions["fedgossip"]


@pytest.mark.parametrize("kind", ["classification", "regression", "multi-label"])
def test_rows_of_a_table_are_scored_by_column_names_in_any_order(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "all.csv", kind)
    label = {"classification": "kind", "regression": "cost", "multi-label": "a,b"}[kind]
    content = experiment(f"csv:{path}?label={label}&scale=standard", task={"kind": kind})
    trained(tmp_path, content)
    rows = rows_of(path)
    with (tmp_path / "new.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["who", "weight", "height"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "who": f"patient {number}"} for number, row in enumerate(rows))
    said = in_process(["predict", "run", "new.csv"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "not read: who" in said.err, said.err
    scored = rows_of(tmp_path / "scored.csv")
    x = np.array([[float(row["height"]), float(row["weight"])] for row in rows])
    answers = load_model(tmp_path / "run")(x)
    names = {
        "classification": ["probability of high", "probability of low"],
        "regression": ["predicted cost"],
        "multi-label": ["predicted a", "predicted b"],
    }[kind]
    np.testing.assert_allclose([[float(row[name]) for name in names] for row in scored], answers, rtol=1e-8)
    assert scored[3]["who"] == "patient 3" and scored[3]["weight"] == rows[3]["weight"]
    if kind == "classification":
        np.testing.assert_allclose(answers.sum(axis=1), 1)
        assert all(row["predicted"] == ("high" if float(row["probability of high"]) > 0.5 else "low") for row in scored)
    told = in_process(["evaluate", "run", "all.csv", "--json"], tmp_path, monkeypatch, capsys)
    by_hand = load_model(tmp_path / "run").evaluate(load(f"csv:{path}?label={label}", kind=kind))
    assert json.loads(told.out) == pytest.approx({"examples": 60, **by_hand})


def test_a_model_reads_words_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{20 + k % 7},{('yes', 'no')[k % 2]},{('ill', 'well')[k % 2]}\n" for k in range(60))
    (tmp_path / "all.csv").write_text("age,smokes,kind\n" + rows)
    source = f"csv:{tmp_path / 'all.csv'}?label=kind&categories=smokes&scale=standard"
    trained(tmp_path, experiment(source, rounds=5))
    (tmp_path / "new.csv").write_text("smokes,age\nno,23\nyes,23\n")
    assert in_process(["predict", "run", "new.csv"], tmp_path, monkeypatch, capsys).code == 0
    assert [row["predicted"] for row in rows_of(tmp_path / "scored.csv")] == ["well", "ill"]
    (tmp_path / "new.csv").write_text("smokes,age\nsometimes,23\n")
    said = in_process(["predict", "run", "new.csv", "--out", "more.csv"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "'sometimes' is none of the 2 categories" in said.err, said.err


def test_outputs_beyond_the_classes_of_the_data_are_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "all.csv", "classification")
    (tmp_path / "wide_outputs.py").write_text(
        """import torch

def model(shape, outputs):
    made = torch.nn.Linear(shape[0], outputs + 3)
    torch.nn.init.constant_(made.bias[-1:], 99.0)
    return made
"""
    )
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, experiment(f"csv:{path}?label=kind", "wide_outputs:model", task={"kind": "classification"}))
    text, _ = scored_tables.scored(load_model(tmp_path / "run", run_code=True), path)
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["predicted"] for row in rows} <= {"high", "low"}
    assert [name for name in rows[0] if name.startswith("probability")] == ["probability of high", "probability of low"]


def test_a_class_name_is_no_order_to_a_terminal_or_a_spreadsheet(tmp_path: Path) -> None:
    """In each row, and in the head of its probability: a model's classes are of whoever made it."""
    path = table(tmp_path / "all.csv", "classification")
    trained(tmp_path, experiment(f"csv:{path}?label=kind&scale=standard", task={"kind": "classification"}))
    facts = next(one for one in (tmp_path / "run" / "model").glob("*.json") if '"high"' in one.read_text())
    facts.write_text(facts.read_text().replace('"high"', '"\\u001b[2J\\u202ehigh"').replace('"low"', '"=low"'))
    text, _ = scored_tables.scored(load_model(tmp_path / "run"), path)
    assert {row["predicted"] for row in csv.DictReader(text.splitlines())} == {"?[2J?high", "'=low"}
    assert all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize(
    ("name", "cell"),
    [("=1", "'=1"), ("-2+3+cmd|'/C", "'-2+3+cmd|'/C"), ("-1.5", "-1.5"), ("+1e-3", "+1e-3"), ("-", "-"), ("è", "è")],
)
def test_numbers_and_names_stay_what_they_are_in_a_cell(name: str, cell: str) -> None:
    assert cell_text(name) == cell


def test_answers_that_are_no_numbers_are_not_written_as_a_class(tmp_path: Path) -> None:
    """A diverged model, or one that somebody hands on: the largest of NaN and NaN is no class."""
    path = table(tmp_path / "all.csv", "classification")
    trained(tmp_path, experiment(f"csv:{path}?label=kind&scale=standard", task={"kind": "classification"}))
    model = load_model(tmp_path / "run")
    with torch.no_grad():
        for one in model.module.parameters():
            one.fill_(float("nan"))
    with pytest.raises(TrainingError, match="numbers that are not finite: nothing is written"):
        scored_tables.scored(model, path)


def test_numbers_are_predicted_in_the_units_of_the_labels(tmp_path: Path) -> None:
    path = table(tmp_path / "all.csv", "regression", 200)
    content = experiment(f"csv:{path}?label=cost&scale=standard", task={"kind": "regression"}, rounds=30)
    trained(tmp_path, content)
    model = load_model(tmp_path / "run")
    x = np.array([[3.0, 3.0], [5.0, 1.0]])
    np.testing.assert_allclose(model(x)[:, 0], [118, 134], atol=1)


def test_layers_that_stay_at_a_node_are_used_with_it(tmp_path: Path) -> None:
    settings = {"personal": "layer.*", "buffers": "local", "local_steps": 2, "device": "cpu"}
    content = experiment(model="cnn:small-bn", train=settings)
    loaded = fedgossip.load_experiment(content)
    task, _ = compose.task_of(loaded, 3)
    simulate(content, task=task, out=tmp_path / "run")
    shared = model_files.facts_of(tmp_path / "run" / "model")
    assert shared.own == (0, 1, 2) and {"layer.weight", "norm1.running_mean"} < set(shared.lacks)
    with pytest.raises(ConfigError, match=r"layer.weight, layer.bias, norm1.running_mean stay at the peers"):
        load_model(tmp_path / "run")
    with pytest.raises(ConfigError, match="nothing there of node 3"):
        load_model(tmp_path / "run", node=3)
    kept = tensors_of(tmp_path / "run" / "model", shared, 1)
    vector = np.concatenate([kept[one.name].ravel() for one in segments_of(task)])
    save_model(tmp_path / "site", task, vector, 1, score={})
    x = load("digits").x[:40]
    at_site = load_model(tmp_path / "site")
    assert at_site.facts.node == 1 and at_site.facts.lacks == () and load_model(tmp_path / "site", node=1)
    with pytest.raises(ConfigError, match="no layers of it stay at a node"):
        load_model(tmp_path / "site", node=2)
    np.testing.assert_array_equal(at_site(x), load_model(tmp_path / "run", node=1)(x))
    assert not np.array_equal(at_site(x), load_model(tmp_path / "run", node=2)(x))
    remembered = memory_of(task, 1)
    layer = at_site.module.get_submodule("layer")
    head = np.concatenate([tensor.detach().numpy().ravel() for tensor in layer.parameters()])
    np.testing.assert_array_equal(head, remembered["personal"])
    variance = at_site.module.get_buffer("norm1.running_var")
    np.testing.assert_array_equal(variance.numpy(), remembered["buffer:norm1.running_var"])


def test_a_model_of_ones_own_comes_with_its_code_and_frozen_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "mine.py").write_text(OWN_MODEL)
    (home / "mine_layers.py").write_text("WIDTH = 12\n")
    monkeypatch.chdir(home)
    content = experiment(model="mine:model", task={"loss": "mine:loss"})
    run = trained(tmp_path, content)
    test = held_out(content)
    shutil.rmtree(home)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "mine.py").write_text("raise RuntimeError('another module of this name')\n")
    with pytest.raises(ConfigError, match=r"made by code that included: mine.py, mine_layers.py") as refused:
        load_model(tmp_path / "run")
    assert "--run-code" in refused.value.advice
    model = load_model(tmp_path / "run", run_code=True)
    assert model.evaluate(test)["loss"] == pytest.approx(run.summary["test_loss"], rel=1e-5)
    assert next(tuple(t.shape) for t in model.module.parameters()) == (12, 64)
    (tmp_path / "run" / "model" / "code" / "mine_layers.py").write_text("WIDTH = 13\n")
    with pytest.raises(ConfigError, match=r"not the code that model.json describes"):
        load_model(tmp_path / "run", run_code=True)


def test_what_is_no_table_of_the_model_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "all.csv", "classification")
    trained(tmp_path, experiment(f"csv:{path}?label=kind"))
    cases = {
        "hight,weight\n1,2\n": "error: other.csv: no column 'height'\nDid you mean 'hight'?",
        "height,weight\n1,two\n": "error: other.csv, line 2, column 'weight': 'two' is not a number",
        "height,weight\n1,\n": "error: other.csv, line 2, column 'weight': nothing there",
        "height,weight,height\n1,2,3\n": "error: other.csv: two columns are called 'height'",
        "height,weight [kg]\n1,2\n": "error: other.csv: column 'weight' is in kg; expected no unit",
        "height,weight,predicted\n1,2,3\n": "error: other.csv: there is a column 'predicted' already",
    }
    for text, expected in cases.items():
        (tmp_path / "other.csv").write_text(text)
        said = in_process(["predict", "run", "other.csv"], tmp_path, monkeypatch, capsys)
        assert said.code == 2 and said.err.startswith(expected), said.err
    said = in_process(["predict", "run", "."], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and said.err.startswith("error: .: cannot be read: a directory"), said.err
    (tmp_path / "other.csv").write_text("height,weight,kind\n1,2,middling\n")
    said = in_process(["evaluate", "run", "other.csv"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "line 2: unknown label 'middling'\nThe model knows high, low." in said.err
    assert not (tmp_path / "scored.csv").exists()


def test_a_folder_that_is_no_whole_model_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, experiment())
    folder = tmp_path / "run" / "model"
    with pytest.raises(ConfigError, match="no model there"):
        load_model(tmp_path)
    weights = bytearray((folder / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(weights)
    with pytest.raises(ConfigError, match=r"not the weights that model.json describes"):
        load_model(folder)
    (folder / "model.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(folder)
    (folder / "model.json").unlink()
    with pytest.raises(ConfigError, match=r"weights and no model.json"):
        load_model(folder)


@pytest.mark.parametrize(
    "facts", [{"shape": [2**40]}, {"shape": [2**31] * 2, "outputs": 2**20}, {"shape": [-5]}, {"shape": [10**30]}]
)
def test_sizes_that_are_not_those_of_the_weights_take_no_memory(tmp_path: Path, facts: dict[str, Any]) -> None:
    """2^40 numbers are 4 TiB; they were asked for before the tensors were compared."""
    trained(tmp_path, experiment())
    folder = tmp_path / "run" / "model"
    told = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**told, **facts}))
    with pytest.raises(ConfigError, match="makes another model than the one that was saved"):
        load_model(folder)


def test_tensors_of_a_task_without_a_recipe_are_kept_and_not_called(tmp_path: Path) -> None:
    simulate({"rounds": 2, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 4}}, out=tmp_path / "run")
    assert (tmp_path / "run" / "model" / "weights.safetensors").exists()
    with pytest.raises(ConfigError, match="without a recipe for its model"):
        load_model(tmp_path / "run")


def test_examples_of_a_model_without_names_are_any_source(tmp_path: Path) -> None:
    trained(tmp_path, experiment())
    model = load_model(tmp_path / "run")
    assert len(examples_of(model, "digits")) == 1797
    with pytest.raises(ConfigError, match=r"examples of shape"):
        examples_of(model, "breast-cancer")
    with pytest.raises(ConfigError, match=r"examples of shape \(3,\); the model learned from \(64,\)"):
        model(np.zeros((2, 3)))


@pytest.mark.anywhere
@pytest.mark.sockets
def test_what_the_page_on_using_a_model_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = table(tmp_path / "patients.csv", "classification").read_text().replace("kind", "outcome", 1)
    (tmp_path / "patients.csv").write_text(text)
    (tmp_path / "new.csv").write_text("weight,height\n24.0,17.1\n")
    Reader(tmp_path).read(page("using"))
    assert rows_of(tmp_path / "scored.csv")[0]["predicted"] in ("high", "low")


@pytest.mark.parametrize("changed", [{"shape": [3]}, {"scale": {"mean": [0.0], "deviation": [1.0, 1.0]}}])
def test_a_model_of_other_columns_than_its_scale_or_shape_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    """Its first use was an error of numpy."""
    facts = {"shape": [2], "encoding": {"columns": [{"name": "age"}, {"name": "dose"}]}}
    (tmp_path / "model.json").write_text(json.dumps(facts))
    assert facts_of(tmp_path).shape == (2,)
    (tmp_path / "model.json").write_text(json.dumps({**facts, **changed}))
    with pytest.raises(ConfigError, match="columns, scale and shape of an example that differ"):
        facts_of(tmp_path)
