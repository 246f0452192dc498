"""A signed zip archive: the signature covers every byte of the file.

The signature is the archive's comment, which is the end of the file:

    ... the archive, uncompressed ...  "fedgossip release 1\\n"  key, 64 hex digits  "\\n"  signature, 128 hex digits

It covers the SHA-256 of all bytes before it.  Names are plain and relative, so the archive can be unpacked anywhere.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedgossip.base import outside_files
from fedgossip.base.errors import FedgossipError, NotWrittenError
from fedgossip.base.owner_files import opened
from fedgossip.net.identity import Identity, verify

MARK = b"fedgossip release 1\n"
_SIGNATURE = 128
_END = re.compile(re.escape(MARK) + rb"([0-9a-f]{64})\n([0-9a-f]{128})")
END = len(MARK) + 64 + 1 + _SIGNATURE
"""Number of bytes of the comment."""
_NAME = re.compile(r"[\w][\w.\-]*(/[\w][\w.\-]*)*", re.ASCII)
FILES = 100_000
"""Maximum number of files of a release."""
NAME_MAX, LEVELS = 200, 8
"""Maximum number of letters of a file's name, and of its parts."""
PIECE = 1 << 20
_TIME = (1980, 1, 1, 0, 0, 0)


class ReleaseError(FedgossipError):
    """A file that is no release, or does not match its signature."""

    exit_code = 1


def _digest(file: BinaryIO, length: int) -> bytes:
    found, left = hashlib.sha256(b"a fedgossip release\n"), length
    file.seek(0)
    while left and (piece := file.read(min(PIECE, left))):
        found.update(piece)
        left -= len(piece)
    return found.digest()


def write_signed(path: Path, contents: Mapping[str, bytes | Path], identity: Identity) -> None:
    """Write a signed archive of `contents`, bytes or files by their names.

    Raises NotWrittenError; there is no file then.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with opened(part, "w+b") as file:
            _archive(file, contents, MARK + identity.verify.encode() + b"\n" + b"0" * _SIGNATURE)
            length = file.seek(0, 2) - _SIGNATURE
            signature = identity.sign(_digest(file, length))
            file.seek(length)
            file.write(signature.encode())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise NotWrittenError(path, error) from None


def _archive(file: BinaryIO, contents: Mapping[str, bytes | Path], comment: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = comment
        for name, content in contents.items():
            assert _NAME.fullmatch(name), name
            about = zipfile.ZipInfo(name, _TIME)
            about.external_attr = 0o600 << 16
            archive.writestr(
                about, content if isinstance(content, bytes) else outside_files.read_bytes(content, outside_files.LARGE)
            )


@dataclass(frozen=True)
class SignedZip:
    """An archive with a valid signature.  `signer`: the public key that it names, in hex."""

    path: Path
    signer: str
    names: tuple[str, ...]

    def read(self, name: str) -> bytes:
        """Return a file of the archive.  Raises ReleaseError where there is none."""
        with _opened(self.path) as file, zipfile.ZipFile(file) as archive:
            try:
                return archive.read(name)
            except (KeyError, zipfile.BadZipFile) as error:
                raise ReleaseError(f"{self.path}: no {name} in it ({error})", ASK) from None


def _opened(path: Path) -> BinaryIO:
    return outside_files.open_file(outside_files.named(path), outside_files.LARGE)


ASK = "Ask for the file again: it is refused whole."


def open_signed(path: Path) -> SignedZip:
    """Return the archive in a file, after its signature was verified.  Raises ReleaseError for any other file."""
    try:
        with _opened(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - END))
            ended = _END.fullmatch(file.read(END))
            if ended is None:
                raise ReleaseError(f"{path}: no release, or its end was changed or cut", ASK)
            key, signature = (one.decode() for one in ended.groups())
            if not verify(key, _digest(file, size - _SIGNATURE), signature):
                raise ReleaseError(f"{path}: changed since it was signed", ASK)
    except OSError as error:
        raise ReleaseError(f"{path}: cannot be read: {error.strerror}", "Name the file of a release.") from None
    return SignedZip(path, key, _names(path))


def _is_plain(name: str) -> bool:
    return len(name) <= NAME_MAX and name.count("/") < LEVELS and _NAME.fullmatch(name) is not None


def _names(path: Path) -> tuple[str, ...]:
    """Return the names in a signed archive: checked and bounded, since the signer may be anybody."""
    try:
        with _opened(path) as file, zipfile.ZipFile(file) as archive:
            found = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ReleaseError(f"{path}: signed, and no archive: {error}", ASK) from None
    names = tuple(one.filename for one in found)
    plain = all(map(_is_plain, names)) and len(set(names)) == len(names) <= FILES
    plain = plain and not {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"} & {*names}
    stored = all(one.compress_type == zipfile.ZIP_STORED and one.file_size == one.compress_size for one in found)
    if not plain or not stored or sum(one.file_size for one in found) > path.stat().st_size:
        raise ReleaseError(f"{path}: signed, and no archive as releases are", ASK)
    return names
