"""The model of the best round so far, on disk during a run: the next incarnation resumes from it.

It is a vector, in `best.safetensors` with its round and score; the folder model-best/ is made of it at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedgossip.base import outside_files
from fedgossip.base.errors import ResumeError
from fedgossip.base.scores import BestSoFar
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core import run_format
from fedgossip.runs.run_directory import write_whole


def kept_in(folder: Path) -> Callable[[int, float, Vector], None]:
    """Return what writes the best model until now into `folder`.  It raises NotWrittenError."""
    from safetensors.numpy import save

    def keep(round: int, score: float, vector: Vector) -> None:
        content = save({"vector": vector, "round": np.array([round]), "score": np.array([score])})
        write_whole(folder / run_format.BEST, content)

    return keep


def take_up(best: BestSoFar | None, folder: Path) -> Vector | None:
    """Resume `best` from the folder of an earlier incarnation; return its model, None without one.

    Raises ResumeError.
    """
    path = folder / run_format.BEST
    if best is None or not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        found = load(outside_files.read_bytes(path, outside_files.LARGE))
        best.round, best.value = int(found["round"][0]), float(found["score"][0])
        vector: Vector = frozen(found["vector"])
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        text = f"{path}: not the best model of a run: {error!r}"
        raise ResumeError(text, "Remove it: the best of the rounds that are left is kept then.") from None
    return vector
