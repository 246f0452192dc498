"""Who gains by a model of its own: every participant's score beside the shared model's, and one trained alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgossip.base.scores import Score
from fedgossip.core.gains import OwnScores, gain, gains_counted, gains_of
from fedgossip.report.page import drawing
from fedgossip.report.page.drawing import BLUE, ORANGE, QUIET, draw, legend_above
from fedgossip.report.page.markup import Markup, facts_table, figure, grid, section
from fedgossip.report.page.numbers import NOTHING, count, plural
from fedgossip.report.page.reading import RecordedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 2.8


def who_gains(run: RecordedRun) -> Markup | None:
    """Return the section on personal models; None where none was tested."""
    score, one = run.summary.score.metric, run.roles.one
    n = run.summary.n
    facts = gains_of(run.own_scores.values(), score, n) or gains_counted(run.own_counts, n)
    if facts is None:
        return None
    shown = run.summary.score.shown
    rows = [
        ("mean", shown(facts["mean_own"]), f"over {plural(facts['tested'], one)}, each counted alike"),
        ("10th percentile", shown(facts["tenth_own"]), f"of a tenth of the {one}s the score is this or worse"),
        ("worst", shown(facts["worst_own"]), ""),
        ("worse off than with the shared model", _behind(facts["behind_shared"]), ""),
        (
            "worse off than alone",
            _behind(facts["behind_alone"]),
            "than by a model trained as often, without exchange",
        ),
        ("not tested", count(facts["untested"]), "without held-out examples, or never invited to an evaluated round"),
    ]
    caption = (
        f"Each {one}'s gain in {score.word} by its own model, on its own held-out examples, from the least to the most."
        " Below 0 it would have been better off with the other model."
    )
    return section(
        "Who gains",
        grid(
            figure("gains", gains(list(run.own_scores.values()), score, one), f"{one.capitalize()}s by gain", caption),
            facts_table(f"{score.heading} of personal models", rows),
        ),
    )


def gains(scores: list[OwnScores], score: Score, one: str) -> str | None:
    """Return the participants sorted by their gain, each curve by its own; None where nothing can be compared."""
    lines = [
        (label, colour, marker, sorted(gain(of.personal, other, score) for of, other in pairs if other is not None))
        for label, colour, marker, pairs in (
            ("over the shared model", BLUE, "o", [(of, of.shared) for of in scores]),
            ("over a model trained alone", ORANGE, "s", [(of, of.alone) for of in scores]),
        )
    ]
    if not any(values for *_, values in lines):
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axhline(0, color=QUIET, linewidth=0.8)
        size = 4 if len(scores) <= 100 else 1.5
        for label, colour, marker, values in lines:
            if values:
                places = range(1, len(values) + 1)
                axes.plot(places, values, label=label, color=colour, marker=marker, markersize=size, linewidth=1)
        axes.set_xlabel(f"{one}s, sorted by gain")
        axes.set_ylabel(f"gain in {score.word}")
        drawing.whole_axis(axes)
        legend_above(axes)

    return draw("gains", HEIGHT, paint)


def _behind(number: int | None) -> str:
    return NOTHING if number is None else count(number)
