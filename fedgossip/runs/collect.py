"""Collects the files of peers: while they run on this machine, or later from folders copied from many machines."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json, from_toml
from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError, reason
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import Hello
from fedgossip.core.metrics import Network
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row, read_rows, row_of
from fedgossip.core.run_format import ENDED, ENDPOINT, LOG, ROWS, SNAPSHOTS, TABLE, VECTOR
from fedgossip.core.task import LocalTask
from fedgossip.experiment import BEST
from fedgossip.plans import compose
from fedgossip.plans.approvals import approvals
from fedgossip.plans.compose import DataShares, Plan
from fedgossip.plans.plan import EXHAUSTED, PARTIAL, record_of
from fedgossip.runs.incarnations import Prepared
from fedgossip.runs.peer_files import LifeTotals, PeerEnded, life_totals_in, take_up
from fedgossip.runs.run_directory import Run, RunDirectory
from fedgossip.runs.summary import RunOutcome, averaged, status_of, summarize
from fedgossip.runs.table_files import save_table, table_in
from fedgossip.runs.tracking import Keeper, Tracking

ABSENT = Path(os.devnull, "absent")
"""Placeholder for a participant without a local folder."""


_OTHER_MODEL = "another model: its columns, classes or sizes are not those of this experiment"

_ALL = "The graph has {} peers: copy all their folders here."


class Collector:
    """Reads the peers' files as they grow and feeds the run's record."""

    def __init__(self, folders: Sequence[Path], record: Network, keeper: Keeper) -> None:
        self.folders, self.record, self.keeper = folders, record, keeper
        self.rounds = [0] * len(folders)
        """Number of rounds that each peer has completed."""
        self.slowest_training = 0.0
        """Longest training so far, in seconds."""
        self._offsets = [0] * len(folders)
        self._former = [0] * len(folders)
        """Bytes of rows of earlier incarnations; their events were already shown."""
        self._decoder = msgspec.json.Decoder(Row)

    def begin(self, before: Prepared | None, measured: Sequence[Row], first: Callable[[], Sequence[Vector]]) -> None:
        """Open the record: with the rows `measured` before the run was stopped, or with the peers' first vectors."""
        if before:
            self.record.remember(before.later)
            paths = [folder / ROWS for folder in self.folders]
            self._former = [path.stat().st_size if path.exists() else 0 for path in paths]
        if before and before.round:
            self.keeper.remember(measured)
            self.record.went_on(next(row for row in reversed(self.keeper.rows) if isinstance(row, NetworkRow)))
            self.rounds, self._offsets = [before.round] * len(self.folders), list(before.offsets)
            return
        for row in self.record.started(first()):
            self.keeper(row)

    def read(self) -> bool:
        """Read every new complete line; return whether there was any.  Raises ConfigError for an invalid row."""
        before = list(self._offsets)
        news = (self._news(node) for node in range(len(self.folders)))
        # by rounds: no peer is read rounds ahead of the others
        for _, node, row, length in heapq.merge(*news, key=lambda line: line[0]):
            self._offsets[node] += length
            self._take(node, row)
        return before != self._offsets

    def _news(self, node: int) -> Iterator[tuple[int, int, Row, int]]:
        """Yield the new lines of one peer: its number of rounds, its id, the row, and the line's bytes."""
        path = self.folders[node] / ROWS
        if not path.exists():
            return
        at = self.rounds[node]
        for line in outside_files.lines_of(path, self._offsets[node]):
            if not line.endswith(b"\n"):  # still being written
                return
            try:
                row = row_of(self._decoder, line)
            except UnreadableError as error:
                raise ConfigError(f"{path}: not the rows of a peer: {error}", "Copy the folder again.") from None
            at = row.round if isinstance(row, PeerRow) else at
            yield at, node, row, len(line)

    def _take(self, node: int, row: Row) -> None:
        if isinstance(row, EventRow):
            self.keeper(row, news=self._offsets[node] > self._former[node])
        elif isinstance(row, PeerRow):
            self.rounds[node] = row.round
            self.slowest_training = max(self.slowest_training, row.seconds_training)
            counted = node in self.record.counted
            for line in self.record.mixed(row, self._snapshot(node, row.round)) if counted else self.record.aside(row):
                self.keeper(line)

    def ended(self, nodes: Iterable[int]) -> None:
        """Stop waiting for peers after their last line."""
        for node in nodes:
            for line in self.record.ended(node):
                self.keeper(line)

    def _snapshot(self, node: int, round: int) -> Vector | None:
        path = self.folders[node] / SNAPSHOTS / f"{round:06d}.safetensors"
        if not path.exists():  # folders from other machines have only the last vector
            return final_vector(self.folders[node]) if round == self.record.rounds else None
        from safetensors.numpy import load

        content = outside_files.read_bytes(path, outside_files.LARGE)
        vectors = {name: frozen(vector) for name, vector in load(content).items()}
        path.unlink()
        if "before" in vectors:
            self.record.record_start(node, round, vectors["before"])
        if "outgoing" in vectors:  # missing for an asynchronous peer, without mixing rounds
            self.record.outgoing(node, round, vectors["outgoing"])
        return vectors["mixed"]

    def finish(self) -> tuple[list[Vector | None], list[PeerEnded | None]]:
        """Read the rest, close the record, and return every peer's final vector and final status."""
        self.read()
        self.ended(range(len(self.folders)))
        return [final_vector(folder) for folder in self.folders], [last_word(folder) for folder in self.folders]

    def totals(self, last_words: Sequence[PeerEnded | None]) -> dict[NodeId, LifeTotals]:
        """Return the totals over all incarnations of each peer with a local folder.  Raises ConfigError."""
        found = {}
        for node, (folder, word) in enumerate(zip(self.folders, last_words, strict=True)):
            totals = life_totals_in(folder)
            if totals is None and word:  # of an earlier release
                totals = LifeTotals(word.counts, word.payload)
            if totals:
                found[node] = totals
        return found


@dataclass(frozen=True)
class Watched:
    """Facts about peers that a driver observed in addition to their files; by default none, as they ran elsewhere."""

    interrupted: bool = False
    exits: Mapping[int, int | None] = field(default_factory=dict)
    """Exit codes; of an interrupted run, those of peers that had ended before the interruption."""
    wall_seconds: float | None = None
    absent: frozenset[NodeId] = frozenset()
    """Peers without local folders: their end is unknown."""


def conclude(
    plan: Plan,
    task: LocalTask,
    shares: DataShares,
    collector: Collector,
    directory: RunDirectory,
    watched: Watched,
    *,
    driver: str = "local",
    report: bool = True,
) -> Run:
    """Read the peers' final statuses and write the run's; after that, raise the error of a failed run.

    For an interrupted run every peer's last vector counts, otherwise those of finished peers.
    """
    vectors, last_words = collector.finish()
    statuses = [word.status if word else None for word in last_words]
    known = ["finished" if node in watched.absent else one for node, one in enumerate(statuses)]
    status = "interrupted" if watched.interrupted else status_of(plan, known, collector.keeper.rows, vectors)
    silent = [node for node, one in enumerate(known) if one is None]
    # a process stopped during its start leaves no status either
    died = [node for node in silent if node in watched.exits] if watched.interrupted else silent
    for node in died:
        collector.keeper(EventRow(collector.rounds[node], node, "died", {"exit_code": watched.exits.get(node)}))
    if status != "interrupted":
        ended = ("finished", PARTIAL, EXHAUSTED)
        vectors = [vector if one in ended else None for vector, one in zip(vectors, statuses, strict=True)]
    collector.keeper.ended(status)
    totals = collector.totals(last_words)
    payload = {(node, to): sent for node, one in totals.items() for to, sent in one.payload.items()}
    counts = Counter({"died": len(died)} if died else {})
    for one in totals.values():
        counts.update(one.counts)
    how = RunOutcome(vectors, counts, status, watched.wall_seconds, payload)
    record = collector.record
    summary = summarize(plan, driver, task, shares, record, collector.keeper, how)
    summary["processor"] = _computed_on("processor", last_words[: plan.learners]) or summary["processor"]
    summary["kernels"] = _computed_on("kernels", last_words[: plan.learners]) or summary["kernels"]
    if table := table_in(plan, collector.folders):
        save_table(table, directory.path / TABLE)
    best = record.best_model if plan.experiment.eval.keep == BEST else None
    directory.finish(summary, task, averaged(plan.outcome(vectors)), best=best, report=report)
    if status == "failed":
        last = f"Their last words: {collector.folders[0].parent}/*/{LOG}"
        error = first_failure(last_words, collector.keeper.rows) or NetworkError("every peer died", last)
        error.advice = f"{error.advice}  The measurements until then are in {directory.path}.".strip()
        raise error
    summary["run_dir"] = str(directory.path)
    return Run(summary, collector.keeper.rows, vectors, directory.path, table)


def _computed_on(key: str, learners: Sequence[PeerEnded | None]) -> str:
    """Return the processors, or kernels, that trained the run."""
    return "; ".join(sorted({getattr(word, key)[:200] for word in learners if word} - {""}))


def last_word(folder: Path) -> PeerEnded | None:
    """Return the final status of the peer of `folder`; None without a record."""
    path = folder / ENDED
    if not path.exists():
        return None
    try:
        return from_json(msgspec.json.Decoder(PeerEnded), outside_files.read_bytes(path))
    except UnreadableError as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "Copy the folder again.") from None


def final_vector(folder: Path) -> Vector | None:
    """Return the last vector of the peer of `folder`, or None if it left none.  Raises ConfigError."""
    path = folder / VECTOR
    if not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        vector: Vector = frozen(load(outside_files.read_bytes(path, outside_files.LARGE))["vector"])
    except (OSError, SafetensorError, KeyError) as error:
        raise ConfigError(f"{path}: not a peer's vector: {reason(error)}", "Copy the folder again.") from None
    return vector


def first_failure(last_words: Sequence[PeerEnded | None], rows: Iterable[Row] = ()) -> FedgossipError | None:
    """Return the error of the first peer with one; else of the first row with one: a full disk has no last words."""
    for ended in last_words:
        if ended is not None and ended.status == "failed":
            error = FedgossipError(ended.message, ended.advice)
            error.exit_code = ended.exit_code
            return error
    for row in rows:
        if isinstance(row, EventRow) and row.name == "failed" and isinstance(row.value, dict):
            return NetworkError(str(row.value.get("text")), str(row.value.get("advice") or ""))
    return None


def collect_peers(
    plan: Plan,
    given: Sequence[Path],
    out: Path,
    learning: tuple[LocalTask, DataShares] | None = None,
    *,
    report: bool = True,
) -> Run:
    """Make one run directory from the folders of a run's peers, in any order; for a federated run the coordinator's is
    enough.

    Raises ConfigError for a missing folder, and NetworkError if no peer has completed a round.  The error of a failed
    peer is raised after the directory is made.  Scores are the peers' own; the averaged model is known at the end.
    """
    folders = _order_by_peer(plan, given)
    absent = frozenset(node for node, folder in enumerate(folders) if folder == ABSENT)
    task, shares = learning or compose.task_of(plan.experiment, plan.learners, [])
    likeness = compose.likeness_of(plan, task)
    _check_same_run(folders, compose.hello_of(plan, task.schema, shares.digest, likeness))
    _check_began(folders)
    tracking = Tracking(plan.experiment, out) if plan.experiment.track.to else None
    with RunDirectory(out, plan) as directory:
        approvals.gathered(folders, out)
        keeper = Keeper(directory, None, tracking, exchanges=plan.exchanges)
        record = record_of(plan, task.evaluate, watch_all=False)
        for row in record.started([task.initial(node) for node in range(plan.n)]):
            keeper(row)
        if plan.roles.leader is not None:
            record.best_model = take_up(record.best, folders[plan.roles.leader])
        collector, watched = Collector(folders, record, keeper), Watched(absent=absent)
        return conclude(plan, task, shares, collector, directory, watched, driver="peers", report=report)


def _check_same_run(folders: Sequence[Path], hello: Hello) -> None:
    for folder in folders:
        ended = last_word(folder)
        if ended and ended.code and ended.code != hello.code:
            advice = "Collect it where the modules are as they were then: they make the model that is measured."
            behind = " and ".join(hello.likeness.changed(Likeness(ended.code)))
            text = f"{folder}: this peer ran other modules: their source differs"
            raise ConfigError(f"{text}, behind {behind}" if behind else text, advice)
        # startswith: the previous release writes half as many digits of the same hash
        same = ended and hello.experiment.startswith(ended.experiment) and ended.schema == hello.schema
        if ended and ended.experiment and not same:
            what = _OTHER_MODEL if ended.schema != hello.schema else "another experiment, or other data"
            advice = "Give the experiment file, --set, --seed and data files that it had."
            raise ConfigError(f"{folder}: this peer ran {what}", advice)


def _check_began(folders: Sequence[Path]) -> None:
    words = [last_word(folder) for folder in folders]
    if any(word and word.rounds for word in words) or any(_last_round(folder) for folder in folders):
        return
    advice = "Start them again, each with --resume; their messages are in ended.json and metrics.jsonl."
    raise first_failure(words) or NetworkError("nothing to collect: no peer has finished its first round", advice)


def _last_round(folder: Path) -> int:
    path = folder / ROWS
    rows = read_rows(path) if path.exists() else []
    return max((row.round for row in rows if isinstance(row, PeerRow)), default=0)


def _folders(given: Path) -> list[Path]:
    inside = sorted(path.parent for path in given.glob(f"*/{ENDPOINT}"))
    return inside if inside and not (given / ENDPOINT).exists() else [given]


def _order_by_peer(plan: Plan, given: Sequence[Path]) -> list[Path]:
    found: dict[int, Path] = {}
    for folder in (one for place in given for one in _folders(outside_files.checked_folder(place))):
        try:
            (peer,) = from_toml(outside_files.read_text(folder / ENDPOINT))["peer"]
            node = int(peer["id"])
        except (OSError, KeyError, ValueError, TypeError):
            raise ConfigError(f"{folder}: not the folder of a peer", f"It should hold {ENDPOINT}.") from None
        if node in found:
            raise ConfigError(f"{folder}: peer {node} is in {found[node]} already", "Give each once.")
        found[node] = folder
    if strange := sorted(set(found) - set(range(plan.n))):
        raise ConfigError(f"{found[strange[0]]}: of participant {strange[0]}; this run has {plan.n}", "Leave it out.")
    if missing := sorted(set(plan.roles.counted) - set(found)):
        if missing == [plan.roles.leader]:
            raise ConfigError(f"no folder of the {plan.roles.label(missing[0])}", "Copy it here.")
        raise ConfigError(f"no folder of {plan.roles.one}s {missing[:5]}", _ALL.format(plan.n))
    return [found.get(node, ABSENT) for node in range(plan.n)]
