"""The vocabulary of events: the meaning of each, advice, its texts, and the state of a participant that it implies.

An event is a name in the record with a value (`records.EventRow`).  Machines report them (`machine.Report`); drivers
and fault scripts report processes and links.  event_kinds.toml holds every property of a name; the record, the progress
of a run, reports and watching read it.  No code that runs a machine reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from fedgossip.base.decoding import from_toml

Tells = Literal[
    "", "gone", "suspected", "missed", "back", "there", "left", "ended", "asleep", "awake", "again", "relayed",
    "by_web", "direct",
]  # fmt: skip
"""The state of participants that an event implies.  Named participants: gone, suspected or missed at the reporting
peer; back at the reporting peer (the reporting peer itself where none is named); there, for all; or left.  The
reporting peer: ended, in a state of the event's name; asleep or awake; alive again, from an earlier round on.
Reporting peer and named participants: the route between them."""


class EventKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of the events of one name."""

    meaning: str = ""
    """One sentence: the fact that the event reports."""
    advice: str = "Nothing: it is in the order of things."
    """One sentence: the action to take."""
    words: str = ""
    """Text of an event with a single value, {value}, or without one."""
    facts: tuple[str, ...] = ()
    """Texts of an event with several named facts: the first template with all its facts present, else the last."""
    led: str = ""
    """As `words`, in runs with a coordinator, where their text differs."""
    severity: Literal["grave", "noted", "quiet"] = "noted"
    """grave: shown first; noted: listed; quiet: part of normal operation, only counted."""
    tells: Tells = ""
    open_round: bool = False
    """Whether a coordinator and its clients report it for the open round, by the number of completed rounds."""
    disturbs: bool = False
    """Whether the event changes the numbers of a real run."""

    @property
    def quiet(self) -> bool:
        return self.severity == "quiet"


HALF_MISSING = "half_missing"
"""The event of a run that continues but cannot end well; shown however many events were shown before."""

MISSED = "missed"
"""A round lacks the models of some partners."""

SKIPPED = "skipped"
"""Rounds that a peer of a synchronous run left out: its value is their number, its round the next that it does."""

SKIPPED_MIX = "skipped_mix"
"""A round of private gossip whose sum did not open: no model of a neighbour counts in it."""

UNKNOWN = EventKind()
"""Kind of a name outside the vocabulary: of another program or version."""


@cache
def event_kinds() -> Mapping[str, EventKind]:
    """Return the kind of every event, by name, the gravest first."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.convert(from_toml(text), dict[str, EventKind])


def kind_of(name: str) -> EventKind:
    """Return the kind of a name; UNKNOWN outside the vocabulary."""
    return event_kinds().get(name, UNKNOWN)
