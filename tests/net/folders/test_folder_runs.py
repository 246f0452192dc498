"""Runs whose participants share a folder and never meet: the simulator's bits, whatever happens to the files."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import typed
from folder_kit import PLANTED, FolderRun, Synchroniser, asynchronous, federated, gossip, learned, plant, tiers
from spying import spying

from fedgossip.audit.verify import verify_log
from fedgossip.audit.verify_round import verify_transcripts
from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, NotWrittenError, ResumeError
from fedgossip.core.machine import Event
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.core.run_format import AUDIT_LOG, JOURNAL, TRANSCRIPTS
from fedgossip.drivers.participant import check_journalled
from fedgossip.experiment import checked
from fedgossip.learning.analytic import Averaging
from fedgossip.net import folder_links, pair_folder
from fedgossip.net.endpoints import block, roster_of
from fedgossip.plans import compose
from fedgossip.runs import journal
from fedgossip.runs.journal import ROUNDS_HELD, Journal


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where the system has one: a disk's syncs take longer than all else."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fedgossip folder ü ", dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def images_at_every_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the events by an image whenever they are longer, as in long runs."""
    monkeypatch.setattr(journal, "GROWN_BYTES", 1)


pytestmark = pytest.mark.sockets
"""Participants that are killed are processes."""

RUNS = {
    "secure sums": federated(),
    "plain sums": federated(3, 2, secure=False),
    "ring": gossip(),
    "two tiers": tiers(3, 2, rounds=1),
    "best model": learned(rounds=2, eval={"keep": "best", "on": "validation"}),
}
LONG_RUNS = {
    "two tiers, secure root": tiers(3, 3),
    "three tiers": tiers(2, 2, 2),
    "patience": learned(rounds=6, eval={"on": "validation"}, stop={"patience": 1}),
}


def check_ended(run: FolderRun, rounds: int) -> None:
    """Every round is there once, at everybody; nothing that was sent is left, and no secret."""
    check_models(run)
    for node in range(run.plan.n):
        leaf = run.plan.learners <= node != run.plan.roles.leader  # whose rounds are those of its clients
        # an asynchronous peer ends with its last neighbour
        last = len(run.rounds(node)) if averages(run) else rounds
        assert run.rounds(node) == ([] if leaf else list(range(1, last + 1))), node
        seconds = [row.seconds for row in run.rows(node) if isinstance(row, PeerRow)]
        assert seconds == sorted(seconds), "of one clock, whatever process wrote them"
        ended = json.loads((run.own(node) / "ended.json").read_text())
        assert (ended["status"], ended["exit_code"]) == ("finished", 0)
    for node in range(run.plan.n):  # what was fetched after its sender's end
        run.step(node)
    for node in range(run.plan.n):
        run.step(node)
        assert not list(run.own(node).glob(f"{JOURNAL}*"))
    assert not list(run.shared(0).rglob("0*.fgm"))
    for node in range(run.plan.n):
        check_audited(run, node)


def averages(run: FolderRun) -> bool:
    return run.plan.experiment.task.kind == "averaging"


def check_models(run: FolderRun) -> None:
    """The bits are the simulator's; those of asynchronous peers depend on arrivals, and have the mean of the first."""
    if not averages(run):
        assert run.digest() == run.simulated()
        return
    task, nodes = Averaging(run.plan.n, 3, seed=run.plan.experiment.seed), range(run.plan.n)
    before, after = (np.stack([of(node) for node in nodes]).astype(float) for of in (task.initial, run.vector))
    push = run.content["algorithm"]["name"] == "push-sum"  # the mean of its sums, not of its models, is exact
    assert np.abs(after.mean(0) - task.mean).max() < (0.02 if push else 1e-6)
    assert after.std(0).sum() < 0.9 * before.std(0).sum()


def check_audited(run: FolderRun, node: int) -> None:
    """The log and the transcripts of a participant, if it has any, were written once and are whole."""
    own, key = run.own(node), bytes.fromhex(run.identities[node].verify)
    rounds = verify_transcripts(own / TRANSCRIPTS, roster_of(run.endpoints).first(run.plan.n - 1), key)
    logs = [verify_log(own / AUDIT_LOG, key)] if (own / AUDIT_LOG).exists() else []
    assert [line for one in (*logs, *rounds) for line in one.worded()] == []
    if run.plan.masks and node == run.plan.roles.leader and "tiers" not in run.content["coordinator"]:
        assert len(rounds) == run.plan.experiment.rounds


@pytest.mark.parametrize(
    "content",
    [*RUNS.values(), *(pytest.param(one, marks=pytest.mark.long) for one in LONG_RUNS.values())],
    ids=[*RUNS, *LONG_RUNS],
)
def test_the_bits_are_the_simulators(content: dict[str, object], place: Path) -> None:
    run = FolderRun(place, content)
    run.over()
    check_ended(run, int(content["rounds"]))  # type: ignore[call-overload]
    (place / "endpoints.toml").write_text("".join(block(node, one) for node, one in run.endpoints.items()))
    for node in range(run.plan.learners, run.plan.n if run.plan.masks else 0):  # also a leaf's, which has no address
        verified = typed(["audit", "verify", f"own{node}", "--endpoints", "endpoints.toml"], place)
        assert verified.code == 0, verified


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gossip() | {"topology": {"n": 4, "graph": "complete"}, "algorithm": {"private": True}}, "private gossip"),
        (
            learned(coordinator={"clients": 3, "privacy": {"unit": "client", "noise": 1.0, "max_epsilon": 50.0}}),
            "a run with a privacy budget",
        ),
        (learned(parallel={"workers": 2}), r"a run of \[parallel\]"),
    ],
    ids=["private", "budget", "parallel"],
)
def test_what_cannot_go_on_from_a_journal_is_refused_by_name(content: dict[str, object], what: str) -> None:
    if "parallel" in content:
        del content["coordinator"]
    with pytest.raises(ConfigError, match=what):
        check_journalled(compose.plan(checked(content, "test")))


def killed(run: FolderRun, kills: int, seed: int, most: int = 60) -> int:
    """Kill participants at random writes, in turn with whole steps; return how many were killed."""
    draw, done = random.Random(seed), 0
    for _ in range(4 * kills):
        node = draw.randrange(run.plan.n)
        done += run.killed_step(node, draw.randint(1, most)) is not None
        if done == kills:
            break
        if draw.random() < 0.3:
            run.step(draw.randrange(run.plan.n))
    return done


@pytest.mark.parametrize(
    "content",
    [federated(3, 2), gossip(3, 3), asynchronous(), asynchronous(rounds=8, method="push-sum")],
    ids=["secure sums", "ring", "asynchronous", "asynchronous push-sum"],
)
def test_a_kill_at_any_write_loses_nothing_and_doubles_nothing(content: dict[str, object], place: Path) -> None:
    run = FolderRun(place, content)
    assert killed(run, 4, seed=3) == 4
    run.over()
    check_ended(run, int(content["rounds"]))  # type: ignore[call-overload]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "content",
    [
        federated(3, 30),
        gossip(4, 30),
        asynchronous(4, 30),
        tiers(3, 2, rounds=8),
        learned(rounds=12, eval={"keep": "best", "on": "validation"}),
    ],
    ids=["secure sums", "ring", "asynchronous", "two tiers", "best model"],
)
def test_two_hundred_kills(content: dict[str, object], place: Path) -> None:
    run = FolderRun(place, content)
    assert killed(run, 200, seed=5) == 200
    run.over()
    check_ended(run, int(content["rounds"]))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "content", [federated(3, 2), gossip(3, 3), asynchronous()], ids=["secure sums", "ring", "asynchronous"]
)
def test_a_synchroniser_that_delays_reorders_doubles_and_forgets(content: dict[str, object], place: Path) -> None:
    n = FolderRun(place, content).plan.n
    sync = Synchroniser(place, n, seed=2)
    run = FolderRun(place, content, sync.folder)
    run.over(lambda _: sync.turn())
    check_models(run)
    assert min(sync.counts[what] for what in ("delayed", "conflict", "rename dropped", "doubled")) > 0, sync.counts
    done = [run.rounds(node) for node in range(n)]
    assert all(rounds == list(range(1, len(rounds) + 1)) for rounds in done)
    assert averages(run) or {len(rounds) for rounds in done} == {content["rounds"]}


def test_forty_rounds_by_calls_of_cron(place: Path) -> None:
    run = FolderRun(place, gossip(2, 40) | {"topology": {"n": 2, "graph": "path"}})
    run.over()
    assert run.turns > 20
    check_ended(run, 40)


def refusals(run: FolderRun, node: int) -> list[str]:
    return [row.value["reason"] for row in run.rows(node) if isinstance(row, EventRow) and row.name == "refused"]


def test_a_stick_of_strangers_changes_no_bit_and_nothing_outside_is_opened(place: Path) -> None:
    """Before every turn: pipes, devices, links and sparse files beside and in the place of each file, and old ones."""
    run, outside, draw = FolderRun(place, federated(3, 2)), place / "outside.fgm", random.Random(7)
    outside.write_bytes(b"fgfolder" + bytes(200))
    old: dict[Path, bytes] = {}

    def strangers(node: int) -> None:
        for folder in run.shared(0).glob("*/from-*"):
            for name in ("0000000001", "0000000003", "greeting", "received", "..", "0000000002.\u202egmf\x1b[2J"):
                path = folder / f"{name} {draw.randrange(8)}.fgm"
                if not os.path.lexists(path):
                    plant(path, draw.choice(PLANTED), outside)
            for path in folder.glob("0?????????.fgm"):
                old.setdefault(path, path.read_bytes())
        for path, data in draw.sample(sorted(old.items()), min(3, len(old))):
            others = draw.choice([one for one in path.parent.parent.iterdir() if one.is_dir()])
            (others / f"{path.stem} again.fgm").write_bytes(data)  # also another pair's

    with spying() as seen:
        run.over(turn=strangers)
    assert run.digest() == run.simulated()
    assert not seen.outside(seen.read, run.shared(0), *map(run.own, range(run.plan.n)))
    assert not seen.outside(seen.changed, run.shared(0), *map(run.own, range(run.plan.n)))
    assert not seen.started


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_folder_is_reported_and_work_goes_on_with_room(
    number: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FolderRun(place, gossip(3, 3))
    for node in range(3):
        run.step(node)

    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(pair_folder.PairWriter, "put", full)
        assert [run.step(node).status for node in range(3)] == ["waiting"] * 3
    assert f"folder_{number}" in refusals(run, 0) + refusals(run, 1) + refusals(run, 2)
    run.over()
    check_ended(run, 3)


def test_a_disk_that_cannot_hold_the_journal_is_refused_before_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = ROUNDS_HELD * 3 * 4 * 1000
    usage = shutil.disk_usage(place)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=measured - 1))
    with pytest.raises(ConfigError, match=r"the journal grows to about 9\.6e-05 GB .* 9\.6e-05 GB are free"):
        FolderRun(place, gossip(4, 40, dim=1000)).step(0)
    assert not list(place.glob("shared/*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=measured))
    (again := place / "again").mkdir()
    assert FolderRun(again, gossip(4, 40, dim=1000)).step(0).status == "waiting"


def test_a_journal_on_a_full_disk_ends_the_step_and_goes_on_with_room(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = FolderRun(place, gossip(3, 3)), os.write
    for node in range(3):
        run.step(node)
    path = os.fspath((run.own(0) / JOURNAL).resolve())

    def full(file: int, data: bytes) -> int:
        """Half of what is written fits."""
        if os.path.realpath(f"/proc/self/fd/{file}") != path:
            return real(file, data)
        real(file, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(NotWrittenError, match=r"journal\.bin: not written: No space"):
            run.step(0)
    run.over()
    check_ended(run, 3)


def test_an_old_copy_of_a_journal_is_refused_before_it_contradicts_what_was_sent(place: Path) -> None:
    run = FolderRun(place, gossip(3, 3))
    for node in (0, 1, 2, 0):
        run.step(node)
    old = (run.own(0) / JOURNAL).read_bytes()
    for node in (1, 2, 0):
        run.step(node)
    new, files = (run.own(0) / JOURNAL).read_bytes(), sorted(run.shared(0).rglob("*.fgm"))
    assert len(new) > len(old)
    (run.own(0) / JOURNAL).write_bytes(old)
    with pytest.raises(ResumeError, match="it is an old copy"):
        run.step(0)
    assert sorted(run.shared(0).rglob("*.fgm")) == files
    (run.own(0) / JOURNAL).write_bytes(new)
    run.over()
    check_ended(run, 3)


@pytest.mark.parametrize(
    "content",
    [federated(3, 16, secure=False), gossip(3, 16), pytest.param(federated(3, 24), marks=pytest.mark.long)],
    ids=["plain sums", "ring", "secure sums"],
)
def test_the_work_of_a_step_does_not_grow_with_the_rounds(
    content: dict[str, Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the events that a step handles again: all earlier ones, if none were replaced.

    A coordinator of secure sums replaces its events every five rounds: each half has one whole such time.
    """
    again: list[list[int]] = []
    events = Journal.__iter__

    def counted(self: Journal) -> Iterator[tuple[int, Event]]:
        again.append([run.rounds(0)[-1] if run.rounds(0) else 0, 0])
        for one in events(self):
            again[-1][1] += 1
            yield one

    monkeypatch.setattr(Journal, "__iter__", counted)
    run = FolderRun(place, content)
    run.over()
    first, second = (
        max(count for round, count in again if (round > content["rounds"] // 2) == half) for half in (False, True)
    )
    assert second < 1.3 * first, (first, second)
    assert run.digest() == run.simulated()


@pytest.mark.parametrize(
    ("content", "node"),
    [(gossip(3, 3), 0), pytest.param(federated(3, 3), 0, marks=pytest.mark.long),
     pytest.param(federated(3, 3, secure=False), 3, marks=pytest.mark.long)],
    ids=["ring", "client", "coordinator"],
)  # fmt: skip
def test_a_kill_at_every_write_of_an_image_leaves_the_old_journal_or_the_new(
    content: dict[str, object], node: int, place: Path
) -> None:
    (place / "run").mkdir()
    run = FolderRun(place / "run", content)
    others = [one for one in range(run.plan.n) if one != node]
    for turn in range(20):
        for one in others:
            run.step(one)
        if run.copied(place / f"after {turn}").killed_step(node, 1, "replace") is not None:
            break
        run.step(node)
    kills = 0
    for at in range(1, 100):
        copy = run.copied(place / f"killed at {at}")
        if copy.killed_step(node, at, "replace") is None:
            break
        kills += 1
        copy.over()
        check_ended(copy, 3)
    assert kills > 8


def test_a_process_that_waited_for_a_replaced_journal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Journal(tmp_path / JOURNAL, "experiment", "schema")
    late = os.open(first.path, os.O_RDWR)
    first.replace({"table": np.zeros((2, 3), np.uint8)}, 0)
    monkeypatch.setattr(owner_files, "opened_to_lock", lambda _: late)
    with pytest.raises(ResumeError, match="another process continues this run"):
        Journal(first.path, "experiment", "schema")
    monkeypatch.undo()
    first.close()
    with Journal(first.path, "experiment", "schema") as again:
        assert again.image is not None and again.image["table"].shape == (2, 3) and list(again) == []


def test_an_image_without_room_leaves_the_journal_as_it_was(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FolderRun(place, gossip(3, 3))

    def full(*_: object) -> None:
        raise NotWrittenError(Path(JOURNAL), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "replace", full)
        for node in (0, 1, 2, 0):
            run.step(node)
    failed = [row.value for row in run.rows(0) if isinstance(row, EventRow) and row.name == "checkpoint_failed"]
    assert {one["reason"] for one in failed} == {"NotWrittenError"}
    run.over()
    check_ended(run, 3)


def test_a_message_that_nobody_fetches_for_days_is_reported_once(place: Path) -> None:
    run = FolderRun(place, gossip(3, 3))
    for node in (0, 1, 2, 0):
        run.step(node)
    waiting = list(run.shared(0).rglob("from-000000-*/0*.fgm"))
    assert waiting
    for path in waiting:
        os.utime(path, (0, path.stat().st_mtime - folder_links.OLD_SECONDS - 1))
    for _ in range(2):
        run.step(0)
    assert "unfetched" in refusals(run, 0)
    run.over()
    check_ended(run, 3)
