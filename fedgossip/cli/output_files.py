"""Files that commands write, checked before any work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError

_TEXTS = (".csv", ".json", ".toml")
"""Endings of what people write: experiments, tables, keys of others."""


class OutputFile(click.Path):
    """A file to write, in an existing folder.  It may replace files with these endings only: never what it reads.

    A .csv, .json or .toml is replaced only where `mark`, which this command writes, is in its first 1024 bytes.
    """

    def __init__(self, *endings: str, mark: str = "") -> None:
        super().__init__(path_type=Path)
        self.endings, self.mark = endings, mark.encode()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        place = Path(os.fsdecode(super().convert(value, param, ctx)))
        option = param.opts[0] if param else "--out"
        if place.is_dir():
            raise ConfigError(f"{place}: a folder, and a file was expected", f"Name a file with {option}.")
        self.check_replaceable(place, option)
        if not place.parent.is_dir():
            raise ConfigError(f"there is no folder {place.parent}", "Make it, or name another place.")
        if not os.access(place.parent, os.W_OK):
            raise ConfigError(f"{place}: Permission denied", f"Choose a folder that can be written, with {option}.")
        return place

    def check_replaceable(self, place: Path, option: str = "--out") -> None:
        """Raise ConfigError if a file of another kind, or of somebody, is there."""
        if place.exists() and not self._may_replace(place):
            raise ConfigError(f"{place}: there already", f"Name another file with {option}.")

    def _may_replace(self, place: Path) -> bool:
        ending = place.suffix.lower()
        if ending not in self.endings or ending not in _TEXTS or place.is_symlink():  # a link is replaced, not its file
            return ending in self.endings
        try:
            with outside_files.open_file(place) as file:
                return self.mark in file.read(1024)
        except OSError:
            return False
