"""Runs of exact sums over sites: every kind of fit, by the first word of model.source.

FAMILIES has a row for each family of statistics (`sites/fits/families`).
"""

from __future__ import annotations

import dataclasses
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TooFewPeersError, TrainingError, nearest, plural
from fedgossip.base.vectors import Vector
from fedgossip.core import run_format
from fedgossip.core.run_format import CURVES, FIT
from fedgossip.core.task import WholeModel
from fedgossip.data.agreed.agreed_table import (
    AgreedTable,
    read_clusters,
    read_for_fit,
)
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.data.columns.table_schema import (
    SchemaColumn,
    categories_in,
    sets_of,
)
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CLASSIFICATION, COX, GLM, REGRESSION, SURVIVAL, TABLES
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.plans.approvals.plan_statement import PlanStatement, statement_of
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import is_unagreed
from fedgossip.sites.fits.cox import cox_sums
from fedgossip.sites.fits.cox.cox_result import CoxFit, cox_fit
from fedgossip.sites.fits.cox.cox_steps import CoxServer, CoxTask, rounds_of
from fedgossip.sites.fits.cox.cox_sums import BRESLOW, EFRON, CoxDesign, CoxLayout, TimedRecords
from fedgossip.sites.fits.design_columns import (
    bounds_of,
    check_clusters,
    check_counted,
    check_outcome,
    codes_of,
    design_columns,
    has_few_values,
    words_instead,
)
from fedgossip.sites.fits.families.correlations import Correlations
from fedgossip.sites.fits.families.elastic_net import ElasticNet
from fedgossip.sites.fits.families.family import (
    FamilyLayout,
    FamilyTask,
    PredictingFamily,
    SumsFamily,
    fit_of,
    option_number,
)
from fedgossip.sites.fits.families.gee import Gee
from fedgossip.sites.fits.families.likelihoods import Firth, Likelihood, LikelihoodFamily, NegativeBinomial, Weibull
from fedgossip.sites.fits.families.meta_analysis import MetaAnalysis
from fedgossip.sites.fits.families.mixed import Mixed
from fedgossip.sites.fits.families.mixed_logistic import MixedLogistic
from fedgossip.sites.fits.families.multinomial import Multinomial, Ordinal
from fedgossip.sites.fits.families.table_one import TableOne
from fedgossip.sites.fits.glm import glm, glm_result
from fedgossip.sites.fits.glm.glm import Values, scaled
from fedgossip.sites.fits.glm.glm_result import SOURCE_OF, GlmFit, layer_of
from fedgossip.sites.fits.glm.glm_sums import (
    QUASI,
    ROBUST,
    GlmDesign,
    GlmLayout,
    GlmTask,
    PriorColumn,
    SiteRecords,
    known_outcomes,
    uneven_at,
)
from fedgossip.sites.fits.imputation.rubin import Pooling
from fedgossip.sites.fits.survival import survival_curves, survival_sums
from fedgossip.sites.fits.survival.survival_curves import CurveFit
from fedgossip.sites.fits.survival.survival_sums import ALL, CurveDesign, CurveLayout, SiteTimes, SurvivalTask
from fedgossip.sites.fits.survival.survival_times import checked_times, grid_of, places_of
from fedgossip.sites.plans.imputed import imputed_run
from fedgossip.sites.plans.statistics import agreed_from, stated_statistics, statistics_plan, statistics_task
from fedgossip.sites.plans.sums import (
    ImputedFits,
    PlannedFit,
    SumsRun,
    layer_model,
    planned,
    summed_here,
)
from fedgossip.sites.plans.trees import TREES_RUN


def _run_of(family: SumsFamily) -> SumsRun:
    def kinds(source: str) -> Sequence[str]:
        _options(family, source)
        return family.kinds

    def layout(experiment: FederatedExperiment, agreed: AgreedTable) -> FamilyLayout:
        return FamilyLayout(family.design(_options(family, experiment.model.source), agreed), family)

    def read(layout: FamilyLayout, agreed: AgreedTable, file: TableFile) -> Any:
        return family.read(layout.design, agreed, file)

    def model(layout: FamilyLayout, agreed: AgreedTable, vector: Vector) -> WholeModel | None:
        found = cast(PredictingFamily, family).model(layout.design, layout.pooled(vector), agreed)
        return None if found is None else layer_model(layout.design, *found, agreed)

    return SumsRun(
        family.name, TABLES, run_format.TABLES, kinds, layout, lambda layout: layout.rounds, read, FamilyTask, fit_of,
        model=model if family.predicts else None,
    )  # fmt: skip


def _options(family: SumsFamily, source: str) -> dict[str, str]:
    found = dict(sorted(parse_qsl(source.partition("?")[2], keep_blank_values=True)))
    for name in found:
        if name not in family.options:
            advice = nearest(name, family.options) if family.options else f'Write model.source = "{family.name}".'
            raise ConfigError(f"model.source = {source!r}: option {name!r} is not known", advice)
    return found


LIKELIHOODS: Sequence[Likelihood] = Multinomial(), Ordinal(), NegativeBinomial(), Firth(), Weibull()

_ALL: Sequence[SumsFamily] = (
    TableOne(),
    Correlations(),
    MetaAnalysis(),
    ElasticNet(),
    Mixed(),
    MixedLogistic(),
    Gee(),
    *map(LikelihoodFamily, LIKELIHOODS),
)

FAMILIES: Mapping[str, SumsFamily] = {one.name: one for one in _ALL}


FAMILY_RUNS = tuple(map(_run_of, FAMILIES.values()))

KIND_OF = {name: CLASSIFICATION if name == "logistic" else REGRESSION for name in glm.FAMILIES}
STEPS, SCORING = 16, 32
"""Maximum number of Newton steps (five to eight are usual), and of Fisher's steps of a gamma model (about ten)."""


def family_of(source: str) -> str:
    """Return the family in model.source.  Raises ConfigError for an unknown one."""
    kind, _, family = source.partition("?")[0].partition(":")
    if kind != GLM or family not in glm.FAMILIES:
        advice = (
            nearest(family, glm.FAMILIES) if kind == "glm" else f'Set model.source = "glm:{next(iter(glm.FAMILIES))}".'
        )
        raise ConfigError(f"model.source = {source!r}: not a generalised linear model", advice)
    return family


def _glm_options(source: str) -> Mapping[str, str]:
    options = dict(parse_qsl(source.partition("?")[2], keep_blank_values=True))
    known = options.keys() <= {"errors", "offset", "weights", "cluster"}
    if not known or options.get("errors", QUASI) not in (ROBUST, QUASI):
        advice = f"It has errors={ROBUST} or errors={QUASI}, cluster=COLUMN, offset=COLUMN and weights=COLUMN."
        raise ConfigError(f"model.source = {source!r}: no such option", advice)
    return options


def _prior_columns(source: str, options: Mapping[str, str], agreed: AgreedTable) -> dict[str, PriorColumn]:
    """Return the columns of an offset, of weights, and of times of entry."""
    found = dict[str, PriorColumn]()
    numbers = {one.name: one for one in agreed.columns if not one.label and not one.categories}
    for what in sorted({"offset", "weights", "entry"} & options.keys()):
        if (name := options[what]) not in numbers:
            text = f"model.source = {source!r}: {name!r} is no column of numbers"
            advice = nearest(name, numbers) if numbers else "There is none."
            more = ' The log of one: [data.columns.log_days] with log = "days".' if what == "offset" else ""
            raise ConfigError(text, f"{advice}{more}")
        check_counted(agreed, [one for one in agreed.schema.features if one.name == name])
        if (one := numbers[name]).missing != 0:
            text = f"column {name!r}: empty in some records, and each has its own {what}"
            raise ConfigError(text, 'Fill the cells, or set data.missing = "drop".')
        place = agreed.encoding.features.index(name)
        found[what] = PriorColumn(name, place, one.mean or 0.0)
    if len({one.name for one in found.values()}) < len(found):
        raise ConfigError(f"model.source = {source!r}: one column as offset and weights", "Name two.")
    return found


def _design(source: str, agreed: AgreedTable) -> GlmDesign:
    family, options = family_of(source), _glm_options(source)
    labels = agreed.schema.labels
    if len(labels) > 1:
        raise ConfigError(f"glm:{family}: {len(labels)} label columns", "One model has one outcome: name one column.")
    classes = labels[0].categories
    if family == "logistic" and len(classes) != 2:
        text = f"glm:logistic: {labels[0].name!r} has {plural(len(classes), 'class')}"
        raise ConfigError(text, "It is of two: yes and no.")
    check_outcome(agreed)
    check_counted(agreed, labels)
    if family == "gamma" and any(one.is_coded for one in agreed.columns if one.label):
        text = f"glm:gamma: {labels[0].name!r} has few different values"
        raise ConfigError(text, "It is of times, costs, concentrations; of a few numbers take glm:poisson or ordinal.")
    check_clusters(agreed, options, f"model.source = {source!r}")
    prior = _prior_columns(source, options, agreed)
    c = design_columns(agreed, f"glm:{family}", without=[one.name for one in prior.values()])
    return GlmDesign(
        family=family, outcome=labels[0].name, unit=labels[0].unit, of=classes[1] if classes else "", classes=classes,
        encoding=agreed.encoding, columns=c.names,
        places=c.places, mean=c.mean, deviation=c.deviation, against=c.against, constant=c.constant,
        agreed=agreed.digest, steps=SCORING if family == "gamma" else STEPS,
        errors=options.get("errors", msgspec.UNSET), cluster=options.get("cluster", msgspec.UNSET), **prior,
    )  # fmt: skip


def _kinds(source: str) -> Sequence[str]:
    _glm_options(source)
    return (KIND_OF[family_of(source)],)


def _layout(experiment: FederatedExperiment, agreed: AgreedTable) -> GlmLayout:
    return GlmLayout(_design(experiment.model.source, agreed))


def _records(layout: GlmLayout, agreed: AgreedTable, file: TableFile) -> SiteRecords:
    found = read_for_fit(file, agreed, KIND_OF[layout.design.family])
    d = layout.design
    y = known_outcomes(d, found.y.reshape(len(found)).astype("f8"))
    cluster = read_clusters(file, agreed, d.cluster) if d.cluster else None
    if not d.prior:
        return SiteRecords(scaled(d, found.x), y, cluster=cluster)
    weights = found.x[:, d.weights.place] if d.weights else 1.0
    if d.weights and (wrong := int((np.asarray(weights) <= 0).sum())):
        text = f"column {d.weights.name!r}: weights of 0 or below, in {plural(wrong, 'record')}"
        raise ConfigError(text, "A weight is a number above 0: correct it, or leave the row out.")
    offset = found.x[:, d.offset.place] if d.offset else 0.0
    site = SiteRecords(scaled(d, found.x), y, offset, weights, cluster)
    if reason := uneven_at(d, site, np.zeros(site.x.shape[1]), 0.0, agreed.suppress):
        text = f"{' and '.join(one.name for one in d.prior)}: {reason}, as a few outweigh them"
        raise ConfigError(text, "It takes no part: are the numbers in the same unit at all sites?")
    return site


def _fit(layout: GlmLayout, agreed: AgreedTable, vector: Vector, least: int) -> GlmFit | None:
    return _pooled_fit(layout, agreed, [vector], least)


def _pooled_fit(
    layout: GlmLayout, agreed: AgreedTable, vectors: Sequence[Vector], least: int, pooling: Pooling | None = None
) -> GlmFit | None:
    found = glm_result.pooled_fit_of(layout, vectors, least, agreed, pooling)
    return None if found is None else msgspec.structs.replace(found, bounds=bounds_of(agreed))


def _completed(layout: GlmLayout, records: SiteRecords, features: Values) -> SiteRecords:
    return dataclasses.replace(records, x=scaled(layout.design, features))


def _model(layout: GlmLayout, agreed: AgreedTable, vector: Vector) -> WholeModel | None:
    fit = _fit(layout, agreed, vector, 1)
    return None if fit is None else _model_of(fit, agreed)


def _model_of(fit: GlmFit, agreed: AgreedTable) -> WholeModel | None:
    if not fit.converged:
        return None
    d, eta = fit.design, np.array(fit.eta)
    if d.offset:  # one more column, of the coefficient 1
        mean, deviation = (one[d.offset.place] for one in agreed.scale)
        eta = np.array([eta[0] + mean, *eta[1:], deviation])
        d = msgspec.structs.replace(d, places=(*d.places, d.offset.place))
    return layer_model(d, SOURCE_OF[d.family], layer_of(d.family, eta), agreed)


GLM_RUN = SumsRun(
    GLM, GLM, FIT, _kinds, _layout, lambda layout: layout.rounds, _records,
    GlmTask, _fit, model=_model, imputed=ImputedFits(_completed, _pooled_fit, _model_of),
)  # fmt: skip

COX_STEPS = 16
"""Maximum number of Newton steps; four to seven are usual."""
COX_LEAST = 10
"""Default minimum number of events of a reported time; data.suppress if that is larger."""
COX_NUMBERS = 1 << 16
"""Maximum number of whole numbers in a sum: 2 MiB."""
COX_RIDGES = 1e9


def _cox_layout(experiment: FederatedExperiment, agreed: AgreedTable) -> CoxLayout:
    layout = CoxLayout(_cox_design(experiment.model.source, agreed))
    if layout.numbers > COX_NUMBERS:
        text = f"{layout.numbers:,} numbers in a sum; there are at most {COX_NUMBERS:,}"
        raise ConfigError(text, "Leave columns out, drop=A,B, or take fewer times or strata.")
    return layout


def _cox_design(source: str, agreed: AgreedTable) -> CoxDesign:
    time, event = time_and_event(COX, agreed)
    options = dict(parse_qsl(source.partition("?")[2], keep_blank_values=True))
    strata_column = options.pop("strata", "")
    ties = options.pop("ties", BRESLOW)
    if ties not in (BRESLOW, EFRON):
        raise ConfigError(f"model.source = {source!r}: ties={ties}", f"It is {BRESLOW} or {EFRON}.")
    errors = options.pop("errors", "model")
    if errors not in ("model", cox_sums.ROBUST):
        raise ConfigError(f"model.source = {source!r}: errors={errors}", f"It is model or {cox_sums.ROBUST}.")
    cluster = {"cluster": options.pop("cluster")} if "cluster" in options else {}
    check_clusters(agreed, {"errors": errors, **cluster}, f"model.source = {source!r}")
    where = f"model.source = {source!r}: "
    competing = option_number(where, "competing", options.pop("competing"), 2, 1 << 30) if "competing" in options else 0
    if competing:
        if strata_column or ties == EFRON or "entry" in options:
            text = f"model.source = {source!r}: competing with strata, entry or ties={EFRON}"
            raise ConfigError(text, "Subdistribution hazards have none of them: leave them out.")
        errors = cox_sums.ROBUST
    if errors == cox_sums.ROBUST and ties == EFRON:
        text = f"model.source = {source!r}: errors={errors} with ties={EFRON}"
        raise ConfigError(text, f"Robust errors are of ties={BRESLOW}: take a fine grid.")
    entry = _prior_columns(source, {"entry": options.pop("entry")}, agreed)["entry"] if "entry" in options else None
    least = option_number(where, "events", options.pop("events", str(max(COX_LEAST, agreed.suppress))), 1, 1 << 30)
    ridge = option_number(where, "ridge", options.pop("ridge", "0"), 0, COX_RIDGES)
    if least != math.floor(least) or least < agreed.suppress:
        text = f"model.source = {source!r}: events={least:g}; data.suppress is {agreed.suppress}"
        raise ConfigError(text, f"A reported time has a whole number of events, {agreed.suppress} or more.")
    without = f"{COX}?{urlencode(options, safe=',')}" if options else COX
    strata = column_of_words(source, strata_column, agreed)
    column = next(one for one in agreed.columns if one.name == time.name)
    c = design_columns(agreed, COX, 0, [strata_column, *([entry.name] if entry else [])])
    codes = codes_of(agreed, c.names)
    coarse = not codes and has_few_values(agreed, c.names)
    if competing and (codes or coarse):
        text = f"model.source = {source!r}: competing, and no column has many different values"
        raise ConfigError(text, "Add a column of numbers; or take the cause alone, by recode in [data.columns].")
    return CoxDesign(
        time=time.name, event=event.name, unit=time.unit, grid=grid_of(without, column), least=int(least), ties=ties,
        ridge=ridge,
        strata_column=strata_column, strata=strata or ("",), encoding=agreed.encoding, columns=c.names,
        places=c.places, mean=c.mean, deviation=c.deviation, against=c.against, constant=c.constant,
        agreed=agreed.digest, steps=COX_STEPS, codes=codes or msgspec.UNSET,
        coarse=coarse or msgspec.UNSET, competing=competing or msgspec.UNSET,
        errors=errors if errors == cox_sums.ROBUST else msgspec.UNSET, entry=entry or msgspec.UNSET,
        **cluster,
        suppress=agreed.suppress if codes else msgspec.UNSET,
    )  # fmt: skip


def _cox_records(layout: CoxLayout, agreed: AgreedTable, file: TableFile) -> TimedRecords:
    d = layout.design
    found = read_for_fit(file, agreed, REGRESSION, (d.time, d.event, *([d.entry.name] if d.entry else [])))
    code = None if d.competing is msgspec.UNSET else d.competing
    times, events = checked_site(found, d.grid, (d.time, d.event), code)
    entries = np.ascontiguousarray(found.x[:, d.entry.place], "f8") if d.entry else None
    if d.entry and entries is not None and (entries >= times).any():
        text = f"column {d.entry.name!r}: not before {d.time!r} in {plural(int((entries >= times).sum()), 'record')}"
        raise ConfigError(text, "A record is seen after its entry until its time: correct it, or leave the row out.")
    strata = np.zeros(len(found), np.int64)
    if d.strata_column:
        strata = categories_in(found.x, d.strata_column, agreed.encoding.columns)
    if (strata < 0).any():
        text = f"column {d.strata_column!r}: empty in {plural(int((strata < 0).sum()), 'record')}"
        raise ConfigError(text, "A stratum has to be known: fill the cells, or leave the rows out.")
    scale = zip(d.places, d.mean, d.deviation, strict=True)
    columns = [np.ascontiguousarray((found.x[:, place] - mean) / deviation) for place, mean, deviation in scale]
    entered = None if entries is None else np.searchsorted(np.asarray(d.grid), entries, side="right")
    cluster = read_clusters(file, agreed, d.cluster) if d.cluster else None
    competing = None if code is None else np.asarray(found.y, "f8")[:, 1] == code
    places = places_of(d.grid, times)
    return TimedRecords(columns, times, places, events, strata, entries, entered, cluster, competing)


def _cox_fit(layout: CoxLayout, agreed: AgreedTable, vector: Vector, least: int) -> CoxFit | None:
    found = cox_fit(layout, vector, least)
    return None if found is None else msgspec.structs.replace(found, bounds=bounds_of(agreed))


COX_RUN = SumsRun(
    COX, COX, FIT, lambda _: (REGRESSION,), _cox_layout, rounds_of, _cox_records, CoxTask,
    _cox_fit, server=CoxServer,
)  # fmt: skip

KAPLAN_MEIER = "kaplan-meier"
GROUPS = 20
"""Maximum number of groups."""


def time_and_event(name: str, agreed: AgreedTable) -> tuple[SchemaColumn, SchemaColumn]:
    """Return both label columns.  Raises ConfigError for another number of them."""
    labels = agreed.schema.labels
    if len(labels) != 2:
        text = f"{name}: {plural(len(labels), 'label column')}, {', '.join(one.name for one in labels)}"
        raise ConfigError(
            text, "Name two, the time and then the event (1 or 0), label=days,died; cox?entry=COLUMN has delayed entry."
        )
    return labels[0], labels[1]


def column_of_words(source: str, name: str, agreed: AgreedTable) -> tuple[str, ...]:
    """Return the categories of the grouping column, () for "".  Raises ConfigError."""
    words = {one.name: one.categories for one in agreed.schema.features if one.categories}
    if name and name not in words:
        text = f"model.source = {source!r}: {name!r} is no column of words"
        raise ConfigError(text, words_instead(name, agreed))
    groups = words.get(name, ())
    if len(groups) > GROUPS:
        text = f"model.source = {source!r}: {len(groups)} groups; there are at most {GROUPS}"
        raise ConfigError(text, "Take a column of fewer categories.")
    return groups


def _survival_design(source: str, agreed: AgreedTable) -> CurveDesign:
    time, event = time_and_event(KAPLAN_MEIER, agreed)
    name, _, query = source.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    by = options.pop("by", "")
    without = f"{name}?{urlencode(options, safe=',')}" if options else name
    column = next(one for one in agreed.columns if one.name == time.name)
    return CurveDesign(
        time=time.name, event=event.name, unit=time.unit, grid=grid_of(without, column),
        group_column=by, groups=column_of_words(source, by, agreed), agreed=agreed.digest,
    )  # fmt: skip


def _survival_times(layout: CurveLayout, agreed: AgreedTable, file: TableFile) -> SiteTimes:
    d = layout.design
    found = read_for_fit(file, agreed, REGRESSION, [one.name for one in agreed.columns])  # no column is summed
    times, events = checked_site(found, d.grid, (d.time, d.event))
    groups = categories_in(found.x, d.group_column, agreed.encoding.columns) if d.group_column else None
    return SiteTimes(places_of(d.grid, times), events, groups)


def checked_site(
    found: Dataset, grid: Sequence[float], names: Sequence[str], competing: float | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return times and events of a site's records, [m].  Raises ConfigError as `checked_times`."""
    y = np.asarray(found.y, "f8")
    checked_times(grid, y[:, 0], y[:, 1], names, competing)
    return np.ascontiguousarray(y[:, 0]), y[:, 1] == 1


def _curves(layout: CurveLayout, agreed: AgreedTable, vector: Vector, least: int) -> CurveFit | None:
    numbers = layout.numbers(vector)
    there = numbers["sites",] >= least and numbers["of", ALL]
    return survival_curves.fit_of(layout, numbers, agreed.suppress, least) if there else None


SURVIVAL_RUN = SumsRun(
    KAPLAN_MEIER, SURVIVAL, CURVES, lambda _: (REGRESSION,),
    lambda experiment, agreed: CurveLayout(_survival_design(experiment.model.source, agreed)),
    lambda _: survival_sums.ROUNDS, _survival_times,
    lambda layout, sites, _: SurvivalTask(layout, sites), _curves,
)  # fmt: skip

FITS: Sequence[SumsRun] = (GLM_RUN, TREES_RUN, SURVIVAL_RUN, COX_RUN, *FAMILY_RUNS)


def run_of(experiment: Experiment) -> SumsRun | None:
    """Return the kind of fit in model.source; None for a trained model."""
    word = re.split("[:?]", experiment.model.source, maxsplit=1)[0]
    return next((one for one in FITS if one.name == word), None)


def is_fit(experiment: Experiment) -> bool:
    """Return whether a model is fitted by sums instead of trained."""
    return run_of(experiment) is not None


def planned_fit(experiment: Experiment) -> PlannedFit:
    """Return the planned fit of an experiment.  Raises ConfigError as `planned`, and if model.source names none."""
    run = run_of(experiment) or FITS[0]
    return planned(imputed_run(run) if sets_of(experiment.data.missing) else run, experiment)


def accepted_with_cuts(experiment: FederatedExperiment, cuts: Mapping[str, Sequence[float]]) -> bool:
    """Return whether the sites, whose files are all on this machine, fit the experiment with these columns cut."""
    held = range(experiment.coordinator.clients)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / run_format.AGREED
        more = {name: {"cuts": list(ends)} for name, ends in cuts.items()}
        data = msgspec.structs.replace(experiment.data, columns={**experiment.data.columns, **more}, agreed=str(path))
        experiment = msgspec.structs.replace(experiment, data=data)
        try:
            plan, schema = statistics_plan(experiment)
            plan, task, refused = statistics_task(plan, schema, held)
            vector = None if refused else summed_here(plan, task, held)
            path.write_bytes(encoded(agreed_from(task, vector, schema, data.suppress)))
            return planned_fit(experiment).accepted(held, data.suppress)
        except (ConfigError, TooFewPeersError, TrainingError):
            return False


def stated_fit(experiment: Experiment) -> tuple[FederationPlan, PlanStatement] | None:
    """Return the run of a fit, and its plan, the same at all sites; None for an experiment without a fit.

    Until the statistics are agreed, its plan is theirs.  Raises ConfigError as the fit, before it reads a site's own
    file.
    """
    if not is_fit(experiment):
        return None
    if is_unagreed(experiment):
        return stated_statistics(experiment)
    fit = planned_fit(experiment)
    plan, task, _ = fit.of_sites([])
    return plan, statement_of(plan, task, fit.layout.opened)
