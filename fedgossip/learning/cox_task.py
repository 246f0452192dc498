"""A LocalTask of sites that fit proportional hazards: down goes the state, up go the sums that it asks for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgossip.learning.cox import hazards_of, linear_predictor
from fedgossip.learning.cox_steps import LAST, MOMENTS, RISK, FittedHazards, initial, length_of, told_by
from fedgossip.learning.cox_sums import CoxLayout, SiteHazards, TimedRecords
from fedgossip.learning.effective_records import too_few
from fedgossip.learning.sums_task import SumsTask
from fedgossip.machine import NodeId
from fedgossip.secure.past import AskedBefore
from fedgossip.task import Job
from fedgossip.vectors import Vector


class CoxTask(SumsTask):
    """The records of the sites that are held here, by their ids; others are asked elsewhere."""

    again = "Fit"

    def __init__(self, layout: CoxLayout, sites: Mapping[NodeId, TimedRecords], suppress: int = 0) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self.length, self._suppress = layout, length_of(layout), suppress
        self._sites = {node: SiteHazards(layout, one) for node, one in sites.items()}

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return initial(self.layout)

    def sums(self, job: Job) -> Vector:
        return told_by(self._sites[job.node], job.vector)

    def broken(self, node: NodeId, model: Vector, before: AskedBefore) -> str:
        state, after = FittedHazards(self.layout, before.model), FittedHazards(self.layout, model)
        mine = len(self._sites[node].records.times)
        if state.stage == RISK and after.stage == MOMENTS and after.number("asked_records") < mine:
            return "there are fewer records at all sites than at this one"
        return state.broken(after, before.clients)

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:  # noqa: ARG002
        state, records = FittedHazards(self.layout, model), self._sites[node].records
        if state.stage not in (RISK, MOMENTS, LAST):
            return ""
        weights = hazards_of(linear_predictor(records.columns, np.array(state["point"])))
        named = list(zip(self.layout.design.columns, records.columns, strict=True))
        return too_few(weights, 1.0, named, self._suppress)
