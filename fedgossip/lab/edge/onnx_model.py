"""ONNX files: a model exported as one file, and such a file as a callable.

An ONNX file made by fedgossip, as a callable: in onnxruntime, without torch's layers.

The file itself contains all facts for a user under METADATA: those of model.json, so that nothing else is needed.

A model as one self-contained module: from examples in their original units to answers.

A model as one ONNX file: scaling, layers and probabilities, so that its answers equal those of `LoadedModel`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, TrainingError, needed
from fedgossip.base.seeds import stream
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CODE, KINDS, LANGUAGE, MULTI_LABEL, REGRESSION, objective_of
from fedgossip.learning.measuring import ROWS, Measuring, as_learned, like_of
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.models.model_files import ColumnScale, ModelFacts

METADATA = "fedgossip"
HOW = "fedgossip.how"
"""Metadata key: how the file was made from its run's model, in words."""
INPUT = "examples"
MAKE_ONE = "Make one:  fedgossip model export RUN --to model.onnx"
NOT_ONNX = "INVALID_PROTOBUF"
"""Error text of onnxruntime for a file of another kind."""
LARGEST = 1 << 31
"""Maximum number of bytes of a file of ONNX, a limit of protobuf."""
SMALLEST = 1e-30
"""Minimum probability in a logarithm."""


class OnnxModel:
    """An exported model.  Call it with unscaled examples [m, ...]; the result is that of `LoadedModel`."""

    def __init__(self, facts: ModelFacts, session: Any, path: Path, how: str = "") -> None:
        self.facts, self.session, self.path, self.how = facts, session, path, how

    def __call__(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Raises ConfigError for examples of another shape."""
        given = np.asarray(x)
        if given.ndim < 1 or given.shape[1:] != self.facts.shape:
            text = f"examples of shape {given.shape[1:]}; the model learned from {self.facts.shape}"
            raise ConfigError(text, "One example is one row: x[None] for a single one.")
        parts = [self.answer(given[start : start + ROWS]) for start in range(0, len(given), ROWS)]
        return np.concatenate(parts).astype(np.float64) if parts else np.empty((0, self.facts.outputs))

    def answer(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the answers for one batch, in one call of the session."""
        kind = np.int64 if self.facts.vocabulary is not None else np.float32
        (answers,) = self.session.run(None, {INPUT: np.ascontiguousarray(x, kind)})
        return np.asarray(answers)

    @property
    def like(self) -> Dataset:
        """See `LoadedModel.like`."""
        return like_of(self.facts)

    def evaluate(self, examples: Dataset) -> dict[str, float]:
        """Return "loss" and the run's metrics, without the user's own, on unscaled examples.

        Raises ConfigError where they are of another shape or kind.
        """
        measuring = Measuring(self.facts, as_learned(examples, self.facts))
        return measuring.of(lambda rows: self._outputs(examples.x[rows]))

    def _outputs(self, x: npt.NDArray[Any]) -> torch.Tensor:
        answers, like = torch.from_numpy(self(x)), self.like
        if self.facts.kind == REGRESSION:
            scale = torch.tensor([like.label_mean, like.label_deviation]) if like.label_mean else None
            return (answers if scale is None else (answers - scale[0]) / scale[1]).float()
        if self.facts.kind == MULTI_LABEL:
            return torch.logit(answers, SMALLEST).float()
        return answers.clamp_min(SMALLEST).log().float()


def exported_facts(facts: ModelFacts) -> ModelFacts:
    """Return the facts of an exported file: without those that only torch and users' own modules need."""
    usual = objective_of(facts.kind, "", ())
    metrics = tuple(name for name in facts.metrics if not CODE.named_by(name)) or usual.metrics
    loss = usual.loss if CODE.named_by(facts.loss) else facts.loss
    return msgspec.structs.replace(facts, metrics=metrics, loss=loss, lacks=(), own=(), code="", modules=())


def open_onnx(path: Path, threads: int = 1) -> OnnxModel:
    """Open a file that `fedgossip model export` wrote.  Raises ConfigError for another one."""
    runtime = needed("onnxruntime", "edge", "an ONNX file")
    try:
        content = outside_files.read_bytes(outside_files.named(path), LARGEST)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", MAKE_ONE) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", MAKE_ONE) from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own, of many classes
        reason = _first_line(error)
        text = "no ONNX file" if NOT_ONNX in reason else f"onnxruntime cannot read it: {reason}"
        raise ConfigError(f"{path}: {text}", MAKE_ONE) from None
    metadata = session.get_modelmeta().custom_metadata_map
    reason = metadata.get(METADATA)
    if reason is None:
        text = f"{path}: an ONNX file that fedgossip has not made: nothing says what its numbers mean"
        raise ConfigError(text, MAKE_ONE)
    try:
        facts = from_json(msgspec.json.Decoder(ModelFacts), reason.encode())
    except UnreadableError as error:
        raise ConfigError(f"{path}: what it says of itself cannot be read: {error}", MAKE_ONE) from None
    if facts.kind not in KINDS:
        raise ConfigError(f"{path}: a model of kind {facts.kind[:50]!r}, which there is not", MAKE_ONE)
    names = [one.name for one in session.get_inputs()], len(session.get_outputs())
    if names != ([INPUT], 1):
        raise ConfigError(f"{path}: its inputs are {', '.join(names[0])}; expected one, {INPUT}", MAKE_ONE)
    facts = exported_facts(facts)  # the writer of the file may have named code in it
    return OnnxModel(facts, session, path, metadata.get(HOW, ""))


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


class AnsweringModule(nn.Module):
    """The result of a `LoadedModel` call, in float32 and as one module: scaling, layers, probabilities.

    Examples are float32 [b, ...] in their original units, of text int64 [b, context].
    """

    def __init__(self, model: LoadedModel) -> None:
        super().__init__()
        facts = model.facts
        self.kind, self.text = facts.kind, facts.vocabulary is not None
        self.scaled = InputScaling(facts.scale, facts.shape) if facts.scale else None
        self.model = model.module
        self.in_units = OutputUnits(facts.label_scale) if facts.label_scale else None

    def forward(self, examples: torch.Tensor) -> torch.Tensor:
        outputs = self.model(examples if self.scaled is None else self.scaled(examples))
        if self.kind == MULTI_LABEL:
            return torch.sigmoid(outputs.reshape(outputs.shape[0], -1))
        if self.kind != REGRESSION:
            return torch.softmax(outputs, -1)
        numbers = outputs.reshape(outputs.shape[0], -1)
        return numbers if self.in_units is None else self.in_units.forward(numbers)


class InputScaling(nn.Module):
    """(x - mean) / deviation, the mean as a sum of two float32: the difference is exact where x is near the mean.

    With one float32 a mean of 10 000 would be wrong by up to 5e-4, whatever the deviation (Sterbenz, 1974: the
    difference of two floats within a factor of two has no rounding).
    """

    high: torch.Tensor
    low: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, scale: ColumnScale, shape: tuple[int, ...]) -> None:
        super().__init__()
        mean = np.array(scale.mean).reshape(1, *shape)
        high = mean.astype(np.float32)
        self.register_buffer("high", torch.from_numpy(high))
        self.register_buffer("low", _float32(mean - high))
        self.register_buffer("deviation", _float32(np.array(scale.deviation).reshape(1, *shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.high - self.low) / self.deviation


class OutputUnits(nn.Module):
    """Outputs of a regression [b, k] in the original units of the labels."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, scale: ColumnScale) -> None:
        super().__init__()
        self.register_buffer("mean", _float32(np.array(scale.mean)))
        self.register_buffer("deviation", _float32(np.array(scale.deviation)))

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs * self.deviation + self.mean


def _float32(numbers: npt.NDArray[np.float64]) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.float32))


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
