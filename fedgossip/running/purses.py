"""What a round costs of a budget of privacy, and what is left: by the experiment, and by what was logged before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedgossip.errors import ConfigError
from fedgossip.machine import NodeId
from fedgossip.running.credentials import Logged

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment, Privacy
    from fedgossip.privacy.accounting import Account, Mechanism
    from fedgossip.privacy.budget import Budget, Spend
    from fedgossip.privacy.forecast import Forecast
    from fedgossip.running.plan import Plan

SPENT = "spent"


class BudgetPurse:
    """Pays for rounds out of one budget."""

    def __init__(self, budget: Budget, cost: Callable[[int], Sequence[Spend]]) -> None:
        self._budget, self._cost = budget, cost

    @property
    def epsilon(self) -> float:
        return self._budget.epsilon

    def pay(self, round: int) -> Sequence[Mapping[str, int | float | str]]:
        budget, spends = self._budget, self._cost(round)
        for spend in spends:
            budget = budget.spend(spend)
        self._budget = budget
        return [spend.to_mapping() for spend in spends]


def purse_of(
    privacy: Privacy,
    rate: float,
    steps: int,
    log: Iterable[Logged],
    before: Iterable[Mapping[str, object]] = (),
    tests: Callable[[int], bool] = lambda _round: False,
) -> BudgetPurse:
    """Return the purse of one participant whose rounds cost `steps` releases at `rate`, less what `log` says is spent.

    `before`: what other runs have spent of the same.  `tests`: in which rounds it tells how many of the examples that
    it keeps are right, where that has noise.  Raises ConfigError for a log of another budget.
    """
    from fedgossip.privacy.budget import Budget, Spend, resumed

    p = privacy

    def cost(round: int) -> list[Spend]:
        training = Spend(p.unit, p.noise, p.delta, p.clip, rate, steps, round)
        if not (p.test_noise and tests(round)):
            return [training]
        return [training, Spend(p.unit, p.test_noise, p.delta, 1.0, round=round)]  # a record changes a count by 1

    clip = None if p.adaptive or p.test_noise else p.clip
    budget = Budget(p.max_epsilon, p.delta, p.unit, clip, before=account_before(before))
    return BudgetPurse(resumed(budget, [facts for kind, facts in log if kind == SPENT]), cost)


def account_before(spends: Iterable[Mapping[str, object]]) -> Account:
    """Return the account of spends of any runs: their divergences add up, whatever noise, clip and delta they had."""
    from fedgossip.privacy.accounting import account_of
    from fedgossip.privacy.budget import Spend

    return account_of(Spend.from_mapping(one).mechanism for one in spends)


def cost_of_training(experiment: Experiment, examples: int) -> tuple[float, int]:
    """Return (rate, steps) of a round at a client with so many examples, each hidden by itself."""
    from fedgossip.learning.private import private_rate, private_steps

    return private_rate(experiment.train, examples), private_steps(experiment.train, examples)


def outlook(plan: Plan, seen_by: NodeId | None = None, before: Iterable[Mechanism] = ()) -> Forecast:
    """Return what the budget of a run will be worth.  Reads the data.  Raises ConfigError for a run without one.

    `seen_by`: a client that has a file of its own, and takes the others to have as many examples: no other is read.
    `before`: what was spent of the same budget in other runs.
    """
    from fedgossip.privacy.forecast import Plan as Promise
    from fedgossip.privacy.forecast import forecast
    from fedgossip.running.federation import FederationPlan
    from fedgossip.running.tasks import task_of

    if not isinstance(plan, FederationPlan) or plan.unit == "none":
        advice = 'Write [coordinator.privacy] with unit = "record" or "client".'
        raise ConfigError("a run without a budget of privacy", advice)
    p, e = plan.section.privacy, plan.experiment
    if seen_by is not None and not 0 <= seen_by < plan.learners:
        raise ConfigError(f"there is no client {seen_by}", f"Clients are 0 to {plan.learners - 1}.")
    task, shares = task_of(e, plan.learners, None if seen_by is None else [seen_by])
    known = list(shares.trained_on.values())
    examples = known * (plan.learners if len(known) == 1 else 1)
    fewest = min(examples, default=1)
    return forecast(
        Promise(
            unit=p.unit,
            clients=plan.learners,
            rounds=e.rounds,
            noise=p.noise,
            clip=p.clip,
            delta=p.delta,
            parameters=task.length,
            cohort=plan.cohort,
            max_epsilon=p.max_epsilon,
            honest=plan.least if p.unit == "client" else None,
            batch_size=e.train.batch_size,
            local_steps=cost_of_training(e, fewest)[1] if p.unit == "record" else 1,
            examples=tuple(examples),
            telling=plan.telling,
            secure=plan.secure,
            tested=e.data.local_test > 0,
            test_noise=p.test_noise,
            test_every=e.eval.every if p.test_noise else 0,
            before=tuple(before),
        )
    )
