"""The model `words:ROWS-WIDTH-CLASSES`: a linear layer on the mean embedding of a bag of words.  No torch.

One table of rows of WIDTH numbers, drawn with deviation 1 / sqrt(WIDTH):

    ROWS                    an embedding for each word
    CLASSES                 a row of the linear layer's weights for each class
    ceil(CLASSES / WIDTH)   its biases, one after the other
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.keyed_rows import ROWS_MAX, KeyedTable, Keys, frozen_keys

WORDS = "words"


@dataclass(frozen=True)
class WordTable:
    """The sizes of a model of words."""

    words: int
    width: int
    classes: int

    @property
    def head(self) -> Keys:
        """Return the rows of the linear layer and its biases, which every batch needs."""
        return frozen_keys(np.arange(self.words, self.words + self.classes + -(-self.classes // self.width)))

    def table(self, seed: int) -> KeyedTable:
        rows = self.words + self.head.size
        return KeyedTable(rows, self.width, seed, 1 / math.sqrt(self.width))


def word_table(source: str) -> WordTable | None:
    """Return the sizes in model.source; None for another model.  Raises ConfigError for invalid sizes."""
    kind, _, rest = source.partition(":")
    if kind != WORDS:
        return None
    parts = rest.split("-")
    sizes = [int(part) for part in parts if part.isdecimal() and len(part) < 11]
    if len(sizes) != 3 or len(parts) != 3 or min(sizes) < 1 or sizes[2] < 2 or sum(sizes) + sizes[2] > ROWS_MAX:
        raise ConfigError(f"{source!r} has no sizes", "Write words:ROWS-WIDTH-CLASSES, such as words:20000-16-4.")
    return WordTable(*sizes)
