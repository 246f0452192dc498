"""Who takes part: a function of the seed, the round and who is there, with the probabilities that it promises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.algorithms import sampling
from fedgossip.algorithms.sampling import (
    BySize,
    Oort,
    Poisson,
    PowerOfChoice,
    ReportedLoss,
    Sampling,
    Uniform,
    participating,
)

CLIENTS = tuple(range(20))
SIZES = {node: 1 + node % 5 for node in CLIENTS}
KINDS: dict[str, Sampling] = {
    "uniform": Uniform(7, CLIENTS, 6, over=1.5),
    "by size": BySize(7, SIZES, 6, over=1.5),
    "poisson": Poisson(7, CLIENTS, 0.3),
    "power of choice": PowerOfChoice(Uniform(7, CLIENTS, 6, over=1.5), 9),
    "oort": Oort(Uniform(7, CLIENTS, 6, over=1.5)),
}


@pytest.fixture(autouse=True, scope="module", params=["ordered at once", "ordered as far as it is read"])
def _order(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "ordered at once":
            patch.setattr(sampling, "PERMUTED_MOST", 0)
            patch.setattr(sampling, "DRAWN_AT_ONCE", 3)  # most of 20 are in the order of the others
        yield


@pytest.mark.parametrize("kind", KINDS)
@given(round=st.integers(0, 10**6), gone=st.sets(st.sampled_from(CLIENTS)))
@settings(max_examples=50, deadline=None)
def test_a_cohort_is_ascending_distinct_there_and_drawn_again_alike(kind: str, round: int, gone: set[int]) -> None:
    here = set(CLIENTS) - gone
    draw = KINDS[kind].draw(round, here)
    assert list(draw.invited) == sorted(set(draw.invited)) and set(draw.invited) <= here
    assert draw.wanted <= len(draw.invited)
    assert draw == KINDS[kind].draw(round, sorted(here))


@pytest.mark.parametrize("kind", KINDS)
@given(round=st.integers(0, 1000), missing=st.sampled_from(CLIENTS))
@settings(max_examples=50, deadline=None)
def test_one_that_is_missing_costs_its_own_place_and_moves_nobody(kind: str, round: int, missing: int) -> None:
    whole = KINDS[kind].draw(round, CLIENTS).invited
    without = KINDS[kind].draw(round, set(CLIENTS) - {missing}).invited
    assert set(whole) - {missing} <= set(without) and len(set(without) - set(whole)) <= 1


def test_other_rounds_and_other_seeds_draw_others() -> None:
    cohorts = {Uniform(seed, CLIENTS, 6).draw(round, CLIENTS).invited for seed in range(5) for round in range(20)}
    assert len(cohorts) > 90


@pytest.mark.parametrize(("count", "over", "invited"), [(10, 1.0, 10), (10, 1.1, 11), (10, 1.3, 13), (7, 1.3, 10)])
def test_over_selection_invites_more_than_it_waits_for(count: int, over: float, invited: int) -> None:
    draw = Uniform(0, CLIENTS, count, over).draw(3, CLIENTS)
    assert (len(draw.invited), draw.wanted) == (invited, count)


def test_fewer_than_wanted_are_all_invited_and_all_waited_for() -> None:
    draw = Uniform(0, CLIENTS, 10).draw(0, {1, 2, 3})
    assert (draw.invited, draw.wanted) == ((1, 2, 3), 3)


def frequencies(sampling: Sampling, rounds: int) -> np.ndarray:
    drawn = [node for round in range(rounds) for node in sampling.draw(round, CLIENTS).invited]
    return np.bincount(drawn, minlength=len(CLIENTS)) / rounds


def test_uniform_draws_everyone_as_often() -> None:
    """6 of 20: 0.3 each, standard deviation sqrt(0.3 * 0.7 / 2000) = 0.0102; five of these."""
    assert np.abs(frequencies(Uniform(1, CLIENTS, 6), 2000) - 0.3).max() < 0.052


def test_by_size_draws_a_single_one_in_proportion_to_its_examples() -> None:
    """Of one draw the probability is size / sum exactly (Efraimidis and Spirakis 2006)."""
    sizes = np.array([SIZES[node] for node in CLIENTS])
    assert np.abs(frequencies(BySize(1, SIZES, 1), 4000) - sizes / sizes.sum()).max() < 0.024


def test_by_size_draws_two_in_proportion_to_what_is_left() -> None:
    """P(a, b) = p_a p_b / (1 - p_a) + p_b p_a / (1 - p_b), with p = (1, 2, 3, 4) / 10."""
    p = np.array([1, 2, 3, 4]) / 10
    pairs = [BySize(3, dict(enumerate((1, 2, 3, 4))), 2).draw(round, range(4)).invited for round in range(6000)]
    for a, b in ((0, 1), (0, 3), (2, 3)):
        promised = p[a] * p[b] * (1 / (1 - p[a]) + 1 / (1 - p[b]))
        assert pairs.count((a, b)) / 6000 == pytest.approx(promised, abs=5 * (promised / 6000) ** 0.5)


def test_a_cohort_of_a_million_is_uniform_and_the_others_follow_where_few_are_there() -> None:
    many = Uniform(4, range(1_000_000), 50)
    drawn = np.array([node for round in range(200) for node in many.draw(round, many.clients).invited])
    assert drawn.mean() == pytest.approx(5e5, abs=5 * 1e6 / 12**0.5 / 1e2) and len(set(drawn.tolist())) > 9900
    assert many.draw(0, {3, 999_999}).invited == (3, 999_999)


def test_poisson_draws_each_alone() -> None:
    """The size of a cohort is binomial: mean n q, variance n q (1 - q); uniform draws have no variance at all."""
    sizes = [len(Poisson(2, CLIENTS, 0.3).draw(round, CLIENTS).invited) for round in range(3000)]
    assert np.mean(sizes) == pytest.approx(6, abs=0.2)
    assert np.var(sizes) == pytest.approx(20 * 0.3 * 0.7, rel=0.15)
    assert min(len(Poisson(2, (1, 2), 0.2).draw(round, (1, 2)).invited) for round in range(20)) == 0


def seen(loss: dict[int, float], seconds: float = 1.0) -> dict[int, ReportedLoss]:
    return {node: ReportedLoss(one, 10, 0, seconds) for node, one in loss.items()}


def test_power_of_choice_takes_the_greatest_losses_of_its_candidates_and_unknown_ones_first() -> None:
    losses = {node: float(node) for node in CLIENTS if node != 3}
    every = PowerOfChoice(Uniform(1, CLIENTS, 4), len(CLIENTS)).choose(5, set(CLIENTS), seen(losses))
    assert every.invited == (3, 17, 18, 19)
    uniform = Uniform(1, CLIENTS, 4)
    few = PowerOfChoice(uniform, 4)  # as many candidates as are invited: uniform
    assert all(few.choose(r, set(CLIENTS), seen(losses)) == uniform.draw(r, CLIENTS) for r in range(20))


def test_of_d_candidates_the_client_of_the_greatest_loss_comes_when_it_is_a_candidate() -> None:
    """d of 20 candidates: it is one with probability d / 20; 2000 draws, five deviations."""
    choice, losses = PowerOfChoice(Uniform(2, CLIENTS, 1), 5), seen({node: float(node) for node in CLIENTS})
    came = sum(choice.choose(r, CLIENTS, losses).invited == (19,) for r in range(2000)) / 2000
    assert came == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 2000) ** 0.5)


def test_oort_explores_less_and_less_and_prefers_losses_and_quick_clients() -> None:
    oort = Oort(Uniform(3, range(200), 10))
    losses = seen({node: 100.0 if node < 20 else 0.1 for node in range(100)})  # 100 to 199 are not seen yet
    early, late = (oort.choose(r, range(200), losses).invited for r in (0, 500))
    assert sum(node >= 100 for node in early) == 9 and sum(node >= 100 for node in late) == 2
    assert all(node < 20 for node in late if node < 100)
    slow = losses | {node: ReportedLoss(100.0, 10, 0, 50.0) for node in range(10)}
    assert all(10 <= node < 20 for node in oort.choose(500, range(200), slow).invited if node < 100)


def test_a_share_of_the_clients_is_at_least_one() -> None:
    assert [participating(100, share) for share in (0.1, 1.0, 0.001)] == [10, 100, 1]
