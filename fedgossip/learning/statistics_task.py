"""A LocalTask whose vector are the sums by which sites agree on statistics: two rounds of sums, and nothing is trained.

The vector begins with zeros; each round adds its sums over all sites.  In the second a site reads from the vector what
the first has brought.  No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgossip.errors import ConfigError, TrainingError
from fedgossip.learning.column_sums import SumLayout, first_sums, second_sums
from fedgossip.learning.table_schema import SiteColumns, TableSchema
from fedgossip.machine import NodeId
from fedgossip.task import Job, Update
from fedgossip.vectors import Vector, empty, frozen

ROUNDS = 2


class StatisticsTask:
    """The sites that are held here, by their ids; others are asked elsewhere."""

    dtype = np.dtype(np.float64)

    def __init__(self, schema: TableSchema, sites: Mapping[NodeId, SiteColumns]) -> None:
        self.layout, self._sites = SumLayout(schema), sites
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
        site = self._sites[job.node]
        if job.round == 0:
            return self.layout.vector(first_sums(site))
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            text = f"site {job.node}: the sums of the first round have not come together"
            raise TrainingError(text, "Agree again when all sites are there: fedgossip data agree.")
        return self.layout.vector(second_sums(site, pooled))

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]
