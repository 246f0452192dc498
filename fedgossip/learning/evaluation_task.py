"""A LocalTask whose vector are the sums by which sites judge a model: two rounds of sums, and nothing is trained.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedgossip.learning.evaluation_sums import EvaluationLayout, SiteAnswers, judged_sums, presence
from fedgossip.learning.sums_task import SumsTask
from fedgossip.machine import NodeId
from fedgossip.task import Job
from fedgossip.vectors import Vector

ROUNDS = 2


class EvaluationTask(SumsTask):
    """What the model answers at the sites that are held here, by their ids; others are asked elsewhere."""

    again = "Evaluate"

    def __init__(self, layout: EvaluationLayout, sites: Mapping[NodeId, SiteAnswers], least: int) -> None:
        super().__init__(layout.exact, layout.digest)
        self.layout, self._sites, self._least = layout, sites, least

    def sums(self, job: Job) -> Vector:
        site = self._sites[job.node]
        if job.round == 0:
            return self.layout.vector(presence(self.layout, site))
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            raise self.nothing_there(job.node)
        return self.layout.vector(judged_sums(self.layout, site, pooled, job.node, self._least))
