"""A LocalTask with vectors of the sums by which sites fit a generalised linear model: one Newton step per round."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import PooledSumsTask
from fedgossip.sites.fits.effective_records import too_few
from fedgossip.sites.fits.glm.glm import Newton, influences
from fedgossip.sites.fits.glm.glm_sums import GlmLayout, SiteRecords


class GlmTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "Fit"

    def __init__(self, layout: GlmLayout, sites: Mapping[NodeId, SiteRecords], suppress: int = 0) -> None:
        super().__init__(layout.exact, layout.design.digest)
        self.layout, self._sites, self._suppress = layout, sites, suppress
        self._steps: tuple[Vector, int, Newton | None] | None = None
        """The last sums and their state: all local sites get the same sums."""

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError where the first round collected nothing."""
        state = self._reached(job.vector, job.round) if job.round else None
        if job.round and state is None:
            raise self.nothing_there(job.node)
        return self.layout.site(self._sites[job.node], job.round, state)

    def _reached(self, pooled: Vector, round: int) -> Newton | None:
        if self._steps is None or self._steps[0] is not pooled or self._steps[1] != round:
            self._steps = pooled, round, self.layout.reached(pooled, round)
        return self._steps[2]

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(self.exact.bounds), bool)
        found[self.layout.of_round(round)] = True
        return found

    def counts(self) -> npt.NDArray[np.bool_]:
        return self.layout.counts

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:
        try:
            with np.errstate(all="ignore"):
                state = self._reached(model, round) if round else None
        except TrainingError:  # all outcomes are equal: reported when sums are requested
            return ""
        except np.linalg.LinAlgError:
            return "its sums lead to no point"
        if state is None:
            return ""
        if not np.isfinite(state.point).all():
            return "its sums lead to no point"
        site, design = self._sites[node], self.layout.design
        point = state.last if round > design.steps else state.point
        weights = influences(design.of_family, site.x, point)
        unit = float(design.of_family.influence(np.array([self.layout.first_point(model)]))[0])
        named = zip(("(intercept)", *design.columns), site.x.T, strict=True)
        return too_few(weights, unit, list(named), self._suppress)
