"""The keys of an endpoints.toml that may change while it is used."""

from __future__ import annotations

from pathlib import Path

from fedgossip.errors import ConfigError
from fedgossip.net.endpoints import public_keys
from fedgossip.net.identity import raw


class Roll:
    """Raises ConfigError for a file that cannot be read at the start; later what was read last stands."""

    def __init__(self, path: Path) -> None:
        self._path, self._changed, self._keys = path, -1, frozenset[bytes]()
        self._read()

    def keys(self) -> frozenset[bytes]:
        """Return all public keys in the file, 32 bytes each."""
        try:
            if self._path.stat().st_mtime_ns != self._changed:
                self._read()
        except (OSError, ConfigError):
            pass
        return self._keys

    def _read(self) -> None:
        keys = public_keys(self._path)
        self._changed = self._path.stat().st_mtime_ns
        self._keys = frozenset(map(raw, keys))
