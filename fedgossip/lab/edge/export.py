"""A model as one ONNX file: scaling, layers and probabilities, so that its answers equal those of `LoadedModel`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, TrainingError, needed
from fedgossip.base.seeds import stream
from fedgossip.data.objectives import LANGUAGE, REGRESSION
from fedgossip.lab.edge.onnx_model import HOW, INPUT, METADATA, AnsweringModule, OnnxModel, exported_facts, open_onnx
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.models.model_files import ModelFacts

OPSET = 18
"""ONNX opset: the oldest that torch's exporter writes, for the oldest of runtimes."""
WITHIN = 1e-5
"""Maximum difference to torch's answers, relative for numbers above 1."""
FLOATS = "float32"
TRIED = 64
"""Number of random examples that compare a file with torch."""

TORCHS_OWN = (
    (FutureWarning, r".*treespec.*"),
    (FutureWarning, r".*_check_is_size.*"),
    (UserWarning, r".*_flat_weights.*"),
    (UserWarning, r"The \.grad attribute of a Tensor that is not a leaf.*"),
)
"""Warnings of torch 2.13 about its own exporter: category, message.  Some have no module name."""


@dataclass(frozen=True)
class Exported:
    """A written file, and the maximum difference of its answers to torch's, on random examples."""

    path: Path
    difference: float


def graph_of(model: LoadedModel) -> Any:
    """Return a model as an ONNX graph (onnx.ModelProto) with free batch, of text with free length too.

    Raises ConfigError where torch cannot convert it into a graph.
    """
    if model.facts.document:
        raise ConfigError("boosted trees have no layers to export", "Use their folder, with trees.json.")
    onnx = needed("onnx", "edge", "a model as ONNX")
    needed("onnxscript", "edge", "a model as ONNX")
    facts, free = model.facts, {0: torch.export.Dim("batch")}
    if facts.vocabulary is not None and facts.shape[0] > 1:
        free[1] = torch.export.Dim("time")
    example = torch.from_numpy(drawn(facts, 2))
    try:
        with _quiet():
            program = torch.onnx.export(
                AnsweringModule(model).eval(), (example,), dynamo=True, dynamic_shapes=(free,), opset_version=OPSET,
                input_names=[INPUT], output_names=[output_of(facts)], verbose=False,
            )  # fmt: skip
    except Exception as error:  # any error of torch about a user's own module
        cause = error.__cause__ or error
        reason = next((line for line in str(cause).strip().splitlines() if line.strip()), type(cause).__name__)
        advice = "A forward pass that branches on numbers has no graph; take the branches out."
        raise ConfigError(f"{facts.source}: torch cannot put it down as a graph: {reason[:200]}", advice) from None
    assert program is not None, "dynamo=True gives a program"
    graph = onnx.ModelProto()
    graph.CopyFrom(program.model_proto)
    _tidy(graph, facts, free=len(free))
    return graph


def write(graph: Any, model: LoadedModel, path: Path, *, within: float | None = WITHIN) -> Exported:
    """Check a graph, compare it with the model within this difference, and write it to `path`, which must not exist.

    Raises ConfigError for an existing file, and TrainingError where the answers differ by more.
    """
    onnx = needed("onnx", "edge", "a model as ONNX")
    check_free(path)
    onnx.checker.check_model(graph, full_check=True)
    part = path.with_name(path.name + ".part")
    try:
        owner_files.written(part, graph.SerializeToString())
        difference = difference_of(model, open_onnx(part))
        if within is not None and not difference <= within:
            text = f"{path}: its answers differ from torch's by {difference:.2g}; expected at most {within:g}"
            raise TrainingError(text, "Nothing was written.  Does the model draw at random, or remember?")
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return Exported(path, difference)


def check_free(path: Path) -> None:
    """Raise ConfigError where a file cannot be written, or exists."""
    if path.exists():
        raise ConfigError(f"{path}: there already", "Name another file with --to.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}", "Make it, or name another file with --to.")


def output_of(facts: ModelFacts) -> str:
    """Return the name of the answers in a file."""
    return "numbers" if facts.kind == REGRESSION else "probabilities"


def drawn(facts: ModelFacts, count: int) -> npt.NDArray[Any]:
    """Return random examples [count, ...] of the scale that the model learned from, in original units."""
    random = stream(0, "export")
    if facts.vocabulary is not None:
        return random.integers(0, len(facts.vocabulary), (count, *facts.shape))
    x = random.normal(size=(count, *facts.shape))
    if facts.scale:
        mean, deviation = (np.array(one).reshape(facts.shape) for one in (facts.scale.mean, facts.scale.deviation))
        x = x * deviation + mean
    return x.astype(np.float32)


def difference_of(model: LoadedModel, file: OnnxModel) -> float:
    """Return the maximum difference of their answers, relative for numbers above 1."""
    x = drawn(model.facts, TRIED)
    ours, theirs = model(x), file(x)
    if ours.shape != theirs.shape or not np.isfinite(theirs).all():
        return float("inf")
    return float((np.abs(ours - theirs) / np.maximum(1, np.abs(ours))).max())


def _tidy(graph: Any, facts: ModelFacts, free: int) -> None:
    """Remove entries for torch's developers, paths of this machine among them; add a description of the model.

    Inner shapes go too: some are wrong where lengths are free, and every reader infers them again.
    """
    for node in graph.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*graph.graph.input, *graph.graph.output, *graph.graph.initializer):
        value.doc_string = ""
        del value.metadata_props[:]
    for holder in (graph, graph.graph):
        del holder.metadata_props[:]
        holder.doc_string = ""
    del graph.graph.value_info[:]
    (answers,) = graph.graph.output
    sizes = answers.type.tensor_type.shape.dim
    lengths = ["batch", *(["time" if free > 1 else facts.shape[0]] if facts.kind == LANGUAGE else []), facts.outputs]
    del sizes[:]
    for length in lengths:
        size = sizes.add()
        if isinstance(length, str):
            size.dim_param = length
        else:
            size.dim_value = length
    graph.graph.name = facts.source
    set_metadata(graph, METADATA, msgspec.json.encode(exported_facts(facts)).decode())
    set_metadata(graph, HOW, FLOATS)


def set_metadata(graph: Any, name: str, text: str) -> None:
    """Set an entry of a graph's metadata, replacing one of its name."""
    entry = next((one for one in graph.metadata_props if one.key == name), None) or graph.metadata_props.add()
    entry.key, entry.value = name, text


def also(graph: Any, words: str) -> None:
    """Append words to a graph's entry on its making."""
    before = next(one.value for one in graph.metadata_props if one.key == HOW)
    set_metadata(graph, HOW, f"{before}, {words}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages of torch's exporter about torch: warnings of its own, and of optional packages."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for category, message in TORCHS_OWN:
                warnings.filterwarnings("ignore", message, category)
            yield
    finally:
        logger.setLevel(level)
