"""The new lines of a file that grows, a bounded piece at a time."""

from __future__ import annotations

from pathlib import Path

from fedgossip.base import outside_files

PIECE_BYTES = 1 << 20
"""Maximum bytes that are read at once; a longer line is no row and is skipped."""

NEWEST_BYTES = 1 << 16
"""Bytes read at the end of a file whose earlier rows are available elsewhere."""


class Tail:
    """Reads whole lines; an unfinished last line is left until it is whole.

    `newest`: begin near the end.  `again`: the file became shorter, so it is another file now.
    """

    def __init__(self, path: Path, *, newest: bool = False) -> None:
        self.path = path
        self.offset = 0
        self.size = 0
        """The time of the last look."""
        self.again = False
        self._torn = False  # the line at the offset began before it
        if newest and (size := self._look()) > NEWEST_BYTES:
            self.offset, self._torn = size - NEWEST_BYTES, True

    @property
    def behind(self) -> int:
        """Bytes that were there at the last look and have not been read."""
        return self.size - self.offset

    def lines(self) -> list[bytes]:
        """Return the next whole lines, PIECE_BYTES at most; none once all of them are read."""
        if self._look() == self.offset:
            return []
        if self.size < self.offset:
            self.again = True
            return []
        try:
            with outside_files.open_file(self.path, outside_files.ROWS) as file:
                file.seek(self.offset)
                data = file.read(PIECE_BYTES)
        except OSError:  # the file was deleted since the last check
            return []
        return self._whole(data)

    def _look(self) -> int:
        try:
            self.size = self.path.stat().st_size
        except OSError:
            self.size = self.offset  # no file, so nothing new
        return self.size

    def _whole(self, data: bytes) -> list[bytes]:
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) == PIECE_BYTES:
                self.offset, self._torn = self.offset + len(data), True
            return []
        self.offset += end
        first = data.find(b"\n") + 1 if self._torn else 0
        self._torn = False
        return data[first:end].splitlines()
