"""`fedgossip predict`: the outputs of a run's model for the rows of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.sites.fits.fit_files import Fit

Command = Callable[..., Any]

MODEL = click.argument("model", type=click.Path(path_type=Path))


def model_options(command: Command) -> Command:
    """Add the options by which a model is opened."""
    node = click.option("--node", type=click.IntRange(min=0),
                        help="Node with the local layers to use, where some stay at the nodes.")  # fmt: skip
    code = click.option("--run-code", is_flag=True, help="Allow the modules inside the model's folder to run.")
    return node(code(command))


@click.command()
@MODEL
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("scored.csv"),
    show_default=True,
    help="File to write; one that is there is not written over.",
)
@model_options
def predict(model: Path, file: Path, out: Path, node: int | None, run_code: bool) -> None:
    """Write the rows of FILE, a CSV table, with MODEL's output for each: MODEL is a run directory, its folder model/,
    or the folder of a fit, which adds 95 % intervals.

    Columns are found by their names, in any order; unknown columns are copied and not read.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.base.owner_files import opened
    from fedgossip.sites.fits.fit_files import fit_in

    if out.exists():
        raise ConfigError(f"{out}: there already", "Name another file with --out.")
    fit = fit_in(model)
    text, unknown = _of_a_model(model, file, node, run_code=run_code) if fit is None else _of_a_fit(fit, file)
    if unknown:
        echo(f"not read: {', '.join(unknown)}", err=True)
    with opened(out, "xb") as written:
        written.write(text.encode())
    echo(f"Wrote {out}: {text.count(chr(10)) - 1} rows", err=True)


def _of_a_model(model: Path, file: Path, node: int | None, *, run_code: bool) -> tuple[str, Sequence[str]]:
    from fedgossip.learning.models.loaded_model import load_model
    from fedgossip.learning.models.scored_tables import scored

    return scored(load_model(model, node=node, run_code=run_code), file)


def _of_a_fit(fit: Fit, file: Path) -> tuple[str, Sequence[str]]:
    from fedgossip.sites.fits import fitted_tables
    from fedgossip.sites.fits.cox import cox_tables
    from fedgossip.sites.fits.cox.cox_result import CoxFit

    text, unknown = cox_tables.scored(fit, file) if isinstance(fit, CoxFit) else fitted_tables.scored(fit, file)
    head, *rows = csv.reader(io.StringIO(text))
    if head[-1] == fitted_tables.MARKS and (marked := sum(bool(row[-1]) for row in rows)):
        what = "numbers outside of what was agreed, or filled cells"
        echo(f"warning: {marked} of {len(rows)} rows have {what}: column {head[-1]!r}", err=True)
    return text, unknown
