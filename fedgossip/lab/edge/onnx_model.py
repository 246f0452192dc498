"""An ONNX file made by fedgossip, as a callable: in onnxruntime, without torch's layers.

The file itself contains all facts for a user under METADATA: those of model.json, so that nothing else is needed.

A model as one self-contained module: from examples in their original units to answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, needed
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CODE, KINDS, MULTI_LABEL, REGRESSION, objective_of
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
        """Return the outputs of the layers, recovered from the answers up to differences that no metric sees."""
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
