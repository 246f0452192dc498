"""Plays as data: every speaker is a client, and a model learns to predict the next character."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError
from fedgossip.data.dataset import Dataset, whole

CONTEXT = 32  # characters of one window
MIN_CHARS = 1000  # speakers with fewer characters are left out

# A name alone on its line, after an empty line or at the start; the speech follows up to the next empty line.
_SPEECH = re.compile(r"(?:\A|\n\n)([A-Z][^\n:]{0,60}):\n(.*?)(?=\n\n|\Z)", re.DOTALL)


def read(path: Path, options: Mapping[str, str]) -> Dataset:
    """Return windows of `context` characters of each speaker's speeches, in order, without overlap.

    y[k] are the `context` characters that follow x[k]'s one by one.  Vocabulary: the kept speeches' sorted characters.
    Raises ConfigError where no speaker has enough.  Source: the federated Shakespeare task of McMahan et al., AISTATS
    2017.
    """
    context = whole(str(path), "context", options.get("context", str(CONTEXT)), 1)
    least = max(whole(str(path), "min_chars", options.get("min_chars", str(MIN_CHARS)), 1), context + 1)
    spoken = {who: words for who, words in _speeches(path).items() if len(words) >= least}
    if not spoken:
        raise ConfigError(f"{path}: no speaker has {least} characters", "Lower min_chars.")
    names = tuple(sorted(spoken))
    vocabulary = "".join(sorted(set("".join(spoken.values()))))
    points = np.array([ord(c) for c in vocabulary])
    x, y, groups = [], [], []
    for group, name in enumerate(names):
        codes = np.searchsorted(points, np.array([ord(c) for c in spoken[name]]))
        windows = (len(codes) - 1) // context
        x.append(codes[: windows * context].reshape(windows, context))
        y.append(codes[1 : windows * context + 1].reshape(windows, context))
        groups.append(np.full(windows, group))
    return Dataset(
        path.stem,
        np.concatenate(x).astype(np.int64),
        np.concatenate(y).astype(np.int64),
        max(2, len(vocabulary)),
        np.concatenate(groups).astype(np.int64),
        names,
        vocabulary,
    )


def _speeches(path: Path) -> dict[str, str]:
    try:
        text = outside_files.read_text(outside_files.named(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "It is text in UTF-8.") from error
    spoken: dict[str, list[str]] = {}
    for who, words in _SPEECH.findall(text):
        spoken.setdefault(who, []).append(words)
    if not spoken:
        raise ConfigError(f"{path}: no speaker found", 'A line "NAME:" after an empty line begins a speech.')
    return {who: "\n".join(words) for who, words in spoken.items()}
