"""Tests at the node, without effect on training: the received model, with personal layers and local buffers, on
held-out examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective, objective_of
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy
from fedgossip.learning.many_nodes.stacked_engine import State
from fedgossip.learning.one_model import spectral_norms
from fedgossip.learning.one_model.batches import Indices
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import Criterion, predicted
from fedgossip.learning.one_model.module_engine import PERSONAL
from fedgossip.learning.one_model.scoring import Scoring
from fedgossip.learning.settings import TrainSettings
from fedgossip.secure.noise import discrete_gaussian

ROWS = 1024
"""Number of examples processed at a time."""


class LocalTests:
    """Measures vectors on the examples `kept` by each node, with a separate module."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        settings: TrainSettings,
        data: Dataset,
        kept: Mapping[NodeId, Indices],
        privacy: RecordPrivacy | None = None,
        seed: int = 0,
        objective: Objective | None = None,
        base: Path | None = None,
    ) -> None:
        objective = objective or objective_of(data.kind, "", ())
        self._score, self._criterion = objective.score.name, Criterion(objective, base)
        self._scoring = Scoring(replace(objective, metrics=objective.metrics[:1]), data, base)
        self._privacy, self._seed = privacy, seed
        self._module, self._layout, self._kept, self._data = module.eval(), layout, kept, data
        self._own = Layout.personal_of(module, settings.stays)
        self._fresh_own = self._own.read(module) if self._own.length else None
        self._local = {name: b for name, b in module.named_buffers() if name not in layout.names}
        self._fresh = {name: b.detach().clone() for name, b in self._local.items()}

    @torch.no_grad()
    def measure(self, node: NodeId, round: int, vector: Vector, state: State) -> dict[str, float]:
        """Return {"score", "tested"}: of the vector with the node's personal tensors, and the number of examples.

        If records are private and a noisy count may be reported, "read_score" is that accuracy.
        """
        rows = self._kept.get(node)
        if rows is None or not len(rows):
            return {}
        self._layout.write(self._module, vector)
        self._take_own(state)
        spectral_norms.settle(self._module)
        tallies, loss, counted = [], 0.0, 0
        for start in range(0, len(rows), ROWS):
            some = rows[start : start + ROWS]
            x, y = (torch.from_numpy(np.array(part[some])) for part in (self._data.x, self._data.y))
            outputs = self._module(x)
            tallies += self._scoring.tallies(outputs.unsqueeze(0), y)
            loss += float(self._criterion.mean(outputs, y)) * predicted(y) if self._score == "loss" else 0.0
            counted += predicted(y)
        score = loss / counted if self._score == "loss" else self._scoring.values(tallies, rows)[self._score]
        found = {"score": score, "tested": counted}
        privacy = self._privacy
        if privacy is not None and privacy.test_noise:
            each = counted // len(rows)  # answers of one record: characters of a window
            entropy = privacy.entropy_of(self._seed, "tests", node, round)
            noise = int(discrete_gaussian(privacy.test_noise * each, 1, entropy)[0])
            found["read_score"] = (int(score * counted + 0.5) + noise) / counted
        return found

    def _take_own(self, state: State) -> None:
        if self._fresh_own is not None:
            self._own.write(self._module, np.asarray(state.get(PERSONAL, self._fresh_own)))
        for name, buffer in self._local.items():
            kept = state.get(f"buffer:{name}")
            buffer.copy_(self._fresh[name] if kept is None else torch.from_numpy(np.array(kept)))
