"""docs/reference/reference.md, from the declarations: keys, faults, exit codes, events, terms, files and commands; and
docs/sites/glossary.md, the terms of sites.

And docs/llms.txt, the menu and the commands for programs that read documentation.

python tests/reference.py --write        write all again
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import fedgossip
from fedgossip.cli import COMMANDS
from fedgossip.cli.explain import CODE, COMMAND, EVENT, FACT, FAULT, FILE, KEY, SECTION, Term, entries
from fedgossip.core.glossary import PAGES, SITES, terms_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "reference" / "reference.md"
GLOSSARY = DOCS / "sites" / "glossary.md"
LIST = DOCS / "llms.txt"
RENEW = "python tests/reference.py --write"

HEAD = f"""# Reference

Every key of an experiment file, every kind of fault, exit code, event and term, every file that a run leaves, and
every command.  `fedgossip explain WORD` prints the same on the terminal.  This page is made of the declarations in the
code: `{RENEW}`.

## Keys of an experiment file

Every key but `topology.graph` (or `coordinator.clients`, or `parallel.workers`) has a default; a key that is not here
is an error that names the nearest one.
"""


LIST_HEAD = f"""# fedgossip

> {inspect.cleandoc(fedgossip.__doc__ or "").splitlines()[0]}

Start with [For coding agents](use/SKILL.md): convert a loop, start a pilot, read a report.
`fedgossip explain all --json` prints every key, event, exit code, file and command; `explain WORD --json` one."""


def page() -> str:
    return "\n".join([HEAD, *_keys(), *_others()]) + "\n"


GLOSSARY_HEAD = f"""# Words of plans, policies and cards

For people responsible for data: the words of their documents, in alphabetical order.  `fedgossip explain WORD` prints
the same on the terminal; a plan, a policy and a card explain their own words.  [for-boards.md](for-boards.md) is the
guide.  This page is generated from the declarations in the code: `{RENEW}`.
"""


def glossary() -> str:
    """Return the page of the terms of sites."""
    rows = [
        (name, _linked(meaning)) for name, meaning in sorted(terms_of(SITES).items(), key=lambda one: one[0].lower())
    ]
    return "\n".join([GLOSSARY_HEAD, *_table(("word", "meaning"), rows)]).rstrip() + "\n"


def _keys() -> Iterator[str]:
    found = list(entries())
    for number, entry in enumerate(found):
        if entry.kind == SECTION:
            yield f"### {f'`{entry.name}`' if entry.name else 'At the top'}\n"
            yield f"{_linked(entry.meaning)}\n"
            keys = []
            for one in found[number + 1 :]:
                if one.kind != KEY:
                    break
                keys.append((f"`{one.name}`", _default(one), _meaning(one)))
            yield from _table(("key", "default", "meaning"), keys)


def _default(key: Term) -> str:
    default = key.facts["default"]
    return default if default in ("none", "required") else f"`{default}`"


def _meaning(key: Term) -> str:
    kind = ", ".join(key.facts[name] for name in ("type", "allowed") if name in key.facts)
    of = f"Of {key.facts['of']}.  " if "of" in key.facts else ""
    return f"{of}{_linked(key.meaning)} *({kind})*"


def _others() -> Iterator[str]:
    found = list(entries())
    yield "## Kinds of faults\n"
    yield from _table(("`kind`", "what happens"), [(f"`{e.name}`", e.meaning) for e in found if e.kind == FAULT])
    yield "## Exit codes\n"
    codes = [(f"`{e.name}`", e.meaning, e.facts.get("advice", "")) for e in found if e.kind == CODE]
    yield from _table(("code", "meaning", "what to do"), codes)
    yield "## Events\n"
    yield "What the record, the report and `fedgossip watch` tell beside the numbers, the gravest first.\n"
    events = [(f"`{e.name}`", e.facts["severity"], e.meaning, e.facts["advice"]) for e in found if e.kind == EVENT]
    yield from _table(("event", "severity", "meaning", "what to do"), events)
    yield "## Terms\n"
    yield "Words of tables, pages and forecasts; the formulas are in [numerics.md](numerics.md).  Those of plans,"
    yield "policies and cards are in [glossary.md](../sites/glossary.md).\n"
    yield from _table(("term", "meaning"), [(name, _linked(meaning)) for name, meaning in terms_of(PAGES).items()])
    yield "## What a run leaves\n"
    yield "Each command that runs something prints its folder, `runs/NAME-nN-DRIVER-TIME` or that of `--out`.\n"
    for where in dict.fromkeys(e.facts["where"] for e in found if e.kind == FILE):
        yield f"### {where}\n"
        files = [(f"`{e.name}`", _linked(e.meaning)) for e in found if e.kind == FILE and e.facts["where"] == where]
        yield from _table(("file or folder", "what"), files)
    yield "### Keys of summary.json\n"
    yield "`run.summary` in Python has the same.  Some are there in some kinds of run only.\n"
    keys = [(f"`{e.name.removeprefix('summary.')}`", _linked(e.meaning)) for e in found if e.kind == FACT]
    yield from _table(("key", "meaning"), keys)
    yield "## Commands\n"
    for entry in found:
        if entry.kind == COMMAND:
            yield from _command(entry)


def _command(entry: Term) -> Iterator[str]:
    usage, *options = entry.facts.items()
    yield f"### `fedgossip {entry.name}`\n"
    yield f"{_linked(entry.meaning)}\n"
    yield f"```text\n{usage[1]}\n```\n"
    if options:
        yield from _table(("option", "what"), [(f"`{flags}`", text) for flags, text in options])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(_cell(one) for one in row)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _linked(text: str) -> str:
    """The text, with links where it names another page, and without what Markdown would take as emphasis."""
    plain = text.replace("*", "\\*").replace("[[", "\\[[").replace("<", "&lt;")
    return re.sub(r"docs/((?:[\w-]+/)*)([\w-]+\.md)", r"[\2](../\1\2)", plain)


def listed() -> str:
    """Return llms.txt: what fedgossip is, its pages with their first sentences, and its commands."""
    commands = [f"- `fedgossip {name}`: {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join([LIST_HEAD, *_pages(), "", "## Commands", "", *commands]) + "\n"


def _pages() -> Iterator[str]:
    """Yield the menu of the site, a heading per part, with each page's first sentence of text."""
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    for indent, title, path in re.findall(r"^( +)- ([^:\n]+):(?: ([\w/-]+\.md))?$", menu, re.MULTILINE):
        if not path and len(indent) == 2:
            yield f"\n## {title}\n"
        elif path and (file := ROOT / "docs" / path).exists():
            first = _first_sentence(file.read_text())
            yield f"- [{title}]({path}){': ' if first else ''}{first}"


def _first_sentence(text: str) -> str:
    """Return the first sentence below a page's title; without one, the titles of its first sections."""
    above, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    first = re.split(r"\n\n+", above.partition("\n# ")[2] or above)[1].strip("\n")
    if not first or re.match(r"[#|<`!\-]| {4}", first):
        return ", ".join(section.splitlines()[0] for section in sections[:4])
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.?])\s", plain, maxsplit=1)[0]


PAGES_OF = {PAGE: page, GLOSSARY: glossary, LIST: listed}


def main(words: list[str]) -> int:
    for path, made in PAGES_OF.items():
        if "--write" in words:
            path.write_text(made())
        elif not path.exists() or path.read_text() != made():
            print(f"{path.name} is not of today's declarations: {RENEW}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
