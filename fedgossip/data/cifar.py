"""CIFAR-10 in its authors' Python and binary versions, as an archive or unpacked.

The Python version's pickles are read with the five names in such a file mapped to stand-ins; the rest is plain data.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, reason
from fedgossip.base.untrusted_text import line
from fedgossip.data.dataset import Dataset

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
PIXELS = math.prod(SHAPE)
TRAIN, TEST = tuple(f"data_batch_{k}" for k in range(1, 6)), "test_batch"
LARGEST = 64 << 20
"""Maximum bytes of one batch: the real ones have 31 million."""
UNPACKED_MOST = 512 << 20
"""Maximum bytes of the unpacked archive: the real one has 178 MiB."""

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
AGAIN = "Fetch the archive again: cifar-10-python.tar.gz or cifar-10-binary.tar.gz."


def read(path: Path) -> Dataset:
    """Return the images [m, 3, 32, 32] in 0..1 of the present batches; test_batch is last, as `own_test`.

    Raises ConfigError, naming the file; no code in it runs.
    """
    found = dict(_batches(path))
    train, test = [found[name] for name in TRAIN if name in found], found.get(TEST)
    parts = [*train, *([test] if test else [])]
    if not parts:
        raise ConfigError(f"{path}: neither {TRAIN[0]} nor {TEST}, as pickles or as .bin", AGAIN)
    x = np.concatenate([images for images, _ in parts]).reshape(-1, *SHAPE).astype(np.float32) / np.float32(255)
    y = np.concatenate([labels for _, labels in parts])
    own_test = sum(len(labels) for _, labels in train) if train and test else None
    return Dataset("cifar10", x, y, len(CLASSES), own_test=own_test, class_names=CLASSES)


def _batches(path: Path) -> Iterator[tuple[str, Batch]]:
    for file, raw in _folder(path) if path.is_dir() else _archive(path):
        name = Path(file).name
        if name.removesuffix(".bin") in (*TRAIN, TEST):
            where = f"{path}: {name}"
            if len(raw) > LARGEST:
                raise ConfigError(f"{where} holds more than {LARGEST} bytes", AGAIN)
            yield name.removesuffix(".bin"), _binary(where, raw) if name.endswith(".bin") else _pickled(where, raw)


def _folder(path: Path) -> Iterator[tuple[str, bytes]]:
    inner = [one for one in ("cifar-10-batches-py", "cifar-10-batches-bin") if (path / one).is_dir()]
    for name in (one for base in (*TRAIN, TEST) for one in (base, f"{base}.bin")):
        file = (path / inner[0] if inner else path) / name
        if file.is_file():
            try:
                with outside_files.open_file(outside_files.resolve(file), outside_files.LARGE) as opened:
                    yield name, opened.read(LARGEST + 1)
            except OSError as error:
                raise ConfigError(f"{file}: cannot be read: {reason(error)}", AGAIN) from error


_UNPACKED: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open,
}  # fmt: skip


def _archive(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with outside_files.open_file(outside_files.resolve(path), outside_files.LARGE) as packed:
            begins = packed.read(6)
            packed.seek(0)
            opened = next((one for magic, one in _UNPACKED.items() if begins.startswith(magic)), None)
            content = (opened(packed) if opened else packed).read(UNPACKED_MOST + 1)
        if len(content) > UNPACKED_MOST:  # before tarfile, which would read headers of any length
            raise ConfigError(f"{path}: more than {UNPACKED_MOST >> 20} MiB when unpacked", AGAIN)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                if member.isfile() and (file := archive.extractfile(member)):
                    yield member.name, file.read(min(member.size, LARGEST + 1))
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise ConfigError(f"{path}: not a tar archive that can be read: {reason}", AGAIN) from error


def _binary(where: str, raw: bytes) -> Batch:
    """Return a binary batch: per image a byte for the class, then the pixels."""
    if not raw or len(raw) % (PIXELS + 1):
        raise ConfigError(f"{where} has {len(raw)} bytes; expected a multiple of {PIXELS + 1}", AGAIN)
    rows = np.frombuffer(raw, np.uint8).reshape(-1, PIXELS + 1)
    return rows[:, 1:], _classes(where, rows[:, 0].astype(np.int64))


def _pickled(where: str, raw: bytes) -> Batch:
    try:
        content = _loaded(raw)
    except Exception as error:  # a hostile pickle may raise any error
        raise ConfigError(f"{where} is not the pickle of a batch: {line(str(error))}", AGAIN) from error
    named = {_text(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    data, labels = getattr(named.get("data"), "bytes_of_images", None), named.get("labels")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS or not isinstance(labels, list):
        raise ConfigError(f"{where} holds no data [m, {PIXELS}] of bytes with a list of labels", AGAIN)
    whole = all(isinstance(label, int) and 0 <= label < len(CLASSES) for label in labels)
    if len(labels) != len(data) or not len(data) or not whole:
        advice = f"There is one label, 0 to {len(CLASSES) - 1}, for each image.  {AGAIN}"
        raise ConfigError(f"{where} has {len(data)} images and {len(labels)} labels, or other labels", advice)
    return data, np.array(labels, np.int64)


def _classes(where: str, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if labels.max() >= len(CLASSES):
        raise ConfigError(f"{where}: a label is {labels.max()}; expected 0 to {len(CLASSES) - 1}", AGAIN)
    return labels


def _text(key: object) -> object:
    return key.decode("latin-1") if isinstance(key, bytes) else key


def _loaded(raw: bytes) -> Any:
    """Return the value of a pickle of plain data and byte arrays; names are looked up in a table of this file."""

    class ByteType:
        def __init__(self, name: object, *_: object) -> None:
            if _text(name) not in ("u1", "uint8", "|u1"):
                raise pickle.UnpicklingError(f"an array of {name!r}, and not of bytes")

        def __setstate__(self, state: object) -> None:
            pass

    class ByteArray:
        bytes_of_images: npt.NDArray[np.uint8] | None = None

        def __setstate__(self, state: Any) -> None:
            _, shape, kind, by_columns, content = state
            content = content.encode("latin-1") if isinstance(content, str) else content
            if not isinstance(kind, ByteType) or by_columns or not isinstance(content, bytes):
                raise pickle.UnpicklingError("an array that is not of bytes, row by row")
            if not all(isinstance(one, int) and one >= 0 for one in shape) or math.prod(shape) != len(content):
                raise pickle.UnpicklingError(f"an array of shape {shape!r} in {len(content)} bytes")
            self.bytes_of_images = np.frombuffer(content, np.uint8).reshape(shape)

    class Array:
        """The type of all arrays, named and never called."""

        def __init__(self) -> None:
            raise pickle.UnpicklingError("an array made by its type")

    def reconstruct(kind: object, *_: object) -> ByteArray:
        if kind is not Array:
            raise pickle.UnpicklingError("an array of another type")
        return ByteArray()

    def encode(text: str, coding: str) -> bytes:
        if coding != "latin1":
            raise pickle.UnpicklingError(f"a text in {coding!r}")
        return text.encode("latin-1")

    known = {
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): ByteType,
        ("_codecs", "encode"): encode,
    }

    class BatchUnpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in known:
                raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch does")
            return known[module, name]

    return BatchUnpickler(io.BytesIO(raw), encoding="bytes").load()
