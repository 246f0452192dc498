"""IFCA: k models, of which each participant trains the one that fits its examples best.

    client i    j = argmin over the k received models of the loss on the round's batches;  trains w_j
                sends [0, ..., w_j' - w_j, ..., 0], k * d elements
    server      the weighted mean of these, as ever

Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, algorithm 1 by its gradient averaging: the sum is divided by the weight
of all clients of the round, and not by that of a cluster, so a server needs no count of any cluster and sees no choice
in a secure sum.  A cluster of a share p of the clients moves by p times its mean update; lr of coordinator.options
makes up for it.  The models begin at the usual one, each with noise of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from fedgossip.base.limits import ABOVE_0, Within
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Job, Segment, Update
from fedgossip.learning.personal.base import OwnModels


@dataclass(frozen=True)
class Ifca:
    """Answers with the model of its cluster."""

    clusters: Annotated[int, Within(2, 64)] = 2
    """k."""
    spread: Annotated[float, Within(ABOVE_0)] = 0.1
    """Standard deviation of the noise by which the first models differ."""

    follows = False
    private = False
    whole = False
    stepped = False

    def sent(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        length = segments[-1].stop
        return tuple(
            replace(one, name=f"cluster{j}.{one.name}", start=one.start + j * length)
            for j in range(self.clusters)
            for one in segments
        )

    def first(self, models: OwnModels, x: Vector) -> Vector:
        noises = (stream(models.seed, "ifca", j).standard_normal(x.size) for j in range(self.clusters))
        return frozen(np.concatenate([x + (self.spread * noise).astype(x.dtype) for noise in noises]))

    def shared(self, models: OwnModels, vector: Vector) -> list[Vector]:  # noqa: ARG002
        return [frozen(part) for part in np.split(vector, self.clusters)]

    def train(self, models: OwnModels, jobs: Sequence[Job]) -> list[Update]:
        parts = [self.shared(models, job.vector) for job in jobs]
        chosen = self._chosen(models, jobs, parts)
        asked = [replace(job, vector=part[j]) for job, part, j in zip(jobs, parts, chosen, strict=True)]
        updates = []
        for job, j, update in zip(asked, chosen, models.train(asked), strict=True):
            whole = np.zeros((self.clusters, job.vector.size), job.vector.dtype)
            if update.difference is not None:
                whole[j] = update.difference
            updates.append(replace(update, difference=frozen(whole.reshape(-1))))
        return updates

    def answers(self, models: OwnModels, jobs: Sequence[Job]) -> list[Vector]:
        parts = [self.shared(models, job.vector) for job in jobs]
        return [part[j] for part, j in zip(parts, self._chosen(models, jobs, parts), strict=True)]

    def _chosen(self, models: OwnModels, jobs: Sequence[Job], parts: Sequence[Sequence[Vector]]) -> list[int]:
        """Return the cluster of the least loss on the round's batches, of equal ones the first."""
        losses = [models.losses(jobs, [part[j] for part in parts]) for j in range(self.clusters)]
        return [int(np.argmin(of_job)) for of_job in zip(*losses, strict=True)]
