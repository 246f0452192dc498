"""`fedgossip watch` follows a run, on the terminal or as a page; `fedgossip board` shows all runs of a folder."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.text import console, echo, reader_left

if TYPE_CHECKING:
    from fedgossip.report.watch.follow import Follower


POLL_SECONDS = 0.5
QUIET_SECONDS = 30.0
"""Seconds without new rows after which a reader of lines is notified, once."""
LEAVE = "Ctrl-C ends the watching; the run is not touched."


@click.command()
@click.argument("run_dirs", metavar="[RUN]...", type=click.Path(path_type=Path), nargs=-1)
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--web", is_flag=True, help="Serve a page on 127.0.0.1 that shows the graph and moves with the run.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Of the page; 0: a free one.")
@click.option("--open/--no-open", "opened", default=False, show_default=True, help="Open the page in the browser.")
def watch(run_dirs: tuple[Path, ...], once: bool, web: bool, port: int, opened: bool) -> int:
    """Watch RUN, a run directory, while it runs or afterwards; without RUN, the newest in runs/, hosting/ and joined/.

    RUN may also be the folder of one peer of a run over several machines, or several such folders, or a folder of runs:
    the newest of them.  Only files are read: a run cannot be disturbed.  The command ends when the run has ended.  On a
    pipe: a line per round and event.
    """
    if once and web:
        raise click.UsageError("--once and --web exclude each other")
    if (port or opened) and not web:
        raise click.UsageError("--port and --open go with --web")
    from fedgossip.report.watch.follow import Follower
    from fedgossip.report.watch.places import find

    follower = Follower(find(run_dirs))
    try:
        if once:
            _read_all(follower)
            _print(follower)
        elif web:
            _serve(follower, port, opened)
        elif sys.stdout.isatty():
            _live(follower)
        else:
            _lines(follower)
    except KeyboardInterrupt:
        return 0 if follower.ended else 130
    return 0


def _read_all(follower: Follower) -> None:
    while follower.poll(1.0):
        pass


def _pause(follower: Follower) -> None:
    """Leave the processor to the run, unless much remains to be read."""
    if not follower.behind and not follower.ended:
        time.sleep(POLL_SECONDS)


def _print(follower: Follower) -> None:
    """Print the whole table, for a pipe and a scrolling terminal."""
    from fedgossip.cli.run.progress import words_for
    from fedgossip.report.watch.table import Screen

    out, words = console(), words_for(follower.state.roles)
    width = out.width if out.is_terminal else 160
    console(width=width, highlight=False).print(Screen(follower, words, whole=True))


def _live(follower: Follower) -> None:
    """Renew the table until the run ends."""
    from rich.live import Live

    from fedgossip.cli.run.progress import words_for
    from fedgossip.report.watch.table import Screen

    follower.poll()
    try:
        if not follower.ended:
            screen = Screen(follower, words_for(follower.state.roles), footer=LEAVE)
            with Live(screen, console=console(highlight=False), screen=True, auto_refresh=False) as live:
                while not follower.ended:
                    live.refresh()
                    follower.poll()
                    _pause(follower)
    finally:
        _print(follower)
        echo(_last_line(follower))


def _last_line(follower: Follower) -> str:
    from fedgossip.base.untrusted_text import line

    if not follower.ended:
        return f"Still running after round {follower.state.round}: {follower.place.name}"
    lacking = "".join(f"\n{line(text)}" for text in follower.lacking)
    return f"The run has ended: {follower.state.status}. Everything is in {follower.place.name}{lacking}"


def _lines(follower: Follower) -> None:
    from fedgossip.cli.run.progress import words_for
    from fedgossip.report.watch.table import StatusLines

    lines = StatusLines(follower, words_for(follower.state.roles))
    follower.on_row = lambda row: _print_line(lines.describe(row))
    for text in lines.heading():
        _print_line(text)
    warned = False
    while not follower.ended:
        if reader_left():
            return
        follower.poll()
        for text in lines.troubles():
            _print_line(text)
        if time.time() - follower.news_at > QUIET_SECONDS and not warned:
            warned = True
            echo(f"nothing new for {QUIET_SECONDS:.0f} s: was the run stopped?  {LEAVE}", err=True)
        _pause(follower)
    echo(_last_line(follower))


def _print_line(text: str) -> None:
    if text:
        echo(text)


def _serve(follower: Follower, port: int, opened: bool) -> None:
    """Serve the page until Ctrl-C, also after the run's end."""
    from fedgossip.cli.run.progress import words_for
    from fedgossip.report.watch import snapshot
    from fedgossip.report.watch.local_server import Site

    lock = threading.Lock()

    def graph() -> dict[str, object]:
        with lock:
            return snapshot.graph(follower)

    def moment() -> dict[str, object]:
        with lock:
            return snapshot.moment(follower, words_for(follower.state.roles))

    with Site(graph, moment, port) as site:
        echo(f"{site.url}\n{LEAVE}")
        if opened:
            click.launch(site.url)
        printed = False
        while True:
            with lock:
                follower.poll()
            if follower.ended and not printed:
                printed = True
                echo(f"{_last_line(follower)}\nThe page stays until Ctrl-C.")
            time.sleep(0.01 if follower.behind else POLL_SECONDS)  # the page stays when the run has ended


LOOK_SECONDS = 0.2
"""Seconds between two reads."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Of the page; 0: a free one.")
@click.option("--open/--no-open", "opened", default=False, show_default=True, help="Open the page in the browser.")
def board(folder: Path, port: int, opened: bool) -> None:
    """Serve a page on 127.0.0.1 with all runs in FOLDER: a table to sort and filter, and their curves side by side.

    It updates while runs continue.  Only files are read: nothing is written, and no run can be disturbed.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.cli.run.progress import words_for
    from fedgossip.report.board.pages import served

    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", "Name the one that holds your runs: fedgossip board FOLDER")
    server, catalogue = served(folder, words_for, port)
    with server as site:
        echo(f"{site.url}\nAll runs in {folder}. Ctrl-C ends the board; no run is touched.")
        if opened:
            click.launch(site.url)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                catalogue.look(LOOK_SECONDS)
                time.sleep(0.02 if catalogue.unread else LOOK_SECONDS)
