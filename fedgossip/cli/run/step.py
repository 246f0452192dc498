"""`fedgossip step`: go on with a run by folder, as far as that is possible now."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import click

from fedgossip.base.untrusted_text import line
from fedgossip.cli.run.participant import SUMMING, is_over, step_content
from fedgossip.cli.text import echo
from fedgossip.core.run_format import STEP

_COMMANDS = "peer", "coordinator", "client", *SUMMING, "host", "join"
"""The commands with --links folder:DIR."""

_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    if not (found := re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text)) or float(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is no time: write 30s, 10m, 2h or 1d")
    return float(found[1]) * _TIMES[found[2]]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--every", metavar="TIME", callback=_seconds, help="Stay, and go on so often: 30s, 10m, 2h, 1d.")
def step(run: Path, every: float | None) -> int:
    """Do what participant RUN can do now with the messages of its folder, and end: for cron, or a USB stick.

    RUN is the folder that a participant's command made with --links folder:DIR (--out), or the folder run in that of
    `host` or `join`.  The exit code is 0 while the run goes on, and that of the participant when it has ended.
    """
    from fedgossip.base.errors import NetworkError

    words, place = _command_in(run)
    if is_over(run):
        echo(f"The run is over, and all that this participant sent was fetched: {run}", err=True)
        return 0
    while True:
        try:
            code = _go_on(words, place)
        except NetworkError as error:  # the folder is not mounted now
            if every is None:
                raise
            code = 0
            echo(f"{error}\n{error.advice}", err=True)
        if every is None or code or is_over(run):
            return code
        time.sleep(every)


def _command_in(run: Path) -> tuple[list[str], str]:
    """Return the command that goes on, and the folder to give it in.

    Raises ConfigError, also for a command that this user's own ones have not written there: it would run unseen.
    """
    import shlex

    from fedgossip.base import outside_files
    from fedgossip.base.decoding import UnreadableError, json_value
    from fedgossip.base.errors import ConfigError
    from fedgossip.base.owner_files import is_mark

    try:
        content = json_value(outside_files.read_text(run / STEP))
        words, place = [str(word) for word in content["words"]], str(content["in"])
        mark = str(content.get("mark", ""))
    except (OSError, UnreadableError, ValueError, KeyError, TypeError) as error:
        text = f"{run}: no participant of a run by folder ({error})"
        raise ConfigError(text, "Name the folder that --out gave, of a command with --links folder:DIR.") from None
    if words[:1] not in ([one] for one in _COMMANDS):
        raise ConfigError(f"{run / STEP}: {' '.join(words[:1])!r} is no participant", "Put a good copy there.")
    if not is_mark(mark, step_content(words, place)):
        text = f"{run / STEP}: no command of yours on this machine: fedgossip {line(shlex.join(words), 2000)}"
        raise ConfigError(text, f"If it is yours, type it with --once, in {line(place, 2000)}.")
    return [*words, *([] if "--once" in words else ["--once"])], place


def _go_on(words: Sequence[str], place: str) -> int:
    from fedgossip.cli import cli

    before = Path.cwd()
    os.chdir(place)
    try:
        return int(cli.main(list(words), prog_name="fedgossip", standalone_mode=False) or 0)
    finally:
        os.chdir(before)
