"""Keys stored for the next incarnations of this machine's peers, outside the run directory, which is passed on; and
folders of invites, which only this user's commands may have begun.

    ~/.local/state/fedgossip/keys/NAME.toml    the pair; $XDG_STATE_HOME where that is set
    RUN/peers/03/key.txt                       the public key, which NAME follows from
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import NotWrittenError, ResumeError
from fedgossip.core.run_format import KEY_BEFORE, OWNER_MARK, PUBLIC_KEY
from fedgossip.net.identity import Identity

UNUSED_SECONDS = 365 * 86400.0
"""Seconds before an unused pair is removed."""


def load_identity(folder: Path) -> Identity:
    """Return the pair of the peer of `folder`, made in its first incarnation and used by the next.

    Raises ResumeError for one stored on another machine, or an unreadable public key, NotWrittenError, and ConfigError
    if others can read it, or if no command of this user has made it.
    """
    if (folder / KEY_BEFORE).exists():
        return Identity.load_own(folder / KEY_BEFORE)  # a folder that was passed on could contain a stranger's
    if not (folder / PUBLIC_KEY).exists():
        return _new(folder)
    try:
        public = outside_files.read_text(folder / PUBLIC_KEY)
    except (OSError, UnicodeDecodeError) as error:
        text = f"{folder / PUBLIC_KEY}: no public key ({getattr(error, 'strerror', None) or 'not text'})"
        raise ResumeError(text, "Start the run again in another folder.") from None
    path = owner_files.keys_folder() / _name(public)
    if not path.exists():
        text = f"{folder}: the secret key of this peer is not on this machine: {path} is not there"
        raise ResumeError(text, "Resume where the run was started, or copy that file from there.")
    with contextlib.suppress(OSError):
        os.utime(path)
    return Identity.load(path)


def claim(folder: Path) -> None:
    """Make a folder for this user's own files, or accept one that this user's commands have made, at this path.

    Raises ConfigError for one prepared by another user, NotWrittenError and OSError.
    """
    if not folder.is_symlink() and not (folder.exists() and any(folder.iterdir())):
        owner_files.make_folder(folder)
        facts = folder.stat()
        if os.name == "posix" and (facts.st_uid != os.getuid() or facts.st_mode & 0o002):
            raise owner_files.foreign(folder)  # empty now, but others could put files there later
        adopt(folder)
    try:
        mark = "" if folder.is_symlink() else outside_files.read_text(folder / OWNER_MARK).strip()
    except (OSError, UnicodeDecodeError):
        mark = ""
    if not owner_files.is_mark(mark, _encode_folder(folder)):
        raise owner_files.foreign(folder)


def adopt(folder: Path) -> None:
    """Mark a folder as this user's own.  Raises NotWrittenError."""
    mark = owner_files.mark_of(_encode_folder(folder))
    try:
        owner_files.placed(folder / OWNER_MARK, mark.encode())
    except OSError as error:
        raise NotWrittenError(folder / OWNER_MARK, error) from None


def _encode_folder(folder: Path) -> bytes:
    return f"folder {folder.resolve()}".encode()


def _new(folder: Path) -> Identity:
    identity = Identity.new()
    keys = owner_files.keys_folder()
    _remove_unused(keys)
    identity.save(keys / _name(identity.public))
    try:
        owner_files.written(folder / PUBLIC_KEY, f"{identity.public}\n".encode())
    except OSError as error:
        raise NotWrittenError(folder / PUBLIC_KEY, error) from None
    return identity


def _name(public: str) -> str:
    return f"{hashlib.sha256(public.strip().encode()).hexdigest()[:32]}.toml"


def _remove_unused(keys: Path) -> None:
    until = time.time() - UNUSED_SECONDS
    with contextlib.suppress(OSError):
        for path in keys.glob("*.toml"):
            if path.stat().st_mtime < until:
                path.unlink(missing_ok=True)
