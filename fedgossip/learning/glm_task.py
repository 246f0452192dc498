"""A LocalTask whose vector are the sums by which sites fit a generalised linear model: a Newton step a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgossip.errors import TrainingError
from fedgossip.learning.glm_sums import GlmLayout, SiteRecords
from fedgossip.machine import NodeId
from fedgossip.task import Job, Update
from fedgossip.vectors import Vector, empty, frozen


class GlmTask:
    """The records of the sites that are held here, by their ids; others are asked elsewhere."""

    dtype = np.dtype(np.float64)

    def __init__(self, layout: GlmLayout, sites: Mapping[NodeId, SiteRecords]) -> None:
        self.layout, self._sites = layout, sites
        self.length, self.schema = layout.exact.length, layout.design.digest[:16]

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        zeros = empty(self.length, np.float64)
        zeros[:] = 0
        return frozen(zeros)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return each site's sums of the round.  Raises TrainingError where the first round has brought nothing."""
        return [Update(self._sums(job), 1) for job in jobs]

    def _sums(self, job: Job) -> Vector:
        if job.round and self.layout.reached(job.vector, job.round) is None:
            text = f"site {job.node}: the sums of the first round have not come together"
            raise TrainingError(text, "Fit again when all sites are there.")
        return self.layout.site(self._sites[job.node], job.round, job.vector)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]
