"""The centralised baseline: one model on all data, with as many steps and examples as the peers together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgossip.base.vectors import add
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.learning.task import TorchTask, TrainSettings


def train_centralised(
    train: Dataset,
    test: Dataset,
    model_source: str,
    settings: TrainSettings,
    seed: int,
    steps: int,
    batch_size: int,
    objective: Objective | None = None,
) -> dict[str, float]:
    """Return the metrics, "loss", "train_loss" and "steps" of one model after `steps` steps of `batch_size` examples.

    n peers that take `steps` steps of b examples each see as much as steps here of n * b.  A round is
    settings.local_steps steps (with local_epochs: one), so that a schedule moves as it does for the peers.
    """
    per_round = min(steps, settings.local_steps or 1)
    rounds = max(1, steps // per_round)
    pooled = replace(settings, batch_size=batch_size, accumulate=1, local_steps=per_round, local_epochs=None)
    share = np.arange(len(train))
    task = TorchTask(train, test, [share], model_source, pooled, seed=seed, rounds=rounds, objective=objective)
    vector, train_loss = task.initial(0), float("nan")
    for round in range(rounds):
        (update,) = task.train([Job(0, round, vector)])
        assert update.difference is not None
        vector, train_loss = add(vector, update.difference), update.metrics["loss"]
    return {**task.evaluate([vector])[0], "train_loss": train_loss, "steps": float(rounds * per_round)}
