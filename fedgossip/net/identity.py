"""A peer's identity: a CURVE key pair, and the file that stores it.  The secret never leaves that file and this
process.

The signing key (Ed25519) is derived from the secret (HKDF-SHA256 with a purpose label): one file stores both.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w
import zmq
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from zmq.utils import z85

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, NotWrittenError

_KEY, _SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")


def check_unused(path: Path) -> None:
    """Raise ConfigError if the file exists."""
    if os.path.lexists(path):  # a dangling link exists too
        raise ConfigError(f"{path}: a key exists already", "Use it, or name another file with --out.")


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

    @property
    def verify(self) -> str:
        """Public signing key of this peer, in hex."""
        return self._signer().public_key().public_bytes_raw().hex()

    def sign(self, data: bytes) -> str:
        """Return the signature of `data`, in hex."""
        return self._signer().sign(data).hex()

    def sign_bytes(self, data: bytes) -> bytes:
        """Return the signature of `data`, 64 bytes."""
        return self._signer().sign(data)

    def _signer(self) -> Ed25519PrivateKey:
        seed = HKDF(SHA256(), 32, None, b"fedgossip 1 signatures of a peer").derive(z85.decode(self.secret))
        return Ed25519PrivateKey.from_private_bytes(seed)

    def save(self, path: Path, block: str = "") -> None:
        """Write the pair, readable by the owner only, its block for endpoints.toml, and the user's mark.

        Raises ConfigError for an existing file, and NotWrittenError; no new file is left then.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        pair = tomli_w.dumps({"public": self.public, "secret": self.secret})
        about = f"\n# Its public block, for endpoints.toml:\n{block}" if block else ""
        text = self.marked(f"# A fedgossip peer's key pair: keep this file to yourself.\n{pair}{about}")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            check_unused(path)
            raise
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise NotWrittenError(path, error) from None

    def marked(self, text: str) -> str:
        """Return the text of this pair's file with the user's mark.  Raises NotWrittenError."""
        return owner_files.with_mark(text, f"key {self.public}")

    @classmethod
    def load_own(cls, path: Path) -> Identity:
        """Read a pair found by its place, not given by the user.

        Raises ConfigError as `load`, and for one that no command of this user has made.
        """
        identity = cls.load(path)
        owner_files.check_marked(path, outside_files.read_text(outside_files.resolve(path)), f"key {identity.public}")
        return identity

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read the pair of a file given by the user.  Raises ConfigError for a file that others can read, or an invalid
        pair.
        """
        try:
            mode, text = path.stat().st_mode, outside_files.read_text(outside_files.resolve(path))
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not a key pair", "Make a new one: fedgossip keys new --out NEW_FILE") from None
        except OSError as error:
            raise ConfigError(f"{path}: no key there ({error.strerror})", "Make one: fedgossip keys new") from None
        if mode & 0o077:
            raise ConfigError(f"{path}: others can read this secret key", f"Run: chmod 600 {path}")
        try:
            pair = from_toml(text)
            identity = cls(str(pair["public"]), str(pair["secret"]))
            matches = zmq.curve_public(identity.secret.encode()).decode() == identity.public
        except (tomllib.TOMLDecodeError, KeyError, ValueError, zmq.ZMQError):
            matches = False
        if not matches:
            raise ConfigError(f"{path}: not a key pair", "Make a new one: fedgossip keys new --out NEW_FILE")
        return identity


def verify(key: str, data: bytes, signature: str) -> bool:
    """Return whether the holder of `key` made `signature` of `data`; False for malformed values.

    Both are lower-case hex without separators, so that each key has one form.
    """
    if not (_KEY.fullmatch(key) and _SIGNATURE.fullmatch(signature)):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def raw(key: str) -> bytes:
    """Return the 32 bytes that a key's text encodes."""
    return bytes(z85.decode(key))


def check_public(key: str, where: str) -> str:
    """Return `key` if it is a valid public key.  Raises ConfigError, naming `where`, otherwise."""
    try:
        valid = len(key) == 40 and len(z85.decode(key)) == 32
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise ConfigError(
            f"{where}: {key!r} is no public key", "A public key has 40 characters; `fedgossip keys show` prints it."
        )
    return key
