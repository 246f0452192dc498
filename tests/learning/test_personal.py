"""Layers that stay at their node: FedBN, and a head of one's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_federated import Run, digits
from test_learning import by_autograd, made_up
from torch import nn

from fedgossip.algorithms.federated.names import make
from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job
from fedgossip.data.data import load, split
from fedgossip.data.dataset import Dataset
from fedgossip.data.partitions import partition
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.task import TorchTask, TrainSettings

BN = {"personal": "norm*", "buffers": "local"}


def test_personal_parameters_are_no_part_of_the_vector() -> None:
    whole, shared = digits("cnn:small-bn", buffers="local"), digits("cnn:small-bn", **BN)
    assert whole.length - shared.length == 2 * (16 + 32)  # a weight and a bias per channel
    assert not any(name.startswith("norm") for name in shared.layout.names) and whole.schema != shared.schema


def test_the_first_round_trains_as_if_nothing_were_personal() -> None:
    """What differs is what travels: the shared part of the update is the same, to the bit."""
    whole, shared = digits("cnn:small", momentum=0.9), digits("cnn:small", momentum=0.9, personal="layer.*")
    update = whole.train([Job(1, 0, whole.initial(1))])[0].difference
    ours = shared.train([Job(1, 0, shared.initial(1))])[0].difference
    assert update is not None and ours is not None
    parts = {name: update[where] for name, where, _ in whole.layout.places()}
    for name, where, _ in shared.layout.places():
        np.testing.assert_allclose(ours[where], parts[name], atol=1e-7)
    own = shared.state(1)["personal"]
    expected = np.concatenate([whole.initial(1)[w] + parts[n] for n, w, _ in whole.layout.places() if "layer" in n])
    np.testing.assert_allclose(own, expected, atol=1e-7)


def test_a_softmax_with_a_personal_bias_leaves_the_batched_engine_and_equals_autograd() -> None:
    data, how = made_up(), TrainSettings(device="cpu", local_steps=3, personal="*bias")
    shares = partition("size-skewed", data.labels, 9, seed=3)
    task = TorchTask(data, data, shares, "softmax", how, seed=1, rounds=20)
    plain = TorchTask(data, data, shares, "softmax", replace(how, personal=""), seed=1, rounds=20)
    job = Job(2, 1, plain.initial(2))
    expected = by_autograd("softmax", data, plain, job, how)[: task.length]
    np.testing.assert_allclose(task.train([Job(2, 1, task.initial(2))])[0].difference, expected, atol=1e-6)


@pytest.mark.parametrize("terms", [None, Terms(0.3)])
def test_what_is_personal_stays_with_its_node_and_moves_no_other(terms: Terms | None) -> None:
    task, alone = digits("cnn:small-bn", **BN), digits("cnn:small-bn", **BN)
    x = task.initial(0)
    for round in range(2):
        together = task.train([Job(node, round, x, terms) for node in (0, 1)])[1].difference
        single = alone.train([Job(1, round, x, terms)])[0].difference
        assert np.array_equal(together, single)
    assert not np.array_equal(task.state(0)["personal"], task.state(1)["personal"])


def test_a_state_with_personal_layers_is_taken_up_whole() -> None:
    task, again = (digits("cnn:small-bn", momentum=0.9, **BN) for _ in range(2))
    x = task.initial(0)
    task.train([Job(0, 0, x)])
    again.load_state(0, task.state(0))
    assert np.array_equal(*(one.train([Job(0, 1, x)])[0].difference for one in (task, again)))


def test_a_pattern_that_names_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="nrm") as error:
        digits("cnn:small-bn", personal="nrm*")
    assert "norm1.weight" in error.value.advice
    with pytest.raises(ConfigError, match="share"):
        digits("softmax", personal="*")


def test_a_head_of_ones_own_serves_clients_that_name_the_classes_differently() -> None:
    """Two halves of the clients call the digits by other numbers: one model for all cannot serve both."""
    train, test = split(load("digits"), 0.2, 0)
    shares = partition("iid", train.y, 4, seed=0)
    y, shift = train.y.copy(), 5
    for node in (2, 3):
        y[shares[node]] = (y[shares[node]] + shift) % 10
    renamed = Dataset("renamed", train.x, y, 10)

    def reached(personal: str) -> float:
        how = TrainSettings(device="cpu", lr=0.2, local_epochs=1, personal=personal)
        run = Run(make("fedavg", clients=4), TorchTask(renamed, test, shares, "mlp:64-32-10", how, seed=0, rounds=15))
        for _ in range(15):
            run.go([0, 1, 2, 3])
        assert isinstance(run.task, TorchTask)
        return run.task.evaluate_own(0, run.x)["accuracy"]

    assert reached("layer2.*") > 0.85
    assert reached("") < 0.7


def test_a_stage_of_a_pipeline_has_its_own_layout_while_the_others_parameters_have_no_memory() -> None:
    from fedgossip.learning.processes.plans import leave_others

    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    whole = Layout.personal_of(module, ["1.*"])
    leave_others(module, module[0])
    assert module[1].weight.is_meta and Layout.personal_of(module, ["1.*"]) == whole
    with pytest.raises(ConfigError, match="has no values"):  # but a module that is passed like this is refused
        Layout.from_module(module)
