"""Standard output and error of a command, which no reader, encoding or closed terminal can end.

A reader that has left (`| head`), a closed terminal and a stream that was never open take no more output: later output
is lost, and the command goes on.  A letter that the encoding lacks is written as one that it has.  A full disk raises
an error as before: its reader wants the output.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
import unicodedata
from typing import Any, Protocol, TextIO

LOST = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of a stream without a reader: the reader has left, the terminal or the stream was closed."""

LETTERS = {
    "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u2018": "'",
    "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00d7": "x", "\u00b7": ".", "\u00b1": "+-", "\u2192": "->",
    "\u2264": "<=", "\u2265": ">=", "\u03b1": "alpha", "\u03b4": "delta", "\u03b5": "epsilon", "\u03bb": "lambda",
    "\u03bc": "mu", "\u03c1": "rho", "\u03c3": "sigma", "\u2502": "|", "\u2500": "-", "\u2501": "-", "\u2503": "|",
}  # fmt: skip
"""Letters of ours that some encodings lack, in ASCII; NFKD decomposes others, such as a narrow space."""

HANDLER = "fedgossip.nearest"


class _Under(Protocol):
    """The underlying binary stream."""

    def write(self, content: Any, /) -> int | None: ...
    def flush(self) -> None: ...
    def fileno(self) -> int: ...
    def isatty(self) -> bool: ...


class _Lasting(io.RawIOBase):
    """Writes to the underlying stream as long as that takes output."""

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
    """Protect the streams of this process; those replaced by other code are left alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller (>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, lasting(stream))


def lasting(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream to where `stream` leads, which lasts."""
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
    """Open the null device for each standard descriptor that is closed, before a file of ours gets its number."""
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
    return "".join(_in(error.encoding, letter) for letter in letters), error.end


def _in(encoding: str, letter: str) -> str:
    """Return the replacement for a letter that an encoding lacks."""
    for near in (LETTERS.get(letter, ""), unicodedata.normalize("NFKD", letter)):
        shown = "".join(one for one in near if not unicodedata.combining(one))
        with contextlib.suppress(UnicodeEncodeError):
            shown.encode(encoding)
            if shown:
                return shown
    return "?"


codecs.register_error(HANDLER, _nearest)
