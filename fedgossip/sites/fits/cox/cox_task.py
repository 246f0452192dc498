"""A LocalTask of sites that fit proportional hazards: sites receive the state and return the sums that it requests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import SumsTask
from fedgossip.secure.session_history import AskedBefore
from fedgossip.sites.fits.cox.cox import linear_predictor
from fedgossip.sites.fits.cox.cox_steps import LAST, MOMENTS, RISK, FittedHazards, initial, length_of, requested_sums
from fedgossip.sites.fits.cox.cox_sums import CoxLayout, SiteHazards, TimedRecords
from fedgossip.sites.fits.effective_records import too_few


class CoxTask(SumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: CoxLayout, sites: Mapping[NodeId, TimedRecords], suppress: int = 0) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self.length, self._suppress = layout, length_of(layout), suppress
        self._last: tuple[Vector, FittedHazards] | None = None
        self._sites = {node: SiteHazards(layout, one) for node, one in sites.items()}

    def _state(self, x: Vector) -> FittedHazards:
        """Return the state in a vector, one shared read-only object for all local sites."""
        if self._last is None or self._last[0] is not x:
            self._last = x, FittedHazards(self.layout, x)
        return self._last[1]

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        return initial(self.layout)

    def sums(self, job: Job) -> Vector:
        return requested_sums(self._sites[job.node], job.vector)

    def broken(self, model: Vector, before: AskedBefore) -> str:
        return FittedHazards(self.layout, before.model).broken(self._state(model), before.clients)

    def below_own(self, node: NodeId, model: Vector, before: AskedBefore) -> str:  # noqa: ARG002
        after = self._state(model)
        if after.stage == MOMENTS and after.number("asked_records") < len(self._sites[node].records.times):
            return "there are fewer records at all sites than at this one"
        return ""

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:  # noqa: ARG002
        state, records = self._state(model), self._sites[node].records
        if state.stage not in (RISK, LAST):  # the moments are at the point of the risk before them
            return ""
        weights = np.exp(linear_predictor(records.columns, np.array(state["point"])))
        named = list(zip(self.layout.design.columns, records.columns, strict=True))
        return too_few(weights, 1.0, named, self._suppress)
