"""Participants named on the command line: 3, 0-99, or 0,5-9."""

from __future__ import annotations

import re

import click

MOST = 100_000
"""Maximum number of participants named at once."""


def read_ids(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the ids in a text such as "0,5-9", ascending.  Raises BadParameter; the callback of an option."""
    found: set[int] = set()
    for part in text.split(","):
        if not (words := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)):
            raise click.BadParameter(f"{text!r} is no id and no range: write 3, 0-99, or 0,5-9")
        first, last = int(words[1]), int(words[2] or words[1])
        if last < first:
            raise click.BadParameter(f"{part!r} begins above its end: write {last}-{first}")
        if last - first >= MOST:
            raise click.BadParameter(f"{part!r} are {last - first + 1} ids; at most {MOST} at once")
        if again := found.intersection(range(first, last + 1)):
            raise click.BadParameter(f"{text!r} names {min(again)} twice")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
