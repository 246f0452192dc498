"""Sites grow boosted trees together: a federated run with one round per level of trees, of exact sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core import run_format
from fedgossip.core.run_format import FIT_OF_TREES
from fedgossip.core.task import WholeModel
from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable, read_for_fit, scaled, spread_bins
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION, TREES
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import FederatedExperiment
from fedgossip.learning.models.trees import LOGISTIC, MOST_COLUMNS, SOFTMAX, SQUARES, TreesDesign, encoded_trees
from fedgossip.plans import compose
from fedgossip.sites.fits.design_columns import check_counted
from fedgossip.sites.fits.tree_result import TreeOptions, TreesFit, TreesTask, tree_options, trees_fit
from fedgossip.sites.fits.tree_sums import GrowingTrees, SiteTable, TreesLayout, TreesServer, trees_file
from fedgossip.sites.plans.sums import SumsRun

NUMBERS = 1 << 22
"""Maximum number of whole numbers in a sum, and of elements of an ensemble: 32 MiB."""
CLIENTS = 1000
LEAST_RECORDS = 10


def _kinds(source: str) -> Sequence[str]:
    tree_options(source)
    return CLASSIFICATION, REGRESSION


def _layout(experiment: FederatedExperiment, agreed: AgreedTable) -> TreesLayout:
    options, clients = tree_options(experiment.model.source), experiment.coordinator.clients
    if clients > CLIENTS:
        raise ConfigError(f"{clients} clients", f"Trees are grown by at most {CLIENTS}.")
    layout = TreesLayout(_design(options, agreed, experiment.objective.kind, clients))
    if max(layout.numbers, layout.length) > NUMBERS:
        text = f"{layout.numbers:,} numbers in a sum, {layout.length:,} in the trees; there are at most {NUMBERS:,}"
        raise ConfigError(text, "Take fewer or flatter trees, less max_bins, or leave columns out: drop=A,B.")
    return layout


def _design(options: TreeOptions, agreed: AgreedTable, kind: str, sites: int) -> TreesDesign:
    check_counted(agreed, [one for one in agreed.schema.columns if not one.categories])
    label = _label(agreed, kind)
    known, encoded = {one.name: one for one in agreed.columns}, {one.name: one for one in agreed.encoding.columns}
    columns, places, cuts, mean, deviation, constant = [], [], [], [], [], []
    place = 0
    for one in agreed.schema.features:
        names = [f"{one.name}={category}" for category in one.categories] or [one.name]
        for k, name in enumerate(names):
            edges = _category(known[one.name], k) if one.categories else _edges(known[one.name], options.max_bins)
            if edges:
                columns.append(name)
                places.append(place + k)
                cuts.append(edges)
                mean.append(0.0 if one.categories else known[one.name].mean or 0.0)
                deviation.append(1.0 if one.categories else known[one.name].deviation or 1.0)
            else:
                constant.append(name)
        place += len(encoded[one.name].features)
    if not 0 < len(columns) <= MOST_COLUMNS:
        sentence = f": {', '.join(constant[:5])} have one value at every site" if constant else ""
        text = f"trees of {len(columns)} columns{sentence}"
        raise ConfigError(text, f"There are 1 to {MOST_COLUMNS}; leave some out, drop=A,B, or agree on others.")
    least = options.min_records or max(LEAST_RECORDS, agreed.suppress)
    if least < agreed.suppress:
        text = f"min_records = {least}: a leaf of so few would disclose each; data.suppress is {agreed.suppress}"
        raise ConfigError(text, f"Give min_records={agreed.suppress} or more.")
    if options.forest_columns > len(columns):
        text = f"forest_columns = {options.forest_columns}: there are {len(columns)} columns"
        raise ConfigError(text, "The square root of their number is usual; a third of it for a regression.")
    if agreed.records < 2 * least:
        text = f"{agreed.records} records, and {least} on each side of a split"
        raise ConfigError(text, "There is nothing to split: more records, or a smaller min_records.")
    return TreesDesign(
        loss=SQUARES if kind == REGRESSION else LOGISTIC if len(label.categories) == 2 else SOFTMAX,
        outcome=label.name, classes=label.categories, trees=options.trees, depth=options.depth,
        learning_rate=1 / options.trees if options.forest_columns else options.learning_rate, l2=options.l2,
        min_child_weight=options.min_child_weight,
        min_records=least, bin_records=options.bin_records,
        columns=tuple(columns), places=tuple(places), cuts=tuple(cuts), mean=tuple(mean),
        deviation=tuple(deviation), constant=tuple(constant), records=agreed.records, suppress=agreed.suppress,
        agreed=agreed.digest, sites=sites, forest_columns=options.forest_columns or msgspec.UNSET,
    )  # fmt: skip


def _label(agreed: AgreedTable, kind: str) -> AgreedColumn:
    """Return the label column.  Raises ConfigError for several, or rare classes."""
    labels = [one for one in agreed.columns if one.label]
    if len(labels) > 1:
        raise ConfigError(f"trees of {len(labels)} label columns", "One model has one outcome: name one column.")
    label = labels[0]
    if kind == REGRESSION:
        if not label.deviation:
            text = f"column {label.name!r} has one value at every site: there is nothing to predict"
            raise ConfigError(text, "Look at the label.")
        return label
    counts = dict(zip(label.categories, label.counts, strict=True))
    if few := [name for name, count in counts.items() if count is None]:
        text = f"column {label.name!r}: {', '.join(few[:5])} at too few sites, or of under {agreed.suppress} records"
        raise ConfigError(text, "Sums of it would disclose them: take another label, or merge classes.")
    if sum(bool(count) for count in counts.values()) < 2:
        there = ", ".join(name for name, count in counts.items() if count) or "none"
        text = f"column {label.name!r}: all {agreed.records} records are {there}"
        raise ConfigError(text, "The columns cannot separate them: look at the label.")
    return label


def _category(column: AgreedColumn, k: int) -> tuple[float, ...]:
    """Return a category's cut, or none.  Raises ConfigError for a rare category that a sum would disclose."""
    if column.counts[k] is None:
        where = f"column {column.name!r}: {column.categories[k]} at too few sites, or of too few records"
        raise ConfigError(where, f"A split by it would disclose them: leave the column out, drop={column.name}.")
    return (0.5,) if 0 < (column.counts[k] or 0) < sum(count or 0 for count in column.counts) else ()


def _edges(column: AgreedColumn, bins: int) -> tuple[float, ...]:
    """Return at most `bins` - 1 cuts of a number's column into bins of about equal counts, by the agreed histogram."""
    if not column.deviation:
        return ()
    if len(column.edges) < 2:  # the histogram is withheld
        deviation, inner = column.deviation, np.linspace(-2, 2, bins - 1)
        return tuple(((column.mean or 0.0) + deviation * inner).tolist())
    counts = np.array(spread_bins(column))
    edges = np.array(column.edges)
    held = np.flatnonzero(counts[1:-1] > 0)
    gaps = [(a, b) for a, b in itertools.pairwise(held) if b > a + 1]
    between = [(edges[a + 1] + edges[b]) / 2 for a, b in gaps][: bins - 1]
    shares = np.linspace(0, 1, bins - len(between) + 1)[1:-1]
    below = np.cumsum(counts)[:-1] / max(counts.sum(), 1e-300)
    quantiles = np.interp(shares, below, edges)
    found = sorted({*map(float, between), *quantiles.tolist()})  # np.unique would import numpy.ma
    return tuple(one for one in found if edges[0] < one <= edges[-1]) or (column.mean or 0.0,)


def model_of_trees(growing: GrowingTrees, agreed: AgreedTable) -> WholeModel:
    """Return the trees as a model for `fedgossip predict`."""
    d, encoding, (mean, deviation) = growing.layout.design, agreed.encoding, agreed.scale
    classes = d.classes
    facts: dict[str, Any] = {
        "source": f"trees:{growing.done}x{d.depth}",
        "kind": CLASSIFICATION if classes else REGRESSION,
        "loss": "cross-entropy" if classes else "mse",
        "metrics": ("accuracy",) if classes else ("rmse",),
        "shape": (len(encoding.features),),
        "outputs": len(classes) or 1,
        "classes": classes,
        "columns": encoding.features,
        "encoding": encoding,
        "labels": (d.outcome,),
        "scale": {"mean": mean, "deviation": deviation},
        "schema": d.digest[:16],
        "versions": compose.versions(),
    }
    if not classes:
        label_mean, label_deviation = agreed.label_scale
        facts["label_scale"] = {"mean": label_mean, "deviation": label_deviation}
    return WholeModel({}, facts, document=(run_format.TREES, encoded_trees(trees_file(growing))))


def read_table(layout: TreesLayout, agreed: AgreedTable, file: TableFile) -> SiteTable:
    """Return a site's records.  Raises ConfigError for an unsuitable file, and for too few records."""
    kind = REGRESSION if layout.design.loss == SQUARES else CLASSIFICATION
    found = read_for_fit(file, agreed, kind)
    y = found.y.reshape(len(found)).astype("f8")
    if kind == REGRESSION:
        y = (y - found.label_mean[0]) / found.label_deviation[0]
    return SiteTable(layout.bins.find_bins(scaled(found).x), y)


def _grown(layout: TreesLayout, _: AgreedTable, vector: Vector, least: int) -> TreesFit | None:
    found = trees_fit(GrowingTrees(layout, vector), least)
    return found if found is not None and found.trees else None


TREES_RUN = SumsRun(
    TREES, TREES, FIT_OF_TREES, _kinds, _layout, lambda layout: layout.rounds, read_table,
    lambda layout, sites, _: TreesTask(layout, sites), _grown, server=TreesServer,
    model=lambda layout, agreed, vector: model_of_trees(GrowingTrees(layout, vector), agreed),
)  # fmt: skip
