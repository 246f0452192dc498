"""The organiser sends a member away: its file says so to a running peer, all hear it, and nobody forgets it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, ClassVar

import pytest
from commands import finish, free_ports, start, wait_until
from members import ORGANISER, World, signer
from test_join import member
from test_net_security import EXPECTED, HELLO, arrived, calling, greeting, heard_until, reasons

from fedgossip.base.errors import ConfigError
from fedgossip.cli import cli
from fedgossip.core.messages import Revocation
from fedgossip.core.run_format import REVOKED
from fedgossip.drivers.members import Informed
from fedgossip.net import endpoints
from fedgossip.net.endpoints import Endpoint, Members, load_endpoints, load_revoked, revoked_block
from fedgossip.net.identity import Identity, verify
from fedgossip.net.links.mesh import Links
from fedgossip.protocols.members.membership_updates import content, signed


def revocation(node: int) -> Revocation:
    said = signed(Revocation(node, f"key{node}", f"sign{node}"), signer(ORGANISER))
    assert isinstance(said, Revocation)
    return said


def informed(node: int, folder: Path, source: Path, **keys: Any) -> Informed:
    return Informed(member(node, 4, **keys), Members({}, path=source), folder)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four members; the first has a file that people may write to."""
    for node in range(4):
        (tmp_path / str(node)).mkdir()
    sources = {node: tmp_path / f"endpoints{node}.toml" for node in range(4)}
    sources[0].write_text("")
    return World({node: informed(node, tmp_path / str(node), sources[node]) for node in range(4)})


def test_a_revocation_that_is_put_into_one_members_file_reaches_all_and_is_kept_by_all(
    world: World, tmp_path: Path
) -> None:
    world.run(5)
    (tmp_path / "endpoints0.toml").write_text(revoked_block(revocation(2)))
    world.run(5)
    assert {node for _, node, _ in world.named("revoked")} == {0, 1, 3}
    assert [node for _, node, _ in world.named("sent_away")] == [2]
    for node in range(4):
        assert load_revoked(tmp_path / str(node) / REVOKED) == (revocation(2),)


def test_a_next_life_knows_it_from_its_start_whoever_it_meets(world: World, tmp_path: Path) -> None:
    (tmp_path / "endpoints0.toml").write_text(revoked_block(revocation(2)))
    world.run(5)
    again = informed(1, tmp_path / "1", tmp_path / "none.toml", life=9)
    alone = World({1: again})
    alone.run(0.1)
    assert 2 in again.member.membership.roster.revoked
    assert again.member.membership.contacts == [0, 3]


def test_a_file_that_cannot_be_read_is_told_once_for_each_change_of_it(world: World, tmp_path: Path) -> None:
    world.run(3)
    (tmp_path / "endpoints0.toml").write_text("[[revoked]]\nid = 'x'\n")
    world.run(10)
    assert len(world.named("unread", [0])) == 1
    (tmp_path / "endpoints0.toml").write_text(revoked_block(revocation(2)))
    os.utime(tmp_path / "endpoints0.toml", ns=(1, 1))
    world.run(5)
    assert world.named("revoked", [0]) and len(world.named("unread")) == 1


def test_what_another_has_signed_revokes_nobody(world: World, tmp_path: Path) -> None:
    forged = signed(Revocation(2, "key2", "sign2"), signer("sign1"))
    assert isinstance(forged, Revocation)
    (tmp_path / "endpoints0.toml").write_text(revoked_block(forged))
    world.run(8)
    assert not world.named("revoked") and not world.named("sent_away")
    assert len([1 for _, node, value in world.named("refused", [0]) if value["reason"] == "signature"]) == 1


def test_a_disk_that_is_full_is_told_once_and_tried_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgossip.base.errors import NotWrittenError

    def full(path: Path, content: bytes) -> None:
        raise NotWrittenError(path, OSError(28, "No space left on device"))

    peer = world.machines[0]
    (tmp_path / "endpoints0.toml").write_text(revoked_block(revocation(2)))
    with monkeypatch.context() as patch:
        patch.setattr("fedgossip.drivers.members.write_whole", full)
        world.run(5)
    assert len(world.named("unread", [0])) == 1 and 2 in peer.member.membership.roster.revoked
    world.run(2)
    assert load_revoked(tmp_path / "0" / REVOKED) == (revocation(2),)


# --- the links --------------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_one_that_was_parted_with_is_a_stranger_with_the_connection_that_it_has_and_with_a_new_one(
    tmp_path: Path,
) -> None:
    links, partner = Links(0, f"ipc://{tmp_path}/0", Identity.new()), Identity.new()
    try:
        links.connect((1,), {1: Endpoint(f"ipc://{tmp_path}/1", partner.public)}, EXPECTED, HELLO)
        with calling(links, partner) as caller:
            caller.send(*greeting(HELLO))
            assert arrived(heard_until(links, arrived))[0].sender == 1
            links.part(1)
            assert links.partners == ()
            caller.send(*greeting(HELLO))
            heard_until(links, lambda heard: "stranger" in reasons(heard))
        with calling(links, partner) as caller:
            caller.send(*greeting(HELLO))
            heard_until(links, lambda heard: "unknown_key" in reasons(heard))
        links.part(1)
    finally:
        links.close()


# --- the commands -----------------------------------------------------------------------------------------------------


def says(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    cli(["keys", *words], standalone_mode=False)
    return capsys.readouterr().out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_organiser_signs_a_revocation_of_one_in_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = says(capsys, "organiser")
    block = says(capsys, "new", "--id", "3", "--address", "tcp://10.0.0.3:5700")
    Path("endpoints.toml").write_text(line + block)
    text = says(capsys, "revoke", "endpoints.toml", "--id", "3")
    with Path("endpoints.toml").open("a") as file:
        file.write(text)
    (said,) = load_revoked(Path("endpoints.toml"))
    members = endpoints.load_members(Path("endpoints.toml"), 3)
    assert said.key == members.endpoints[3].key and verify(members.organiser, content(said), said.signature)
    with pytest.raises(ConfigError, match="no entry for peer 4"):
        cli(["keys", "revoke", "endpoints.toml", "--id", "4"], standalone_mode=False)
    with pytest.raises(ConfigError, match="join and leave"):
        load_endpoints(Path("endpoints.toml"), 1)


@pytest.mark.parametrize(
    "address", ["192.168.1.10:5700", "tcp://192.168.1.10", "tcp://host:0", "tcp://host:70000", "udp://host:1", "",
                "tcp://0.0.0.0:5700", "tcp://*:5700", "tcp://[::]:5700", "192.168.1.10"]
)  # fmt: skip
def test_an_address_that_nobody_can_call_makes_no_key(folder: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="address") as refused:
        cli(["keys", "new", "--address", address], standalone_mode=False)
    assert refused.value.advice and not Path("peer.key").exists()


def test_without_an_address_the_machines_own_is_signed_or_none(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgossip.net.endpoints.find_own_address", lambda port: f"tcp://10.1.2.3:{port}")
    cli(["keys", "new"], standalone_mode=False)
    said = capsys.readouterr()
    assert "tcp://10.1.2.3:5700" in said.out and "--address" in said.err
    monkeypatch.setattr("fedgossip.net.endpoints.find_own_address", lambda _: None)
    with pytest.raises(ConfigError, match="no address") as refused:
        cli(["keys", "new", "--out", "other.key"], standalone_mode=False)
    assert "--address" in refused.value.advice and not Path("other.key").exists()


class Routes:
    """A datagram socket of a machine whose routes to the outside are `of`: the own host of each family."""

    of: ClassVar[dict[int, str]] = {}

    def __init__(self, family: int, _: int) -> None:
        self.family = family

    def __enter__(self) -> Routes:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, _: tuple[str, int]) -> None:
        if self.family not in self.of:
            raise OSError

    def getsockname(self) -> tuple[str, int]:
        return self.of[self.family], 40000


@pytest.mark.parametrize(
    ("routes", "address"),
    [
        ({socket.AF_INET: "10.1.2.3", socket.AF_INET6: "fd00::3"}, "tcp://10.1.2.3:5700"),
        ({socket.AF_INET6: "fd00::3"}, "tcp://[fd00::3]:5700"),
        ({}, None),
    ],
)
def test_the_own_address_is_that_of_the_route_to_the_outside(
    routes: dict[int, str], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Routes, "of", routes)
    monkeypatch.setattr(socket, "socket", Routes)
    assert endpoints.find_own_address(5700) == address


def test_a_lost_block_is_printed_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = says(capsys, "new", "--id", "3", "--address", "tcp://10.0.0.3:5700", "--out", "3.key")
    assert says(capsys, "show", "3.key", "--block") == block
    moved = says(capsys, "show", "3.key", "--block", "--address", "tcp://10.0.0.4:5700")
    assert "10.0.0.4" in moved and "id = 3" in moved
    assert says(capsys, "show", "3.key") == Identity.load(Path("3.key")).public + "\n"
    client = says(capsys, "new", "--id", "1", "--client", "--out", "1.key")
    assert says(capsys, "show", "1.key", "--block") == client
    Identity.new().save(Path("old.key"))  # of a release that did not keep it
    with pytest.raises(ConfigError, match="does not name its peer") as refused:
        cli(["keys", "show", "old.key", "--block"], standalone_mode=False)
    assert "--id" in refused.value.advice


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.sockets
@pytest.mark.long
def test_real_peers_send_one_away_while_they_run(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        said = finish(start(["keys", *words], tmp_path))
        assert said.code == 0, said
        return said.out

    blocks = [run("organiser")]
    for node, port in enumerate(free_ports(3)):
        blocks.append(run("new", "--id", str(node), "--address", f"tcp://127.0.0.1:{port}", "--out", f"{node}.key"))
    for node in range(3):
        (tmp_path / f"endpoints{node}.toml").write_text("\n".join(blocks))
    text = 'seed = 1\nrounds = 100000\n[topology]\ngraph = "complete"\nn = 3\n[algorithm]\ndeadline = 5.0\n'
    (tmp_path / "experiment.toml").write_text(text + '[task]\nkind = "quadratic"\ndim = 20\n')

    def rows(node: int) -> list[dict[str, Any]]:
        path = tmp_path / f"out{node}" / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def round_of(node: int) -> int:
        return max((row["round"] for row in rows(node) if row["kind"] == "peer"), default=0)

    def names(node: int) -> set[str]:
        return {row["name"] for row in rows(node) if row["kind"] == "event"}

    def peer(node: int, *more: str) -> Any:
        words = ["--id", str(node), "--key", f"{node}.key", "--endpoints", f"endpoints{node}.toml", "--members"]
        return start(["peer", "experiment.toml", *words, "--out", f"out{node}", *more], tmp_path)

    peers = [peer(node) for node in range(3)]
    try:
        wait_until(lambda: min(map(round_of, range(3))) > 20, 60, "all three learn")
        block = run("revoke", "endpoints0.toml", "--id", "2")
        (tmp_path / "endpoints0.toml").write_text("\n".join([*blocks, block]))
        said = finish(peers[2])
        assert said.code != 0 and "the organiser has revoked" in said.err and "Traceback" not in said.err, said
        wait_until(lambda: "revoked" in names(0) & names(1), 60, "both others have heard it")
        reached = round_of(1)
        wait_until(lambda: min(round_of(0), round_of(1)) > reached + 20, 60, "they learn on without it")
        assert load_revoked(tmp_path / "out1" / REVOKED) == load_revoked(tmp_path / "endpoints0.toml")
        again = finish(peer(2, "--resume"))  # it has been told, and knows
        assert again.code != 0 and "the organiser has revoked" in again.err, again
    finally:
        for process in peers:
            process.kill()
            finish(process)
