"""A LocalTask whose vector are the sums by which sites judge a model: two rounds of sums, and nothing is trained.

The vector begins with zeros; each round adds its sums over all sites.  No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgossip.errors import TrainingError
from fedgossip.learning.evaluation_sums import EvaluationLayout, SiteAnswers, judged_sums, presence
from fedgossip.machine import NodeId
from fedgossip.task import Job, Update
from fedgossip.vectors import Vector, empty, frozen

ROUNDS = 2


class EvaluationTask:
    """What the model answers at the sites that are held here, by their ids; others are asked elsewhere."""

    dtype = np.dtype(np.float64)

    def __init__(self, layout: EvaluationLayout, sites: Mapping[NodeId, SiteAnswers], least: int) -> None:
        self.layout, self._sites, self._least = layout, sites, least
        self.length, self.schema = layout.exact.length, layout.digest[:16]

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        zeros = empty(self.length, np.float64)
        zeros[:] = 0
        return frozen(zeros)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return each site's sums of the round.  Raises TrainingError where the first round has brought nothing."""
        return [Update(self._sums(job), 1) for job in jobs]

    def _sums(self, job: Job) -> Vector:
        site = self._sites[job.node]
        if job.round == 0:
            return self.layout.vector(presence(self.layout, site))
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            text = f"site {job.node}: the sums of the first round have not come together"
            raise TrainingError(text, "Evaluate again when all sites are there.")
        return self.layout.vector(judged_sums(self.layout, site, pooled, job.node, self._least))

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]
