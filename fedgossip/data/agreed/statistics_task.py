"""A LocalTask with vectors of the sums by which sites agree on statistics: two rounds of sums, without training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.agreed_table import AgreedTable, Common
from fedgossip.data.agreed.column_sums import Numbers, SumLayout, first_sums, second_sums
from fedgossip.data.agreed.sums_task import Draw, PooledSumsTask, from_system, named_places
from fedgossip.data.columns.table_schema import LEVELS, SiteColumns, TableSchema, unlike

ROUNDS = 2


class StatisticsTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "fedgossip data agree"

    def __init__(
        self,
        schema: TableSchema,
        sites: Mapping[NodeId, SiteColumns],
        noise: float = 0.0,
        draw: Draw = from_system,
        common: Common | None = None,
        levels: int = LEVELS,
    ) -> None:
        """`common`: moments of the common test file, used where those of the sites may not be published."""
        self.common, self.levels = common, levels
        self.layout, self.sites, self._draw = SumLayout(schema, noise), sites, draw
        self._said: dict[tuple[NodeId, int], Vector] = {}
        """Noisy sums are drawn once per site and round; a repeated request returns the same numbers."""
        super().__init__(self.layout.exact, schema.digest)
        for node, site in sites.items():
            try:
                first_sums(site)
            except ConfigError as error:
                raise ConfigError(f"site {node}: {error}", error.advice) from None

    @property
    def notes(self) -> list[str]:
        """Return notes on the tables of the local sites."""
        return [note for site in self.sites.values() for note in site.table.notes]

    def units_unlike(self, table: AgreedTable) -> Iterator[str]:
        """Yield columns of the local sites that are a factor of units away from those of all sites.

        Each site compares its mean, at home, with that of the others, which follows from the agreed one and its own.
        """
        for one in () if table.noise else table.columns:
            if one.categories or one.common or one.mean is None or one.deviation is None:
                continue
            for node, site in sorted(self.sites.items()):
                own = site.numbers(one.name)
                others = one.count - len(own)
                if others < 1 or not len(own):
                    continue
                mean = (one.mean * one.count - float(own.sum())) / others
                squares = (one.deviation**2 + one.mean**2) * one.count - float((own**2).sum())
                deviation = math.sqrt(max(0.0, squares / others - mean**2))
                yield from (f"site {node}: {line}" for line in unlike(one.name, own, mean, deviation, "all others"))

    def sums(self, job: Job) -> Vector:
        named = job.node, job.round
        if named not in self._said:
            numbers = self.layout.hidden(self._numbers(job), job.round, self._draw(*named))
            self._said[named] = self.layout.vector(numbers)
        return self._said[named]

    def _numbers(self, job: Job) -> Numbers:
        site = self.sites[job.node]
        if job.round == 0:
            return first_sums(site)
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            raise self.nothing_there(job.node)
        return second_sums(site, pooled, noisy=self.layout.noise > 0)

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        return named_places(self.layout.bounds, lambda name: (name[1:2] in (("bin",), ("of",))) == (round == 1))

    def counts(self) -> npt.NDArray[np.bool_]:
        return named_places(self.layout.bounds, lambda name: not self.layout.noise and name[1:2] != ("sum",))
