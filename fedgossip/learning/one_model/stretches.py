"""The stretches of a gradient, sent while the rest is computed: a backward pass ends with the first layers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from fedgossip.base.vectors import Vector
from fedgossip.learning.one_model.flat import Layout

ReadStretch = Callable[[slice], Vector]
"""Returns final elements of a gradient, frozen."""


class GradientStretches:
    """Sends each stretch once, from the last of `starts` to the first: `deliver(start, elements, loss)`."""

    def __init__(self, starts: Sequence[int], length: int, deliver: Callable[[int, Vector, float], None]) -> None:
        self._starts, self._stop, self._deliver = deque(starts), length, deliver

    def final_from(self, place: int, read: ReadStretch, loss: float) -> None:
        """Send stretches: all elements from `place` on are final, and so is the loss."""
        while self._starts and self._starts[0] >= place:
            start = self._starts.popleft()
            self._deliver(start, read(slice(start, self._stop)), loss)
            self._stop = start


@contextmanager
def final_in_backward(module: nn.Module, layout: Layout, final_from: Callable[[int], None]) -> Iterator[None]:
    """In this context a backward pass calls `final_from` with positions; all gradients from there on are final.
    Parameters without a gradient are final at the end of the pass.
    """
    tensors = dict(module.named_parameters())
    places = [(name, where) for name, where, _ in layout.places() if name in tensors]
    reached: set[str] = set()

    def reaches(name: str) -> None:
        reached.add(name)
        before = len(places)
        while places and places[-1][0] in reached:
            place = places.pop()[1].start
        if len(places) < before:
            final_from(place)

    hooks: list[RemovableHandle] = []
    for name, _ in places:
        add: Any = tensors[name].register_post_accumulate_grad_hook
        hooks.append(add(lambda _, name=name: reaches(name)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
