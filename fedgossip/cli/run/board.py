"""`fedgossip board`: all runs of a folder on one page."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import click

from fedgossip.cli.text import echo

LOOK_SECONDS = 0.2
"""Seconds between two pieces of reading."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Of the page; 0: a free one.")
@click.option("--open/--no-open", "opened", default=False, show_default=True, help="Open the page in the browser.")
def board(folder: Path, port: int, opened: bool) -> None:
    """Serve a page on 127.0.0.1 with all runs in FOLDER: a table to sort and filter, their curves beside each other.

    It moves with the runs that go on.  Only files are read: nothing is written, and no run can be disturbed.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.cli.wording import words_for
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
