"""`fedgossip keys`: the keys by which peers on several machines identify each other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedgossip.cli.ids import read_ids
from fedgossip.cli.text import CommandGroup, echo
from fedgossip.core import run_format

DEFAULT = Path(run_format.PEER_KEY)
POLICY = Path("policy.toml")

PORT = 5700
"""Default listening address of a peer."""

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _check_own(context: click.Context, option: click.Parameter, path: Path) -> Path:
    """Return the path of a key or policy of this user: given on the command line, or marked by this user."""
    usual = context.get_parameter_source(str(option.name)) is click.core.ParameterSource.DEFAULT
    if usual and path.exists():
        from fedgossip.net.identity import Identity
        from fedgossip.plans.federated import policy

        (policy.check_own if path == POLICY else Identity.load_own)(path)
    return path


def key_option(meaning: str, usual: Path = DEFAULT, name: str = "--key") -> Option:
    """Return the option for a key of this user."""
    return click.option(name, f"{usual.stem}_key" if usual != DEFAULT else "key", type=click.Path(path_type=Path),
                        default=usual, show_default=True, callback=_check_own, help=meaning)  # fmt: skip


def policy_option(meaning: str) -> Option:
    """Return the option for the policy of this user."""
    return click.option("--policy", type=click.Path(path_type=Path), default=POLICY, show_default=True,
                        callback=_check_own, help=meaning)  # fmt: skip


_CALLS = click.option("--client", "calls", is_flag=True, help="A client of a coordinator: it listens nowhere.")
_ORGANISER = key_option("The organiser's key.", Path(run_format.ORGANISER_KEY), "--organiser")


@click.group(cls=CommandGroup)
def keys() -> None:
    """Make and show keys.  The secret half never leaves its file; the public half goes into endpoints.toml."""


@keys.command()
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT, show_default=True, help="File to make.")
@click.option(
    "--id",
    "nodes",
    metavar="K",
    callback=read_ids,
    default="0",
    help="Peer id, for the block that is printed; or several clients, as 0-99: --out is the folder of their keys.",
)
@click.option("--address", help="Where others reach this peer: tcp://HOST:PORT.  [default: asked for, or found out]")
@_CALLS
def new(out: Path, nodes: tuple[int, ...], address: str | None, calls: bool) -> None:
    """Make a key pair, and print the block for endpoints.toml; the key file keeps the block too."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import block, check_reachable, signed
    from fedgossip.net.identity import Identity, check_unused

    files = {node: key_of(out, node) if len(nodes) > 1 else out for node in nodes}
    for file in files.values():
        check_unused(file)  # before it asks for an address
    if len(nodes) > 1 and not calls:
        raise ConfigError(f"one address for {len(nodes)} peers", "Only clients need none: add --client.")
    where = "" if calls else address if address is not None else _ask_address()
    if not calls:
        check_reachable(where, "--address")
    for node, file in files.items():
        identity = Identity.new()
        text = block(node, signed(identity, where))
        identity.save(file, text)
        if node == nodes[0]:
            what = f"secret key is in {file}" if len(nodes) == 1 else f"{len(nodes)} secret keys are in {out}"
            echo(f"The {what}, readable by you alone.  For endpoints.toml on every machine:", err=True)
        echo(text, nl=False)


def key_of(folder: Path, node: int) -> Path:
    """Return the key file of one of several clients in one process."""
    return folder / f"{node}.key"


def _ask_address() -> str:
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import find_own_address

    found = find_own_address(PORT)
    if sys.stdin.isatty():
        return str(click.prompt("Where do the others reach this peer (tcp://HOST:PORT)?", default=found, err=True))
    if found is None:
        advice = "Add --address tcp://HOST:PORT, or --client for a client of a coordinator."
        raise ConfigError("this machine has no address that others could call", advice)
    echo(f"The address of this machine: {found}; name another one with --address.", err=True)
    return found


@keys.command()
@click.argument("file", type=click.Path(path_type=Path), default=DEFAULT, callback=_check_own)
@click.option("--block", "whole", is_flag=True, help="Print the whole block that was printed when FILE was made.")
@click.option("--id", "node", type=click.IntRange(min=0), help="Print the block with this id, and a new signature.")
@click.option("--address", help="Where this peer listens, for the block.")
@_CALLS
def show(file: Path, whole: bool, node: int | None, address: str | None, calls: bool) -> None:
    """Print the public key of FILE, or its block for endpoints.toml."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import block, check_reachable, read_block, signed
    from fedgossip.net.identity import Identity

    identity = Identity.load(file)
    if not whole and node is None:
        echo(identity.public)
        return
    kept = read_block(file)
    if node is None and kept is None:
        raise ConfigError(f"{file} does not name its peer", "Add --id K and --address tcp://HOST:PORT.")
    number = node if node is not None else kept[0] if kept else 0
    where = "" if calls else address if address is not None else kept[1].address if kept else None
    if where is None:
        advice = "Add --address tcp://HOST:PORT, or --client for a client of a coordinator."
        raise ConfigError("the block of a peer has its address, and its key file has none", advice)
    if where:
        check_reachable(where, "--address")
    echo(block(number, signed(identity, where)), nl=False)


@keys.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(run_format.ORGANISER_KEY),
    show_default=True,
    help="File to make.",
)
def organiser(out: Path) -> None:
    """Make the key that may admit and remove members, and print the line for the top of endpoints.toml."""
    from fedgossip.net.endpoints import organiser_line
    from fedgossip.net.identity import Identity

    identity = Identity.new()
    identity.save(out)
    echo(f"The secret key is in {out}, readable by you alone.  For the top of endpoints.toml:", err=True)
    echo(organiser_line(identity.verify), nl=False)


@keys.command()
@click.argument("path", type=click.Path(path_type=Path))
def own(path: Path) -> None:
    """Mark PATH as your own: a key, a policy, or the folder of `host` or `join`, moved here or made elsewhere.

    Files that you have not made yourself may be known to, or chosen by, others: a stranger's key signs in your name.
    """
    import tomllib

    from fedgossip.base import outside_files, owner_files
    from fedgossip.base.decoding import from_toml
    from fedgossip.base.errors import ConfigError, NotWrittenError
    from fedgossip.drivers import kept_keys
    from fedgossip.net.identity import Identity
    from fedgossip.plans.federated import policy

    try:
        if path.is_dir() and not path.is_symlink():
            kept_keys.adopt(path)
        else:
            if not path.exists():
                raise ConfigError(f"{path}: nothing is there", "Name a key, a policy, or the folder of an invite.")
            text = outside_files.read_text(path)
            is_key = "secret" in from_toml(text)
            if is_key:
                text = Identity.load(path).marked(text)
            else:
                policy.read(path)
                text = policy.marked(path, text)
            owner_files.placed(path, text.encode())
    except OSError as error:
        raise NotWrittenError(path, error) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        raise ConfigError(f"{path}: neither a key pair nor a policy", "Name one, or the folder of an invite.") from None
    echo(f"From now on {path} is taken as yours.", err=True)


@keys.command()
@click.argument("peer_block", type=click.Path(path_type=Path))
@_ORGANISER
def admit(peer_block: Path, organiser_key: Path) -> None:
    """Print the [[peer]] block in the file PEER_BLOCK with the organiser's admission."""
    from dataclasses import replace

    from fedgossip.net.endpoints import block, load_blocks
    from fedgossip.net.identity import Identity
    from fedgossip.protocols.members.membership_updates import admission_of

    key = Identity.load(organiser_key)
    for node, endpoint in load_blocks(peer_block).items():
        admission = key.sign(admission_of(node, endpoint.key, endpoint.verify))
        echo(block(node, replace(endpoint, admission=admission)), nl=False)


@keys.command()
@click.argument("endpoints", type=click.Path(path_type=Path))
@click.option("--id", "node", type=click.IntRange(min=0), required=True, help="The member that is to go.")
@_ORGANISER
def revoke(endpoints: Path, node: int, organiser_key: Path) -> None:
    """Print the [[revoked]] block that removes the member K of ENDPOINTS permanently.

    Put it at the end of endpoints.toml of any member; it may run meanwhile, and informs the others.  ENDPOINTS is a
    file with that member's [[peer]] block.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.core.messages import Revocation
    from fedgossip.net.endpoints import load_blocks, revoked_block
    from fedgossip.net.identity import Identity
    from fedgossip.protocols.members.membership_updates import signed

    key, blocks = Identity.load(organiser_key), load_blocks(endpoints)
    if node not in blocks:
        raise ConfigError(f"{endpoints}: there is no entry for peer {node}", "Name a file with its [[peer]] block.")
    revocation = signed(Revocation(node, blocks[node].key, blocks[node].verify), key.sign)
    assert isinstance(revocation, Revocation)
    echo(revoked_block(revocation), nl=False)
