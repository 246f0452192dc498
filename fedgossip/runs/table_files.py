"""Files of trained tables: the touched rows, and the source of all others, merged from the servers' parts.

table.safetensors    keys [k] uint32, ascending; rows [k, width]; in its metadata the source of all other rows
table.npz            the same, the metadata as arrays of one number
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedgossip.base import outside_files
from fedgossip.base.decoding import json_value
from fedgossip.base.errors import ConfigError
from fedgossip.base.keyed_rows import ROWS_MAX, KeyedTable, Rows, frozen_keys
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Checkpoint, NodeId
from fedgossip.core.run_format import CHECKPOINT, CHECKPOINT_BEFORE, TABLE
from fedgossip.plans.plan import Plan
from fedgossip.runs.checkpoints import RefusedError, read
from fedgossip.runs.run_directory import TrainedTable, write_whole

_FACTS = {"rows_in_all": int, "width": int, "seed": int, "scale": float}


def save_table(table: TrainedTable, path: Path | str) -> None:
    """Write the table as .npz or .safetensors.  Raises ConfigError for another ending, NotWrittenError."""
    path = Path(path)
    about = table.table.rows, table.table.width, table.table.seed, table.table.scale
    facts = dict(zip(_FACTS, about, strict=True))
    arrays: dict[str, Any] = {"keys": np.asarray(table.touched.keys), "rows": table.matrix}
    if path.suffix == ".npz":
        content = BytesIO()
        numbers: dict[str, Any] = {name: np.array(value) for name, value in facts.items()}
        np.savez(content, **arrays, **numbers)
        write_whole(path, content.getvalue())
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save

        write_whole(path, save(arrays, metadata={name: repr(value) for name, value in facts.items()}))
    else:
        raise ConfigError(f"{path}: a table is written as .npz or .safetensors", "Give one of these endings.")


def table_in(plan: Plan, folders: Sequence[Path]) -> TrainedTable | None:
    """Return the table in the checkpoints of participants' folders, or None.  Raises ConfigError for another run's."""
    if plan.touched_rows({}) is None:
        return None
    kept: dict[NodeId, Checkpoint] = {}
    for node, folder in enumerate(folders):
        for name in (CHECKPOINT, CHECKPOINT_BEFORE):
            if node not in kept and (folder / name).exists():
                with contextlib.suppress(RefusedError):
                    kept[node] = read(folder / name).machine
    try:
        found = plan.touched_rows(kept) if kept else None
        return TrainedTable(*found) if found else None
    except (ValueError, KeyError, TypeError) as error:
        text = f"{folders[0].parent}: checkpoints of servers that do not fit ({type(error).__name__})"
        raise ConfigError(text, "Give the experiment file that they had.") from None


def load_table(path: Path | str) -> TrainedTable:
    """Return the table of a file, or of a run directory.  Raises ConfigError."""
    path = Path(path)
    if path.is_dir():
        if not (path / TABLE).exists():
            advice = "A run whose model is a table leaves one at its end; from several machines: fedgossip collect."
            raise ConfigError(f"{path}: no {TABLE}", advice)
        path = path / TABLE
    try:
        return _table_of(*(_npz(path) if path.suffix == ".npz" else _safetensors(path)))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Give a run directory, or its table.") from None
    except Exception as error:  # a forged file may raise anything
        text = f"{path}: no trained table ({type(error).__name__}: {str(error)[:100]})"
        raise ConfigError(text, "Give a run directory, or a file that `fedgossip table` has written.") from None


def _npz(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    held = outside_files.read_arrays(path, ("keys", "rows", *_FACTS))
    return {name: held[name] for name in ("keys", "rows")}, {name: held[name].item() for name in _FACTS}


def _safetensors(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    from safetensors.numpy import load

    content = outside_files.read_bytes(path, outside_files.LARGE)  # no library opens by name what was checked
    held = load(content)
    about = json_value(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {name: held[name] for name in ("keys", "rows")}, about["__metadata__"]


def _table_of(arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> TrainedTable:
    keys, rows = arrays["keys"], arrays["rows"]
    count, width, seed, scale = (kind(facts[name]) for name, kind in _FACTS.items())
    if keys.dtype != np.uint32 or rows.shape != (*keys.shape, width) or rows.dtype not in (np.float32, np.float64):
        raise ValueError("keys and rows that do not fit")
    if not 0 < count <= ROWS_MAX or (keys[1:] <= keys[:-1]).any() or (keys[-1:] >= count).any():
        raise ValueError("keys that do not ascend, or are beyond the last row")
    table = KeyedTable(count, width, seed, scale, rows.dtype.name)
    return TrainedTable(table, Rows(frozen_keys(keys), frozen(np.array(rows).reshape(-1))))
