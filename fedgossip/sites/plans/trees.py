"""Sites grow boosted trees together: a federated run with one round per level of trees, of exact sums."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgossip.base.errors import ConfigError, TooFewPeersError
from fedgossip.base.vectors import Vector
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.core.whole_model import WholeModel
from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable, read, told_bins
from fedgossip.data.agreed.federated_tables import check_same, read_for_fit, scaled
from fedgossip.data.columns.table_schema import FEDERATED
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION, TREES
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.learning.models.tree_file import encoded_trees
from fedgossip.learning.models.trees import LOGISTIC, MOST_COLUMNS, SOFTMAX, SQUARES, TreesDesign
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import schema_of_experiment, site_file
from fedgossip.sites.fits.trees.tree_options import TreeOptions, tree_options
from fedgossip.sites.fits.trees.tree_result import TreesFit, trees_fit
from fedgossip.sites.fits.trees.tree_sums import GrowingTrees, SiteTable, TreesLayout, TreesServer, trees_file
from fedgossip.sites.fits.trees.tree_task import TreesTask
from fedgossip.sites.plans.design_columns import check_counted
from fedgossip.sites.plans.sums import asking, check_exact, plan_of_sums, sites_that_fit

NUMBERS = 1 << 22
"""Maximum number of whole numbers in a sum, and of elements of an ensemble: 32 MiB."""
CLIENTS = 1000
LEAST_RECORDS = 10


def trees_plan(experiment: Experiment) -> tuple[FederationPlan, TreesLayout, AgreedTable]:
    """Return the plan of the run in which the sites of an experiment grow trees, its numbers, and its columns.

    Raises ConfigError without secure sums, beside a budget, before statistics are agreed, for labels that trees do not
    support, and for sums that would be too large.
    """
    if not isinstance(experiment, FederatedExperiment):
        advice = "Give at least:  [coordinator]  clients = 5"
        raise ConfigError("no [coordinator]: trees are grown from sums over clients", advice)
    d, options = experiment.data, tree_options(experiment.model.source)
    if experiment.objective.kind not in (CLASSIFICATION, REGRESSION):
        text = f"trees beside task.kind = {experiment.objective.kind!r}"
        raise ConfigError(text, f'Set task.kind = "{CLASSIFICATION}" or "{REGRESSION}".')
    if d.scale != FEDERATED:
        text = f"data.scale is {d.scale!r}: trees split the columns that the sites have agreed on"
        raise ConfigError(text, f'Set data.scale = "{FEDERATED}", then  fedgossip data agree EXPERIMENT.')
    check_exact(experiment, "trees are grown", "the sums that trees are grown of are")
    if experiment.coordinator.clients > CLIENTS:
        raise ConfigError(f"{experiment.coordinator.clients} clients", f"Trees are grown by at most {CLIENTS}.")
    agreed = read(Path(d.agreed))
    check_same(agreed, schema_of_experiment(experiment), Path(d.agreed))
    layout = TreesLayout(_design(options, agreed, experiment.objective.kind, experiment.coordinator.clients))
    if max(layout.numbers, layout.length) > NUMBERS:
        text = f"{layout.numbers:,} numbers in a sum, {layout.length:,} in the trees; there are at most {NUMBERS:,}"
        raise ConfigError(text, "Take fewer or flatter trees, less max_bins, or leave columns out: drop=A,B.")
    plan = plan_of_sums(experiment, TREES, layout.rounds, layout.exact)
    return replace(plan, federated=replace(plan.federated, server=TreesServer(layout))), layout, agreed


def _design(options: TreeOptions, agreed: AgreedTable, kind: str, sites: int) -> TreesDesign:
    check_counted(agreed, [one for one in agreed.schema.columns if not one.categories])
    label = _label(agreed, kind)
    known = {one.name: one for one in agreed.columns}
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
        place += len(names)
    if not 0 < len(columns) <= MOST_COLUMNS:
        told = f": {', '.join(constant[:5])} have one value at every site" if constant else ""
        text = f"trees of {len(columns)} columns{told}"
        raise ConfigError(text, f"There are 1 to {MOST_COLUMNS}; leave some out, drop=A,B, or agree on others.")
    least = options.min_records or max(LEAST_RECORDS, agreed.suppress)
    if least < agreed.suppress:
        text = f"min_records = {least}: a leaf of so few would tell of each; data.suppress is {agreed.suppress}"
        raise ConfigError(text, f"Give min_records={agreed.suppress} or more.")
    if agreed.records < 2 * least:
        text = f"{agreed.records} records, and {least} on each side of a split"
        raise ConfigError(text, "There is nothing to split: more records, or a smaller min_records.")
    return TreesDesign(
        loss=SQUARES if kind == REGRESSION else LOGISTIC if len(label.categories) == 2 else SOFTMAX,
        outcome=label.name, classes=label.categories, trees=options.trees, depth=options.depth,
        learning_rate=options.learning_rate, l2=options.l2, min_child_weight=options.min_child_weight,
        min_records=least, bin_records=options.bin_records,
        columns=tuple(columns), places=tuple(places), cuts=tuple(cuts), mean=tuple(mean),
        deviation=tuple(deviation), constant=tuple(constant), records=agreed.records, suppress=agreed.suppress,
        agreed=agreed.digest, sites=sites,
    )  # fmt: skip


def _label(agreed: AgreedTable, kind: str) -> AgreedColumn:
    """Return the label column.  Raises ConfigError for several, and for classes with no or too few records."""
    labels = [one for one in agreed.columns if one.label]
    if len(labels) > 1:
        raise ConfigError(f"trees of {len(labels)} label columns", "One model has one outcome: name one column.")
    label = labels[0]
    if kind == REGRESSION:
        if not label.deviation:
            text = f"column {label.name!r} has one value at every site: there is nothing to tell apart"
            raise ConfigError(text, "Look at the label.")
        return label
    counts = dict(zip(label.categories, label.counts, strict=True))
    if few := [name for name, count in counts.items() if count is None]:
        text = f"column {label.name!r}: {', '.join(few[:5])} at too few sites, or of under {agreed.suppress} records"
        raise ConfigError(text, "Sums of it would tell of them: take another label, or put classes together.")
    if sum(bool(count) for count in counts.values()) < 2:
        there = ", ".join(name for name, count in counts.items() if count) or "none"
        text = f"column {label.name!r}: all {agreed.records} records are {there}"
        raise ConfigError(text, "There is nothing to tell them apart by: look at the label.")
    return label


def _category(column: AgreedColumn, k: int) -> tuple[float, ...]:
    """Return the cut of a category; none where all records have it, or none.

    Raises ConfigError for one so rare that a sum over it would disclose its records.
    """
    if column.counts[k] is None:
        where = f"column {column.name!r}: {column.categories[k]} at too few sites, or of too few records"
        raise ConfigError(where, f"A split by it would tell of them: leave the column out, drop={column.name}.")
    return (0.5,) if 0 < (column.counts[k] or 0) < sum(count or 0 for count in column.counts) else ()


def _edges(column: AgreedColumn, bins: int) -> tuple[float, ...]:
    """Return at most `bins` - 1 cuts of a column of numbers, so that bins have about equal numbers of records.

    The agreed histogram gives them: the middle of its empty stretches, and quantiles as if its bins were filled evenly.
    """
    if not column.deviation:
        return ()
    if len(column.edges) < 2:  # the histogram is withheld
        deviation, inner = column.deviation, np.linspace(-2, 2, bins - 1)
        return tuple(((column.mean or 0.0) + deviation * inner).tolist())
    counts = np.array(told_bins(column))
    edges = np.array(column.edges)
    held = np.flatnonzero(counts[1:-1] > 0)
    gaps = [(a, b) for a, b in itertools.pairwise(held) if b > a + 1]
    between = [(edges[a + 1] + edges[b]) / 2 for a, b in gaps][: bins - 1]
    shares = np.linspace(0, 1, bins - len(between) + 1)[1:-1]
    below = np.cumsum(counts)[:-1] / max(counts.sum(), 1e-300)
    quantiles = np.interp(shares, below, edges)
    found = np.unique(np.concatenate([between, quantiles]))
    inside = found[(found > edges[0]) & (found <= edges[-1])]
    return tuple(inside.tolist()) or (column.mean or 0.0,)


def trees_task(
    plan: FederationPlan, layout: TreesLayout, agreed: AgreedTable, held: Sequence[NodeId]
) -> tuple[FederationPlan, TreesTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with the abstaining sites, the task of the `held` sites, and why some do not fit."""

    def table(node: NodeId) -> SiteTable:
        return table_of(layout, agreed, site_file(plan.experiment, node))

    plan, sites, refused = sites_that_fit(plan, held, table)
    return asking(plan, TreesTask(layout, sites), refused)


def table_of(layout: TreesLayout, agreed: AgreedTable, path: Path) -> SiteTable:
    """Return a site's records.  Raises ConfigError for an unsuitable file, and for too few records."""
    kind = REGRESSION if layout.design.loss == SQUARES else CLASSIFICATION
    found = read_for_fit(path, agreed, kind)
    y = found.y.reshape(len(found)).astype("f8")
    if kind == REGRESSION:
        y = (y - found.label_mean[0]) / found.label_deviation[0]
    return SiteTable(layout.bins.of(scaled(found).x), y)


def grown_from(plan: FederationPlan, layout: TreesLayout, vector: Vector | None) -> tuple[TreesFit, GrowingTrees]:
    """Return the trees of the sums.  Raises TooFewPeersError after incomplete rounds."""
    growing = None if vector is None else GrowingTrees(layout, vector)
    found = None if growing is None else trees_fit(growing, plan.least)
    if found is None or growing is None or not found.trees:
        text = "too few sites came together for the sums of a tree"
        raise TooFewPeersError(text, "Fit again when they are there: coordinator.min_clients are needed.")
    return found, growing


def model_of_trees(growing: GrowingTrees, agreed: AgreedTable) -> WholeModel:
    """Return the trees as a model that `fedgossip predict` can use."""
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
