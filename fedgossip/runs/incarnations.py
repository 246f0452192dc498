"""The incarnations of a peer, each from its start to its end, Ctrl-C or a crash, and the state passed between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fedgossip import __version__
from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.records import EventRow, NetworkRow, Row, read_rows, row_of
from fedgossip.core.run_format import ENDED, ENDPOINT, ENDPOINTS, ROWS, SNAPSHOTS, TRACE
from fedgossip.data.custom import codes_of
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.runs import checkpoints
from fedgossip.runs.checkpoints import About, RefusedError, Stored
from fedgossip.runs.run_directory import check_free

MakeMachine = Callable[[Vector, Checkpoint | None, int], Machine]
"""Function of (first vector, checkpoint of the previous incarnation, number of this incarnation)."""


@dataclass(frozen=True)
class Life:
    """One incarnation of a peer; `resumed`: None if none before it wrote a checkpoint, so that it begins at round 0."""

    about: About
    resumed: Stored | None = None
    refused: list[RefusedError] = field(default_factory=list)
    again: bool = False

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self.resumed.machine if self.resumed else None

    @property
    def round(self) -> int:
        return self.resumed.machine.round if self.resumed else 0

    def events(self) -> list[EventRow]:
        """Return the events for the start of this incarnation."""
        if not self.again:
            return []
        node, life = self.about.node, self.about.incarnation
        found = [
            EventRow(self.round, node, "checkpoint_refused", {"file": r.path.name, "reason": r.reason, "text": str(r)})
            for r in self.refused
        ]
        return [*found, EventRow(self.round, node, "resumed", {"round": self.round, "incarnation": life})]


def about_of(plan: Plan, node: NodeId, schema: str, data: str) -> About:
    """Describe the peer `node` of this experiment, in its first incarnation."""
    code = codes_of(plan.experiment.named_code)
    return About(node, schema, __version__, plan.experiment.to_dict(), data, versions=compose.versions(), code=code)


def first(plan: Plan, node: NodeId, folder: Path, schema: str, data: str, incarnation: int | None = None) -> Life:
    """Start the first incarnation of a peer; it is recorded on disk when this returns."""
    about = replace(about_of(plan, node, schema, data), incarnation=incarnation or 0)
    checkpoints.begin_life(folder, about.incarnation)
    return Life(about)


def next_after(plan: Plan, node: NodeId, folder: Path, schema: str, data: str, incarnation: int | None = None) -> Life:
    """Start the next incarnation of the peer of `folder`.  Raises ResumeError; the folder is unchanged then."""
    about = about_of(plan, node, schema, data)
    stored, refused = checkpoints.load(folder, about)
    before = checkpoints.incarnation_of(folder)
    about = replace(about, incarnation=before + 1 if incarnation is None else incarnation)
    checkpoints.begin_life(folder, about.incarnation)
    checkpoints.drop(refused)
    (folder / ENDED).unlink(missing_ok=True)  # the end of an earlier incarnation: this one still runs
    return Life(about, stored, refused, again=True)


def trace_path(folder: Path, incarnation: int) -> Path:
    """Return the path of an incarnation's trace: trace.bin, then trace.1.bin, ..."""
    return folder / (TRACE.replace(".", f".{incarnation}.") if incarnation else TRACE)


def mend_rows(path: Path) -> None:
    """Remove a last line that a crash left incomplete."""
    if not path.exists():
        return
    lengths = [(len(line), line.endswith(b"\n")) for line in outside_files.lines_of(path)]
    if lengths and not lengths[-1][1]:
        _cut(path, sum(length for length, _ in lengths[:-1]))


def cut_rows(path: Path, round: int) -> None:
    """Remove the rows from the first one of a later round on: these rounds will run again."""
    if path.exists():
        _cut(path, bytes_up_to(path, round))


def bytes_up_to(path: Path, round: int) -> int:
    """Return the number of bytes of a record before the first row of a later round, or the first invalid line."""
    if not path.exists():
        return 0
    decoder = msgspec.json.Decoder(Row)
    kept = 0
    for line in outside_files.lines_of(path):
        try:
            row = row_of(decoder, line)
        except UnreadableError:
            break
        if (not isinstance(row, EventRow) and row.round > round) or not line.endswith(b"\n"):
            break
        kept += len(line)
    return kept


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@dataclass(frozen=True)
class Prepared:
    """A run of local peers that can resume after `round`, which all have completed.

    `rows`: bytes of the run's record up to there; `offsets`: of the peers' records; `later`: measurements of later
    rounds.
    """

    round: int
    rows: int
    offsets: list[int]
    later: list[NetworkRow] = field(default_factory=list)


def prepare(out: Path, folders: Sequence[Path], plan: Plan, schema: str, data: str) -> Prepared:
    """Prepare the files of a stopped run's peers.  Raises ResumeError; nothing is changed then."""
    check_free(out)
    rounds = []
    for node, folder in enumerate(folders):
        about = about_of(plan, node, schema, data)
        stored, _ = checkpoints.load(folder, about)
        rounds.append(stored.machine.round if stored else 0)
    root = plan.roles.leader if plan.experiment.kind == "coordinator" else None
    begins = max(rounds) if root is None else rounds[root]  # clients ahead of it repeat its next round
    for folder, round in zip(folders, rounds, strict=True):
        owner_files.make_folder(folder)
        cut_rows(folder / ROWS, min(round, begins))
        for path in (folder / ENDPOINT, folder / ENDED, *(folder / SNAPSHOTS).glob("*")):
            path.unlink(missing_ok=True)
    (out / ENDPOINTS).unlink(missing_ok=True)
    common = min(rounds)
    offsets = [bytes_up_to(folder / ROWS, common) for folder in folders]
    record = out / ROWS
    mend_rows(record)
    rows = read_rows(record) if record.exists() else []
    later = [row for row in rows if isinstance(row, NetworkRow) and row.round > common]
    return Prepared(common, bytes_up_to(record, common) if common else 0, offsets, later)
