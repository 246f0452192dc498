"""IDX files, the format of MNIST and Fashion-MNIST: a magic number, the dimensions, then one byte per pixel."""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, reason
from fedgossip.data.dataset import Dataset

VARIABLE = "FEDGOSSIP_DATA"
INSTALLED = Path("/usr/share/datasets")
"""Folder of fashion-mnist/ in Debian's package dataset-fashion-mnist."""
_LARGEST = 1 << 31  # bytes of one unpacked file: a small gzip may claim any size


def read(kind: str, path: Path | None) -> Dataset:
    """Return the images [m, 1, h, w] in 0..1 of the train-* files and the t10k-* files, of each existing pair.

    t10k images are last, as `own_test`.  Raises ConfigError without either, and for a damaged file.
    """
    place = path or _default(kind)
    pairs = [pair for part in ("train", "t10k") if (pair := _pair(place, part)) is not None]
    if not pairs:
        raise ConfigError(
            f"{kind}: neither train-images-idx3-ubyte and train-labels-idx1-ubyte nor the t10k- pair (each also as "
            f".gz) is in {place}",
            f"Set {VARIABLE} to the folder that holds {kind}/, or write {kind}:PATH.",
        )
    parts = [_read_pair(*pair) for pair in pairs]
    x = np.concatenate([images for images, _ in parts])[:, None]
    y = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    own_test = len(parts[0][1]) if len(parts) == 2 else None
    return Dataset(kind, x.astype(np.float32) / np.float32(255), y, int(y.max()) + 1, own_test=own_test)


def _default(kind: str) -> Path:
    root, installed = os.environ.get(VARIABLE), INSTALLED / kind
    if installed.is_dir() and not (root and (Path(root) / kind).is_dir()):
        return installed
    if not root:
        raise ConfigError(
            f"{kind}: {VARIABLE} is not set; looked for {kind}/train-images-idx3-ubyte[.gz] and "
            f"{kind}/train-labels-idx1-ubyte[.gz], or the t10k- pair, in the folder that it names",
            f"Set {VARIABLE} to the folder that holds {kind}/, or write {kind}:PATH.",
        )
    return Path(root) / kind


def _pair(folder: Path, part: str) -> tuple[Path, Path] | None:
    found = [_either(folder / f"{part}-{what}-ubyte") for what in ("images-idx3", "labels-idx1")]
    images, labels = found
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        missing = "images-idx3" if images is None else "labels-idx1"
        raise ConfigError(
            f"{folder}: {part}-{missing}-ubyte[.gz] is missing next to {(images or labels)!s}",
            "Give images and labels in pairs.",
        )
    return images, labels


def _either(path: Path) -> Path | None:
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed if packed.is_file() else None


def _read_pair(images: Path, labels: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    x, y = read_array(images, 3), read_array(labels, 1)
    if len(x) != len(y):
        raise ConfigError(f"{images}: {len(x)} images, but {labels} has {len(y)} labels", "Fetch both files again.")
    return x, y


def read_array(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the uint8 array of an IDX file, gzipped or not, read-only.  Raises ConfigError for any other file."""
    raw = _bytes(path) if _kept is None else _read_cached(path, _kept)
    header = 4 + 4 * dimensions
    wanted = 0x0800 + dimensions
    if len(raw) < header:
        raise ConfigError(f"{path}: {len(raw)} bytes; expected a header of {header}", "Fetch the file again.")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", raw[:header])
    if magic != wanted:
        raise ConfigError(
            f"{path}: magic number 0x{magic:08x}; expected 0x{wanted:08x} (unsigned bytes, {dimensions} dimensions)",
            "Is this the right file?",
        )
    size = int(np.prod(shape, dtype=object))
    if len(raw) - header != size:
        shown = " x ".join(map(str, shape))
        raise ConfigError(
            f"{path}: {len(raw) - header} bytes of data; expected {shown} = {size}", "Fetch the file again."
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


@contextlib.contextmanager
def keep_files() -> Iterator[None]:
    """Unpack a file once while this context is open (also nested), for many runs; a changed file is read again.  At
    most KEPT_FILES of KEPT_BYTES.
    """
    global _kept  # noqa: PLW0603
    outer, _kept = _kept, {} if _kept is None else _kept
    try:
        yield
    finally:
        _kept = outer


KEPT_FILES, KEPT_BYTES = 8, 1 << 26
_kept: dict[tuple[str, int, int], bytes] | None = None


def _read_cached(path: Path, kept: dict[tuple[str, int, int], bytes]) -> bytes:
    facts = path.stat()
    key = (str(path.resolve()), facts.st_mtime_ns, facts.st_size)
    if key not in kept:
        raw = _bytes(path)
        if len(raw) > KEPT_BYTES:
            return raw
        while len(kept) >= KEPT_FILES:
            del kept[next(iter(kept))]
        kept[key] = raw
    return kept[key]


def _bytes(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return outside_files.read_bytes(path, _LARGEST)
        with outside_files.open_file(path, _LARGEST) as packed, gzip.open(packed) as file:
            raw = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}", "Fetch the file again.") from error
    if len(raw) > _LARGEST:
        raise ConfigError(f"{path}: holds more than {_LARGEST} bytes", "Is this the right file?")
    return raw
