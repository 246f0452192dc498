"""The spending of a privacy budget by a machine: a line in its log first, then the release that it pays for.

In this order a crash can only count a release that was never made.  An exhausted budget ends the machine's part:
nothing unpaid is released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fedgossip.base.errors import BudgetError
from fedgossip.core.machine import Log, Report

EXHAUSTED = "BUDGET"
"""The reason of a refusal."""


class RoundBudget(Protocol):
    """The budget of one participant, less the spending of earlier lives."""

    @property
    def epsilon(self) -> float:
        """The spent epsilon."""
        ...

    def pay(self, round: int) -> Sequence[Mapping[str, int | float | str]]:
        """Spend the cost of one round, and return its lines of the log.  Raises BudgetError; nothing is spent then."""
        ...


def spent(facts: Mapping[str, int | float | str]) -> Log:
    return Log("spent", facts)


def budget_reached(error: BudgetError, round: int) -> Report:
    """Return the report of a budget that does not allow the next round."""
    return Report("budget", {"text": str(error), "advice": error.advice}, round)
