"""The forecast in words: guarantee, adversary, whether the run learns, and remedies."""

from __future__ import annotations

import math

from fedgossip.base.errors import ConfigError
from fedgossip.privacy.accounting import account_of, epsilon, meaning, noise_for
from fedgossip.privacy.forecast import SILO_EPSILON, SILOS, PrivacyForecast, PrivacyPlan


def lines(forecast: PrivacyForecast) -> list[tuple[str, str]]:
    """Return (what, text) in the order in which to read them; every text is whole sentences."""
    plan = forecast.plan
    found = [
        ("hidden", hidden(plan)),
        ("from", adversary(plan)),
        ("not hidden", not_hidden(plan)),
        *_beside(plan),
        ("epsilon", _epsilon(forecast)),
        *_tests(plan),
        *_statistics(forecast),
        *_before(forecast),
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
    """Return the data that the budget hides, in words."""
    if plan.unit == "record":
        return "Each example of each client: whether it was there.  Not what all examples of a client have in common."
    return "Each client, with all its examples: whether it had them, or nothing at all."


def adversary(plan: PrivacyPlan) -> str:
    """Return the adversaries that it is hidden from, in words."""
    if plan.unit == "record":
        return (
            "The coordinator, the other clients, and whoever gets the model: each client adds all the noise itself, "
            "before anything leaves it, and draws its batches in secret."
        )
    others = plan.drawn - plan.counted_on
    friends = f", together with up to {others} of the {plan.drawn} clients of a round" if others else ""
    return (
        f"The coordinator, which knows who takes part{friends}; and whoever gets the model.  Other clients see the "
        "model of each round, and know their own noise.  Only with secure sums: a single update is not protected by "
        f"its share of the noise.  Rounds with fewer than {plan.counted_on} survivors must end."
    )


def not_hidden(plan: PrivacyPlan) -> str:
    """Return the data that it does not hide, in words."""
    disclosed = plan.telling.words(plan.telling.exact)
    of = "summed over the clients of each round" if plan.secure else "of each client and round"
    counts = f"  As it is, {of}: {'; '.join(disclosed)}." if disclosed else ""
    return f"Who took part and when.{counts}  What was learned from earlier runs, and from choosing these numbers."


def _beside(plan: PrivacyPlan) -> list[tuple[str, str]]:
    found = []
    if covered := plan.telling.words(plan.telling.covered):
        text = "; ".join(covered).capitalize()
        found.append(("also told", f"{text}: within epsilon, as it has noise or follows from what has."))
    if plan.tested and "tests" not in (*plan.telling.exact, *plan.telling.covered):
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


def _before(forecast: PrivacyForecast) -> list[tuple[str, str]]:
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
    """Return how many rounds the budget allows, in a sentence or two."""
    plan, within = forecast.plan, forecast.rounds_within
    if within is None or plan.max_epsilon is None:
        return f"All {plan.rounds}: no max_epsilon ends the run."
    if forecast.fits:
        return f"All {plan.rounds} fit into epsilon {_number(plan.max_epsilon)}; {within} would."
    text = f"Only {within} of {plan.rounds} fit into epsilon {_number(plan.max_epsilon)}: there the run ends."
    if forecast.noise_wanted is not None:
        text += f"  With noise {_at_least(forecast.noise_wanted)} all fit."
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


def _at_least(value: float) -> str:
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return f"{math.ceil(value * scale) / scale:.6g}"


def _times(ratio: float) -> str:
    return f"{_number(ratio)} times"


def _rounded(value: float) -> str:
    step = 10.0 ** max(0, math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step) * step:,.0f}"
