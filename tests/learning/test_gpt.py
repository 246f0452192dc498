"""The character transformer: what it sees, where, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.learning.models import models
from fedgossip.learning.models.models import turned
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.processes.experts import divide_experts
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask


def built(source: str = "gpt:2-16-2", vocabulary: int = 10) -> torch.nn.Module:
    return models.build(source, (12,), vocabulary, 0, vocabulary)


def test_a_prediction_knows_the_characters_up_to_its_own_alone() -> None:
    text = torch.randint(10, (1, 12), generator=torch.Generator().manual_seed(1))
    other = text.clone()
    other[0, 7] = (other[0, 7] + 1) % 10
    with torch.no_grad():
        first, second = built()(text), built()(other)
    assert torch.equal(first[0, :7], second[0, :7])
    assert (first[0, 7:] != second[0, 7:]).any(dim=1).all()


def test_a_product_of_turned_vectors_depends_on_their_distance_and_not_on_their_places() -> None:
    draw = torch.Generator().manual_seed(2)
    query, key = (torch.randn(8, generator=draw, dtype=torch.float64) for _ in range(2))
    queries, keys = turned(query.expand(20, 8)), turned(key.expand(20, 8))
    products = queries @ keys.T
    for distance in (0, 3, 11):
        along = products.diagonal(-distance)
        assert (along - along[0]).abs().max() < 1e-5
    assert (products[0] - products[0, 0]).abs().max() > 0.1


def test_the_vector_is_the_weights_and_nothing_beside_them() -> None:
    """V embeddings and V logits of width w; a layer has 12 w^2 weights and two norms of 2 w."""
    layers, width, vocabulary = 3, 16, 10
    expected = 2 * vocabulary * width + layers * (12 * width**2 + 4 * width) + 2 * width
    assert Layout.from_module(built(f"gpt:{layers}-{width}-2", vocabulary)).length == expected


def test_it_learns_what_a_count_of_characters_cannot_know() -> None:
    """Of a text in which characters come in a fixed cycle of 7 the next one is certain; by counts it costs ln 7."""
    text = np.arange(400) % 7
    windows = np.stack([text[start : start + 13] for start in range(0, 380, 3)])
    data = Dataset("cycle", windows[:, :-1], windows[:, 1:], 7, vocabulary="abcdefg")
    how = TrainSettings(device="cpu", optimizer="adamw", lr=3e-3, local_steps=40, batch_size=16)
    task = TorchTask(data, data, [np.arange(len(data))], "gpt:1-16-2", how, seed=0, rounds=2)
    x = task.initial(0)
    for number in range(2):
        (update,) = task.train([Job(0, number, x)])
        x = x + update.difference
    (scores,) = task.evaluate([x])
    assert scores["loss"] < 0.5 < np.log(7)


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("gpt", "Write gpt:2-64-4"),
        ("gpt:2-64", "Write gpt:2-64-4"),
        ("gpt:2-64-0", "Write gpt:2-64-4"),
        ("gpt:2-60-4", "Write gpt:2-64-4"),
        ("gpt:1-6-4", "Write gpt:1-8-4"),
    ],
)
def test_sizes_that_are_none_are_refused(source: str, advice: str) -> None:
    with pytest.raises(ConfigError) as error:
        built(source)
    assert advice in error.value.advice


def test_one_expert_is_the_block_without_experts_to_the_bit() -> None:
    one, dense = built("gpt:2-16-2?experts=1"), built("gpt:2-16-2")
    text = torch.randint(10, (4, 12), generator=torch.Generator().manual_seed(1))
    ours = {name.replace("experts.", ""): value for name, value in one.named_parameters()}
    theirs = {name.replace("wide.weight", "wide").replace("narrow.weight", "narrow"): value
              for name, value in dense.named_parameters()}  # fmt: skip
    with torch.no_grad():
        for name, value in theirs.items():
            value.copy_(ours[name].view_as(value))
    found = one(text)
    assert torch.equal(found.last, dense(text)) and float(found.added.detach()) == 0
    (found.last.square().mean() + found.added).backward()
    dense(text).square().mean().backward()
    assert all(torch.equal(value.grad, ours[name].grad.view_as(value)) for name, value in theirs.items())  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(("top", "capacity"), [(1, 0.5), (2, 1.0), (3, 9.0)])
def test_experts_are_the_plain_loop_of_their_papers(top: int, capacity: float) -> None:
    """Each place goes to its preferred experts, in order, while they have room; else the residual alone goes on."""
    experts = built(f"gpt:1-16-2?experts=3&top={top}&capacity={capacity}").blocks[0].experts  # type: ignore[index, union-attr]
    h = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        experts.router.mul_(50)
        found, p = experts(h).view(12, 16), (h.view(12, 16) @ experts.router.T).softmax(-1)
        room, expected, counts = [-(-capacity * 12 * top // 3)] * 3, torch.zeros(12, 16), [0] * 3
        for place in range(12):
            order = p[place].argsort(descending=True)[:top].tolist()
            for e in order:
                counts[e] += 1
                if room[e] > 0:
                    room[e] -= 1
                    share = p[place, e] / (p[place, order].sum() if top > 1 else 1)
                    wide = torch.nn.functional.gelu(experts.wide[e] @ h.view(12, 16)[place])
                    expected[place] += share * (experts.narrow[e] @ wide)
        assert (found - expected).abs().max() < 1e-6
        uneven = 3 * sum(count / 12 / top * p[:, e].mean() for e, count in enumerate(counts)) - 1
        assert float(experts.take_uneven()) == pytest.approx(float(uneven), abs=1e-6)
        whole = experts.eval()(h)  # nothing is left out, whatever the others of the batch are
        assert (whole[:1] - experts(h[:1])).abs().max() < 1e-6
        assert capacity < 9 or (whole.view(12, 16) - found).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("experts=4&capacity=0", "no expert takes a place"),
        ("experts=2&top=3", "top = 3 of 2 experts"),
        ("experts=0", "experts = 0"),
        ("experts=4&tpo=2", "option 'tpo' is not known"),
    ],
)
def test_experts_that_cannot_be_are_refused(words: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        built(f"gpt:2-16-2?{words}")


def cycle(source: str, **how: Any) -> TorchTask:
    text = np.arange(400) % 7
    windows = np.stack([text[start : start + 13] for start in range(0, 380, 3)])
    data = Dataset("cycle", windows[:, :-1], windows[:, 1:], 7, vocabulary="abcdefg")
    settings = TrainSettings(device="cpu", optimizer="adamw", lr=3e-3, batch_size=16, **how)
    return TorchTask(data, data, [np.arange(len(data))], source, settings, seed=0, rounds=2)


def test_experts_learn_and_are_of_one_process() -> None:
    task = cycle("gpt:1-16-2?experts=4&top=2", local_steps=60)
    (update,) = task.train([Job(0, 0, task.initial(0))])
    (score,) = task.evaluate([task.initial(0) + update.difference])
    assert score["loss"] < 0.5 * np.log(7)
    with pytest.raises(ConfigError, match="processes = 2: experts' capacity and balance"):
        cycle("gpt:1-16-2?experts=4&top=2", local_steps=1, processes=2)


@pytest.mark.parametrize("training", [True, False])
def test_positions_that_travel_to_experts_have_the_outputs_and_gradients_of_those_that_stay(training: bool) -> None:
    """A group of one process, by the functions of several; tests/net/test_mesh.py --long has two and four."""
    source, text = "gpt:2-16-2?experts=4&top=2&capacity=0.5", torch.randint(10, (5, 12))
    whole, divided = built(source).train(training), built(source).train(training)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        divide_experts(divided, init_device_mesh("cpu", (1,)))  # type: ignore[arg-type]
        found = [module(text) for module in (whole, divided)]
        last, added = ([getattr(one, name, one) for one in found] for name in ("last", "added"))
        assert (last[0] - last[1]).abs().max() < 1e-6
        loss = [one.square().mean() for one in last]
        if training:
            assert float(added[0].detach()) == pytest.approx(float(added[1].detach()), rel=1e-5)
            loss = [one + more for one, more in zip(loss, added, strict=True)]
        for one in loss:
            one.backward()
        for ours, theirs in zip(whole.parameters(), divided.parameters(), strict=True):
            gradient = theirs.grad.to_local() if isinstance(theirs.grad, DTensor) else theirs.grad
            assert (ours.grad - gradient).abs().max() < 1e-6
    finally:
        distributed.destroy_process_group()
