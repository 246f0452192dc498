"""Keys that peers of this machine's own runs keep for their next lives: in a folder of their owner's, outside the run.

A run directory is handed on, to a colleague or into a report; a secret key in it would be too.

    ~/.local/state/fedgossip/keys/NAME.toml    the pair; $XDG_STATE_HOME where that is set
    RUN/peers/03/key.txt                       the public key, which NAME follows from
    ~/.local/state/fedgossip/keys/marks        a secret that marks what this user's commands have written
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import tempfile
import time
from pathlib import Path

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import NotWrittenError, ResumeError
from fedgossip.core.run_format import KEY_BEFORE, PUBLIC_KEY
from fedgossip.net.identity import Identity

UNUSED_SECONDS = 365 * 86400.0
"""Time after which a pair that no run has used is removed."""
_MARKS = 32
"""Bytes of the secret of marks."""


def kept_identity(folder: Path) -> Identity:
    """Return the pair of the peer of `folder`, made for its first life; the next ones sign on in the log of this one.

    Raises ResumeError where it was kept on another machine, ConfigError where others can read it, and NotWrittenError.
    """
    if (folder / KEY_BEFORE).exists():
        return Identity.load(folder / KEY_BEFORE)
    if not (folder / PUBLIC_KEY).exists():
        return _new(folder)
    path = _folder() / _name(outside_files.read_text(folder / PUBLIC_KEY))
    if not path.exists():
        text = f"{folder}: the secret key of this peer is not on this machine: {path} is not there"
        raise ResumeError(text, "Go on where the run was begun, or copy that file from there.")
    with contextlib.suppress(OSError):
        os.utime(path)
    return Identity.load(path)


def mark_of(content: bytes) -> str:
    """Return the mark of a content that this user's commands write: 64 hex digits, which nobody else can compute.

    Raises NotWrittenError where there can be no secret.
    """
    path = _folder() / "marks"
    try:
        with contextlib.suppress(FileExistsError), owner_files.opened(path, "xb") as file:
            file.write(secrets.token_bytes(_MARKS))
        if len(outside_files.read_bytes(path)) != _MARKS:  # whoever began it was killed, or had no room
            owner_files.placed(path, secrets.token_bytes(_MARKS))
        secret = outside_files.read_bytes(path)
    except OSError as error:
        raise NotWrittenError(path, error) from None
    return hmac.digest(secret, content, "sha256").hex()


def _new(folder: Path) -> Identity:
    identity = Identity.new()
    keys = _folder()
    _remove_unused(keys)
    identity.save(keys / _name(identity.public))
    try:
        owner_files.written(folder / PUBLIC_KEY, f"{identity.public}\n".encode())
    except OSError as error:
        raise NotWrittenError(folder / PUBLIC_KEY, error) from None
    return identity


def _name(public: str) -> str:
    return f"{hashlib.sha256(public.strip().encode()).hexdigest()[:32]}.toml"


def _folder() -> Path:
    """Return the folder of the keys: the owner's alone.  Raises NotWrittenError where there can be none."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    here = getattr(os, "getuid", lambda: 0)()
    wanted = state / "fedgossip" / "keys"
    failure: OSError = PermissionError(errno.EACCES, "others can read this folder")
    for path in (wanted, Path(tempfile.gettempdir()) / f"fedgossip-{here}" / "keys"):
        try:
            owner_files.made(path)
            facts = path.stat()
        except OSError as error:  # a home that cannot be written to
            failure = error
            continue
        if os.name != "posix" or (facts.st_uid == here and not facts.st_mode & 0o077):
            return path
    raise NotWrittenError(wanted, failure)


def _remove_unused(keys: Path) -> None:
    until = time.time() - UNUSED_SECONDS
    with contextlib.suppress(OSError):
        for path in keys.glob("*.toml"):
            if path.stat().st_mtime < until:
                path.unlink(missing_ok=True)
