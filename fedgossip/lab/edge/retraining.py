"""Ordinary training of a model without a run: one place, all examples, epoch after epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import add
from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CODE, Objective
from fedgossip.learning.measuring import as_learned
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.settings import MeshSettings, TrainSettings
from fedgossip.learning.task import TorchTask


def retrained(model: LoadedModel, examples: Dataset, settings: TrainSettings, epochs: int) -> LoadedModel:
    """Train a model further, in place, on unscaled examples, by its run's loss and settings; return it.

    Raises ConfigError for a loss of the user's own, and for examples of another kind; TrainingError where it diverges.
    """
    facts = model.facts
    if CODE.named_by(facts.loss):
        text = f"{facts.source} was trained by {facts.loss}, a loss of your own"
        raise ConfigError(text, "Leave --epochs out, and train the smaller model by an experiment.")
    objective = Objective(facts.kind, facts.loss, ("loss",))
    train(model.module, facts.source, as_learned(examples, facts), settings, objective, facts.seed, epochs)
    return model


def train(
    module: nn.Module,
    source: str,
    scaled: Dataset,
    settings: TrainSettings,
    objective: Objective,
    seed: int,
    epochs: int,
) -> None:
    """Train the module that `source` names, in place: a function of its weights and of all arguments."""
    alone = replace(
        settings, local_steps=None, local_epochs=1, personal="", buffers="average", processes=1, parallel="ddp",
        mesh=MeshSettings(), count_lost=False,
    )  # fmt: skip
    everything = np.arange(len(scaled))
    task = TorchTask(
        scaled,
        scaled.subset(everything[:1]),
        [everything],
        source,
        alone,
        seed=seed,
        rounds=epochs,
        objective=objective,
    )
    vector = task.layout.read(module)
    for epoch in range(epochs):
        (update,) = task.train([Job(0, epoch, vector)])
        assert update.difference is not None, "a task of torch gives differences"
        vector = add(vector, update.difference)
    task.layout.write(module, vector)
