"""What a command takes as its user's own because of where it lies was made by that user's commands, or is refused."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import in_process

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, ResumeError
from fedgossip.cli import COMMANDS, cli
from fedgossip.cli.people.keys import _check_own
from fedgossip.core.run_format import INVITE, KEY_BEFORE, ORGANISER_KEY, OWNER_MARK, PEER_KEY, PUBLIC_KEY
from fedgossip.drivers import invite_joining, kept_keys
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation, new_secret, written
from fedgossip.net.invites.invite_admission import Seats
from fedgossip.plans.federated import policy

FOREIGN = "no command of yours on this machine has made this"


@pytest.fixture
def invitation() -> Invitation:
    return Invitation(("tcp://127.0.0.1:1",), Identity.new().public, new_secret(), int(time.time()) + 3600)


def strangers_key(path: Path) -> None:
    """Leave a pair of keys that another user has made, readable by its owner alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner_files, "mark_of", lambda _: "0" * 64)
        Identity.new().save(path)


@pytest.mark.parametrize("name", [PEER_KEY, "policy.toml", "tables/agreed.json", OWNER_MARK])
@pytest.mark.parametrize("command", [["join", "--yes"], ["pilot", "join"]])
def test_the_folder_of_an_invite_that_somebody_else_has_prepared_is_refused(
    command: list[str], name: str, invitation: Invitation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its key speaks in one's name, its policy agrees, its statistics are agreed on."""
    planted = tmp_path / "joined" / invitation.mark / name
    planted.parent.mkdir(parents=True)
    planted.write_text("0" * 64)
    said = in_process([*command, written(invitation)], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and FOREIGN in said.errors[0] and "fedgossip keys own joined" in said.err, said
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [planted]


def test_a_folder_of_ones_own_goes_on_and_no_copy_or_link_of_it(invitation: Invitation, tmp_path: Path) -> None:
    first = invite_joining.folder_of(tmp_path / "joined", invitation)
    assert invite_joining.folder_of(tmp_path / "joined", invitation) == first
    shutil.copytree(first.path, tmp_path / "copied" / invitation.mark)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / invitation.mark).symlink_to(first.path)
    for base in ("copied", "linked"):
        with pytest.raises(ConfigError, match=FOREIGN):
            invite_joining.folder_of(tmp_path / base, invitation)
    kept_keys.adopt(tmp_path / "copied" / invitation.mark)
    assert invite_joining.folder_of(tmp_path / "copied", invitation).identity == first.identity


def test_an_empty_folder_into_which_others_can_write_is_none_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode, uid in ((0o777, os.getuid()), (0o700, os.getuid() + 1)):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        with monkeypatch.context() as patch, pytest.raises(ConfigError, match=FOREIGN):
            patch.setattr(os, "getuid", lambda uid=uid: uid)
            patch.setattr(owner_files, "mark_of", lambda _: "0" * 64)
            kept_keys.claim(folder)
        assert not list(folder.iterdir())


def test_an_organiser_takes_no_key_and_no_invite_of_somebody_else(tmp_path: Path) -> None:
    """An invite in the folder names who is let in, and its secret lets in whoever has it."""

    def hosted() -> invite_joining.Hosted:
        return invite_joining.hosted(tmp_path, "lan", "0" * 64, Seats(3, 0), int(time.time()) + 60, (1, 2))

    mine = hosted()
    assert hosted().party == mine.party
    (tmp_path / "lan" / OWNER_MARK).unlink()
    with pytest.raises(ConfigError, match=FOREIGN):
        hosted()
    assert (tmp_path / "lan" / INVITE).exists()
    shutil.rmtree(tmp_path / "lan")
    (tmp_path / ORGANISER_KEY).unlink()
    strangers_key(tmp_path / ORGANISER_KEY)
    with pytest.raises(ConfigError, match=FOREIGN):
        hosted()


# --- keys and policies by their usual names ---------------------------------------------------------------------------


def _options(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _options(inner, f"{name} {inner.name}")
    yield from ((name, one) for one in command.params)


def test_no_command_takes_a_key_or_a_policy_from_where_it_is_by_its_name_alone() -> None:
    context = click.Context(cli)
    found = [one for name in COMMANDS for one in _options(cli.get_command(context, name), name)]  # type: ignore[arg-type]
    own = {Path(PEER_KEY), Path(ORGANISER_KEY), Path("policy.toml")}
    taking = [(name, one) for name, one in found if one.default in own and one.name != "out"]
    assert len(taking) > 20 and [name for name, one in taking if one.callback is not _check_own] == []


def test_a_key_in_a_strangers_folder_is_taken_where_it_is_named_or_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> tuple[int, str]:
        said = in_process(words, tmp_path, monkeypatch, capsys)
        return said.code, said.err

    strangers_key(tmp_path / PEER_KEY)
    code, said = typed("keys", "show")
    assert code == 2 and FOREIGN in said and f"fedgossip keys own {PEER_KEY}" in said
    assert typed("keys", "show", PEER_KEY)[0] == 0
    assert typed("keys", "own", PEER_KEY)[0] == 0 and typed("keys", "show")[0] == 0
    (tmp_path / PEER_KEY).rename(tmp_path / "moved.key")
    typed("keys", "new", "--client")
    assert Identity.load_own(tmp_path / "moved.key") != Identity.load_own(tmp_path / PEER_KEY)
    (tmp_path / "notes").write_text("peer")
    assert typed("keys", "own", "notes")[0] == 2


def test_a_pair_that_lies_in_the_folder_of_a_peer_is_taken_where_it_is_adopted(tmp_path: Path) -> None:
    """Releases before kept it there; a run that is handed on may hold a stranger's."""
    strangers_key(tmp_path / KEY_BEFORE)
    planted = Identity.load(tmp_path / KEY_BEFORE)
    with pytest.raises(ConfigError, match=FOREIGN):
        kept_keys.load_identity(tmp_path)
    (tmp_path / KEY_BEFORE).write_text(planted.marked((tmp_path / KEY_BEFORE).read_text()))
    assert kept_keys.load_identity(tmp_path) == planted


def test_a_public_key_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PUBLIC_KEY)
    with pytest.raises(ResumeError, match="no public key"):
        kept_keys.load_identity(tmp_path)
    (tmp_path / PUBLIC_KEY).unlink()
    (tmp_path / PUBLIC_KEY).write_bytes(b"\xff")
    with pytest.raises(ResumeError, match="not text"):
        kept_keys.load_identity(tmp_path)


def test_a_policy_may_be_edited_where_it_was_made_and_is_refused_elsewhere(tmp_path: Path) -> None:
    made = policy.PolicyFile(
        task="", coordinator="", roster="", min_clients=2, max_clients=3, bound=1.0, bits=8, weight_max=1, layout="",
        code="", frozen=[], probe=[], unit="none", clip=1.0, noise=0.0, delta=1e-5, max_epsilon=1.0,
    )  # fmt: skip
    path = tmp_path / "policy.toml"
    policy.write(path, made)
    path.write_text(path.read_text().replace("min_clients = 2", "min_clients = 3"))
    policy.check_own(path)
    assert policy.read(path).min_clients == 3
    (tmp_path / "other").mkdir()
    shutil.copy(path, tmp_path / "other")
    with pytest.raises(ConfigError, match=FOREIGN):
        policy.check_own(tmp_path / "other" / "policy.toml")
