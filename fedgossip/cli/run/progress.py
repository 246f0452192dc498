"""The progress of a run on stderr: a live line on a terminal, plain lines elsewhere.

Events are printed in words: the record holds their names and values, `event_kinds` the templates.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import Formatter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedgossip.base.scores import ACCURACY, Score
from fedgossip.base.signals import KILL
from fedgossip.base.untrusted_text import line
from fedgossip.cli.text import console, echo
from fedgossip.core.machine import NodeId
from fedgossip.core.records import HALF_MISSING, EventRow, NetworkRow, PeerRow, Row, kind_of
from fedgossip.core.roles import PEERS, Roles
from fedgossip.experiment.sections import ENDLESS
from fedgossip.report.page.numbers import number_round
from fedgossip.report.page.reasons import REASONS, explain_abandoned

if TYPE_CHECKING:
    from rich.console import Console


EVENTS_SHOWN = 10
"""Maximum number of events printed one by one; metrics.jsonl has all events, including repeated ones."""

BAR, NARROW, NARROW_BAR = 24, 100, 10
"""Width of the bar; and, on terminals with fewer columns than the second, the third."""

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
        self._notes: Sequence[str] = ()
        self._events = 0
        self._missed: dict[int, tuple[int, object]] = {}
        self._last = NetworkRow(0, roles.learners, 0.0, 0)
        self._printed = 0
        """The round of the last printed network row."""
        self._scored: tuple[float, int] | None = None
        """The last measured accuracy, and its round."""
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
            for note in self._notes:
                self._print(f"data: {note}")
        match row:
            case NetworkRow():
                if row.measured or not self._last.measured:  # without a test, each round reports
                    self._last = row
                # a line that stays shows each score once, and never that of round 0: it reads as if nothing was learned
                stale = row.round > self._last.round <= (0 if self._bar else self._printed)
                shown = row if stale else self._last
                if self._moved(row.round, describe(shown, self.roles, row.round, self.score)):
                    self._printed = shown.round
            case PeerRow() if row.peer == self.own:
                self._scored = self._scored if row.score is None else (row.score, row.round)
                self._moved(row.round, describe_own(row, self._scored, self.roles, self.score))
            case EventRow() if not self._is_repeated(row):
                self._event(row)

    def take_notes(self, notes: Sequence[str]) -> None:
        """Print remarks on the data below the title."""
        self._notes = notes

    def _moved(self, round: int, news: str) -> bool:
        if self._bar:
            self._bar.update(self._task, completed=round, news=news)
        elif round and time.monotonic() - self._printed_at > PLAIN_SECONDS:
            of = f" of {self.rounds}" if self.rounds else ""
            self._print(f"{self.title}: round {round}{of}  {news}".rstrip())
            return True
        return False

    def _is_repeated(self, row: EventRow) -> bool:
        """Whether the event repeats one of the previous round."""
        if row.name != "missed":
            return False
        before, self._missed[row.peer] = self._missed.get(row.peer), (row.round, row.value)
        return before == (row.round - 1, row.value)

    def _event(self, row: EventRow) -> None:
        self._events += 1
        if self._events <= EVENTS_SHOWN or row.name == HALF_MISSING:
            round = max(number_round(row.name, row.round, self.roles), 0)
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
    """Return a bar of one line; a narrow terminal cuts the end of its text."""
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
    """Return the state of the network in a few words; with a coordinator, that of the global model.

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
    if value is not None and 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    return "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


def describe_own(row: PeerRow, scored: tuple[float, int] | None, roles: Roles = PEERS, score: Score = ACCURACY) -> str:
    """Return the state of one participant in a few words; `scored` is its last measurement, and the round."""
    words = [] if row.loss is None else [f"loss {row.loss:.3g}"]
    if scored is not None and (scored[1] or not row.round):  # that of round 0 is of before the training
        value, round = scored
        words.append(f"{score.word} {_three_digits(value)}" + (f" (round {round})" if round != row.round else ""))
    if row.peer == roles.leader:
        words.append(f"{row.clients or 0} contributions")
    elif roles.leader is None:
        words.append(f"waited {row.seconds_waiting:.2f} s")
    return ", ".join(words)


class _Unknown:
    def __format__(self, _spec: str) -> str:
        return "?"


Label = Callable[[NodeId], str]


@dataclass(frozen=True)
class _Member:
    """A number, formatted as a participant's if a template asks for the `member`."""

    node: int
    label: Label

    def __format__(self, spec: str) -> str:
        return self.label(self.node) if spec == "member" else format(self.node, spec)

    def __str__(self) -> str:
        return str(self.node)


class _Known(dict[str, object]):
    def __missing__(self, _key: str) -> object:
        return _Unknown()


def words_for(roles: Roles) -> Callable[[EventRow], str]:
    """Return the function that describes events, for peers or for a coordinator and its clients."""
    return event_text if roles.leader is None else partial(federated_text, label=roles.label)


def event_text(row: EventRow) -> str:
    """Return an event in words."""
    return _fill(row, kind_of(row.name).words, client)


def client(node: NodeId) -> str:
    """Return the name of a participant below a coordinator, if all of them are clients."""
    return f"client {node}"


def federated_text(row: EventRow, label: Label = client) -> str:
    """Return an event of a federated run in words; `label` names a participant: "leaf coordinator 1"."""
    kind = kind_of(row.name)
    return _fill(row, kind.led or kind.words, label)


def _fill(row: EventRow, words: str, label: Label) -> str:
    """`words`: the template for a value without facts."""
    value = row.value
    if row.name == "died":
        return _describe_exit(value)
    facts = value if isinstance(value, Mapping) else {} if value is None else {"value": value}
    templates = kind_of(row.name).facts if isinstance(value, Mapping) else tuple(filter(None, [words]))
    known = _Known({str(key): _format(one, label) for key, one in facts.items()})
    if str(facts.get("reason")) in REASONS:
        known["reason"] = REASONS[str(facts["reason"])]
    if row.name in ("abandoned", "contributes_nothing"):
        known["why"] = explain_abandoned(facts)
    try:
        if templates:
            stated = {key for key in known if facts.get(key) not in ([], ())}  # an empty list would follow "without"
            return _best_template(templates, stated).format_map(known)
    except (ValueError, TypeError):  # the value is of another kind than the template wants
        pass
    name = row.name.replace("_", " ")
    if "value" in known:
        return f"{name}: {known['value']}"
    return ": ".join([name, *([", ".join(f"{key} {one}" for key, one in known.items())] if known else [])])


def _best_template(templates: tuple[str, ...], known: set[str]) -> str:
    """Return the first template with all facts and no empty list; else the last."""
    return next((one for one in templates if _fields(one) <= known), templates[-1])


def _fields(template: str) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(template) if field}


def _describe_exit(value: object) -> str:
    """Return how a process ended without a report; negative codes are signals."""
    code = value.get("exit_code") if isinstance(value, Mapping) else None
    if not isinstance(code, int):
        return "ended without a report"
    if code == -KILL:
        return "was killed"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with code {code} and without a report"


def _format(value: object, label: Label) -> object:
    if isinstance(value, (list, tuple)):
        if any(isinstance(one, (list, tuple)) for one in value):
            return " | ".join(str(_format(one, label)) for one in value)
        return ", ".join(str(one) for one in value) or "nobody"
    return _Member(value, label) if type(value) is int else value
