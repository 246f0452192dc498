"""`fedgossip explain`: the meaning of a word in an experiment file, in a record, or in an error."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args, get_type_hints, is_typeddict

import click

from fedgossip.base.errors import EXIT_CODES, ConfigError, nearest
from fedgossip.cli.text import echo, print_json
from fedgossip.core import run_format, run_summary
from fedgossip.core.glossary import terms
from fedgossip.core.records import event_kinds
from fedgossip.experiment.meanings import Key, fault_kinds, sections, texts_below
from fedgossip.lab.lectures.topics import name_of, topics

ALL = "all"
WIDTH = 100  # columns


@click.command()
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def explain(words: tuple[str, ...], as_json: bool) -> None:
    """Explain each WORD: a key or a section of an experiment file, a kind of fault, an exit code, an event, a command,
    or a term of tables and pages: gap, "mean peer".  The last part of a key is enough: lr.  All entries: fedgossip
    explain all.
    """
    known = list(entries())
    if any(one.name == " ".join(words) for one in known):  # a command of a group, or a term
        words = (" ".join(words),)
    found = {id(one): one for word in words for one in meant(" ".join(word.split()), known)}
    chosen = list(found.values())
    if as_json:
        print_json([dataclasses.asdict(one) for one in chosen])
        return
    echo("\n\n".join("\n".join(lines(one)) for one in chosen))


def meant(word: str, known: Sequence[Term]) -> list[Term]:
    """Return the entries of a word.  Raises ConfigError, with the nearest words, for an unknown word."""
    if word == ALL:
        return list(known)
    name = word.strip("[]").removeprefix("--set ").partition("=")[0].strip()
    found = [one for one in known if one.name == name and one.name and one.kind not in (TERM, LECTURE)]
    for section in [one for one in found if one.kind == SECTION]:
        found += [one for one in known if one.kind in (KEY, SECTION) and one.name.startswith(f"{section.name}.")]
    found = found or [one for one in known if one.kind in (KEY, FACT) and one.name.endswith(f".{name}")]
    found += [one for one in known if one.kind == TERM and one.name.lower() == name.lower()]
    if not found and (lecture := _lecture(name)):
        found = [one for one in known if one.kind == LECTURE and one.facts == lecture]
    if not found:
        parts = {part for one in known for part in (one.name, one.name.rpartition(".")[2]) if part}
        raise ConfigError(f"there is nothing with the name {word!r}", _nearest(name, parts))
    return found


def _nearest(name: str, parts: set[str]) -> str:
    advice = nearest(name, parts)
    return advice if advice.startswith("Did") else "fedgossip explain all  has every word."


def lines(entry: Term) -> Iterator[str]:
    """Yield the lines of an entry for readers."""
    yield f"{entry.name or 'top of the file'}  ({entry.kind})"
    yield from textwrap.wrap(entry.meaning.replace("`", ""), WIDTH, initial_indent="    ", subsequent_indent="    ")
    width = max((len(name) for name in entry.facts), default=0)
    for name, fact in entry.facts.items():
        indent = " " * (6 + min(width, 24))
        head = f"    {name.ljust(min(width, 24))}  "
        yield from textwrap.wrap(fact.replace("`", ""), WIDTH + 20, initial_indent=head, subsequent_indent=indent)


# Every word that a user may have to look up, from its declaration: keys, faults, exit codes, events, commands,
# terms.


SECTION, KEY, FAULT, CODE, EVENT, COMMAND = "section", "key", "kind of fault", "exit code", "event", "command"
TERM = "term"
"""A word of tables, pages and forecasts; `core/glossary.toml` defines each."""
FILE = "file"
"""A file or a folder written by a run; `core/run_format` declares them."""
FACT = "key of summary.json"
LECTURE = "lecture"
"""A topic of the course, by its name or another unambiguous word."""


@dataclass(frozen=True)
class Term:
    """One word: its kind, its meaning, and further facts by name."""

    kind: str
    name: str
    meaning: str
    facts: Mapping[str, str] = field(default_factory=dict)


def entries() -> Iterator[Term]:
    """Yield all entries, grouped by kind, in the order of declaration."""
    for section in sections():
        yield Term(SECTION, section.name, section.meaning)
        yield from map(describe_key, section.keys)
    yield from (Term(FAULT, name, meaning) for name, meaning in fault_kinds().items())
    for code, ending in EXIT_CODES.items():
        facts = {"advice": ending.advice} if ending.advice else {}
        yield Term(CODE, str(code), f"{ending.name}: {ending.meaning}", facts)
    for name, event in event_kinds().items():
        yield Term(EVENT, name, event.meaning, {"advice": event.advice, "severity": event.severity})
    yield from (Term(TERM, name, meaning, _lecture(name)) for name, meaning in terms().items())
    yield from (Term(LECTURE, name, topic.title, _lecture(name)) for name, topic in topics().items())
    yield from files()
    yield from summary_keys()
    yield from commands()


def _lecture(word: str) -> Mapping[str, str]:
    with contextlib.suppress(ConfigError):
        return {"lecture": f"fedgossip lecture {name_of(word)}"}
    return {}


def files() -> Iterator[Term]:
    """Yield every file and folder of a run; its fact is `where`."""
    meant = texts_below(ast.parse(inspect.getsource(run_format)).body)
    for name, hint in get_type_hints(run_format, include_extras=True).items():
        yield Term(FILE, getattr(run_format, name), meant[name], {"where": hint.__metadata__[0]})


def summary_keys() -> Iterator[Term]:
    """Yield the keys of summary.json in alphabetical order, each followed by the keys of its inner object."""
    module = ast.parse(inspect.getsource(run_summary))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}

    def meant(name: str) -> dict[str, str]:
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
        return {key: text for base in bases for key, text in meant(base).items()} | texts_below(classes[name].body)

    def within(of: type, path: str) -> Iterator[Term]:
        texts = meant(of.__name__)
        for name, hint in sorted(get_type_hints(of).items()):
            yield Term(FACT, path + name, texts[name])
            for inner in (hint, *get_args(hint)):
                if is_typeddict(inner):
                    yield from within(inner, f"{path}{name}.")

    yield from within(run_summary.RunSummary, "summary.")


def describe_key(key: Key) -> Term:
    """Return a key's entry; its facts are `type`, `default` and, if restricted, `allowed` and `of`."""
    facts = {"type": key.type, "default": key.default, "allowed": key.allowed, "of": key.of}
    return Term(KEY, key.name, key.meaning, {name: fact for name, fact in facts.items() if fact})


def commands() -> Iterator[Term]:
    """Yield every command, and the commands of groups, with their usage."""
    from fedgossip.cli import COMMANDS, cli

    context = click.Context(cli, info_name="fedgossip", terminal_width=10_000, max_content_width=10_000)
    for name in COMMANDS:
        if command := cli.get_command(context, name):
            yield from _command(command, context, name)


def _command(command: click.Command, parent: click.Context, name: str) -> Iterator[Term]:
    context = click.Context(command, parent=parent, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    options = [one for one in command.get_params(context) if isinstance(one, click.Option) and "--help" not in one.opts]
    records = [record for one in options if (record := one.get_help_record(context))]
    path = context.command_path.removeprefix("fedgossip ")
    yield Term(COMMAND, path, " ".join((command.help or "").split()), {"usage": usage, **dict(records)})
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if one := command.get_command(context, inner):
                yield from _command(one, context, inner)
