"""Every command line that the README and a page of docs/ show is one of the command line: its words and options.

The guides themselves are followed, command by command, by tests/house/test_readme.py and, most of them in the long
form, by tests/house/test_pages.py and tests/sites/test_pilot.py.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
from pages import README, ROOT, blocks

import fedgossip
from fedgossip.cli import cli
from fedgossip.experiment.reading import RUN_KINDS
from fedgossip.lab.sweeps.grid import read_sweep

PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


def shown(path: Path) -> list[str]:
    """Return the lines that call fedgossip, each with what a backslash continues."""
    texts = [block.text.replace("\\\n", " ") for block in blocks(path) if block.kind == "sh"]
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line for line in lines if line.startswith("fedgossip ")]


@pytest.fixture
def only_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have commands read their words and do nothing; files that they name need not be there."""
    done: list[str] = []
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: done.append(context.command_path))
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: value)
    return done


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_that_a_page_shows_is_one_of_the_command_line(path: Path, only_read: list[str]) -> None:
    for line in shown(path):
        only_read.clear()
        cli(shlex.split(line, comments=True)[1:], prog_name="fedgossip", standalone_mode=False)
        assert only_read, line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_experiment_that_a_page_shows_can_be_read(path: Path, tmp_path: Path) -> None:
    for block in blocks(path):
        if block.kind == "toml" and block.note.startswith("file: "):
            file = tmp_path / block.note.removeprefix("file: ")
            file.write_text(block.text)
            if re.search(r"^\[grid\]$", block.text, re.MULTILINE):
                read_sweep(file)
            elif len(set(RUN_KINDS) & set(tomllib.loads(block.text))) < 2:  # several are for `compare`: test_compare.py
                fedgossip.load_experiment(file)


def test_a_word_that_no_command_has_is_seen(only_read: list[str]) -> None:
    with pytest.raises(click.UsageError):
        cli(["run", "x.toml", "--no-such-option"], prog_name="fedgossip", standalone_mode=False)
    assert "fedgossip run" not in only_read


def test_the_pages_show_commands() -> None:
    assert sum(len(shown(path)) for path in PAGES) > 100
