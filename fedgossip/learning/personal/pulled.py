"""Methods that train whole models by the usual local training: finetuning, Ditto, and mean-regularised models.

    finetune    after the exchange: `epochs` local trainings from the shared model w, the baseline of every paper
    ditto       w as ever;  v_i <- trained from v_i on f_i(v) + (lambda / 2) ||v - w||^2
    mr-mtl      v_i as in Ditto, and v_i itself is sent: w is the mean of all v_i

Ditto: Li, Hu, Beirami and Smith, ICML 2021, algorithm 1: w is the model received in the round.  Mean-regularised
multi-task learning: Liu, Hu, Wu and Smith, On privacy and personalization in cross-silo federated learning, NeurIPS
2022, algorithm 1.  A quadratic f_i = 1/2 ||v - b_i||^2 has Ditto's fixed point v_i = (b_i + lambda w) / (1 + lambda).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fedgossip.base.limits import Within
from fedgossip.base.vectors import Vector, subtract
from fedgossip.core.task import Job, Update
from fedgossip.learning.personal.base import OfWholeModels, OwnModels


@dataclass(frozen=True)
class Finetune(OfWholeModels):
    """Answers with the shared model after further training at the node, at the rates of the run's first rounds."""

    epochs: Annotated[int, Within(1, 1000)] = 1
    """Local trainings from the shared model, each as long as one of a round."""

    follows = True

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        return list(models.train(jobs))

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        found = [job.vector for job in jobs]
        for epoch in range(self.epochs):
            asked = [replace(job, round=epoch) for job in jobs]  # a schedule may end at rate 0
            found = [model for model, _ in models.pulled(asked, found, 0.0, "finetuned")]
        for job in jobs:  # every answer begins anew
            del models.memories[job.node, "finetuned"]
        return found


@dataclass(frozen=True)
class Ditto(OfWholeModels):
    """Trains a model of its own beside the shared one."""

    pull: Annotated[float, Within(0)] = 0.1
    """lambda: 0 trains alone; a large one follows the shared model."""

    follows = True

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        updates = models.train(jobs)
        trained = models.pulled(jobs, [models.model(job) for job in jobs], self.pull)
        for job, (model, _) in zip(jobs, trained, strict=True):
            models.keep(job.node, own=model)
        return list(updates)

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [models.model(job) for job in jobs]


@dataclass(frozen=True)
class MeanRegularised(OfWholeModels):
    """Trains a model of its own, pulled to the mean of all, and sends it."""

    pull: Annotated[float, Within(0)] = 0.1
    """lambda: 0 trains alone; a large one is federated averaging."""

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        updates = []
        trained = models.pulled(jobs, [models.model(job) for job in jobs], self.pull)
        for job, (model, update) in zip(jobs, trained, strict=True):
            models.keep(job.node, own=model)
            updates.append(replace(update, difference=subtract(model, job.vector)))
        return updates

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        return [models.model(job) for job in jobs]
