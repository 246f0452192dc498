"""What a peer needs to go on after a crash: its machine's vectors and facts, its task's memory, and whose they are.

    checkpoint.safetensors             the newest
    checkpoint.previous.safetensors    the one before: taken where the newest cannot be read
    incarnation                        how many lives this peer has begun; on disk before its first Hello

A checkpoint is a safetensors file: tensors `vector/NAME` (the machine's) and `task/NAME` (optimizer slots, steps, local
buffers), and in its metadata `about` (JSON) with the sha256 over everything; written beside the old one, synced, and
renamed.  Random streams are functions of the seed and round.
"""

from fedgossip.runs.checkpoints.keeper import (
    DTYPES,
    MAY_DIFFER,
    SECONDS,
    About,
    Checkpoints,
    RefusedError,
    Stored,
    begin_life,
    check_same,
    differences,
    drop,
    incarnation_of,
    load,
    read,
    take,
    write,
    write_tensors,
)

__all__ = [
    "DTYPES",
    "LIVES",
    "MAY_DIFFER",
    "NEWEST",
    "PREVIOUS",
    "SECONDS",
    "About",
    "Checkpoints",
    "RefusedError",
    "Stored",
    "begin_life",
    "check_same",
    "differences",
    "drop",
    "incarnation_of",
    "load",
    "read",
    "take",
    "write",
    "write_tensors",
]
