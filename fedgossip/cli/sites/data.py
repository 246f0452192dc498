"""`fedgossip data`: the contents of a site's own table, and the common properties of all sites' tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.run.participant import listens
from fedgossip.cli.sites.sums import (
    EXPERIMENT,
    SET,
    OtherMachines,
    Record,
    check_enough,
    check_site,
    find_held,
    over_machines,
    print_dry_run,
    sum_at_one_desk,
    sum_with_others,
)
from fedgossip.cli.text import NOISY, CommandGroup, columns, echo, format_with_margin
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.base.errors import ConfigError
    from fedgossip.cli.sites.approval import Gate
    from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable, StatisticsTask
    from fedgossip.data.columns.table_schema import SchemaColumn, SiteColumns, TableSchema
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.experiment import Experiment
    from fedgossip.plans.approvals.approvals import ApprovalRequest
    from fedgossip.plans.federated.federation import FederationPlan


@click.group(cls=CommandGroup)
def data() -> None:
    """Tables of several sites: describe your own, agree on columns and statistics with the others."""


@data.command()
@EXPERIMENT
@click.option("--id", "node", type=click.IntRange(min=0), required=True, help="Which site this is.")
@SET
def describe(experiment: Path, node: int, overrides: tuple[str, ...]) -> None:
    """Show the contents of site K's table, and whether it fits the others' columns.  Nothing leaves this machine."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.data.agreed.agreed_table import StatisticsTask
    from fedgossip.data.columns.table_schema import (
        BadCell,
        SiteColumns,
        counted_as_rest,
        describe_bad,
        likely_codes,
        repeated_rows,
        units_unlike,
    )
    from fedgossip.experiment import load_experiment
    from fedgossip.plans.tasks import site_file
    from fedgossip.sites.plans.statistics import statistics_plan

    plan, schema = statistics_plan(load_experiment(experiment, [*overrides, "coordinator.privacy.unit=none"]))
    check_site(plan, node)
    file, test = site_file(plan.experiment, node), str(plan.experiment.data.test)
    bad: list[BadCell] = []
    site = SiteColumns(file, schema, plan.experiment.data.suppress, bad)
    StatisticsTask(schema, {node: site})  # numbers that no sum can hold are refused here as `agree` would
    fits = f"{len(bad)} cells do not fit" if bad else "it fits"
    echo(f"{file.path}: {site.records} records; {fits} the columns of {test}")
    for note in site.table.notes:
        echo(note)
    head = ["column", "unit", "there", "missing", "mean", "deviation", "least", "most", "categories"]
    echo(columns([head, *(_described(site, one) for one in schema.columns)]))
    for line in (*counted_as_rest(site), *repeated_rows(site), *likely_codes(site), *units_unlike(site, test)):
        echo(line)
    for line in describe_bad(bad):
        echo(line)
    if bad:
        more = f"; {len(bad) - 1} more cells do not fit" if len(bad) > 1 else ""
        raise ConfigError(f"{bad[0].error}{more}", bad[0].error.advice)


def _described(site: SiteColumns, column: SchemaColumn) -> list[str]:
    cells = site.cells[column.name]
    there = [cell for cell in cells if cell is not None]
    counts = str(len(there)), str(len(cells) - len(there))
    row = [column.name + (" (label)" if column.label else ""), column.unit, *counts]
    if column.categories:
        counted = (f"{one}: {there.count(one)}" for one in column.categories)
        return [*row, *[""] * 4, ", ".join(counted)]
    values = site.numbers(column.name)
    measured = [values.mean(), values.std(), values.min(), values.max()] if len(values) else []
    return [*row, *(f"{value:.6g}" for value in measured), *[""] * (4 - len(measured)), ""]


@data.command()
@EXPERIMENT
@over_machines
@SET
def agree(
    experiment: Path,
    site: int | None,
    endpoints: Path | None,
    key: Path,
    ledger: Path | None,
    policy: Path,
    dry_run: bool,
    bind: str | None,
    out: Path | None,
    overrides: tuple[str, ...],
    carrier: FolderCarrier | None,
) -> int:
    """Agree on the columns of all sites' tables and on their statistics, by secure sums: no participant can read a
    site's numbers.

    Writes the file named in data.agreed.  Without --endpoints all sites' files are on this machine, as for `fedgossip
    run`; with it this is one of the sites, or the coordinator.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.sites.plans.statistics import opened_by, statistics_plan, statistics_task
    from fedgossip.sites.plans.sums import from_seed

    whole = load_experiment(experiment, overrides)
    plan, schema = statistics_plan(whole)
    known = OtherMachines(experiment, endpoints, key, ledger, bind, out, overrides, policy, dry_run, carrier)
    if Path(plan.experiment.data.agreed).exists() and not (dry_run or known.goes_on):
        advice = "Remove it to agree again; two agreements of almost the same sites reveal the sites that differ."
        raise ConfigError(f"{plan.experiment.data.agreed}: agreed on already", advice)
    held = find_held(plan, known, site)
    if dry_run:
        plan, task, refused = statistics_task(plan, schema, held)
        return print_dry_run(plan, task, refused, opened_by(task), site, known)
    if endpoints is None:
        plan, task, refused = statistics_task(plan, schema, held, from_seed(plan))
        return _sum_at_one_desk(plan, task, schema, refused, ledger)
    plan, task, refused = statistics_task(plan, schema, held)
    who = plan.coordinator if site is None else site
    gate = _gate(whole, known, held[0]) if held else None

    def write(vector: Any, _record: Record) -> None:
        if not known.is_written(Path(plan.experiment.data.agreed)):
            _write(plan, task, schema, vector, gate)

    return sum_with_others(plan, task, schema.digest, refused, who, known, write, opened_by(task), gate)


def _gate(whole: Experiment, known: OtherMachines, site: int) -> Gate | None:
    """Require a site's approval of the plan with these statistics."""
    from dataclasses import replace

    from fedgossip.cli.sites.approval import approved
    from fedgossip.cli.sites.plan import stated_of
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans.approvals.approvals import AGREE, request_of
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.federated.policy import how_long
    from fedgossip.sites.plans.fits import is_fit
    from fedgossip.sites.plans.statistics import stated_statistics

    def wanted() -> ApprovalRequest:
        fits = is_fit(whole)
        run, statement = stated_statistics(whole) if fits else stated_of(whole, str(known.experiment))
        assert isinstance(run, FederationPlan) and known.endpoints, "it has a [coordinator], and others"
        everybody = load_endpoints(known.endpoints, run.n, listens(run, known.carrier))
        return replace(request_of(run, statement, site, everybody), step="" if fits else AGREE)

    return approved(wanted, known.key, how_long(known.policy), None)


def _sum_at_one_desk(
    plan: FederationPlan,
    task: StatisticsTask,
    schema: TableSchema,
    refused: Mapping[int, ConfigError],
    ledger: Path | None,
) -> int:
    from fedgossip.base.errors import BudgetError
    from fedgossip.plans.plan import EXHAUSTED
    from fedgossip.sites.plans.sums import spend_at_one_desk

    check_enough(plan, refused)
    for note in task.notes:
        echo(note, err=True)
    agreed = Path(plan.experiment.data.agreed)
    for line in spend_at_one_desk(plan, ledger or agreed.with_name(f"{agreed.name}.{run_format.SPENT}")):
        echo(line, err=True)
    run = sum_at_one_desk(plan, task)
    if run.summary["status"] == EXHAUSTED:
        text = f"the budget, epsilon at most {plan.section.privacy.max_epsilon:g}, does not allow two rounds of sums"
        raise BudgetError(text, "Raise coordinator.privacy.noise, or max_epsilon if the sites allow it.")
    _write(plan, task, schema, run.vectors[plan.coordinator])
    return 4 if refused else 0


def _write(
    plan: FederationPlan, task: StatisticsTask, schema: TableSchema, vector: Any, gate: Gate | None = None
) -> None:
    from fedgossip.data.agreed.sums_task import encoded
    from fedgossip.runs.run_directory import write_whole
    from fedgossip.sites.plans.statistics import agreed_from

    table = agreed_from(task, vector, schema, plan.experiment.data.suppress)
    path = Path(plan.experiment.data.agreed)
    if gate:
        gate.agreed(encoded(table))
    write_whole(path, encoded(table))
    _show(table, plan.learners)
    for line in task.units_unlike(table):
        echo(line, err=True)
    echo(f"Wrote {path}: sha256 {table.digest[:16]}; it is the same at all, compare it", err=True)


def _show(table: AgreedTable, sites: int) -> None:
    import msgspec

    margin = table.records_margin
    records = format_with_margin(table.records, margin if isinstance(margin, float) else None)
    echo(f"{table.sites} of {sites} sites, {records} records; counts below {table.suppress} are withheld")
    if table.schema.where:
        echo(f"only records with {table.schema.where.text}")
    if table.dropped is not msgspec.UNSET:
        few = f"fewer than {table.suppress}" if table.dropped is None else str(table.dropped)
        echo(f"{few} records with an empty cell are left out of all figures")
    if table.schema.counts_empty:
        what = "to draw them" if table.schema.sets else "for a feature"
        for one in table.columns:
            if not one.label and not (one.indicated or one.imputed) and one.missing != 0:
                echo(f"column {one.name!r}: too few empty cells, or too few sites with one, {what}", err=True)
    if table.noise:
        echo(NOISY.format(noise=table.noise), err=True)
    for name in table.drowned:
        text = f"column {name!r}: the noise is as large as its deviation"
        echo(f"{text}; declare narrower bounds, or set a smaller coordinator.privacy.noise", err=True)
    head = ["column", "unit", "there", "missing", "mean", "deviation", "5 %", "median", "95 %", "categories"]
    echo(columns([head, *map(_agreed_line, table.columns)]))
    for name in table.constant:
        echo(f"column {name!r} has one value at every site: nothing is learned from it", err=True)
    if common := [one.name for one in table.columns if one.common]:
        echo(f"scaled by the common test file, lest counts be found: {', '.join(common)}", err=True)
    if rounded := [one.name for one in table.columns if one.precision]:
        echo(f"mean and deviation are rounded, lest counts be found: {', '.join(rounded)}", err=True)
    for one in table.columns:
        if one.uncounted:
            echo(f"column {one.name!r}: {', '.join(one.uncounted)}: at too few sites to be counted", err=True)


def _agreed_line(one: AgreedColumn) -> list[str]:
    at = one.margins.get
    count = one.count if one.missing is not None else None
    there = [format_with_margin(count, at("count")), format_with_margin(one.missing, at("missing"))]
    row = [one.name + (" (label)" if one.label else ""), one.unit, *there]
    if one.categories:
        counts = [format_with_margin(count, at("category")) for count in one.counts]
        counted = zip(one.categories, counts, strict=True)
        return [*row, *[""] * 5, ", ".join(f"{name}: {count}" for name, count in counted)]
    mean, deviation = (None, None) if one.common else (one.mean, one.deviation)
    moved = [format_with_margin(mean, at("mean")), format_with_margin(deviation, at("deviation"))]
    quantiles = [one.quantiles.get(share) for share in ("0.05", "0.5", "0.95")]
    return [
        *row,
        *moved,
        *("-" if value is None else f"{value:.{3 if one.margins else 6}g}" for value in quantiles),
        "",
    ]
