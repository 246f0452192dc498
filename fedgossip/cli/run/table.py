"""`fedgossip table`: the trained rows of a run with a table as its model."""

from __future__ import annotations

from pathlib import Path

import click

from fedgossip.cli.text import columns, echo

SHOWN = 8
"""Maximum number of elements of a row that is shown."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write it there: FILE.npz or FILE.safetensors.")
@click.option("--rows", "wanted", help="Show these rows, e.g. 3,17,250; untouched ones too.")
def table(run: Path, out: Path | None, wanted: str | None) -> None:
    """Show, or write, the table that the run in the folder RUN has trained: the rows that were touched, by their keys.

    RUN may be a file that was written so.
    """
    from fedgossip.report.page.numbers import data_size
    from fedgossip.runs.table_files import load_table, save_table

    found = load_table(run)
    shape, touched = found.table, found.touched
    zeros = len(touched.keys) - int(touched.matrix.any(axis=1).sum()) if touched.keys.size else 0
    first = f"drawn from seed {shape.seed}" if shape.scale else "zeros"
    lines = [
        ["table", f"{shape.rows:,} rows of {shape.width}, {shape.kind}; untouched ones: {first}"],
        ["touched", f"{len(touched.keys):,} rows, {data_size(touched.values.nbytes)}; {zeros:,} of them are zeros"],
    ]
    for key, row in zip(keys := _keys(wanted), found.rows(keys), strict=True):
        more = " ..." if row.size > SHOWN else ""
        lines.append([f"row {key}", " ".join(f"{one:.6g}" for one in row[:SHOWN]) + more])
    if out:
        save_table(found, out)
        lines.append(["written", f"{out}: keys [{len(touched.keys)}], rows [{len(touched.keys)}, {shape.width}]"])
    echo(columns(lines))


def _keys(text: str | None) -> list[int]:
    from fedgossip.base.errors import ConfigError

    parts = [part.strip() for part in text.split(",")] if text else []
    if wrong := [part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 11)]:
        raise ConfigError(f"--rows {wrong[0]!r} is no row", "Give numbers with commas between them: --rows 3,17.")
    return [int(part) for part in parts]
