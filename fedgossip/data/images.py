"""Folders of pictures, a class a folder; and pictures as bytes.  Pillow decodes them after a check of their size."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, nearest, needed, plural, reason
from fedgossip.data.dataset import Dataset, parse_whole

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MODES: Mapping[str, str] = {"rgb": "RGB", "gray": "L"}
LARGEST_PIXELS = 1 << 26
"""Maximum number of pixels of one picture: a small file may claim any size."""
LARGEST_ALL = 1 << 31
"""Maximum number of values in all pictures together: 8 GiB."""


def read(path: Path, options: Mapping[str, str], class_names: Sequence[str] = ()) -> Dataset:
    """Return the pictures [m, channels, height, width] in 0..1; the classes are the names of the folders.

    With folders train and test, test is last, as `own_test`.  size=32 makes all 32 by 32; otherwise they have one size.
    mode=gray: one channel.  Raises ConfigError for fewer than two classes, and no picture.
    """
    parts = [path / "train", path / "test"] if (path / "train").is_dir() and (path / "test").is_dir() else []
    places = parts or [path]
    names = tuple(class_names) or tuple(sorted(one.name for one in _folders(places[0])))
    if len(names) < 2:
        advice = f"Put the pictures of each class into a folder of its own: {path.name}/cat, {path.name}/dog."
        raise ConfigError(f"{places[0]}: {plural(len(names), 'folder')} of pictures", advice)
    files = [[(file, one.name) for one in _folders(place) for file in _files(one)] for place in places]
    flat = [file for part in files for file in part]
    for file, name in flat:
        if name not in names:
            raise ConfigError(f"{file.parent}: unknown class {name!r}", nearest(name, names))
    if not flat:
        raise ConfigError(f"{path}: no picture", f"Pictures end in {', '.join(ENDINGS)}.")
    size = parse_whole(str(path), "size", options["size"], 1) if "size" in options else None
    pictures = [(str(file), outside_files.read_bytes(outside_files.resolve(file))) for file, _ in flat]
    x = stacked(pictures, mode_of(str(path), options), size)
    y = np.array([names.index(name) for _, name in flat], np.int64)
    own_test = len(files[0]) if len(files) == 2 and all(files) else None
    return Dataset(path.name, x, y, len(names), own_test=own_test, class_names=names)


def mode_of(source: str, options: Mapping[str, str]) -> str:
    """Return Pillow's name of the option mode.  Raises ConfigError for an unknown one."""
    mode = options.get("mode", "rgb")
    if mode not in MODES:
        raise ConfigError(f"{source}: unknown mode {mode!r}", nearest(mode, tuple(MODES)))
    return MODES[mode]


def stacked(pictures: Sequence[tuple[str, bytes]], mode: str, size: int | None) -> npt.NDArray[np.float32]:
    """Return named pictures as float32 [m, channels, height, width] in 0..1.

    Raises ConfigError, naming a picture that cannot be decoded, is too large, or of another size.
    """
    pillow = needed("PIL.Image", "images", "a source of pictures")
    found: npt.NDArray[np.float32] | None = None
    for place, (name, content) in enumerate(pictures):
        one = _decoded(pillow, name, content, mode, size)
        if found is None:
            if len(pictures) * one.size > LARGEST_ALL:
                advice = "Make them smaller: size=32."
                raise ConfigError(f"{len(pictures)} pictures like {name} are too many numbers", advice)
            found = np.empty((len(pictures), *one.shape), np.float32)
        if one.shape != found.shape[1:]:
            text = f"{name}: {one.shape[2]} x {one.shape[1]} pixels; the first has {found.shape[3]} x {found.shape[2]}"
            raise ConfigError(text, "Give all one size: size=32.")
        found[place] = one
    assert found is not None
    return found


def _decoded(pillow: Any, name: str, content: bytes, mode: str, size: int | None) -> npt.NDArray[np.float32]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of damaged metadata; too large pictures are refused below
            with pillow.open(io.BytesIO(content), formats=FORMATS) as picture:
                if picture.width * picture.height > LARGEST_PIXELS:
                    text = f"{name}: {picture.width} x {picture.height} pixels; at most {LARGEST_PIXELS}"
                    raise ConfigError(text, "Leave it out, or make it smaller.")
                picture = picture.convert(mode)  # noqa: PLW2901
                picture = picture.resize((size, size), pillow.Resampling.BILINEAR) if size else picture  # noqa: PLW2901
                pixels = np.asarray(picture, np.float32) / np.float32(255)
    except ConfigError:
        raise
    except Exception as error:  # a damaged picture raises any error of its decoder
        text = f"{name}: not a picture that can be read: {error}"
        raise ConfigError(text, "Leave it out, or save it again.") from error
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(one for one in place.iterdir() if one.is_dir() and not one.name.startswith("."))
    except OSError as error:
        advice = "Name a folder that holds a folder for each class."
        raise ConfigError(f"{place}: cannot be read: {reason(error)}", advice) from None


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_file() and one.suffix.lower() in ENDINGS)
