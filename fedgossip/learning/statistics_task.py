"""A LocalTask whose vector are the sums by which sites agree on statistics: two rounds of sums, and nothing is trained.

The vector begins with zeros; each round adds its sums over all sites.  In the second a site reads from the vector what
the first has brought.  No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedgossip.errors import ConfigError, TrainingError
from fedgossip.learning.column_sums import Numbers, SumLayout, first_sums, second_sums
from fedgossip.learning.table_schema import SiteColumns, TableSchema
from fedgossip.machine import NodeId
from fedgossip.secure.primitives import Entropy
from fedgossip.task import Job, Update
from fedgossip.vectors import Vector, empty, frozen

ROUNDS = 2

Draw = Callable[[NodeId, int], Entropy]
"""Random bytes for the noise of a site in a round."""


def from_system(_node: NodeId, _round: int) -> Entropy:
    """Draw what nobody can know: of a simulation, which is no secret, the seed serves."""
    return os.urandom


class StatisticsTask:
    """The sites that are held here, by their ids; others are asked elsewhere."""

    dtype = np.dtype(np.float64)

    def __init__(
        self, schema: TableSchema, sites: Mapping[NodeId, SiteColumns], noise: float = 0.0, draw: Draw = from_system
    ) -> None:
        self.layout, self._sites, self._draw = SumLayout(schema, noise), sites, draw
        self._said: dict[tuple[NodeId, int], Vector] = {}
        """What has noise is drawn once, however often it is asked for."""
        self.length = self.layout.exact.length
        self.schema = schema.digest[:16]
        for node, site in sites.items():
            try:
                first_sums(site)
            except ConfigError as error:
                raise ConfigError(f"site {node}: {error}", error.advice) from None

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        zeros = empty(self.length, np.float64)
        zeros[:] = 0
        return frozen(zeros)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return each site's sums of the round.  Raises TrainingError where the first round has brought nothing."""
        return [Update(self._sums(job), 1) for job in jobs]

    def _sums(self, job: Job) -> Vector:
        named = job.node, job.round
        if named not in self._said:
            numbers = self.layout.hidden(self._numbers(job), job.round, self._draw(*named))
            self._said[named] = self.layout.vector(numbers)
        return self._said[named]

    def _numbers(self, job: Job) -> Numbers:
        site = self._sites[job.node]
        if job.round == 0:
            return first_sums(site)
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            text = f"site {job.node}: the sums of the first round have not come together"
            raise TrainingError(text, "Agree again when all sites are there: fedgossip data agree.")
        return second_sums(site, pooled, noisy=self.layout.noise > 0)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]
