"""The spending of a budget of privacy by a machine: a line in its log first, then the release that it pays for.

In this order a crash can only count a release that was never made.  A budget that is used up ends the machine's part:
nothing is released that was not paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fedgossip.base.errors import BudgetError
from fedgossip.core.machine import Log, Report

EXHAUSTED = "BUDGET"
"""The reason of a refusal."""


class RoundBudget(Protocol):
    """Of one participant; what earlier lives have spent is gone."""

    @property
    def epsilon(self) -> float:
        """The epsilon that is spent."""
        ...

    def pay(self, round: int) -> Sequence[Mapping[str, int | float | str]]:
        """Spend the cost of one round, and return the lines that say so.  Raises BudgetError; nothing is spent then."""
        ...


def spent(facts: Mapping[str, int | float | str]) -> Log:
    return Log("spent", facts)


def budget_reached(error: BudgetError, round: int) -> Report:
    """Return the report of a budget that does not allow the next round."""
    return Report("budget", {"text": str(error), "advice": error.advice}, round)
