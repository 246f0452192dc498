"""Nodes whose models stay on a device, beside a plain loop over the stack there: for `stacked.py --device`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

from fedgossip.learning.many_nodes import resident
from fedgossip.learning.many_nodes.device_stack import DeviceStack
from fedgossip.topology import Mixing


@contextmanager
def staying_on(device: str) -> Iterator[None]:
    """Let models stay on a device as they do on a GPU: on the CPU, too."""
    before = resident.STACKS
    resident.STACKS = {**before, device: DeviceStack}
    try:
        yield
    finally:
        resident.STACKS = before


class Clock:
    """Seconds between two calls of `round` numbers: of the processor on a CPU, else of the clock, when all is done."""

    def __init__(self, device: str, since: int, until: int) -> None:
        self._device, self._since, self._until = device, since, until
        self._calls, self._began = 0, 0.0
        self.seconds = 0.0

    def __call__(self) -> None:
        if self._calls in (self._since, self._until):
            now = self._now()
            self.seconds, self._began = now - self._began, now
        self._calls += 1

    def _now(self) -> float:
        if self._device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def plain_round(
    sizes: tuple[int, ...], x: np.ndarray, y: np.ndarray, graph: Mixing, lr: float, batch: int, device: str
) -> Callable[[int], None]:
    """Return a round as one would write it: the stack in batched layers, autograd, and weights times neighbours' rows.

    x [n, examples, inputs], y [n, examples]; every node has as many neighbours.
    """
    (_, ids, weights) = graph.rows_by_degree()[0]
    near, shares = torch.from_numpy(ids).to(device), torch.from_numpy(weights.astype(np.float32)).to(device)
    examples, labels = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    n = len(x)
    torch.manual_seed(0)
    stack = [
        (torch.randn(n, into, out, device=device) / into**0.5, torch.zeros(n, 1, out, device=device))
        for into, out in pairwise(sizes)
    ]
    leaves = [one.requires_grad_() for layer in stack for one in layer]

    def one_round(number: int) -> None:
        part = slice(number % 2 * batch, (number % 2 + 1) * batch)
        signal = examples[:, part]
        for layer, (weight, bias) in enumerate(stack):
            signal = torch.baddbmm(bias, signal if not layer else signal.relu(), weight)
        loss = functional.cross_entropy(signal.flatten(0, 1), labels[:, part].flatten(), reduction="sum") / batch
        gradients = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.sub_(gradient, alpha=lr)
                leaf.copy_(torch.einsum("nk,nk...->n...", shares, leaf[near]))

    return one_round
