"""Scores of personal models on the participants' held-out examples, compared with the shared model and with one trained
alone; `gains_of` combines the last logged ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedgossip.base.scores import HIGHER, Score
from fedgossip.core.run_summary import GainFacts

PERSONAL, SHARED, ALONE = NAMES = "score_personal", "score_shared", "score_alone"
"""Names of logged scores: of the personal model, the received shared one, and one trained alone for as many steps."""

NOT_MEASURED = "not measured: data.local_test keeps examples apart for that; a budget of privacy hides the scores"
"""Why a run with personal models has no scores of them."""

TENTH = 0.1

BEHIND = OWN_TESTED, BEHIND_SHARED, BEHIND_ALONE = "own_tested", "behind_shared", "behind_alone"
"""Names of counts, for a coordinator that sees sums alone: participants that tested a personal model; participants
whose model scores worse than the shared one; participants whose model scores worse than one trained alone.
"""
TWENTIETHS = tuple(f"own_from_{5 * k:02d}" for k in range(20))
"""Names of counts of participants by the score of their personal model, in percent: from 0, 5, ..., 95 on."""
COUNTS = *BEHIND, *TWENTIETHS


class LoggedRow(Protocol):
    """A row of a participant's round, in a record."""

    @property
    def round(self) -> int: ...
    @property
    def peer(self) -> int: ...
    @property
    def logged(self) -> Mapping[str, float | None] | None: ...


@dataclass(frozen=True, slots=True)
class OwnScores:
    """The last scores of a participant; None if the method shares no whole model, or if none was trained alone."""

    round: int
    personal: float
    shared: float | None = None
    alone: float | None = None


def last_scores(scores: dict[int, OwnScores], row: LoggedRow) -> None:
    """Update the last scores by participant from a row."""
    logged = row.logged or {}
    personal = logged.get(PERSONAL)
    if personal is not None and (row.peer not in scores or scores[row.peer].round <= row.round):
        scores[row.peer] = OwnScores(row.round, personal, logged.get(SHARED), logged.get(ALONE))


def counted(scores: OwnScores, score: Score) -> dict[str, float]:
    """Return a participant's contribution to each count: 0 or 1."""
    found = {OWN_TESTED: 1.0}
    for name, other in ((BEHIND_SHARED, scores.shared), (BEHIND_ALONE, scores.alone)):
        found[name] = float(other is not None and gain(scores.personal, other, score) < 0)
    if score.share:
        place = min(len(TWENTIETHS) - 1, int(scores.personal * len(TWENTIETHS) + 1e-9))
        found |= {name: float(k == place) for k, name in enumerate(TWENTIETHS)}
    return found


def gains_counted(counts: Mapping[str, float | None], participants: int) -> GainFacts | None:
    """Return the gains from counts over participants, scores rounded down to a twentieth; None without counts."""
    found = {name: min(participants, _round_count(counts.get(name))) for name in COUNTS}
    tested = found[OWN_TESTED]
    if not tested:
        return None
    ranked = [k / 20 for k, name in enumerate(TWENTIETHS) for _ in range(found[name])]
    return {
        "tested": tested,
        "untested": participants - tested,
        "mean_own": None,
        "worst_own": ranked[0] if ranked else None,
        "tenth_own": ranked[math.ceil(TENTH * len(ranked)) - 1] if ranked else None,
        "behind_shared": found[BEHIND_SHARED],
        "behind_alone": found[BEHIND_ALONE],
    }


def _round_count(count: float | None) -> int:
    return round(count) if count is not None and math.isfinite(count) and count > 0 else 0


def gains_of(scores: Iterable[OwnScores], score: Score, participants: int) -> GainFacts | None:
    """Return the gains over all `participants` from the last scores; None without scores."""
    found = list(scores)
    if not found:
        return None
    ranked = sorted((one.personal for one in found), reverse=score.better != HIGHER)
    return {
        "tested": len(found),
        "untested": participants - len(found),
        "mean_own": math.fsum(ranked) / len(ranked),
        "worst_own": ranked[0],
        "tenth_own": ranked[math.ceil(TENTH * len(ranked)) - 1],
        "behind_shared": _count_worse([(one.personal, one.shared) for one in found], score),
        "behind_alone": _count_worse([(one.personal, one.alone) for one in found], score),
    }


def gain(ours: float, other: float, score: Score) -> float:
    """Return by how much a score is better than another one; negative if it is worse."""
    return ours - other if score.better == HIGHER else other - ours


def _count_worse(pairs: Iterable[tuple[float, float | None]], score: Score) -> int | None:
    known = [gain(ours, other, score) for ours, other in pairs if other is not None]
    return sum(one < 0 for one in known) if known else None
