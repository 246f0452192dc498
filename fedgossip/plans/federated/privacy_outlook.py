"""The forecast of what a run's budget of privacy will be worth, before it is run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.experiment import FederatedExperiment
from fedgossip.plans.federated.privacy_budget import cost_of_training, statistics_cost
from fedgossip.plans.tasks import task_of_dry_run
from fedgossip.privacy.accounting import Mechanism
from fedgossip.privacy.forecast import PrivacyForecast
from fedgossip.protocols.federated.client_metrics import Telling


class PrivateRun(Protocol):
    """The properties of a federated run that determine what its budget is worth; see `federation`."""

    @property
    def experiment(self) -> FederatedExperiment: ...
    @property
    def learners(self) -> int: ...
    @property
    def cohort(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def secure(self) -> bool: ...
    @property
    def telling(self) -> Telling: ...


def outlook(
    run: PrivateRun, seen_by: NodeId | None = None, before: Iterable[Mechanism] = (), *, agreed: bool = False
) -> PrivacyForecast:
    """Return the forecast of a run's budget.  Reads the data.  Raises ConfigError for a run without one.

    `seen_by`: a client that has a file of its own, and takes the others to have as many examples: no other is read.
    `before`: what was spent of the same budget in other runs; `agreed`: with the statistics that this one begins from.
    """
    from fedgossip.privacy.forecast import PrivacyPlan, forecast

    p, e = run.experiment.budget, run.experiment
    if p is None:
        advice = 'Write [coordinator.privacy] with unit = "record" or "client".'
        raise ConfigError("a run without a budget of privacy", advice)
    if seen_by is not None and not 0 <= seen_by < run.learners:
        raise ConfigError(f"there is no client {seen_by}", f"Clients are 0 to {run.learners - 1}.")
    task, shares = task_of_dry_run(e, run.learners, None if seen_by is None else [seen_by], unagreed=True)
    known = list(shares.trained_on.values())
    examples = known * (run.learners if len(known) == 1 else 1)
    fewest = min(examples, default=1)
    return forecast(
        PrivacyPlan(
            unit=p.unit,
            clients=run.learners,
            rounds=e.rounds,
            noise=p.noise,
            clip=p.clip,
            delta=p.delta,
            parameters=task.length,
            cohort=run.cohort,
            max_epsilon=p.max_epsilon,
            honest=run.least if p.unit == "client" else None,
            batch_size=e.train.batch_size,
            local_steps=cost_of_training(e, fewest)[1] if p.unit == "record" else 1,
            examples=tuple(examples),
            telling=run.telling,
            secure=run.secure,
            tested=e.data.local_test > 0,
            test_noise=p.test_noise,
            test_every=e.eval.every if p.test_noise else 0,
            before=tuple(before),
            statistics=None if agreed else statistics_cost(e),
        )
    )
