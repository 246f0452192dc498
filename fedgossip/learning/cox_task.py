"""A LocalTask of sites that fit proportional hazards: down goes the state, up go the sums that it asks for."""

from __future__ import annotations

from collections.abc import Mapping

from fedgossip.learning.cox_steps import initial, length_of, told_by
from fedgossip.learning.cox_sums import CoxLayout, SiteHazards, TimedRecords
from fedgossip.learning.sums_task import SumsTask
from fedgossip.machine import NodeId
from fedgossip.task import Job
from fedgossip.vectors import Vector


class CoxTask(SumsTask):
    """The records of the sites that are held here, by their ids; others are asked elsewhere."""

    again = "Fit"

    def __init__(self, layout: CoxLayout, sites: Mapping[NodeId, TimedRecords]) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self.length = layout, length_of(layout)
        self._sites = {node: SiteHazards(layout, one) for node, one in sites.items()}

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return initial(self.layout)

    def sums(self, job: Job) -> Vector:
        return told_by(self._sites[job.node], job.vector)
