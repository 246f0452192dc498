"""The spent privacy budget, round by round, against its limit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from fedgossip.privacy.guarantee import guarantee, meaning
from fedgossip.report.page import drawing, figures
from fedgossip.report.page.drawing import BLUE, DASHES, ORANGE, draw, legend_above, zoomable
from fedgossip.report.page.markup import Markup, facts_table, figure, grid, section
from fedgossip.report.page.numbers import NOTHING, number
from fedgossip.report.page.participation import Participation
from fedgossip.report.page.reading import PrivacySpent, RecordedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = {
    "client": "protected: whether a client took part at all",
    "record": "protected: whether a client had one example or not",
}


def card(privacy: PrivacySpent) -> tuple[str, str, str]:
    """Return the key figure."""
    said = (
        "" if privacy.max_epsilon is None else f"of at most {number(privacy.max_epsilon)}",
        "" if privacy.delta is None else f"δ\u202f=\u202f{number(privacy.delta)}",
        privacy.unit and f"per {privacy.unit}",
        "" if privacy.bound is None else guarantee(privacy.bound),
    )
    return "Privacy ε", number(privacy.epsilon), ", ".join(part for part in said if part)


def privacy(run: RecordedRun, took: Participation) -> Markup | None:
    """Return epsilon by round against its limit; None for a run without differential privacy."""
    known = run.summary.privacy
    if known is None:
        return None
    return section(
        "Privacy",
        grid(
            figure(
                "epsilon",
                _by_round(took, known, "epsilon"),
                "Privacy spent by round",
                "The ε that the rounds together have spent: smaller reveals less. The round that would cross the limit"
                " is refused.",
            ),
            facts_table("What is promised", _facts(known)),
        ),
    )


def _facts(known: PrivacySpent) -> Iterable[tuple[str, str, str]]:
    if known.unit:
        yield "Protected", known.unit, UNITS.get(known.unit, "")
    yield "Spent ε", number(known.epsilon), "the model changes the odds of any guess about it by e^ε at most"
    if known.bound is not None:
        yield "Guarantee", guarantee(known.bound), meaning(known.bound, known.unit or "unit")
    yield "Limit of ε", number(known.max_epsilon), ""
    yield "δ", NOTHING if known.delta is None else number(known.delta), "the chance that the promise does not hold"


def _by_round(took: Participation, known: PrivacySpent, name: str) -> str | None:
    if not took.epsilon:
        return None
    rounds = sorted(took.epsilon)
    spent = list(accumulate((took.epsilon[round] for round in rounds), max))

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        figures.curve(axes, [float(r) for r in rounds], spent, label="spent", colour=BLUE, dash="-")
        if known.max_epsilon is not None:
            axes.axhline(known.max_epsilon, color=ORANGE, linestyle=DASHES[1], linewidth=1.4, label="limit")
        axes.set_ylim(0.0, max(spent[-1], known.max_epsilon or 0.0) * 1.06 or 1.0)
        axes.set_xlabel("round")
        axes.set_ylabel("ε")
        drawing.whole_axis(axes)
        legend_above(axes)
        zoomable(axes)

    return draw(name, figures.HEIGHT, paint)
