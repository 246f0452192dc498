"""`fedgossip keys`: the keys by which peers of several machines know each other."""

from __future__ import annotations

from pathlib import Path

import click

DEFAULT = Path("peer.key")


@click.group()
def keys() -> None:
    """Make and show keys.  The secret half never leaves its file; the public half goes into endpoints.toml."""


@keys.command()
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT, show_default=True, help="File to make.")
@click.option("--id", "node", type=click.IntRange(min=0), default=0, help="Peer id, for the block that is printed.")
@click.option("--address", default="tcp://192.168.1.10:5700", help="Where this peer will listen, for that block.")
def new(out: Path, node: int, address: str) -> None:
    """Make a key pair, and print the block for endpoints.toml."""
    from fedgossip.net.endpoints import Endpoint, block
    from fedgossip.net.identity import Identity

    identity = Identity.new()
    identity.save(out)
    click.echo(f"The secret key is in {out}, readable by you alone.  For endpoints.toml on every machine:", err=True)
    click.echo(block(node, Endpoint(address, identity.public)), nl=False)


@keys.command()
@click.argument("file", type=click.Path(path_type=Path), default=DEFAULT)
def show(file: Path) -> None:
    """Print the public key of FILE."""
    from fedgossip.net.identity import Identity

    click.echo(Identity.load(file).public)
