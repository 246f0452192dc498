"""The character transformer: what it sees, where, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.learning.models import models
from fedgossip.learning.models.models import turned
from fedgossip.learning.one_model.flat import Layout
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
