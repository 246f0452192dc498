"""Sites fit one generalised linear model together: a federated run of Newton steps, with exact sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgossip.base.errors import ConfigError, TooFewPeersError, nearest
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.whole_model import WholeModel
from fedgossip.data.agreed.agreed_table import AgreedTable, read
from fedgossip.data.agreed.federated_tables import check_same, read_for_fit
from fedgossip.data.columns.table_schema import FEDERATED
from fedgossip.data.objectives import CLASSIFICATION, GLM, REGRESSION
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.learning.models.model_files import RATES
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import schema_of_experiment, site_file
from fedgossip.sites.fits.glm.glm import FAMILIES
from fedgossip.sites.fits.glm.glm_result import GlmFit, fit_of, tensors_of
from fedgossip.sites.fits.glm.glm_sums import GlmDesign, GlmLayout, SiteRecords, known_outcomes, scaled
from fedgossip.sites.fits.glm.glm_task import GlmTask
from fedgossip.sites.plans.design_columns import check_counted, design_columns
from fedgossip.sites.plans.sums import asking, check_exact, plan_of_sums, sites_that_fit

KIND_OF = {"logistic": CLASSIFICATION, "linear": REGRESSION, "poisson": REGRESSION}
SOURCE_OF = {"logistic": "softmax", "linear": "softmax", "poisson": RATES}
STEPS = 16
"""Maximum number of Newton steps; five to eight are usual."""


def is_glm(source: str) -> bool:
    return source.partition(":")[0] == GLM


def glm_plan(experiment: Experiment) -> tuple[FederationPlan, GlmLayout, AgreedTable]:
    """Return the plan of the run in which the sites of an experiment fit a model, its numbers, and its columns.

    Raises ConfigError without secure sums, beside a budget, before statistics are agreed, and for a family that does
    not match the label.
    """
    if not isinstance(experiment, FederatedExperiment):
        advice = "Give at least:  [coordinator]  clients = 5"
        raise ConfigError("no [coordinator]: a fit is of sums over clients", advice)
    d = experiment.data
    family = family_of(experiment)
    if d.scale != FEDERATED:
        text = f"data.scale is {d.scale!r}: a fit is of the columns that the sites have agreed on"
        raise ConfigError(text, f'Set data.scale = "{FEDERATED}", then  fedgossip data agree EXPERIMENT.')
    check_exact(experiment, "a fit is", "the sums of a fit are")
    agreed = read(Path(d.agreed))
    check_same(agreed, schema_of_experiment(experiment), Path(d.agreed))
    layout = GlmLayout(_design(family, agreed))
    plan = plan_of_sums(experiment, GLM, layout.rounds, layout.exact)
    return plan, layout, agreed


def family_of(experiment: Experiment) -> str:
    """Return the family that model.source names.  Raises ConfigError for an unknown one, and for unsuitable labels."""
    kind, _, family = experiment.model.source.partition(":")
    if kind != GLM or family not in FAMILIES:
        advice = nearest(family, FAMILIES) if kind == "glm" else f'Set model.source = "glm:{next(iter(FAMILIES))}".'
        raise ConfigError(f"model.source = {experiment.model.source!r}: not a generalised linear model", advice)
    if experiment.objective.kind != KIND_OF[family]:
        text = f"glm:{family} beside task.kind = {experiment.objective.kind!r}"
        raise ConfigError(text, f'Set task.kind = "{KIND_OF[family]}".')
    return family


def _design(family: str, agreed: AgreedTable) -> GlmDesign:
    labels = agreed.schema.labels
    if len(labels) > 1:
        raise ConfigError(f"glm:{family}: {len(labels)} label columns", "One model has one outcome: name one column.")
    classes = labels[0].categories
    if family == "logistic" and len(classes) != 2:
        classes_told = "1 class" if len(classes) == 1 else f"{len(classes)} classes"
        raise ConfigError(f"glm:logistic: {labels[0].name!r} has {classes_told}", "It is of two: yes and no.")
    check_counted(agreed, labels)
    c = design_columns(agreed, f"glm:{family}")
    return GlmDesign(
        family=family, outcome=labels[0].name, unit=labels[0].unit, of=classes[1] if classes else "", classes=classes,
        encoding=agreed.encoding, columns=c.names,
        places=c.places, mean=c.mean, deviation=c.deviation, against=c.against, constant=c.constant,
        agreed=agreed.digest, steps=STEPS,
    )  # fmt: skip


def glm_task(
    plan: FederationPlan, layout: GlmLayout, agreed: AgreedTable, held: Sequence[NodeId]
) -> tuple[FederationPlan, GlmTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with the abstaining sites, the task of the `held` sites, and why some do not fit."""

    def records(node: NodeId) -> SiteRecords:
        found = read_for_fit(site_file(plan.experiment, node), agreed, KIND_OF[layout.design.family])
        y = known_outcomes(layout.design, found.y.reshape(len(found)).astype("f8"))
        return SiteRecords(scaled(layout.design, found.x), y)

    plan, sites, refused = sites_that_fit(plan, held, records)
    return asking(plan, GlmTask(layout, sites, agreed.suppress), refused)


def fitted_from(plan: FederationPlan, layout: GlmLayout, vector: Vector | None) -> GlmFit:
    """Return the fit of the sums.  Raises TooFewPeersError after incomplete rounds."""
    found = None if vector is None else fit_of(layout, vector, plan.least, plan.experiment.data.suppress)
    if found is None:
        text = "too few sites came together for the sums of a fit"
        raise TooFewPeersError(text, "Fit again when they are there: coordinator.min_clients are needed.")
    return found


def model_of(fit: GlmFit, agreed: AgreedTable) -> WholeModel:
    """Return the fit as a model that `fedgossip.load_model` can use."""
    encoding, (mean, deviation) = agreed.encoding, agreed.scale
    label = agreed.schema.labels[0]
    logistic = fit.design.family == "logistic"
    facts: dict[str, Any] = {
        "source": SOURCE_OF[fit.design.family], "kind": KIND_OF[fit.design.family],
        "loss": "cross-entropy" if logistic else "mse",
        "metrics": ("accuracy",) if logistic else ("rmse", "mae"), "shape": (len(encoding.features),),
        "outputs": 2 if logistic else 1, "classes": label.categories, "columns": encoding.features,
        "encoding": encoding, "labels": (label.name,), "scale": {"mean": mean, "deviation": deviation},
        "schema": fit.design.digest[:16], "versions": compose.versions(),
    }  # fmt: skip
    return WholeModel(tensors_of(fit, len(encoding.features)), facts)
