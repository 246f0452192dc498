"""A LocalTask with vectors of the counts by which sites estimate survival: two rounds of sums."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import PooledSumsTask, named_places
from fedgossip.sites.fits.survival.survival_sums import CurveLayout, SiteTimes

ROUNDS = 2


class SurvivalTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: CurveLayout, sites: Mapping[NodeId, SiteTimes]) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self._sites = layout, sites

    def sums(self, job: Job) -> Vector:
        """Return a site's numbers of a round.  Raises as `SumsTask` after an incomplete first round."""
        site = self._sites[job.node]
        if job.round == 0:
            return self.layout.first(site)
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            raise self.nothing_there(job.node)
        return self.layout.second(site, pooled)

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        return named_places(self.layout.bounds, lambda name: (name[0] in ("sites", "at")) == (round == 0))

    def counts(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self.layout.bounds), bool)
