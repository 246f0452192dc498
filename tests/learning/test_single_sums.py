"""Sums of cut gradients in float32: as near to the exact ones as is counted on, and none of an example counts more."""

from __future__ import annotations

import math
import subprocess
import sys
from operator import attrgetter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedgossip.learning.dp_sgd import private
from fedgossip.learning.dp_sgd.layer_gradients import Apart, Factors, LayerGradients
from fedgossip.learning.dp_sgd.private import (
    LAYERED_MARGIN,
    MARGIN,
    SINGLE_ROWS,
    UNITS,
    PrivateGradients,
    cut,
    cut_sums,
)
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy
from fedgossip.learning.models import models
from fedgossip.learning.settings import TrainSettings
from fedgossip.secure import noise

CLIP = 0.7
NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


def single(layers: list[LayerGradients], clip: float, shapes: list[list[tuple[int, ...]]]) -> torch.Tensor:
    """The sum in float32, rounded, in the type of which it is; all parameters behind each other."""
    made, weights = cut(layers, clip, sum(math.prod(shape) for layer in shapes for shape in layer))
    found = []
    for layer, theirs in zip(made, shapes, strict=True):
        into = [torch.full(shape, math.nan) for shape in theirs]
        assert sum(part.numel() for part in layer.single_sums(weights, into)) == sum(map(torch.numel, into))
        found += [one.reshape(-1).double().round() for one in into]
    return torch.cat(found)


def layers_of(e: torch.Tensor, a: torch.Tensor, made: torch.Tensor, bias: bool) -> list[LayerGradients]:
    return [Factors(e, a, bias), Apart([made[:, :6].reshape(-1, 3, 2, 1), made[:, 6:]], [(2, 0, 1), None])]


@settings(max_examples=150, deadline=None)
@given(
    errors=st.lists(NUMBERS, min_size=2, max_size=2),
    inputs=st.lists(NUMBERS, min_size=3, max_size=3),
    made=st.lists(NUMBERS, min_size=8, max_size=8),
    others=st.sampled_from([0, 1, 7, 40, SINGLE_ROWS - 1, SINGLE_ROWS]),
    clip=st.sampled_from([1e-6, 0.3, 1e6]),
    scale=st.floats(1e-3, 1e3),
    bias=st.booleans(),
)
def test_one_example_moves_the_sum_by_the_clip_at_most_in_float32_and_to_float64(
    errors: list[float],
    inputs: list[float],
    made: list[float],
    others: int,
    clip: float,
    scale: float,
    bias: bool,
) -> None:
    torch.manual_seed(others)
    rest = [torch.randn(others, size) * math.sqrt(clip * scale) for size in (2, 3)]
    own = torch.randn(others, 8) * clip * scale
    shapes: list[list[tuple[int, ...]]] = [[(2, 3), (2,)] if bias else [(2, 3)], [(1, 3, 2), (2,)]]
    elements = sum(math.prod(shape) for layer in shapes for shape in layer)

    def rounded(e: torch.Tensor, a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        if not len(e):
            return torch.zeros(elements, dtype=torch.float64)
        layers = layers_of(e, a, g, bias)
        if len(e) <= SINGLE_ROWS:
            return single(layers, clip, shapes)
        return torch.cat([part.clone() for part in cut_sums(layers, clip, elements)]).round()

    one = [torch.tensor([each], dtype=torch.float32) for each in (errors, inputs, made)]
    moved = rounded(*(torch.cat(both) for both in zip(one, (*rest, own), strict=True))) - rounded(*rest, own)
    assert float(moved.norm()) <= UNITS


@pytest.mark.parametrize("rows", [1, 17, SINGLE_ROWS])
def test_no_element_is_off_by_more_than_the_bound_that_is_counted_on(rows: int) -> None:
    """n / (2^24 - n) of the sum of the magnitudes; two roundings more are those of a factor times its weight."""
    torch.manual_seed(rows)
    e, a = torch.randn(rows, 70), torch.randn(rows, 90) * torch.logspace(-6, 6, 90)
    layer = Factors(e, a, True)
    weights = torch.rand(rows, dtype=torch.float64) * UNITS
    into = [torch.empty(70, 90), torch.empty(70)]
    list(layer.single_sums(weights, into))
    found = torch.cat([one.reshape(-1) for one in into]).double()
    exact = torch.cat([part.clone() for part in layer.sums(weights)])
    most = torch.cat([part.clone() for part in Factors(e.abs(), a.abs(), True).sums(weights)])
    assert bool(((found - exact).abs() <= most * (rows + 2) / (2**24 - rows - 2)).all())


def test_the_margin_is_what_two_sums_of_so_many_clips_are_off() -> None:
    assert LAYERED_MARGIN - MARGIN == 2 * SINGLE_ROWS * SINGLE_ROWS * 2.0**-24
    bound = SINGLE_ROWS / (2**24 - SINGLE_ROWS)
    assert 2 * bound * SINGLE_ROWS * (1 - LAYERED_MARGIN) < LAYERED_MARGIN - MARGIN


def gradients_of(module: nn.Module, z: float, batch_size: int = 10, examples: int = 100) -> PrivateGradients:
    how = TrainSettings(batch_size=batch_size, local_steps=1, device="cpu")
    found = PrivateGradients(module, RecordPrivacy(CLIP, z), how, [np.arange(examples)], seed=1)
    for parameter in module.parameters():
        parameter.grad = torch.empty_like(parameter)
    found.begin(0, 0)
    return found


def filled(ways: PrivateGradients, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What becomes of a batch, in units."""
    ways.fill(x, y)
    found = torch.cat([private.gradient_of(one).reshape(-1) for one in ways._module.parameters()])
    return found.double() * (ways._expected / ways._unit)


@pytest.mark.parametrize("source", ["softmax", "mlp:12-9-4", "cnn:small", "gpt:1-8-2"])
def test_a_batch_is_filled_in_float32_as_in_float64(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    shape, classes = {"cnn:small": ((1, 8, 8), 4), "gpt:1-8-2": ((6,), 5)}.get(source, ((12,), 4))
    x = torch.randint(0, 5, (20, 6)) if source.startswith("gpt") else torch.randn(20, *shape)
    y = x.roll(-1, 1) if source.startswith("gpt") else torch.randint(0, classes, (20,))
    ways = gradients_of(models.build(source, shape, classes, 0, 5 if source.startswith("gpt") else None), 0.0)
    short = filled(ways, x, y)
    monkeypatch.setattr(private, "SINGLE_ROWS", 0)
    long = filled(ways, x, y)
    assert float((short - long).abs().max()) <= 20 * UNITS * 2.0**-21
    assert float(short.abs().max()) > 1e4


@pytest.mark.parametrize(("z", "exact"), [(1.0, 1 << 24), (1.0, 1 << 20), (9.0, 1 << 24)])
def test_noise_is_the_same_in_float32_and_where_that_is_too_short(
    z: float, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty batch is its noise; of more than 2^24 float32 gradients keep 24 bits."""
    monkeypatch.setattr(noise, "EXACT_SINGLES", exact)
    ways = gradients_of(nn.Linear(90, 100), z)
    drawn = ways._privacy.entropy_of(1, "noise", 0, 0)
    expected = torch.from_numpy(noise.discrete_gaussian(z * UNITS, 9100, drawn)).double()
    found = filled(ways, torch.zeros(0, 90), torch.zeros(0, dtype=torch.long))
    assert torch.allclose(found, expected, rtol=2.0**-22, atol=0)
    assert found.std() == pytest.approx(z * UNITS, rel=0.04)


@pytest.mark.parametrize(("z", "exact"), [(1.0, 1 << 24), (1.0, 1 << 20), (9.0, 1 << 24)])
def test_the_type_of_a_sum_cannot_be_told_from_the_gradient(
    z: float, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows from the size of the batch, and from the noise: only what they add up to may be seen."""

    def bits(rows: int, singles: int) -> torch.Tensor:
        monkeypatch.setattr(private, "SINGLE_ROWS", singles)
        ways = gradients_of(nn.Linear(90, 100, bias=False), z, 7)
        ways.fill(torch.zeros(rows, 90), torch.zeros(rows, dtype=torch.long))  # of which every gradient is zero
        return torch.cat([private.gradient_of(one).reshape(-1) for one in ways._module.parameters()]).clone()

    singly, doubly, empty = bits(3, SINGLE_ROWS), bits(3, 0), bits(0, SINGLE_ROWS)
    monkeypatch.setattr(noise, "EXACT_SINGLES", exact)
    beyond = bits(3, SINGLE_ROWS)
    assert torch.equal(singly, doubly) and torch.equal(singly, empty) and torch.equal(singly, beyond)


def test_what_a_batch_is_summed_by_follows_from_how_large_batches_are_on_average() -> None:
    """Not from a batch: one example more would change how every other one is rounded."""
    few, many = (gradients_of(nn.Linear(2, 2), 1.0, size, 100_000) for size in (32_768, 32_769))
    assert few._layers is not None and many._layers is None


def test_products_are_not_taken_in_float32_where_torch_may_take_shorter_numbers() -> None:
    cpu = torch.device("cpu")
    assert private.are_float32(cpu) and not private.are_float32(torch.device("meta"))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert not private.are_float32(cpu)
    finally:
        torch.set_float32_matmul_precision(before)
    try:
        if torch.set_flush_denormal(True):
            assert not private.are_float32(cpu)
    finally:
        torch.set_flush_denormal(False)
    assert private.are_float32(cpu)


@pytest.mark.sockets
@pytest.mark.parametrize("place", ["", ".mkldnn", ".mkldnn.matmul"])
def test_a_newer_setting_of_torch_is_no_error_and_is_heard(place: str) -> None:
    """torch then raises where it is asked for its older setting; in a process of its own, for it may stay so."""
    backend = f"torch.backends{place}"
    if not hasattr(attrgetter(f"backends{place}")(torch), "fp32_precision"):
        pytest.skip("this torch has no such setting")
    code = f"""
import torch
from fedgossip.learning.dp_sgd.private import are_float32
assert are_float32(torch.device("cpu"))
{backend}.fp32_precision = "bf16" if "mkldnn" in "{place}" else "tf32"
assert not are_float32(torch.device("cpu"))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
