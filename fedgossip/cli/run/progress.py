"""The progress of a run on stderr: a line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.untrusted_text import line
from fedgossip.cli.text import console, echo
from fedgossip.cli.wording import words_for
from fedgossip.core.event_kinds import HALF_MISSING
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.roles import PEERS, Roles
from fedgossip.experiment.sections import ENDLESS
from fedgossip.report.page.numbers import shown_round

if TYPE_CHECKING:
    from rich.console import Console

EVENTS_SHOWN = 10
"""Maximum number of events that are printed one by one; metrics.jsonl has them all, with those that repeat."""

BAR, NARROW, NARROW_BAR = 24, 100, 10
"""Width of the bar; and on terminals of fewer columns than the second."""

PLAIN_SECONDS = 2.0
"""Seconds between two plain lines."""


class Progress:
    """Prints the rows of one run as they are logged.  A context manager.

    `own`: the one participant with rows; None for rows of the network.  `moving`: a bar, on a terminal.
    """

    def __init__(
        self,
        title: str,
        rounds: int,
        roles: Roles,
        *,
        own: int | None = None,
        score: Score = ACCURACY,
        moving: bool = True,
    ) -> None:
        self.score, self._moving = score, moving
        self.title, self.own, self.roles = title, own, roles
        self.rounds = 0 if rounds == ENDLESS else rounds
        self._words = words_for(roles)
        self._began = False
        self._events = 0
        self._missed: dict[int, tuple[int, object]] = {}
        self._last = NetworkRow(0, roles.learners, 0.0, 0)
        self._scored: tuple[float, int] | None = None
        """The accuracy that was measured last, and its round."""
        self._printed_at = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._moving and sys.stderr.isatty():
            self._bar = _bar(console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(line(self.title), total=self.rounds or None, news="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, row: Row) -> None:
        if not self._began:  # a run that is refused prints its one line of error and no more
            self._began = True
            if not self._bar:
                counted = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
                how_long = counted if self.rounds else "until they end"
                self._print(f"{self.title}: {self.roles.wording}, {how_long}")
        match row:
            case NetworkRow():
                if row.measured or not self._last.measured:  # without a test, each round reports
                    self._last = row
                self._moved(row.round, describe(self._last, self.roles, row.round, self.score))
            case PeerRow() if row.peer == self.own:
                self._scored = self._scored if row.score is None else (row.score, row.round)
                self._moved(row.round, describe_own(row, self._scored, self.roles, self.score))
            case EventRow() if not self._known(row):
                self._event(row)

    def _moved(self, round: int, news: str) -> None:
        if self._bar:
            self._bar.update(self._task, completed=round, news=news)
        elif round and time.monotonic() - self._printed_at > PLAIN_SECONDS:
            of = f" of {self.rounds}" if self.rounds else ""
            self._print(f"{self.title}: round {round}{of}  {news}".rstrip())

    def _known(self, row: EventRow) -> bool:
        """Whether the event repeats that of the round before: a gone peer is missed in each round."""
        if row.name != "missed":
            return False
        before, self._missed[row.peer] = self._missed.get(row.peer), (row.round, row.value)
        return before == (row.round - 1, row.value)

    def _event(self, row: EventRow) -> None:
        self._events += 1
        if self._events <= EVENTS_SHOWN or row.name == HALF_MISSING:
            round = max(shown_round(row.name, row.round, self.roles), 0)
            self._print(f"round {round}, {self.roles.label(row.peer)}: {self._words(row)}")
        if self._events == EVENTS_SHOWN:
            self._print("more events are in metrics.jsonl")

    def _print(self, text: str) -> None:
        self._printed_at = time.monotonic()
        if self._bar:
            self._bar.console.print(text, highlight=False)
        else:
            echo(text, err=True)


def _bar(shown: Console) -> Any:
    """A bar of one line: where the terminal is too narrow for all, the end of the news is left out."""
    from rich import progress
    from rich.table import Column

    title = progress.TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    wide = shown.width >= NARROW
    columns = [title, progress.BarColumn(BAR if wide else NARROW_BAR), progress.MofNCompleteColumn()]
    columns += [progress.TextColumn("rounds")] if wide else []
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    news = progress.TextColumn("{task.fields[news]}", style="dim", markup=False, table_column=rest)
    return progress.Progress(*columns, progress.TimeElapsedColumn(), news, console=shown, transient=True, expand=True)


def describe(row: NetworkRow, roles: Roles = PEERS, now: int | None = None, score: Score = ACCURACY) -> str:
    """The state of the network in a few words; where one leads, that of the global model.

    The words name the round of a row that is older than round `now`.
    """
    alone = roles.leader is not None
    words = []
    if row.score_averaged is not None:
        worst = "" if alone else f" averaged, {_three_digits(row.score_worst_peer)} worst peer"
        words.append(f"{score.word} {_three_digits(row.score_averaged)}{worst}")
    elif row.test_loss is not None:
        words.append(f"loss {row.test_loss:.3g}")
    elif row.loss is not None:
        words.append(f"training loss {row.loss:.3g}")
    if row.consensus_distance is not None and not alone:
        words.append(f"disagreement {row.consensus_distance:.3g}")
    return ", ".join(words) + (f" (round {row.round})" if words and now not in (None, row.round) else "")


def _three_digits(value: float | None) -> str:
    """Return three digits behind the point for numbers about one, three in all for larger ones."""
    if value is not None and 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    return "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


def describe_own(row: PeerRow, scored: tuple[float, int] | None, roles: Roles = PEERS, score: Score = ACCURACY) -> str:
    """The state of one participant in a few words; `scored` is the last that it measured, and in which round."""
    words = [] if row.loss is None else [f"loss {row.loss:.3g}"]
    if scored is not None:
        value, round = scored
        words.append(f"{score.word} {_three_digits(value)}" + (f" (round {round})" if round != row.round else ""))
    if row.peer == roles.leader:
        words.append(f"{row.clients or 0} contributions")
    elif roles.leader is None:
        words.append(f"waited {row.seconds_waiting:.2f} s")
    return ", ".join(words)
