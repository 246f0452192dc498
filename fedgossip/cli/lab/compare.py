"""`fedgossip compare`: the classical methods of parallel training, compared from one file."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.errors import ConfigError
from fedgossip.cli.text import columns, echo, print_json, talk_to_stderr
from fedgossip.core.run_format import EXPERIMENT, SWEEP

if TYPE_CHECKING:
    from fedgossip.lab.compare.measured import MeasuredCell, TunedRate

USUAL = "mapreduce,ring,halving-doubling,parameter-server,parameter-server:async,fedavg,gossip,gossip:async"


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--paradigms", default=USUAL, show_default=True, help="Which, with commas between.")
@click.option(
    "-n",
    "--n",
    "--workers",
    "workers",
    default="",
    help="Numbers of workers, with commas between.  [default: the file's, else 4]",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each, seed by seed.")
@click.option("--tune", is_flag=True, help="Give each paradigm its own train.lr, the best of five around the file's.")
@click.option("--on", type=click.Choice(["sim", "local"]), default="sim", show_default=True, help="As for `run`.")
@click.option("--backend", default="", help="Where the cells run: ray:ADDRESS, slurm:PARTITION.  [default: here]")
@click.option("-j", "--jobs", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Workers there.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: the file's name and -compared]")
@click.option("--report/--no-report", default=True, help="Write report.html of every run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
def compare(
    experiment: Path,
    paradigms: str,
    workers: str,
    seeds: int,
    tune: bool,
    on: str,
    backend: str,
    jobs: int,
    overrides: tuple[str, ...],
    out: Path | None,
    report: bool,
    as_json: bool,
) -> int:
    """Run the file EXPERIMENT by several paradigms, and write one page that compares them.

    The file may have [topology], [coordinator] and [parallel] together.  Each run is an ordinary run directory in the
    folder; existing runs are not repeated, so the same command resumes after an interruption.
    """
    from fedgossip.base import outside_files, owner_files
    from fedgossip.experiment.reading import RUN_KINDS, check_agree, content_of
    from fedgossip.lab.compare.cells import CellGrid, compare_section, run_cells, workers_of
    from fedgossip.lab.compare.measured import chosen_rates, measured, rows_of, tuned
    from fedgossip.lab.compare.names import paradigm_of
    from fedgossip.lab.compare.verdict import comparison, summary_of, write_page

    check_agree(overrides, dict.fromkeys((kind.size for kind in RUN_KINDS.values()), workers or None))
    where, content = content_of(experiment, overrides)
    section = compare_section(content, where)
    names = [name.strip() for name in paradigms.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise click.UsageError(f"--paradigms {paradigms}: write different names with commas between, such as {USUAL}")
    for name in names:
        paradigm_of(name)
    first = int(content.get("seed", 1))
    numbers = _numbers(workers) if workers else [workers_of(content, where)]
    grid = CellGrid(content, where, names, numbers, range(first, first + seeds))
    out = out or Path(f"{experiment.stem}-compared")
    if other := next((name for name in (EXPERIMENT, SWEEP) if (out / name).exists()), None):
        raise ConfigError(f"{out}: {other} is in it, of a run or a sweep", "Give another folder with --out.")
    owner_files.make_folder(out)
    outside_files.checked_folder(out)
    cells = []
    found_rates: Mapping[str, TunedRate] = {}
    if jobs > 1 and not backend:
        raise click.UsageError("-j goes with --backend; here cells run one after the other")
    with talk_to_stderr() if as_json else contextlib.nullcontext():
        if tune:
            owner_files.make_folder(out / "tuning")
            found_rates = tuned(grid, out / "tuning", on, _print_tried, backend=backend, jobs=jobs)
            grid = replace(grid, rates=chosen_rates(found_rates))
        for done in run_cells(grid, out, on, report=report, backend=backend, jobs=jobs):
            cells.append(measured(done, on))
            echo(_describe(cells[-1], again=done.again), err=True)
    found = comparison(cells, section.equal, section.target, on, rows_of(found_rates))
    summary = summary_of(found)
    page = write_page(out, found, summary)
    if as_json:
        print_json(summary)
    else:
        echo(columns(_table(summary["table"])))
        echo(LEGEND)
        echo(f"\n{summary['sentence']}\nEverything is in {out}; open {page}")
    return 0 if all(not one.error for one in cells) else 9


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or min(found) < 1 or len(set(found)) != len(found):
        raise click.UsageError(f"--workers {text}: write different whole numbers with commas between, such as 1,2,4")
    return found


def _describe(one: MeasuredCell, *, again: bool) -> str:
    cell = one.cell
    text = f"{cell.name}, {cell.workers} workers, seed {cell.seed}: "
    if one.error:
        return f"{text}FAILED: {one.error}"
    loss = f", test loss {one.point.loss:.4g}" if one.point else ""
    return f"{text}{one.rounds} rounds in {one.seconds:.4g} s{loss}{' (was there)' if again else ''}"


def _print_tried(rate: float, one: MeasuredCell) -> None:
    echo(f"train.lr {rate:g}: {_describe(one, again=False)}", err=True)


HEADS = [
    "paradigm", "workers", "rounds", "seconds", "to target", "test loss", "apart", "compute", "communicate", "wait",
    "a round", "model", "formula",
]  # fmt: skip
LEGEND = """
Times are seconds.  apart: how far the models are from their mean at the end; compute, communicate and wait are those of
the run at the mean learner.  a round: as measured;
model: as the cost model follows its steps; formula: the closed form (docs/together/paradigms.md)."""
NOTHING = 1e-6
"""Seconds below this are rounding errors of sums."""


def _table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    found = [HEADS]
    for row in rows:
        if "rounds" not in row:
            found.append([row["paradigm"], str(row["workers"]), "failed", *[""] * 10])
            continue
        predicted = row.get("told", {})
        keys = "seconds", "seconds_to_target", "test_loss", "models_apart", "compute", "communicate", "wait"
        numbers = [row[key] for key in keys]
        rest = [row["round_seconds"], predicted.get("round_seconds"), predicted.get("formula")]
        shown = ["-" if value is None else f"{value:.4g}" if value >= NOTHING else "0" for value in (*numbers, *rest)]
        found.append([row["paradigm"], str(row["workers"]), str(row["rounds"]), *shown])
    return found
