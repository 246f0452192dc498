"""`fedgossip peer`: one peer of a run over several machines."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--id", "node", type=click.IntRange(min=0), required=True, help="Which node of the graph this is.")
@click.option("--endpoints", type=click.Path(path_type=Path), required=True,
              help="File with every peer's id, address and public key.")
@click.option("--key", type=click.Path(path_type=Path), default=Path("peer.key"), show_default=True,
              help="This peer's key pair, from `fedgossip keys new`.")
@click.option("--bind", help="Where to listen, e.g. tcp://*:5700.  [default: this peer's address in the endpoints]")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file; on all peers.")
@click.option("--seed", type=int, help="Replace the file's seed; on all peers.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make.  [default: runs/NAME-peerK-TIME]")
def peer(
    experiment: Path,
    node: int,
    endpoints: Path,
    key: Path,
    bind: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
) -> int:
    """Be peer K of the run that the file EXPERIMENT describes; every machine needs the same file."""
    from fedgossip.cli.progress import Progress
    from fedgossip.errors import ConfigError
    from fedgossip.experiment import load
    from fedgossip.net.endpoints import load as load_endpoints
    from fedgossip.net.identity import Identity
    from fedgossip.running import compose
    from fedgossip.running.peer import empty_folder, run_peer
    from fedgossip.running.runs import new_path

    plan = compose.plan(load(experiment, overrides, seed=seed))
    if node >= plan.n:
        raise ConfigError(f"there is no peer {node}", f"The graph has peers 0 to {plan.n - 1}.")
    known, identity = load_endpoints(endpoints, plan.n), Identity.load(key)
    if known[node].key != identity.public:
        advice = f"Put `fedgossip keys show {key}` there, or name the right file with --key."
        raise ConfigError(f"{key} is not the key that {endpoints} gives peer {node}", advice)
    folder = empty_folder(out or new_path(plan, f"peer{node}", Path("runs")))
    click.echo(f"peer {node} at {bind or known[node].address}: waiting for its neighbours", err=True)
    with Progress(f"peer {node}", plan.experiment.rounds, plan.n, own=node) as progress:
        ended = run_peer(
            plan, node, folder, identity=identity, bind=bind or known[node].address, endpoints=known, watch=progress
        )
    click.echo(f"{ended.status} after {ended.rounds} rounds; everything is in {folder}", err=True)
    if ended.status == "finished":
        click.echo("Copy all peers' folders to one machine; there:", err=True)
        click.echo(f"fedgossip collect {experiment} {folder} ...", err=True)
    return ended.exit_code
