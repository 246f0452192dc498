"""Sites fit one generalised linear model together: a federated run of Newton steps, with exact sums."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.vectors import Vector
from fedgossip.core.run_format import FIT
from fedgossip.core.task import WholeModel
from fedgossip.data.agreed.agreed_table import AgreedTable, read_for_fit
from fedgossip.data.objectives import CLASSIFICATION, GLM, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import FederatedExperiment
from fedgossip.sites.fits.design_columns import bounds_of, check_counted, design_columns
from fedgossip.sites.fits.glm.glm import FAMILIES, scaled
from fedgossip.sites.fits.glm.glm_result import SOURCE_OF, GlmFit, fit_of, layer_of
from fedgossip.sites.fits.glm.glm_sums import QUASI, ROBUST, GlmDesign, GlmLayout, GlmTask, SiteRecords, known_outcomes
from fedgossip.sites.plans.sums import SumsRun, layer_model

KIND_OF = {name: CLASSIFICATION if name == "logistic" else REGRESSION for name in FAMILIES}
STEPS, SCORING = 16, 32
"""Maximum number of Newton steps, of which five to eight are usual, and of Fisher's of a gamma model, some ten."""


def family_of(source: str) -> str:
    """Return the family that model.source names.  Raises ConfigError for an unknown one."""
    kind, _, family = source.partition("?")[0].partition(":")
    if kind != GLM or family not in FAMILIES:
        advice = nearest(family, FAMILIES) if kind == "glm" else f'Set model.source = "glm:{next(iter(FAMILIES))}".'
        raise ConfigError(f"model.source = {source!r}: not a generalised linear model", advice)
    return family


def _errors_of(source: str) -> str:
    """Return the errors that model.source names, "" for those of the family.  Raises ConfigError for other options."""
    options = dict(parse_qsl(source.partition("?")[2], keep_blank_values=True))
    errors = options.pop("errors", "")
    if options or errors not in ("", ROBUST, QUASI):
        advice = f"It has one option: errors={ROBUST} or errors={QUASI}."
        raise ConfigError(f"model.source = {source!r}: no such option", advice)
    return errors


def _design(family: str, agreed: AgreedTable, errors: str) -> GlmDesign:
    labels = agreed.schema.labels
    if len(labels) > 1:
        raise ConfigError(f"glm:{family}: {len(labels)} label columns", "One model has one outcome: name one column.")
    classes = labels[0].categories
    if family == "logistic" and len(classes) != 2:
        classes_told = "1 class" if len(classes) == 1 else f"{len(classes)} classes"
        raise ConfigError(f"glm:logistic: {labels[0].name!r} has {classes_told}", "It is of two: yes and no.")
    check_counted(agreed, labels)
    if family == "gamma" and any(one.is_coded for one in agreed.columns if one.label):
        text = f"glm:gamma: {labels[0].name!r} has few different values"
        raise ConfigError(text, "It is of times, costs, concentrations; of a few numbers take glm:poisson or ordinal.")
    c = design_columns(agreed, f"glm:{family}")
    return GlmDesign(
        family=family, outcome=labels[0].name, unit=labels[0].unit, of=classes[1] if classes else "", classes=classes,
        encoding=agreed.encoding, columns=c.names,
        places=c.places, mean=c.mean, deviation=c.deviation, against=c.against, constant=c.constant,
        agreed=agreed.digest, steps=SCORING if family == "gamma" else STEPS, errors=errors or msgspec.UNSET,
    )  # fmt: skip


def _kinds(source: str) -> Sequence[str]:
    _errors_of(source)
    return (KIND_OF[family_of(source)],)


def _layout(experiment: FederatedExperiment, agreed: AgreedTable) -> GlmLayout:
    source = experiment.model.source
    return GlmLayout(_design(family_of(source), agreed, _errors_of(source)))


def _records(layout: GlmLayout, agreed: AgreedTable, file: TableFile) -> SiteRecords:
    found = read_for_fit(file, agreed, KIND_OF[layout.design.family])
    y = known_outcomes(layout.design, found.y.reshape(len(found)).astype("f8"))
    return SiteRecords(scaled(layout.design, found.x), y)


def _fit(layout: GlmLayout, agreed: AgreedTable, vector: Vector, least: int) -> GlmFit | None:
    found = fit_of(layout, vector, least, agreed.suppress)
    return None if found is None else msgspec.structs.replace(found, bounds=bounds_of(agreed))


def _model(layout: GlmLayout, agreed: AgreedTable, vector: Vector) -> WholeModel | None:
    fit = _fit(layout, agreed, vector, 1)
    if fit is None or not fit.converged:
        return None
    family = fit.design.family
    return layer_model(fit.design, SOURCE_OF[family], layer_of(family, np.array(fit.eta)), agreed)


GLM_RUN = SumsRun(
    GLM, GLM, FIT, _kinds, _layout, lambda layout: layout.rounds, _records,
    GlmTask, _fit, model=_model,
)  # fmt: skip
