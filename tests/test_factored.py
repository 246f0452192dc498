"""Sums of cut gradients without the gradients: as long as the clip allows, whatever an example holds."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from fedgossip.learning import models, private
from fedgossip.learning.factored import Factored, linear_layers
from fedgossip.learning.per_example import Hooked, per_example
from fedgossip.learning.private import UNITS, PrivateGradients
from fedgossip.learning.record_privacy import RecordPrivacy
from fedgossip.learning.settings import TrainSettings

CLIP = 0.7


def gradients_of(module: nn.Module) -> PrivateGradients:
    settings = TrainSettings(batch_size=10, local_steps=1, device="cpu")
    return PrivateGradients(module, RecordPrivacy(CLIP, 0.0), settings, [np.arange(100)], seed=1)


def drawn(examples: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(examples, 12) * scale, torch.randint(0, 4, (examples,))


def flat(sums: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.reshape(-1) for one in sums])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e18])
@pytest.mark.parametrize("source", ["softmax", "mlp:12-9-4", "mlp:12-9-7-4"])
def test_one_example_more_moves_the_sum_by_a_clip_at_most(source: str, scale: float) -> None:
    ways, (x, y) = gradients_of(models.build(source, (12,), 4, 0)), drawn(40, scale)
    x[7] *= 1e3
    for without in (7, 39):
        kept = torch.tensor([place for place in range(40) if place != without])
        moved = flat(ways._clipped_sums(x, y)) - flat(ways._clipped_sums(x[kept], y[kept]))
        assert moved.norm() <= UNITS
        assert torch.equal(moved, moved.round()), "whole units"


def test_a_long_gradient_keeps_nearly_all_of_the_clip() -> None:
    ways, (x, y) = gradients_of(models.build("softmax", (12,), 4, 0)), drawn(1, 100.0)
    length = float(flat(ways._clipped_sums(x, y)).norm())
    assert UNITS * (1 - 2 * private.MARGIN) - 2 * math.sqrt(52) < length <= UNITS


@pytest.mark.parametrize("worst", [math.inf, -math.inf, math.nan])
def test_an_example_that_is_not_finite_counts_as_zero(worst: float) -> None:
    ways, (x, y) = gradients_of(models.build("mlp:12-9-4", (12,), 4, 0)), drawn(5)
    kept = torch.tensor([0, 1, 3, 4])
    without = flat(ways._clipped_sums(x[kept], y[kept]))
    x[2, 5] = worst
    assert (flat(ways._clipped_sums(x, y)) - without).abs().max() <= 1


def test_sums_are_those_of_opacus_to_the_rounding_of_each_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    module, (x, y) = models.build("mlp:12-9-4", (12,), 4, 0), drawn(30)
    factored = gradients_of(module)
    assert isinstance(factored._way, Factored)
    sums = flat(factored._clipped_sums(x, y))
    monkeypatch.setattr(private, "FACTORED_ROWS", 7)
    assert (flat(factored._clipped_sums(x, y)) - sums).abs().max() <= 1
    hooked = gradients_of(models.build("mlp:12-9-4", (12,), 4, 0))
    hooked._way = Hooked(hooked._module)
    assert (flat(hooked._clipped_sums(x, y)) - sums).abs().max() <= 30 + 30 * UNITS * private.MARGIN


def chain(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict((str(place), part) for place, part in enumerate(parts)))


def shared() -> nn.Module:
    layer = nn.Linear(12, 12)
    return chain(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(12, 4))


def frozen() -> nn.Module:
    module = chain(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4))
    module[1].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module",
    [
        shared(),
        frozen(),
        chain(nn.Linear(12, 4)),  # which may be given rows of rows
        chain(nn.Flatten(), nn.Linear(12, 9), nn.LayerNorm(9), nn.Linear(9, 4)),
        chain(nn.Flatten(), nn.Linear(12, 9), nn.Softmax(0), nn.Linear(9, 4)),
        models.build("cnn:small", (1, 6, 6), 4, 0),
    ],
)
def test_other_modules_are_left_to_opacus(module: nn.Module) -> None:
    assert linear_layers(module) is None and not isinstance(per_example(module), Factored)
