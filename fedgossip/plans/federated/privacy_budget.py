"""Privacy cost of a round, the remaining budget by experiment and log, and a forecast of its guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.experiment import FederatedExperiment
from fedgossip.plans.federated.credentials import Logged
from fedgossip.plans.federated.tree import Tree
from fedgossip.plans.tasks import task_of_dry_run
from fedgossip.privacy.accounting import Mechanism
from fedgossip.privacy.forecast import PrivacyForecast
from fedgossip.protocols.federated.client_round import SentMetrics

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment, PrivacySection
    from fedgossip.privacy.accounting import RenyiAccount
    from fedgossip.privacy.budget import Budget, Spend, TotalBudget


SPENT = "spent"


class AccountedBudget:
    """Charges rounds to one budget, and to the site's limit over all runs."""

    def __init__(
        self, budget: Budget, cost: Callable[[int], Sequence[Spend]], total: TotalBudget | None = None
    ) -> None:
        self._budget, self._cost, self._total = budget, cost, total

    @property
    def epsilon(self) -> float:
        return self._budget.epsilon

    def pay(self, round: int) -> Sequence[Mapping[str, int | float | str]]:
        budget, total, spends = self._budget, self._total, self._cost(round)
        for spend in spends:
            budget, total = budget.spend(spend), total and total.spend(spend)
        self._budget, self._total = budget, total
        return [spend.to_mapping() for spend in spends]


def purse_of(
    privacy: PrivacySection,
    rate: float,
    steps: int,
    log: Iterable[Logged],
    before: Iterable[Mapping[str, object]] = (),
    tests: Callable[[int], bool] = lambda _round: False,
    total: TotalBudget | None = None,
) -> AccountedBudget:
    """Return a participant's budget for rounds that cost `steps` releases at `rate`, less the spends in `log`.

    `before`: spends of other runs on the same records.  `tests`: rounds with noisy scores on held-out examples.
    `total`: the site's limit.  Raises ConfigError for the log of another budget.
    """
    from fedgossip.privacy.budget import Budget, Spend, resumed

    p = privacy

    def cost(round: int) -> list[Spend]:
        training = Spend(p.unit, p.noise, p.delta, p.clip, rate, steps, round)
        if not (p.test_noise and tests(round)):
            return [training]
        return [training, Spend(p.unit, p.test_noise, p.delta, 1.0, round=round)]  # one record changes a count by 1

    clip = None if p.adaptive or p.test_noise else p.clip
    budget = Budget(p.max_epsilon, p.delta, p.unit, clip, before=account_before(before))
    return AccountedBudget(resumed(budget, [facts for kind, facts in log if kind == SPENT]), cost, total)


def account_before(spends: Iterable[Mapping[str, object]]) -> RenyiAccount:
    """Return the account of spends of any runs: their divergences add up, for any noise, clip and delta."""
    from fedgossip.privacy.accounting import account_of
    from fedgossip.privacy.budget import Spend

    return account_of(Spend.from_mapping(one).mechanism for one in spends)


def statistics_cost(experiment: Experiment) -> Mechanism | None:
    """Return the cost of the statistics agreed on before a run; None if no epsilon covers them."""
    from fedgossip.data.agreed.agreed_table import ROUNDS
    from fedgossip.data.columns.table_schema import FEDERATED
    from fedgossip.privacy.accounting import Mechanism

    budget = experiment.budget
    if experiment.data.scale != FEDERATED or budget is None or budget.unit != "record":
        return None
    return Mechanism(budget.noise, 1.0, ROUNDS)


def statistics_spends(experiment: Experiment) -> Sequence[Mapping[str, object]]:
    """Return the entries of these statistics in a site's ledger."""
    from fedgossip.privacy.budget import Spend

    cost, budget = statistics_cost(experiment), experiment.budget
    if cost is None or budget is None:
        return ()
    spends = (Spend(budget.unit, cost.noise, budget.delta, budget.clip, cost.rate, 1, one) for one in range(cost.steps))
    return [one.to_mapping() for one in spends]


def cost_of_training(experiment: Experiment, examples: int) -> tuple[float, int]:
    """Return upper bounds (rate, steps) for a round at a client with `examples`; they reveal only what an
    account may.
    """
    from fedgossip.learning.dp_sgd.record_privacy import private_rate, private_steps
    from fedgossip.privacy.accounting import round_rate, round_steps

    steps = private_steps(experiment.train, examples)
    given = experiment.train.local_steps is not None
    return round_rate(private_rate(experiment.train, examples)), steps if given else round_steps(steps)


def costliest(experiment: Experiment, examples: Sequence[int]) -> int:
    """Return the number of examples of the client with the largest epsilon.

    With local_epochs it is not always the smallest: an epoch of a larger client may have more steps at the same rate.
    """
    from fedgossip.privacy.accounting import Mechanism, epsilon

    p = experiment.budget
    assert p is not None and p.unit == "record", "only records are drawn"
    costs = {cost_of_training(experiment, size): size for size in sorted(set(examples), reverse=True)}
    spends = {(rate, steps): Mechanism(p.noise, rate, steps * experiment.rounds) for rate, steps in costs}
    return costs[max(spends, key=lambda cost: (epsilon([spends[cost]], p.delta), cost))]


class PrivateRun(Protocol):
    """Properties of a federated run that determine its privacy guarantee; see `federation`."""

    @property
    def experiment(self) -> FederatedExperiment: ...
    @property
    def learners(self) -> int: ...
    @property
    def cohort(self) -> int: ...
    @property
    def least(self) -> int: ...
    def hides(self, client: NodeId) -> bool: ...
    @property
    def tree(self) -> Tree: ...
    @property
    def sent_metrics(self) -> SentMetrics: ...


def outlook(
    run: PrivateRun, seen_by: NodeId | None = None, before: Iterable[Mechanism] = (), *, agreed: bool = False
) -> PrivacyForecast:
    """Return the forecast of a run's budget, by its data.  Raises ConfigError without one.

    `seen_by`: a client that assumes its own size for the others.  `before`: spends in other runs; `agreed`: with the
    statistics.
    """
    from fedgossip.privacy.forecast import PrivacyPlan, forecast

    p, e = run.experiment.budget, run.experiment
    if p is None:
        advice = 'Write [coordinator.privacy] with unit = "record" or "client".'
        raise ConfigError("a run without a privacy budget", advice)
    if seen_by is not None and not 0 <= seen_by < run.learners:
        raise ConfigError(f"there is no client {seen_by}", f"Clients are 0 to {run.learners - 1}.")
    task, shares = task_of_dry_run(e, run.learners, None if seen_by is None else [seen_by], unagreed=True)
    known = list(shares.trained_on.values())
    examples = known * (run.learners if len(known) == 1 else 1)
    decides = costliest(e, examples) if p.unit == "record" and examples else None
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
            leaf=None if run.tree.flat else run.tree.smallest_leaf,
            batch_size=e.train.batch_size,
            local_steps=cost_of_training(e, decides)[1] if decides else 1,
            examples=tuple(examples),
            decides=decides,
            sent_metrics=run.sent_metrics,
            secure=run.hides(0),
            tested=e.data.local_test > 0,
            test_noise=p.test_noise,
            test_every=e.eval.every if p.test_noise else 0,
            before=tuple(before),
            statistics=None if agreed else statistics_cost(e),
        )
    )
