"""`fedgossip sweep`: many runs of one experiment, a grid of keys and seeds, in a folder that several processes can
share.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.base.errors import PARTIAL_EXIT
from fedgossip.cli.text import columns, echo, print_json, talk_to_stderr

if TYPE_CHECKING:
    from fedgossip.lab.sweeps.cells import CellOutcome
    from fedgossip.lab.sweeps.folder import SweepFolder
    from fedgossip.lab.sweeps.grid import SweepCell
    from fedgossip.lab.sweeps.table import SweepTable

GB = 1e9


@click.command()
@click.argument("file", metavar="SWEEP", type=click.Path(path_type=Path))
@click.option("-j", "--jobs", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Workers at once.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: sweeps/NAME]")
@click.option("--dry-run", is_flag=True, help="List the cells: all, finished ones, and invalid ones; run none.")
@click.option("--on", type=click.Choice(["stacked", "sim", "local"]), help="In place of the file's engine.")
@click.option("--seeds", type=click.IntRange(1, 100_000), help="In place of the file's.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the base.")
@click.option("--limit-seconds", type=click.FloatRange(min=0), help="Begin no further cell after so many seconds.")
@click.option("--memory", type=click.FloatRange(min=0.1), metavar="GB", help="Of memory, for a worker.")
@click.option("--backend", default="local", show_default=True, help="local, ray:ADDRESS or slurm:PARTITION.")
@click.option("--retry", is_flag=True, help="Run cells again that failed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
def sweep(
    file: Path,
    jobs: int,
    out: Path | None,
    dry_run: bool,
    on: str | None,
    seeds: int | None,
    overrides: tuple[str, ...],
    limit_seconds: float | None,
    memory: float | None,
    backend: str,
    retry: bool,
    as_json: bool,
) -> int:
    """Run the unfinished cells of the file SWEEP, and write one table and one page of all.

    The same command resumes after an interruption of any kind; other processes may work in the same folder.
    """
    from fedgossip.experiment import ignored_by
    from fedgossip.lab.sweeps.folder import SweepFolder
    from fedgossip.lab.sweeps.grid import read_sweep
    from fedgossip.lab.sweeps.page import write_page
    from fedgossip.lab.sweeps.sweep import folder_of, run_sweep

    grid = read_sweep(file, overrides=overrides, engine=on, seeds=seeds)
    for line in ignored_by(grid.file.engine, grid.content):
        echo(line, err=True)
    place = folder_of(grid, out)
    if dry_run:
        return _dry(SweepFolder(place, grid), as_json=as_json)
    with talk_to_stderr() if as_json else contextlib.nullcontext():
        table = run_sweep(
            grid, place, jobs=jobs, backend=backend, limit_seconds=limit_seconds,
            memory=None if memory is None else int(memory * GB), retry=retry, tell=_print_outcome,
        )  # fmt: skip
        page = write_page(table)
    if as_json:
        print_json({"folder": str(table.folder), "rows": table.rows})
    else:
        echo(columns(summary(table)))
        echo(f"\n{counts_of_states(table)}\nEverything is in {table.folder}; open {page}")
    return 0 if table.done == len(table.rows) else PARTIAL_EXIT


def _print_outcome(cell: SweepCell, outcome: CellOutcome) -> None:
    if outcome.summary is None:
        echo(f"{cell.label}: {outcome.status.upper()}: {outcome.error}", err=True)
        return
    score = outcome.summary["score"]
    value = "-" if score["mean_peer"] is None else f"{score['mean_peer']:.4f}"
    where = "on the validation set, " if cell.trial else ""
    echo(f"{cell.label}: {where}mean peer's {score['name'] or 'score'} {value}", err=True)


def _dry(sweep: SweepFolder, *, as_json: bool) -> int:
    from fedgossip.lab.sweeps.cells import refusal
    from fedgossip.lab.sweeps.grid import name_values

    wanted = sweep.wanted()
    first = {name_values(cell.values): cell for cell in reversed(wanted)}
    refused = {name: why.error for name, cell in first.items() if (why := refusal(sweep.grid.experiment(cell)))}
    there = sum(sweep.outcome(cell) is not None for cell in wanted)
    trials = sum(cell.trial for cell in wanted)
    facts = {
        "combinations": len(sweep.grid.combinations), "seeds": len(sweep.grid.seeds), "trials": trials,
        "cells": len(sweep.grid.combinations) * len(sweep.grid.seeds), "there": there, "refused": refused,
    }  # fmt: skip
    if as_json:
        print_json(facts)
        return 0
    cells = f"{facts['combinations']} combinations, {facts['seeds']} seeds: {facts['cells']} cells"
    more = f"; {trials} trials of tuning to begin with" if trials else ""
    echo(f"{sweep.grid.name}: {cells}{more}; {there} exist already")
    for name, reason in refused.items():
        echo(f"refused  {name or 'the base'}: {reason}")
    return 0


def summary(table: SweepTable) -> list[list[str]]:
    """Return the lines of the printed table: a combination each, the mean over its seeds."""
    rows = [[*table.keys, *table.tuned, "seeds", "mean peer", "averaged", "worst peer", "to the reference (95 %)"]]
    for name in table.combinations:
        mine = [row for row in table.rows if row["combination"] == name]
        scores = [table.scores(name, which) for which in ("mean_peer", "averaged", "worst_peer")]
        means = [f"{sum(one.values()) / len(one):.4f}" if one else "-" for one in scores]
        tuned = ["-" if mine[0][key] is None else str(mine[0][key]) for key in table.tuned]
        seeds = str(len(scores[0])) if scores[0] else mine[0]["status"]
        rows.append([*(str(mine[0][key]) for key in table.keys), *tuned, seeds, *means, _difference(table, name)])
    return rows


def _difference(table: SweepTable, name: str) -> str:
    if name == table.reference:
        return "the reference"
    found = table.difference(name)
    if found is None:
        return ""
    interval = f"  [{found.student[0]:+.4f}, {found.student[1]:+.4f}]" if found.student else ""
    return f"{found.mean:+.4f}{interval}"


def counts_of_states(table: SweepTable) -> str:
    """Return the number of cells, by state."""
    parts = [f"{table.done} of {len(table.rows)} cells are done"]
    if table.failed:
        parts.append(f"{table.failed} failed or cannot be run (table.csv has the reasons)")
    if table.open:
        parts.append(f"{table.open} remain: the same command resumes")
    return "; ".join(parts) + "."
