"""Untrusted text for a terminal, a page or a log: unprintable characters (control, escapes, line breaks, direction) are
replaced, the user's secrets masked.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

LINE_LETTERS = 200

SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""Spaces of other widths, unprintable for Python; fedgossip's numbers contain them."""


MASK = "***"
_IN_ADDRESS = re.compile(r"(:/{1,2})[^\s/?#'\"@]*@")  # a path has one slash of an address given in its place
_IN_QUERY = re.compile(
    r"([?&;](?:[a-z_-]*token|api[_-]?key|password|passwd|secret|sig|signature|auth)=)[^\s&;#'\"]+", re.IGNORECASE
)


def masked(text: str) -> str:
    """Return the text with the secrets of its addresses masked: user:password@ before a host, token=... after it."""
    if ":/" not in text and "=" not in text:
        return text
    return _IN_QUERY.sub(rf"\g<1>{MASK}", _IN_ADDRESS.sub(rf"\g<1>{MASK}@", text))


def printable(text: str, keep: str = "") -> str:
    """Return the text with a "?" for every letter that is neither printable nor one of `keep`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep or letter in SPACES else "?" for letter in text)


def line(text: object, most: int = LINE_LETTERS) -> str:
    """Return a text as one line of at most `most` letters, with secrets masked."""
    shown = "".join(letter if letter.isprintable() else " " for letter in masked(str(text)[: 4 * most]))
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def json_text(text: str) -> str:
    """Return equivalent JSON with no unprintable characters but line breaks."""
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def quoted(path: os.PathLike[str] | str) -> str:
    """Return a path as a single shell word, for a printed command."""
    return shlex.quote(os.fspath(path))


_FORMULA = re.compile(r"\s*(?:[=@＝＠＋－]|[+-](?=.)(?!\d*\.?\d+(?:[eE][+-]?\d+)?$))|[\t\r\n]")


def cell_text(word: str) -> str:
    """Return untrusted text as the cell of a table: printable, and no spreadsheet formula (which begins like `=`)."""
    return printable(f"'{word}" if _FORMULA.match(word) else word)


def csv_text(lines: Iterable[Iterable[object]], ending: str = "\n") -> str:
    """Return lines as CSV: texts are cells by `cell_text`, lists have commas between their elements, None is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator=ending).writerows(map(_cell, cells) for cells in lines)
    return out.getvalue()


def csv_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same names as CSV, the names first; "" for no rows."""
    names = list(rows[0]) if rows else []
    return csv_text([names, *([row[name] for name in names] for row in rows)]) if rows else ""


def _cell(value: object) -> object:
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    return cell_text(text) if isinstance(text, str) else text
