"""A stranger's words are shown and not obeyed, wherever they come out: terminal, page, log."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unicodedata import category

import msgspec
import pytest
from commands import finish, in_process, start
from hypothesis import given
from hypothesis import strategies as st

from fedgossip.base.decoding import UnreadableError
from fedgossip.base.untrusted_text import cell_text, csv_rows, csv_text, json_text, line, masked, printable
from fedgossip.cli import text
from fedgossip.cli.run import progress
from fedgossip.core.messages import Refusal
from fedgossip.core.messages.federated import REFUSALS
from fedgossip.core.records import EventRow
from fedgossip.core.roles import peer_roles
from fedgossip.core.wire import VOCABULARY
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.learning.models.scored_tables import with_columns
from fedgossip.protocols.federated.aggregation_round import EXHAUSTED
from fedgossip.report.page.markup import text as marked
from fedgossip.secure.aborts import Reason

PACKAGE = Path(__file__).parents[2] / "fedgossip"

HOSTILE = "[/dim][bold red]\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066\r\n\x00\u2028[link=http://x]"
"""Markup of rich that closes what was not opened; escape sequences, also of one letter; the direction turned; lines."""


def obeyed(shown: str) -> list[str]:
    return [letter for letter in shown if not letter.isprintable() and letter != "\n" and category(letter) != "Zs"]


@given(st.text())
def test_nothing_that_is_not_printable_is_left(words: str) -> None:
    assert not obeyed(printable(words)) and "\n" not in printable(words) and len(printable(words)) == len(words)
    assert line(words).isprintable() and len(line(words)) <= 200 and len(line(words, 5)) <= 5
    assert not obeyed(printable(words, keep="\n")) and not obeyed(str(marked(words)).replace("\t", ""))


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
def test_a_json_text_says_the_same(value: object) -> None:
    shown = json_text(json.dumps(value, ensure_ascii=False))
    assert not obeyed(shown) and json.loads(shown) == value


def test_printable_words_are_left_as_they_are() -> None:
    for words in ("München, 3.5 °C", "1\u202f000\u00a0MB", "机器学习 ✓", "a  b", ""):
        assert printable(words) == words
    assert line("a\nb  c\t") == "a b c" and line("x" * 300, 10) == "x" * 9 + "…"


# --- the command line ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Standard error as a terminal that remembers."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Tty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    yield shown


def test_the_line_that_moves_shows_names_and_events_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown, progress.Progress(HOSTILE, 3, peer_roles(4)) as moving:
        for name in ("refused", "abstained", "failed", HOSTILE):
            moving(EventRow(1, 0, name, HOSTILE))
            moving(EventRow(1, 0, name, {"text": HOSTILE, "reason": HOSTILE, "peer": HOSTILE, HOSTILE: 1}))
    for owned in ("\x1b[2J", "\x1b]0;", "\x07", "\x9b", "\u202e", "\u2066"):
        assert owned not in shown.getvalue()
    assert "[bold red]" in shown.getvalue()


@pytest.mark.parametrize("reason", [*REFUSALS, HOSTILE])
def test_a_reason_comes_out_as_words(capsys: pytest.CaptureFixture[str], reason: str) -> None:
    with progress.Progress("run", 3, peer_roles(4)) as plain:
        plain(EventRow(1, 0, "abstained", {"peer": 1, "reason": reason}))
    text.echo(progress.event_text(EventRow(1, 0, "abstained", {"peer": 1, "reason": reason})), err=True)
    said = capsys.readouterr().err
    assert said and not obeyed(said)


def test_a_console_takes_brackets_as_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.table import Table

    out = text.console(file=(shown := io.StringIO()), width=300)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    out.print(table)
    out.print(HOSTILE, style="dim")
    assert shown.getvalue().count("[bold red]") == 4 and not obeyed(shown.getvalue())


PRINTS = {"cli/text.py": "the one place", "drivers/fork_server.py": "one line, by plain.line"} | {
    "drivers/loops/coordinating.py": "one line, by plain.line",
    "drivers/loops/loop_handle.py": "one line, by plain.line",
    "drivers/loops/joining.py": "a number of participants",
    "drivers/loops/launching.py": "one line, by plain.printable",
    "drivers/loops/simulating.py": "the traceback of the user's own script, by plain.printable",
    "drivers/loops/scripts.py": "what the user's own script printed, by plain.printable",
}


ENDS = ("print", "echo", "secho", "Console", "write", "TextColumn")
PRINTING = re.compile(rf"\b({'|'.join(ENDS)})\(")


def last_name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def test_nobody_else_prints() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if place not in PRINTS and PRINTING.search(text) else ():
            if isinstance(node, ast.Call) and last_name(node.func) in ENDS:
                called = ast.unparse(node.func)
                if called in ("print", "click.echo", "click.secho", "Console", "rich.print", "sys.stdout.write"):
                    found.append(f"{place}:{node.lineno}: {called}")
                if called == "TextColumn" and "markup=False" not in ast.unparse(node) and "{" in ast.unparse(node):
                    found.append(f"{place}:{node.lineno}: {called} with markup")
    assert found == []


# --- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["[/x] of [bold]", HOSTILE])
def test_a_run_of_any_name_is_shown_listed_watched_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    said = json.dumps(name).replace("\\u007f", "\x7f")
    (tmp_path / "e.toml").write_text(
        f'name = {said}\nrounds = 2\n[topology]\ngraph = "ring"\nn = 3\n[task]\nkind = "averaging"\ndim = 3\n'
    )
    out = ""
    for words in (
        ["run", "e.toml", "--out", "out"],
        ["run", "e.toml", "--dry-run"],
        ["run", "e.toml", "--out", "out", "--json"],  # refused: it is there
        ["runs", "."],
        ["runs", ".", "--json"],
        ["watch", "out", "--once"],
        ["report", "out"],
    ):
        done = in_process(tuple(words), tmp_path, monkeypatch, capsys)
        assert "Traceback" not in done.err and "unexpected" not in done.err, done.err
        out += done.out + done.err
    assert not obeyed(out)
    page = (tmp_path / "out" / "report.html").read_text()
    assert not obeyed(page)


@pytest.mark.sockets
def test_on_a_terminal_a_run_with_brackets_in_its_name_comes_to_its_end(tmp_path: Path) -> None:
    """It ended with rich's MarkupError."""
    (tmp_path / "e.toml").write_text(
        'name = "[/x] of [bold]"\nrounds = 2\n[topology]\ngraph = "ring"\nn = 3\n[task]\nkind = "averaging"\ndim = 3\n'
    )
    ours, theirs = pty.openpty()
    try:
        process = start(["run", "e.toml", "--out", "out", "--no-report"], tmp_path, stderr=theirs)
        said = finish(process)
        assert said.code == 0, os.read(ours, 10_000)
    finally:
        os.close(ours)
        os.close(theirs)


# --- words of the protocol ------------------------------------------------------------------------------------------


def test_a_client_gives_one_of_the_known_reasons_or_is_not_heard() -> None:
    assert set(REFUSALS) == {*Reason, EXHAUSTED}
    for reason in REFUSALS:
        assert VOCABULARY.decoded(VOCABULARY.encoded(Refusal(1, 2, reason))).reason == reason  # type: ignore[attr-defined]
    for reason in (HOSTILE, "", "POLICY\n", "policy", "POLICY TWICE"):
        body = msgspec.msgpack.encode({"type": "refusal", "round": 1, "session": 2, "reason": reason})
        with pytest.raises(UnreadableError):
            VOCABULARY.decoded(body)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mlflow:https://ann:pa55@ml.example.org/x", "mlflow:https://***@ml.example.org/x"),
        ("postgresql://ann:pa55@db/x?sslmode=require", "postgresql://***@db/x?sslmode=require"),
        ("https://t0ken@host/", "https://***@host/"),
        ("https://host/?access_token=pa55&x=1", "https://host/?access_token=***&x=1"),
        ("https://host/a?api_key=pa55#top", "https://host/a?api_key=***#top"),
        ("csv:/data/a.csv?label=token&drop=a@b", "csv:/data/a.csv?label=token&drop=a@b"),
        ("tcp://[::1]:5700", "tcp://[::1]:5700"),
        ("see https://host/path: mail ann@example.org", "see https://host/path: mail ann@example.org"),
        ("no file /home/ann/https:/ann:sesame@host/x.csv", "no file /home/ann/https:/***@host/x.csv"),
        ("C:/data/ann@work/x.csv and at 12:/x", "C:/data/ann@work/x.csv and at 12:/x"),
    ],
)
def test_secrets_in_addresses_are_masked_and_nothing_else(text: str, shown: str) -> None:
    assert masked(text) == shown == masked(shown)


@pytest.mark.parametrize(
    "word", ["=cmd|' /C calc'!A0", "@SUM(1)", "+cmd", "-cmd", "\t=1", "\n=1", " =1", "＝1", "＠A1", "＋1", "－1"]
)
def test_a_class_of_somebody_elses_model_is_no_formula_of_a_spreadsheet(word: str, tmp_path: Path) -> None:
    assert cell_text(word) == printable(f"'{word}")
    (tmp_path / "t.csv").write_text("a\n=mine\n")
    wanted = csv_text([["a", f"'{word}"], ["=mine", f"'{word}"]]).replace("'=mine", "=mine")
    assert with_columns(CsvColumns(tmp_path / "t.csv"), {word: [word]}) == wanted, "also of a fit"
    assert csv_rows([{word: word, "n": None}]) == csv_text([[f"'{word}", "n"], [f"'{word}", None]])
    assert [cell_text(one) for one in ("yes", "+", "-", "-1.5", "+3", "a=b")] == ["yes", "+", "-", "-1.5", "+3", "a=b"]
