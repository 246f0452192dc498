"""`fedgossip privacy`: what a run promises, before anything is sent."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def privacy() -> None:
    """What a federated run promises about privacy: plan a budget, pin a policy."""


@privacy.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@click.option("--id", "node", type=click.IntRange(min=0),
              help="As client K can know it, that has its own file alone: the others are taken to be as large.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def plan(experiment: Path, overrides: tuple[str, ...], node: int | None, as_json: bool) -> int:
    """Say what the budget of EXPERIMENT will be worth, before anything is sent: epsilon, against whom, and the noise
    beside what is to be learned.  Exit code 6 where the budget ends before the rounds do."""
    import dataclasses

    from fedgossip.cli.text import columns
    from fedgossip.experiment import load
    from fedgossip.privacy.wording import lines
    from fedgossip.running import compose
    from fedgossip.running.purses import outlook

    made = compose.plan(load(experiment, overrides))
    found = outlook(made, node)
    if as_json:
        import msgspec

        facts = {**dataclasses.asdict(found), "fits": found.fits, "ratio": found.ratio}
        click.echo(msgspec.json.encode(facts).decode())
    else:
        click.echo(columns(lines(found)))
    return 0 if found.fits else 6


@privacy.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--endpoints", type=click.Path(path_type=Path), required=True,
              help="File with everybody's id, address and public key.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("policy.toml"), show_default=True,
              help="File to make.")
def policy(experiment: Path, endpoints: Path, overrides: tuple[str, ...], out: Path) -> None:
    """Write down what a client of EXPERIMENT insists on from now on, and print it: read it before you agree."""
    from fedgossip.errors import ConfigError
    from fedgossip.experiment import load
    from fedgossip.net.endpoints import load as load_endpoints
    from fedgossip.running import compose, policies

    plan = compose.plan(load(experiment, overrides))
    if not isinstance(plan, compose.FederationPlan) or not plan.secure:
        raise ConfigError(f"{experiment} is no run with a secure sum", "A policy is for [coordinator.secure].")
    known = load_endpoints(endpoints, plan.n, plan.listens)
    task, _ = compose.task_of(plan.experiment, plan.learners, [])
    made = policies.policy_of(plan, known, task.length, task.schema)
    policies.write(out, made)
    click.echo(policies.text(made), nl=False)
    click.echo(f"It is in {out}, readable by you alone.", err=True)
