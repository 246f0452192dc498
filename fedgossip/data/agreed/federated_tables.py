"""Examples of tables in the agreed form: columns by name, categories as features, one scale for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable
from fedgossip.data.columns.encoded_tables import read_features
from fedgossip.data.columns.table_schema import SiteColumns
from fedgossip.data.data import standardised
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile


def read_examples(path: Path | TableFile, agreed: AgreedTable, kind: str) -> Dataset:
    """Return the unscaled examples of a table, with their agreed scale; `kind` of the task.

    Raises ConfigError for a table that does not fit the schema.
    """
    return _examples(SiteColumns(path, agreed.schema), agreed, kind)


def read_for_fit(path: Path | TableFile, agreed: AgreedTable, kind: str, without: Sequence[str] = ()) -> Dataset:
    """Return the examples of a site that takes part in exact sums over columns, `without` some.

    Raises ConfigError as `read_examples`, for too few records, and for rare values that the sums would disclose.
    """
    site = SiteColumns(path, agreed.schema)
    if site.records < agreed.suppress:
        text = f"fewer than {agreed.suppress} records"
        raise ConfigError(text, "A site with so few would be seen in the sums; it takes no part.")
    for one in agreed.columns:
        if one.is_coded and one.name not in without:
            _check_levels(site, one, agreed.suppress)
    return _examples(site, agreed, kind)


def _check_levels(site: SiteColumns, column: AgreedColumn, suppress: int) -> None:
    """Raise ConfigError where a value of a column with few values has few records, or is at this site alone.

    The agreed histogram gives the records at all sites of a value alone in its bin; of other values a site has its own
    count only.
    """
    values, own = np.unique(site.numbers(column.name), return_counts=True)
    if len(values) < 2:
        return
    edges = np.array(column.edges or (np.inf,))
    bins = np.where(values == edges[-1], len(edges) - 1, np.searchsorted(edges, values, side="right"))
    for value, count, bin in zip(values.tolist(), own.tolist(), bins.tolist(), strict=True):
        pooled = column.counts[bin] if column.edges and (bins == bin).sum() == 1 else None
        if (pooled is None and count < suppress) or pooled == count:
            few = f"under {suppress} records" if pooled is None else "records of no other site"
            text = f"column {column.name!r}: {value:g} is of {few}, so it counts as a rare category"
            raise ConfigError(text, f"Sums of it would tell of them: leave the column out, drop={column.name}.")


def _examples(site: SiteColumns, agreed: AgreedTable, kind: str) -> Dataset:
    schema, encoding, path = agreed.schema, agreed.encoding, site.table.path
    x = read_features(site.table, encoding)
    names = [one.name for one in schema.labels]
    mean, deviation = agreed.scale
    labels = agreed.label_scale if kind == REGRESSION else ((), ())
    if kind == CLASSIFICATION:
        classes = schema.labels[0].categories
        y = np.array([classes.index(str(cell)) for cell in site.cells[names[0]]], np.int64)
    else:
        y = np.stack([site.numbers(name) for name in names], axis=1)
        y = y if kind == REGRESSION else y.astype(np.float32)
        classes = ()
    return Dataset(
        path.stem,
        x,
        y,
        len(classes),
        columns=encoding.features,
        class_names=classes,
        kind=kind,
        label_names=tuple(names),
        encoding=encoding,
        mean=mean,
        deviation=deviation,
        label_mean=labels[0],
        label_deviation=labels[1],
        notes=site.table.notes,
    )


def scaled(examples: Dataset) -> Dataset:
    """Return examples of `read_examples`, scaled."""
    return standardised(examples, examples)


def check_same(agreed: AgreedTable, schema: object, path: Path) -> None:
    """Raise ConfigError where the statistics in the file at `path` have another schema."""
    if agreed.schema != schema:
        text = f"{path}: agreed on for other columns, categories or bounds than the experiment has now"
        raise ConfigError(text, "Agree again: fedgossip data agree EXPERIMENT.")
