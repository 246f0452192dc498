"""Who a peer is: a CURVE key pair, and the file that keeps it.  The secret never leaves that file and this process."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from fedgossip.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Identity:
    """A CURVE25519 key pair, Z85 text of 40 characters each."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> Identity:
        """Return a fresh key pair, from the system's randomness."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def save(self, path: Path) -> None:
        """Write the pair, readable by the owner only; an existing file is never overwritten."""
        path.parent.mkdir(parents=True, exist_ok=True)
        pair = f"public = '{self.public}'\nsecret = '{self.secret}'\n"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path}: there is a key already", "Use it, or name another file with --out.") from None
        with os.fdopen(handle, "w") as file:
            file.write("# A fedgossip peer's key pair: keep this file to yourself.\n" + pair)

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read the pair.  Raises ConfigError for a file that others can read, or that is no pair."""
        try:
            mode, text = path.stat().st_mode, path.read_text()
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not a key pair", "Make a new one: fedgossip keys new --out NEW_FILE") from None
        except OSError as error:
            raise ConfigError(f"{path}: no key there ({error.strerror})", "Make one: fedgossip keys new") from None
        if mode & 0o077:
            raise ConfigError(f"{path}: others can read this secret key", f"Run: chmod 600 {path}")
        try:
            pair = tomllib.loads(text)
            identity = cls(str(pair["public"]), str(pair["secret"]))
            matches = zmq.curve_public(identity.secret.encode()).decode() == identity.public
        except (tomllib.TOMLDecodeError, KeyError, ValueError, zmq.ZMQError):
            matches = False
        if not matches:
            raise ConfigError(f"{path}: not a key pair", "Make a new one: fedgossip keys new --out NEW_FILE")
        return identity


def check_public(key: str, where: str) -> str:
    """Return `key` if it can be a public key, else raise ConfigError naming `where`."""
    try:
        valid = len(key) == 40 and len(z85.decode(key)) == 32
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise ConfigError(
            f"{where}: {key!r} is no public key", "A public key has 40 characters; `fedgossip keys show` prints it."
        )
    return key
