"""Examples of tables as the sites have agreed on them: columns by name, categories as features, one scale for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgossip.errors import ConfigError
from fedgossip.learning.agreed import AgreedTable
from fedgossip.learning.data import standardised
from fedgossip.learning.dataset import Dataset
from fedgossip.learning.encoded_tables import read_features
from fedgossip.learning.objectives import CLASSIFICATION, REGRESSION
from fedgossip.learning.table_schema import SiteColumns


def read_examples(path: Path, agreed: AgreedTable, kind: str) -> Dataset:
    """Return the examples of a table as they were read, with the scale that they are to have; `kind` of the task.

    Raises ConfigError for a table that does not fit the schema.
    """
    schema, encoding = agreed.schema, agreed.encoding
    site = SiteColumns(path, schema)
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
    """Return examples of `read_examples` by their own scale."""
    return standardised(examples, examples)


def check_same(agreed: AgreedTable, schema: object, path: Path) -> None:
    """Raise ConfigError where the statistics in the file at `path` are of another schema."""
    if agreed.schema != schema:
        text = f"{path}: agreed on for other columns, categories or bounds than the experiment has now"
        raise ConfigError(text, "Agree again: fedgossip data agree EXPERIMENT.")
