"""The forecast of a private run before training: its guarantee, and whether it can still learn.

For the worst client: the epsilon after all rounds, and the noise in a round's mean update relative to the longest
update.

    unit "client"   each round's sum has noise of deviation z S, shared by its clients: each update has norm
                    S at most, the mean's noise z S sqrt(d) / n; the clients of a round are known, so nothing is
                    amplified
    unit "record"   each step at a site has noise of deviation z C on the sum of its batch, drawn there in secret: the
                    mean over n sites of K steps has z C sqrt(d K / n) / B of noise on K C of gradient at most

LIMITS were measured on a small task (benchmarks/privacy.py).

`lines` returns it as text: guarantee, adversary, whether the run learns, and remedies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.privacy.accounting import (
    Mechanism,
    RenyiAccount,
    account_of,
    epsilon,
    meaning,
    noise_for,
    round_rate,
    steps_within,
    tight,
)
from fedgossip.privacy.budget import UNITS, Spend
from fedgossip.protocols.federated.client_round import SentMetrics

WEIGHTINGS = ("clients", "examples")

LIMITS = {"client": (1.0, 5.0, 10.0), "record": (0.3, 1.5, 3.0)}
"""Limits of noise / update in a round: below the first the run learns, then less, then little, above the last not.

They are lower for records, whose gradients partly cancel.
"""

SILOS = 30
"""Maximum number of clients for which hiding whole clients costs more noise than learning tolerates."""

SILO_EPSILON = 3.0
"""Maximum epsilon with a useful promise, for orientation."""


def lines(forecast: PrivacyForecast) -> list[tuple[str, str]]:
    """Return (what, text) in the order in which to read them; every text is whole sentences."""
    plan = forecast.plan
    found = [
        ("hidden", hidden(plan)),
        ("from", adversary(plan)),
        ("not hidden", not_hidden(plan)),
        *_describe_metrics(plan),
        ("epsilon", _epsilon(forecast)),
        *_tests(plan),
        *_statistics(forecast),
        *_describe_earlier(forecast),
        ("delta", _delta(plan)),
        ("rounds", rounds(forecast)),
        ("noise", _noise(forecast)),
        ("verdict", verdict(forecast)),
    ]
    found += [("would help", text) for text in _help(forecast)]
    return found


def verdict(forecast: PrivacyForecast) -> str:
    """Return one sentence on the size of the noise and its consequence."""
    meanings = (
        "it learns nearly as well as without noise",
        "it learns more slowly, and less",
        "it will learn little",
        "it will not learn",
    )
    meaning = meanings[sum(forecast.ratio > limit for limit in forecast.limits)]
    return f"In a round's mean update the noise is {_times(forecast.ratio)} the largest update: {meaning}."


def hidden(plan: PrivacyPlan) -> str:
    """Return the data that the budget hides, as a text."""
    if plan.unit == "record":
        return "Each example of each client: whether it was there.  Not what all examples of a client have in common."
    return "Each client, with all its examples: whether it had them, or nothing at all."


def adversary(plan: PrivacyPlan) -> str:
    """Return the adversaries from which they are hidden, as a text."""
    if plan.unit == "record":
        return (
            "The coordinator, the other clients, and whoever gets the model: each client adds all the noise itself, "
            "before anything leaves it, and draws its batches in secret."
        )
    summed = plan.leaf or plan.drawn
    others, of = summed - plan.counted_on, "below a leaf coordinator" if plan.leaf else "of a round"
    friends = f", together with up to {others} of the {summed} clients {of}" if others else ""
    return (
        f"The coordinator, which knows who takes part{friends}; and whoever gets the model.  Other clients see the "
        "model of each round, and know their own noise.  Only with secure sums: a single update is not protected by "
        f"its share of the noise.  Rounds with fewer than {plan.counted_on} survivors must end."
    )


def not_hidden(plan: PrivacyPlan) -> str:
    """Return the data that it does not hide, as a text."""
    disclosed = plan.sent_metrics.words(plan.sent_metrics.exact)
    of = "summed over the clients of each round" if plan.secure else "of each client and round"
    counts = f"  As it is, {of}: {'; '.join(disclosed)}." if disclosed else ""
    return f"Who took part and when.{counts}  What was learned from earlier runs, and from choosing these numbers."


def _describe_metrics(plan: PrivacyPlan) -> list[tuple[str, str]]:
    found = []
    if covered := plan.sent_metrics.words(plan.sent_metrics.covered):
        text = "; ".join(covered).capitalize()
        found.append(("also told", f"{text}: within epsilon, as it has noise or follows from what has."))
    if plan.tested and "tests" not in (*plan.sent_metrics.exact, *plan.sent_metrics.covered):
        text = "What a client measures on the examples that it keeps for tests (data.local_test): it stays there."
        found.append(("not told", text))
    return found


def _epsilon(forecast: PrivacyForecast) -> str:
    plan = forecast.plan
    text = f"{_number(forecast.epsilon)} after all {plan.rounds} rounds, for a client that is in all of them"
    if forecast.tight is not None:
        text += f" ({_number(forecast.tight)} by the tighter account, for orientation)"
    if plan.drawn < plan.clients:
        text += f"; {_number(forecast.usual)} for one that is drawn as often as the others"
    return f"{text}.  {meaning(forecast.epsilon, plan.unit)}"


def _tests(plan: PrivacyPlan) -> list[tuple[str, str]]:
    if not plan.tests.steps:
        return []
    alone = _number(epsilon([plan.tests], plan.delta))
    of = f"Noise {_number(plan.test_noise)} on each count of right answers; {plan.tests.steps} of them"
    return [("tests", f"{of} are epsilon {alone} alone, which is counted in the epsilon above.")]


def _statistics(forecast: PrivacyForecast) -> list[tuple[str, str]]:
    plan = forecast.plan
    if plan.statistics is None:
        return []
    alone = _number(epsilon([plan.statistics], plan.delta))
    sums = f"{plan.statistics.steps} sums with the same noise"
    text = f"The statistics that the sites agree on first, {sums}, are epsilon"
    total = "" if plan.before else f"  {meaning(forecast.total, plan.unit)}"
    both = "" if plan.before else f"; with them it is {_number(forecast.total)} in all"
    return [("statistics", f"{text} {alone} alone{both}.{total}")]


def _describe_earlier(forecast: PrivacyForecast) -> list[tuple[str, str]]:
    plan = forecast.plan
    if not plan.before:
        return []
    spent = _number(epsilon(plan.before, plan.delta))
    text = f"Epsilon {spent} was spent in other runs with this key, on the same data; with this one it is "
    return [("before", f"{text}{_number(forecast.total)}.  {meaning(forecast.total, plan.unit)}")]


def _delta(plan: PrivacyPlan) -> str:
    units = plan.clients if plan.unit == "client" else sum(plan.examples)
    text = f"{plan.delta:g}: with this probability there may be no promise at all."
    if plan.delta * units >= 1:
        text += f"  It must be far below 1 / {units}, or giving one {plan.unit} away in clear would count as private."
    return text


def rounds(forecast: PrivacyForecast) -> str:
    """Return the number of rounds that the budget allows, in a sentence or two."""
    plan, within = forecast.plan, forecast.rounds_within
    if within is None or plan.max_epsilon is None:
        return f"All {plan.rounds}: no max_epsilon ends the run."
    if forecast.fits:
        return f"All {plan.rounds} fit into epsilon {_number(plan.max_epsilon)}; {within} would."
    text = f"Only {within} of {plan.rounds} fit into epsilon {_number(plan.max_epsilon)}: there the run ends."
    if forecast.noise_wanted is not None:
        text += f"  With noise {_round_up(forecast.noise_wanted)} all fit."
    return text


def _noise(forecast: PrivacyForecast) -> str:
    plan = forecast.plan
    unit = "" if plan.unit == "client" else ", in multiples of the learning rate"
    root = math.sqrt(plan.parameters)
    return (
        f"{_number(forecast.noise_length)} long against an update of at most {_number(forecast.update_length)}{unit}; "
        f"per coordinate {_number(forecast.noise_length / root)} against {_number(forecast.update_length / root)}."
    )


def _help(forecast: PrivacyForecast) -> list[str]:
    plan, over = forecast.plan, forecast.ratio / forecast.limits[0]
    found = []
    if plan.unit == "client" and plan.clients <= SILOS:
        found.append(_silos(forecast))
    if over <= 1:
        return found
    if plan.unit == "client":
        found.append('unit = "record": it hides examples instead of clients, with noise that shrinks by the batch.')
        found.append(f"More clients: about {_rounded(plan.drawn * over)} in a round, with this noise.")
    else:
        found.append(f"More clients: about {_rounded(plan.drawn * over**2)} in a round, with this noise.")
        found.append(
            f"Larger batches: about {_rounded(plan.batch_size * over)} examples, where clients have many more than "
            "that; each step then draws more of them, and costs more epsilon."
        )
    found.append(f"Fewer parameters: about {_rounded(max(1.0, plan.parameters / over**2))}, not {plan.parameters:,}.")
    fewer = _fewer_rounds(forecast)
    return [*found, fewer] if fewer else found


def _silos(forecast: PrivacyForecast) -> str:
    """Return the rule for few silos: hiding whole clients takes a noise of about 8 or more."""
    wanted = _wanted(forecast.plan, SILO_EPSILON, forecast.plan.rounds)
    needs = "more noise than there is" if wanted is None else f"noise of {_number(wanted)}"
    length = "" if wanted is None else (
        f", {_times(forecast.ratio * wanted / forecast.plan.noise)} the largest update"
    )  # fmt: skip
    return (
        f"Epsilon {SILO_EPSILON:g} for whole clients takes {needs} in {forecast.plan.rounds} rounds{length}.  With at "
        f'most {SILOS} silos unit = "record" is the right one.'
    )


def _fewer_rounds(forecast: PrivacyForecast) -> str | None:
    plan = forecast.plan
    fewer = math.ceil(plan.rounds / 4)
    wanted = _wanted(plan, forecast.epsilon, fewer)
    if fewer == plan.rounds or wanted is None or wanted >= 0.95 * plan.noise:
        return None
    return (
        f"Fewer rounds: {fewer} with noise {_number(wanted)} have the same epsilon, and a noise of "
        f"{_times(forecast.ratio * wanted / plan.noise)} the largest update."
    )


def _wanted(plan: PrivacyPlan, wanted: float, rounds: int) -> float | None:
    each = plan.round_spend
    try:
        tests = account_of([plan.tests])
        return noise_for(wanted, plan.delta, rate=each.rate, steps=each.steps * rounds, before=tests)
    except ConfigError:
        return None


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _round_up(value: float) -> str:
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return f"{math.ceil(value * scale) / scale:.6g}"


def _times(ratio: float) -> str:
    return f"{_number(ratio)} times"


def _rounded(value: float) -> str:
    step = 10.0 ** max(0, math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step) * step:,.0f}"


@dataclass(frozen=True)
class PrivacyPlan:
    """A run by its experiment file.  Raises ConfigError for inconsistent numbers."""

    unit: str
    """"record" or "client"."""
    clients: int
    rounds: int
    noise: float
    """z, above 0: the noise's standard deviation divided by the clip."""
    clip: float
    """Maximum norm of one client's update, or of one example's gradient."""
    delta: float
    parameters: int
    """d: number of elements of an update."""
    cohort: int | None = None
    """Number of clients of a round; None: all."""
    max_epsilon: float | None = None
    weighting: str = "clients"
    """"clients": equal weights; "examples": by their number."""
    honest: int | None = None
    """unit "client": minimum number of survivors with noise; None: the cohort."""
    leaf: int | None = None
    """Number of clients of the smallest leaf coordinator, whose sum has the noise; None: without tiers."""
    batch_size: int = 1
    """unit "record": mean number of examples in a step's batch."""
    local_steps: int = 1
    """unit "record": number of steps of a site per round."""
    examples: Sequence[int] = ()
    """unit "record": number of examples of each client."""
    decides: int | None = None
    """unit "record": number of examples of the client with the largest epsilon; None: the fewest."""
    sent_metrics: SentMetrics = field(default_factory=SentMetrics)
    """The metrics that clients report with their updates."""
    secure: bool = True
    """Whether these metrics are reported only in sums."""
    tested: bool = False
    """Whether clients test the received model on local examples."""
    test_noise: float = 0.0
    """unit "record": the noise on the number of right answers, if it is reported."""
    test_every: int = 0
    """Number of rounds between two tests; the last round always has one; 0: never."""
    before: tuple[Mechanism, ...] = ()
    """The spends of other runs on the same budget."""
    statistics: Mechanism | None = None
    """The cost of the statistics agreed on before the first round, unless it is in `before`."""

    def __post_init__(self) -> None:
        if self.weighting not in WEIGHTINGS:
            raise ConfigError(f"weighting {self.weighting!r}", nearest(self.weighting, WEIGHTINGS))
        counts = (self.clients, self.rounds, self.parameters, self.drawn, self.counted_on, self.batch_size)
        if self.unit not in UNITS or min(counts) < 1 or not self.counted_on <= self.drawn <= self.clients:
            raise ConfigError(
                f"a plan for each {self.unit!r} with {self.clients} clients, {self.drawn} a round, {self.counted_on} "
                f"counted on, {self.rounds} rounds, {self.parameters} parameters, batches of {self.batch_size}",
                'The unit is "record" or "client"; counts are at least 1; a round has at most all clients.',
            )
        if self.unit == "record" and (not self.examples or min(self.examples) < 1 or self.local_steps < 1):
            raise ConfigError("a plan for each record without examples or steps", "Give what each client has.")
        if self.unit == "client" and self.weighting != "clients":
            raise ConfigError(
                "clients that count by their examples cannot be hidden one by one",
                'Write weighting = "clients": a weight discloses a number of examples, and makes some count more.',
            )
        _ = self.round_spend

    @property
    def drawn(self) -> int:
        return self.clients if self.cohort is None else self.cohort

    @property
    def counted_on(self) -> int:
        return self.drawn if self.honest is None else self.honest

    @property
    def rate(self) -> float:
        """q of the client with the largest epsilon, as accounted; 1 for clients: the participants are known."""
        if self.unit == "client":
            return 1.0
        return round_rate(min(1.0, self.batch_size / (self.decides or min(self.examples))))

    @property
    def tests(self) -> Mechanism:
        """The total cost of the counts of right answers in all rounds."""
        count = math.ceil(self.rounds / self.test_every) if self.test_noise and self.test_every else 0
        return Mechanism(self.test_noise, 1.0, count)

    @property
    def aside(self) -> RenyiAccount:
        """The part of the budget not available for rounds: for tests, and for earlier spends."""
        return account_of([self.tests, *self.earlier])

    @property
    def earlier(self) -> Sequence[Mechanism]:
        """The spends before the first round: in other runs, and on the statistics of this one."""
        return [*self.before, *([self.statistics] if self.statistics else [])]

    @property
    def round_spend(self) -> Spend:
        """The cost of one round for a participating client."""
        steps = 1 if self.unit == "client" else self.local_steps
        return Spend(self.unit, self.noise, self.delta, self.clip, self.rate, steps)

    @property
    def all_rounds(self) -> Mechanism:
        """The cost of the training for a client that takes part in every round, without its tests."""
        each = self.round_spend.mechanism
        return Mechanism(each.noise, each.rate, each.steps * self.rounds)


@dataclass(frozen=True)
class PrivacyForecast:
    """The forecast of a plan.  Lengths are L2 norms of a round's mean update; for records in multiples of lr."""

    plan: PrivacyPlan
    epsilon: float
    """The epsilon of a client that takes part in every round, with tests, by the Renyi account: an upper bound."""
    total: float
    """The same epsilon including earlier spends: on statistics, and in other runs."""
    usual: float
    """The epsilon of a client drawn on average: in rounds times cohort / clients rounds."""
    rounds_within: int | None
    """The number of its rounds that fit into max_epsilon; None without a limit."""
    noise_length: float
    update_length: float
    """Maximum norm of the update."""

    @cached_property
    def tight(self) -> float | None:
        """The same epsilon by the tighter account, computed on demand in seconds; None if it is not computed."""
        return tight([self.plan.all_rounds, self.plan.tests], self.plan.delta)

    @cached_property
    def noise_wanted(self) -> float | None:
        """The z with which all rounds fit into max_epsilon, or else into SILO_EPSILON; None if none exists."""
        return _noise_wanted(self.plan)

    @property
    def ratio(self) -> float:
        """The norm of the noise divided by that of the longest update."""
        return self.noise_length / self.update_length

    @property
    def limits(self) -> tuple[float, float, float]:
        """Limits of the ratio below which the run learns, learns less, and learns little."""
        return LIMITS[self.plan.unit]

    @property
    def fits(self) -> bool:
        return self.rounds_within is None or self.rounds_within >= self.plan.rounds


def forecast(plan: PrivacyPlan) -> PrivacyForecast:
    each = plan.round_spend.mechanism
    usual = Mechanism(each.noise, each.rate, each.steps * math.ceil(plan.rounds * plan.drawn / plan.clients))
    noise_length, update_length = _lengths(plan)
    return PrivacyForecast(
        plan,
        epsilon([plan.all_rounds, plan.tests], plan.delta),
        epsilon([plan.all_rounds, plan.tests, *plan.earlier], plan.delta),
        epsilon([usual, plan.tests], plan.delta),
        _rounds_within(plan, each),
        noise_length,
        update_length,
    )


def _rounds_within(plan: PrivacyPlan, each: Mechanism) -> int | None:
    if plan.max_epsilon is None:
        return None
    return steps_within(plan.max_epsilon, plan.delta, noise=each.noise, rate=each.rate, before=plan.aside) // each.steps


def _noise_wanted(plan: PrivacyPlan) -> float | None:
    all_rounds = plan.all_rounds
    wanted = SILO_EPSILON if plan.max_epsilon is None else plan.max_epsilon
    try:
        return noise_for(wanted, plan.delta, rate=all_rounds.rate, steps=all_rounds.steps, before=plan.aside)
    except ConfigError:
        return None


def _lengths(plan: PrivacyPlan) -> tuple[float, float]:
    n, d = float(plan.drawn), plan.parameters
    if plan.unit == "client":
        each = plan.noise * plan.clip / math.sqrt(plan.counted_on)  # the number of all clients, honest or not
        return each * math.sqrt(d / n), plan.clip
    if plan.weighting == "examples":  # fewer clients that weigh more have the same variance of the mean
        n *= sum(plan.examples) ** 2 / (len(plan.examples) * sum(m * m for m in plan.examples))
    expected = min(plan.batch_size, *plan.examples)
    each = plan.noise * plan.clip * math.sqrt(plan.local_steps) / expected
    return each * math.sqrt(d / n), plan.local_steps * plan.clip
