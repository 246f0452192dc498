"""`fedgossip worker`, `server` and `manager`: one participant of a parallel run over several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.run import participant

if TYPE_CHECKING:
    from fedgossip.plans.plan import Plan

EXPERIMENT = click.argument("experiment", type=click.Path(path_type=Path))
NODE = click.IntRange(min=0)
BIND = click.option(
    "--bind", help="Where to listen, e.g. tcp://*:5700.  [default: this participant's address in the endpoints]"
)


@click.command()
@EXPERIMENT
@click.option("--id", "node", type=NODE, required=True, help="Which of the workers this is.")
@participant.options
@BIND
def worker(experiment: Path, node: int, **given: Any) -> int:
    """Be worker K of the parallel run that the file EXPERIMENT describes; every machine needs the same file."""
    return _take_part("worker", experiment, node, **given)


@click.command()
@EXPERIMENT
@click.option("--id", "node", type=NODE, help="Its id in the run, behind the workers.  [default: that of the only one]")
@participant.options
@BIND
def server(experiment: Path, node: int | None, **given: Any) -> int:
    """Be a server of the parallel run that the file EXPERIMENT describes: mapreduce, or a parameter server.

    Ids are counted through the run: with 4 workers, 0 to 3, servers are 4, 5, ...
    """
    return _take_part("server", experiment, node, **given)


@click.command()
@EXPERIMENT
@participant.options
@BIND
def manager(experiment: Path, **given: Any) -> int:
    """Be the manager of a parameter server with copies, of the run that the file EXPERIMENT describes.

    Its id is the last of the run.
    """
    return _take_part("manager", experiment, None, **given)


def _take_part(
    role: str,
    experiment: Path,
    node: int | None,
    *,
    endpoints: Path,
    key: Path,
    bind: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    resume: bool,
) -> int:
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans import compose

    plan = compose.plan(load_experiment(experiment, overrides, seed=seed))
    if plan.experiment.kind != "parallel":
        advice = "Use fedgossip peer for peers of a graph, fedgossip coordinator and client for a federated run."
        raise ConfigError(f"{experiment} has no [parallel]", advice)
    node = _id_of(role, node, plan)
    known = load_endpoints(endpoints, plan.n, plan.roles.listens)
    return participant.Participant(
        experiment,
        plan,
        node,
        plan.roles.label(node),
        key,
        endpoints,
        known,
        out,
        resume,
        bind,
        overrides=overrides,
        seed=seed,
    ).take_part(f"waiting for the {'other ' if role == 'worker' else ''}workers")


def _id_of(role: str, node: int | None, plan: Plan) -> int:
    """Return the id in the run of a participant of this role.  Raises ConfigError for an absent one."""
    from fedgossip.base.errors import ConfigError

    ids = next((one.ids for one in plan.roles.all if one.name == role), range(0))
    if not ids:
        raise ConfigError(f"the run has no {role}: {plan.name} is {plan.roles.wording}", _commands(plan))
    if node is None and len(ids) > 1:
        raise ConfigError(f"the run has {len(ids)} {role}s", f"Name one with --id, {_range(ids)}.")
    if node is None or node in ids:
        return ids[0] if node is None else node
    if node < plan.n:
        raise ConfigError(f"participant {node} is {plan.roles.label(node)}, and no {role}", _commands(plan))
    raise ConfigError(f"there is no {role} {node}", f"The run has {_range(ids)}.")


def _range(ids: range) -> str:
    return f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else f"{ids[0]}"


def _commands(plan: Plan) -> str:
    """Return the start command of each participant of the run."""
    known = [
        f"fedgossip {one.name}" + ("" if one.name == "manager" else f" --id {_range(one.ids)}")
        for one in plan.roles.all
    ]
    return f"Start {', '.join(known)}."
