"""Smaller models: exported graphs in eight bits, models without their smallest weights, and distillation.

onnxruntime quantises weights, or also inner values.  Pruning sets single weights to zero, or removes the units (rows,
channels) of smallest norm with the next layer's columns: a smaller model of the same kind (Li, Kadav, Durdanovic, Samet
and Graf, Pruning filters for efficient ConvNets, ICLR 2017).

**Distillation**: a small model trained on a large model's logits, by one process, epoch after epoch.

Source: Hinton, Vinyals and Dean, Distilling the knowledge in a neural network, arXiv:1503.02531 (2015), section 2, only
soft targets.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from fedgossip.base.errors import ConfigError, NotWrittenError, needed, reason
from fedgossip.base.vectors import add
from fedgossip.core.task import Job, WholeModel
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CLASSIFICATION, CODE, REGRESSION, Objective
from fedgossip.lab.edge.onnx_model import HOW, INPUT, exported_facts, set_metadata
from fedgossip.learning.measuring import as_learned
from fedgossip.learning.models import models
from fedgossip.learning.models.architectures import Architecture, ConvolutionalSizes, DenseSizes, architecture
from fedgossip.learning.models.loaded_model import LoadedModel, parts_of
from fedgossip.learning.models.model_files import ModelFacts, write_model
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import SOFT_TARGETS
from fedgossip.learning.settings import MeshSettings, TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose
from fedgossip.runs.run_directory import write_whole

# Compacts a graph in eight bits: shorter names, and no duplicate arrays.


ROUNDED = ("", "_quantized", "_Transposed_quantized")
"""Suffixes that onnxruntime gives weights: unchanged, rounded, or transposed and rounded."""


def compact(graph: Any, layers: Iterable[str]) -> None:
    """Shorten the names of inner values, store each constant once, and omit inner shapes; outputs stay the same.

    Names are an eighth of the eight-bit file of 20 000 weights.  `layers`: names that weights keep.  Zero points stay:
    without those of weights onnxruntime 1.32 fuses no linear layer.  A graph with subgraphs keeps its names.
    """
    del graph.graph.value_info[:]
    _once(graph.graph)
    if not any(value.HasField("g") or value.graphs for node in graph.graph.node for value in node.attribute):
        _rename(graph.graph, {name + added: name for name in layers for added in ROUNDED})


def _once(graph: Any) -> None:
    tensors = needed("onnx.numpy_helper", "edge", "a model in eight bits")
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    known: dict[str, str] = {}
    for one in graph.initializer:
        content = (one.data_type, tuple(one.dims), tensors.to_array(one).tobytes())
        known[one.name] = first.setdefault(content, one.name)
    for node in graph.node:
        node.input[:] = [known.get(name, name) for name in node.input]
    kept = [one for one in graph.initializer if known[one.name] == one.name]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _rename(graph: Any, weights: Mapping[str, str]) -> None:
    constants = {one.name for one in graph.initializer}
    short: dict[str, str] = {name: name for name in ("", *(one.name for one in (*graph.input, *graph.output)))}

    def shorten(name: str) -> str:
        return short.setdefault(name, weights[name] if name in constants & weights.keys() else str(len(short)))

    for one in graph.initializer:
        one.name = shorten(one.name)
    for node in graph.node:
        node.name = ""
        node.input[:] = [shorten(name) for name in node.input]
        node.output[:] = [shorten(name) for name in node.output]


CALIBRATED = 256
"""Maximum number of examples for the ranges of inner values."""
LAYERS = ("Conv", "Gemm", "MatMul", "Relu", "MaxPool")
"""Operators computed in eight bits: not the scaling of the columns, and not the probabilities."""


def dynamic(graph: Any) -> Any:
    """Return a graph with eight-bit weights of linear layers; their input ranges are computed at run time."""
    tool = _tool()
    return _write(lambda source, to: tool.quantize_dynamic(source, to, op_types_to_quantize=["Gemm", "MatMul"]), graph,
                 "int8 dynamic")  # fmt: skip


def static(graph: Any, examples: Dataset) -> Any:
    """Return a graph that computes in eight bits, with ranges from unscaled examples, float32."""
    tool = _tool()
    rows = iter(np.asarray(examples.x[:CALIBRATED], np.float32))

    class CalibrationRows(tool.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> dict[str, Any] | None:
            return next(_name_rows(rows), None)

    def quantize(source: str, to: str) -> None:
        tool.quantize_static(
            source, to, CalibrationRows(), quant_format=tool.QuantFormat.QDQ, per_channel=True,
            op_types_to_quantize=[*LAYERS], activation_type=tool.QuantType.QInt8, weight_type=tool.QuantType.QInt8,
        )  # fmt: skip

    return _write(quantize, graph, "int8 static")


def _name_rows(rows: Iterator[Any]) -> Iterator[dict[str, Any]]:
    return ({INPUT: row[None]} for row in rows)


def _tool() -> Any:
    return needed("onnxruntime.quantization", "edge", "a model in eight bits")


def _write(quantize: Any, graph: Any, how: str) -> Any:
    onnx = needed("onnx", "edge", "a model in eight bits")
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises a step without effect for graphs without inner shapes
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, to = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
            source.write_bytes(graph.SerializeToString())
            quantize(str(source), str(to))
            found = onnx.load(str(to))
    finally:
        root.setLevel(level)
    compact(found, [one.name for one in graph.graph.initializer])
    for entry in graph.metadata_props:
        set_metadata(found, entry.key, entry.value)
    set_metadata(found, HOW, how)
    return found


def structured(model: LoadedModel, share: float) -> LoadedModel:
    """Return the model without `share` of the units of each hidden layer, 0 < share < 1; each layer keeps at least one.

    Raises ConfigError without hidden layers, or without a name for the smaller form.
    """
    facts = model.facts
    vocabulary = len(facts.vocabulary) if facts.vocabulary is not None else None
    sized = None if facts.document else architecture(facts.source, facts.shape, facts.outputs, vocabulary)
    source = _thinner(facts.source, sized, share)
    tensors = {name: tensor.detach() for name, tensor in model.module.named_parameters()}
    layers = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    for layer, following in pairwise(layers):
        weight, columns = tensors[f"{layer}.weight"], tensors[f"{following}.weight"]
        keep = _largest(weight.flatten(1).norm(dim=1), count_kept(len(weight), share))
        tensors[f"{layer}.weight"], tensors[f"{layer}.bias"] = weight[keep], tensors[f"{layer}.bias"][keep]
        by_units = torch.unflatten(columns, 1, (len(weight), -1))  # behind a flattened image a unit has many columns
        tensors[f"{following}.weight"] = by_units[:, keep].flatten(1, 2)
    module = models.build(source, facts.shape, facts.outputs, facts.seed)
    module.load_state_dict(tensors)
    layout = tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items())
    return model.having(module, source=source, layout=layout, schema=Layout.from_module(module).schema)


def zeroed(model: LoadedModel, share: float) -> LoadedModel:
    """Return the model with `share` of each layer's weights, the smallest, set to zero; biases stay.  Raises
    ConfigError without layers.
    """
    module = deepcopy(model.module)
    weights = [one for one in module.parameters() if one.dim() > 1]
    if not weights:
        raise ConfigError(f"{model.facts.source} has no layers whose weights could be zero", "Leave --prune out.")
    with torch.no_grad():
        for one in weights:
            least = torch.argsort(one.abs().flatten(), stable=True)[: round(share * one.numel())]
            one.view(-1)[least] = 0
    return model.having(module)


def count_kept(units: int, share: float) -> int:
    """Return the number of remaining units of a layer after removing `share` of them."""
    return max(1, units - round(share * units))


def _thinner(source: str, sized: Architecture | None, share: float) -> str:
    match sized:
        case DenseSizes((inputs, *hidden, outputs)) if hidden:
            return "mlp:" + "-".join(map(str, [inputs, *(count_kept(one, share) for one in hidden), outputs]))
        case ConvolutionalSizes(norm=False):
            hidden = [*sized.channels, *sized.sizes[1:-1]]
            return "cnn:" + "-".join(str(count_kept(one, share)) for one in hidden)
    text = f"{source}: --structured takes units out of mlp and cnn models with hidden layers, without BatchNorm"
    raise ConfigError(text, "Leave --structured out, which makes no file smaller; or train a smaller model.")


def _largest(norms: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the `count` largest, ascending; on ties the last."""
    return torch.argsort(norms, stable=True)[len(norms) - count :].sort().values


def distilled(
    teacher: LoadedModel,
    examples: Dataset,
    student: str,
    settings: TrainSettings,
    *,
    temperature: float,
    epochs: int,
    seed: int,
) -> LoadedModel:
    """Return the model of source `student`, trained on the outputs of `teacher` for unscaled examples.

    The same bits each time on one kind of machine.  Raises ConfigError for a teacher without classes, and an unsuitable
    student; TrainingError if training diverges.
    """
    facts = teacher.facts
    check(facts, student)
    scaled = as_learned(examples, facts)
    answers = teacher.outputs_of(scaled.x).numpy()
    labelled = replace(scaled, y=answers, classes=0, class_names=(), kind=REGRESSION)
    module = models.build(student, facts.shape, facts.outputs, seed)
    objective = Objective(REGRESSION, f"{SOFT_TARGETS}?temperature={temperature!r}", ("loss",))
    train(module, student, labelled, settings, objective, seed, epochs)
    return teacher.having(module, **_make_facts(facts, module, student, seed))


def check(facts: ModelFacts, student: str) -> None:
    """Raise ConfigError for a teacher without classes, and for a student that does not fit its examples."""
    if facts.kind != CLASSIFICATION:
        text = f"{facts.source} is a model of {facts.kind}; distilling is for classification"
        raise ConfigError(text, "Train a small model by an experiment of its own.")
    if architecture(student, facts.shape, facts.outputs) is None:
        text = f"{student}: a student has a name, and is no function of your own"
        raise ConfigError(text, "Name a softmax, an mlp or a cnn.")


def write(model: LoadedModel, folder: Path, score: dict[str, Any]) -> None:
    """Write the model as a new folder.  Raises ConfigError if the folder exists, or cannot be written."""
    if folder.exists():
        raise ConfigError(f"{folder}: there already", "Name another folder with --out.")
    tensors = {name: tensor.detach().numpy() for name, tensor in parts_of(model.module).items()}
    about = {**msgspec.to_builtins(model.facts), "score": score, "versions": compose.versions()}
    try:
        write_model(folder, WholeModel(tensors, about), write_whole)
    except (OSError, NotWrittenError) as error:
        raise ConfigError(f"{folder}: cannot be written: {reason(error)}", "Name another folder with --out.") from None


def accuracy(model: LoadedModel, examples: Dataset) -> float:
    """Return the share of unscaled examples with a correctly predicted class."""
    return float(np.mean(model(examples.x).argmax(-1) == examples.y))


def agreement(one: LoadedModel, other: LoadedModel, examples: Dataset) -> float:
    """Return the share of unscaled examples with the same predicted class from both."""
    return float(np.mean(one(examples.x).argmax(-1) == other(examples.x).argmax(-1)))


def _make_facts(facts: ModelFacts, module: nn.Module, student: str, seed: int) -> dict[str, Any]:
    return {
        "source": student,
        "seed": seed,
        "schema": Layout.from_module(module).schema,
        "loss": "cross-entropy",
        "metrics": exported_facts(facts).metrics,
        "lacks": (),
        "own": (),
        "node": None,
        "code": "",
        "modules": (),
        "document": "",
    }


def retrained(model: LoadedModel, examples: Dataset, settings: TrainSettings, epochs: int) -> LoadedModel:
    """Train a model further, in place, on unscaled examples, by its run's loss and settings; return it.

    Raises ConfigError for a user's loss, and other examples; TrainingError if it diverges.
    """
    facts = model.facts
    if CODE.find_name(facts.loss):
        text = f"{facts.source} was trained by {facts.loss}, a loss of your own"
        raise ConfigError(text, "Leave --epochs out, and train the smaller model by an experiment.")
    objective = Objective(facts.kind, facts.loss, ("loss",))
    train(model.module, facts.source, as_learned(examples, facts), settings, objective, facts.seed, epochs)
    return model


def train(
    module: nn.Module,
    source: str,
    scaled: Dataset,
    settings: TrainSettings,
    objective: Objective,
    seed: int,
    epochs: int,
) -> None:
    """Train the module of this source, in place: a function of its weights and of all arguments."""
    alone = replace(
        settings, local_steps=None, local_epochs=1, personal="", buffers="average", processes=1, parallel="ddp",
        mesh=MeshSettings(), count_lost=False,
    )  # fmt: skip
    everything = np.arange(len(scaled))
    task = TorchTask(
        scaled,
        scaled.subset(everything[:1]),
        [everything],
        source,
        alone,
        seed=seed,
        rounds=epochs,
        objective=objective,
    )
    vector = task.layout.read(module)
    for epoch in range(epochs):
        (update,) = task.train([Job(0, epoch, vector)])
        assert update.difference is not None, "a task of torch gives differences"
        vector = add(vector, update.difference)
    task.layout.write(module, vector)
