"""Text as data: plays, with each speaker as a client, and files with one example per line.

A model learns to predict each next character; of a line, also its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, reason
from fedgossip.data.dataset import Dataset, parse_whole
from fedgossip.data.ragged import IGNORED, USUAL_BUCKETS, Ragged, check_buckets

CONTEXT = 32  # characters of one window
MIN_CHARS = 1000  # speakers with fewer characters are left out

# A name alone on its line, after an empty line or at the start; the speech follows up to the next empty line.
_SPEECH = re.compile(r"(?:\A|\n\n)([A-Z][^\n:]{0,60}):\n(.*?)(?=\n\n|\Z)", re.DOTALL)


def read(path: Path, options: Mapping[str, str]) -> Dataset:
    """Return windows of `context` characters of each speaker's speeches, in order, without overlap.

    y[k] are the `context` characters that follow x[k]'s one by one.  Vocabulary: the sorted characters of the kept
    speeches.  Raises ConfigError if no speaker has enough.  Source: the federated Shakespeare task of McMahan et al.,
    AISTATS 2017.
    """
    context = parse_whole(str(path), "context", options.get("context", str(CONTEXT)), 1)
    least = max(parse_whole(str(path), "min_chars", options.get("min_chars", str(MIN_CHARS)), 1), context + 1)
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
        text = outside_files.read_text(outside_files.resolve(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}", "It is text in UTF-8.") from error
    spoken: dict[str, list[str]] = {}
    for who, words in _SPEECH.findall(text):
        spoken.setdefault(who, []).append(words)
    if not spoken:
        raise ConfigError(f"{path}: no speaker found", 'A line "NAME:" after an empty line begins a speech.')
    return {who: "\n".join(words) for who, words in spoken.items()}


END = "\n"
"""Precedes the first character of a line, follows the last, and pads inputs."""

MOST_BYTES = 1 << 28
"""Maximum number of bytes of a file; its characters take 8 bytes of memory each."""


def read_lines(path: Path, buckets: Sequence[int] = (), like: Dataset | None = None) -> Dataset:
    """Return one example per line: x[k] is END and the line, y[k] the line and END, to predict each character.

    A line longer than the last of `buckets` is cut, blank ones are omitted; `notes` counts both.  `like`: the set whose
    vocabulary and default buckets to use; without it the sorted characters.  Raises ConfigError for no text, a too
    large or empty file, and other characters.
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
        with outside_files.open_file(outside_files.resolve(path), outside_files.LARGE) as file:
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
