"""Memory of each process of a mesh: parameters, slots and saved activations, beside the closed form of `--dry-run`.

    python benchmarks/mesh_memory.py [--model gpt:4-64-4] [--short]

Counted in the processes themselves, in bytes of tensors: what a worker holds of the parameters, what its optimiser
remembers, of FSDP the parameters that are together between the passes, and the most that the graphs of its forward
passes have saved at one time (each piece of memory once; weights and whole numbers not counted).  No clock is read, so
how busy the machine is does not matter.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgossip.core.task import Job
from fedgossip.data.dataset import Dataset
from fedgossip.learning.processes.engine import DistributedLoop
from fedgossip.learning.processes.step_costs import ProcessMemory
from fedgossip.learning.settings import LET_GO, MeshSettings
from fedgossip.learning.task import TorchTask, TrainSettings

FOLDER = "MESH_MEMORY"
"""The environment variable that names to the processes the folder of what was found."""

CONTEXT, LETTERS, BATCH = 32, 60, 16
ZERO_2 = "fsdp, zero = 2"
MESHES: list[tuple[int, dict[str, Any], str]] = [
    (2, {"tensor": 2}, "ddp"),
    (2, {"tensor": 2, "sequence": True}, "ddp"),
    (2, {"pipeline": 2}, "ddp"),
    (2, {"pipeline": 2, "schedule": "gpipe"}, "ddp"),
    (4, {"tensor": 4}, "ddp"),
    (4, {"tensor": 2}, "ddp"),
    (4, {"tensor": 2}, "fsdp"),
    (4, {"tensor": 2}, ZERO_2),
    (4, {"tensor": 2, "pipeline": 2, "sequence": True}, "ddp"),
    (4, {"pipeline": 4}, "ddp"),
    (4, {"context": 2, "tensor": 2}, "ddp"),
    (2, {"context": 2, "attention": "ulysses"}, "ddp"),
]


def text() -> Dataset:
    """Windows of drawn characters."""
    drawn = np.random.default_rng(0).integers(0, LETTERS, (64, CONTEXT + 1))
    vocabulary = "".join(chr(48 + number) for number in range(LETTERS))
    return Dataset("letters", drawn[:, :-1], drawn[:, 1:], LETTERS, vocabulary=vocabulary)


def held(
    model: str, processes: int, mesh: Mapping[str, Any], parallel: str
) -> tuple[list[dict[str, int]], list[ProcessMemory]]:
    """Train two steps by adam; return what each process held, and what the closed form says."""
    data = text()
    settings = TrainSettings(
        optimizer="adam",
        lr=0.01,
        batch_size=BATCH,
        local_steps=2,
        processes=processes,
        parallel=parallel.partition(",")[0],
        zero=2 if parallel == ZERO_2 else LET_GO,
        mesh=MeshSettings(**mesh),
        device="cpu",
    )
    task = TorchTask(data, data.subset(np.arange(8)), [np.arange(64)], model, settings, seed=1, rounds=1)
    assert isinstance(task._engine, DistributedLoop)
    standing = task._engine.standing
    standing.how = (*standing.how[:2], "mesh_memory_worker")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        try:
            task.train([Job(0, 0, task.initial(0))])
        finally:
            if standing.group:
                standing.group.close()
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(processes)]
    return found, list(task._engine.memory)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--model", default="gpt:4-64-4")
    given.add_argument("--short", action="store_true", help="two meshes alone")
    words = given.parse_args()
    model, shown = words.model, MESHES[:2] if words.short else MESHES
    print(
        f"{model}, adam, {BATCH} windows of {CONTEXT} characters; kB of the fullest process: measured (closed form)\n"
    )
    print(
        "| data x tensor x pipeline x context | | parameters | slots | together | activations | |\n"
        "|---|---|---|---|---|---|---|"
    )
    for processes, mesh, parallel in shown:
        measured, told = held(model, processes, mesh, parallel)
        within = mesh.get("tensor", 1) * mesh.get("pipeline", 1) * mesh.get("context", 1)
        axes = f"{processes // within} x {mesh.get('tensor', 1)} x {mesh.get('pipeline', 1)} x {mesh.get('context', 1)}"
        cells = []
        for name in ("parameters", "slots", "together", "activations"):
            most = max(range(processes), key=lambda rank: measured[rank][name])
            closed = getattr(told[most], name)
            cells.append(
                f"{measured[most][name] / 1e3:.1f} ({closed / 1e3:.1f})" if closed is not None else "not counted"
            )
        off = max(
            abs(one["activations"] / (other.activations or 1) - 1) for one, other in zip(measured, told, strict=True)
        )
        how = ", ".join(
            [
                parallel,
                *(["sequence"] if "sequence" in mesh else []),
                mesh.get("schedule", ""),
                mesh.get("attention", ""),
            ]
        ).strip(", ")
        print(f"| {axes} | {how} | {' | '.join(cells)} | {off:.1%} |", flush=True)


if __name__ == "__main__":
    main()
