"""Named random streams: every random number is a function of (root seed, purpose, ids), never of a global generator.

Two uses never share a stream: an added draw changes no other number, and a peer computes its stream independently.
"""

from __future__ import annotations

import hashlib

import numpy as np

USUAL = 1
"""Default root seed of an experiment, and of a graph that is resolved alone."""


def integer(root: int, purpose: str, *ids: int) -> int:
    """Return a 64-bit integer in [0, 2**63) that depends on (root, purpose, ids) alone."""
    name = f"fedgossip/{root}/{purpose}/" + "/".join(map(str, ids))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def stream(root: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return the generator for (root, purpose, ids); the same arguments always yield the same numbers."""
    return np.random.Generator(np.random.PCG64(integer(root, purpose, *ids)))
