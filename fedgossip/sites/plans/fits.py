"""Every kind of fit by sums, a line each, by the first word of model.source."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedgossip.experiment import Experiment
from fedgossip.plans.approvals.plan_statement import PlanStatement, statement_of
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import is_unagreed
from fedgossip.sites.plans.cox import COX_RUN
from fedgossip.sites.plans.families import FAMILY_RUNS
from fedgossip.sites.plans.glm import GLM_RUN
from fedgossip.sites.plans.statistics import stated_statistics
from fedgossip.sites.plans.sums import PlannedFit, SumsRun, planned
from fedgossip.sites.plans.survival import SURVIVAL_RUN
from fedgossip.sites.plans.trees import TREES_RUN

FITS: Sequence[SumsRun] = (GLM_RUN, TREES_RUN, SURVIVAL_RUN, COX_RUN, *FAMILY_RUNS)


def run_of(experiment: Experiment) -> SumsRun | None:
    """Return the kind of fit that model.source names; None for a model that is trained."""
    word = re.split("[:?]", experiment.model.source, maxsplit=1)[0]
    return next((one for one in FITS if one.name == word), None)


def is_fit(experiment: Experiment) -> bool:
    """Return whether a model is fitted by sums instead of trained."""
    return run_of(experiment) is not None


def planned_fit(experiment: Experiment) -> PlannedFit:
    """Return the fit of an experiment, planned.  Raises ConfigError as `planned`, and where model.source names none."""
    run = run_of(experiment)
    return planned(run if run is not None else FITS[0], experiment)


def stated_fit(experiment: Experiment) -> tuple[FederationPlan, PlanStatement] | None:
    """Return the run of a fit, and its plan as all sites have it; None for an experiment without a fit.

    The fit depends on statistics that the sites agree on first, so until then its plan is that of the statistics alone.
    Raises ConfigError as the fit itself does, before it reads any site's own file.
    """
    if not is_fit(experiment):
        return None
    if is_unagreed(experiment):
        return stated_statistics(experiment)
    fit = planned_fit(experiment)
    plan, task, _ = fit.of_sites([])
    return plan, statement_of(plan, task, fit.layout.opened)
