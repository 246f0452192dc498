"""A LocalTask with vectors of the sums by which sites judge a model: two rounds, or one with noise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.sums_task import Draw, PooledSumsTask, from_system, named_places
from fedgossip.sites.evaluation.evaluation_sums import EvaluationLayout, SiteAnswers, judged_sums, presence

ROUNDS = 2


class EvaluationTask(PooledSumsTask):
    """Answers of the model at the local sites, by their ids; other sites run elsewhere."""

    again = "Evaluate"

    def __init__(
        self,
        layout: EvaluationLayout,
        sites: Mapping[NodeId, SiteAnswers],
        least: int,
        draw: Draw = from_system,
    ) -> None:
        super().__init__(layout.exact, layout.digest)
        self.layout, self._sites, self._least, self._draw = layout, sites, least, draw
        self._said: dict[NodeId, Vector] = {}
        """Noisy sums are drawn once per site; a repeated request returns the same numbers."""

    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round.  Raises TrainingError where the first round collected nothing."""
        if self.layout.noise:
            return self._hidden(job.node)
        site = self._sites[job.node]
        if job.round == 0:
            return self.layout.vector(presence(self.layout, site))
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            raise self.nothing_there(job.node)
        return self.layout.vector(judged_sums(self.layout, site, pooled, job.node, self._least))

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        noisy = self.layout.noise > 0
        return named_places(self.layout.bounds, lambda name: noisy or (name[0] in ("sites", "at")) == (round == 0))

    def counts(self) -> npt.NDArray[np.bool_]:
        signed = {"sum", "score"}
        return named_places(self.layout.bounds, lambda name: not self.layout.noise and not signed & {*name})

    def _hidden(self, node: NodeId) -> Vector:
        """Return a site's noisy sums of the only round under a budget."""
        if node not in self._said:
            site, noisy = self._sites[node], self.layout.noisy
            numbers = noisy.hidden(noisy.of_records(site.answers, site.y, site.groups), self._draw(node, 0))
            self._said[node] = self.layout.vector({("sites",): 1} | dict(numbers))
        return self._said[node]
