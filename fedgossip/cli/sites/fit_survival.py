"""`fedgossip fit` of survival: the written files, and the printed tables of statisticians."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgossip.cli.sites.estimates import chi_squared
from fedgossip.cli.sites.sums import OtherMachines, Record, held_by, summed
from fedgossip.cli.text import columns, echo, short
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment
    from fedgossip.sites.fits.survival.survival_result import CurveFit, GroupCurve


def fit_survival(whole: Experiment, folder: Path, known: OtherMachines, site: int | None, *, as_json: bool) -> int:
    """Estimate the survival that model.source names; return the exit code.  Raises ConfigError."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.data.agreed.sum_files import encoded
    from fedgossip.runs.run_directory import write_whole
    from fedgossip.sites.plans.survival import curves_from, survival_plan, survival_task

    plan, layout, agreed = survival_plan(whole)
    if folder.exists() and not known.dry_run:
        raise ConfigError(f"{folder}: is there already", "Name another folder, --to, or remove it.")
    plan, task, refused = survival_task(plan, layout, agreed, held_by(plan, known, site))

    def write(vector: Any, record: Record) -> None:
        found = curves_from(plan, layout, agreed, vector)
        record(folder)
        text = encoded(found)
        write_whole(folder / run_format.CURVES, text)
        echo(text.decode() if as_json else "\n".join(describe(found, plan.learners)))
        echo(f"Wrote {folder / run_format.CURVES}", err=True)

    return summed(plan, task, layout.design.digest, refused, site, known, write, layout.opened)


def describe(found: CurveFit, sites: int) -> list[str]:
    """Return the curves for a person."""
    d, whole = found.design, found.everybody
    unit = f" [{d.unit}]" if d.unit else ""
    records = f"{whole.records} records of {found.sites} of {sites} sites, {whole.events} events"
    lines = [f"Kaplan-Meier survival, {d.time}{unit} until {d.event} = 1: {records}"]
    head = [d.time, "at risk", "events", "survival", "std. error", "95 % from", "to", "on the grid", "to"]
    for one in (whole, *found.groups):
        lines += [f"{d.group_column} = {one.name}"] if one.name else []
        rows = [
            [f"{point.time:g}", str(point.risk), str(point.events)]
            + [short(value) for value in (point.survival, point.error, point.low, point.high)]
            + [short(value) for value in (point.grid_low, point.grid_high)]
            for point in one.points
        ]
        lines.append(columns([head, *rows]))
    rows = [_median(one) for one in (whole, *found.groups)]
    lines.append(columns([["", "records", "events", "expected", "median", "95 % from", "to"], *rows]))
    if found.statistic is not None and found.p is not None:
        lines.append(f"log-rank: {chi_squared(found.statistic, found.freedom or 0, found.p)}")
    if found.hidden:
        lines.append(f"withheld, as they are too small or at too few sites: {', '.join(found.hidden)}")
    return lines


def _median(one: GroupCurve) -> list[str]:
    figures = (one.expected, one.median, one.median_low, one.median_high)
    return [one.name or "all", str(one.records), str(one.events), *map(short, figures)]
