"""Puts together what peers leave: while they run on this machine, or afterwards from folders copied from many."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from fedgossip import compose, runs
from fedgossip.compose import Plan
from fedgossip.errors import ConfigError, FedgossipError, NetworkError
from fedgossip.metrics import EventRow, Network, PeerRow, Row
from fedgossip.peer import PeerEnded
from fedgossip.runs import Ended, Keeper, Run, RunDirectory
from fedgossip.vectors import Vector, frozen


class Collector:
    """Reads the peers' files as they grow and feeds the run's record."""

    def __init__(self, folders: Sequence[Path], record: Network, keeper: Keeper) -> None:
        self.folders, self.record, self.keeper = folders, record, keeper
        self._offsets = [0] * len(folders)
        self._decoder = msgspec.json.Decoder(Row)

    def read(self) -> None:
        """Take every whole line that is new."""
        for node, folder in enumerate(self.folders):
            path = folder / "metrics.jsonl"
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[node])
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[node] += whole
            for line in data[:whole].splitlines():
                self._take(node, self._decoder.decode(line))

    def _take(self, node: int, row: Row) -> None:
        if isinstance(row, EventRow):
            self.keeper(row)
        elif isinstance(row, PeerRow):
            for line in self.record.mixed(row, self._snapshot(node, row.round)):
                self.keeper(line)

    def _snapshot(self, node: int, round: int) -> Vector | None:
        path = self.folders[node] / "snapshots" / f"{round:06d}.safetensors"
        if not path.exists():
            return None
        from safetensors.numpy import load_file

        vectors = {name: frozen(vector) for name, vector in load_file(path).items()}
        path.unlink()
        if "before" in vectors:
            self.record.before(node, round, vectors["before"])
        self.record.outgoing(node, round, vectors["outgoing"])
        return vectors["mixed"]

    def finish(self) -> tuple[list[Vector | None], list[PeerEnded | None]]:
        """Read what is left, close the record, and return every peer's final vector and last word."""
        self.read()
        for row in self.record.flush():
            self.keeper(row)
        return [_vector(folder) for folder in self.folders], [last_word(folder) for folder in self.folders]

    def counts(self, last_words: Sequence[PeerEnded | None], exits: Mapping[int, int]) -> dict[str, int]:
        """Add up what the peers counted.  One without a last word died: `exits` says with which code."""
        counts: dict[str, int] = {}
        for node, ended in enumerate(last_words):
            for name, count in (ended.counts if ended else {"died": 1}).items():
                counts[name] = counts.get(name, 0) + count
            if ended is None and exits:
                self.keeper(EventRow(-1, node, "died", {"exit_code": exits.get(node)}))
        return counts


def last_word(folder: Path) -> PeerEnded | None:
    """How the peer of `folder` ended, or None if it never said."""
    path = folder / "ended.json"
    return msgspec.json.decode(path.read_bytes(), type=PeerEnded) if path.exists() else None


def _vector(folder: Path) -> Vector | None:
    path = folder / "vector.safetensors"
    if not path.exists():
        return None
    from safetensors.numpy import load_file

    vector: Vector = frozen(load_file(path)["vector"])
    return vector


def raise_if_all_failed(last_words: Sequence[PeerEnded | None], out: Path) -> None:
    """Raise the first peer's error where no peer has a result."""
    if any(ended is not None and ended.status != "failed" for ended in last_words):
        return
    raise_first_failure(last_words)
    raise NetworkError("every peer died", f"Their last words: {out}/peers/*/log.txt")


def raise_first_failure(last_words: Sequence[PeerEnded | None]) -> None:
    """Raise the error of the first peer that tells one."""
    for ended in last_words:
        if ended is not None and ended.status == "failed":
            _raise(ended)


def _raise(ended: PeerEnded) -> NoReturn:
    error = FedgossipError(ended.message, ended.advice)
    error.exit_code = ended.exit_code
    raise error


def collect_peers(plan: Plan, given: Sequence[Path], out: Path) -> Run:
    """Make one run directory of the folders of a run's peers, in any order.  Raises ConfigError for a folder missing.

    Evaluated rounds hold the accuracies that the peers measured themselves; the averaged model is known at the end.
    """
    began = time.monotonic()
    folders = _by_peer(plan.n, given)
    task, shares = compose.task_of(plan.experiment, plan.n)
    directory = RunDirectory(out, plan)
    keeper = Keeper(directory, None)
    e = plan.experiment
    record = Network(plan.n, e.rounds, e.eval.every, task.evaluate, watch_all=False)
    for row in record.started([task.initial(node) for node in range(plan.n)]):
        keeper(row)
    collector = Collector(folders, record, keeper)
    vectors, last_words = collector.finish()
    counts = collector.counts(last_words, {})
    whole = all(ended is not None and ended.status == "finished" for ended in last_words)
    ended = Ended(vectors, counts, "finished" if whole else "interrupted", time.monotonic() - began)
    summary = runs.summarize(plan, "local", task, shares, record, keeper, ended)
    directory.finish(summary, task, runs.averaged(vectors), report=True)
    summary["run_dir"] = str(out)
    return Run(summary, keeper.rows, vectors, out)


def _by_peer(n: int, given: Sequence[Path]) -> list[Path]:
    """Order the folders by the peer id that each one's endpoint.toml tells."""
    import tomllib

    found: dict[int, Path] = {}
    for folder in given:
        try:
            (peer,) = tomllib.loads((folder / "endpoint.toml").read_text())["peer"]
        except (OSError, tomllib.TOMLDecodeError, KeyError, ValueError):
            raise ConfigError(f"{folder}: not the folder of a peer", "It should hold endpoint.toml.") from None
        if peer["id"] in found:
            raise ConfigError(f"{folder}: peer {peer['id']} is in {found[peer['id']]} already", "Give each once.")
        found[peer["id"]] = folder
    if missing := sorted(set(range(n)) - set(found)):
        raise ConfigError(f"no folder of peers {missing[:5]}", f"The graph has {n} peers: copy all their folders here.")
    return [found[node] for node in range(n)]
