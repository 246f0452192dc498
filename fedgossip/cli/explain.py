"""`fedgossip explain`: the meaning of a word in an experiment file, in a record, or in an error."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence

import click

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.cli.text import echo, print_json
from fedgossip.cli.vocabulary import FACT, KEY, SECTION, TERM, Term, entries
from fedgossip.learning.settings import NOT_BUILT

ALL = "all"
WIDTH = 100  # columns


@click.command()
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def explain(words: tuple[str, ...], as_json: bool) -> None:
    """Explain each WORD: a key or a section of an experiment file, a kind of fault, an exit code, an event, a command,
    or a term of tables and pages: gap, "mean peer".  The last part of a key will do: lr.  All entries: fedgossip
    explain all.
    """
    known = list(entries())
    if any(one.name == " ".join(words) for one in known):  # a command of a group, or a term
        words = (" ".join(words),)
    found = list(dict.fromkeys(id(one) for word in words for one in meant(" ".join(word.split()), known)))
    told = [one for one in known if id(one) in found]
    if as_json:
        print_json([dataclasses.asdict(one) for one in told])
        return
    echo("\n\n".join("\n".join(lines(one)) for one in told))


def meant(word: str, known: Sequence[Term]) -> list[Term]:
    """Return the entries of a word.  Raises ConfigError, with the nearest words, for none."""
    if word == ALL:
        return list(known)
    name = word.strip("[]").removeprefix("--set ").partition("=")[0].strip()
    found = [one for one in known if one.name == name and one.name and one.kind != TERM]
    for section in [one for one in found if one.kind == SECTION]:
        found += [one for one in known if one.kind in (KEY, SECTION) and one.name.startswith(f"{section.name}.")]
    found = found or [one for one in known if one.kind in (KEY, FACT) and one.name.endswith(f".{name}")]
    found += [one for one in known if one.kind == TERM and one.name.lower() == name.lower()]
    if not found:
        for path, (what, advice) in NOT_BUILT.items():
            if path == name or path.endswith(f".{name}"):
                raise ConfigError(f"{path}: {what}", advice)
        parts = {part for one in known for part in (one.name, one.name.rpartition(".")[2]) if part}
        raise ConfigError(f"there is nothing that is called {word!r}", _nearest(name, parts))
    return found


def _nearest(name: str, parts: set[str]) -> str:
    advice = nearest(name, parts)
    return advice if advice.startswith("Did") else "fedgossip explain all  has every word."


def lines(entry: Term) -> Iterator[str]:
    """Yield an entry as people read it."""
    yield f"{entry.name or 'top of the file'}  ({entry.kind})"
    yield from textwrap.wrap(entry.meaning.replace("`", ""), WIDTH, initial_indent="    ", subsequent_indent="    ")
    width = max((len(name) for name in entry.facts), default=0)
    for name, fact in entry.facts.items():
        indent = " " * (6 + min(width, 24))
        head = f"    {name.ljust(min(width, 24))}  "
        yield from textwrap.wrap(fact.replace("`", ""), WIDTH + 20, initial_indent=head, subsequent_indent=indent)
