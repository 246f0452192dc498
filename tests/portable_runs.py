"""Print what portable runs and operations came to on this processor: {"runs": {name: digest}, "operations": ...}.

A program of its own, for torch chooses its kernels once in a process.  It imports torch first, as many programs of
users' do, so the environment has to say which kernels are wanted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedgossip import simulate
from fedgossip.base import seeds
from fedgossip.base.vectors import frozen, ordered_mix
from fedgossip.learning.dp_sgd import private
from fedgossip.learning.one_model import devices, optimizers
from fedgossip.learning.settings import TrainSettings

Tensor = torch.Tensor


def run_of(model: str, source: str = "digits", alpha: float = 0.3, n: int = 8, rounds: int = 10, **train: Any) -> str:
    experiment = {
        "rounds": rounds,
        "data": {"source": source, "partition": {"kind": "dirichlet", "alpha": alpha}},
        "model": {"source": model},
        "train": {"portable": True, **train},
        "topology": {"graph": "ring", "n": n},
        "eval": {"every": rounds},
    }
    return str(simulate(experiment, engine="stacked").digest)


RUNS: dict[str, Callable[[], str]] = {
    "softmax": lambda: run_of("softmax"),
    "mlp:64-32-10": lambda: run_of("mlp:64-32-10"),
    "mlp:64-33-17-10": lambda: run_of("mlp:64-33-17-10"),
    "adam": lambda: run_of("mlp:64-32-10", optimizer="adam", lr=0.01),
    "momentum": lambda: run_of(
        "mlp:64-32-10", momentum=0.9, nesterov=True, weight_decay=0.001, schedule="cosine", clip_norm=1.0
    ),
    "table": lambda: run_of("mlp:30-16-5-2", source="breast-cancer"),
    "batch norm": lambda: run_of("cnn:small-bn", n=4, rounds=2),
}
ON_MNIST = {"cnn:small": lambda: run_of("cnn:small", source="mnist", alpha=0.5, n=4, rounds=3)}


# --- operations -------------------------------------------------------------------------------------------------


def numbers(*shape: int, name: str = "") -> Tensor:
    """Numbers between -2 and 2 that are the same everywhere: whole ones, divided by a power of two."""
    draw = seeds.stream(0, f"portable {name}", *shape)
    return torch.from_numpy((draw.integers(-(2**22), 2**22, shape) / 2**21).astype(np.float32))


def signs(*shape: int) -> Tensor:
    return numbers(*shape, name="labels").abs().mul(1000).long()


def passed(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """What comes out of a module, and the gradients of all that goes in."""
    for number, parameter in enumerate(module.parameters()):
        parameter.data.copy_(numbers(*parameter.shape, name=f"parameter {number}").mul_(0.25))
    first = inputs[0].requires_grad_() if inputs[0].is_floating_point() else inputs[0]
    found = module(first, *inputs[1:])
    found = found[0] if isinstance(found, tuple) else found
    (found * numbers(*found.shape, name="weights")).sum().backward()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return [found, *([] if first.grad is None else [first.grad]), *gradients, *module.buffers()]


def called(function: Callable[..., Tensor], *shape: int, positive: bool = False) -> list[Tensor]:
    x = numbers(*shape)
    x = (x.abs() + 2**-10 if positive else x).requires_grad_()
    found = function(x)
    (found * numbers(*found.shape, name="weights")).sum().backward()
    assert x.grad is not None
    return [found, x.grad]


def stepped(**how: Any) -> list[Tensor]:
    settings = TrainSettings(**how)
    weights, slots = numbers(1, 1003), [torch.zeros(1, 1003) for _ in settings.slots]
    factors = optimizers.rates(settings, [settings.lr], [0], 3)
    wanted = ("rate", "root", "kept")
    for number in range(3):
        found = {name: getattr(factors, name) for name in wanted}
        now = {name: torch.tensor(one[min(number, len(one) - 1), 0]) for name, one in found.items()}
        gradient = numbers(1, 1003, name=f"gradient {number}")
        optimizers.step(settings, weights, gradient, slots, **now)
    return [weights, *slots]


def clipped() -> list[Tensor]:
    gradients = [numbers(3, 40, 7), numbers(3, 11)]
    optimizers.clip(gradients, 0.5)
    return gradients


def cut() -> list[Tensor]:
    sums = [torch.zeros(700, 9, dtype=torch.float64), torch.zeros(31, dtype=torch.float64)]
    apart = [numbers(5, 700, 9), numbers(5, 31)]
    lengths = private.lengths(apart)
    private.add_clipped(sums, apart, 1.0)
    return [lengths, *sums]


def drawn(function: Callable[[], Tensor]) -> list[Tensor]:
    torch.manual_seed(5)
    return [function()]


def mixed() -> list[Tensor]:
    vectors = [frozen(numbers(1001, name=str(node)).numpy().copy()) for node in range(3)]
    return [torch.from_numpy(ordered_mix(list(zip((0.2, 0.3, 0.5), vectors, strict=True))).copy())]


def stacked(batch: int) -> list[Tensor]:
    """The products of `stacked_engine`: usual and odd shapes, one node and many, forward, backward and update."""
    found = []
    for rows, inputs, outputs in ((16, 80, 32), (5, 33, 10), (17, 17, 5), (2, 13, 7), (3, 784, 10)):
        a, w = numbers(batch, rows, inputs), numbers(batch, inputs, outputs)
        z = torch.bmm(a, w)
        found += [z, torch.bmm(z, w.transpose(1, 2)), w.clone().baddbmm_(a.transpose(1, 2), z)]
    return found


OPERATIONS: dict[str, Callable[[], Sequence[Tensor]]] = {
    "bmm, baddbmm of one": lambda: stacked(1),
    "bmm, baddbmm of eight": lambda: stacked(8),
    "linear": lambda: passed(nn.Linear(33, 17), numbers(9, 33)),
    "convolution 3x3": lambda: passed(nn.Conv2d(3, 16, 3, padding=1), numbers(4, 3, 14, 14)),
    "convolution 5x5, stride 2": lambda: passed(nn.Conv2d(5, 7, 5, stride=2), numbers(3, 5, 13, 12)),
    "convolution, one dimension": lambda: passed(nn.Conv1d(6, 9, 3), numbers(4, 6, 21)),
    "max pooling": lambda: called(lambda x: functional.max_pool2d(x, 2), 3, 4, 10, 9),
    "average pooling": lambda: called(lambda x: functional.avg_pool2d(x, 3), 3, 4, 10, 9),
    "batch norm": lambda: passed(nn.BatchNorm2d(7), numbers(6, 7, 5, 5)),
    "batch norm, evaluated": lambda: passed(nn.BatchNorm2d(7).eval(), numbers(6, 7, 5, 5)),
    "layer norm": lambda: passed(nn.LayerNorm(35), numbers(6, 35)),
    "group norm": lambda: passed(nn.GroupNorm(3, 9), numbers(4, 9, 6, 5)),
    "embedding": lambda: passed(nn.Embedding(50, 9), signs(4, 21) % 50),
    "GRU": lambda: passed(nn.GRU(16, 21, batch_first=True), numbers(4, 12, 16)),
    "LSTM": lambda: passed(nn.LSTM(16, 21, batch_first=True), numbers(4, 12, 16)),
    "attention": lambda: called(lambda x: functional.scaled_dot_product_attention(x, x, x), 2, 3, 17, 8),
    "softmax": lambda: called(lambda x: torch.softmax(x, 1), 5, 10, 16),
    "log softmax": lambda: called(lambda x: torch.log_softmax(x, 1), 5, 10, 16),
    "cross entropy": lambda: called(lambda x: functional.cross_entropy(x, signs(33) % 10).reshape(1), 33, 10),
    "ReLU": lambda: called(functional.relu, 1003),
    "GELU": lambda: called(functional.gelu, 1003),
    "SiLU": lambda: called(functional.silu, 1003),
    "sigmoid": lambda: called(torch.sigmoid, 1003),
    "tanh": lambda: called(torch.tanh, 1003),
    "exp": lambda: called(torch.exp, 1003),
    "log": lambda: called(torch.log, 1003, positive=True),
    "reciprocal": lambda: called(torch.reciprocal, 1003, positive=True),
    "rsqrt": lambda: called(torch.rsqrt, 1003, positive=True),
    "square_root": lambda: [optimizers.square_root(numbers(100_003).abs())],
    "sums": lambda: called(lambda x: torch.cat([x.sum(0), x.sum(1), x.sum().reshape(1)]), 301, 77),
    "means, variances": lambda: called(lambda x: torch.cat([x.mean(1), x.var(1, correction=0)]), 31, 777),
    "dot": lambda: [torch.dot(numbers(10_007), numbers(10_007, name="other")).reshape(1)],
    "sgd": stepped,
    "sgd with momentum": lambda: stepped(momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: stepped(optimizer="adam", lr=0.01, weight_decay=0.01),
    "clipping": clipped,
    "clipping per example": cut,
    "uniform draws": lambda: drawn(lambda: torch.rand(1003)),
    "normal draws": lambda: drawn(lambda: torch.randn(1003)),
    "dropout": lambda: drawn(lambda: functional.dropout(numbers(1003), 0.3)),
    "mixing": mixed,
}


def hash_of(tensors: Sequence[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(np.ascontiguousarray(tensor.detach().numpy()).tobytes())
    return found.hexdigest()[:12]


def main() -> None:
    torch.set_num_threads(1)
    devices.settle()
    runs = RUNS | (ON_MNIST if os.environ.get("FEDGOSSIP_DATA") else {})
    found = {
        "runs": {name: run()[:12] for name, run in runs.items()},
        "operations": {name: hash_of(operation()) for name, operation in OPERATIONS.items()},
    }
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
