"""Runs of exact sums over all sites of an experiment: what statistics, evaluations and fits have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from fedgossip.errors import ConfigError
from fedgossip.experiment import FederatedExperiment
from fedgossip.experiment.sections import EvalSection, TaskSection, TrackSection
from fedgossip.learning.column_sums import SITES
from fedgossip.learning.settings import TrainSettings
from fedgossip.machine import NodeId
from fedgossip.plans import compose
from fedgossip.plans.federation import FederationPlan
from fedgossip.secure.exact_sums import ExactSums

Site = TypeVar("Site")


def check_exact(experiment: FederatedExperiment, are: str, told: str) -> None:
    """Raise ConfigError where sums are not secure, and beside a budget; `are`: "a fit is", `told`: what is exact."""
    c = experiment.coordinator
    if not c.secure.on:
        raise ConfigError(f"coordinator.secure.on = false: {are} of secure sums", "Leave it out.")
    if c.privacy.unit != "none":
        text = f"coordinator.privacy.unit = {c.privacy.unit}: {told} exact, beside a budget"
        raise ConfigError(text, "If the sites allow that:  --set coordinator.privacy.unit=none")


def plan_of_sums(
    experiment: FederatedExperiment, kind: str, rounds: int, exact: ExactSums, **others: Any
) -> FederationPlan:
    """Return the plan of the run that makes the sums of an experiment; `others`: keys of it that are replaced too.

    All sites are asked in every round, nothing is trained or measured, and no sum is over fewer than SITES.
    """
    c = experiment.coordinator
    alone = msgspec.structs.replace(
        experiment,
        rounds=rounds,
        task=TaskSection(kind=kind),
        train=TrainSettings(device="cpu"),
        eval=EvalSection(every=rounds),
        track=TrackSection(),
        data=msgspec.structs.replace(experiment.data, local_test=0.0),
        coordinator=msgspec.structs.replace(
            c, algorithm="fedavg", options={}, participation=1.0, cohort=None, over_selection=1.0, sampling="uniform",
            min_clients=max(SITES, c.min_clients or min(5, c.clients)),
            privacy=msgspec.structs.replace(c.privacy, test_noise=0.0),
        ),
        **others,
    )  # fmt: skip
    plan = compose.plan(alone)
    assert isinstance(plan, FederationPlan), "it has a [coordinator]"
    return replace(plan, exact=exact)


def sites_that_fit(
    plan: FederationPlan, held: Sequence[NodeId], read: Callable[[NodeId], Site]
) -> tuple[FederationPlan, Mapping[NodeId, Site], Mapping[NodeId, ConfigError]]:
    """Return the plan with those that abstain, what is `read` of each site that is `held`, and why some do not fit."""
    sites, refused = dict[NodeId, Site](), dict[NodeId, ConfigError]()
    for node in held:
        try:
            sites[node] = read(node)
        except ConfigError as error:
            refused[node] = error
    return replace(plan, abstaining=frozenset(refused)), sites, refused
