"""`fedgossip worker`: one worker of a parallel run over several machines."""

from __future__ import annotations

from pathlib import Path

import click

from fedgossip.cli import participant


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--id", "node", type=click.IntRange(min=0), required=True, help="Which of the workers this is.")
@participant.options
@click.option("--bind", help="Where to listen, e.g. tcp://*:5700.  [default: this worker's address in the endpoints]")
def worker(
    experiment: Path,
    node: int,
    endpoints: Path,
    key: Path,
    bind: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    resume: bool,
) -> int:
    """Be worker K of the parallel run that the file EXPERIMENT describes; every machine needs the same file."""
    from fedgossip.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans import compose

    plan = compose.plan(load_experiment(experiment, overrides, seed=seed))
    if plan.experiment.kind != "parallel":
        advice = "Use fedgossip peer for peers of a graph, fedgossip coordinator and client for a federated run."
        raise ConfigError(f"{experiment} has no [parallel]", advice)
    if node >= plan.n:
        raise ConfigError(f"there is no worker {node}", f"The run has 0 to {plan.n - 1}.")
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
    ).take_part("waiting for the other workers")
