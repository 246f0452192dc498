"""All output of the command line: aligned, never cut, and without control sequences for a terminal.

Names, reasons and messages may be strangers' words.  All commands print by these functions; a test checks that.

No reader, encoding or closed terminal ends a command.  After a reader has left (`| head`), a terminal has closed, or if
a stream was never open, later output is lost, and the command continues.  A letter that the encoding lacks is replaced
by a similar one.  A full disk raises an error as before: its reader wants the output.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import math
import os
import sys
import textwrap
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import click
import msgspec
from click.core import ParameterSource

from fedgossip.base.untrusted_text import json_text, printable

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines on standard output, or on standard error."""
    click.echo(printable(text, keep="\n"), err=err, nl=nl)
    (sys.stderr if err else sys.stdout).flush()


def find_given(*options: str) -> str:
    """Return the first of these parameters of the running command that was typed; "" if none was."""
    source = click.get_current_context().get_parameter_source
    return next((one for one in options if source(one) is ParameterSource.COMMANDLINE), "")


def echo_json(text: str) -> None:
    """Print a JSON text on standard output."""
    click.echo(json_text(text))


def console(**options: Any) -> Console:
    """Return a console that prints texts literally: brackets in them are no markup, and leja:ring: is no emoji."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text, keep="\n"), **how)

    return Plain(markup=False, emoji=False, **options)


def moment(at: float) -> str:
    """Return a time of this machine's clock: the hour, and the day unless it is today."""
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%d %b, %H:%M", then)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines with aligned columns; lines within a cell are joined, because they would look like
    rows.
    """
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


class CommandGroup(click.Group):
    """A group whose help has the first sentence of each command in full; click cuts it to a line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(1000)) for name in self.list_commands(ctx)]
            )


def wrapped(rows: Iterable[tuple[str, str]], width: int) -> str:
    """Return (name, sentences) as two columns; the second is wrapped, so that no line is longer than `width`."""
    rows = list(rows)
    indent = max((len(what) for what, _ in rows), default=0) + 2
    lines = []
    for what, sentences in rows:
        first, *rest = textwrap.wrap(sentences.replace("`", ""), width - indent) or [""]
        lines += [f"{what.ljust(indent)}{first}", *(" " * indent + line for line in rest)]
    return "\n".join(lines)


def talk_to_stderr() -> contextlib.AbstractContextManager[object]:
    """Send output of the block to standard error: a user's model or data function may print."""
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
    """Return a number in four digits, a dash for None."""
    return "-" if value is None else f"{value:.4g}"


NOISY = "with noise of {noise:g} times what one record can add, on each site's sums; ± covers 95 % of what it moves"
"""Label of figures with a margin."""


def format_with_margin(value: float | None, margin: float | None) -> str:
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


LOST = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of a stream without a reader: the reader has left, the terminal or the stream was closed."""

LETTERS = {
    "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u2018": "'",
    "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00d7": "x", "\u00b7": ".", "\u00b1": "+-", "\u2192": "->",
    "\u2264": "<=", "\u2265": ">=", "\u03b1": "alpha", "\u03b4": "delta", "\u03b5": "epsilon", "\u03bb": "lambda",
    "\u03bc": "mu", "\u03c1": "rho", "\u03c3": "sigma", "\u2502": "|", "\u2500": "-", "\u2501": "-", "\u2503": "|",
}  # fmt: skip
"""Letters in fedgossip's texts that some encodings lack, in ASCII; NFKD decomposes others, such as a narrow space."""

HANDLER = "fedgossip.nearest"


class _Under(Protocol):
    """The underlying binary stream."""

    def write(self, content: Any, /) -> int | None: ...
    def flush(self) -> None: ...
    def fileno(self) -> int: ...
    def isatty(self) -> bool: ...


class _Lasting(io.RawIOBase):
    """Writes to the underlying stream as long as that accepts output."""

    def __init__(self, under: _Under, stream: TextIO) -> None:
        self._under, self.lost = under, False
        self._stream = stream  # the default would close the underlying stream with the last reference

    def write(self, content: Any, /) -> int:
        size = memoryview(content).nbytes
        if self.lost:
            return size
        try:
            taken = self._under.write(content)
            self._under.flush()
        except OSError as error:
            self.lost = True  # also on an error: pending output is not tried again at the end
            if error.errno not in LOST:
                raise
            return size
        return taken  # type: ignore[return-value]  # None where a pipe that does not block is full

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._under.fileno()

    def isatty(self) -> bool:
        return self._under.isatty()


def prepare() -> None:
    """Protect the streams of this process; streams replaced by other code are left unchanged."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller (>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, lasting(stream))


def lasting(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a protected stream with the same destination as `stream`."""
    stream.flush()
    raw = getattr(stream.buffer, "raw", stream.buffer)
    through = bool(stream.write_through)
    under = io.BufferedWriter(_Lasting(raw, stream))  # type: ignore[arg-type]
    return io.TextIOWrapper(
        under, stream.encoding, HANDLER, line_buffering=stream.line_buffering, write_through=through
    )


def reader_left(stream: TextIO | None = None) -> bool:
    """Whether output to standard output, or to `stream`, is lost."""
    raw = getattr(getattr(stream or sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Lasting) and raw.lost


def hold_standard_streams() -> None:
    """Open the null device for each closed standard descriptor, before another file of this process gets its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_encode_letter(error.encoding, letter) for letter in letters), error.end


def _encode_letter(encoding: str, letter: str) -> str:
    for near in (LETTERS.get(letter, ""), unicodedata.normalize("NFKD", letter)):
        shown = "".join(one for one in near if not unicodedata.combining(one))
        with contextlib.suppress(UnicodeEncodeError):
            shown.encode(encoding)
            if shown:
                return shown
    return "?"


codecs.register_error(HANDLER, _nearest)
