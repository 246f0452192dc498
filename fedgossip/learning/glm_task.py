"""A LocalTask whose vector are the sums by which sites fit a generalised linear model: a Newton step a round."""

from __future__ import annotations

from collections.abc import Mapping

from fedgossip.learning.glm_sums import GlmLayout, SiteRecords
from fedgossip.learning.sums_task import SumsTask
from fedgossip.machine import NodeId
from fedgossip.task import Job
from fedgossip.vectors import Vector


class GlmTask(SumsTask):
    """The records of the sites that are held here, by their ids; others are asked elsewhere."""

    again = "Fit"

    def __init__(self, layout: GlmLayout, sites: Mapping[NodeId, SiteRecords]) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self._sites = layout, sites

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError where the first round has brought nothing."""
        if job.round and self.layout.reached(job.vector, job.round) is None:
            raise self.nothing_there(job.node)
        return self.layout.site(self._sites[job.node], job.round, job.vector)
