"""Pearson's correlations of all columns of numbers, their intervals, and principal components.

    r = sum of x y / sqrt(sum of x^2 sum of y^2), centred;   atanh r is normal, of error 1 / sqrt(n - 3)
    components: the eigenvectors of the correlations, so columns count equally in any units

A column with few distinct values is omitted, as sums would count them; one with empty cells or withheld moments is
refused.

Sources: Fisher, Metron 1 (1921); Jolliffe, Principal component analysis, 2nd edition, 2002.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.columns.table_schema import SiteColumns
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import COLUMNS, RECORDS_EACH
from fedgossip.sites.fits.families.family import (
    Cell,
    FamilyDesign,
    FamilyResult,
    Numbers,
    PooledRound,
    ResultTable,
    SumBlock,
    symmetric,
    upper,
)
from fedgossip.sites.fits.glm.glm import Values

PAIRS = ("", "correlation", "95 % from", "to", "p")


class Correlations:
    name, kinds, options, predicts = "correlations", (CLASSIFICATION, REGRESSION), (), False

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        numbers = [one for one in agreed.columns if not one.categories and one.deviation]
        shown = [one for one in numbers if not one.is_coded]
        for one in shown:
            if one.missing != 0 or one.precision or one.common:
                text = f"column {one.name!r}: empty cells, or moments that the statistics withhold or round"
                raise ConfigError(text, f"Products of it would disclose few records: leave it out, drop={one.name}.")
        if not 2 <= len(shown) <= COLUMNS or agreed.records < RECORDS_EACH * len(shown):
            text = f"correlations of {len(shown)} columns of {agreed.records} records"
            raise ConfigError(text, f"There are 2 to {COLUMNS} columns, and {RECORDS_EACH} records for each.")
        return FamilyDesign(
            family=self.name, options=options, columns=tuple(one.name for one in shown),
            mean=tuple(one.mean or 0.0 for one in shown), deviation=tuple(one.deviation or 1.0 for one in shown),
            constant=tuple(one.name for one in numbers if one.is_coded), suppress=agreed.suppress, agreed=agreed.digest,
        )  # fmt: skip

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        k = len(d.columns)
        return ({"sums": SumBlock(k), "products": SumBlock(k * (k + 1) // 2)},)

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        k = len(d.columns)
        return (f"the number of records, {k} sums of columns, and {k * (k + 1) // 2} of products of two",)

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> Values:
        site = SiteColumns(file, agreed.schema, agreed.suppress)
        if any(one is None for name in d.columns for one in site.cells[name]):
            raise ConfigError("empty cells, of which the statistics have none", "Fill them, or leave the rows out.")
        x = np.column_stack([site.numbers(name) for name in d.columns])
        return np.asarray((x - np.array(d.mean)) / np.array(d.deviation))

    def records(self, site: Values) -> int:
        return len(site)

    def sums(self, d: FamilyDesign, site: Values, round: int, pooled: Sequence[PooledRound]) -> Numbers:  # noqa: ARG002
        return {"sums": site.sum(axis=0), "products": (site.T @ site)[upper(len(d.columns))]}

    def uneven(self, d: FamilyDesign, site: Values, round: int, pooled: Sequence[PooledRound]) -> str:  # noqa: ARG002
        return ""

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:  # noqa: ARG002
        from scipy import special

        (of,), k = pooled, len(d.columns)
        if not of.sites:
            return None
        n = of.records
        centred = symmetric(of["products"], k) - np.outer(of["sums"], of["sums"]) / n
        scale = 1 / np.sqrt(np.diag(centred))
        r = centred * np.outer(scale, scale)
        rows = list[tuple[Cell, ...]]()
        for a, b in itertools.combinations(range(k), 2):
            value = max(-1.0, min(1.0, float(r[a, b])))
            middle, half = math.atanh(value * (1 - 1e-15)), special.ndtri(0.975) / math.sqrt(n - 3)
            t = value * math.sqrt((n - 2) / max(1 - value * value, 1e-300))
            p = 2 * float(special.stdtr(n - 2, -abs(t)))
            ends = math.tanh(middle - half), math.tanh(middle + half)
            rows.append((f"{d.columns[a]}, {d.columns[b]}", value, *ends, p))
        values, directions = np.linalg.eigh(r)
        order = np.argsort(values)[::-1]
        directions = directions * np.sign(directions[np.abs(directions).argmax(axis=0), range(k)])
        shares = values[order] / k
        parts = list[tuple[Cell, ...]]()
        for place, one in enumerate(order.tolist()):
            of_all = float(shares[place]), float(shares[: place + 1].sum())
            parts.append((str(place + 1), float(values[one]), *of_all, *map(float, directions[:, one])))
        head = ("component", "variance", "share", "together", *d.columns)
        forest = ("correlation", "95 % from", "to", 0.0)
        tables = [ResultTable("correlations", PAIRS, tuple(rows), forest),
                  ResultTable("principal components", head, tuple(parts))]  # fmt: skip
        left = f"left out, for they have few different values: {', '.join(d.constant)}"
        return FamilyResult("correlations", tables, [left] if d.constant else [])
