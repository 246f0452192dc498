"""The vocabulary of events: what each means, what to do about it, how it is told, and what it says of a participant.

An event is a name in the record with a value (`records.EventRow`).  Machines report them (`machine.Report`); drivers
and fault scripts tell of processes and links.  All that is known of a name stands in event_kinds.toml, which the
record, the progress of a run, reports and watching read; nothing that runs a machine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from fedgossip.base.decoding import from_toml

Tells = Literal[
    "", "gone", "suspected", "missed", "back", "there", "left", "ended", "asleep", "awake", "again", "relayed", "direct"
]
"""What an event says of participants.  Of those whom it names: gone, suspected or missed by the teller; back for the
teller (itself, where nobody is named); there, for all; or left.  Of the teller: ended, in a state of the event's name;
asleep or awake; alive again, from an earlier round on.  Of the teller and those whom it names: the way between them."""


class EventKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of the events of one name."""

    meaning: str = ""
    """What has happened, in a sentence."""
    advice: str = "Nothing: it is in the order of things."
    """What to do about it, in a sentence."""
    words: str = ""
    """How it is told with a value that stands alone, {value}, or with none."""
    facts: tuple[str, ...] = ()
    """How it is told with several facts, by their names: the first template whose facts are there, else the last."""
    led: str = ""
    """As `words`, where a coordinator and its clients tell it in words of their own."""
    severity: Literal["grave", "noted", "quiet"] = "noted"
    """What a reader should know before all else; what is written; what is in the order of things, and only counted."""
    tells: Tells = ""
    open_round: bool = False
    """Whether a coordinator and its clients tell it of the round that is open, by how many are behind it."""
    disturbs: bool = False
    """Whether the numbers of a real run in which it happens are not those of one without it."""

    @property
    def quiet(self) -> bool:
        return self.severity == "quiet"


HALF_MISSING = "half_missing"
"""The one name of a run that goes on and will not end well, which is told however many others were told before."""

SKIPPED = "skipped"
"""Rounds that a peer of a synchronous run left out: its value is their number, its round the next that it does."""

UNKNOWN = EventKind()
"""Of a name that stands in no vocabulary: somebody else's, or of another version."""


@cache
def event_kinds() -> Mapping[str, EventKind]:
    """Return what is known of every event, by name, the gravest first."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.convert(from_toml(text), dict[str, EventKind])


def kind_of(name: str) -> EventKind:
    """Return what is known of the events of a name; UNKNOWN where it is none of ours."""
    return event_kinds().get(name, UNKNOWN)
