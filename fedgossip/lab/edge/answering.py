"""A model as one self-contained module: from examples in their original units to answers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.data.objectives import MULTI_LABEL, REGRESSION
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.models.model_files import ColumnScale


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
