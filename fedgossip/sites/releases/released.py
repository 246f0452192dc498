r"""A release: release.json, which describes the model, in a signed zip archive for `fedgossip release verify`.

The signature is the archive's comment at the end of the file:

    ... the archive, uncompressed ...  "fedgossip release 1\n"  key, 64 hex digits  "\n"  signature, 128 hex digits

It covers the SHA-256 of all bytes before it.  Names are plain and relative, so the archive can be unpacked anywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.errors import FedgossipError, NotWrittenError
from fedgossip.base.owner_files import opened
from fedgossip.core import run_format
from fedgossip.net.identity import Identity, verify

FORMAT = 1


class ReleasedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The description of the model."""

    source: str
    kind: str
    numbers: int
    """Number of elements of all its tensors."""
    weights: str
    """sha256 of `file`."""
    file: str = f"{run_format.MODEL}/{run_format.WEIGHTS}"
    """Path of the model in the release: tensors, trees, or the fit itself if nothing else is needed."""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    score: dict[str, Any] = {}
    """The run's measurement: the metric's name, its value, and its data."""
    versions: dict[str, str] = {}


class ReleasedPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The promised privacy: `unit` is "none" without a budget."""

    unit: str
    epsilon: float | None = None
    delta: float | None = None
    words: tuple[tuple[str, str], ...]
    """(name, text) in reading order."""


class ReleasedApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The approval of one site, with its signed line in the release."""

    site: int
    """-1 for a site that joined by an invite, if the release contains no keys."""
    by: str
    time: str
    until: str
    key: str

    @property
    def who(self) -> str:
        return f"site {self.site}" if self.site >= 0 else "a site that joined"


class ReleasedLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One log or transcript, with its verdict at the time of the release."""

    file: str
    what: str
    sound: bool
    told: str


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of release.json."""

    format: int = FORMAT
    version: str
    """Version of fedgossip."""
    name: str
    made: str
    signer: str
    """The signer's public key, in hex."""
    use: str
    """Intended use and exclusions, as typed by a person."""
    model: ReleasedModel
    privacy: ReleasedPrivacy
    plan: str
    """The hash of the plan."""
    approvals: tuple[ReleasedApproval, ...]
    rounds: int
    clients: int = 0
    """Number of sites of the plan; 0 in older releases without this field, for which `counted` gives it."""
    least: int
    """Minimum number of sites for a round to count."""
    counted: tuple[tuple[int, ...], ...]
    """Per site the rounds, from 1, whose sum contains it; () if the record does not follow single sites."""
    logs: tuple[ReleasedLog, ...]
    agreed: str = ""
    """sha256 of agreed.json; "" if the sites agreed on no statistics."""
    agreed_file: str = run_format.AGREED
    """Name of that file in the sites' experiment folders; data.agreed."""
    judged: bool = False
    """Whether the release contains an evaluation by all sites."""
    fit: str = ""
    """The file of the fit by sums over the sites; "" for a trained model."""
    study: tuple[tuple[str, str], ...] = ()
    """Agreements of people besides the run ([study] of the plan), as (name, text)."""
    files: dict[str, str]
    """sha256 of each file of the release except this one."""

    @property
    def fit_alone(self) -> bool:
        """Whether the release contains only the fit: a curve, or hazards, which sites cannot evaluate by sums."""
        return self.model.file == self.fit

    @property
    def sites(self) -> int:
        return self.clients or len(self.counted)


def encoded(release: Release) -> bytes:
    return msgspec.json.format(msgspec.json.encode(release), indent=1)


def ranges(rounds: tuple[int, ...]) -> str:
    """Return rounds as "1 to 4, 6"; "none" for ()."""
    found: list[list[int]] = []
    for one in rounds:
        if found and found[-1][-1] == one - 1:
            found[-1].append(one)
        else:
            found.append([one])
    return ", ".join(f"{one[0]} to {one[-1]}" if len(one) > 1 else str(one[0]) for one in found) or "none"


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

    Raises NotWrittenError; no file is left then.
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
    """An open archive with a valid signature.  `signer`: the public key in it, in hex."""

    path: Path
    signer: str
    names: tuple[str, ...]
    archive: zipfile.ZipFile

    def read(self, name: str) -> bytes:
        """Return a file of the archive.  Raises ReleaseError if it is missing or unreadable."""
        try:
            return self.archive.read(name)
        except _NO_ARCHIVE as error:
            raise ReleaseError(f"{self.path}: no {name} in it ({error})", ASK) from None


_NO_ARCHIVE = (KeyError, ValueError, OSError, RuntimeError, EOFError, struct.error, zipfile.BadZipFile)
"""All errors of an entry that is encrypted, of another method, or not at the position in the directory."""


ASK = "Ask for the file again: it is refused whole."


@contextlib.contextmanager
def open_signed(path: Path) -> Iterator[SignedZip]:
    """Yield the verified archive of a file; it stays open, so no other file can replace it.

    Raises ReleaseError for any other file.
    """
    with contextlib.ExitStack() as stack:
        try:
            opened = outside_files.open_file(outside_files.resolve(path), outside_files.LARGE)
            file = stack.enter_context(opened)
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
        try:
            archive = stack.enter_context(zipfile.ZipFile(file))
        except _NO_ARCHIVE as error:
            raise ReleaseError(f"{path}: signed, and no archive: {error}", ASK) from None
        yield SignedZip(path, key, _names(path, archive, size), archive)


def _is_plain(name: str) -> bool:
    return len(name) <= NAME_MAX and name.count("/") < LEVELS and _NAME.fullmatch(name) is not None


def _names(path: Path, archive: zipfile.ZipFile, size: int) -> tuple[str, ...]:
    """Return the checked names in a signed archive, whose signer is not trusted."""
    found = archive.infolist()
    names = tuple(one.filename for one in found)
    plain = all(map(_is_plain, names)) and len(set(names)) == len(names) <= FILES
    plain = plain and not {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"} & {*names}
    stored = all(one.compress_type == zipfile.ZIP_STORED and one.file_size == one.compress_size for one in found)
    if not plain or not stored or sum(one.file_size for one in found) > size:
        raise ReleaseError(f"{path}: signed, and no archive as releases are", ASK)
    return names
