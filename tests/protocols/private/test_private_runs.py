"""Private gossip in real runs: what its keys have masked is written down first, and nothing is masked twice."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import experiment as experiment_file
from commands import finish, free_ports, start

from fedgossip import simulate
from fedgossip.base.errors import ConfigError, NotWrittenError, ResumeError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.cli import cli
from fedgossip.core.machine import Checkpoint, Effect, Event, Machine, Outgoing, RoundDone, Send, Started
from fedgossip.core.messages import Masked
from fedgossip.core.records import EventRow
from fedgossip.core.run_format import MASKED
from fedgossip.drivers import peer
from fedgossip.drivers.local import run_local_plan
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import block, signed
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.protocols.private_gossip import MODEL, PrivateGossip
from fedgossip.runs.mask_ledger import MaskLedger, Noted, private_maker, run_hash
from fedgossip.runs.peer_files import PeerEnded
from fedgossip.secure.pairs import run_of

RUN, OTHER = run_of("a run"), run_of("another")


def experiment(n: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "rounds": 20,
        "topology": {"graph": "complete", "n": n},
        "task": {"kind": "averaging", "dim": 5},
        "algorithm": {"private": True, "deadline": 5.0, "start_timeout": 30.0},
        "eval": {"every": 20},
        **more,
    }


# --- the ledger -------------------------------------------------------------------------------------------------------


def left(path: Path, *rounds: int, run: bytes = RUN) -> Path:
    """A life that masked these rounds."""
    with contextlib.closing(MaskLedger(path, run)) as ledger:
        ledger.begin()
        for round in rounds:
            ledger.use(round)
    return path


def free(path: Path, run: bytes = RUN) -> int | None:
    with contextlib.closing(MaskLedger(path, run)) as ledger:
        return ledger.free


def test_a_ledger_remembers_the_last_round_of_each_run(tmp_path: Path) -> None:
    path = left(tmp_path / MASKED, 0, 1, 7)
    left(path, 3, run=OTHER)
    assert (free(path), free(path, OTHER), free(path, run_of("a third"))) == (8, 4, None)
    assert path.stat().st_mode & 0o077 == 0


def test_a_line_that_a_crash_cut_short_was_never_acted_on_and_hides_no_later_one(tmp_path: Path) -> None:
    path = left(tmp_path / MASKED, 0, 1)
    content = path.read_bytes()
    for cut in range(1, 77):
        path.write_bytes(content[:-cut])
        assert free(path) == (2 if cut == 1 else 1)  # all but the line's end was there
        left(path, 5)
        assert free(path) == 6
    path.write_bytes(b"")
    assert free(path) is None


@pytest.mark.parametrize("round", [0, 4])
def test_a_round_is_used_once(tmp_path: Path, round: int) -> None:
    path = left(tmp_path / MASKED, 4)
    with contextlib.closing(MaskLedger(path, RUN)) as ledger, pytest.raises(AssertionError, match="masked before"):
        ledger.use(round)


def test_one_process_at_a_time_masks_with_a_key(tmp_path: Path) -> None:
    path = tmp_path / MASKED
    with contextlib.closing(MaskLedger(path, RUN)), pytest.raises(ConfigError, match="another process"):
        MaskLedger(path, OTHER)
    assert free(path) is None


class Says:
    """A machine that says one thing."""

    def __init__(self, *effects: Effect) -> None:
        self.effects = effects

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        return self.effects


def masked(round: int) -> Send:
    return Send(1, Masked(round, "s", (np.zeros(5, np.uint32),)))


def test_a_round_is_on_disk_before_anything_of_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / MASKED
    synced: list[bytes] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (sync(file), synced.append(path.read_bytes())))
    with contextlib.closing(MaskLedger(path, RUN)) as ledger:
        ledger.begin()
        machine: Machine = Says(Outgoing(7, vector(1.0)), masked(6), masked(6))
        assert Noted(machine, ledger).handle(Started(), 0) == machine.effects  # type: ignore[attr-defined]
        assert synced[-1].endswith(b"0000000007\n") and len(synced) == 2
        assert Noted(Says(RoundDone(7, vector(1.0))), ledger).handle(Started(), 0) and len(synced) == 2


def test_on_a_full_disk_nothing_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    with contextlib.closing(MaskLedger(tmp_path / MASKED, RUN)) as ledger:
        ledger.begin()
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(NotWrittenError, match="No space left"):
            Noted(Says(masked(0)), ledger).handle(Started(), 0)


# --- lives ------------------------------------------------------------------------------------------------------------


class Desk:
    """Peer 0 of a complete graph of four, with its key and its folder."""

    def __init__(self, folder: Path) -> None:
        self.plan = compose.plan(load_experiment(experiment()))
        self.hello = compose.hello_of(self.plan, "s")
        self.identities = [Identity.new() for _ in range(4)]
        self.endpoints = {
            node: signed(one, f"tcp://127.0.0.1:{5700 + node}") for node, one in enumerate(self.identities)
        }
        self.path = folder / "peer.key.masked"
        self.run = run_hash(self.hello, self.endpoints)

    def life(self, checkpoint: Checkpoint | None = None, *, resume: bool = False) -> PrivateGossip:
        with contextlib.ExitStack() as stack:
            about = self.plan, 0, self.hello, self.identities[0], self.endpoints, self.path, stack
            noted = private_maker(*about, resume=resume)(vector(1), checkpoint, int(resume))
        assert isinstance(noted, Noted) and isinstance(noted._machine, PrivateGossip)
        return noted._machine


def vector(value: float) -> Vector:
    return frozen(np.full(5, value, np.float32))


def test_a_next_life_goes_on_behind_all_that_was_masked_with_the_model_that_it_has(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.life().round == 0
    left(desk.path, 0, 1, 2, run=desk.run)
    again = desk.life(Checkpoint(1, {MODEL: vector(5)}), resume=True)
    assert again.round == 3 and np.array_equal(again.learner.model, vector(5))
    newer = desk.life(Checkpoint(9, {MODEL: vector(6)}), resume=True)
    assert newer.round == 9 and np.array_equal(newer.learner.model, vector(6))
    nothing = desk.life(resume=True)
    assert nothing.round == 3 and np.array_equal(nothing.learner.model, vector(1))


def test_the_same_run_again_with_the_same_keys_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.life()
    with pytest.raises(ConfigError, match="this very experiment") as refused:
        desk.life()
    assert "another seed" in refused.value.advice
    left(desk.path, 3, run=OTHER)
    desk.endpoints = {**desk.endpoints, 2: signed(Identity.new(), "tcp://127.0.0.1:5702")}
    assert desk.life().round == 0, "somebody's new key makes it another run"


def test_a_life_that_cannot_know_what_was_masked_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.life()
    desk.path.unlink()
    with pytest.raises(ResumeError, match="are unknown"):
        desk.life(Checkpoint(9, {MODEL: vector(6)}), resume=True)


@pytest.mark.sockets
def test_a_private_run_is_not_traced(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be replayed"):
        run_local_plan(compose.plan(load_experiment(experiment())), tmp_path / "run", trace_bytes=1)
    assert not (tmp_path / "run").exists()


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_a_process_that_is_killed_comes_back_and_masks_no_round_twice(tmp_path: Path) -> None:
    paced = {"kind": "delay", "seconds": 0.02}
    crash = {"kind": "crash", "peers": [2], "start": 0.8, "after": 0.3}
    what = experiment(rounds=100, faults=[paced, crash])
    done = run_local_plan(compose.plan(load_experiment(what)), tmp_path / "run", report=False)
    assert done.summary["status"] == "finished" and done.summary["events"]["skipped_mix"] >= 3
    names = [row.name for row in done.rows if isinstance(row, EventRow) and row.peer == 2]
    assert {"crashed", "restarted", "resumed"} <= set(names)
    for node in range(4):
        lines = (tmp_path / f"run/peers/{node:02d}" / MASKED).read_text().splitlines()
        used = [int(line.split()[1]) for line in lines]
        assert used == sorted(set(used)) and used[-1] == 100


@pytest.mark.sockets
def test_the_command_keeps_the_ledger_beside_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def run_peer(*_: object, **keys: Any) -> PeerEnded:
        given.update(keys)
        return PeerEnded("finished", 1, {})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(peer, "run_peer", run_peer)
    _write(tmp_path)
    assert cli(["peer", "experiment.toml", *_words(3, "out")], standalone_mode=False) == 0
    assert given["masked"] == Path("3.key.masked")


@pytest.mark.sockets
@pytest.mark.long
def test_peers_on_four_machines_give_the_simulators_digest_once_and_not_again(tmp_path: Path) -> None:
    _write(tmp_path)
    said = [finish(peer) for peer in [_peer(tmp_path, node, f"peer{node}") for node in range(4)]]
    assert [one.code for one in said] == [0] * 4, said
    words = ["collect", "experiment.toml", *(f"peer{node}" for node in range(4)), "--out", "run", "--json"]
    put = finish(start(words, tmp_path))
    found = re.search(r'"digest": ?"([0-9a-f]{64})"', put.out)
    assert found and found[1] == simulate(tmp_path / "experiment.toml").digest, put
    again = finish(_peer(tmp_path, 0, "again"))
    assert again.code == 2 and "0.key.masked: this key has masked models of this very experiment" in again.err, again
    other = finish(_peer(tmp_path, 0, "other", "--seed", "2", "--set", "algorithm.start_timeout=0.2"))
    assert other.code == 7, other  # nobody came; it was let through


def _write(folder: Path) -> None:
    """The files of four machines."""
    experiment_file(folder, rounds=5, graph="complete", more="[algorithm]\nprivate = true\ndeadline = 5.0\n")
    blocks = []
    for node, port in enumerate(free_ports(4)):
        identity = Identity.new()
        identity.save(folder / f"{node}.key")
        blocks.append(block(node, signed(identity, f"tcp://127.0.0.1:{port}")))
    (folder / "endpoints.toml").write_text("\n".join(blocks))


def _words(node: int, out: str) -> list[str]:
    return ["--id", str(node), "--key", f"{node}.key", "--endpoints", "endpoints.toml", "--out", out]


def _peer(folder: Path, node: int, out: str, *more: str) -> subprocess.Popen[str]:
    return start(["peer", "experiment.toml", *_words(node, out), *more], folder)
