"""Training on a GPU: the host waits for it at the ends of a job, never between two steps.

What makes a host wait is a number that it reads from the device, and memory that it copies there.  On the CPU both can
be counted: the operations by which torch reads a number, and the arrays that become tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from test_learning import images, on_cpu, task_of
from torch.utils._python_dispatch import TorchDispatchMode

from fedgossip.base.seeds import stream
from fedgossip.core.machine import Terms
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.learning.one_model import optimizers

CAST = "aten._to_copy.default"
WAITING = {"aten._local_scalar_dense.default", CAST, "aten.lift_fresh.default"}
"""What reads a number, moves a tensor to another device or type, and makes one of a number."""


class Waits(TorchDispatchMode):
    """Counts the operations in WAITING."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in WAITING:
            self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def texts() -> Dataset:
    lines = stream(0, "texts").integers(0, 9, (96, 13))
    return Dataset("texts", lines[:, :-1].copy(), lines[:, 1:].copy(), 9, vocabulary=tuple("abcdefghi"))


def waits(model: str, steps: int, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Counter[str]:
    """Count for a job of so many steps, at a pull and a correction, what a GPU would be waited for."""
    data = texts() if model.startswith("gpt") else images()
    task = task_of(model, data, on_cpu(**{"batch_size": 4, "local_steps": steps, **how}), n=3, skewed=False)
    terms = Terms(0.1, np.zeros(task.length, np.float32))
    made, from_numpy = [], torch.from_numpy
    with monkeypatch.context() as patch, Waits() as found:
        patch.setattr(torch, "from_numpy", lambda array: (made.append(array.shape), from_numpy(array))[1])
        task.train([Job(0, 0, task.initial(0), terms)])
    found.seen["from_numpy"] = len(made)
    return found.seen


@pytest.mark.parametrize("how", [{}, {"momentum": 0.9, "weight_decay": 0.1}])
@pytest.mark.parametrize("model", ["cnn:small-bn", "gpt:1-16-2"])
def test_a_job_waits_as_often_whatever_its_steps(model: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    how = {**how, "channels_last": True} if model.startswith("cnn") else how  # by modules, also on the CPU
    few, many = (waits(model, steps, monkeypatch, **how) for steps in (2, 7))
    assert few == many and few["from_numpy"]


def test_adams_roots_are_numpys_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch):
    """They are the only tensors of arrays that its steps make."""
    few, many = (waits("gpt:1-16-2", steps, monkeypatch, optimizer="adam") for steps in (2, 7))
    assert many - few == {"from_numpy": 5, "aten.lift_fresh.default": 5}


@pytest.mark.parametrize("longest", [0.5, 3.0, 100.0])
def test_clipping_without_a_look_at_the_length_is_clipping(longest: float):
    draw = torch.Generator().manual_seed(1)
    parts = [torch.randn(4, 3, 5, generator=draw), torch.randn(4, 7, generator=draw)]
    expected, found = ([part.clone() for part in parts] for _ in range(2))
    optimizers.clip(expected, longest)
    lengths = torch.ones(4)
    with Waits() as of_the_root:  # numpy takes it, on the CPU alone
        optimizers.square_root(lengths)
    with Waits() as waited:
        optimizers.clip_unseen(found, longest)
    assert waited.seen == of_the_root.seen
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_gradient_that_exploded_is_seen_either_way(odd: float):
    """What is no number stays none; another node's gradient is left alone."""
    gradient = torch.tensor([[1.0, odd], [0.3, 0.4]])
    for clip in (optimizers.clip, optimizers.clip_unseen):
        found = gradient.clone()
        clip([found], 1.0)
        assert not torch.isfinite(found[0]).all() and torch.equal(found[1], gradient[1])
