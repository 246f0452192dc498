"""Objectives: the kinds of task, and the losses and metrics of each, as named in an experiment.

    kind            labels                                  losses                     metrics
    classification  one class per example                   cross-entropy              accuracy f1 auroc
    regression      one number per example and column       mse mae huber              rmse mae r2
    multi-label     yes or no per example and column        bce                        f1 accuracy auroc
    language        the next character at every position    cross-entropy              accuracy
    convex          two classes, or one number              hinge logistic squares lasso  accuracy, rmse; gap

Every kind also has the metric "loss", and accepts "module:function" as a loss or a metric.  No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.scores import ACCURACY, HIGHER, LOWER, Score
from fedgossip.data.custom import NamesCode, is_function

CLASSIFICATION, REGRESSION, MULTI_LABEL, LANGUAGE = "classification", "regression", "multi-label", "language"
KINDS = (CLASSIFICATION, REGRESSION, MULTI_LABEL, LANGUAGE)

LOOP = "loop"
"""The kind of an experiment with users' training loops, which report their own metrics."""

SPARSE = "sparse-logistic"
"""The kind of a problem whose model is a table of many rows; a batch needs a few of them."""

OF_FORMULAS = ("averaging", "quadratic", SPARSE)
"""The kinds of problems with examples drawn by a formula, and models without an architecture."""

STATISTICS = "statistics"
"""The kind of a run that computes common statistics of the sites' tables, without training."""

EVALUATION = "evaluation"
"""The kind of a run that evaluates a model on all sites, without training."""

GLM = "glm"
"""The kind of a run that fits a generalised linear model to sums, without sending gradients."""

TREES = "trees"
"""The kind of a run that grows boosted trees from sums, a level in each round."""

SURVIVAL = "survival"
"""The kind of a run that counts events at times for a survival curve."""

COX = "cox"
"""The kind of a run that fits proportional hazards from sums over the records at risk."""

TABLES = "tables"
"""The kind of a run that computes tables of statistics from named sums."""

SUMS: Mapping[str, str] = {
    STATISTICS: "statistics are sums",
    EVALUATION: "an evaluation is made of sums",
    GLM: "a regression is fitted to sums",
    TREES: "trees are grown from sums",
    SURVIVAL: "survival is counted in sums",
    COX: "hazards are fitted to sums",
    TABLES: "tables are computed from sums",
}
"""Kinds with vectors of summed whole numbers, and their results."""

CONVEX = "convex"
"""The kind of linear models with a convex loss and a certified gap: see `convex`."""

AS_THE_DATA = "learning"
"""The default kind of an experiment: that of its source."""

OF_SOURCES: Mapping[str, str] = {"text": LANGUAGE, "lines": LANGUAGE, "diabetes": REGRESSION}
"""The kinds of sources with labels other than classes."""

LOSSES: Mapping[str, tuple[str, ...]] = {
    "cross-entropy": (CLASSIFICATION, LANGUAGE),
    "mse": (REGRESSION,),
    "mae": (REGRESSION,),
    "huber": (REGRESSION,),
    "bce": (MULTI_LABEL,),
    "hinge": (CONVEX,),
    "logistic": (CONVEX,),
    "squares": (CONVEX,),
    "lasso": (CONVEX,),
}

F1 = Score("f1", unit="of precision and recall, 1 at best", share=True, title="F1")
AUROC = Score("auroc", unit="area under the ROC curve, 1 at best", share=True, title="AUROC")

METRICS: Mapping[str, tuple[Score, tuple[str, ...]]] = {
    "accuracy": (ACCURACY, (CLASSIFICATION, MULTI_LABEL, LANGUAGE, CONVEX)),
    "f1": (F1, (CLASSIFICATION, MULTI_LABEL)),
    "auroc": (AUROC, (CLASSIFICATION, MULTI_LABEL)),
    "rmse": (Score("rmse", LOWER, "root mean squared error, in the label's unit", title="RMSE"), (REGRESSION, CONVEX)),
    "mae": (Score("mae", LOWER, "mean absolute error, in the label's unit", title="MAE"), (REGRESSION,)),
    "r2": (Score("r2", unit="share of the variance explained, 1 at best", title="R²"), (REGRESSION,)),
    "loss": (Score("loss", LOWER, "the loss that training minimises"), (*KINDS, CONVEX)),
    "gap": (Score("gap", LOWER, "at most so far above the best", title="duality gap"), (CONVEX,)),
}

USUAL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    CLASSIFICATION: ("cross-entropy", ("accuracy",)),
    REGRESSION: ("mse", ("rmse", "mae", "r2")),
    MULTI_LABEL: ("bce", ("f1", "accuracy")),
    CONVEX: ("hinge", ("gap",)),
    LANGUAGE: ("cross-entropy", ("accuracy",)),
}
"""The default loss and metrics of each kind."""


CODE = NamesCode()
"""Code names in task.loss and task.metrics: no built-in one has a colon."""


@dataclass(frozen=True)
class Objective:
    """The loss that a run minimises, and its metrics; the first is its score, unless one of the model precedes it."""

    kind: str = CLASSIFICATION
    loss: str = "cross-entropy"
    metrics: tuple[str, ...] = ("accuracy",)

    @property
    def score(self) -> Score:
        return score_of(self.metrics[0])

    @property
    def data_kind(self) -> str:
        """The kind of labels in its data."""
        if self.kind != CONVEX:
            return self.kind
        return REGRESSION if self.loss in ("squares", "lasso") else CLASSIFICATION

    @property
    def functions(self) -> tuple[str, ...]:
        """The "module:function" texts in loss and metrics."""
        named = (CODE.find_name(one) for one in (self.loss, *self.metrics))
        return tuple(name for name in named if name)


def objective_of(kind: str, loss: str, metrics: Sequence[str], source: str = "") -> Objective:
    """Return the objective of [task]; `source` determines an absent kind, "" and () are the kind's defaults.

    Raises ConfigError for an unknown, or another kind's, loss or metric.
    """
    kind = OF_SOURCES.get(source.partition(":")[0], CLASSIFICATION) if kind == AS_THE_DATA else kind
    usual_loss, usual_metrics = USUAL[kind]
    _check_loss(kind, loss or usual_loss)
    check_metrics(kind, metrics)
    metrics = [metric for metric in metrics if not is_of_model(metric)]
    return Objective(kind, loss or usual_loss, tuple(metrics) or usual_metrics)


def check_metrics(kind: str, metrics: Sequence[str]) -> None:
    """Raise ConfigError for an unknown metric, a metric of another kind of task, and two metrics of one name."""
    for metric in metrics:
        _check_metric(kind, metric)
    names = [score_of(metric).name for metric in metrics]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"task.metrics: {twice[0]!r} is there twice", "Name each metric once, the score first.")


def score_of_loops(metric: str) -> Score:
    """Return the score that users' loops report by this name: one of METRICS, or another, "NAME?better=lower"."""
    name, _, query = metric.partition("?")
    if name in METRICS:
        return METRICS[name][0]
    return Score(name, dict(parse_qsl(query)).get("better", HIGHER))


def score_of(metric: str) -> Score:
    """Return the score of a metric's text; "module:function?better=lower&unit=days" defines a user's metric."""
    if metric in METRICS:
        return METRICS[metric][0]
    name, _, query = metric.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    return Score(name.rpartition(":")[2], options.get("better", HIGHER), options.get("unit", ""))


def is_of_model(metric: str) -> bool:
    """Return whether a metric is a function of (model, task): "module:function?of=model"."""
    name, _, query = metric.partition("?")
    return is_function(name) and dict(parse_qsl(query)).get("of") == "model"


def read_score(fields: Mapping[str, Any]) -> Score:
    """Return the score of a summary's name, better and unit."""
    name = str(fields.get("name", ACCURACY.name))
    if name in METRICS:
        return METRICS[name][0]
    return Score(name, str(fields.get("better", HIGHER)), str(fields.get("unit", "")))


def _check_loss(kind: str, loss: str) -> None:
    if is_function(loss):
        return
    if loss not in LOSSES:
        raise ConfigError(f"task.loss = {loss!r} is not known", nearest(loss, [*LOSSES, "module:function"]))
    if kind not in LOSSES[loss]:
        fit = ", ".join(name for name, kinds in LOSSES.items() if kind in kinds)
        text = f"task.loss = {loss!r} is for {' and '.join(LOSSES[loss])}, and this task is {kind}"
        raise ConfigError(text, f"For {kind}: {fit}, module:function; or another task.kind.")


def _check_metric(kind: str, metric: str) -> None:
    name, _, query = metric.partition("?")
    if is_function(name):
        if name.endswith(":loss"):
            text = f"task.metrics: {metric!r} is named as the loss, which is recorded anyway"
            raise ConfigError(text, "Give your function another name.")
        options = dict(parse_qsl(query, keep_blank_values=True))
        for option in options:
            if option not in ("better", "unit", "of"):
                advice = "There are better, unit and of."
                raise ConfigError(f"task.metrics: {metric!r}: unknown option {option!r}", advice)
        if options.get("of", "outputs") not in ("outputs", "model"):
            raise ConfigError(f"task.metrics: {metric!r}: of = {options['of']!r}", "Write outputs or model.")
        if options.get("better", HIGHER) not in (HIGHER, LOWER):
            raise ConfigError(f"task.metrics: {metric!r}: better = {options['better']!r}", "Write higher or lower.")
        return
    if metric not in METRICS:
        raise ConfigError(f"task.metrics: {metric!r} is not known", nearest(metric, [*METRICS, "module:function"]))
    if kind not in METRICS[metric][1]:
        fit = ", ".join(known for known, (_, kinds) in METRICS.items() if kind in kinds)
        text = f"task.metrics: {metric!r} is for {' and '.join(METRICS[metric][1])}, and this task is {kind}"
        raise ConfigError(text, f"For {kind}: {fit}, module:function.")
