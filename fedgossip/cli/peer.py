"""`fedgossip peer`: one peer of a run over several machines."""

from __future__ import annotations

import shlex
import sys
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
@click.option("--members", "open_run", is_flag=True,
              help="Peers may come and go: the endpoints are those it begins with.  On all peers.")
@click.option("--join", is_flag=True, help="The run has begun: fetch the model from its members.  Implies --members.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in the folder --out.")
@click.option("--trace", is_flag=True, help="Write down all that this peer is told, for `fedgossip replay`.")
@click.option("--trace-limit", metavar="GB", type=click.FloatRange(min=0, min_open=True), default=2.0,
              show_default=True, help="The longest trace; the run goes on without.")
def peer(
    experiment: Path,
    node: int,
    endpoints: Path,
    key: Path,
    bind: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    open_run: bool,
    join: bool,
    resume: bool,
    trace: bool,
    trace_limit: float,
) -> int:
    """Be peer K of the run that the file EXPERIMENT describes; every machine needs the same file."""
    from fedgossip.cli.progress import Progress
    from fedgossip.errors import ConfigError
    from fedgossip.experiment import load
    from fedgossip.net.endpoints import load as load_endpoints
    from fedgossip.net.endpoints import load_members
    from fedgossip.net.identity import Identity
    from fedgossip.running import compose
    from fedgossip.running.members import check_open
    from fedgossip.running.peer import empty_folder, run_peer
    from fedgossip.running.runs import new_path

    plan = compose.plan(load(experiment, overrides, seed=seed))
    if node >= plan.n:
        raise ConfigError(f"there is no peer {node}", f"The graph has peers 0 to {plan.n - 1}.")
    if open_run or join:
        check_open(plan)
        if trace:
            advice = "Leave --trace out, or run it without --members and --join."
            raise ConfigError("what a member is told cannot be replayed yet", advice)
    members = load_members(endpoints, node) if open_run or join else None
    known, identity = members.endpoints if members else load_endpoints(endpoints, plan.n), Identity.load(key)
    if known[node].key != identity.public:
        advice = f"Put `fedgossip keys show {key}` there, or name the right file with --key."
        raise ConfigError(f"{key} is not the key that {endpoints} gives peer {node}", advice)
    folder = _left(out) if resume else empty_folder(out or new_path(plan, f"peer{node}", Path("runs")))
    click.echo(f"peer {node} at {bind or known[node].address}: waiting for its neighbours", err=True)
    with Progress(f"peer {node}", plan.experiment.rounds, plan.n, own=node) as progress:
        ended = run_peer(
            plan,
            node,
            folder,
            identity=identity,
            bind=bind or known[node].address,
            endpoints=known,
            watch=progress,
            resume=resume,
            members=members,
            join=join,
            trace_bytes=int(trace_limit * 1e9) if trace else 0,
        )
    click.echo(f"{ended.status} after {ended.rounds} rounds; everything is in {folder}", err=True)
    if ended.status == "finished":
        click.echo("Copy all peers' folders to one machine; there:", err=True)
        click.echo(f"fedgossip collect {experiment} {folder} ...", err=True)
    if ended.status == "interrupted":
        click.echo(f"To go on: {_line(folder)}", err=True)
    return ended.exit_code


def _left(out: Path | None) -> Path:
    """Return the folder of a life before.  Raises ConfigError, ResumeError."""
    from fedgossip.checkpoints import incarnation_of
    from fedgossip.errors import ConfigError, ResumeError

    if out is None:
        raise ConfigError("--resume needs the folder to go on in", "Name it with --out.")
    if not out.is_dir():
        raise ResumeError(f"{out}: no such folder", "Leave --resume out to start a peer there.")
    if incarnation_of(out) < 0:
        raise ResumeError(f"{out}: no peer has run here", "Leave --resume out to start one.")
    return out


def _line(folder: Path) -> str:
    """The command as it was given, that goes on in `folder`."""
    words = [word for word in sys.argv[1:] if word != "--resume" and not word.startswith("--out=")]
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return shlex.join(["fedgossip", *words, "--out", str(folder), "--resume"])
