"""A model as an ONNX file: what it answers, what it states about itself, and how it is measured."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Output, in_process
from pages import Reader, page
from safetensors.numpy import load_file, save_file
from test_used_models import OWN_MODEL, TEXT, experiment, held_out, table, trained

from fedgossip import ConfigError, load_model
from fedgossip.base.errors import TrainingError
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.lab.edge import bench, compression, onnx_model
from fedgossip.lab.edge.onnx_model import METADATA, PART, OnnxModel, open_onnx
from fedgossip.learning.one_model.losses import Criterion

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture
def type_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def typed(line: str) -> Output:
        return in_process(["model", *line.split()], tmp_path, monkeypatch, capsys)

    return typed


def exported(tmp_path: Path, content: dict[str, Any], **how: Any) -> OnnxModel:
    trained(tmp_path, content)
    model = load_model(tmp_path / "run", **how)
    onnx_model.write(onnx_model.graph_of(model), model, tmp_path / "model.onnx")
    return open_onnx(tmp_path / "model.onnx")


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "kind", ["regression", pytest.param("classification", marks=LONG), pytest.param("multi-label", marks=LONG)]
)
def test_a_file_answers_as_read_what_the_model_does(tmp_path: Path, kind: str) -> None:
    labels = {"classification": "kind", "regression": "cost", "multi-label": "a,b"}[kind]
    source = f"csv:{table(tmp_path / 'rows.csv', kind)}?label={labels}&scale=standard"
    content = experiment(source, task={"kind": kind})
    file, model = exported(tmp_path, content), load_model(tmp_path / "run")
    x = np.random.default_rng(3).normal(3, 2, (7, 2))
    assert np.abs(file(x) - model(x)).max() <= 1e-5 * max(1, np.abs(model(x)).max())
    test = held_out(content)
    ours, theirs = file.evaluate(test), model.evaluate(test)
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, abs=1e-4, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "layers"),
    [("mlp:64-32-10", {"Gemm", "Relu"}), pytest.param("cnn:small-bn", {"Conv", "MaxPool"}, marks=LONG)],
)
def test_a_file_is_sound_and_says_what_it_is(tmp_path: Path, model: str, layers: set[str]) -> None:
    file = exported(tmp_path, experiment(model=model))
    graph = onnx.load(file.path)
    onnx.checker.check_model(graph, full_check=True)
    assert [one.version for one in graph.opset_import if not one.domain] == [onnx_model.OPSET]
    assert layers <= {node.op_type for node in graph.graph.node}
    assert file.facts.source == model and file.facts.classes == tuple("0123456789")
    assert b"site-packages" not in file.path.read_bytes() and str(tmp_path).encode() not in file.path.read_bytes()
    for batch in (1, 3):
        assert file(np.zeros((batch, 64))).shape == (batch, 10)


@pytest.mark.long
def test_a_mean_far_from_zero_costs_no_digits(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    (tmp_path / "far.csv").write_text(
        "year,kind\n" + "".join(f"{2000 + x / 100:.4f},{'new' if x > 0 else 'old'}\n" for x in rng.normal(size=80))
    )
    content = experiment(f"csv:{tmp_path / 'far.csv'}?label=kind&scale=standard")
    file, model = exported(tmp_path, content), load_model(tmp_path / "run")
    x = np.float32(2000 + rng.normal(size=(50, 1)) / 100)
    assert np.abs(file(x) - model(x)).max() < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("model", ["chars:16", "gpt:1-16-2"])
def test_texts_of_any_length_are_answered(tmp_path: Path, model: str) -> None:
    (tmp_path / "plays.txt").write_text(TEXT)
    content = experiment(f"text:{tmp_path / 'plays.txt'}?context=8&min_chars=40", model)
    file, ours = exported(tmp_path, content), load_model(tmp_path / "run")
    x = np.random.default_rng(1).integers(0, ours.facts.outputs, (3, 5))
    with torch.no_grad():
        wanted = ours.module(torch.from_numpy(x)).softmax(-1).numpy()
    assert np.abs(file.answer(x) - wanted).max() < 1e-5


@pytest.mark.long
def test_a_module_of_ones_own_is_exported_and_its_own_loss_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steered.py").write_text(OWN_MODEL.replace("mine_layers", "steered_layers"))
    (tmp_path / "steered_layers.py").write_text("WIDTH = 5\n")
    content = experiment(model="steered:model", task={"loss": "steered:loss"})
    file = exported(tmp_path, content, run_code=True)
    assert file.facts.loss == "cross-entropy" and not file.facts.code
    assert file(np.zeros((2, 64))).shape == (2, 10)


@pytest.mark.long
def test_a_forward_pass_without_a_graph_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "branching.py").write_text(
        "import torch\n\nclass Branching(torch.nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x if x.sum() > 0 else -x)\n\n"
        "def model(shape, outputs):\n    return Branching(shape[0], outputs)\n"
    )
    with pytest.raises(ConfigError, match="cannot put it down as a graph"):
        exported(tmp_path, experiment(model="branching:model"), run_code=True)


def test_a_file_that_answers_otherwise_than_torch_is_not_written(tmp_path: Path) -> None:
    trained(tmp_path, experiment(model="mlp:64-8-10"))
    model = load_model(tmp_path / "run")
    graph = onnx_model.graph_of(model)
    weight = next(one for one in graph.graph.initializer if len(one.dims) == 2)
    values = onnx.numpy_helper.to_array(weight) + np.float32(0.01)
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    with pytest.raises(TrainingError, match="differ from torch's by"):
        onnx_model.write(graph, model, tmp_path / "model.onnx")
    assert not [*tmp_path.glob("model.onnx*")]


def test_export_and_bench_as_they_are_typed(tmp_path: Path, type_in: Any) -> None:
    trained(tmp_path, experiment(model="mlp:64-32-10"))
    said = type_in("export run --to model.onnx")
    assert said.code == 0 and "examples float32 [batch, 64]" in said.out and "from torch by at most" in said.out
    told, _, words = said.err.partition("fedgossip model ")
    assert told == "Measure it, compared with torch:  " and words == "bench model.onnx run\n"
    assert type_in(f"{words.strip()} --calls 10").code == 0  # as it was told
    said = type_in("bench model.onnx --calls 10")
    assert said.code == 0 and "the test set of run" in said.out
    assert [line.split()[:3] for line in said.out.splitlines()[-2:]] == [
        ["run", "torch", "float32"],
        ["model.onnx", "onnx", "float32"],
    ]
    (tmp_path / "alone").mkdir()
    shutil.move(tmp_path / "model.onnx", tmp_path / "alone")
    said = type_in("bench alone/model.onnx --calls 10 --data digits --json")
    found = json.loads(said.out)
    assert found["examples"] == 1797 and "name the run too" in said.err
    (one,) = found["models"]
    assert one["size"] == (tmp_path / "alone" / "model.onnx").stat().st_size and 0 < one["p50"] <= one["p99"]


def test_eight_bits_are_smaller_and_answer_as_well(tmp_path: Path, type_in: Any) -> None:
    train = {"local_steps": 20, "device": "cpu"}
    trained(tmp_path, experiment(model="mlp:64-256-10", train=train, rounds=10))
    lines = ["export run --to whole.onnx", "export run --to d.onnx --quantize dynamic"]
    assert [type_in(line).code for line in lines] == [0, 0]
    said = type_in("export run --to s.onnx --quantize static")
    assert said.code == 0 and "participant 0 trained on" in said.err
    found = json.loads(type_in("bench whole.onnx d.onnx s.onnx --calls 10 --json").out)["models"]
    whole, *eight = found[1:]
    assert [one["how"] for one in found] == ["float32", "float32", "int8 dynamic", "int8 static"]
    assert whole["score"] > 0.9
    for one in eight:
        assert one["size"] < 0.4 * whole["size"] and one["score"] > whole["score"] - 0.01


def test_short_names_and_constants_kept_once_change_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, experiment(model="cnn:small"))
    model = load_model(tmp_path / "run")
    graph, examples = onnx_model.graph_of(model), held_out(experiment(model="cnn:small"))
    rows = examples.x[:40].astype(np.float32)

    def eight_bits(name: str) -> tuple[OnnxModel, set[str]]:
        made = compression.static(graph, examples)
        onnx_model.write(made, model, tmp_path / name, within=None)
        return open_onnx(tmp_path / name), {one.name for one in made.graph.initializer}

    short, names = eight_bits("short.onnx")
    with monkeypatch.context() as patched:
        patched.setattr(compression, "compact", lambda graph, layers: None)
        long, _ = eight_bits("long.onnx")
    assert np.array_equal(short(rows), long(rows))
    assert short.path.stat().st_size < long.path.stat().st_size - 3000
    assert {name for name in names if not name.isdigit()} >= {f"model.{name}" for name in model.module.state_dict()}


@pytest.mark.long
@pytest.mark.data
def test_eight_bits_of_a_cnn_take_three_tenths_of_the_room_and_half_a_point_at_most(
    tmp_path: Path, type_in: Any, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGOSSIP_DATA", str(real_data))
    train = {"local_steps": 20, "device": "cpu"}
    trained(tmp_path, experiment("mnist", "cnn:small", train=train, rounds=20, topology={"graph": "ring", "n": 4}))
    lines = ["export run --to whole.onnx", "export run --to s.onnx --quantize static"]
    assert [type_in(line).code for line in lines] == [0, 0]
    found = json.loads(type_in("bench whole.onnx s.onnx --calls 10 --json").out)
    _, whole, eight = found["models"]
    assert found["examples"] == 2000 and eight["size"] <= 0.3 * whole["size"]
    assert whole["score"] > 0.94 and eight["score"] >= whole["score"] - 0.005


@pytest.mark.parametrize(
    ("source", "thinner"),
    [("mlp:64-16-9-10", "mlp:64-8-5-10"), ("cnn:4-8-16", "cnn:2-4-8"), ("cnn:small", "cnn:8-16")],
)
def test_units_that_give_nothing_go_first_and_no_answer_changes(tmp_path: Path, source: str, thinner: str) -> None:
    trained(tmp_path, experiment(model=source))
    model = load_model(tmp_path / "run")
    *hidden, _ = [one for one in model.module.children() if isinstance(one, torch.nn.Linear | torch.nn.Conv2d)]
    with torch.no_grad():
        for layer in hidden:
            silent = torch.from_numpy(np.random.default_rng(5).permutation(len(layer.weight))[: len(layer.weight) // 2])
            layer.weight[silent] = 0
            assert layer.bias is not None
            layer.bias[silent] = 0
    found = compression.structured(model, 0.5)
    x = np.random.default_rng(6).normal(8, 4, (20, 64))
    assert found.facts.source == thinner and np.abs(found(x) - model(x)).max() < 1e-5


def test_half_of_the_units_make_a_file_smaller_and_faster_and_zeros_do_not(tmp_path: Path, type_in: Any) -> None:
    trained(tmp_path, experiment(model="mlp:64-768-768-10", rounds=1))
    said = type_in("export run --to zeros.onnx --prune 0.5")
    assert said.code == 0 and "neither size nor latency change" in said.out
    said = type_in("export run --to half.onnx --prune 0.5 --structured")
    assert said.code == 0 and "mlp:64-768-768-10 to mlp:64-384-384-10" in said.out
    found = json.loads(type_in("bench zeros.onnx half.onnx --calls 60 --json").out)["models"]
    whole, zeros, half = found
    assert half["how"] == "float32, 50 % pruned"
    assert zeros["size"] == pytest.approx(whole["size"], rel=0.01) and half["size"] < 0.3 * whole["size"]
    assert half["p50"] < 0.7 * zeros["p50"]
    weights = [onnx.numpy_helper.to_array(one) for one in onnx.load(tmp_path / "zeros.onnx").graph.initializer]
    assert [np.mean(one == 0) for one in weights if one.ndim == 2] == [0.5] * 3


def test_two_epochs_bring_back_what_half_of_the_units_knew_with_the_same_bits_twice(tmp_path: Path) -> None:
    content = experiment(model="mlp:64-64-32-10", train={"local_steps": 20, "device": "cpu"}, rounds=15)
    trained(tmp_path, content)
    whole, test = load_model(tmp_path / "run"), held_out(content)
    path = bench.needed_experiment(tmp_path / "run")
    examples = bench.trained_on(path, None, everybody=True).examples
    settings = bench.settings_of(tmp_path / "run")
    found = [compression.retrained(compression.structured(whole, 0.5), examples, settings, 2) for _ in range(2)]
    accuracy = whole.evaluate(test)["accuracy"]
    assert compression.structured(whole, 0.5).evaluate(test)["accuracy"] < accuracy - 0.01  # something was lost
    assert found[0].evaluate(test)["accuracy"] >= accuracy - 0.01
    assert all(
        torch.equal(one, other)
        for one, other in zip(found[0].module.parameters(), found[1].module.parameters(), strict=True)
    )


def test_the_loss_of_soft_targets_is_that_of_the_paper() -> None:
    """T^2 KL; for a high temperature its gradient is (z - v) / k of centred logits: Hinton et al. 2015, equation 4."""
    theirs = torch.tensor(np.random.default_rng(1).normal(size=(6, 4))).requires_grad_(False)
    theirs -= theirs.mean(1, keepdim=True)
    ours = (theirs.flip(0) * 0.5).requires_grad_(True)
    for temperature in (1.0, 3.0, 1000.0):
        criterion = Criterion(Objective("regression", f"soft-targets?temperature={temperature!r}", ("loss",)))
        p, q = ((one / temperature).softmax(1) for one in (theirs, ours))
        wanted = temperature**2 * (p * (p / q).log()).sum(1).mean()
        assert criterion.mean(ours, theirs).item() == pytest.approx(wanted.item(), rel=1e-6)
        assert criterion.summed(ours, theirs).item() == pytest.approx(6 * wanted.item(), rel=1e-6)
        assert criterion.mean(theirs, theirs).item() == pytest.approx(0, abs=1e-9)
    (gradient,) = torch.autograd.grad(criterion.summed(ours, theirs), ours)
    assert gradient.numpy() == pytest.approx(((ours - theirs) / 4).detach().numpy(), abs=2e-3)


def test_a_student_learns_from_answers_and_not_from_labels_with_the_same_bits_twice(tmp_path: Path) -> None:
    train = {"local_steps": 20, "device": "cpu"}
    trained(tmp_path, experiment(model="mlp:64-64-10", train=train, rounds=15))
    teacher = load_model(tmp_path / "run")
    path = bench.needed_experiment(tmp_path / "run")
    examples = bench.trained_on(path, None, everybody=True).examples
    settings = bench.settings_of(tmp_path / "run")

    def distilled(seed: int, given: Dataset) -> dict[str, torch.Tensor]:
        how: Any = {"temperature": 2.0, "epochs": 1, "seed": seed}
        return compression.distilled(teacher, given, "mlp:64-16-10", settings, **how).module.state_dict()

    once, unlabelled = distilled(1, examples), distilled(1, replace(examples, y=np.zeros_like(examples.y)))
    assert all(torch.equal(once[name], unlabelled[name]) for name in once)
    other = distilled(2, examples)
    assert not any(torch.equal(once[name], other[name]) for name in once)


def test_a_student_is_a_model_like_any_other(tmp_path: Path, type_in: Any) -> None:
    train = {"local_steps": 20, "device": "cpu"}
    trained(tmp_path, experiment(model="mlp:64-64-32-10", train=train, rounds=15))
    said = type_in("distill run --student mlp:64-16-10 --temperature 2 --epochs 10 --out small")
    assert said.code == 0 and "with the teacher on" in said.out and "model bench run small" in said.err
    whole, small = json.loads(type_in("bench run small --calls 10 --json").out)["models"]
    assert whole["score"] > 0.9 and small["score"] > whole["score"] - 0.02 and small["size"] < 0.4 * whole["size"]
    told = load_model(tmp_path / "small").facts
    assert told.score["value"] == pytest.approx(small["score"]) and told.source == "mlp:64-16-10"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("export run --to x.onnx --data digits", "--data is for --quantize static"),
        ("export run/model --to x.onnx --quantize static --data breast-cancer", "examples of shape (30,)"),
        ("export run --to x.onnx --structured", "--structured without --prune"),
        ("export run --to x.onnx --prune 0.5 --epochs 2", "--epochs is for --prune SHARE --structured"),
        ("export run --to x.onnx --prune 0.5 --structured", "softmax: --structured takes units out of mlp and cnn"),
        ("distill run --student mlp:64-8-9 --out small", "the data have 64 inputs and 10 classes"),
        ("distill run --student chars:8 --out small", "needs text"),
        ("distill run --student mine:model --out small", "is no function of your own"),
        ("distill run --student softmax --out there.txt", "there already"),
        ("distill run/model --student softmax --out small --data breast-cancer", "examples of shape (30,)"),
        ("export run --to there.txt", "there already"),
        ("export run --to no/model.onnx", "there is no folder no"),
        ("export nothing", "no model there"),
        ("bench there.txt", "there.txt: no ONNX file"),
        ("bench missing.onnx", "there is no such file"),
        ("bench strange.onnx", "fedgossip has not made"),
        ("bench torn.onnx", "cannot be read"),
        ("bench run --data breast-cancer", "examples of shape (30,)"),
        ("bench run --data missing.csv", "there is no file missing.csv"),
        ("bench run --data diabetes", "its labels are for regression"),
    ],
)
def test_bad_input_gets_a_line_and_advice(tmp_path: Path, type_in: Any, line: str, wanted: str) -> None:
    trained(tmp_path, experiment())
    (tmp_path / "there.txt").write_text("words")
    for name, said in {"strange": "", "torn": "{"}.items():
        value = onnx.helper.make_tensor_value_info("examples", onnx.TensorProto.FLOAT, [1])
        out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
        graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["examples"], ["y"])], name, [value], [out])
        opset = [onnx.helper.make_opsetid("", 18)]
        made = onnx.helper.make_model(graph, ir_version=9, opset_imports=opset)
        if said:
            onnx_model.set_metadata(made, "fedgossip", said)
        (tmp_path / f"{name}.onnx").write_bytes(made.SerializeToString())
    found = type_in(line)
    assert found.code == 2 and wanted in found.err and len(found.err.splitlines()) <= 3


def test_a_model_that_answers_what_is_no_number_gets_no_score(tmp_path: Path, type_in: Any) -> None:
    trained(tmp_path, experiment())
    weights, facts = (tmp_path / "run/model" / name for name in ("weights.safetensors", "model.json"))
    tensors = load_file(weights)
    next(iter(tensors.values()))[0] = np.nan
    save_file(tensors, weights)
    told = json.loads(facts.read_text())
    facts.write_text(json.dumps({**told, "weights": sha256(weights.read_bytes()).hexdigest()}))
    for line in ("bench run --calls 10", "export run --to x.onnx", "distill run --student softmax --out small"):
        said = type_in(line)
        assert said.code == TrainingError.exit_code and re.search(r"cannot be used: .*; tensor '.*' is the", said.err)


def test_models_of_other_tasks_are_not_put_side_by_side(tmp_path: Path) -> None:
    trained(tmp_path, experiment())
    one = load_model(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    trained(tmp_path, experiment("breast-cancer"))
    other = load_model(tmp_path / "run")
    with pytest.raises(ConfigError, match="answers another question"):
        bench.measured([("one", tmp_path, one), ("other", tmp_path, other)], one.like, calls=10, threads=1)


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.anywhere
def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path).read(page("edge"))
    assert (tmp_path / "model.onnx").is_file()


def test_a_model_with_an_exit_is_two_files_and_answers_alone_where_it_is_sure(tmp_path: Path, type_in: Any) -> None:
    """Share, bytes and answers by hand, from torch's outputs at the exit and at the end."""
    content = experiment(model="mlp:64-24-16-10?exit=1")
    trained(tmp_path, content)
    model, test = load_model(tmp_path / "run"), held_out(content)
    with torch.no_grad():
        h = model.module.device(torch.from_numpy(test.x).float())  # type: ignore[operator]
        first, last = (part(h).softmax(-1).numpy() for part in (model.module.exit, model.module.server))  # type: ignore[operator]
    entropy = -(first * np.log(first)).sum(1) / np.log(10)
    threshold = float(f"{np.median(entropy):.3f}")
    alone = entropy <= threshold
    assert 0.3 < alone.mean() < 0.7
    assert type_in(f"export run --to cut.onnx --exit {threshold}").code == 0
    file = open_onnx(tmp_path / "cut.device.onnx")
    assert np.abs(file(test.x) - np.where(alone[:, None], first, last)).max() < 1e-5
    said = type_in("bench cut.device.onnx --calls 10 --json")
    (row,) = [one for one in json.loads(said.out)["models"] if one["runtime"] == "onnx"]
    assert row["on_device"] == pytest.approx(alone.mean()) and row["sent"] == pytest.approx(4 * 24 * (~alone).mean())
    right = np.where(alone, first.argmax(1), last.argmax(1)) == test.y
    assert row["score"] == pytest.approx(right.mean())
    assert "on the device" in type_in("bench cut.device.onnx --calls 10").out
    assert "expected one, examples" in type_in("bench cut.server.onnx").err
    assert "with --quantize" in type_in("export run --to more.onnx --exit 0.5 --quantize dynamic").err
    (tmp_path / "cut.server.onnx").write_bytes((tmp_path / "cut.device.onnx").read_bytes())
    assert "not the server's part of cut.device.onnx" in type_in("bench cut.device.onnx").err
    (tmp_path / "cut.server.onnx").unlink()
    assert "Put both into one folder" in type_in("bench cut.device.onnx").err


def test_a_model_without_an_exit_is_not_cut(tmp_path: Path, type_in: Any) -> None:
    trained(tmp_path, experiment(model="mlp:64-8-10"))
    said = type_in("export run --to cut.onnx --exit 0.5")
    assert said.code == 2 and "a model of classes with an exit is cut in two" in said.err
    assert not list(tmp_path.glob("cut*"))


def written(path: Path, given: str, outputs: int, part: Any = None, **facts: Any) -> bytes:
    """Write a file of ONNX by hand: softmax of 4 numbers times zeros, and the numbers where it is a device's `part`."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", [given, "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    names = ["y"] if part is None else ["y", "f"]
    nodes += [] if part is None else [helper.make_node("Identity", [given], ["f"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(given, floats, ["b", "c"])],
        [helper.make_tensor_value_info(name, floats, None) for name in names],
        [onnx.numpy_helper.from_array(np.zeros((4, outputs), np.float32), "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    about: dict[str, Any] = {"source": "softmax", "kind": "classification", "shape": [4], "outputs": 2, **facts}
    onnx.helper.set_model_props(
        made, {METADATA: json.dumps(about), **({} if part is None else {PART: json.dumps(part)})}
    )
    content: bytes = made.SerializeToString()
    path.write_bytes(content)
    return content


@pytest.mark.parametrize(
    ("facts", "outputs", "words"),
    [
        ({"shape": [-4]}, 2, "a shape or a scale that cannot be"),
        ({"scale": {"mean": [0.0], "deviation": [1.0]}}, 2, "columns, scale and shape of an example that differ"),
        ({"shape": [5]}, 2, "onnxruntime cannot run it"),
        ({}, 3, r"answers of shape \(1, 3\); expected \(1, 2\)"),
    ],
)
def test_a_file_that_says_other_than_it_does_is_refused(
    tmp_path: Path, facts: dict[str, Any], outputs: int, words: str
) -> None:
    written(tmp_path / "m.onnx", "examples", outputs, **facts)
    with pytest.raises(ConfigError, match=words):
        open_onnx(tmp_path / "m.onnx")(np.ones((1, *facts.get("shape", [4])), np.float32))


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_whose_numbers_lie_in_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Also in a graph inside of a layer; onnxruntime opens them by name, from the folder where the command is typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(np.zeros((4, 2), np.float32).tobytes())
    made = onnx.load_from_string(written(tmp_path / "m.onnx", "examples", 2))
    if inside:
        kept = onnx.helper.make_graph([made.graph.node[0]], "inner", [], [], [made.graph.initializer[0]])
        made.graph.node.append(onnx.helper.make_node("If", ["c"], ["d"], then_branch=kept, else_branch=kept))
        tensor = made.graph.node[-1].attribute[0].g.initializer[0]
    else:
        tensor = made.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, "secret.bin")
    tensor.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ConfigError, match="numbers of it lie in another file"):
        open_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("given", "outputs", "words"),
    [("other", 2, "onnxruntime cannot run it"), ("features", 3, "another shape"), ("link", 2, "link")],
)
def test_a_servers_part_of_another_form_or_elsewhere_is_refused(
    tmp_path: Path, given: str, outputs: int, words: str
) -> None:
    """Its file is not named by the user: a link from there leads nowhere."""
    folder = tmp_path / "handed on"
    folder.mkdir()
    at = tmp_path / "elsewhere.onnx" if given == "link" else folder / "m.server.onnx"
    server = sha256(written(at, "features" if given == "link" else given, outputs)).hexdigest()
    if given == "link":
        (folder / "m.server.onnx").symlink_to(at)
    written(folder / "m.device.onnx", "examples", 2, part={"threshold": 0.5, "features": 4, "server": server})
    with pytest.raises(ConfigError, match=words):
        open_onnx(folder / "m.device.onnx")(np.ones((1, 4), np.float32))
