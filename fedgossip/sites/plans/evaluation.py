"""Sites evaluate one model together: a federated run of exact secure sums, with noise under a budget.

Each evaluates on the records held out from its training (data.local_test), else on all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedgossip.base.errors import ConfigError, TooFewPeersError, TrainingError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.data.agreed.sums_task import Draw, draw_system_entropy
from fedgossip.data.objectives import EVALUATION
from fedgossip.data.partitions import PLACE
from fedgossip.data.record_groups import file_of, group_rows, groups_of
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.experiment.sections import NAMED, RANK
from fedgossip.plans.approvals.plan_statement import PlanStatement, statement_of
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import SharedExamples, examples_of
from fedgossip.privacy.membership import LEAST, MembershipTest, membership_test
from fedgossip.sites.evaluation.evaluated import Evaluation, evaluation_of, noisy_evaluation_of
from fedgossip.sites.evaluation.evaluation_sums import (
    ROUNDS,
    EvaluationLayout,
    EvaluationTask,
    SiteAnswers,
    losses_of,
    right_of,
)
from fedgossip.sites.plans.sums import asking, check_exact, check_secure, noise_of, plan_of_sums, sites_that_fit

if TYPE_CHECKING:
    from fedgossip.data.dataset import Dataset
    from fedgossip.learning.models.loaded_model import LoadedModel
    from fedgossip.learning.models.model_files import ModelFacts


def evaluation_plan(experiment: Experiment, facts: ModelFacts) -> tuple[FederationPlan, EvaluationLayout]:
    """Return the plan with which an experiment's sites evaluate a model of these facts, and its numbers.

    Raises ConfigError without secure sums, with a budget that hides clients, and for unknown groups.
    """
    if not isinstance(experiment, FederatedExperiment):
        text = "no [coordinator]: sites judge a model by sums over clients"
        raise ConfigError(text, "Judge it on a file: fedgossip evaluate MODEL FILE.csv.")
    c, d = experiment.coordinator, experiment.data
    noise = noise_of(experiment)
    check_secure(experiment, "an evaluation is")
    if c.privacy.unit != "record" or not noise:
        check_exact(experiment, "an evaluation is", "the sites' figures of a model are")
    if noise and d.site_scores == NAMED:
        text = 'data.site_scores = "named": a site\'s own score is of few records, and is not published under a budget'
        raise ConfigError(text, f'Set data.site_scores = "{RANK}".')
    layout = EvaluationLayout(
        model=facts.weights,
        kind=facts.kind,
        classes=facts.classes if facts.kind == "classification" else (),
        labels=facts.labels or tuple(map(str, range(facts.outputs))),
        group_column=d.groups,
        groups=_groups(experiment),
        kept=d.local_test > 0,
        named=c.clients if d.site_scores == NAMED else 0,
        noise=noise,
    )
    return plan_of_sums(experiment, EVALUATION, 1 if noise else ROUNDS, layout.exact), layout


def stated_evaluation(experiment: Experiment, facts: ModelFacts) -> tuple[FederationPlan, PlanStatement]:
    """Return the run in which the sites evaluate a model of these facts, and its plan, valid only for this model."""
    plan, layout = evaluation_plan(experiment, facts)
    plan, task, _ = evaluation_task(plan, layout, experiment, None, [])
    return plan, statement_of(plan, task, opened_by(layout))


def opened_by(layout: EvaluationLayout) -> tuple[str, ...]:
    """Return the sums over all sites that the coordinator receives, in words."""
    of = "that each site has kept from its training" if layout.kept else "of each site, also those trained on"
    lines = [f"how well the model with weights {layout.model[:16]} answers on the records {of}: "
            f"the number of records, {layout.score}, and a histogram of its answers for each outcome"]  # fmt: skip
    if layout.groups:
        lines.append(f"the same of each of {len(layout.groups)} groups of {layout.group_column}")
    if not layout.noise:
        lines.append(
            "the number of sites with each score, and of sites at which the model reveals its training records"
        )
    if layout.named:
        lines.append("the score of each site, by its id")
    return tuple(lines)


def _groups(experiment: FederatedExperiment) -> tuple[str, ...]:
    d = experiment.data
    if not d.groups:
        return ()
    if PLACE not in d.source:
        text = f"data.groups = {d.groups!r}: groups are a column of the sites' own CSV files"
        raise ConfigError(text, f"Name a file of each site, data.source = csv:site-{PLACE}.csv?label=COLUMN.")
    return groups_of(file_of(str(d.test)), d.groups, d.columns)


def evaluation_task(
    plan: FederationPlan,
    layout: EvaluationLayout,
    experiment: Experiment,
    model: LoadedModel | None,
    held: Sequence[NodeId],
    draw: Draw = draw_system_entropy,
) -> tuple[FederationPlan, EvaluationTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with the abstaining sites, the task of the `held` sites, and why some do not fit; `model`: None
    without held sites.
    """
    own = PLACE in experiment.data.source
    everybody = None if own else examples_of(experiment, range(plan.learners), plan.learners)

    def read(node: NodeId) -> SiteAnswers:
        assert model is not None, "a site asks the model"
        examples = everybody or examples_of(experiment, [node], plan.learners)
        return _answers(layout, experiment, model, node, examples)

    plan, sites, refused = sites_that_fit(plan, held, read)
    return asking(plan, EvaluationTask(layout, sites, experiment.data.suppress, draw), refused)


def _answers(
    layout: EvaluationLayout, experiment: Experiment, model: LoadedModel, node: NodeId, examples: SharedExamples
) -> SiteAnswers:
    """Return the model's outputs for a site's records.  Raises ConfigError for too few."""
    judged, trained = parted(experiment, node, examples)
    least = experiment.data.suppress
    if len(judged) < least:
        text = f"fewer than {least} records to judge the model on"
        raise ConfigError(text, "A site with so few would be seen in the sums; it takes no part.")
    answers, y = asked(model, examples.train.subset(judged))
    groups = None
    if layout.groups:
        file = file_of(experiment.data.source.replace(PLACE, str(node)))
        groups = group_rows(file, layout.group_column, layout.groups, experiment.data.columns)[judged]
    if not len(trained):
        return SiteAnswers(answers, y, groups)
    known, known_y = asked(model, examples.train.subset(trained))
    scores = losses_of(layout.kind, known, known_y), right_of(layout.kind, known, known_y)
    flagged = None
    if min(len(judged), len(trained)) >= LEAST:
        flagged = compared(layout.kind, (known, known_y), (answers, y)).flagged
    return SiteAnswers(answers, y, groups, scores, flagged)


Asked = tuple[np.ndarray, np.ndarray]


def compared(kind: str, trained: Asked, others: Asked) -> MembershipTest:
    """Return the membership test of (outputs, labels) of training records and of others.  Raises ConfigError."""
    losses = [losses_of(kind, *side) for side in (trained, others)]
    right = [right_of(kind, *side) for side in (trained, others)]
    both = (right[0], right[1]) if right[0] is not None and right[1] is not None else None
    return membership_test(losses[0], losses[1], both)


def asked(model: LoadedModel, examples: Dataset) -> Asked:
    """Return a model's outputs for scaled examples, and their labels in their original units.

    Raises TrainingError for outputs that are no finite numbers.
    """
    y = examples.in_units(examples.y) if examples.label_mean else examples.y
    answers = model.predict_scaled(examples)
    if wrong := int((~np.isfinite(answers)).reshape(len(answers), -1).any(axis=1).sum()):
        text = f"the model answers {wrong} of {len(answers)} records with numbers that are not finite: no evaluation"
        raise TrainingError(text, "Look at its weights: a training that diverged leaves such a model.")
    return answers, y


def parted(experiment: Experiment, node: NodeId, examples: SharedExamples) -> tuple[np.ndarray, np.ndarray]:
    """Return the evaluation records of a site, and its training records: none if all are evaluated."""
    share, mine = experiment.data.local_test, examples.shares[node]
    if not share:
        return mine, mine[:0]
    from fedgossip.data.partitions import hold_out

    trained, kept = hold_out({node: mine}, share, experiment.seed)
    return kept[node], trained[node]


def evaluated_from(task: EvaluationTask, vector: Vector | None, suppress: int, least: int) -> Evaluation:
    """Return the evaluation of the sums.  Raises TooFewPeersError after an incomplete round."""
    numbers = task.layout.numbers(vector) if vector is not None else {}
    if not numbers.get(("sites",)) or not numbers.get(("records",), 1):
        text = "too few sites took part in the sums"
        raise TooFewPeersError(text, "Evaluate again when more are present: coordinator.min_clients are needed.")
    found = noisy_evaluation_of if task.layout.noise else evaluation_of
    return found(task.layout, numbers, suppress, least)
