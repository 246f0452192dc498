"""Who gains by a model of its own: the folded scores, by hand."""

from __future__ import annotations

from fedgossip.base.scores import ACCURACY, LOWER, Score
from fedgossip.core.gains import OwnScores, counted, gains_counted, gains_of, last_scores
from fedgossip.core.records import PeerRow


def row(round: int, peer: int, **logged: float) -> PeerRow:
    return PeerRow(round, peer, None, None, 0, 0, 0.0, 0.0, 0.0, 0.0, logged=dict(logged) or None)


def test_the_last_scores_of_each_participant_count_whatever_the_order_of_rows() -> None:
    found: dict[int, OwnScores] = {}
    for one in (row(4, 1, score_personal=0.5), row(2, 1, score_personal=0.9), row(6, 1), row(4, 0, loss=1.0)):
        last_scores(found, one)
    assert found == {1: OwnScores(4, 0.5)}


def test_mean_worst_and_tenth_percentile_are_of_all_that_tested() -> None:
    scores = [OwnScores(1, k / 20, shared=0.42, alone=0.3 if k else None) for k in range(20)]
    found = gains_of(scores, ACCURACY, 25)
    assert found == {
        "tested": 20,
        "untested": 5,
        "mean_own": 19 / 40,
        "worst_own": 0.0,
        "tenth_own": 0.05,  # the second of twenty
        "behind_shared": 9,  # 0, 0.05, ..., 0.40
        "behind_alone": 5,  # 0.05, ..., 0.25; equal is not behind
    }


def test_where_lower_is_better_the_worst_is_the_highest() -> None:
    scores = [OwnScores(1, value, shared=2.0) for value in (1.0, 2.0, 3.0)]
    found = gains_of(scores, Score("rmse", LOWER), 3)
    assert found and (found["worst_own"], found["tenth_own"]) == (3, 3)
    assert (found["behind_shared"], found["behind_alone"]) == (1, None)


def test_nothing_is_said_of_runs_without_personal_scores() -> None:
    assert gains_of([], ACCURACY, 3) is None


def test_counts_over_participants_say_the_same_to_a_twentieth() -> None:
    scores = [OwnScores(1, k / 40, shared=0.42, alone=0.3) for k in range(20, 40)] + [OwnScores(1, 1.0, 1.0, 1.0)]
    total: dict[str, float | None] = {}
    for one in scores:
        for name, part in counted(one, ACCURACY).items():
            total[name] = (total.get(name) or 0) + part
    exact, found = gains_of(scores, ACCURACY, 30), gains_counted(total, 30)
    assert exact and found
    for name in ("tested", "untested", "behind_shared", "behind_alone"):
        assert exact[name] == found[name]  # type: ignore[literal-required]
    for name in ("worst_own", "tenth_own"):
        assert 0 <= exact[name] - found[name] < 0.05  # type: ignore[literal-required]


def test_a_damaged_count_is_bounded_by_the_participants() -> None:
    found = gains_counted({"own_tested": 1e18, "own_from_05": float("inf"), "own_from_50": 1e12}, 4)
    assert found and (found["tested"], found["worst_own"]) == (4, 0.5)
    assert gains_counted({"own_tested": float("nan")}, 4) is None
