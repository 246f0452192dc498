"""The page of `fedgossip sweep`, and the same figures and tables as files for a paper."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedgossip.base import owner_files
from fedgossip.report.page.drawing import Drawing, draw, save
from fedgossip.report.page.markup import (
    Markup,
    document,
    figure,
    folded,
    join,
    paragraph,
    section,
    table,
    text,
    write_atomically,
)
from fedgossip.report.page.numbers import NOTHING, number, plural
from fedgossip.report.page.sweep_figures import (
    HATCHED,
    SweepPage,
    SweepPoints,
    difference_numbers,
    mean_of,
    paintings,
    sides,
)

Numbers = Sequence[Mapping[str, Any]]
"""Rows with the same keys."""


def written(path: Path, page: SweepPage) -> None:
    """Write the page, one file that loads nothing; a reader sees the old one or the new one."""
    write_atomically(path, document(f"{page.title} – fedgossip", _head(page), _body(page)))


def paper(
    folder: Path, page: SweepPage, rows: str, curves: Mapping[str, Drawing], targets: Numbers, words: Sequence[str]
) -> list[Path]:
    """Write the files for a paper: each figure as PDF, with its numbers as CSV and LaTeX; tables, and the commands.

    `curves`: further figures by name.  `targets`: of the table of rounds to a target.  `words`: of the command line
    that makes the files again, behind the folder of the sweep.
    """
    owner_files.made(folder)
    found, again = [], shlex.quote(shlex.split(page.command)[-1])
    width = next((drawing.width for drawing in curves.values()), None)
    tables: dict[str, Numbers] = {"differences": difference_numbers(page), "targets": targets}
    for name, drawing in {**paintings(page, width), **curves}.items():
        save(folder / f"{name}.pdf", drawing)
        found.append(folder / f"{name}.pdf")
        tables[name] = drawing.numbers
    listed = {f"{name}.csv": csv_of(numbers) for name, numbers in tables.items()}
    listed |= {f"{name}.tex": latex_of(numbers, page.command) for name, numbers in tables.items()}
    listed |= {
        "cells.csv": rows,
        "scores.tex": latex(page),
        "COMMANDS.txt": f"{page.command}\nfedgossip report {again} {shlex.join(words)}\n",
    }
    for name, content in listed.items():
        owner_files.placed(folder / name, content.encode())
        found.append(folder / name)
    return found


def _head(page: SweepPage) -> Markup:
    seeds = len({row["seed"] for row in page.rows})
    scored = sum(row[page.compared] is not None for row in page.rows)
    counted = f"{plural(len(page.combinations), 'combination')} with {plural(seeds, 'seed')} each"
    lead = f"{counted}: {plural(len(page.rows), 'cell')}, of which {scored} have a score."
    sentence = (
        f"All cells of a seed have the same data, first model and batches, and are compared at equal {page.equal}."
    )
    if page.over > 1:
        sentence += f"  A score is the mean over the last {page.over} evaluated rounds."
    elif page.equal == "rounds":
        sentence += "  Each is reported at its last round."
    return join([
        paragraph("fedgossip sweep", "over"), Markup(f"<h1>{text(page.title)}</h1>"), paragraph(lead, "lead"),
        paragraph(sentence),
    ])  # fmt: skip


def _body(page: SweepPage) -> Markup:
    drawn = {name: draw(name, one.height, one.paint, one.width) for name, one in paintings(page).items()}
    head = page.measured[:1].upper() + page.measured[1:]
    heat = figure("heat", drawn.get("heat"), head, HATCHED)
    differences = figure("differences", drawn.get("differences"), "Differences", _caption(page))
    facts = [figure(one.figure, drawn.get(one.figure), f"{page.metric.heading} by {one.word}", _orders(one))
             for one in page.points]  # fmt: skip
    return join([
        section("Scores", heat, _scores(page)),
        section("Against the reference", differences, _differences(page)),
        section("What of a graph says how it trains", *facts),
        section("Without a score", _without(page)),
        section("All cells", folded(f"{len(page.rows)} rows", _cells(page)), paragraph(f"Made by: {page.command}")),
    ])  # fmt: skip


COLUMNS = (("mean_peer", "Mean peer"), ("averaged", "Averaged model"), ("worst_peer", "Worst peer"))


def _scores(page: SweepPage) -> Markup:
    columns = _columns(page)
    heads = [*page.keys, *page.tuned, "Seeds", *(head for _, head in columns)]
    rows = []
    for found in page.combinations.values():
        counted = sum(row[page.compared] is not None for row in found)
        shown = [page.shown(mean_of(found, which)) for which, _ in columns]
        values = [NOTHING if found[0][key] is None else str(found[0][key]) for key in (*page.keys, *page.tuned)]
        rows.append([*values, str(counted), *shown])
    return table(heads, rows, numbers=1 + len(columns))


def _columns(page: SweepPage) -> Sequence[tuple[str, str]]:
    return COLUMNS if page.compared in dict(COLUMNS) else ((page.compared, page.metric.heading),)


def _caption(page: SweepPage) -> str:
    return (
        f"To {page.short(page.reference)}, of pairs with the same seed: the mean, Student's interval (thin) and a "
        f"bootstrap's (thick), both of {page.level:.0%}; in brackets the number of pairs.  p: of the paired t test, "
        "two-sided; by Holm for all of these differences together."
    )


def _differences(page: SweepPage) -> Markup | None:
    if not page.differences:
        return None

    def interval(found: tuple[float, float] | None) -> str:
        return NOTHING if found is None else f"{page.signed(found[0])} to {page.signed(found[1])}"

    heads = ["Combination", "Pairs", "Mean difference", "Student", "Bootstrap", "p", "p (Holm)"]
    rows = [
        [page.short(one.combination), str(one.pairs), page.signed(one.mean), interval(one.student),
         interval(one.bootstrap), number(one.p), number(one.holm)]
        for one in page.differences
    ]  # fmt: skip
    return table(heads, rows, numbers=6)


def _orders(one: SweepPoints) -> str:
    lines = []
    for group, (rho, interval) in one.orders.items():
        within = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        lines.append(f"{group or 'all'} {rho:.2f}{within}".replace("-", "−"))
    ranks = f"Spearman's rho, with a bootstrap's interval: {'; '.join(lines)}." if lines else ""
    return f"A point is a graph, the mean over its seeds. {ranks}".strip()


def _without(page: SweepPage) -> Markup | None:
    rows = [[row["combination"], str(row["seed"]), row["status"], row["error"] or NOTHING]
            for row in page.rows if row["status"] in ("failed", "refused")]  # fmt: skip
    return table(["Cell", "Seed", "Status", "Why"], rows, numbers=0) if rows else None


def _cells(page: SweepPage) -> Markup:
    columns = [*_columns(page), ("test_loss", "Test loss")] if page.compared != "test_loss" else _columns(page)
    heads = ["Cell", *page.tuned, "Seed", "Status", *(head for _, head in columns), "n_W"]
    rows = []
    for row in page.rows:
        name = text(row["combination"] or page.title)
        if row["cell"]:
            name = Markup(f'<a href="./{quote(row["cell"])}/">{name}</a>')
        tuned = [NOTHING if row[key] is None else str(row[key]) for key in page.tuned]
        numbers = [number(row[which]) if which == "test_loss" else page.shown(row[which]) for which, _ in columns]
        rows.append([name, *tuned, str(row["seed"]), row["status"], *numbers, number(row["n_w"])])
    return table(heads, rows, numbers=1 + len(columns))


def csv_of(numbers: Numbers) -> str:
    """Return rows of numbers as CSV, each to the last digit."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(numbers[0]) if numbers else [], lineterminator="\n")
    if numbers:
        writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in numbers)
    return out.getvalue()


def latex_of(numbers: Numbers, command: str) -> str:
    """Return rows of numbers as a LaTeX table (booktabs)."""
    first = numbers[0] if numbers else {"": ""}
    body = [
        [_tex(one) if isinstance(one, str) else "" if one is None else _tex_number(one) for one in row.values()]
        for row in numbers
    ]
    return _tabular([command], ["l" if isinstance(one, str) else "r" for one in first.values()], list(first), body)


def latex(page: SweepPage) -> str:
    """Return the scores as a LaTeX table (booktabs): the first key down, all others across."""
    down, across = sides(page) if page.keys else ([""], [page.metric.word])
    scale = 100.0 if page.metric.percent else 1.0
    cells: dict[tuple[str, str], str] = {}
    for name, rows in page.combinations.items():
        known = [row[page.compared] * scale for row in rows if row[page.compared] is not None]
        mean = math.fsum(known) / len(known) if known else 0.0
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
        shown = (lambda value: f"{value:.2f}") if page.metric.percent else _tex_number
        text = "--" if not known else shown(mean) if spread is None else rf"{shown(mean)} $\pm$ {shown(spread)}"
        key = str(rows[0][page.keys[0]]) if page.keys else ""
        cells[key, page.rest(rows[0]) if page.keys else page.metric.word] = (
            rf"\textbf{{{text}}}" if name in page.surely_best else text
        )
    unit = ", per cent" if page.metric.percent else ""
    notes = [page.command, f"{page.measured}{unit}: mean and standard deviation over seeds"]
    if page.surely_best:
        notes.append(f"bold: the best of its column, where the {page.level:.0%} interval of the paired difference to "
                     "each other one leaves 0 out")  # fmt: skip
    body = [[_tex(one), *(cells.get((one, other), "--") for other in across)] for one in down]
    heads = [page.keys[0] if page.keys else "", *across]
    return _tabular(notes, ["l", *("c" for _ in across)], heads, body)


def _tabular(notes: Sequence[str], columns: Sequence[str], heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [
        *(f"% {note}" for note in notes),
        rf"\begin{{tabular}}{{{''.join(columns)}}}",
        r"\toprule",
        " & ".join(map(_tex, heads)) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex_number(value: float) -> str:
    """Return a number with four significant digits; whole ones as they are."""
    if isinstance(value, int) or value == 0 or not math.isfinite(value):
        return str(value)
    if 1e-3 <= abs(value) < 1e7:
        return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
    mantissa, power = f"{value:.3e}".split("e")
    return rf"${mantissa}\times 10^{{{int(power)}}}$"


def _tex(words: str) -> str:
    """Words that LaTeX prints as they are."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in words)
