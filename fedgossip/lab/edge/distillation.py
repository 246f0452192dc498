"""A small model trained on a large model's logits, by one process, epoch after epoch.

Source: Hinton, Vinyals and Dean, Distilling the knowledge in a neural network, arXiv:1503.02531 (2015), section 2, soft
targets alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import nn

from fedgossip.base.errors import ConfigError, NotWrittenError
from fedgossip.base.vectors import add
from fedgossip.core.task import Job, WholeModel
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CLASSIFICATION, CODE, REGRESSION, Objective
from fedgossip.lab.edge.onnx_model import exported_facts
from fedgossip.learning.measuring import as_learned
from fedgossip.learning.models import models
from fedgossip.learning.models.architectures import architecture
from fedgossip.learning.models.loaded_model import LoadedModel, parts_of
from fedgossip.learning.models.model_files import ModelFacts, write_model
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import SOFT_TARGETS
from fedgossip.learning.settings import MeshSettings, TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose
from fedgossip.runs.run_directory import write_whole


def distilled(
    teacher: LoadedModel,
    examples: Dataset,
    student: str,
    settings: TrainSettings,
    *,
    temperature: float,
    epochs: int,
    seed: int,
) -> LoadedModel:
    """Return the model that `student` names, trained on the answers of `teacher` to unscaled examples.

    The same bits each time on one kind of machine.  Raises ConfigError for a teacher without classes, and an unfit
    student; TrainingError where training diverges.
    """
    facts = teacher.facts
    check(facts, student)
    scaled = as_learned(examples, facts)
    answers = teacher.outputs_of(scaled.x).numpy()
    labelled = replace(scaled, y=answers, classes=0, class_names=(), kind=REGRESSION)
    module = models.build(student, facts.shape, facts.outputs, seed)
    objective = Objective(REGRESSION, f"{SOFT_TARGETS}?temperature={temperature!r}", ("loss",))
    train(module, student, labelled, settings, objective, seed, epochs)
    return teacher.having(module, **_own_facts(facts, module, student, seed))


def check(facts: ModelFacts, student: str) -> None:
    """Raise ConfigError for a teacher without classes, and for a student that does not fit its examples."""
    if facts.kind != CLASSIFICATION:
        text = f"{facts.source} is a model of {facts.kind}; distilling is for classification"
        raise ConfigError(text, "Train a small model by an experiment of its own.")
    if architecture(student, facts.shape, facts.outputs) is None:
        text = f"{student}: a student has a name, and is no function of your own"
        raise ConfigError(text, "Name a softmax, an mlp or a cnn.")


def write(model: LoadedModel, folder: Path, score: dict[str, Any]) -> None:
    """Write the model as a folder of its own.  Raises ConfigError where the folder exists, or cannot be written."""
    if folder.exists():
        raise ConfigError(f"{folder}: there already", "Name another folder with --out.")
    tensors = {name: tensor.detach().numpy() for name, tensor in parts_of(model.module).items()}
    about = {**msgspec.to_builtins(model.facts), "score": score, "versions": compose.versions()}
    try:
        write_model(folder, WholeModel(tensors, about), write_whole)
    except (OSError, NotWrittenError) as error:
        raise ConfigError(f"{folder}: cannot be written: {error}", "Name another folder with --out.") from None


def accuracy(model: LoadedModel, examples: Dataset) -> float:
    """Return the share of unscaled examples with a correctly predicted class."""
    return float(np.mean(model(examples.x).argmax(-1) == examples.y))


def agreement(one: LoadedModel, other: LoadedModel, examples: Dataset) -> float:
    """Return the share of unscaled examples with the same predicted class from both."""
    return float(np.mean(one(examples.x).argmax(-1) == other(examples.x).argmax(-1)))


def _own_facts(facts: ModelFacts, module: nn.Module, student: str, seed: int) -> dict[str, Any]:
    return {
        "source": student,
        "seed": seed,
        "schema": Layout.from_module(module).schema,
        "loss": "cross-entropy",
        "metrics": exported_facts(facts).metrics,
        "lacks": (),
        "own": (),
        "node": None,
        "code": "",
        "modules": (),
        "document": "",
    }


def retrained(model: LoadedModel, examples: Dataset, settings: TrainSettings, epochs: int) -> LoadedModel:
    """Train a model further, in place, on unscaled examples, by its run's loss and settings; return it.

    Raises ConfigError for a user's own loss, and other examples; TrainingError where it diverges.
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
