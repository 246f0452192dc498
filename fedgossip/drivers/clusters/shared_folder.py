"""Whether a node sees the same folder, and not another of the same name: by a file made a moment ago."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from uuid import uuid4

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, NotWrittenError

SEEN_SECONDS = 30.0
"""After which a file that another machine has written is seen: folders of NFS are looked at again so late."""


def probe_in(folder: Path) -> str:
    """Leave a probe in a folder, and return its name, for the nodes to look up.  Raises NotWrittenError."""
    name = f".probe-{uuid4().hex}"
    try:
        owner_files.written(folder / name, b"")
    except OSError as error:
        raise NotWrittenError(folder / name, error) from None
    return name


def check_shared(folder: Path, name: str, seconds: float = SEEN_SECONDS) -> None:
    """Wait until the probe is seen here, at most so long.  Raises ConfigError."""
    until = time.monotonic() + seconds
    while not (folder / name).exists():
        if time.monotonic() > until:
            text = f"{socket.gethostname()} does not see the folder {folder} that this was started in"
            raise ConfigError(text, "Choose one on a disk that all nodes share, with --out.")
        time.sleep(0.1)
