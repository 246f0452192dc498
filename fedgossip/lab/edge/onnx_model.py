"""ONNX files: a model exported as one file, and such a file as a callable in onnxruntime, without torch's layers.

The graph has scaling, layers and probabilities: its outputs equal those of `LoadedModel`.  METADATA holds the facts of
model.json.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
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
from fedgossip.data.objectives import CLASSIFICATION, CODE, KINDS, LANGUAGE, MULTI_LABEL, REGRESSION, objective_of
from fedgossip.learning.measuring import ROWS, Measuring, as_learned, like_of
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.models.model_files import ColumnScale, ModelFacts
from fedgossip.learning.models.models import EarlyExit

METADATA = "fedgossip"
HOW = "fedgossip.how"
"""Metadata key: how the file was made from its run's model, in words."""
PART = "fedgossip.part"
"""Metadata key of a device's part: JSON, the maximum entropy of an output that needs no server, and
its server's part.
"""
INPUT, FEATURES = "examples", "features"
DEVICE, SERVER = ".device.onnx", ".server.onnx"
"""Suffixes of the names of a model's two parts."""
BOTH = f"Put both into one folder, NAME{DEVICE} and NAME{SERVER}, as model export --exit wrote them."
MAKE_ONE = "Make one:  fedgossip model export RUN --to model.onnx"
LARGEST = 1 << 31
"""Maximum number of bytes of a file of ONNX, a limit of protobuf."""
SMALLEST = 1e-30
"""Minimum probability in a logarithm."""


class OnnxModel:
    """An exported model.  Call it with unscaled examples [m, ...]; the result is that of `LoadedModel`."""

    def __init__(
        self, facts: ModelFacts, session: Any, path: Path, how: str = "", server: ServerSide | None = None
    ) -> None:
        self.facts, self.session, self.path, self.how, self.server = facts, session, path, how, server

    def __call__(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Raises ConfigError for examples of another shape."""
        given = np.asarray(x)
        if given.ndim < 1 or given.shape[1:] != self.facts.shape:
            text = f"examples of shape {given.shape[1:]}; the model learned from {self.facts.shape}"
            raise ConfigError(text, "One example is one row: x[None] for a single one.")
        parts = [self.answer(given[start : start + ROWS]) for start in range(0, len(given), ROWS)]
        return np.concatenate(parts).astype(np.float64) if parts else np.empty((0, self.facts.outputs))

    def answer(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the outputs for one batch, in one call of the session."""
        return self.answered(x)[0]

    def answered(self, x: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], int]:
        """Return the outputs for one batch, and the number of examples sent to the server's part."""
        kind = np.int64 if self.facts.vocabulary is not None else np.float32
        answers, *features = _run(self.session, self.path, {INPUT: np.ascontiguousarray(x, kind)})
        if answers.shape != (rows := (len(x), *answers.shape[1:-1], self.facts.outputs)):
            raise ConfigError(f"{self.path}: answers of shape {answers.shape}; expected {rows}", MAKE_ONE)
        if self.server is None:
            return answers, 0
        unsure = entropy(answers) > self.server.threshold
        if unsure.any():
            theirs = self.server.answer(features[0][unsure])
            if theirs.shape != answers[unsure].shape:
                raise ConfigError(
                    f"{self.path}: its server's part answers in another shape", "Export both parts again."
                )
            answers[unsure] = theirs
        return answers, int(unsure.sum())

    @property
    def like(self) -> Dataset:
        """See `LoadedModel.like`."""
        return like_of(self.facts)

    def evaluate(self, examples: Dataset) -> dict[str, float]:
        """Return "loss" and the run's metrics, without users' metrics, on unscaled examples.

        Raises ConfigError for another shape or kind, TrainingError for a result that is not finite.
        """
        measuring = Measuring(self.facts, as_learned(examples, self.facts))
        return measuring.measure(lambda rows: self._outputs(examples.x[rows]), self._unusable)

    def _unusable(self, what: str) -> TrainingError:
        return TrainingError(f"{self.path}: it cannot be used: its {what}", "Train the model again, and export it.")

    def _outputs(self, x: npt.NDArray[Any]) -> torch.Tensor:
        answers, like = torch.from_numpy(self(x)), self.like
        if self.facts.kind == REGRESSION:
            scale = torch.tensor([like.label_mean, like.label_deviation]) if like.label_mean else None
            return (answers if scale is None else (answers - scale[0]) / scale[1]).float()
        if self.facts.kind == MULTI_LABEL:
            return torch.logit(answers, SMALLEST).float()
        return answers.clamp_min(SMALLEST).log().float()


class DevicePart(msgspec.Struct, frozen=True):
    """The device part's description of its server's part: it receives `features` numbers per example; its file has this
    hash.
    """

    threshold: float
    features: int
    server: str


@dataclass(frozen=True)
class ServerSide:
    """The server's part of a model in two parts; the device uses it above an entropy of `threshold`."""

    session: Any
    path: Path
    threshold: float
    sent: int
    """Bytes of an example sent to it."""

    def answer(self, features: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return _run(self.session, self.path, {FEATURES: np.ascontiguousarray(features, np.float32)})[0]


def _run(session: Any, path: Path, given: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return the outputs of a file.  Raises ConfigError if it cannot be run."""
    try:
        return [np.asarray(one) for one in session.run(None, given)]
    except Exception as error:  # onnxruntime's own, of many classes
        raise ConfigError(f"{path}: onnxruntime cannot run it: {_first_line(error)}", MAKE_ONE) from None


def entropy(probabilities: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return the entropy of each row [m, k] over log k: from 0, certain, to 1 (Teerapittayanon and others, 2017)."""
    p = np.asarray(probabilities, np.float64)
    total: npt.NDArray[np.float64] = -(p * np.log(np.maximum(p, SMALLEST))).sum(-1) / np.log(p.shape[-1])
    return total


def exported_facts(facts: ModelFacts) -> ModelFacts:
    """Return the facts of an exported file: without those that only torch and users' modules need."""
    usual = objective_of(facts.kind, "", ())
    metrics = tuple(name for name in facts.metrics if not CODE.find_name(name)) or usual.metrics
    loss = usual.loss if CODE.find_name(facts.loss) else facts.loss
    return msgspec.structs.replace(facts, metrics=metrics, loss=loss, lacks=(), own=(), code="", modules=())


def open_onnx(path: Path, threads: int = 1) -> OnnxModel:
    """Open a file that `fedgossip model export` wrote.  Raises ConfigError for another one."""
    session, _ = _session_of(outside_files.resolve(path), threads)
    metadata = session.get_modelmeta().custom_metadata_map
    reason = metadata.get(METADATA)
    if reason is None:
        text = f"{path}: an ONNX file that fedgossip has not made: the meaning of its numbers is unknown"
        raise ConfigError(text, MAKE_ONE)
    try:
        facts = from_json(msgspec.json.Decoder(ModelFacts), reason.encode())
    except UnreadableError as error:
        raise ConfigError(f"{path}: its metadata cannot be read: {error}", MAKE_ONE) from None
    if facts.kind not in KINDS:
        raise ConfigError(f"{path}: a model of kind {facts.kind[:50]!r}, which there is not", MAKE_ONE)
    names, parted = ([one.name for one in session.get_inputs()], len(session.get_outputs())), metadata.get(PART)
    if names != ([INPUT], 1 if parted is None else 2):
        advice = f"Name the device's part, {DEVICE}, next to it." if names[0] == [FEATURES] else MAKE_ONE
        raise ConfigError(f"{path}: its inputs are {', '.join(names[0])}; expected one, {INPUT}", advice)
    sizes = () if facts.scale is None else (len(facts.scale.mean), len(facts.scale.deviation))
    if min(facts.shape, default=1) < 1 or any(size != math.prod(facts.shape) for size in sizes):
        raise ConfigError(f"{path}: its examples have a shape or a scale that cannot be", MAKE_ONE)
    facts = exported_facts(facts)  # the writer of the file may have named code in it
    server = None if parted is None else _server_of(path, parted, threads)
    return OnnxModel(facts, session, path, metadata.get(HOW, ""), server)


def _session_of(path: Path, threads: int) -> tuple[Any, str]:
    """Return a file's session, and its hash.  Raises ConfigError for an unreadable one."""
    runtime = needed("onnxruntime", "edge", "an ONNX file")
    try:
        content = outside_files.read_bytes(path, LARGEST)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", MAKE_ONE) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", MAKE_ONE) from None
    _check_whole(path, content)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own, of many classes
        raise ConfigError(f"{path}: onnxruntime cannot read it: {_first_line(error)}", MAKE_ONE) from None
    return session, sha256(content).hexdigest()


def _check_whole(path: Path, content: bytes) -> None:
    """Raise ConfigError for a file with tensors in other files: onnxruntime would open these by name."""
    onnx = needed("onnx", "edge", "an ONNX file")
    try:
        waiting = [onnx.ModelProto.FromString(content)]
    except Exception:  # protobuf's own; files of onnxruntime's other format are none too
        raise ConfigError(f"{path}: no ONNX file", MAKE_ONE) from None
    while waiting:
        message = waiting.pop()
        if getattr(message, "data_location", 0) or getattr(message, "external_data", ()):
            raise ConfigError(f"{path}: numbers of it lie in another file, which is not opened", MAKE_ONE)
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += [value] if not hasattr(value, "append") and not hasattr(value, "add") else value


def _server_of(path: Path, text: str, threads: int) -> ServerSide:
    """Return the server's part of a device's part.  Raises ConfigError if it is missing, or another model's."""
    try:
        part = from_json(msgspec.json.Decoder(DevicePart), text.encode())
    except UnreadableError as error:
        raise ConfigError(f"{path}: its metadata of the server's part cannot be read: {error}", MAKE_ONE) from None
    beside = path.with_name(path.name.removesuffix(DEVICE) + SERVER)
    if not beside.exists():
        raise ConfigError(f"{beside}: there is no such file, the server's part of {path.name}", BOTH)
    session, digest = _session_of(beside, threads)
    if digest != part.server:
        raise ConfigError(f"{beside}: not the server's part of {path.name}", "Export both parts again.")
    return ServerSide(session, beside, part.threshold, 4 * part.features)


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


class AnsweringModule(nn.Module):
    """A `LoadedModel` call in float32 as one module: scaling, layers, probabilities.

    Examples in original units: float32 [b, ...], of text int64 [b, context].
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


class AnsweringDevice(nn.Module):
    """The device's part of a model with an exit: probabilities of the exit, and the server's features."""

    def __init__(self, model: LoadedModel, network: EarlyExit) -> None:
        super().__init__()
        self.scaled = InputScaling(model.facts.scale, model.facts.shape) if model.facts.scale else None
        self.device, self.exit = network.device, network.exit

    def forward(self, examples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.device(examples if self.scaled is None else self.scaled(examples))
        return torch.softmax(self.exit(features), -1), features


class AnsweringServer(nn.Module):
    """The server's part: from features to probabilities."""

    def __init__(self, network: EarlyExit) -> None:
        super().__init__()
        self.server = network.server

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.server(features), -1)


class InputScaling(nn.Module):
    """(x - mean) / deviation, the mean as a sum of two float32: the difference is exact if x is close to the mean.

    With one float32 a mean of 10 000 would err by up to 5e-4 (Sterbenz, 1974: differences within a factor of two are
    exact).
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
"""ONNX opset: the oldest that torch's exporter writes, for compatibility with old runtimes."""
WITHIN = 1e-5
"""Maximum difference to torch's outputs, relative for numbers above 1."""
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
    """A written file, and the maximum difference of its outputs to torch's, on random examples."""

    path: Path
    difference: float


def graph_of(model: LoadedModel) -> Any:
    """Return a model as an ONNX graph (onnx.ModelProto) with free batch and text length.

    Raises ConfigError if torch cannot export it.
    """
    if model.facts.document:
        raise ConfigError("boosted trees have no layers to export", "Use their folder, with trees.json.")
    facts, free = model.facts, {0: torch.export.Dim("batch")}
    if facts.vocabulary is not None and facts.shape[0] > 1:
        free[1] = torch.export.Dim("time")
    lengths = [
        "batch",
        *(["time" if len(free) > 1 else facts.shape[0]] if facts.kind == LANGUAGE else []),
        facts.outputs,
    ]
    return _graph(
        AnsweringModule(model), facts, torch.from_numpy(draw_examples(facts, 2)), free, {output_of(facts): lengths}
    )


def write_parts(model: LoadedModel, threshold: float, path: Path) -> tuple[Exported, Exported]:
    """Write a model with an exit as a device's part and a server's, after `path`, compared with torch as `write` does.

    The device answers if its exit's entropy is at most `threshold`.  Raises ConfigError without an exit, and for
    existing files; TrainingError if outputs differ.
    """
    network, facts = model.module, model.facts
    if not isinstance(network, EarlyExit) or facts.kind != CLASSIFICATION:
        text = f"{facts.source}, {facts.kind}: a model of classes with an exit is cut in two, and no other"
        raise ConfigError(text, "Train one, for example with model.source = mlp:64-32-10?exit=1; or leave --exit out.")
    device, server = (path.with_name(path.name.removesuffix(".onnx") + end) for end in (DEVICE, SERVER))
    for one in (device, server):
        check_free(one)
    batch = {0: torch.export.Dim("batch")}
    examples = torch.from_numpy(draw_examples(facts, TRIED))
    with torch.no_grad():
        ours, features = AnsweringDevice(model, network).eval()(examples)
        theirs = AnsweringServer(network).eval()(features)
    sizes = ["batch", *features.shape[1:]]
    outputs = {output_of(facts): ["batch", facts.outputs], FEATURES: sizes}
    first = _graph(AnsweringDevice(model, network), facts, examples[:2], batch, outputs)
    second = _graph(AnsweringServer(network), facts, features[:2], batch, {output_of(facts): outputs["probabilities"]})
    owner_files.written(server, content := second.SerializeToString())
    part = DevicePart(threshold, features[0].numel(), sha256(content).hexdigest())
    set_metadata(first, PART, msgspec.json.encode(part).decode())
    owner_files.written(device, first.SerializeToString())
    opened = open_onnx(device)
    assert opened.server is not None, "just written"
    answers, given = opened.session.run(None, {INPUT: examples.numpy()})
    apart = [np.abs(answers - ours.numpy()).max(), np.abs(opened.server.answer(given) - theirs.numpy()).max()]
    if not max(apart) <= WITHIN:
        for one in (device, server):
            one.unlink()
        raise TrainingError(f"{path}: answers differ from torch's by {max(apart):.2g}", "Nothing was written.")
    return Exported(device, float(apart[0])), Exported(server, float(apart[1]))


def _graph(
    module: nn.Module, facts: ModelFacts, example: torch.Tensor, free: Any, outputs: Mapping[str, Sequence[str | int]]
) -> Any:
    """Return a module as a graph with these outputs and lengths."""
    onnx = needed("onnx", "edge", "a model as ONNX")
    needed("onnxscript", "edge", "a model as ONNX")
    given = FEATURES if isinstance(module, AnsweringServer) else INPUT
    try:
        with _quiet():
            program = torch.onnx.export(
                module.eval(), (example,), dynamo=True, dynamic_shapes=(free,), opset_version=OPSET,
                input_names=[given], output_names=[*outputs], verbose=False,
            )  # fmt: skip
    except Exception as error:  # any error of torch about a user's own module
        cause = error.__cause__ or error
        reason = next((line for line in str(cause).strip().splitlines() if line.strip()), type(cause).__name__)
        advice = "A forward pass that branches on numbers has no graph; take the branches out."
        raise ConfigError(f"{facts.source}: torch cannot put it down as a graph: {reason[:200]}", advice) from None
    assert program is not None, "dynamo=True gives a program"
    graph = onnx.ModelProto()
    graph.CopyFrom(program.model_proto)
    _tidy(graph, facts, outputs)
    return graph


def write(graph: Any, model: LoadedModel, path: Path, *, within: float | None = WITHIN) -> Exported:
    """Check a graph, compare it with the model within this difference, and write it to a new `path`.

    Raises ConfigError for an existing file, TrainingError for a larger difference.
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
    """Raise ConfigError if a file cannot be written, or exists."""
    if path.exists():
        raise ConfigError(f"{path}: there already", "Name another file with --to.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}", "Make it, or name another file with --to.")


def output_of(facts: ModelFacts) -> str:
    """Return the name of the outputs in a file."""
    return "numbers" if facts.kind == REGRESSION else "probabilities"


def draw_examples(facts: ModelFacts, count: int) -> npt.NDArray[Any]:
    """Return random examples [count, ...] on the scale of the model's training data, in original units."""
    random = stream(0, "export")
    if facts.vocabulary is not None:
        return random.integers(0, len(facts.vocabulary), (count, *facts.shape))
    x = random.normal(size=(count, *facts.shape))
    if facts.scale:
        mean, deviation = (np.array(one).reshape(facts.shape) for one in (facts.scale.mean, facts.scale.deviation))
        x = x * deviation + mean
    return x.astype(np.float32)


def check_answers(model: LoadedModel) -> None:
    """Raise TrainingError for a model with an output that is not finite for one of a few random examples."""
    if not np.isfinite(model(draw_examples(model.facts, TRIED))).all():
        raise model.unusable("answers are not finite")


def difference_of(model: LoadedModel, file: OnnxModel) -> float:
    """Return the maximum difference of their outputs, relative for numbers above 1."""
    x = draw_examples(model.facts, TRIED)
    ours, theirs = model(x), file(x)
    if ours.shape != theirs.shape or not np.isfinite(theirs).all():
        return float("inf")
    return float((np.abs(ours - theirs) / np.maximum(1, np.abs(ours))).max())


def _tidy(graph: Any, facts: ModelFacts, outputs: Mapping[str, Sequence[str | int]]) -> None:
    """Remove torch's notes (paths of this machine), and inner shapes, some wrong if lengths are free; add a
    description.
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
    for answers, lengths in zip(graph.graph.output, outputs.values(), strict=True):
        sizes = answers.type.tensor_type.shape.dim
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
    """Set an entry of a graph's metadata, replacing an existing one."""
    entry = next((one for one in graph.metadata_props if one.key == name), None) or graph.metadata_props.add()
    entry.key, entry.value = name, text


def also(graph: Any, words: str) -> None:
    """Append words to a graph's description of its making."""
    before = next(one.value for one in graph.metadata_props if one.key == HOW)
    set_metadata(graph, HOW, f"{before}, {words}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of torch's exporter."""
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
