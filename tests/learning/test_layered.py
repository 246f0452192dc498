"""Gradients of examples layer by layer: each its example's, and none moves a sum further than the clip."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.learning.dp_sgd import layer_gradients, private
from fedgossip.learning.dp_sgd.layer_gradients import Apart, Factors, Layered, find_layers
from fedgossip.learning.dp_sgd.private import UNITS, Alone, Hooked, PrivateGradients, check_apart, cut_sums, per_example
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy
from fedgossip.learning.models import models
from fedgossip.learning.settings import TrainSettings

CLIP = 0.7
EXAMPLES = {"softmax": (12,), "mlp:12-9-4": (12,), "mlp:12-9-7-4": (12,), "cnn:small": (1, 8, 8), "gpt:1-8-2": (6,)}


def gradients_of(module: nn.Module) -> PrivateGradients:
    settings = TrainSettings(batch_size=10, local_steps=1, device="cpu")
    return PrivateGradients(module, RecordPrivacy(CLIP, 0.0), settings, [np.arange(100)], seed=1)


def drawn(examples: int, scale: float = 1.0, shape: tuple[int, ...] = (12,)) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(examples, *shape) * scale, torch.randint(0, 4, (examples,))


def case(source: str, examples: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    shape = EXAMPLES[source]
    if source.startswith("gpt"):
        torch.manual_seed(3)
        text = torch.randint(0, 5, (examples, *shape))
        return models.build(source, shape, 5, 0, 5), text, text.roll(-1, 1)
    return models.build(source, shape, 4, 0), *drawn(examples, 1.0, shape)


def summed(ways: PrivateGradients, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The rounded sum of the cut gradients, all parameters behind each other."""
    with torch.no_grad():
        return torch.cat([part.clone() for part in ways._clipped_sum(x, y)]).round()


# --- sensitivity ------------------------------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@hypothesis_settings(max_examples=200, deadline=None)
@given(
    errors=st.lists(NUMBERS, min_size=2, max_size=2),
    inputs=st.lists(NUMBERS, min_size=3, max_size=3),
    made=st.lists(NUMBERS, min_size=8, max_size=8),
    others=st.integers(0, 40),
    clip=st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
    scale=st.floats(1e-3, 1e3),
)
def test_one_example_moves_the_rounded_sum_by_the_clip_at_most_whatever_it_holds(
    errors: list[float], inputs: list[float], made: list[float], others: int, clip: float, scale: float
) -> None:
    torch.manual_seed(others)
    rest = [torch.randn(others, size) * math.sqrt(clip * scale) for size in (2, 3)]
    own = torch.randn(others, 8) * clip * scale

    def rounded(rows: torch.Tensor, taken: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
        linear = Factors(rows, taken, True)
        other = Apart([gradients[:, :6].reshape(-1, 3, 2, 1), gradients[:, 6:]], [(2, 0, 1), None])
        return torch.cat([part.clone() for part in cut_sums([linear, other], clip, 16)]).round()

    one = [torch.tensor([each], dtype=torch.float32) for each in (errors, inputs, made)]
    together = [torch.cat(both) for both in zip((*rest, own), one, strict=True)]
    without = rounded(*rest, own) if others else torch.zeros(16, dtype=torch.float64)
    assert float((rounded(*together) - without).norm()) <= UNITS


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e18])
@pytest.mark.parametrize("source", ["softmax", "mlp:12-9-4", "mlp:12-9-7-4"])
def test_one_example_more_moves_the_sum_by_a_clip_at_most(source: str, scale: float) -> None:
    ways, (x, y) = gradients_of(models.build(source, (12,), 4, 0)), drawn(40, scale)
    x[7] *= 1e3
    for without in (7, 39):
        kept = torch.tensor([place for place in range(40) if place != without])
        moved = summed(ways, x, y) - summed(ways, x[kept], y[kept])
        assert moved.norm() <= UNITS
        assert torch.equal(moved, moved.round()), "whole units"


@pytest.mark.parametrize("source", ["softmax", "cnn:small"])
def test_a_long_gradient_keeps_nearly_all_of_the_clip(source: str) -> None:
    ways, (x, _) = gradients_of(models.build(source, EXAMPLES[source], 4, 0)), drawn(1, 100.0, EXAMPLES[source])
    with torch.no_grad():
        y = ways._module(x).argmin(1)  # the least likely class
    length = float(summed(ways, x, y).norm())
    assert UNITS * (1 - private.LAYERED_MARGIN - 2 * private.MARGIN) - 2 * math.sqrt(ways._elements) < length <= UNITS


@pytest.mark.parametrize("worst", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("source", ["mlp:12-9-4", "cnn:small"])
def test_an_example_that_is_not_finite_counts_as_zero(source: str, worst: float) -> None:
    module, x, y = case(source, 5)
    ways = gradients_of(module)
    kept = torch.tensor([0, 1, 3, 4])
    without = summed(ways, x[kept], y[kept])
    x[2].view(-1)[5] = worst
    # convolutions may add up the others in another order
    assert (summed(ways, x, y) - without).abs().max() <= (1 if source.startswith("mlp") else 8)


# --- against one example after another --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["mlp:12-9-4", "cnn:small", "gpt:1-8-2"])
def test_sums_are_those_of_opacus_to_the_rounding_of_each_gradient(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x, y = case(source, 30)
    layered = gradients_of(module)
    assert isinstance(layered._way, Layered)
    sums = summed(layered, x, y)
    hooked = gradients_of(copy.deepcopy(module))
    hooked._way = Hooked(hooked._module)
    assert (summed(hooked, x, y) - sums).abs().max() <= 30 + 30 * UNITS * private.LAYERED_MARGIN
    monkeypatch.setattr(private, "LAYERED_ROWS", 7)
    monkeypatch.setattr(layer_gradients, "WINDOWS", 1000)
    assert (summed(layered, x, y) - sums).abs().max() <= (1 if source.startswith("mlp") else 8)
    monkeypatch.setattr(private, "CHUNK_ELEMENTS", 1)
    assert (summed(layered, x, y) - sums).abs().max() <= (1 if source.startswith("mlp") else 8)


class Twice(nn.Module):
    """Calls one layer twice, as a tied layer is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.layer(torch.relu(self.layer(x)))))


class Read(nn.Module):
    """Characters of which one is padding, a layer for each place, and an output that nothing is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.each = nn.Embedding(5, 6, padding_idx=2), nn.Linear(6, 3)
        self.norm, self.last, self.unused = nn.LayerNorm((4, 3)), nn.Linear(12, 4, bias=False), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.embedding((x[:, :4].abs() * 3).long().clamp(max=4))
        h = self.norm(self.each(seen)).flatten(1)
        self.unused(h)
        return self.last(h)


def pictures(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Unflatten(1, (2, 3, 2)), *parts, nn.Flatten(), nn.LazyLinear(4))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(inplace=True), nn.Linear(9, 4))
    module[1].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(12, 9), nn.ReLU(inplace=True), nn.Linear(9, 4, bias=False)),
        pictures(nn.Conv2d(2, 5, 3, padding=1), nn.GroupNorm(5, 5), nn.ReLU(), nn.Conv2d(5, 3, 2, bias=False)),
        pictures(nn.Conv2d(2, 4, (3, 1), stride=(2, 1), padding=(2, 1)), nn.GELU(), nn.MaxPool2d(2)),
        pictures(nn.Conv2d(2, 3, 2, dilation=(2, 1), padding=1), nn.GroupNorm(1, 3), nn.Tanh()),
        nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Linear(4, 5), nn.LayerNorm(5), nn.Flatten(), nn.Linear(15, 4)),
        nn.Sequential(pictures(nn.Conv2d(2, 3, 1)), nn.Linear(4, 4)),
        Twice(),
        Read(),
        frozen(),
    ],
    ids=["in place", "norm", "stride", "dilation", "places", "nested", "twice", "read", "frozen"],
)
def test_gradients_of_known_layers_are_those_of_each_example_alone(module: nn.Module) -> None:
    x, y = drawn(5)
    with torch.no_grad():
        module(x)  # lazy layers
    check_apart(module, way := per_example(module), x[:2], y[:2])
    assert isinstance(way, Layered)
    for one, other in zip(way.gradients(x, y), Alone(module).gradients(x, y), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def shared() -> nn.Module:
    layer = nn.Linear(12, 12)
    other = nn.Linear(12, 12)
    other.weight = layer.weight
    return nn.Sequential(layer, nn.ReLU(), other, nn.Linear(12, 4))


def partly_frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 4))
    module[0].bias.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module",
    [
        shared(),
        partly_frozen(),
        nn.Sequential(nn.Unflatten(1, (2, 3, 2)), nn.Conv2d(2, 4, 1, groups=2), nn.Flatten(), nn.Linear(24, 4)),
        nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Conv1d(3, 4, 2), nn.Flatten(), nn.Linear(12, 4)),
        nn.Sequential(nn.Linear(12, 4), nn.PReLU()),
    ],
)
def test_other_modules_are_left_to_opacus(module: nn.Module) -> None:
    assert find_layers(module) is None and isinstance(per_example(module), Hooked)


# --- rows that are no examples ----------------------------------------------------------------------------------------


class Rows(nn.Module):
    """Makes three rows of each example: cut apart, they would count as three."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.reshape(-1, 4)).reshape(len(x), 3, 4).mean(1)


class PlacesFirst(nn.Module):
    """Two places and two examples: the wrong axis is as long as the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.reshape(-1, 2, 6).transpose(0, 1)).sum(0)


@pytest.mark.parametrize("opacus", [False, True])
@pytest.mark.parametrize("kind", [Rows, PlacesFirst])
def test_a_model_whose_rows_are_not_its_examples_is_refused(kind: type[Rows | PlacesFirst], opacus: bool) -> None:
    ways, (x, y) = gradients_of(kind()), drawn(4)
    assert isinstance(ways._way, Layered)
    if opacus:
        ways._way = Hooked(ways._module)
    with pytest.raises(ConfigError, match=r"whose gradient is whose|are not (as many|those of each)"):
        ways.check(x, y)


def test_rows_that_are_no_examples_are_noticed_in_any_batch_too() -> None:
    module, (x, y) = PlacesFirst(), drawn(5)
    with pytest.raises(ConfigError, match="for 5 examples: whose gradient is whose cannot be known"):
        Layered(module, [module.layer]).gradients(x, y)


def test_a_batch_comes_to_the_same_whatever_came_before_it() -> None:
    """The sums lie in one tensor: what an earlier batch left there is gone."""
    ways, (x, y) = gradients_of(models.build("cnn:small", (1, 8, 8), 4, 0)), drawn(6, 1.0, (1, 8, 8))
    first = summed(ways, x, y)
    for other in (0, 3):
        summed(ways, x[:other], y[:other])
        assert torch.equal(summed(ways, x, y), first)
    assert not summed(ways, x[:0], y[:0]).any()
