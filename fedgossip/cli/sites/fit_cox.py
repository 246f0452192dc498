"""`fedgossip fit` of proportional hazards: the written files, and the printed tables of statisticians."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.sites.estimates import chi_squared, remarks, table_of
from fedgossip.cli.sites.sums import OtherMachines, Record, held_by, summed
from fedgossip.cli.text import echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment
    from fedgossip.sites.fits.cox.cox_result import CoxFit


def fit_cox(whole: Experiment, folder: Path, known: OtherMachines, site: int | None, *, as_json: bool) -> int:
    """Fit the hazards that model.source names; return the exit code.  Raises ConfigError."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.data.agreed.sum_files import encoded
    from fedgossip.runs.run_directory import write_whole
    from fedgossip.sites.plans.cox import cox_plan, cox_task, hazards_from

    plan, layout, agreed = cox_plan(whole)
    if folder.exists() and not known.dry_run:
        raise ConfigError(f"{folder}: is there already", "Name another folder, --to, or remove it.")
    plan, task, refused = cox_task(plan, layout, agreed, held_by(plan, known, site))
    ended = list[int]()

    def write(vector: Any, record: Record) -> None:
        found = hazards_from(plan, layout, vector)
        record(folder)
        text = encoded(found)
        write_whole(folder / run_format.FIT, text)
        echo(text.decode() if as_json else "\n".join(describe(found, plan.learners)))
        told = f": fedgossip predict {quoted(folder)} FILE.csv" if found.converged else ""
        echo(f"Wrote {folder / run_format.FIT}{told}", err=True)
        if not found.converged:
            echo(_why(found), err=True)
        ended.append(0 if found.converged else 9)

    return summed(plan, task, layout.design.digest, refused, site, known, write, layout.opened) or max(ended, default=0)


def _why(found: CoxFit) -> str:
    """Report the diverging columns; where one predicts the order of events, no finite estimate is the best."""
    d = found.design
    scaled = [abs(one.estimate) * by for one, by in zip(found.coefficients, d.deviation, strict=True)]
    name = found.coefficients[max(range(len(scaled)), key=scaled.__getitem__)].name
    text = f"the likelihood grows without end with the estimate of {name}: it orders the records by {d.event} = 1"
    if max(scaled) < 5:
        text = f"not at the end after {found.steps} steps; the largest estimate is that of {name}"
    return f'error: {text}\nLeave it out, drop=COLUMN; or keep estimates small:  model.source = "cox?ridge=1".'


def describe(found: CoxFit, sites: int) -> list[str]:
    """Return a fit for a person."""
    d = found.design
    unit = f" [{d.unit}]" if d.unit else ""
    steps = "one step" if found.steps == 1 else f"{found.steps} steps"
    at = f"at the end after {steps}" if found.converged else f"NOT at the end after {steps}"
    records = f"{found.records} records of {found.sites} of {sites} sites"
    times = len(found.strata[0].points)
    told = f"{found.events} of {found.events + found.unused} events until {d.grid[-1]:g} at {times} told times"
    lines = [f"proportional hazards, {d.time}{unit} until {d.event} = 1: {records}, {told}, {at}"]
    lines += table_of(found.coefficients, "z", "hazard ratio")
    lines += remarks(d.against, d.constant, found.silent)
    if d.strata_column:
        lines.append(f"each {d.strata_column} has a hazard of its own: {', '.join(d.strata)}")
    if d.ties != "breslow":
        lines.append("events at one told time are taken one after another: ties are Efron's")
    if d.ridge:
        lines.append(f"estimates and errors are those with a ridge of {d.ridge:g}, on columns of deviation 1")
    if found.log_likelihood is not None:
        null = "" if found.null_log_likelihood is None else f" ({found.null_log_likelihood:.6g} without any column)"
        ratio = ""
        if found.ratio is not None and found.p is not None:
            ratio = f"; likelihood ratio {chi_squared(found.ratio, found.freedom, found.p)}"
        lines.append(f"log likelihood {found.log_likelihood:.6g}{null}{ratio}")
    if found.concordance is not None:
        lines.append(f"concordance {found.concordance:.4f}, of {found.pairs:,} pairs of records of one site")
    return [*lines, _seen(found)]


def _seen(found: CoxFit) -> str:
    """Print what the coordinator could see, which is more than the fit."""
    from fedgossip.sites.fits.cox.cox_sums import EFRON

    each = f"{len(found.coefficients) + 1} sums over those at risk"
    each += " and as many over those with their event" if found.design.ties == EFRON else ""
    each += f" at each told time, at {found.points} points"
    return f"seen by the coordinator: {each}; no two of them differ by fewer than {found.smallest} records"
