"""The budget: what does not fit is refused before it happens, and a restart forgets nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from accounts import next_rate

from fedgossip.base.errors import BudgetError, ConfigError
from fedgossip.cli.init import written
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.federated.privacy_budget import cost_of_training, outlook, purse_of
from fedgossip.privacy import accounting
from fedgossip.privacy.accounting import Mechanism, epsilon, steps_within
from fedgossip.privacy.budget import Budget, Spend, resumed

ROUND = Spend("record", noise=1.1, delta=1e-5, clip=1.0, rate=0.02, steps=10)
EMPTY = Budget(2.0, 1e-5, "record", clip=1.0)


def until_refused(budget: Budget) -> tuple[Budget, list[str]]:
    """Spend rounds until one is refused; return the budget and the journal, each line written before its release."""
    journal: list[str] = []
    while budget.allows(spend := replace(ROUND, round=len(journal))):
        budget = budget.spend(spend)
        journal.append(json.dumps(spend.to_mapping()))
    return budget, journal


def test_as_many_rounds_are_allowed_as_the_account_has_room_for():
    spent, journal = until_refused(EMPTY)
    assert len(journal) == steps_within(2.0, 1e-5, noise=1.1, rate=0.02) // 10 > 5
    assert spent.epsilon == pytest.approx(epsilon([Mechanism(1.1, 0.02, 10 * len(journal))], 1e-5))
    assert spent.epsilon <= 2.0 < spent.compute_total(ROUND)


def test_what_does_not_fit_is_refused_and_changes_nothing():
    spent, _ = until_refused(EMPTY)
    before = (spent.epsilon, spent.spends)
    with pytest.raises(BudgetError, match="at most 2 is allowed") as error:
        spent.spend(ROUND)
    assert error.value.exit_code == 6
    assert (spent.epsilon, spent.spends) == before
    assert spent.allows(replace(ROUND, noise=50.0))


def test_a_budget_from_its_journal_is_the_one_that_wrote_it():
    spent, journal = until_refused(EMPTY)
    again = resumed(EMPTY, map(json.loads, journal))
    assert again == spent
    assert again.epsilon == pytest.approx(spent.epsilon, rel=1e-12)
    assert not again.allows(ROUND)


def test_a_crash_before_or_after_the_release_never_counts_less_than_was_released():
    """The line is written first: with n releases made, the journal holds n lines, or n + 1."""
    for lines in (3, 4):
        journal = [replace(ROUND, round=k).to_mapping() for k in range(lines)]
        assert resumed(EMPTY, journal).epsilon >= epsilon([Mechanism(1.1, 0.02, 30)], 1e-5)


def test_a_round_that_is_drawn_again_with_other_noise_is_spent_twice():
    twice = resumed(EMPTY, [ROUND.to_mapping(), ROUND.to_mapping()])
    assert resumed(EMPTY.spend(ROUND), [ROUND.to_mapping()]) == twice
    assert twice.epsilon == EMPTY.spend(replace(ROUND, steps=20)).epsilon


def test_a_journal_above_the_budget_is_taken_as_it_is_and_allows_nothing():
    small = replace(EMPTY, max_epsilon=0.1)
    over = resumed(small, [ROUND.to_mapping()] * 9)
    assert over.epsilon > 0.1
    assert not over.allows(ROUND)


def test_spends_of_different_noise_add_up():
    budget = Budget(50.0, 1e-5, "client").spend(Spend("client", 2.0, 1e-5, 1.0)).spend(Spend("client", 3.0, 1e-5, 0.7))
    assert budget.epsilon == pytest.approx(epsilon([Mechanism(2.0), Mechanism(3.0)], 1e-5))


@pytest.mark.parametrize("change", [{"unit": "client"}, {"delta": 1e-6}, {"clip": 2.0}])
def test_a_spend_of_another_promise_is_refused(change):
    other = replace(ROUND, **change)
    for refused in (EMPTY.compute_total, EMPTY.allows, EMPTY.spend, lambda spend: resumed(EMPTY, [spend.to_mapping()])):
        with pytest.raises(ConfigError, match=f"with {next(iter(change))}"):
            refused(other)


def test_the_clip_of_a_budget_may_follow_the_updates():
    budget = Budget(2.0, 1e-5, "record")
    assert budget.spend(ROUND).spend(replace(ROUND, clip=0.3)).epsilon == EMPTY.spend(ROUND).spend(ROUND).epsilon


def test_a_line_comes_back_as_it_was():
    line = json.loads(json.dumps(ROUND.to_mapping()))
    assert set(map(type, line.values())) <= {str, int, float}
    assert Spend.from_mapping(line) == ROUND


@pytest.mark.parametrize(
    "change",
    [
        {"noise": None},
        {"noise": "1.1"},
        {"noise": -1.0},
        {"noise": float("nan")},
        {"noise": float("inf")},
        {"steps": 0},
        {"steps": 1.5},
        {"steps": True},
        {"rate": 2.0},
        {"clip": 0.0},
        {"delta": 1.0},
        {"unit": "person"},
        {"colour": 1},
    ],
)
def test_a_line_that_cannot_be_a_spend_is_refused(change):
    with pytest.raises(ConfigError):
        Spend.from_mapping(ROUND.to_mapping() | change)


def test_a_line_without_its_noise_is_refused():
    with pytest.raises(ConfigError, match="noise"):
        Spend.from_mapping({name: value for name, value in ROUND.to_mapping().items() if name != "noise"})


@pytest.mark.parametrize("wrong", [(0.0, 1e-5, "record"), (1.0, 0.0, "record"), (1.0, 1e-5, "person")])
def test_a_budget_that_promises_nothing_sensible_is_refused(wrong):
    with pytest.raises(ConfigError):
        Budget(*wrong)


def test_the_price_of_a_round_does_not_grow_with_the_rounds_before(monkeypatch):
    """A round adds one array to one array: nothing of the thousands of spends before is looked at again."""
    budget = resumed(replace(EMPTY, max_epsilon=1e6), [ROUND.to_mapping()] * 3000)
    looked: list[Mechanism] = []
    plus = accounting.RenyiAccount.plus
    monkeypatch.setattr(accounting.RenyiAccount, "plus", lambda self, one: looked.append(one) or plus(self, one))
    for _ in range(10):
        budget = budget.spend(ROUND)
    assert len(looked) == 20  # once to see whether it fits, once to take it
    assert len(budget.spends) == 3010


# --- what an account says of a site -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [{"local_steps": 3}, {"local_epochs": 2}])
def test_what_a_site_signs_of_its_spending_is_the_same_for_many_numbers_of_records(steps: dict[str, int]) -> None:
    """Of 16 to 1 000 records and batches of 16, no line is of fewer numbers than a tenth of them, and none is lower
    than what is drawn: rate 16 / n, ceil(n / 16) steps for each pass."""
    content = {"coordinator": {"clients": 5, "privacy": {"unit": "record", "max_epsilon": 1e6}}}
    whole = load_experiment({**content, "train": {"batch_size": 16, "device": "cpu", **steps}})
    signed: dict[str, list[int]] = {}
    for n in range(16, 1001):
        rate, counted = cost_of_training(whole, n)
        assert rate == next_rate(16 / n)
        assert counted == 3 if "local_steps" in steps else 2 * -(-n // 16) <= counted <= 2.5 * -(-n // 16)
        (line,) = purse_of(whole.budget, rate, counted, ()).pay(0)
        signed.setdefault(json.dumps(line), []).append(n)
    whole_lines = [numbers for numbers in signed.values() if 1000 not in numbers]
    assert all(len(numbers) >= max(numbers) // 16 for numbers in whole_lines if "local_steps" in steps)
    assert len(signed) <= 2 * 4 * 6, "four of each to a doubling, and six doublings"


def test_the_epsilon_of_a_plan_is_that_of_the_client_that_spends_most(tmp_path: Path):
    """Batches of 16: 32 examples are 2 steps an epoch at a half each, 36 are 3, each accounted at a half too."""
    for name, content in written("hospitals"):
        (tmp_path / name).write_bytes(content)
    overrides = ['coordinator.privacy={unit="record",noise=2.5,max_epsilon=8.0}']
    plan = compose.plan(load_experiment(tmp_path / "experiment.toml", overrides))
    each = [outlook(plan, client) for client in range(5)]
    found = outlook(plan)
    assert found.epsilon == max(one.epsilon for one in each)
    assert found.rounds_within == min(one.rounds_within for one in each) == 8 and not found.fits
    assert max(range(5), key=lambda client: each[client].epsilon) == 1 and min(found.plan.examples) == 32
