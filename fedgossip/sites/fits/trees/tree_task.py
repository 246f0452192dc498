"""A LocalTask of sites that grow boosted trees: sites receive the ensemble and return the sums that it requests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import SumsTask
from fedgossip.secure.session_history import AskedBefore
from fedgossip.sites.fits.trees.tree_sums import GrowingTrees, SiteMargins, SiteTable, TreesLayout


class TreesTask(SumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: TreesLayout, sites: Mapping[NodeId, SiteTable]) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self.length = layout, layout.length
        self._sites = {node: SiteMargins(layout, table) for node, table in sites.items()}

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return frozen(np.zeros(self.length))

    def sums(self, job: Job) -> Vector:
        return self._sites[job.node].numbers(job.vector)

    def broken(self, model: Vector, before: AskedBefore) -> str:
        growing, after = GrowingTrees(self.layout, before.model), GrowingTrees(self.layout, model)
        if before.clients and after.sites != before.clients:
            return f"sums of {after.sites} sites, where {before.clients} were signed"
        return growing.broken(after)

    def below_own(self, node: NodeId, model: Vector, before: AskedBefore) -> str:  # noqa: ARG002
        return self._sites[node].find_excess(GrowingTrees(self.layout, model))
