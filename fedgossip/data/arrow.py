"""Tables of Apache Arrow, read by pyarrow only: parquet files, and data sets that Hugging Face's `datasets` saved on
disk.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.cells import LARGEST
from fedgossip.base.decoding import UnreadableError, json_value
from fedgossip.base.errors import ConfigError, needed, reason
from fedgossip.data import images, tables
from fedgossip.data.dataset import Dataset, parse_whole

CELLS_MOST = 1 << 31
ROWS_AT_ONCE = 4096
"""Rows of all columns decoded together: a small file may claim any size."""
EACH_CELL = 8
"""Least number of bytes of a cell: a column of nothing has none in its file."""
NAMES_MOST = 1 << 24
"""Maximum number of bytes of a data set's json."""

IMAGE = ("bytes", "path")

_INDEX = re.compile(r"__index_level_\d+__")
"""Name that pandas gives an index without a name."""
_WHOLE_MOST = 1 << 53
"""Whole numbers up to this one are exact in float64."""


def read_parquet(path: Path, options: Mapping[str, str], class_names: Sequence[str], task: str) -> Dataset:
    """Return the table of a parquet file, with CSV files' options.  Raises ConfigError for an unreadable file, and too
    many cells.
    """
    parquet = needed("pyarrow.parquet", "parquet", "a parquet file")
    try:
        with (
            outside_files.open_file(outside_files.resolve(path), outside_files.LARGE) as raw,
            parquet.ParquetFile(raw) as file,
        ):
            about = file.metadata
            if about.num_rows * max(1, about.num_columns) > CELLS_MOST:
                text = f"{path}: {about.num_rows} rows of {about.num_columns} columns; at most {CELLS_MOST} cells"
                raise ConfigError(text, "Divide it, or write the columns that are wanted into another file.")
            plain = file.schema_arrow
            leaves = [file.schema.column(place) for place in range(about.num_columns)]
            texts = [one.path for one in leaves if one.physical_type == "BYTE_ARRAY"]
            raw.seek(0)
            with parquet.ParquetFile(raw, read_dictionary=texts) as coded:  # a repeated word once in each batch
                size = os.fstat(raw.fileno()).st_size
                table = _bounded(path, coded.iter_batches(ROWS_AT_ONCE), coded.schema_arrow, size).cast(plain)
    except ConfigError:
        raise
    except Exception as error:  # a damaged file raises any error of its decoder
        text = f"{path}: not a parquet file that can be read: {_line(error)}"
        raise ConfigError(text, "Write it with pandas.DataFrame.to_parquet, or pyarrow.parquet.") from error
    return tables.from_columns(ArrowColumns("parquet", path, table, {}, options), options, class_names, task)


def _bounded(path: Path, batches: Iterable[Any], schema: Any, size: int) -> Any:
    """Return a table with cells of at most the unpacked size permitted for a file of `size`.  Raises ConfigError."""
    most, found = outside_files.inflated_limit(size), list[Any]()
    left = most
    for batch in batches:
        left -= sum(max(EACH_CELL * len(column), _unpacked(column)) for column in batch.columns)
        if left < 0:
            text = f"{path}: more than {most:,} bytes when unpacked, for a file of its size"
            raise ConfigError(text, "Write it without compression, or take a part of it.")
        found.append(batch)
    return needed("pyarrow", "parquet", "a table of Arrow").Table.from_batches(found, schema)


def _unpacked(cells: Any) -> int:
    """Return the bytes of an array whose words are written out: a dictionary has each once."""
    kind = str(cells.type).partition("<")[0]
    if hasattr(cells, "storage"):
        return _unpacked(cells.storage)
    if kind == "struct":
        return sum(map(_unpacked, cells.flatten()))
    if kind == "map":
        return EACH_CELL * len(cells) + _unpacked(cells.keys) + _unpacked(cells.items)
    if "list" in kind:
        return EACH_CELL * len(cells) + _unpacked(cells.flatten())
    if kind != "dictionary":
        return int(cells.nbytes)
    words, compute = cells.dictionary, needed("pyarrow.compute", "parquet", "a table of Arrow")
    if "string" not in str(words.type) and "binary" not in str(words.type):
        return EACH_CELL * len(cells) if not words.type.num_fields else int(words.nbytes) * len(cells)
    return compute.sum(compute.cast(compute.binary_length(words), "int64").take(cells.indices)).as_py() or 0


def read_saved(path: Path, options: Mapping[str, str], class_names: Sequence[str], task: str) -> Dataset:
    """Return a data set written by Dataset.save_to_disk or DatasetDict.save_to_disk.

    Of several splits train, followed by test as `own_test`.  Columns are numbers, lists of equally many numbers, or one
    of pictures.  Raises ConfigError.
    """
    arrow = needed("pyarrow", "huggingface", "a saved data set")
    folders = [path / name for name in ("train", "test") if (path / name / "state.json").is_file()] or [path]
    parts = [_split(arrow, folder) for folder in folders]
    known = _class_names(folders[0])
    try:
        table = arrow.concat_tables(parts)
    except arrow.ArrowException as error:
        raise ConfigError(f"{path}: train and test have other columns: {_line(error)}", SAVED) from error
    found = tables.from_columns(ArrowColumns("huggingface", path, table, known, options), options, class_names, task)
    return replace(found, own_test=len(parts[0])) if len(parts) == 2 else found


SAVED = "Write it with the save_to_disk of Hugging Face's datasets."


def _split(arrow: Any, folder: Path) -> Any:
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise ConfigError(f"{folder}: only some rows of its files are meant", "Call flatten_indices() before saving.")
    files = state.get("_data_files")
    listed = [one.get("filename") for one in files if isinstance(one, dict)] if isinstance(files, list) else []
    names = [name for name in listed if isinstance(name, str) and Path(name).name == name]
    if not names or len(names) < len(listed):
        raise ConfigError(f"{folder}/state.json names no data files", SAVED)
    try:
        found = []
        for name in names:
            with outside_files.open_file(outside_files.resolve(folder / name), outside_files.LARGE) as source:
                found.append(_read_stream(arrow, folder / name, source))
        table = arrow.concat_tables(found)
    except ConfigError:
        raise
    except Exception as error:  # a damaged file raises any error of its decoder
        raise ConfigError(f"{folder}: its files cannot be read: {_line(error)}", SAVED) from error
    if table.num_rows * max(1, table.num_columns) > CELLS_MOST:
        raise ConfigError(f"{folder}: {table.num_rows} rows of {table.num_columns} columns", "Divide it.")
    return table


def _read_stream(arrow: Any, path: Path, source: Any) -> Any:
    """Return the table of a stream.  Raises ConfigError for a compressed one: its parts name their own sizes."""
    messages, size = arrow.ipc.MessageReader.open_stream(source), os.fstat(source.fileno()).st_size
    if any(_is_compressed(bytes(message.metadata)) for message in messages):
        raise ConfigError(f"{path}: compressed, as save_to_disk writes none", SAVED)
    source.seek(0)
    stream = arrow.ipc.open_stream(source)
    return _bounded(path, stream, stream.schema, size)


_DICTIONARY, _BATCH = 2, 3
"""Kinds of a message of a stream that have a body."""


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the body of a message is compressed, by its flatbuffer.

    Message: version, kind, header; RecordBatch: length, nodes, buffers, compression; DictionaryBatch: id, batch.
    Source: apache/arrow, format/Message.fbs, and the FlatBuffers internals.
    """

    def field(table: int, place: int) -> int:
        """Return the offset of a field of a table; 0 for a missing field."""
        names = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
        length, at = int.from_bytes(metadata[names : names + 2], "little"), 4 + 2 * place
        offset = int.from_bytes(metadata[names + at : names + at + 2], "little") if at < length else 0
        return table + offset if offset else 0

    def table_at(at: int) -> int:
        return at + int.from_bytes(metadata[at : at + 4], "little")

    message = table_at(0)
    kind = metadata[field(message, 1)] if field(message, 1) else 0
    if kind not in (_DICTIONARY, _BATCH):
        return False
    batch = table_at(field(message, 2))
    return field(table_at(field(batch, 1)) if kind == _DICTIONARY else batch, 3) != 0


def _class_names(folder: Path) -> dict[str, Sequence[str]]:
    features = _json(folder / "dataset_info.json").get("features")
    found: dict[str, Sequence[str]] = {}
    for name, feature in features.items() if isinstance(features, dict) else ():
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, list) and all(isinstance(one, str) for one in names):
            found[name] = names
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json_value(outside_files.read_bytes(outside_files.resolve(path), NAMES_MOST))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}", SAVED) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not one JSON object", SAVED)
    return value


class ArrowColumns:
    """A table of Arrow."""

    def __init__(
        self, kind: str, path: Path, table: Any, names: Mapping[str, Sequence[str]], options: Mapping[str, str]
    ) -> None:
        self.kind, self.path, self._names, self._options = kind, path, names, options
        heads = [str(name) for name in table.column_names]
        self.left_out = [name for name in heads if _INDEX.fullmatch(name)]
        self.notes = tuple(f"{path.name}: {name} holds row labels of pandas: left out" for name in self.left_out)
        self._table = table.drop_columns(self.left_out) if self.left_out else table
        self.header = [name for name in heads if name not in self.left_out]
        if not table.num_rows or not self.header:
            raise ConfigError(f"{path}: no rows", "A table has a row for every example.")
        if len(set(self.header)) < len(self.header):
            raise ConfigError(f"{path}: two columns have one name", "Give every column a name of its own.")

    def numbers(self, column: int, advice: str) -> npt.NDArray[Any]:
        """Return the numbers of a column, [m, ...].  Raises ConfigError for other cells."""
        name, cells = self.header[column], self._table.column(column).combine_chunks()
        own = not advice  # a column of features
        where, advice = f"{self.path}, column {name!r}", advice or f"Fill it, or leave it out with drop={name}."
        if cells.null_count:
            raise ConfigError(f"{where}: nothing there in {cells.null_count} of {len(cells)} cells", advice)
        if _holds_pictures(cells.type):
            return self._pictures(name, cells)
        cells, shape = _flattened(cells, where)
        if str(cells.type).startswith("decimal"):
            cells = cells.cast("float64")
        if not (_is_number(cells.type) and not cells.null_count):
            words = f"A column of words is named as one, categories={name}, or left out, drop={name}."
            raise ConfigError(f"{where} holds {cells.type}, which are not numbers", words if own else advice)
        given = np.asarray(cells.to_numpy(zero_copy_only=False))
        found = given.astype(np.float64).reshape(shape)
        if given.dtype.kind in "iu" and given.size and (wide := _too_wide(given)):
            advice = advice if not own else f"It is a name more than a number: leave it out with drop={name}."
            raise ConfigError(f"{where}: {wide} has more digits than float64 holds", advice)
        if not (np.abs(found) <= LARGEST).all():
            row = int(np.argwhere(~(np.abs(found) <= LARGEST))[0][0])
            raise ConfigError(f"{where}, row {row + 1}: not a number that float32 can hold", advice)
        return found

    def _pictures(self, name: str, cells: Any) -> npt.NDArray[Any]:
        contents = [cell["bytes"].as_py() for cell in cells]
        if not all(isinstance(content, bytes) for content in contents):
            advice = "Save it with the pictures inside: datasets.Image(decode=False) embedded."
            raise ConfigError(f"{self.path}, column {name!r}: pictures lie elsewhere", advice)
        size = parse_whole(str(self.path), "size", self._options["size"], 1) if "size" in self._options else None
        named = [(f"{self.path}, {name} of row {row + 1}", content) for row, content in enumerate(contents)]
        return images.stacked(named, images.mode_of(str(self.path), self._options), size)

    def words(self, column: int) -> list[str]:
        return [_word(cell.as_py()) for cell in self._table.column(column)]

    def where(self, row: int) -> str:
        return f"row {row + 1}"

    def class_names(self, column: int) -> Sequence[str]:
        return self._names.get(self.header[column], ())


def _too_wide(given: npt.NDArray[Any]) -> int | None:
    """Return a whole number that float64 cannot represent, or None."""
    wide = [int(one) for one in (given.min(), given.max()) if abs(int(one)) > _WHOLE_MOST]
    return wide[-1] if wide and (given.astype(np.float64).astype(given.dtype) != given).any() else None


def _word(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.17g}" if isinstance(value, float) else str(value).strip()


def _holds_pictures(kind: Any) -> bool:
    fields = {kind.field(k).name for k in range(kind.num_fields)} if str(kind).startswith("struct") else set()
    return fields == set(IMAGE)


def _is_number(kind: Any) -> bool:
    return str(kind) in ("bool", "halffloat", "float", "double") or str(kind).strip("u") in (
        "int8", "int16", "int32", "int64",
    )  # fmt: skip


def _flattened(cells: Any, where: str) -> tuple[Any, tuple[int, ...]]:
    shape: tuple[int, ...] = (len(cells),)
    if hasattr(cells, "storage"):  # an extension type: read its storage
        cells = cells.storage
    while "list<" in str(cells.type)[:17]:
        inner = cells.flatten()
        each = len(inner) // max(1, math.prod(shape))
        lengths = {len(cell) for cell in cells} if not str(cells.type).startswith("fixed") else {each}
        if len(lengths) != 1 or cells.null_count or len(inner) > CELLS_MOST:
            raise ConfigError(f"{where}: its lists are not of one length", "Give every example as many numbers.")
        cells, shape = inner, (*shape, each)
    return cells, shape


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
