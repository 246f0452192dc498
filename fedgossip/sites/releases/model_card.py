"""The page of a release, for review before signing: one file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fedgossip.core.glossary import used_in
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.columns.table_schema import DROP, IMPUTE, INDICATOR, MEAN, REFUSE
from fedgossip.report.page import drawing
from fedgossip.report.page.drawing import BLUE, DASHES, QUIET, draw, legend_above
from fedgossip.report.page.markup import (
    Markup,
    cards,
    document,
    facts_table,
    figure,
    folded,
    grid,
    join,
    paragraph,
    section,
    table,
    text,
)
from fedgossip.report.page.numbers import NOTHING, count, number, plural
from fedgossip.sites.evaluation.evaluated import Evaluation, GroupFigures, OutcomeFigures, thresholds_of
from fedgossip.sites.fits.fit_files import AnyFit
from fedgossip.sites.releases.fitted import section_of
from fedgossip.sites.releases.released import Release, ranges

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 3.1
HASH = 16
COLUMNS = 40
"""Maximum number of listed columns."""


def page(
    release: Release, statistics: AgreedTable | None, evaluation: Evaluation | None, fit: AnyFit | None = None
) -> str:
    """Return the page, the same bytes for the same release.  `fit`: of a model fitted by sums."""
    body = [
        _use(release, evaluation),
        section_of(fit) if fit is not None else None,
        None if release.fit_alone else _quality(evaluation),
        _groups(evaluation),
        _sites(evaluation),
        _membership(evaluation),
        _data(release, statistics),
        _privacy(release),
        _lineage(release),
        _withdrawal(),
        _logs(release),
    ]
    body.append(_words(body))
    return document(f"{release.name} – release", _head(release, evaluation), join(body))


def _head(release: Release, evaluation: Evaluation | None) -> Markup:
    sound = all(one.sound for one in release.logs)
    logged = "good" if release.logs and sound else "warn"
    signed = len(release.approvals)
    facts = [
        Markup(f"<li>{text(release.model.source)}</li>"),
        Markup(f"<li>{text(plural(release.sites, 'site'))}</li>") if release.sites else None,
        Markup(f'<li class="{"good" if signed else "warn"}">{text(_approved(release))}</li>'),
        Markup(f'<li class="{logged}">{text(_logged(release, sound=sound))}</li>'),
        Markup(f"<li>made {text(release.made)}</li>"),
    ]
    return join(
        [
            paragraph("Model card of a fedgossip release", "over"),
            Markup(f"<h1>{text(release.name)}</h1>"),
            Markup(f'<ul class="facts">{"".join(one for one in facts if one)}</ul>'),
            cards(_key_figures(release, evaluation)),
        ]
    )


def _approved(release: Release) -> str:
    if not release.approvals:
        return "no site has signed its plan"
    return f"plan signed by {len(release.approvals)} of {release.sites or len(release.approvals)} sites"


def _logged(release: Release, *, sound: bool) -> str:
    if not release.logs:
        return "no logs"
    return f"{plural(len(release.logs), 'log')} verified" if sound else "LOGS NOT SOUND"


def _key_figures(release: Release, evaluation: Evaluation | None) -> Iterable[tuple[str, str, str]]:
    if not _is_judged(evaluation):
        yield from _on_test(release)
    if evaluation and evaluation.score is not None:
        kept = "that no site has trained on" if evaluation.layout.kept else "that the sites may have trained on"
        on = f"on {count(evaluation.records)} records of {evaluation.sites} sites, {kept}"
        between = f"95 %{_interval(evaluation.score_between)}; " if evaluation.score_between else ""
        name = f"{evaluation.layout.score[:1].upper()}{evaluation.layout.score[1:]}"
        yield name, _shifted(evaluation, "score"), f"{between}{on}"
    if evaluation and evaluation.places:
        of = f"{count(evaluation.records)} records of {evaluation.sites} sites together"
        text = f"{evaluation.layout.score} of the worst of them, {of}; neither which one nor its records are disclosed"
        yield "Worst site", _between(*evaluation.places[0]), text
    privacy = release.privacy
    if privacy.epsilon is None:
        yield "Privacy ε", "none", "no budget: nothing is promised of single records"
    else:
        yield "Privacy ε", number(privacy.epsilon), f"per {privacy.unit}, δ\u202f=\u202f{number(privacy.delta)}"
    yield "Rounds", count(release.rounds), f"{plural(release.model.numbers, 'number')} in the model"


def _words(body: Iterable[Markup | None]) -> Markup | None:
    shown = (re.sub(r"(?s)<svg.*?</svg>|<[^>]*>", " ", part) for part in body if part)
    rows = [[name, meaning.replace("`", "")] for name, meaning in used_in(shown).items()]
    return section("Words on this page", table(["Word", "Meaning"], rows, 0)) if rows else None


def _use(release: Release, evaluation: Evaluation | None) -> Markup | None:
    return section(
        "Intended use",
        *(paragraph(part) for part in release.use.split("\n\n")),
        facts_table("The study", [(what.capitalize(), text, "") for what, text in release.study])
        if release.study
        else None,
        facts_table(
            "The model",
            [
                *(() if release.fit_alone else (("Kind of task", release.model.kind, ""),)),
                ("Made by", release.model.source, ""),
                ("Answers", _answers(release), ""),
                *(_on_test(release) if _is_judged(evaluation) else ()),
                ("Weights", release.model.weights[:HASH], "sha256"),
                ("fedgossip", release.version, "the release that made this"),
            ],
        ),
    )


def _is_judged(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and evaluation.score is not None


def _on_test(release: Release) -> Iterable[tuple[str, str, str]]:
    score = release.model.score
    if score.get("value") is not None:
        yield f"Test {score['name']}", number(score["value"]), "on the common test set"


def _answers(release: Release) -> str:
    labels, classes = ", ".join(release.model.labels), ", ".join(release.model.classes)
    return ": ".join(one for one in (labels, classes) if one) or NOTHING


# --- quality of the model ---------------------------------------------------------------------------------------------


def _quality(evaluation: Evaluation | None) -> Markup | None:
    if evaluation is None:
        return section(
            "How well it answers",
            paragraph(
                "Not judged at the sites: nothing is known of how well it answers at each of them, or for groups of "
                "people.  fedgossip evaluate lets the sites judge it, by secure sums.",
                "notice",
            ),
        )
    first = evaluation.outcomes[0] if evaluation.outcomes else None
    drawn = _calibration(first) if first else None
    text = "Of records that the model gives such a probability, the share that has the outcome; on the line both agree"
    return section(
        "How well it answers",
        paragraph(_how_exact(evaluation)),
        _outcomes(evaluation.outcomes),
        _slopes(evaluation.outcomes),
        grid(
            figure("calibration", drawn, f"Calibration of {first.name}", f"{text}.") if first else None,
            _confusion(evaluation),
        ),
        _curves(first, evaluation.records) if first else None,
        _labels(evaluation),
    )


def _how_exact(evaluation: Evaluation) -> str:
    if not (noise := evaluation.layout.noise):
        exact = "exact, except the AUROC, with its bound"
        return f"By sums over the sites' own records: {exact}; in brackets 95 % intervals."
    added = f"with noise of {number(noise)} times what one record can add on each site's"
    return f"By sums over the sites' own records, {added}: ± covers 95 % of what it moves."


OUTCOME_HEADS = ("AUROC", "Brier score", "mean prediction", "were", "calibration error")


def _outcomes(found: Iterable[OutcomeFigures]) -> Markup | None:
    rows = [[one.name, _noisy(one, "positives", count), *_figures(one)] for one in found]
    return table(["Outcome", "Records with it", *OUTCOME_HEADS], rows, len(OUTCOME_HEADS) + 1) if rows else None


def _figures(one: OutcomeFigures) -> list[str]:
    width = (one.auroc_within or 0.0) + one.noise_within.get("auroc", 0.0)
    within = f" ± {width:.4f}" if width else ""
    area = NOTHING if one.auroc is None else f"{one.auroc:.4f}{within}{_interval(one.auroc_between)}"
    return [area, *(_noisy(one, name) for name in ("brier", "said", "were")), number(one.calibration_error)]


def _noisy(one: Evaluation | GroupFigures | OutcomeFigures, name: str, shown: Callable[[Any], str] = number) -> str:
    return _shifted(one, name, shown) + _interval(getattr(one, f"{name}_between", None))


def _shifted(one: Evaluation | GroupFigures | OutcomeFigures, name: str, shown: Callable[[Any], str] = number) -> str:
    value = getattr(one, name)
    if value is None:
        return NOTHING
    within = one.noise_within.get(name) or getattr(one, f"{name}_within", 0.0)
    return f"{shown(value)} ± {number(within)}" if within else shown(value)


def _interval(between: tuple[float, float] | None) -> str:
    return "" if between is None else f" ({number(between[0])} to {number(between[1])})"


def _slopes(outcomes: Iterable[OutcomeFigures]) -> Markup | None:
    rows = []
    for one in outcomes:
        if one.slope and one.intercept:
            rows.append([one.name, *map(number, one.slope), *map(number, one.intercept)])
    heads = ["Calibration", "Slope, 1 at best", "95 % from", "to", "Intercept, 0 at best", "95 % from", "to"]
    return table(heads, rows, 6) if rows else None


def _calibration(outcome: OutcomeFigures) -> str | None:
    points = [(one.said, one.were) for one in outcome.parts if one.said is not None and one.were is not None]
    if not points:
        return None

    def paint(canvas: Figure) -> None:
        axes = canvas.subplots()
        axes.plot([0, 1], [0, 1], color=QUIET, linestyle=DASHES[1], linewidth=1.2, label="said what was")
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=BLUE, marker="o", markersize=5, linestyle="none", label="the model")
        axes.set_xlabel("mean prediction")
        axes.set_ylabel("were")
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(-0.03, 1.03)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        drawing.percent_axis(axes)
        legend_above(axes)

    return draw("calibration", HEIGHT, paint)


def _curves(outcome: OutcomeFigures, records: int) -> Markup | None:
    points = thresholds_of(outcome, records)
    if len(points) < 2:
        return None

    def roc(canvas: Figure) -> None:
        axes = canvas.subplots()
        x, y = zip((1.0, 1.0), *((1 - one.specificity, one.sensitivity) for one in points), (0.0, 0.0), strict=True)
        axes.plot([0, 1], [0, 1], color=QUIET, linestyle=DASHES[1], linewidth=1.2, label="by chance")
        axes.plot(x, y, color=BLUE, marker="o", markersize=4, label="the model")
        axes.set_xlabel("1 - specificity")
        axes.set_ylabel("sensitivity")
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        drawing.percent_axis(axes)
        legend_above(axes)

    def decision(canvas: Figure) -> None:
        axes = canvas.subplots()
        at = [one.at for one in points]
        floor = min(0.0, *(one.benefit for one in points))
        axes.axhline(0, color=QUIET, linewidth=0.8, label="on none")
        axes.plot(at, [one.of_all for one in points], color=QUIET, linestyle=DASHES[1], linewidth=1.2, label="on all")
        axes.plot(at, [one.benefit for one in points], color=BLUE, marker="o", markersize=4, label="on the model's")
        axes.set_ylim(bottom=floor - 0.05)  # acting on all ends far below
        axes.set_xlabel("probability from which one acts")
        axes.set_ylabel("net benefit")
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        legend_above(axes)

    text = f"At thresholds from {100 * points[0].at:.0f} to {100 * points[-1].at:.0f} %, between them straight lines."
    of = "True positives of a record, less false ones at the odds of the threshold."
    return grid(
        figure("roc", draw("roc", HEIGHT, roc), f"ROC curve of {outcome.name}", text),
        figure("decision", draw("decision", HEIGHT, decision), f"Decision curve of {outcome.name}", of),
    )


def _confusion(evaluation: Evaluation) -> Markup | None:
    classes = evaluation.layout.classes
    if not evaluation.confusion or len(classes) > 12:
        return None
    shown = ([NOTHING if one is None else count(one) for one in row] for row in evaluation.confusion)
    rows = [[name, *row] for name, row in zip(classes, shown, strict=True)]
    return join([Markup("<div>"), table(["True, answered", *classes], rows, len(classes)), Markup("</div>")])


def _labels(evaluation: Evaluation) -> Markup | None:
    rows = [[one.name, number(one.rmse), number(one.mae)] for one in evaluation.numbers]
    return table(["Label", "RMSE", "MAE"], rows, 2) if rows else None


def _groups(evaluation: Evaluation | None) -> Markup | None:
    if evaluation is None:
        return None
    if not evaluation.groups:
        return section("For groups of records", paragraph("No groups were distinguished (data.groups).", "notice"))
    single = len(evaluation.layout.outcomes) == 1
    heads = [evaluation.layout.group_column, "Records", evaluation.layout.score, "loss"]
    heads += list(OUTCOME_HEADS[:4]) if single else []
    rows = []
    for group in evaluation.groups:
        row = [group.name, _noisy(group, "records", count), _noisy(group, "score"), number(group.loss)]
        if single:
            row += _figures(group.outcomes[0])[:4] if group.outcomes else [NOTHING] * 4
        rows.append(row)
    few = f"Not published: groups of fewer than {evaluation.suppress} records, or at fewer than three sites: {NOTHING}."
    return section("For groups of records", paragraph(few), table(heads, rows, len(heads) - 1))


def _sites(evaluation: Evaluation | None) -> Markup | None:
    if evaluation is None or not (evaluation.places or evaluation.named):
        return None
    rows = [[str(place + 1), _between(low, high)] for place, (low, high) in enumerate(evaluation.places)]
    named = [[f"site {one.site}", count(one.records), number(one.score)] for one in evaluation.named]
    left = evaluation.unplaced
    few = f"; not of {left}, with fewer than {evaluation.suppress} right, or wrong, answers" if left else ""
    return section(
        "At the sites",
        paragraph(f"The {evaluation.layout.score} of each site on its own records, the worst first{few}."),
        grid(
            table(["Place, the worst first", evaluation.layout.score], rows, 1),
            table(["Site", "Records", evaluation.layout.score], named, 2) if named else None,
        ),
    )


def _between(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f}\u202f%"


def _membership(evaluation: Evaluation | None) -> Markup | None:
    if evaluation is None:
        return None
    return section("Does it reveal which records it was trained on?", _tested(evaluation))


def _tested(evaluation: Evaluation) -> Markup:
    membership = evaluation.membership
    if membership is None and evaluation.layout.kept:
        alone = "each site tests it alone, by fedgossip privacy membership"
        return paragraph(f"Not published: under a budget a site's own test is not published; {alone}.", "notice")
    if membership is None:
        return paragraph("Not tested: no site has kept records apart from its training.", "notice")
    if membership.flagged:
        by = f"FLAGGED by {membership.flagged} of {membership.tested} sites"
        words = f"{by}: the model reveals which records it was trained on."
        return paragraph(words, "notice")
    if not membership.tested:
        return paragraph("Not tested: no site has enough records, 20 trained on and 20 others.", "notice")
    return paragraph(
        f"{plural(membership.tested, 'site')} tested it on their own records; none could tell. That proves nothing of "
        "stronger tests."
    )


# --- origin -----------------------------------------------------------------------------------------------------------


def _moved(margin: float | None) -> str:
    return f" ± {number(margin)}" if margin else ""


MISSING_WORDS = {
    REFUSE: "",
    MEAN: " An empty cell counts as the mean of its column.",
    INDICATOR: " An empty cell counts as the mean of its column, and as a feature of its own where enough have one.",
    DROP: " Records with an empty cell take no part.",
    IMPUTE: " Empty cells are drawn several times, by models of the other columns, and the fits pooled.",
}


def _data(release: Release, statistics: AgreedTable | None) -> Markup | None:
    if statistics is None:
        columns = ", ".join(release.model.columns[:COLUMNS]) or "no columns with names"
        return section("What it learned from", paragraph(f"{columns}. The sites have agreed on no statistics."))
    rows = []
    for one in statistics.columns[:COLUMNS]:
        kind = ", ".join(one.categories) if one.categories else one.unit
        at = one.margins.get
        cells = [NOTHING, NOTHING]
        if one.missing is not None:
            cells = [count(one.count) + _moved(at("count")), count(one.missing) + _moved(at("missing"))]
        moments = [NOTHING, NOTHING]
        if not one.common:
            moments = [number(one.mean) + _moved(at("mean")), number(one.deviation) + _moved(at("deviation"))]
        rows.append([one.name + (" (label)" if one.label else ""), kind, *cells, *moments])
    noisy = f", with noise of {number(statistics.noise)}" if statistics.noise else ""
    text = f"{count(statistics.records)} records of {plural(statistics.sites, 'site')}, by sums alone{noisy}."
    if statistics.schema.where:
        text += f" Only records with {statistics.schema.where.text} take part."
    text += MISSING_WORDS[statistics.schema.missing.partition(":")[0]]
    if isinstance(dropped := statistics.dropped, int):
        text += f" {count(dropped)} records were left out for an empty cell."
    heads = ["Column", "Unit or categories", "There", "Missing", "Mean", "Deviation"]
    return section("What it learned from", paragraph(text), folded("The columns", table(heads, rows, 4)))


def _privacy(release: Release) -> Markup | None:
    rows = [(what.capitalize(), words) for what, words in release.privacy.words]
    lines = "\n".join(f'<tr><th scope="row">{text(what)}</th><td>{text(words)}</td></tr>' for what, words in rows)
    return section("Privacy", Markup(f'<div class="card wide"><table><tbody>\n{lines}\n</tbody></table></div>'))


def _lineage(release: Release) -> Markup | None:
    approvals = [
        [one.who, one.by or NOTHING, one.time[:10], one.until[:10], one.key[:HASH]] for one in release.approvals
    ]
    took = [
        [f"site {site}", f"{len(rounds)} of {release.rounds}", ranges(rounds)]
        for site, rounds in enumerate(release.counted)
    ]
    return section(
        "Lineage",
        facts_table(
            "The plan",
            [
                ("Plan", release.plan[:HASH], "sha256 of plan.json, which is in the release"),
                ("Statistics", release.agreed[:HASH] or NOTHING, "sha256 of agreed.json"),
                ("Signed by", release.signer[:HASH], "the key of this release's author"),
            ],
        ),
        table(["Approved by", "Person", "On", "Until", "Key"], approvals, 0)
        if approvals
        else paragraph("No site has signed the plan of this run.", "notice"),
        table(["Who took part", "Rounds", "Which"], took, 1)
        if took
        else paragraph("The record does not follow single sites."),
    )


def _withdrawal() -> Markup | None:
    return section(
        "If a site withdraws",
        paragraph(
            "What a site has contributed cannot be taken out of a model: nothing here unlearns. The model contains "
            "what it sent in every round that it was counted in, the agreed statistics and the figures above its "
            "records, if it took part in them. A model without it is trained again, from statistics agreed on again: "
            "fedgossip release withdraw FILE --site K says what contains its data, and prints the commands."
        ),
    )


def _logs(release: Release) -> Markup | None:
    if not release.logs:
        return section("Logs", paragraph("There are none: a simulation, or no logs were given.", "notice"))
    rows = [[one.what, "sound" if one.sound else "NOT sound", one.told, one.file] for one in release.logs]
    sound = sum(one.sound for one in release.logs)
    return section(
        "Logs",
        paragraph(f"{sound} of {len(release.logs)} sound: every signature was checked, by everybody's keys."),
        folded("All of them", table(["What", "Verdict", "It says", "File"], rows, 0)),
    )
