"""`fedgossip data`: what a site's own table holds, and what all sites' tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import columns, echo

if TYPE_CHECKING:
    from fedgossip.errors import ConfigError
    from fedgossip.learning.agreed import AgreedColumn, AgreedTable
    from fedgossip.learning.statistics_task import StatisticsTask
    from fedgossip.learning.table_schema import SchemaColumn, SiteColumns, TableSchema
    from fedgossip.plans.federation import FederationPlan
    from fedgossip.rundir.peer_files import PeerEnded
    from fedgossip.task import LocalTask

EXPERIMENT = click.argument("experiment", type=click.Path(path_type=Path))
SET = click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")


@click.group()
def data() -> None:
    """Tables of several sites: look at one's own, agree on columns and statistics with the others."""


@data.command()
@EXPERIMENT
@click.option("--id", "node", type=click.IntRange(min=0), required=True, help="Which site this is.")
@SET
def describe(experiment: Path, node: int, overrides: tuple[str, ...]) -> None:
    """Show what the table of site K holds, and whether it fits the others' columns.  Nothing leaves this machine."""
    from fedgossip.experiment import load_experiment
    from fedgossip.learning.table_schema import SiteColumns
    from fedgossip.plans.statistics import statistics_plan
    from fedgossip.plans.tasks import site_file

    plan, schema = statistics_plan(load_experiment(experiment, [*overrides, "coordinator.privacy.unit=none"]))
    check_site(plan, node)
    path = site_file(plan.experiment, node)
    site = SiteColumns(path, schema, plan.experiment.data.suppress)
    echo(f"{path}: {site.records} records; it fits the columns of {plan.experiment.data.test}")
    head = ["column", "unit", "there", "missing", "mean", "deviation", "least", "most"]
    echo(columns([head, *(_described(site, one) for one in schema.columns)]))


def _described(site: SiteColumns, column: SchemaColumn) -> list[str]:
    cells = site.cells[column.name]
    there = [cell for cell in cells if cell is not None]
    counts = str(len(there)), str(len(cells) - len(there))
    row = [column.name + (" (label)" if column.label else ""), column.unit, *counts]
    if column.categories:
        counted = (f"{one}: {there.count(one)}" for one in column.categories)
        return [*row, ", ".join(counted), "", "", ""]
    values = site.numbers(column.name)
    measured = [values.mean(), values.std(), values.min(), values.max()] if len(values) else []
    return [*row, *(f"{value:.6g}" for value in measured)]


def check_site(plan: FederationPlan, node: int) -> None:
    """Raise ConfigError for a site that there is not."""
    from fedgossip.errors import ConfigError

    if node >= plan.learners:
        raise ConfigError(f"there is no site {node}", f"Sites are the clients 0 to {plan.learners - 1}.")


def over_machines(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of one that makes sums with others on their own machines."""
    for option in (
        click.option("--out", type=click.Path(path_type=Path), help="Folder to make for the log.  [default: runs/...]"),
        click.option("--bind", help="Where the coordinator listens, e.g. tcp://*:5700."),
        click.option("--ledger", type=click.Path(path_type=Path),
                     help="Where the site notes what its records have spent.  [default: beside the key]"),
        click.option("--key", type=click.Path(path_type=Path), default=Path("peer.key"), show_default=True,
                     help="One's own key pair, from `fedgossip keys new`."),
        click.option("--endpoints", type=click.Path(path_type=Path),
                     help="With others on their own machines: everybody's id, address and public key."),
        click.option("--id", "site", type=click.IntRange(min=0),
                     help="Which site this is; without it, and with --endpoints, the coordinator."),
    ):  # fmt: skip
        command = option(command)
    return command


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
    bind: str | None,
    out: Path | None,
    overrides: tuple[str, ...],
) -> int:
    """Agree on the columns of all sites' tables and on their statistics, as secure sums: nobody sees a site's numbers.

    Writes the file that data.agreed names.  Without --endpoints all sites' files are on this machine, as for
    `fedgossip run`; with it this is one of them, or the coordinator.
    """
    from fedgossip.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.plans.statistics import from_seed, statistics_plan, statistics_task

    plan, schema = statistics_plan(load_experiment(experiment, overrides))
    if Path(plan.experiment.data.agreed).exists():
        advice = "Remove it to agree again; two agreements of almost the same sites tell of those that differ."
        raise ConfigError(f"{plan.experiment.data.agreed}: agreed on already", advice)
    if endpoints is None and site is not None:
        raise ConfigError("--id without --endpoints", "Name the file with everybody's keys; or leave --id out.")
    if endpoints is None:
        plan, task, refused = statistics_task(plan, schema, range(plan.learners), from_seed(plan))
        return _at_one_desk(plan, task, schema, refused, ledger)
    if site is not None:
        check_site(plan, site)
    plan, task, refused = statistics_task(plan, schema, [] if site is None else [site])
    known = OtherMachines(experiment, endpoints, key, ledger, bind, out, overrides)
    who = plan.coordinator if site is None else site
    return with_others(plan, task, schema.digest, refused, who, known, partial(_write, plan, task, schema))


def _at_one_desk(
    plan: FederationPlan,
    task: StatisticsTask,
    schema: TableSchema,
    refused: Mapping[int, ConfigError],
    ledger: Path | None,
) -> int:
    from fedgossip.drivers.simulate import simulate_plan
    from fedgossip.errors import BudgetError
    from fedgossip.plans.ledger import SUFFIX
    from fedgossip.plans.plan import EXHAUSTED
    from fedgossip.plans.statistics import spend_at_one_desk

    for line in plan.banner:
        echo(line, err=True)
    agreed = Path(plan.experiment.data.agreed)
    for line in spend_at_one_desk(plan, ledger or agreed.with_name(f"{agreed.name}.{SUFFIX}")):
        echo(line, err=True)
    run = simulate_plan(plan, task=task)
    if run.summary["status"] == EXHAUSTED:
        text = f"the budget, epsilon at most {plan.section.privacy.max_epsilon:g}, does not allow two rounds of sums"
        raise BudgetError(text, "Raise coordinator.privacy.noise, or max_epsilon if the sites allow it.")
    _write(plan, task, schema, run.vectors[plan.coordinator])
    for site, error in refused.items():
        echo(f"site {site} took no part: {error}  {error.advice}", err=True)
    return 4 if refused else 0


@dataclass(frozen=True)
class OtherMachines:
    """What the command line says of where one is among the others."""

    experiment: Path
    endpoints: Path | None
    key: Path
    ledger: Path | None
    bind: str | None
    out: Path | None
    overrides: tuple[str, ...]


def with_others(
    plan: FederationPlan,
    task: LocalTask,
    digest: str,
    refused: Mapping[int, ConfigError],
    node: int,
    known: OtherMachines,
    write: Callable[[Any], None],
) -> int:
    """Take part in a run of sums with others on their own machines; `digest`: of what all must have alike.

    `write` is called with the sums.  Raises ConfigError where this site does not fit.
    """
    from fedgossip.cli.participant import Participant
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans.tasks import DataShares
    from fedgossip.rundir.collect import final_vector

    def concluded(folder: Path, ended: PeerEnded) -> None:
        if ended.status in ("finished", "partial") and node not in refused:
            write(final_vector(folder))

    assert known.endpoints is not None, "others are found by them"
    leads = node == plan.coordinator
    shares = DataShares(plan.experiment.data.source, digest=digest)
    everybody = load_endpoints(known.endpoints, plan.n, plan.roles.listens)
    code = Participant(
        known.experiment,
        plan,
        node,
        "coordinator" if leads else f"site {node}",
        known.key,
        known.endpoints,
        everybody,
        known.out,
        resume=False,
        bind=known.bind,
        spent=known.ledger,
        learning=(task, shares),
        overrides=known.overrides,
        concluded=concluded,
    ).take_part("waiting for the sites" if leads else "calling the coordinator")
    for error in refused.values():
        raise error
    return code


def _write(plan: FederationPlan, task: StatisticsTask, schema: TableSchema, vector: Any) -> None:
    from fedgossip.learning.agreed import encoded
    from fedgossip.plans.statistics import agreed_from
    from fedgossip.rundir.run_directory import write_whole

    table = agreed_from(task, vector, schema, plan.experiment.data.suppress)
    path = Path(plan.experiment.data.agreed)
    write_whole(path, encoded(table))
    _show(table, plan.learners)
    echo(f"Wrote {path}: sha256 {table.digest[:16]}; it is the same at all, compare it", err=True)


def _show(table: AgreedTable, sites: int) -> None:
    echo(f"{table.sites} of {sites} sites, {table.records} records; counts below {table.suppress} are not told")
    if table.noise:
        echo(f"with noise of {table.noise:g} times what one record can add, on each site's sums", err=True)
    head = ["column", "unit", "there", "missing", "mean", "deviation", "5 %", "median", "95 %"]
    echo(columns([head, *map(_agreed_line, table.columns)]))
    for name in table.constant:
        echo(f"column {name!r} has one value at every site: nothing is learned from it", err=True)
    for one in table.columns:
        if one.uncounted:
            echo(f"column {one.name!r}: {', '.join(one.uncounted)}: at too few sites to be counted", err=True)


def _agreed_line(one: AgreedColumn) -> list[str]:
    row = [one.name + (" (label)" if one.label else ""), one.unit, str(one.count), str(one.missing)]
    if one.categories:
        counted = zip(one.categories, one.counts, strict=True)
        return [*row, ", ".join(f"{name}: {'-' if count is None else count}" for name, count in counted), *[""] * 4]
    numbers = [one.mean, one.deviation, *(one.quantiles.get(share) for share in ("0.05", "0.5", "0.95"))]
    return [*row, *("-" if value is None else f"{value:.6g}" for value in numbers)]
