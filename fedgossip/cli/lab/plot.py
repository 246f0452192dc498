"""`fedgossip plot`: one figure of runs, to a file or to the terminal.

On the terminal each curve is drawn with its own letter, in lines of text, with plain numbers on the axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.text import console, echo
from fedgossip.report.page.drawing import MARKERS
from fedgossip.report.page.numbers import number

COLUMN_INCHES, PAGE_INCHES = 3.3, 6.9
"""Widths of a figure in one column of a paper, and across its page."""
NARROWEST, WIDEST = 1.5, 40.0


def inches_of(_context: click.Context, _param: click.Parameter, value: str) -> float:
    """Return a width in inches: of column, page, or a number.  Raises BadParameter."""
    try:
        width = {"column": COLUMN_INCHES, "page": PAGE_INCHES}.get(value) or float(value)
    except ValueError:
        width = math.nan
    if not NARROWEST <= width <= WIDEST:
        raise click.BadParameter(f"{value!r} is none of column, page, and {NARROWEST} to {WIDEST} inches.")
    return width


width_option = click.option(
    "--width", metavar="column|page|INCHES", default="page", show_default=True, callback=inches_of,
    help="Of each figure of a paper.",
)  # fmt: skip


@click.command()
@click.argument("folders", metavar="RUN...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--x", "axis", default="round", show_default=True, help="round, epoch, bytes or seconds.")
@click.option("--y", "measure", help="A recorded number.  [default: the mean peer's score, or the first number]")
@click.option(
    "--out",
    type=OutputFile(".pdf", ".png", ".svg", ".csv", mark="panel,curve"),
    help="PDF, PNG, SVG or CSV.  [default: the terminal]",
)
@width_option
@click.option("--list", "listed", is_flag=True, help="List the numbers that the runs recorded.")
def plot(
    folders: tuple[Path, ...], axis: str, measure: str | None, out: Path | None, width: float, listed: bool
) -> None:
    """Draw one number of each RUN, or of the cells of a sweep's folder, against rounds, epochs, bytes or seconds.

    Runs that differ only in the seed are one curve: their mean, and a band of its 95 % interval.
    """
    from fedgossip.base import owner_files
    from fedgossip.base.errors import ConfigError
    from fedgossip.lab.sweeps.page import runs_of
    from fedgossip.report.page.drawing import save
    from fedgossip.report.page.learning_curves import learning_curves, list_axes, list_measures
    from fedgossip.report.page.sweep_figures import csv_of

    runs = runs_of(folders)
    known = list_measures(runs)
    if listed:
        echo(f"--x {', '.join(list_axes(runs))}\n--y {', '.join(known)}")
        return
    if not known:
        raise ConfigError("none of the runs recorded two rounds of a number", "Set eval.every, or run more rounds.")
    drawing = learning_curves(runs, axis, measure or known[0], width)
    if out is None:
        echo("\n".join([f"{measure or known[0]} by {axis}", *terminal_curves(drawing.numbers, axis, console().width)]))
        return
    if out.suffix.lower() == ".csv":
        owner_files.placed(out, csv_of(drawing.numbers).encode())
    else:
        save(out, drawing)
    echo(f"Wrote {out}")


HEIGHT, MARGIN = 16, 11
"""Lines of a panel; letters to its left."""
SIGNS = "ox+*#@%&=~^$"
assert len(SIGNS) >= len(MARKERS)


def terminal_curves(rows: Sequence[Mapping[str, Any]], x: str, width: int) -> list[str]:
    """Return the panels of `rows`, as numbered by `learning_curves`, one below the other, at most `width` letters."""
    lines: list[str] = []
    labels = list(dict.fromkeys(row["curve"] for row in rows))
    for panel in dict.fromkeys(row["panel"] for row in rows):
        mine = [row for row in rows if row["panel"] == panel]
        lines += [*([panel] if panel else []), *_panel(mine, labels, x, max(20, width - MARGIN - 2)), ""]
    return [*lines, *(f"{sign} {label}" for sign, label in zip(SIGNS, labels, strict=False))]


def _panel(rows: Sequence[Mapping[str, Any]], labels: Sequence[str], x: str, width: int) -> list[str]:
    values = [row["mean"] for row in rows]
    log = min(values) > 0 and max(values) / min(values) > 30
    place = math.log10 if log else float
    low, high = place(min(values)), place(max(values))
    left, right = min(row[x] for row in rows), max(row[x] for row in rows)
    grid = [[" "] * width for _ in range(HEIGHT)]
    for at, label in enumerate(labels):
        points = [
            (_share(row[x], left, right) * (width - 1), _share(place(row["mean"]), low, high) * (HEIGHT - 1))
            for row in rows if row["curve"] == label
        ]  # fmt: skip
        for column, value in _filled(points):
            grid[HEIGHT - 1 - round(value)][column] = SIGNS[at]
    ends = {0: number(max(values)), HEIGHT - 1: number(min(values))}
    lines = [f"{ends.get(at, ''):>{MARGIN}} |{''.join(line).rstrip()}" for at, line in enumerate(grid)]
    axis = f"{number(left)}{x + (', log y' if log else ''):^{width - 16}}{number(right):>8}"
    return [*lines, f"{'':>{MARGIN}} +{'-' * width}", f"{'':>{MARGIN}}  {axis}"]


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value - low) / (high - low)


def _filled(points: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    if not points:
        return []
    found = [(round(points[0][0]), points[0][1])]
    for (x0, y0), (x1, y1) in pairwise(points):
        first, last = round(x0), round(x1)
        found += [(at, y0 + (y1 - y0) * (at - first) / (last - first)) for at in range(first + 1, last)]
        found.append((last, y1))
    return found
