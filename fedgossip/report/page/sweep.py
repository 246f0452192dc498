"""The page of `fedgossip sweep`, and the same figures and tables as files for a paper."""

from __future__ import annotations

import csv
import io
import math
import os
import shlex
from pathlib import Path
from urllib.parse import quote

from fedgossip.base import owner_files
from fedgossip.report.page.drawing import draw, print_pdf
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
from fedgossip.report.page.sweep_figures import HATCHED, SweepPage, SweepPoints, mean_of, paintings, sides


def written(path: Path, page: SweepPage) -> None:
    """Write the page, one file that loads nothing; a reader sees the old one or the new one."""
    write_atomically(path, document(f"{page.title} – fedgossip", _head(page), _body(page)))


def paper(folder: Path, page: SweepPage, rows: str) -> list[Path]:
    """Write the files for a paper: PDF figures, tables as CSV and LaTeX, and the command that makes them again."""
    owner_files.made(folder)
    found, again = [], shlex.quote(shlex.split(page.command)[-1])
    for name, (height, width, paint) in paintings(page).items():
        print_pdf(folder / f"{name}.pdf", height, paint, width)
        found.append(folder / f"{name}.pdf")
    listed = {
        "cells.csv": rows,
        "differences.csv": _differences_csv(page),
        "scores.tex": latex(page),
        "COMMANDS.txt": f"{page.command}\nfedgossip report {again} --paper {shlex.quote(os.fspath(folder))}\n",
    }
    for name, content in listed.items():
        owner_files.placed(folder / name, content.encode())
        found.append(folder / name)
    return found


def _head(page: SweepPage) -> Markup:
    seeds = len({row["seed"] for row in page.rows})
    without = [row for row in page.rows if row["status"] in ("failed", "refused", "open")]
    counted = f"{plural(len(page.combinations), 'combination')} with {plural(seeds, 'seed')} each"
    lead = f"{counted}: {plural(len(page.rows), 'cell')}, of which {len(page.rows) - len(without)} have a score."
    said = f"All cells of a seed have the same data, first model and batches, and are compared at equal {page.equal}."
    if page.over > 1:
        said += f"  A score is the mean over the last {page.over} evaluated rounds."
    elif page.equal == "rounds":
        said += "  Each is reported at its last round."
    return join([
        paragraph("fedgossip sweep", "over"), Markup(f"<h1>{text(page.title)}</h1>"), paragraph(lead, "lead"),
        paragraph(said),
    ])  # fmt: skip


def _body(page: SweepPage) -> Markup:
    drawn = {name: draw(name, height, paint, width) for name, (height, width, paint) in paintings(page).items()}
    heat = figure("heat", drawn.get("heat"), f"{page.metric.heading} of the mean peer", HATCHED)
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
    heads = [*page.keys, *page.tuned, "Seeds", *(head for _, head in COLUMNS)]
    rows = []
    for found in page.combinations.values():
        counted = sum(row["mean_peer"] is not None for row in found)
        shown = [page.shown(mean_of(found, which)) for which, _ in COLUMNS]
        values = [NOTHING if found[0][key] is None else str(found[0][key]) for key in (*page.keys, *page.tuned)]
        rows.append([*values, str(counted), *shown])
    return table(heads, rows, numbers=1 + len(COLUMNS))


def _caption(page: SweepPage) -> str:
    return (
        f"To {page.short(page.reference)}, of pairs with the same seed: the mean, Student's interval (thin) and a "
        f"bootstrap's (thick), both of {page.level:.0%}."
    )


def _differences(page: SweepPage) -> Markup | None:
    if not page.differences:
        return None

    def interval(found: tuple[float, float] | None) -> str:
        return NOTHING if found is None else f"{page.signed(found[0])} to {page.signed(found[1])}"

    heads = ["Combination", "Pairs", "Mean difference", "Student", "Bootstrap"]
    rows = [
        [page.short(one.combination), str(one.pairs), page.signed(one.mean), interval(one.student),
         interval(one.bootstrap)]
        for one in page.differences
    ]  # fmt: skip
    return table(heads, rows, numbers=4)


def _orders(one: SweepPoints) -> str:
    told = []
    for group, (rho, interval) in one.orders.items():
        within = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        told.append(f"{group or 'all'} {rho:.2f}{within}".replace("-", "−"))
    ranks = f"Spearman's rho, with a bootstrap's interval: {'; '.join(told)}." if told else ""
    return f"A point is a graph, the mean over its seeds. {ranks}".strip()


def _without(page: SweepPage) -> Markup | None:
    rows = [[row["combination"], str(row["seed"]), row["status"], row["error"] or NOTHING]
            for row in page.rows if row["status"] in ("failed", "refused")]  # fmt: skip
    return table(["Cell", "Seed", "Status", "Why"], rows, numbers=0) if rows else None


def _cells(page: SweepPage) -> Markup:
    heads = ["Cell", *page.tuned, "Seed", "Status", *(head for _, head in COLUMNS), "Test loss", "n_W"]
    rows = []
    for row in page.rows:
        name = text(row["combination"] or page.title)
        if row["cell"]:
            name = Markup(f'<a href="./{quote(row["cell"])}/">{name}</a>')
        tuned = [NOTHING if row[key] is None else str(row[key]) for key in page.tuned]
        numbers = [page.shown(row[which]) for which, _ in COLUMNS]
        facts = [number(row["test_loss"]), number(row["n_w"])]
        rows.append([name, *tuned, str(row["seed"]), row["status"], *numbers, *facts])
    return table(heads, rows, numbers=2 + len(COLUMNS))


def _differences_csv(page: SweepPage) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["combination", "reference", "pairs", "mean", "t_low", "t_high", "bootstrap_low", "bootstrap_high"])
    for one in page.differences:
        ends = [*(one.student or ("", "")), *(one.bootstrap or ("", ""))]
        writer.writerow([one.combination, page.reference, one.pairs, one.mean, *ends])
    return out.getvalue()


def latex(page: SweepPage) -> str:
    """Return the scores as a LaTeX table (booktabs): the first key down, all others across."""
    down, across = sides(page) if page.keys else ([""], [page.metric.word])
    scale = 100.0 if page.metric.percent else 1.0
    cells: dict[tuple[str, str], str] = {}
    for rows in page.combinations.values():
        known = [row["mean_peer"] * scale for row in rows if row["mean_peer"] is not None]
        mean = math.fsum(known) / len(known) if known else 0.0
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
        said = "--" if not known else f"{mean:.2f}" if spread is None else rf"{mean:.2f} $\pm$ {spread:.2f}"
        key = str(rows[0][page.keys[0]]) if page.keys else ""
        cells[key, page.rest(rows[0]) if page.keys else page.metric.word] = said
    unit = ", per cent" if page.metric.percent else ""
    lines = [
        f"% {page.command}",
        f"% mean peer's {page.metric.word}{unit}: mean and standard deviation over seeds",
        rf"\begin{{tabular}}{{l{'c' * len(across)}}}",
        r"\toprule",
        " & ".join([_tex(page.keys[0] if page.keys else ""), *map(_tex, across)]) + r" \\",
        r"\midrule",
        *(" & ".join([_tex(one), *(cells.get((one, other), "--") for other in across)]) + r" \\" for one in down),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex(words: str) -> str:
    """Words that LaTeX prints as they are."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in words)
