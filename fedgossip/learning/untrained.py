"""The task of a dry run: its layout, without torch and weights.

`architectures` gives named models' sizes; if settings, a device or a user's code must be tried, `untrained` returns
None.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Segment, Update
from fedgossip.data.dataset import Dataset, Indices, check_kind, check_shares
from fedgossip.data.objectives import Objective
from fedgossip.learning.dp_sgd.record_privacy import check_private
from fedgossip.learning.models.architectures import DenseSizes, architecture
from fedgossip.learning.one_model.batches import check_lines, smallest_batch
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.settings import TrainSettings


class Untrained:
    """A LocalTask with the layout of a model; every node begins with zeros, and nothing is trained."""

    def __init__(self, layout: Layout, settings: TrainSettings) -> None:
        self.layout, self.settings = layout, settings
        self._zeros = frozen(np.zeros(layout.length, layout.dtype))

    @property
    def length(self) -> int:
        return self.layout.length

    @property
    def dtype(self) -> np.dtype[np.floating]:
        return self.layout.dtype

    @property
    def schema(self) -> str:
        return self.layout.schema

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.layout.segments

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return self._zeros

    def gradients(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """See `GradientTask`; only for no jobs."""
        check_gradients(self.layout, self.settings)
        return [] if not jobs else _nothing()

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:  # noqa: ARG002
        _nothing()

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:  # noqa: ARG002
        _nothing()


def _nothing() -> NoReturn:
    raise AssertionError("a dry run trains and measures nothing")


def untrained(
    train: Dataset,
    test: Dataset,
    shares: Mapping[NodeId, Indices],
    source: str,
    settings: TrainSettings,
    objective: Objective,
    *,
    private: bool,
) -> Untrained | None:
    """Return the task of these examples for a dry run; None if torch is needed.

    `private`: whether each record is hidden, which torch must try unless all layers are linear.  Raises ConfigError as
    TorchTask.
    """
    if private:
        check_private(settings)
    if not _usual(settings) or objective.functions:
        return None
    check_kind(objective, train, test)
    check_shares(shares, len(train))
    check_lines(train, settings, private=private)
    vocabulary = len(train.vocabulary) if train.vocabulary is not None else None
    sized = architecture(source, train.shape, train.outputs, vocabulary)
    if sized is None or (private and not isinstance(sized, DenseSizes)):
        return None
    if sized.buffers and smallest_batch(train, shares.values(), settings) == 1:  # BatchNorm may refuse one example
        return None
    return Untrained(Layout.from_shapes(sized.parameters, sized.buffers, settings.buffers), settings)


def layout_of_answers(common: Dataset, test: Dataset) -> Layout:
    """Return the layout of logits [examples * classes]; it differs for other examples or another order of classes."""
    about = f"{common.digest()} {test.classes} {test.class_names}"
    name = f"logits.{hashlib.sha256(about.encode()).hexdigest()[:16]}"
    return Layout.from_shapes([(name, (len(common), test.classes))], [])


def check_gradients(layout: Layout, settings: TrainSettings) -> None:
    """Raise ConfigError for settings with which a gradient would omit parts of the model."""
    if layout.parameters < layout.length:
        advice = "Take a method that sends updates, or a model without running statistics."
        raise ConfigError("the model's running statistics are averaged, and have no gradient", advice)
    if settings.stays:
        advice = "Leave train.personal out, or take a method that sends updates."
        raise ConfigError("personal layers are trained at their node, and a gradient trains nothing", advice)
    if settings.precision == "float16":
        advice = 'Use precision = "bfloat16" or "float32".'
        raise ConfigError("a float16 gradient needs a scale that follows the steps, and takes none", advice)


def _usual(settings: TrainSettings) -> bool:
    plain = settings.device in ("auto", "cpu") and not settings.as_modules and not settings.portable
    return plain and settings.parallel == "ddp" and not settings.stays
