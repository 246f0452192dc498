"""The cost of a round in privacy, and the budget that is left, by the experiment and by the log so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedgossip.plans.federated.credentials import Logged

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment, PrivacySection
    from fedgossip.privacy.accounting import Mechanism, RenyiAccount
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
    """Return the budget of one participant whose rounds cost `steps` releases at `rate`, less the spends in `log`.

    `before`: spends of other runs on the same records.  `tests`: the rounds in which it reports noisy scores on its
    held-out examples.  `total`: the site's limit over all runs.  Raises ConfigError for a log of another budget.
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
    """Return the account of spends of any runs: their divergences add up, whatever noise, clip and delta they had."""
    from fedgossip.privacy.accounting import account_of
    from fedgossip.privacy.budget import Spend

    return account_of(Spend.from_mapping(one).mechanism for one in spends)


def statistics_cost(experiment: Experiment) -> Mechanism | None:
    """Return the cost of the statistics agreed on before a run; None where no epsilon covers them."""
    from fedgossip.data.agreed.statistics_task import ROUNDS
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
    """Return (rate, steps) that are accounted of a round at a client with so many examples, each hidden by itself.

    Both reveal only what an account may about the number, and are upper bounds.
    """
    from fedgossip.learning.dp_sgd.record_privacy import private_rate, private_steps
    from fedgossip.privacy.accounting import round_rate, round_steps

    steps = private_steps(experiment.train, examples)
    given = experiment.train.local_steps is not None
    return round_rate(private_rate(experiment.train, examples)), steps if given else round_steps(steps)
