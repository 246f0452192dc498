"""Gradients among the processes of one participant by PowerSGD: the bits that plain loops give, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_distributed import ended, task_of
from test_learning import images
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.task import Job
from fedgossip.learning.processes.worker import WHOLE_STEPS
from fedgossip.learning.task import TorchTask, TrainSettings

pytestmark = pytest.mark.sockets

MODEL, SIZES, RANK, STEPS, LR = "mlp:64-16-3", (64, 16, 3), 2, 6, 0.1
ALL = {"local_steps": STEPS, "local_epochs": None, "lr": LR}


@pytest.fixture(scope="module")
def compressed() -> Iterator[TorchTask]:
    with ended(task_of(MODEL, processes=2, compression=f"powersgd:{RANK}", **ALL)) as task:
        yield task


def by_loops(task: TorchTask, job: Job, rank: int | None) -> Vector:
    """What two processes make of a job: the paper's algorithm 1 and 2 for the first layer, means of all else."""
    inputs, hidden, outputs = SIZES
    shapes = [(hidden, inputs), (hidden,), (outputs, hidden), (outputs,)]
    parts = torch.from_numpy(job.vector.copy()).split([int(np.prod(shape)) for shape in shapes])
    values = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    left_out, q = [torch.zeros(shapes[0]) for _ in range(2)], None
    data = images()
    x, y = torch.from_numpy(data.x).flatten(1), torch.from_numpy(data.y)
    for step, rows in enumerate(task._batches.plan(job.node, job.round).batches):
        each = [gradients_of(values, x[part], y[part]) for part in np.array_split(rows, 2)]
        mean = [(one + other) / 2 for one, other in zip(*each, strict=True)]
        if rank is not None and step >= WHOLE_STEPS:
            if q is None:
                draw = np.random.RandomState(seeds.integer(1, "compression", job.node, job.round) % (1 << 32))
                torch.manual_seed(draw.randint(1_000_000_000))
                q = torch.randn(1, inputs, rank)
            powerSGD_hook._orthogonalize(q)
            wanted = [gradient[0] + left for gradient, left in zip(each, left_out, strict=True)]
            p = sum(one @ q[0] for one in wanted)[None]
            powerSGD_hook._orthogonalize(p)
            q = (sum(one.T @ p[0] for one in wanted) / 2)[None]
            mean[0] = p[0] @ q[0].T
            left_out = [one - mean[0] for one in wanted]
        values = [value - LR * gradient for value, gradient in zip(values, mean, strict=True)]
    return torch.cat([value.flatten() for value in values]).numpy() - job.vector


def gradients_of(values: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    w, b, v, c = leaves = [value.clone().requires_grad_() for value in values]
    loss = torch.nn.functional.cross_entropy(torch.relu(x @ w.T + b) @ v.T + c, y)
    return torch.autograd.grad(loss, leaves)


def test_steps_are_those_of_powersgd_with_what_was_left_out_added_later(compressed: TorchTask) -> None:
    job = Job(1, 0, compressed.initial(1))
    found, expected = compressed.train([job])[0].difference, by_loops(compressed, job, RANK)
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.abs(expected - by_loops(compressed, job, None)).max() > 1e-3


def test_a_job_has_the_same_bits_whatever_the_processes_did_before(compressed: TorchTask) -> None:
    start = compressed.initial(1)
    first = compressed.train([Job(1, 3, start)])[0].difference
    compressed.train([Job(0, 3, start)])
    again = compressed.train([Job(1, 3, start)])[0].difference
    assert first is not None and again is not None and np.array_equal(first, again)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"compression": "powersgd:2"}, "one process"),
        ({"compression": "powersgd:2", "processes": 2, "parallel": "fsdp"}, "fsdp"),
        ({"compression": "powersgd:2", "processes": 2, "parallel": "hogwild"}, "hogwild"),
        ({"compression": "powersgd:2", "processes": 2, "mesh": {"tensor": 2}}, "a mesh"),
        ({"compression": "powersgd:2", "processes": 2, "compile": True}, "compile"),
        ({"compression": "bf16", "processes": 2, "precision": "float16"}, "float16"),
        ({"compression": "powersgd", "processes": 2}, "takes a rank"),
        ({"compression": "powersgd:0", "processes": 2}, "takes a rank"),
        ({"compression": "top-k:0.1", "processes": 2}, "unknown compression"),
    ],
)
def test_what_it_does_not_go_with_is_refused_with_advice(how: dict[str, Any], words: str) -> None:
    from fedgossip.learning.settings import MeshSettings

    made: dict[str, Any] = {name: MeshSettings(**value) if name == "mesh" else value for name, value in how.items()}
    with pytest.raises(ConfigError, match=words) as error:
        TrainSettings(**made)
    assert error.value.advice


def test_sixteen_bits_without_nccl_are_refused_before_a_process_starts() -> None:
    with pytest.raises(ConfigError, match="NCCL") as error:
        task_of("softmax", processes=2, compression="bf16")
    assert "powersgd:2" in error.value.advice
