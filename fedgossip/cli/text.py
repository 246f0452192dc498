"""All output of the command line: aligned, never cut, and without anything that a terminal would obey.

Names, reasons and messages may be strangers' words.  All commands print by these functions; a test checks that.
"""

from __future__ import annotations

import contextlib
import math
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fedgossip.base.untrusted_text import json_text, printable

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines on standard output, or on standard error."""
    click.echo(printable(text, keep="\n"), err=err, nl=nl)
    (sys.stderr if err else sys.stdout).flush()


def echo_json(text: str) -> None:
    """Print a JSON text on standard output."""
    click.echo(json_text(text))


def console(**options: Any) -> Console:
    """Return a console that prints texts literally: brackets in them are no markup, and leja:ring: is no picture."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text, keep="\n"), **how)

    return Plain(markup=False, emoji=False, **options)


def moment(at: float) -> str:
    """Return a time of this machine's clock: the hour, and the day too where it is not today's."""
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%d %b, %H:%M", then)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines with aligned columns; lines of a cell, which would pass for rows, are joined."""
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def wrapped(rows: Iterable[tuple[str, str]], width: int) -> str:
    """Return (what, sentences) as two columns; the second is wrapped, so that no line is longer than `width`."""
    rows = list(rows)
    indent = max((len(what) for what, _ in rows), default=0) + 2
    lines = []
    for what, sentences in rows:
        first, *rest = textwrap.wrap(sentences.replace("`", ""), width - indent) or [""]
        lines += [f"{what.ljust(indent)}{first}", *(" " * indent + line for line in rest)]
    return "\n".join(lines)


def talk_to_stderr() -> contextlib.AbstractContextManager[object]:
    """Send output of the block to standard error: a user's own model or data function may print."""
    return contextlib.redirect_stdout(sys.stderr)


def print_json(value: object) -> None:
    """Print one JSON object; a number that is not finite becomes null, as JSON has no word for it."""
    echo_json(msgspec.json.encode(value).decode())


def some(count: int, word: str) -> str:
    """Return "1 round" or "12 rounds"."""
    return f"{count} {word}" + ("" if count == 1 else "s")


def times(count: int) -> str:
    """Return "once" or "3 times"."""
    return "once" if count == 1 else f"{count} times"


def short(value: float | None) -> str:
    """Return a number in four digits, a dash without one."""
    return "-" if value is None else f"{value:.4g}"


NOISY = "with noise of {noise:g} times what one record can add, on each site's sums; ± covers 95 % of what it moves"
"""Label of figures with a margin."""


def with_margin(value: float | None, margin: float | None) -> str:
    """Return a figure and its margin of noise, both to the second digit of the margin; without noise six digits, and a
    dash without a figure.
    """
    if value is None:
        return "-"
    if not margin:
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    place = 1 - math.floor(math.log10(margin))
    shown = max(place, 0)
    return f"{round(value, place):.{shown}f} ± {round(margin, place):.{shown}f}"
