"""The privacy statement of a release: protected data, adversaries, strength, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedgossip.base.errors import ConfigError
from fedgossip.data.agreed.statistics_task import ROUNDS
from fedgossip.experiment import PrivacySection, file_kept_in, load_experiment
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.privacy.accounting import Mechanism, epsilon
from fedgossip.privacy.forecast import PrivacyPlan
from fedgossip.privacy.guarantee import meaning
from fedgossip.privacy.wording import adversary, hidden, not_hidden
from fedgossip.sites.releases.released import ReleasedPrivacy

if TYPE_CHECKING:
    from fedgossip.data.agreed.agreed_table import AgreedTable
    from fedgossip.plans.approvals.plan_statement import PlanStatement
    from fedgossip.report.page.reading import Summary
    from fedgossip.sites.evaluation.evaluated import Evaluation

NOBODY = "Nobody promises anything of single records: the model, and the sums of all rounds, may tell of them."


def privacy_of(
    run: Path,
    summary: Summary,
    stated: PlanStatement,
    statistics: AgreedTable | None,
    evaluation: Evaluation | None,
) -> ReleasedPrivacy:
    """Return the promises of a run, with its sites' disclosures before and after it: the one source of these numbers.

    Raises ConfigError for a run directory that names no federated run.
    """
    plan = compose.plan(load_experiment(file_kept_in(run)))
    if not isinstance(plan, FederationPlan):
        raise ConfigError(f"{run}: no federated run", "A release is of a run with a [coordinator].")
    seen = _seen(plan)
    budget, spent = plan.experiment.budget, summary.privacy
    if budget is None or spent is None:
        none = (
            ("promise", f"None by a budget.  {NOBODY}"),
            ("the coordinator", seen),
            ("not hidden", _of_all(plan)),
        )
        return ReleasedPrivacy(unit="none", words=none)
    about = PrivacyPlan(
        unit=budget.unit,
        clients=plan.learners,
        rounds=plan.experiment.rounds,
        noise=budget.noise,
        clip=budget.clip,
        delta=budget.delta,
        parameters=1,
        cohort=plan.cohort,
        max_epsilon=budget.max_epsilon,
        honest=plan.least if budget.unit == "client" else None,
        batch_size=plan.experiment.train.batch_size,
        examples=(plan.experiment.train.batch_size,) * plan.learners,
        telling=plan.telling,
        secure=plan.secure,
        tested=plan.experiment.data.local_test > 0,
    )
    worth = budget.max_epsilon if spent.epsilon is None else spent.epsilon
    bound = "at most" if spent.epsilon is None else "spent, by the site that has spent most:"
    words = (
        ("unit", hidden(about)),
        ("from", adversary(about)),
        ("epsilon", f"{bound} {worth:.4g} at delta {budget.delta:g}"),
        ("verdict", meaning(worth, budget.unit)),
        *of_statistics(statistics, budget, counted=bool(stated.terms.before) or spent.epsilon is None),
        *of_figures(evaluation, budget, worth),
        ("the coordinator", seen),
        ("not hidden", f"{not_hidden(about)}  {_of_all(plan)}"),
    )
    return ReleasedPrivacy(unit=budget.unit, epsilon=worth, delta=budget.delta, words=words)


def of_statistics(statistics: AgreedTable | None, budget: PrivacySection, *, counted: bool) -> list[tuple[str, str]]:
    """Return (what, words) of the statistics that the sites agreed on; `counted`: in the epsilon of the run."""
    if statistics is None:
        return []
    told = "What the sites have agreed on before the training"
    if not statistics.noise:
        return [("statistics", f"{told} {EXACT}")]
    cost = _alone(statistics.noise, ROUNDS, budget)
    by = "counts" if counted else "counts where the ledger of a site's key held them"
    return [("statistics", f"{told} {cost}, which the epsilon above {by}.")]


def of_figures(evaluation: Evaluation | None, budget: PrivacySection, worth: float) -> list[tuple[str, str]]:
    """Return (what, words) of the figures by which the sites judged a model whose run is worth this epsilon."""
    if evaluation is None:
        return []
    told = "What the sites have told to judge the model"
    if not evaluation.layout.noise:
        return [("figures", f"{told} {EXACT}")]
    both = worth + epsilon([Mechanism(evaluation.layout.noise, 1.0, 1)], budget.delta)  # the simple sum of two promises
    cost = _alone(evaluation.layout.noise, 1, budget)
    total = f"with it that is at most {both:.4g} at delta {2 * budget.delta:g}"
    return [("figures", f"{told} {cost}, which came after the epsilon above; {total}.")]


EXACT = "is exact, and outside of the budget."


def _alone(noise: float, releases: int, budget: PrivacySection) -> str:
    alone = epsilon([Mechanism(noise, 1.0, releases)], budget.delta)
    said = "one release" if releases == 1 else f"{releases} releases"
    return f"has noise of {noise:g} times what one record can add: {said}, epsilon {alone:.3g} alone"


def _seen(plan: FederationPlan) -> str:
    if not plan.secure:
        return "It saw the update of every single site: there was no secure sum."
    return f"It saw sums alone, each over at least {plan.least} of {plan.invited} sites."


def _of_all(plan: FederationPlan) -> str:
    """Return the disclosures that no budget and no sum hides."""
    agreed = "  Statistics that the sites have agreed on." if plan.experiment.data.scale == "federated" else ""
    return f"What is true of all records together, which is what was learned; which sites took part.{agreed}"
