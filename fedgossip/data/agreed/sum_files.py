"""Files of results of sums over sites, the same bytes at all of them: JSON, of a format known to the release."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError


class ToldFile(Protocol):
    @property
    def format(self) -> int: ...


Told = TypeVar("Told", bound=ToldFile)


def encoded(told: ToldFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(told), indent=1)


def read_sums_file(kind: type[Told], path: Path, known: int, what: str, advice: str) -> Told:
    """Read a file of format `known`.  Raises ConfigError, with `advice`, where there is no such file of `what`."""
    try:
        found = from_json(msgspec.json.Decoder(kind), outside_files.read_bytes(path))
    except OSError as error:
        raise ConfigError(f"{path}: no {what} ({error.strerror})", advice) from None
    except UnreadableError as error:
        raise ConfigError(f"{path}: cannot be read: {error}", advice) from None
    if found.format != known:
        text = f"{path}: format {found.format}; this release knows {known}"
        raise ConfigError(text, f"Use the release of fedgossip that wrote it, or: {advice}")
    return found
