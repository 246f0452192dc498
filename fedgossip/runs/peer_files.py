"""The files of one peer, and its final status.

The best round's vector is in `best.safetensors`, with round and score, for the next incarnation; at the end it is in
model-best/.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import (
    BudgetError,
    ConfigError,
    FedgossipError,
    NotWrittenError,
    ResumeError,
    not_writable,
    reason,
)
from fedgossip.base.scores import BestSoFar
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.core.metrics import select_extra_metrics
from fedgossip.core.records import PeerRow, RowWriter
from fedgossip.core.run_format import COUNTS, ENDED, MODEL, MODEL_BEST, ROWS, SNAPSHOTS, VECTOR
from fedgossip.core.task import LocalTask
from fedgossip.experiment import BEST
from fedgossip.plans.plan import EXHAUSTED, Plan
from fedgossip.runs import incarnations
from fedgossip.runs.checkpoints import incarnation_of
from fedgossip.runs.run_directory import save_model, write_whole

Key = TypeVar("Key")


class PeerEnded(msgspec.Struct):
    """ended.json: `status` is finished, partial, exhausted, interrupted or failed; the other fields give the reason."""

    status: str
    rounds: int
    counts: dict[str, int]
    """Number of each event in this incarnation."""
    message: str = ""
    advice: str = ""
    exit_code: int = 0
    experiment: str = ""
    schema: str = ""
    code: str = ""
    """Hash in the Hello: folders with different hashes belong to different runs."""
    checkpoint: int | None = None
    """Round of the last checkpoint, from which the peer can resume; None without one."""
    incarnation: int = 0
    processor: str = ""
    kernels: str = ""
    payload: dict[int, int] = {}
    """Bytes of vectors that this incarnation sent to each partner."""


class LifeTotals(msgspec.Struct):
    """counts.json: a peer's totals over all its incarnations; for a killed one, up to its last checkpoint."""

    counts: dict[str, int] = {}
    """Number of each event."""
    payload: dict[int, int] = {}
    """Bytes of vectors sent to each partner."""

    def with_life(self, counts: Mapping[str, int], payload: Mapping[int, int]) -> LifeTotals:
        """Return these totals plus those of one more incarnation."""
        return LifeTotals(_sums(self.counts, counts), _sums(self.payload, payload))

    def write(self, folder: Path) -> None:
        """Write them into the peer's folder.  Raises NotWrittenError."""
        write_whole(folder / COUNTS, msgspec.json.encode(self))


def life_totals_in(folder: Path) -> LifeTotals | None:
    """Return the totals of the peer of `folder` over all incarnations; None without a file.  Raises ConfigError."""
    path = folder / COUNTS
    if not path.exists():
        return None
    try:
        return from_json(msgspec.json.Decoder(LifeTotals), outside_files.read_bytes(path))
    except UnreadableError as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "Copy the folder again, or remove this file.") from None


def _sums(one: Mapping[Key, int], other: Mapping[Key, int]) -> dict[Key, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


class PeerFiles:
    """Writes the files of a peer while it runs.  A round counts when it is completed."""

    def __init__(self, folder: Path, node: NodeId, plan: Plan, task: LocalTask, *, snapshots: bool) -> None:
        self.folder, self.node, self.task = folder, node, task
        self.rounds, self.every, self.snapshots = plan.experiment.rounds, plan.experiment.eval.every, snapshots
        self.round = 0
        self._score = plan.experiment.score
        self._last: float | None = None
        self._beside: dict[str, float | None] | None = None
        self._scored = 0
        """Round after which `_last` and `_beside` were measured."""
        e = plan.experiment
        keeps = e.eval.keep == BEST and node == plan.roles.leader and not snapshots  # with snapshots their reader does
        self._best = BestSoFar(e.score) if keeps else None
        self._keep, self._at_clients = keep_best_in(folder), e.selects_at_clients
        self._best_model = take_up(self._best, folder)
        self._whose = node if node < plan.learners else None  # others have no local parts in their model
        self._left_to_others = plan.one_model and snapshots
        """A reader of the snapshots measures the common model once."""
        self._led, self._gives_model = plan.roles.leader is not None, plan.gives_model
        incarnations.mend_rows(folder / ROWS)  # left by an earlier incarnation
        self.snapshots_lost = 0
        self._before: Vector | None = None
        self._outgoing: Vector | None = None
        try:
            self.writer = RowWriter(folder / ROWS)
            if snapshots:
                owner_files.make_folder(folder / SNAPSHOTS)
        except OSError as error:
            raise NotWrittenError(folder / ROWS, error) from None

    def _evaluated(self, round: int) -> bool:
        return round % self.every == 0 or round == self.rounds

    def started(self, round: int, vector: Vector | None) -> None:
        """Record that the peer begins with `vector`, or resumes after `round` rounds with its vector, if known."""
        self.round = round
        self._before = vector if self._reads_before and self._evaluated(round + 1) else None

    @property
    def _reads_before(self) -> bool:
        return self.snapshots or (self._best is not None and self._at_clients)

    def outgoing(self, round: int, vector: Vector) -> None:
        self._outgoing = vector if self.snapshots and self._evaluated(round) else None

    def mixed(self, row: PeerRow, vector: Vector) -> float | None:
        """Write the files of an evaluated round, add metrics other than the score to its row, and return this peer's
        score.

        Raises NotWrittenError.
        """
        self.round = round = row.round
        score = None
        if self._evaluated(round):
            if not self._left_to_others:
                score, row.metrics = self.measure(round, vector), self._beside
            if self.snapshots:
                self._snapshot(round, vector)
            if self._at_clients:
                self._compare(round - 1, row.score_clients, self._before)
            else:
                self._compare(round, score, vector)
        self._before = vector if self._reads_before and self._evaluated(round + 1) else None
        return score

    def measure(self, round: int, vector: Vector) -> float | None:
        """Return the score of the model after `round`."""
        if self._scored != round:
            metrics = self.task.evaluate([vector])[0]
            self._scored, self._last = round, metrics.get(self._score.name)
            self._beside = select_extra_metrics(metrics, self._score)
        return self._last

    def _compare(self, round: int, score: float | None, model: Vector | None) -> None:
        """Store the model after `round` if it is the best so far."""
        known = self._best is not None and score is not None and model is not None and round > 0
        if known and self._best.takes(round, score):  # type: ignore[union-attr, arg-type]
            self._best_model = model
            self._keep(round, score, model)  # type: ignore[arg-type]

    def _snapshot(self, round: int, vector: Vector) -> None:
        from safetensors.numpy import save

        vectors = {"before": self._before, "outgoing": self._outgoing, "mixed": vector}
        content = save({name: v for name, v in vectors.items() if v is not None})
        try:
            write_whole(self.folder / SNAPSHOTS / f"{round:06d}.safetensors", content)
        except NotWrittenError:  # the collector then measures this round without this peer
            self.snapshots_lost += 1

    def lost(self) -> dict[str, int]:
        """Close the record; return the numbers of rows and snapshots that did not fit on the disk."""
        self.writer.close()
        found = {"rows_lost": self.writer.lost, "snapshots_lost": self.snapshots_lost}
        return {name: count for name, count in found.items() if count}

    def save(self, vector: Vector | None) -> None:
        """Write the final vector, if there is one, and a model if it was trained.  Raises NotWrittenError."""
        if vector is None:
            return
        from safetensors.numpy import save

        metadata = {"peer": str(self.node), "round": str(self.round)}
        if self._gives_model and self._trained(vector):
            score = {"name": self._score.name, "value": self._last, "rounds": self.round}
            save_model(self.folder / MODEL, self.task, vector, self._whose, score=score)
            if self._best and self._best_model is not None:
                score = {"name": self._score.name, "value": self._best.value, "rounds": self._best.round}
                save_model(self.folder / MODEL_BEST, self.task, self._best_model, self._whose, score=score)
        write_whole(self.folder / VECTOR, save({"vector": vector}, metadata=metadata))

    def _trained(self, vector: Vector) -> bool:
        """Return whether the vector differs from the first one."""
        untouched = self._led or not self.round
        return not (untouched and np.array_equal(vector, self.task.initial(self.node)))


def write_ended(folder: Path, ended: PeerEnded) -> None:
    """Write a peer's final status.  Raises NotWrittenError."""
    write_whole(folder / ENDED, msgspec.json.encode(ended))


def try_to_report(folder: Path, ended: PeerEnded) -> None:
    """Write the final status of a failed peer; on a full disk only the error is reported."""
    with contextlib.suppress(NotWrittenError):
        write_ended(folder, ended)


def failed(error: FedgossipError, rounds: int = 0) -> PeerEnded:
    """Return the final status of a peer that could not continue."""
    status = EXHAUSTED if isinstance(error, BudgetError) else "failed"
    return PeerEnded(status, rounds, {}, str(error), error.advice, error.exit_code)


def empty_folder(folder: Path) -> Path:
    """Make `folder`, or use it if it is empty.  Raises ConfigError."""
    try:
        owner_files.make_folder(folder)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise not_writable(folder, error) from None
    if not empty:
        left = incarnation_of(folder) >= 0
        advice = "Resume it: the same command with --resume.  Or give a new folder with --out."
        raise ConfigError(f"{folder}: not empty", advice if left else "Give a new folder with --out.")
    return folder


def keep_best_in(folder: Path) -> Callable[[int, float, Vector], None]:
    """Return a function that writes the best model so far into `folder`.  The function raises NotWrittenError."""
    from safetensors.numpy import save

    def keep(round: int, score: float, vector: Vector) -> None:
        content = save({"vector": vector, "round": np.array([round]), "score": np.array([score])})
        write_whole(folder / run_format.BEST, content)

    return keep


def take_up(best: BestSoFar | None, folder: Path) -> Vector | None:
    """Resume `best` from the folder of an earlier incarnation; return its model, None without one.

    Raises ResumeError.
    """
    path = folder / run_format.BEST
    if best is None or not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        found = load(outside_files.read_bytes(path, outside_files.LARGE))
        best.round, best.value = int(found["round"][0]), float(found["score"][0])
        vector: Vector = frozen(found["vector"])
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        text = f"{path}: not the best model of a run: {reason(error)}"
        raise ResumeError(text, "Remove it: the best of the rounds that are left is kept then.") from None
    return vector
