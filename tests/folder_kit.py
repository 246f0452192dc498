"""A run by folder whose participants do what they can, in turn, as cron calls them; and a synchroniser between them."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgossip.base.vectors import Vector, digest
from fedgossip.core.records import PeerRow, Row, read_rows
from fedgossip.drivers import peer as peers
from fedgossip.drivers.participant import FolderCarrier
from fedgossip.drivers.simulate import simulate
from fedgossip.experiment import checked
from fedgossip.net.endpoints import Endpoint, signed
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.runs.journal import Journal
from fedgossip.runs.peer_files import PeerEnded

TURNS = 200
"""Maximum number of turns of all participants until a run is over."""


def federated(clients: int = 5, rounds: int = 3, *, secure: bool = True, dim: int = 3) -> dict[str, Any]:
    coordinator = {"clients": clients, "min_clients": 3, "secure": {"on": secure}}
    return {"rounds": rounds, "task": _task(dim), "coordinator": coordinator}


def gossip(peers: int = 4, rounds: int = 4, *, dim: int = 3) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": _task(dim),
        "topology": {"n": peers, "graph": "ring"},
        "algorithm": {"name": "dsgd"},
    }


def asynchronous(peers: int = 3, rounds: int = 2, method: str = "dsgd") -> dict[str, Any]:
    """Peers that only average: no bits are promised, but their mean is."""
    algorithm = {"name": method, "mode": "async"}
    return gossip(peers, rounds) | {"task": {"kind": "averaging", "dim": 3}, "algorithm": algorithm}


def tiers(*sizes: int, rounds: int = 2) -> dict[str, Any]:
    """A run whose coordinators have so many participants of the tier below; one of two has no secure sum."""
    content = federated(math.prod(sizes), rounds)
    content["coordinator"] |= {
        "min_clients": min(3, sizes[0]),
        "tiers": [{"clients": size, "secure": size > 2} for size in sizes],
    }
    return content


def learned(clients: int = 3, rounds: int = 3, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """A run on a table, whose coordinator measures models."""
    data, model = {"source": "breast-cancer", "validation": 0.1}, {"source": "softmax"}
    given = {"data": data, "model": model, "train": {"device": "cpu"}, "coordinator": {"clients": clients}}
    return {"rounds": rounds, **given, **sections}


def _task(dim: int) -> dict[str, Any]:
    return {"kind": "quadratic", "dim": dim, "sigma": 0.1, "placement": "random"}


def plant(path: Path, kind: str, outside: Path) -> None:
    """Put something that is no regular file of the folder under a name in it."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "link out":
            path.symlink_to(outside)
        case "link to itself":
            path.symlink_to(path.name)
        case "sparse":
            with path.open("wb") as file:
                file.truncate(40 << 30)


PLANTED = ("pipe", "folder", "device", "link out", "link to itself", "sparse")


@dataclass
class FolderRun:
    """`shared(node)`: the folder as this participant's machine sees it."""

    place: Path
    content: Mapping[str, Any]
    shared: Callable[[int], Path] = field(default=lambda _: Path())

    def __post_init__(self) -> None:
        self.plan = compose.plan(checked(dict(self.content), "test"))
        self.identities = [Identity.new() for _ in range(self.plan.n)]
        self.endpoints: dict[int, Endpoint] = {k: signed(one, "") for k, one in enumerate(self.identities)}
        if self.shared(0) == Path():
            common = self.place / "shared"
            common.mkdir(exist_ok=True)
            self.shared = lambda _: common

    def own(self, node: int) -> Path:
        return self.place / f"own{node}"

    def step(self, node: int) -> PeerEnded:
        """Let one participant do what it can."""
        folder = self.own(node)
        again = folder.exists()
        folder.mkdir(exist_ok=True)
        return peers.run_peer(
            self.plan,
            node,
            folder,
            identity=self.identities[node],
            bind="",
            endpoints=self.endpoints,
            resume=again,
            carrier=FolderCarrier(self.shared(node), once=True),
        )

    def killed_step(self, node: int, at: int, within: str = "") -> int | None:
        """Let it do so in a process of its own, which is killed at its `at`-th write; None: it ended before that.

        `within`: count only the writes in this method of its journal.
        """
        child = os.fork()
        if not child:
            try:
                _kill_at(at, within)
                self.step(node)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return at
        assert os.WEXITSTATUS(status) == 0, f"participant {node} failed"
        return None

    def copied(self, to: Path) -> FolderRun:
        """Return this run as it is now, in another place."""
        shutil.copytree(self.place, to)
        copy = FolderRun(to, self.content)
        copy.identities, copy.endpoints = self.identities, self.endpoints
        return copy

    def over(
        self, turn: Callable[[int], object] = lambda _: None, nodes: Iterable[int] | None = None
    ) -> dict[int, str]:
        """Call all in turn until each has ended; return their statuses."""
        order = list(range(self.plan.n) if nodes is None else nodes)
        status: dict[int, str] = {}
        for number in range(TURNS):
            for node in order:
                if status.get(node, peers.WAITING) == peers.WAITING:
                    status[node] = self.step(node).status
                    turn(node)
            if len(status) == self.plan.n and peers.WAITING not in status.values():
                self.turns = number + 1
                return status
        raise AssertionError(f"not over after {TURNS} turns: {status}")

    def vector(self, node: int) -> Vector:
        from safetensors.numpy import load_file

        found: Vector = load_file(self.own(node) / "vector.safetensors")["vector"]
        return found

    def digest(self) -> str:
        outcome = self.plan.outcome([self.vector(node) for node in range(self.plan.n)])
        return digest([vector for vector in outcome if vector is not None])

    def rows(self, node: int) -> list[Row]:
        return read_rows(self.own(node) / "metrics.jsonl")

    def rounds(self, node: int) -> list[int]:
        return [row.round for row in self.rows(node) if isinstance(row, PeerRow)]

    def simulated(self) -> str:
        return simulate(self.plan.experiment).digest


def _kill_at(at: int, within: str) -> None:
    """Kill this process by SIGKILL at its `at`-th call that changes a file: before it, or in its middle."""
    count, counts = 0, not within
    write, replace, fsync, unlink = os.write, os.replace, os.fsync, os.unlink

    def counted() -> bool:
        nonlocal count
        count += counts
        return counts and count == at

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            nonlocal counts
            counts = True
            try:
                return method(*given)
            finally:
                counts = False

        return called

    if within:
        setattr(Journal, within, counting(getattr(Journal, within)))

    def dying_write(file: int, data: Any) -> int:
        if counted():
            write(file, bytes(data)[: len(bytes(data)) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(file, data)

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            if counted():
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return called

    os.write, os.replace, os.fsync, os.unlink = dying_write, dying(replace), dying(fsync), dying(unlink)
    old_replace, old_unlink = Path.replace, Path.unlink
    Path.replace, Path.unlink = dying(old_replace), dying(old_unlink)  # type: ignore[method-assign]


class Synchroniser:
    """A folder for each participant, whose files reach the others late, out of order, twice, in conflict copies, and
    without their last rename."""

    def __init__(self, place: Path, n: int, seed: int) -> None:
        self._place, self._draw = place, random.Random(seed)
        self._seen: dict[Path, tuple[int, int]] = {}
        self._late: list[tuple[Path, Path, bytes]] = []
        self.counts: Counter[str] = Counter()
        self._known = range(n)

    def folder(self, node: int) -> Path:
        """The folder as this participant sees it."""
        found = self._place / f"synchronised {node}"
        found.mkdir(exist_ok=True)
        return found

    def turn(self) -> None:
        """Carry a part of what is new in each folder to all others."""
        for source in self._known:
            root = self.folder(source)
            for path in sorted(root.rglob(f"from-{source:06d}-*/*.fgm")):
                about = path.stat()
                if self._seen.get(path) == (about.st_mtime_ns, about.st_ino):
                    continue
                if self._draw.random() < 0.4:
                    self.counts["delayed"] += 1
                    continue
                self._seen[path] = about.st_mtime_ns, about.st_ino
                for target in self._known:
                    if target != source:
                        self._carry(path, self.folder(target) / path.relative_to(root))
        self._draw.shuffle(self._late)
        while self._late and self._draw.random() < 0.7:
            _, path, data = self._late.pop()
            self.counts["doubled"] += 1
            path.write_bytes(data)

    def _carry(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        data, fate = path.read_bytes(), self._draw.random()
        if fate < 0.15:
            self.counts["rename dropped"] += 1
            target.with_name(f"{target.stem}.0badcafe.part").write_bytes(data)
        elif fate < 0.3:
            self.counts["conflict"] += 1
            target.with_name(f"{target.stem} (conflicted copy 2026-11-28).fgm").write_bytes(data)
        else:
            target.write_bytes(data)
        if self._draw.random() < 0.2:  # again later, when it may be acknowledged and gone
            self._late.append((path, target, data))
