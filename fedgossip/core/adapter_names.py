"""The names of the two matrices of an adapter of low rank, lora_A [r, in] and lora_B [out, r].

As peft, loralib and torchtune write them: lora_A.default.weight, lora_embedding_A, lora_A, lora_a.weight.
"""

from __future__ import annotations

import re

ADAPTER_DISTANCE = "adapter_distance"
"""Name in the record of ||mean(B) mean(A) - mean(BA)|| / ||mean(BA)||, over the contributions of a round."""

_HALF = re.compile(r"((?:^|(?<=\.))[Ll]o[Rr][Aa]_(?:embedding_)?)([AaBb])(?=\.|$)")


def half_of(name: str) -> str:
    """Return "a" or "b" for the name of such a matrix; empty for any other name."""
    found = _HALF.search(name)
    return found[2].lower() if found else ""


def other_half(name: str) -> str:
    """Return the name of the matrix that it is multiplied with."""
    return _HALF.sub(lambda found: found[1] + {"A": "B", "B": "A", "a": "b", "b": "a"}[found[2]], name)


def product_name(name: str) -> str:
    """Return the name of the product of both."""
    return _HALF.sub(lambda found: found[1] + ("BA" if found[2].isupper() else "ba"), name)
