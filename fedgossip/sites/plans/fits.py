"""Every kind of fit by sums, a line each: its plan, its task, and its result, by model name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fedgossip.experiment import Experiment
from fedgossip.plans.approvals.plan_statement import PlanStatement, statement_of
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import is_unagreed
from fedgossip.sites.fits.trees.tree_options import is_trees
from fedgossip.sites.plans.cox import cox_plan, cox_task, is_cox
from fedgossip.sites.plans.glm import glm_plan, glm_task, is_glm
from fedgossip.sites.plans.statistics import stated_statistics
from fedgossip.sites.plans.survival import is_survival, survival_plan, survival_task
from fedgossip.sites.plans.trees import trees_plan, trees_task


class FitKind(NamedTuple):
    """One kind: whether a model.source is of it; its plan, layout and columns; that plan with a task of some sites."""

    is_of: Callable[[str], bool]
    plan: Callable[[Experiment], tuple[FederationPlan, Any, Any]]
    task: Callable[..., tuple[FederationPlan, Any, Any]]


FITS = (
    FitKind(is_glm, glm_plan, glm_task),
    FitKind(is_trees, trees_plan, trees_task),
    FitKind(is_survival, survival_plan, survival_task),
    FitKind(is_cox, cox_plan, cox_task),
)


def is_fit(experiment: Experiment) -> bool:
    """Return whether a model is fitted by sums instead of trained."""
    return any(one.is_of(experiment.model.source) for one in FITS)


def stated_fit(experiment: Experiment) -> tuple[FederationPlan, PlanStatement] | None:
    """Return the run of a fit, and its plan as all sites have it; None for an experiment without a fit.

    The fit depends on statistics that the sites agree on first, so until then its plan is that of the statistics alone.
    Raises ConfigError as the fit itself does, before it reads any site's own file.
    """
    kind = next((one for one in FITS if one.is_of(experiment.model.source)), None)
    if kind is None:
        return None
    if is_unagreed(experiment):
        return stated_statistics(experiment)
    plan, layout, agreed = kind.plan(experiment)
    plan, task, _ = kind.task(plan, layout, agreed, [])
    return plan, statement_of(plan, task, layout.opened)
