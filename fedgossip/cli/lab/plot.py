"""`fedgossip plot`: one figure of runs, to a file or to the terminal."""

from __future__ import annotations

import math
from pathlib import Path

import click

from fedgossip.cli.text import console, echo

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
@click.option("--y", "measure", help="A recorded number.  [default: the mean peer's score, or the first there is]")
@click.option("--out", type=click.Path(path_type=Path), help="PDF, PNG, SVG or CSV.  [default: the terminal]")
@width_option
@click.option("--list", "listed", is_flag=True, help="List the numbers that the runs recorded.")
def plot(
    folders: tuple[Path, ...], axis: str, measure: str | None, out: Path | None, width: float, listed: bool
) -> None:
    """Draw one number of each RUN, or of the cells of a sweep's folder, against rounds, epochs, bytes or seconds.

    Runs that differ in the seed alone are one curve: their mean, and a band of its 95 % interval.
    """
    from fedgossip.base import owner_files
    from fedgossip.base.errors import ConfigError
    from fedgossip.lab.sweeps.curves import runs_of
    from fedgossip.report.page.drawing import save
    from fedgossip.report.page.learning_curves import known_axes, known_measures, learning_curves
    from fedgossip.report.page.sweep import csv_of
    from fedgossip.report.page.terminal_curves import terminal_curves

    runs = runs_of(folders)
    known = known_measures(runs)
    if listed:
        echo(f"--x {', '.join(known_axes(runs))}\n--y {', '.join(known)}")
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
