"""A privacy budget: spent amount, check of the next release, and restoration from records after a restart.

    budget = resumed(budget, recorded)          # the journal; at the start of every incarnation
    budget = budget.spend(spend)                # BudgetError: nothing is released, the run ends
    write spend.to_mapping() to disk            # first
    release                                     # then

In this order a crash can only count a release that never happened.  A repeated release with new noise is counted twice.
One budget has one promise (unit and delta): spends for another are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace

import msgspec

from fedgossip.base.errors import BudgetError, ConfigError, nearest
from fedgossip.privacy.accounting import Mechanism, RenyiAccount

UNITS = ("record", "client")
"""Units of privacy: one example of one client, or all data of a client."""


@dataclass(frozen=True)
class Spend:
    """One recorded release: `steps` subsampled Gaussians.  Raises ConfigError for invalid numbers."""

    unit: str
    """"record" or "client"."""
    noise: float
    """z, above 0: the noise's standard deviation divided by the clip."""
    delta: float
    """The delta of the budget that pays for it."""
    clip: float
    """Maximum norm of one unit's contribution; above 0."""
    rate: float = 1.0
    """Share of the units that each step draws in secret; 1 if the participants are known."""
    steps: int = 1
    round: int = 0
    """The round of the release, for readers."""

    def __post_init__(self) -> None:
        _unit(self.unit)
        if not self.noise > 0 or not 0 < self.clip < math.inf or not 0 < self.delta < 1 or self.steps < 1:
            raise ConfigError(
                f"a spend with noise {self.noise:g}, clip {self.clip:g}, delta {self.delta:g}, {self.steps} steps",
                "Noise and clip are above 0, delta between 0 and 1, steps at least 1.",
            )
        _ = self.mechanism

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(self.noise, self.rate, self.steps)

    def to_mapping(self) -> dict[str, str | float | int]:
        """Return it as texts and numbers, for `from_mapping`."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, line: Mapping[str, object]) -> Spend:
        """Return the spend of a recorded line.  Raises ConfigError for another line."""
        unknown = set(line) - {one.name for one in fields(cls)}
        try:
            if not unknown:
                return msgspec.convert(line, cls)
            what = f"{sorted(unknown)[0]!r} is not known"
        except msgspec.ValidationError as error:
            what = str(error)
        raise ConfigError(
            f"a recorded spend of privacy cannot be read: {what}",
            "Was the journal changed, or written by another version?  Without it nothing more may be released.",
        )


@dataclass(frozen=True)
class Budget:
    """At most `max_epsilon` at `delta` for each `unit`.  Raises ConfigError if spends belong to another promise."""

    max_epsilon: float
    """The limit on epsilon, above 0; with inf the spends are counted without a limit."""
    delta: float
    unit: str
    clip: float | None = None
    """The clip of every spend; None if it follows the updates (`adaptive`): the account does not need it."""
    spends: tuple[Spend, ...] = ()
    before: RenyiAccount = field(default_factory=RenyiAccount, compare=False, kw_only=True)
    """The account of other runs on the same records, without a delta and a clip."""
    _account: RenyiAccount | None = field(default=None, repr=False, compare=False, kw_only=True)
    """The cached account of `before` and the spends; a round adds to it at constant cost."""

    def __post_init__(self) -> None:
        _unit(self.unit)
        if not self.max_epsilon > 0 or not 0 < self.delta < 1:
            raise ConfigError(
                f"a budget of epsilon {self.max_epsilon:g} at delta {self.delta:g}",
                "Epsilon is above 0, delta between 0 and 1.",
            )
        if self._account is None:
            account = self.before
            for spend in self.spends:
                self._check(spend)
                account = account.plus(spend.mechanism)
            object.__setattr__(self, "_account", account)

    @property
    def account(self) -> RenyiAccount:
        assert self._account is not None
        return self._account

    @property
    def epsilon(self) -> float:
        """The spent epsilon."""
        return self.account.epsilon(self.delta)

    def compute_total(self, spend: Spend) -> float:
        """Return the total epsilon after this spend.  Raises ConfigError for a spend of another promise."""
        self._check(spend)
        return self.account.plus(spend.mechanism).epsilon(self.delta)

    def allows(self, spend: Spend) -> bool:
        return self.compute_total(spend) <= self.max_epsilon

    def spend(self, spend: Spend) -> Budget:
        """Return the budget after this spend.  Raises BudgetError if it does not fit; this budget is unchanged."""
        would = self.compute_total(spend)
        if would > self.max_epsilon:
            raise BudgetError(
                f"the next release would bring epsilon from {self.epsilon:.4g} to {would:.4g} per {self.unit} at delta "
                f"{self.delta:g}; at most {self.max_epsilon:g} is allowed",
                "The model so far is the result.  More rounds take more noise per round, from the beginning.",
            )
        account = self.account.plus(spend.mechanism)
        return replace(self, spends=(*self.spends, spend), _account=account)

    def _check(self, spend: Spend) -> None:
        pairs = [("unit", spend.unit, self.unit), ("delta", spend.delta, self.delta)]
        if self.clip is not None:
            pairs.append(("clip", spend.clip, self.clip))
        for name, theirs, ours in pairs:
            if theirs != ours:
                raise ConfigError(
                    f"a spend of privacy with {name} {theirs} in a budget with {name} {ours}",
                    "One budget is one promise; another one begins with another run.",
                )


def compute_record_cost(spend: Spend) -> Mechanism:
    """Return a release's cost for one record; noise for whole clients counts half: a changed record is twice as far."""
    one = spend.mechanism
    return replace(one, noise=one.noise / 2) if spend.unit == "client" else one


@dataclass(frozen=True)
class TotalBudget:
    """A site's limit for each of its records over all runs, of any units, noise and deltas."""

    max_epsilon: float
    delta: float
    account: RenyiAccount = field(default_factory=RenyiAccount, compare=False)
    """The account of all releases so far."""

    @property
    def epsilon(self) -> float:
        return self.account.epsilon(self.delta)

    def spend(self, spend: Spend) -> TotalBudget:
        """Return the budget after a release.  Raises BudgetError if it does not fit; this one is unchanged."""
        account = self.account.plus(compute_record_cost(spend))
        if (would := account.epsilon(self.delta)) > self.max_epsilon:
            raise BudgetError(
                f"the next release would bring epsilon of these records, over all runs, from {self.epsilon:.4g} to "
                f"{would:.4g} at delta {self.delta:g}; this site allows {self.max_epsilon:g} in all",
                "See what was spent: fedgossip privacy ledger.  The model so far is the result.",
            )
        return replace(self, account=account)


def resumed(budget: Budget, recorded: Iterable[Mapping[str, object]]) -> Budget:
    """Return the budget with all recorded spends, even if they do not fit.

    Raises ConfigError for an unreadable line, or one of another promise.
    """
    spends = (*budget.spends, *(Spend.from_mapping(line) for line in recorded))
    return replace(budget, spends=spends, _account=None)


def _unit(unit: str) -> None:
    if unit not in UNITS:
        raise ConfigError(f"privacy for each {unit!r}", nearest(unit, UNITS))
