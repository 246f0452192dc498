"""The file of a checkpoint: safetensors, with plain data and a sha256 over everything; whole on disk, or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import json_value
from fedgossip.base.errors import FedgossipError
from fedgossip.base.owner_files import patiently
from fedgossip.core.run_format import CHECKPOINT, CHECKPOINT_BEFORE

FORMAT = 4


HEADER_BYTES_MAX = 128 << 20
"""Maximum bytes of the header, about 100 for each array: a server of a table has one for each 8 kB of its rows."""

Array = npt.NDArray[Any]

_KINDS = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = {"bool": "BOOL", **{kind: kind[0].upper() + kind.lstrip("floatuin") for kind in _KINDS}}
"""The types of arrays that a checkpoint holds, and what safetensors calls them."""

_OF_NAME = {name: np.dtype(kind) for kind, name in DTYPES.items()}


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """The header entry of one tensor."""

    dtype: str
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=32)]
    data_offsets: tuple[int, int]


class RefusedError(FedgossipError):
    """A checkpoint that cannot be taken; `reason` is one word: missing, corrupt, format, version, peer, model."""

    def __init__(self, path: Path, reason: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path, self.reason = path, reason


def write_tensors(folder: Path, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write plain data and arrays as the newest checkpoint of `folder`, keeping the one before.

    Raises OSError (a full disk, say); nothing is lost then.
    """
    part = folder / f"{CHECKPOINT}.part"
    write_synced(part, _pieces(about, {name: _plain(array) for name, array in arrays.items()}))
    if (folder / CHECKPOINT).exists():
        (folder / CHECKPOINT).replace(folder / CHECKPOINT_BEFORE)
    part.replace(folder / CHECKPOINT)
    owner_files.sync_folder(folder)


def write_synced(part: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file that will be renamed; on disk when this returns, and not there where it raises OSError."""
    try:
        with patiently(lambda: owner_files.opened(part, "wb")) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _pieces(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file: a safetensors header, then every tensor as it lies in memory, without a copy."""
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    header: dict[str, Any] = {"__metadata__": {"about": text, "sha256": _hash(text, arrays)}}
    start = 0
    for name, array in arrays.items():
        offsets = [start, start + array.nbytes]
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        start += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > HEADER_BYTES_MAX:  # before it takes the place of one that can be read
        raise OSError(errno.EFBIG, f"{len(arrays):,} arrays are too many for one checkpoint: take more servers")
    yield struct.pack("<Q", len(head)) + head
    for array in arrays.values():
        yield _bytes(array)


def _plain(array: Array) -> Array:
    return np.require(array, array.dtype.newbyteorder("<"), ["C"])


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _hash(about: str, arrays: Mapping[str, Array]) -> str:
    total = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"/{name}/{array.dtype.name}/{array.shape}/".encode())
        total.update(_bytes(array))
    return total.hexdigest()


def take(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return what `write_tensors` wrote.  Raises RefusedError."""
    try:
        metadata, arrays = _parsed(outside_files.read_bytes(path, outside_files.LARGE))
        text = metadata["about"]
        about: dict[str, Any] = json_value(text)
        if about["format"] != FORMAT:
            raise RefusedError(path, "format", f"of format {about['format']}, this fedgossip writes {FORMAT}")
        if _hash(text, arrays) != metadata["sha256"]:
            raise RefusedError(path, "corrupt", "its bytes are not those that were written (sha256)")
    except RefusedError:
        raise
    except OSError as error:
        raise RefusedError(path, "missing", f"cannot be read: {error.strerror}") from None
    except Exception as error:  # whatever a file of somebody else's makes of it
        raise RefusedError(path, "corrupt", f"not a whole checkpoint ({type(error).__name__})") from None
    return about, arrays


def _parsed(content: bytes) -> tuple[dict[str, str], dict[str, Array]]:
    (size,) = struct.unpack_from("<Q", content)
    if size > min(HEADER_BYTES_MAX, len(content)):
        raise ValueError("a header longer than the file")
    header = json_value(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    arrays: dict[str, Array] = {}
    end = 0
    for name, tensor in msgspec.convert(header, dict[str, _Tensor]).items():
        kind, count = _OF_NAME[tensor.dtype], math.prod(tensor.shape)
        if tensor.data_offsets != (end, end + count * kind.itemsize):
            raise ValueError("tensors that do not follow each other")
        # a copy: what is read lies unaligned, and all of it in one block
        arrays[name] = np.frombuffer(content, kind, count, 8 + size + end).copy().reshape(tensor.shape)
        end += count * kind.itemsize
    if len(content) != 8 + size + end:
        raise ValueError("not as long as it says")
    return metadata, arrays
