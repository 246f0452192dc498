"""`fedgossip fit`: a model of all sites' tables by secure sums; a generalised linear one as statisticians print it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.sites.fit_words import describe, why_not
from fedgossip.cli.sites.sums import EXPERIMENT, SET, OtherMachines, Record, held_by, over_machines, summed
from fedgossip.cli.text import echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.sites.plans.sums import PlannedFit


@click.command()
@EXPERIMENT
@over_machines
@click.option("--to", type=click.Path(path_type=Path), help="Folder to make for the fit.  [default: fits/NAME]")
@click.option(
    "--bin-records",
    type=click.IntRange(min=1),
    help="What this site asks of trees: no bins of fewer records of a node than so many, on average.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@SET
def fit(
    experiment: Path,
    endpoints: Path | None,
    key: Path,
    ledger: Path | None,
    policy: Path,
    dry_run: bool,
    bind: str | None,
    out: Path | None,
    site: int | None,
    to: Path | None,
    bin_records: int | None,
    as_json: bool,
    overrides: tuple[str, ...],
    carrier: FolderCarrier | None,
) -> int:
    """Fit the model that model.source names to all sites' tables, by secure sums: it is that of all records in one
    place.  A generalised linear one (glm:logistic, glm:linear, glm:poisson, glm:gamma), boosted trees (trees:100x6),
    survival (kaplan-meier?every=30&until=720), proportional hazards (cox?every=30&until=720), or tables
    (table1?by=COLUMN, correlations, meta-analysis?family=logistic, multinomial, ordinal, negative-binomial, firth,
    elastic-net?family=logistic, weibull).

    Writes fit.json (of trees trees-fit.json, of survival survival.json, of tables tables.json), and of
    those that predict model/, into a new folder; `fedgossip predict` reads fit.json and model/.  Without --endpoints
    all sites' files are on this machine; with it this is one of them, or the coordinator.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.sites.plans.fits import planned_fit

    whole = load_experiment(experiment, overrides)
    known = OtherMachines(experiment, endpoints, key, ledger, bind, out, overrides, policy, dry_run, carrier)
    planned, folder = planned_fit(whole), to or Path("fits") / (whole.name or experiment.stem)
    layout = planned.layout
    if folder.exists() and not (dry_run or known.goes_on):
        raise ConfigError(f"{folder}: is there already", "Name another folder, --to, or remove it.")
    if bin_records and getattr(layout.design, "bin_records", bin_records) < bin_records:
        text = f"bin_records = {layout.design.bin_records} in model.source, and this site asks for {bin_records}"
        raise ConfigError(text, f"Agree with the others on trees:...?bin_records={bin_records}, or take no part.")
    plan, task, refused = planned.of_sites(held_by(planned.plan, known, site))
    if not dry_run:
        up, down = plan.sent_up(task.length, task.dtype), task.length * task.dtype.itemsize
        echo(f"each round: {up:,} bytes up and {down:,} down for a site, beside the keys of its sum", err=True)
    ended = list[int]()

    def write(vector: Any, record: Record) -> None:
        if not known.is_written(folder / planned.run.file):
            ended.append(_write(folder, planned, vector, record, as_json=as_json))

    return summed(plan, task, layout.design.digest, refused, site, known, write, layout.opened) or max(ended, default=0)


def _write(folder: Path, planned: PlannedFit, vector: Any, record: Record, *, as_json: bool) -> int:
    """Write and show the fit; return the exit code."""
    from fedgossip.data.agreed.sum_files import encoded
    from fedgossip.learning.models.model_files import write_model
    from fedgossip.runs.run_directory import write_whole

    run, found = planned.run, planned.result(vector)
    record(folder)
    text, wrote = encoded(found), folder / run.file
    write_whole(wrote, text)
    model = run.model(planned.layout, planned.agreed, vector) if run.model else None
    if model is not None:
        write_model(folder / run_format.MODEL, model, write_whole)
    echo(text.decode() if as_json else "\n".join(describe(found, planned.plan.learners)))
    told, why = str(wrote), why_not(found)
    if model is not None:
        told += f", and {folder / run_format.MODEL}"
    if model is not None or (run.file == run_format.FIT and not why):
        told += f": fedgossip predict {quoted(folder)} FILE.csv"
    echo(f"Wrote {told}", err=True)
    if why:
        echo(why, err=True)
    return 9 if why else 0
