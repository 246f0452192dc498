"""`fedgossip keys`: the keys by which peers of several machines know each other."""

from __future__ import annotations

from pathlib import Path

import click

DEFAULT = Path("peer.key")

_WHERE = click.option(
    "--address", default="tcp://192.168.1.10:5700", help="Where this peer will listen, for that block."
)
_CALLS = click.option("--client", "calls", is_flag=True, help="A client of a coordinator: it listens nowhere.")


@click.group()
def keys() -> None:
    """Make and show keys.  The secret half never leaves its file; the public half goes into endpoints.toml."""


@keys.command()
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT, show_default=True, help="File to make.")
@click.option("--id", "node", type=click.IntRange(min=0), default=0, help="Peer id, for the block that is printed.")
@_WHERE
@_CALLS
def new(out: Path, node: int, address: str, calls: bool) -> None:
    """Make a key pair, and print the block for endpoints.toml."""
    from fedgossip.net.endpoints import block, signed
    from fedgossip.net.identity import Identity

    identity = Identity.new()
    identity.save(out)
    click.echo(f"The secret key is in {out}, readable by you alone.  For endpoints.toml on every machine:", err=True)
    click.echo(block(node, signed(identity, "" if calls else address)), nl=False)


@keys.command()
@click.argument("file", type=click.Path(path_type=Path), default=DEFAULT)
@click.option("--id", "node", type=click.IntRange(min=0), help="Print the whole block of this peer instead.")
@click.option("--address", help="Where this peer listens, for that block.")
@_CALLS
def show(file: Path, node: int | None, address: str | None, calls: bool) -> None:
    """Print the public key of FILE."""
    from fedgossip.errors import ConfigError
    from fedgossip.net.endpoints import block, signed
    from fedgossip.net.identity import Identity

    identity = Identity.load(file)
    if node is None:
        click.echo(identity.public)
    elif address is None and not calls:
        advice = "Add --address tcp://HOST:PORT, or --client for a client of a coordinator."
        raise ConfigError("the block of a peer says where it listens, and its key does not know", advice)
    else:
        click.echo(block(node, signed(identity, "" if calls else address or "")), nl=False)


@keys.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("organiser.key"), show_default=True,
              help="File to make.")
def organiser(out: Path) -> None:
    """Make the key that may let others in, and print the line for the top of endpoints.toml."""
    from fedgossip.net.identity import Identity

    identity = Identity.new()
    identity.save(out)
    click.echo(f"The secret key is in {out}, readable by you alone.  For the top of endpoints.toml:", err=True)
    click.echo(f"organiser = '{identity.verify}'")


@keys.command()
@click.argument("peer_block", type=click.Path(path_type=Path))
@click.option("--organiser", "organiser_key", type=click.Path(path_type=Path), default=Path("organiser.key"),
              show_default=True, help="The organiser's key.")
def admit(peer_block: Path, organiser_key: Path) -> None:
    """Print the [[peer]] block in the file PEER_BLOCK with the organiser's admission."""
    from dataclasses import replace

    from fedgossip.net.endpoints import block, load_blocks
    from fedgossip.net.identity import Identity
    from fedgossip.protocols.roster import admission_of

    key = Identity.load(organiser_key)
    for node, endpoint in load_blocks(peer_block).items():
        admission = key.sign(admission_of(node, endpoint.key, endpoint.verify))
        click.echo(block(node, replace(endpoint, admission=admission)), nl=False)
