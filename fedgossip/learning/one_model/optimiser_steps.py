"""Steps on a process's part of a module, with the optimiser's state and a client's terms.

All of it has fixed places over jobs, loaded anew for each: a captured step (`captured_steps`) reads it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Terms
from fedgossip.core.task import Segment
from fedgossip.learning.one_model import optimizers, weights
from fedgossip.learning.one_model.tensor_slices import Line
from fedgossip.learning.settings import TrainSettings


class OptimiserSteps:
    """Takes the steps of `settings` on held values; their line has tensors at `segments`, the first `own` elements of
    which are personal.  `length`: of the exchanged vectors.
    """

    def __init__(
        self, settings: TrainSettings, held: weights.Held, segments: Sequence[Segment], own: int, length: int
    ) -> None:
        self._settings, self._held, self._segments, self._own, self._length = settings, held, segments, own, length
        # where steps are taken: host memory, where a GPU's parts are offloaded
        self.home = held.values[0].device
        self.slots: list[list[torch.Tensor]] = []
        """Of each slot a tensor [1, k] per held value."""
        self._pulls: list[tuple[int, optimizers.Pull]] = []
        """Of each value the terms, and from which of its elements on they hold; made for the first job with any."""
        self._mu = torch.zeros((), device=self.home)
        self._anchors: list[torch.Tensor] = []
        self._corrections: list[torch.Tensor] = []

    def load(self, remembered: Sequence[Line | None], vector: Vector, terms: Terms | None) -> bool:
        """Load a job: the node's state of each slot, and its terms; return whether it has terms that pull."""
        if not self.slots:
            self.slots = [weights.scattered(None, self._held.places, self.home) for _ in remembered]
        for slot, line in zip(self.slots, remembered, strict=True):
            weights.spread_over(slot, line, self._held.places)
        if terms is None or not terms.active:
            return False
        if not self._pulls:
            self._make_pulls()
        correction = np.zeros(self._length, np.float32) if terms.correction is None else terms.correction
        for line, into in ((vector, self._anchors), (correction, self._corrections)):
            weights.spread_over(into, self._in_line(line), self._held.places)
        self._mu.fill_(terms.pull)
        return True

    def take(self, factors: torch.Tensor, *, pulled: bool) -> None:
        """Step along the gradient, which is used up; `factors` [4, 1] as `optimizers.factors` gives them."""
        if self._settings.clip_norm is not None:
            self._held.clip(self._settings.clip_norm)
        rate, root, kept, mean = factors
        values, gradients = self._held.values, self._held.gradients
        if pulled:
            for (begin, pull), value, gradient in zip(self._pulls, values, gradients, strict=True):
                pull.add_to(gradient[:, begin:], value[:, begin:])
        if self._settings.by_layers:
            how = self._settings, values, gradients, self.slots, self._layers
            optimizers.step_by_layers(*how, rate=rate, root=root, mean=mean)
        else:
            for part, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
                remembered = [slot[part] for slot in self.slots]
                optimizers.step(self._settings, value, gradient, remembered, rate=rate, root=root, kept=kept)
        self._held.refresh()

    def _make_pulls(self) -> None:
        places = self._held.places
        self._anchors, self._corrections = (weights.scattered(None, places, self.home) for _ in range(2))
        for place, anchor, correction in zip(places, self._anchors, self._corrections, strict=True):
            begin = place.before(self._own)  # personal elements are not pulled
            self._pulls.append((begin, optimizers.Pull(self._mu, anchor[:, begin:], correction[:, begin:])))

    def _in_line(self, vector: Vector) -> Vector:
        """Return a vector behind zeros for the personal elements."""
        return vector if not self._own else np.concatenate([np.zeros(self._own, np.float32), vector])

    def _layers(self, tensors: Sequence[torch.Tensor]) -> list[tuple[Sequence[torch.Tensor], bool]]:
        """Return each trained tensor as a view of the one that holds all of them, see `optimizers.Layers`."""
        (line,) = tensors
        return [([line[:, one.start : one.stop]], len(one.shape) > 1) for one in self._segments]
