"""A LocalTask of sites that grow boosted trees together: down goes the ensemble, up go the sums that it asks for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgossip.learning.sums_task import SumsTask
from fedgossip.learning.tree_sums import SiteMargins, SiteTable, TreesLayout
from fedgossip.machine import NodeId
from fedgossip.task import Job
from fedgossip.vectors import Vector, frozen


class TreesTask(SumsTask):
    """The records of the sites that are held here, by their ids; others are asked elsewhere."""

    again = "Fit"

    def __init__(self, layout: TreesLayout, sites: Mapping[NodeId, SiteTable]) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self.length = layout, layout.length
        self._sites = {node: SiteMargins(layout, table) for node, table in sites.items()}

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return frozen(np.zeros(self.length))

    def sums(self, job: Job) -> Vector:
        return self._sites[job.node].numbers(job.vector)
