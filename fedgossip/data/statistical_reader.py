"""Reads files of SPSS, Stata and SAS in a process of its own, which a damaged file may crash: their decoder is in C.

The process writes the cells, or the refusal, as JSON to standard output.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, needed
from fedgossip.base.kernels import PYTHON
from fedgossip.base.untrusted_text import line
from fedgossip.data.columns.declarations import FileDeclaration
from fedgossip.data.office_tables import read_statistical_here
from fedgossip.data.table_files import TableFile, TableRows

READ_SECONDS = 600
"""Maximum time of reading one file."""


class ReadTable(msgspec.Struct, forbid_unknown_fields=True):
    """What the process answers: the cells, or a refusal and its advice."""

    header: list[str] = []
    rows: list[list[str]] = []
    notes: tuple[str, ...] = ()
    refused: tuple[str, str] | None = None


_decoder = msgspec.json.Decoder(ReadTable)


def read_statistical(file: TableFile) -> TableRows:
    """Return the cells of a file as `read_statistical_here`.  Raises ConfigError, also if the decoder crashes on it."""
    needed("pyreadstat", "readstat", "a file of a statistical package")
    words = [*PYTHON, "-m", __name__, str(file.path), file.declared.encoding]
    why = "its decoder crashes"
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=READ_SECONDS, check=False)
        found = from_json(_decoder, done.stdout) if not done.returncode else None
        if done.returncode > 0:  # no signal: the process failed before or behind the decoder
            why = line(
                done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            )
    except subprocess.TimeoutExpired:
        found, why = None, f"more than {READ_SECONDS} s"
    except UnreadableError as error:
        found, why = None, str(error)
    if found is None:
        text = f"{file.path}: not a file of SPSS, Stata or SAS that can be read: {why}"
        raise ConfigError(text, "Save it again, or as comma-separated text in UTF-8.")
    if found.refused:
        raise ConfigError(*found.refused)
    return TableRows(found.header, found.rows, range(1, len(found.rows) + 1), found.notes, "row")


def _answer(path: str, encoding: str) -> ReadTable:
    try:
        table = read_statistical_here(TableFile(Path(path), FileDeclaration(encoding=encoding)))
    except ConfigError as error:
        return ReadTable(refused=(str(error), error.advice))
    return ReadTable(table.header, table.rows, table.notes)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_answer(*sys.argv[1:])))
