"""A folder between two participants, and all that strangers, a synchroniser or a second process put into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from folder_kit import PLANTED, plant
from spying import spying

from fedgossip.base.errors import ConfigError, NetworkError
from fedgossip.base.vectors import frozen
from fedgossip.core.messages import Expected, Hello, Leaving, Model
from fedgossip.net import pair_folder
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.folder_links import FolderLinks
from fedgossip.net.identity import Identity
from fedgossip.net.pair_folder import FILES, LISTED, VERSION
from fedgossip.net.transport import Arrived, LinkEvent, LinkUp, Rejected

LENGTH = 200_000
"""Four chunks of float32."""
EXPECTED = Expected("schema", "float32", LENGTH)


class Pair:
    """Participants 0 and 1, with the folder between them."""

    def __init__(self, place: Path, hello: Hello) -> None:
        self.place, self.root, self.hello = place, place / "a folder of Jürgen's", hello
        self.root.mkdir()
        self.identities = [Identity.new(), Identity.new()]
        self.all: list[FolderLinks] = []
        self.links = [self.opened(0), self.opened(1)]

    def opened(self, node: int, own: str = "own", hello: Hello | None = None) -> FolderLinks:
        state = self.place / f"{own}{node}"
        state.mkdir(exist_ok=True)
        endpoints = {k: Endpoint("", one.public) for k, one in enumerate(self.identities)}
        links = FolderLinks(node, self.root, self.identities[node], state / "folder.json", 0.0)
        self.all.append(links)
        links.connect([1 - node], endpoints, EXPECTED, hello or self.hello)
        return links

    def greet(self) -> None:
        for _ in range(2):
            for one in self.links:
                one.poll(0)

    def sent(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            self.links[0].send(1, Model(number, "schema", (frozen(np.full(LENGTH, number, np.float32)),), 1))
        self.links[0].poll(0)

    def files(self) -> list[Path]:
        return sorted(self.root.glob("*/from-000000-to-000001/0*.fgm"))

    def received(self) -> list[LinkEvent]:
        return [event for _ in range(12) for event in self.links[1].poll(0)]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path, Hello("schema", "an experiment with a long name", "version"))
    yield found
    for one in found.all:
        one.close()


@pytest.fixture
def pair(fresh: Pair) -> Pair:
    fresh.greet()
    return fresh


def rounds(events: list[LinkEvent]) -> list[int]:
    return [event.message.round for event in events if isinstance(event, Arrived) and isinstance(event.message, Model)]


def reasons(events: list[LinkEvent]) -> list[str]:
    return [event.reason for event in events if isinstance(event, Rejected)]


def test_greetings_come_first_and_once(fresh: Pair) -> None:
    assert fresh.links[0].poll(0) == []
    greeting, up = fresh.links[1].poll(0)
    assert isinstance(greeting, Arrived)
    assert isinstance(greeting.message, Hello)
    assert greeting.message.experiment == fresh.hello.experiment
    assert up == LinkUp(0)
    assert fresh.links[1].poll(0) == []


def test_messages_arrive_in_order_whole_and_once(pair: Pair) -> None:
    pair.sent(5)
    events = pair.received()
    assert rounds(events) == [0, 1, 2, 3, 4]
    for event in events:
        assert isinstance(event, Arrived)
        assert isinstance(event.message, Model)
        assert (event.message.vectors[0] == event.message.round).all()
    pair.links[0].poll(0)
    assert (pair.files(), pair.links[0].unfetched) == ([], 0)


def test_what_was_not_put_down_is_not_acknowledged(pair: Pair) -> None:
    pair.sent(1)
    assert rounds(pair.links[1].poll(0)) == [0]  # and its reader dies before the next poll
    pair.links[0].poll(0)
    assert pair.links[0].unfetched == 1
    pair.links[1] = pair.opened(1)
    assert rounds(pair.received()) == [0]


def test_a_sender_that_is_replayed_writes_nothing_twice(pair: Pair) -> None:
    pair.sent(3)
    before = [path.stat().st_ino for path in pair.files()]
    pair.links[0] = pair.opened(0)
    pair.sent(3)
    pair.links[0].poll(0)
    assert [path.stat().st_ino for path in pair.files()] == before
    assert rounds(pair.received()) == [0, 1, 2]


def test_files_that_disappear_are_written_again(pair: Pair) -> None:
    pair.sent(2)
    for path in pair.files():
        path.unlink()
    pair.links[0].poll(0)
    assert rounds(pair.received()) == [0, 1]


def test_the_folder_holds_a_bounded_number(pair: Pair) -> None:
    for _ in range(FILES + 5):
        pair.links[0].send(1, Leaving(0))
    pair.links[0].poll(0)
    assert len(pair.files()) == FILES
    assert not pair.links[0].idle
    pair.received()
    pair.links[0].poll(0)
    assert pair.links[0].idle


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data, _: data[:-1], "truncated"),
        (lambda data, _: data[:100], "truncated"),
        (lambda data, _: data[:300] + bytes([data[300] ^ 1]) + data[301:], "seal"),
        (lambda data, _: data[:8] + bytes([VERSION + 1]) + data[9:], "later_version"),
        (lambda data, _: data[:10] + bytes(16) + data[26:], "another_run"),
        (lambda data, _: data[:26] + data[30:34] + data[26:30] + data[34:], "misplaced"),
        (lambda data, _: data[:42] + bytes(32) + data[74:], "twin"),
        (lambda _, later: later, "renumbered"),
        (lambda _data, _later: b"a holiday picture", "stranger"),
        (lambda _data, _later: bytes(1 << 22), "oversized"),
    ],
)
def test_files_are_refused_by_name_and_the_right_one_is_still_taken(pair: Pair, damage, reason: str) -> None:  # type: ignore[no-untyped-def]
    pair.sent(2)
    first, second = pair.files()
    right = first.read_bytes()
    first.write_bytes(damage(right, second.read_bytes()))
    events = pair.received()
    assert (rounds(events), reasons(events)) == ([], [reason])  # once, at a dozen looks
    first.write_bytes(right)
    assert rounds(pair.received()) == [0, 1]


def test_an_old_file_that_is_put_back_is_not_taken_again(pair: Pair) -> None:
    pair.sent(1)
    (path,) = pair.files()
    data = path.read_bytes()
    pair.received()
    pair.links[0].poll(0)
    path.write_bytes(data)
    path.with_name("0000000002.fgm").write_bytes(data)
    assert reasons(pair.received()) == ["renumbered"]


@pytest.mark.parametrize(
    "name",
    [
        "0000000001.sync-conflict-20261128-120000-ABCDEFG.fgm",
        "0000000001 (Jürgen's conflicted copy 2026-11-28).fgm",
        "0000000001 (1).fgm",
        "0000000001-DESKTOP-7.fgm",
        "0000000001.FGM",
        "0000000001.0badcafe.part",
    ],
    ids=["Syncthing", "Dropbox", "Drive", "OneDrive", "FAT", "rename lost"],
)
def test_a_copy_under_another_name_is_taken_among_strangers_and_removed(name: str, pair: Pair) -> None:
    pair.sent(2)
    first, second = pair.files()
    first.rename(first.with_name(name))
    copy = second.with_name(name.replace("0001", "0002"))
    copy.write_bytes(second.read_bytes())
    for number in range(50):
        (first.parent / f"IMG_{number}.jpg").write_bytes(b"x")
    assert rounds(pair.received()) == [0, 1]
    pair.links[0].poll(0)
    left = {path.name for path in first.parent.iterdir() if path.suffix != ".jpg"}
    assert left == {"greeting.fgm"}
    assert len(list(first.parent.glob("*.jpg"))) == 50


@pytest.mark.parametrize("size", [0, 4, 100, 400_000], ids=["empty", "magic", "header", "half"])
def test_half_a_file_is_waited_for(size: int, pair: Pair) -> None:
    pair.sent(1)
    (path,) = pair.files()
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert reasons(pair.received()) == ["truncated"] and pair.files() == [path]
    path.write_bytes(whole)
    assert rounds(pair.received()) == [0]


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_no_file_is_refused_at_once_and_hides_no_copy(kind: str, pair: Pair, tmp_path: Path) -> None:
    pair.sent(1)
    (path,) = pair.files()
    right, outside = path.read_bytes(), tmp_path / "outside.fgm"
    outside.write_bytes(right)
    path.unlink()
    plant(path, kind, outside)
    plant(path.with_name("0000000001 a.fgm"), kind, outside)
    plant(path.parent / f"received {kind}.fgm", kind, outside)
    began = time.monotonic()
    assert reasons(pair.received()) == ["oversized" if kind == "sparse" else "stranger"]
    path.with_name("0000000001 (1).fgm").write_bytes(right)
    assert rounds(pair.received()) == [0]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("days", [-30, 30])
def test_clocks_that_are_days_apart_decide_nothing(days: int, pair: Pair) -> None:
    pair.sent(1)
    (path,) = pair.files()
    os.utime(path, (0, time.time() + days * 86400))
    found = pair.links[0].poll(0)
    assert rounds(pair.received()) == [0]
    assert [one.advice for one in found if isinstance(one, Rejected) and "wrong clock" not in one.advice] == []


def test_a_mount_point_without_its_mount_is_reported_and_nothing_is_written_there(pair: Pair) -> None:
    pair.sent(1)
    away = pair.root.rename(pair.root.with_name("unplugged"))
    pair.root.mkdir()
    pair.sent(1, first=1)
    found = [event for one in pair.links for event in one.poll(0) if isinstance(event, Rejected)]
    assert {one.reason for one in found} <= {"folder_2"} and list(pair.root.iterdir()) == []
    with pytest.raises(NetworkError, match="no file of this run exists there") as refused:
        pair.opened(0)
    assert "Mount it" in refused.value.advice and list(pair.root.iterdir()) == []
    pair.root.rmdir()
    with pytest.raises(NetworkError, match="no such folder"):
        pair.opened(0)
    away.rename(pair.root)
    pair.links[0].poll(0)
    assert rounds(pair.received()) == [0, 1]


@pytest.mark.root
@pytest.mark.sockets  # starts mount
def test_a_real_disk_that_is_full_read_only_or_gone(fresh: Pair) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1700k", "none", str(fresh.root)], check=True)
    try:
        fresh.greet()
        for number in range(4):
            fresh.links[0].send(1, Model(number, "schema", (frozen(np.full(LENGTH, number, np.float32)),), 1))
        assert reasons(fresh.links[0].poll(0)) == ["folder_28"] and len(fresh.files()) == 2
        got = []
        for _ in range(8):
            got += rounds(fresh.links[1].poll(0))
            fresh.links[0].poll(0)
        assert got == [0, 1, 2, 3]
        for how, reason in (("ro", "folder_30"), ("rw", "")):
            subprocess.run(["mount", "-o", f"remount,{how}", str(fresh.root)], check=True)
            fresh.links[0].send(1, Model(4, "schema", (frozen(np.zeros(LENGTH, np.float32)),), 1))
            assert "".join(reasons(fresh.links[0].poll(0))) == reason
        assert rounds(fresh.received()) == [4, 4]
    finally:
        subprocess.run(["umount", "-l", str(fresh.root)], check=True)
    fresh.links[0].send(1, Leaving(5))
    assert reasons(fresh.links[0].poll(0)) == ["folder_2"] and list(fresh.root.iterdir()) == []


def test_a_look_opens_a_bounded_number_of_strangers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_folder, "LISTED", 50)
    pair.sent(1)
    for number in range(300):
        (pair.files()[0].parent / f"0000000002 ({number}).fgm").touch()
    with spying() as seen:
        assert rounds(pair.received()) == [0]
    assert 0 < len([path for path in seen.read if " (" in path]) <= 12 * 50


@pytest.mark.long
def test_a_hundred_thousand_strangers_cost_a_bounded_look(pair: Pair) -> None:
    pair.sent(1)
    folder = pair.files()[0].parent
    for number in range(100_000):
        (folder / f"IMG_{number}.jpg").touch()
    began = time.monotonic()
    assert rounds(pair.received()) == [0]
    assert time.monotonic() - began < 12 * LISTED * 1e-4


@pytest.mark.parametrize("level", [0, 1], ids=["way", "run"])
def test_a_link_out_of_the_folder_has_nothing_written_or_removed_elsewhere(
    level: int, fresh: Pair, tmp_path: Path
) -> None:
    """By whoever made the stick, say: a browser's half of a file would be removed."""
    mine = tmp_path / "mine"
    inside = mine / "from-000000-to-000001" if level else mine
    inside.mkdir(parents=True)
    (inside / "film.part").write_text("half")
    run = fresh.root / fresh.links[0]._folder.name
    link = run if level else run / "from-000000-to-000001"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(mine)
    assert reasons(fresh.links[0].poll(0))[0] == "folder_40"
    assert [path.name for path in mine.rglob("*.*")] == ["film.part"]
    link.unlink()
    fresh.greet()
    fresh.sent(1)
    assert rounds(fresh.received()) == [0], "it goes on once the link is gone"


def test_a_second_run_in_the_folder_is_refused(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="holds another run"):
        pair.opened(0, hello=Hello("schema", "another experiment", "version"))


def test_a_second_beginning_of_the_same_participant_is_refused(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="participant 0 has begun this run already"):
        pair.opened(0, own="another disk ")


def test_two_participants_with_one_key_are_refused(fresh: Pair) -> None:
    endpoints = {0: Endpoint("", fresh.identities[0].public), 1: Endpoint("", fresh.identities[0].public)}
    with pytest.raises(ConfigError, match="participants 0 and 1 have one key"):
        fresh.links[0].connect([1], endpoints, EXPECTED, fresh.hello)


def test_a_folder_that_is_not_mounted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        FolderLinks(0, tmp_path / "mnt", Identity.new(), tmp_path / "folder.json", 0.0)


def test_another_process_with_the_key_is_named(pair: Pair) -> None:
    greeting = next(pair.root.glob("*/from-000000-to-000001/greeting.fgm"))
    shutil.rmtree(pair.place / "own0")
    greeting.unlink()  # by a synchroniser that has not caught up
    pair.links[0] = pair.opened(0)
    pair.links[0].poll(0)
    pair.links[0].poll(0)
    pair.sent(1)
    assert reasons(pair.received()) == ["twin"]


def test_the_owner_of_the_folder_sees_no_content(pair: Pair) -> None:
    pair.sent(2)
    everything = b"".join(path.read_bytes() for path in pair.root.rglob("*.fgm"))
    assert b"an experiment with a long name" not in everything
    assert np.full(16, 1, np.float32).tobytes() not in everything
