"""LEAF's json files, such as FEMNIST: the handwriting of many people, each of them a client (partition natural).

    {"users": ["f0001_41", ...], "num_samples": [...], "user_data": {"f0001_41": {"x": [[784 numbers], ..], "y": [..]}}}

Source: Caldas et al., LEAF: a benchmark for federated settings, 2018.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, reason
from fedgossip.data.dataset import Dataset

SHAPE = (1, 28, 28)
CLASSES = "".join(map(chr, [*range(48, 58), *range(65, 91), *range(97, 123)]))
LARGEST = 1 << 31
"""Maximum number of bytes of one file: LEAF's have 100 users, some 50 million."""

AGAIN = "LEAF's preprocess.sh writes such files, into data/train and data/test."


class LeafUser(msgspec.Struct):
    x: list[list[float]]
    y: list[int]


class LeafFile(msgspec.Struct):
    """The used fields of a file; num_samples follows from the rest."""

    users: list[str]
    user_data: dict[str, LeafUser]


def read(path: Path) -> Dataset:
    """Return the images [m, 1, 28, 28] of all users, a group each; `path`: a file or folder; those of a folder test are
    last, as `own_test`.
    """
    folders = [path / "train", path / "test"] if (path / "train").is_dir() and (path / "test").is_dir() else [path]
    parts = [_users(folder) for folder in folders]
    users = [one for part in parts for one in part]
    names = tuple(sorted({name for name, _ in users}))
    ids = {name: place for place, name in enumerate(names)}
    x = np.concatenate([_images(path, name, user) for name, user in users])
    y = np.concatenate([np.array(user.y, np.int64) for _, user in users])
    groups = np.concatenate([np.full(len(user.y), ids[name]) for name, user in users])
    own_test = sum(len(user.y) for _, user in parts[0]) if len(parts) == 2 else None
    return Dataset(
        "femnist", x, y, len(CLASSES), groups.astype(np.int64), names, own_test=own_test, class_names=tuple(CLASSES)
    )


def _users(path: Path) -> list[tuple[str, LeafUser]]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path}: no .json file", AGAIN)
    decoder = msgspec.json.Decoder(LeafFile)
    found = []
    for file in files:
        content = _content(file, decoder)
        for name in content.users:
            if name not in content.user_data:
                raise ConfigError(f"{file}: user {name!r} has no data", AGAIN)
            user = content.user_data[name]
            _check(file, name, user)
            found += [(name, user)] if user.y else []
    if not found:
        raise ConfigError(f"{path}: no user has an example", AGAIN)
    return found


def _content(file: Path, decoder: msgspec.json.Decoder[LeafFile]) -> LeafFile:
    try:
        return from_json(decoder, outside_files.read_bytes(outside_files.resolve(file), LARGEST))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{file}: not a file of LEAF: {reason(error)}", AGAIN) from error


def _check(file: Path, name: str, user: LeafUser) -> None:
    where = f"{file}: user {name!r}"
    if len(user.x) != len(user.y):
        raise ConfigError(f"{where} has {len(user.x)} images and {len(user.y)} labels", AGAIN)
    if sizes := {len(image) for image in user.x} - {math.prod(SHAPE)}:
        raise ConfigError(f"{where}: an image of {min(sizes)} numbers; expected {math.prod(SHAPE)}", AGAIN)
    if user.y and not 0 <= min(user.y) <= max(user.y) < len(CLASSES):
        raise ConfigError(f"{where}: labels from {min(user.y)} to {max(user.y)}; expected 0 to 61", AGAIN)


def _images(path: Path, name: str, user: LeafUser) -> npt.NDArray[np.float32]:
    x = np.array(user.x, np.float32).reshape(-1, *SHAPE)
    if not np.isfinite(x).all():
        raise ConfigError(f"{path}: user {name!r}: a pixel is not a number that float32 can hold", AGAIN)
    return x
