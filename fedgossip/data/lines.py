"""Text with one example per line: a model learns to predict its characters one by one, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import IGNORED, USUAL_BUCKETS, Ragged, check_buckets

END = "\n"
"""Precedes the first character of a line, follows the last, and pads inputs."""

MOST_BYTES = 1 << 28
"""Maximum number of bytes of a file; its characters take 8 bytes of memory each."""


def read(path: Path, buckets: Sequence[int] = (), like: Dataset | None = None) -> Dataset:
    """Return one example per line: x[k] is END and the line, y[k] the line and END, to predict each character.

    A line longer than the last of `buckets` is cut, blank ones are omitted; `notes` counts both.  `like`: the set whose
    vocabulary and usual buckets these take; else the sorted characters.  Raises ConfigError for no text, a too large or
    empty file, and other characters.
    """
    vocabulary = None if like is None else like.vocabulary
    theirs: Sequence[int] = ()
    if like is not None and vocabulary is not None:
        theirs = like.x.buckets if isinstance(like.x, Ragged) else like.shape  # of a model: its longest
    widths = tuple(buckets) or tuple(theirs) or USUAL_BUCKETS
    check_buckets(widths)
    lines = _text_of(path).split(END)
    lines = lines[:-1] if not lines[-1] else lines  # the end of the last line leaves an empty one
    places = [place for place, line in enumerate(lines) if line and not line.isspace()]
    if not places:
        raise ConfigError(f"{path}: no line has a character", "Each line is an example.")
    kept = [lines[place] for place in places]
    codes, letters = _coded(path, END.join(["", *kept, ""]), vocabulary)
    ends = np.flatnonzero(codes == letters.index(END))  # before the first line, and behind each
    full = np.diff(ends)
    lengths = np.minimum(full, widths[-1])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    where = np.arange(offsets[-1]) + np.repeat(ends[:-1] - offsets[:-1], lengths)
    x = Ragged(codes[where], offsets, widths, letters.index(END))
    y = Ragged(codes[where + 1], offsets, widths, IGNORED)
    notes = [f"{path.name}: {_counted(len(kept), 'line')}, {100 * x.padding_share():.0f} % padding in their buckets"]
    if empty := len(lines) - len(kept):
        notes.append(f"{path.name}: {_counted(empty, 'empty line')} left out")
    if cut := int((full > widths[-1]).sum()):
        lost = _counted(int((full - lengths).sum()), "character")
        notes.append(
            f"{path.name}: {_counted(cut, 'line')} cut to {widths[-1]} characters, the last bucket: {lost} lost"
        )
    return Dataset(path.name, x, y, max(2, len(letters)), vocabulary=letters, notes=tuple(notes))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}".replace(",", " ")


def _text_of(path: Path) -> str:
    advice = "It is text in UTF-8, a line an example."
    try:
        with outside_files.open_file(outside_files.named(path), outside_files.LARGE) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", advice) from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: more than {MOST_BYTES >> 20} MiB", "Take a part of it, or a file for each peer.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is no text: {error.reason}", advice) from None
    if "\0" in text:
        raise ConfigError(f"{path}: character {text.index(chr(0))} is NUL, which no text has", advice)
    return text.replace("\r\n", END).replace("\r", END)


def _coded(path: Path, text: str, vocabulary: str | None) -> tuple[npt.NDArray[np.int32], str]:
    numbers = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    own, codes = np.unique(numbers, return_inverse=True)
    letters = "".join(map(chr, own.tolist()))
    if vocabulary is None:
        return codes.astype(np.int32).reshape(-1), letters
    known = {letter: place for place, letter in enumerate(vocabulary)}
    if strange := [letter for letter in letters if letter not in known]:
        advice = "The common set, data.test, has every character that is learned."
        raise ConfigError(f"{path}: the character {strange[0]!r} is not among its {len(vocabulary)}", advice)
    places = np.array([known[letter] for letter in letters], np.int32)
    return places[codes.reshape(-1)], vocabulary
