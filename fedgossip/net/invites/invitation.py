"""An invite as text: the organiser's addresses, its key, a secret, and an expiry; people send it unchanged.

    fg1-0a4g...        "fg", the version of this form, and Crockford's base 32 of:

    length  1 byte     of all that follows but the check
    expires 4 bytes    seconds since 1970
    key    32 bytes    the organiser's public key of CURVE: it authenticates the organiser to a joiner
    secret 16 bytes    random; its holder may request to join; it is sent over no network
    places             one after the other: a kind, a host (4, 16, or 1 + n bytes), a port (2 bytes); or, of a
                       relay by the web, a kind and its URL (1 + n bytes); or, of a shared folder, a kind and the
                       name that it has on the organiser's machine
    check   4 bytes    of the SHA-256 of all before

Numbers are big-endian.  Capitals, white space and hyphens are ignored: a broken line is the same invite.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zmq.utils import z85

from fedgossip.base.errors import ConfigError
from fedgossip.net.endpoints import RELAY, TCP, check_address, is_relay, is_web

PREFIX = "fg1-"
SECRET_BYTES, CHECK_BYTES = 16, 4
PLACES_MAX = 6
"""Maximum number of addresses in one invite."""
PLACES_BYTES = 255 - 4 - 32 - 16
"""Maximum bytes of all its addresses: their length is a byte."""
LETTERS_MAX = 600
"""Maximum length of a text to be parsed."""

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_ALIKE = str.maketrans({"i": "1", "l": "1", "o": "0"})
_IPV4, _IPV6, _NAME = 4, 6, 0
_RELAYED = 8
"""Added to the kind of an address that belongs to a relay."""
_WEB, _FOLDER = 16, 32
"""Kinds of a relay's address by the web, and of a shared folder."""
FOLDER = "folder:"
"""Prefix of a shared folder in place of an address; only its last name follows."""
FOLDER_BYTES = 60
"""Maximum bytes of a folder's name."""

ASK_ANEW = "Ask the organiser for the whole text, or for a new one."


@dataclass(frozen=True, slots=True)
class Invitation:
    """`addresses`: tcp://HOST:PORT of the organiser; relay://HOST:PORT or wss://HOST; or only folder:NAME."""

    addresses: tuple[str, ...]
    key: str
    secret: bytes = field(repr=False)
    expires: int

    @property
    def folder(self) -> str | None:
        """Name of the organiser's shared folder; None for an invite with addresses."""
        return next((one.removeprefix(FOLDER) for one in self.addresses if one.startswith(FOLDER)), None)

    @property
    def mark(self) -> str:
        """Name of the invite that does not disclose its secret, 16 hex digits."""
        return mark_of(self.secret)

    def proof(self, key: str, verify: str) -> bytes:
        """Return the proof, 32 bytes, to the organiser that the holder of these keys has the secret."""
        return proof_of(self.secret, self.key, key, verify)


def new_secret() -> bytes:
    """Return 128 random bits."""
    return secrets.token_bytes(SECRET_BYTES)


def mark_of(secret: bytes) -> str:
    """Return the name of the invite with this secret."""
    return hmac.digest(secret, b"fedgossip 1 name of an invite", "sha256").hex()[:16]


def proof_of(secret: bytes, organiser: str, key: str, verify: str) -> bytes:
    """Return the proof of `secret` to the organiser with this key, bound to these keys, so that others cannot
    use it.
    """
    content = f"fedgossip 1 proof of an invite {organiser} {key} {verify}"
    return hmac.digest(secret, content.encode(), "sha256")


# --- as text ----------------------------------------------------------------------------------------------------------


def written(invitation: Invitation) -> str:
    """Return the invite as text.  Raises ConfigError for an address that does not fit."""
    places = b"".join(_fitting(invitation.addresses))
    head = invitation.expires.to_bytes(4, "big") + z85.decode(invitation.key) + invitation.secret
    body = bytes([len(head) + len(places)]) + head + places
    return PREFIX + _base32(body + hashlib.sha256(body).digest()[:CHECK_BYTES])


def _fitting(addresses: Sequence[str]) -> list[bytes]:
    """Return the places that fit into an invite; relays have priority."""
    kept = list(addresses)
    while len(kept) > PLACES_MAX or sum(len(_packed(one)) for one in kept) > PLACES_BYTES:
        kept.remove(([one for one in kept if not is_relay(one)] or kept)[-1])
    return [_packed(one) for one in kept]


def read(text: str) -> Invitation:
    """Return the invite of a text.  Raises ConfigError, with the fault in the text."""
    letters = re.sub(r"[\s-]", "", text[:LETTERS_MAX]).lower()
    version = re.match(r"fg(\d+)", letters) if letters[:3] != PREFIX[:3] else None
    if version:
        advice = "Both need the same release: pip install --upgrade fedgossip, then ask for a new one."
        raise ConfigError(f"an invite of another release (fg{version[1][:4]}; this one reads fg1)", advice)
    if not letters.startswith(PREFIX[:3]):
        raise ConfigError("this is no invite", f"An invite begins with {PREFIX}: `fedgossip host` prints it.")
    return _unpacked(_bytes_of(letters[3:].translate(_ALIKE)))


def _unpacked(body: bytes) -> Invitation:
    whole = 1 + body[0] + CHECK_BYTES if body else 1
    least = 4 + 32 + SECRET_BYTES
    if len(body) < whole:
        raise ConfigError(f"the invite is cut off: {len(body)} of its {whole} bytes", ASK_ANEW)
    content, check = body[: 1 + body[0]], body[1 + body[0] : whole]
    if len(body) > whole or not hmac.compare_digest(hashlib.sha256(content).digest()[:CHECK_BYTES], check):
        raise ConfigError("the invite has a wrong letter, or one too many", ASK_ANEW)
    if body[0] < least:
        raise ConfigError("the invite is incomplete", ASK_ANEW)
    expires, key, secret = int.from_bytes(content[1:5], "big"), content[5:37], content[37 : 1 + least]
    try:
        addresses = tuple(_places(content[1 + least :]))
    except (IndexError, ValueError, ConfigError):
        raise ConfigError("the invite names no address that can be called", ASK_ANEW) from None
    return Invitation(addresses, z85.encode(key).decode(), secret, expires)


def _packed(address: str) -> bytes:
    if is_web(address):
        return bytes([_WEB, len(address)]) + address.encode()
    if address.startswith(FOLDER):
        name = address.removeprefix(FOLDER).encode()[:FOLDER_BYTES].decode(errors="ignore").encode()
        return bytes([_FOLDER, len(name)]) + name
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    relayed = _RELAYED if f"{scheme}://" == RELAY else 0
    try:
        number = ipaddress.ip_address(host.strip("[]"))
        return bytes([relayed + number.version]) + number.packed + int(port).to_bytes(2, "big")
    except ValueError:
        name = host.encode()
    if len(name) > 60:
        raise ConfigError(f"{address}: the name of the host is too long for an invite", "Name its number instead.")
    return bytes([relayed + _NAME, len(name)]) + name + int(port).to_bytes(2, "big")


def _places(body: bytes) -> Iterator[str]:
    at = 0
    while at < len(body):
        if body[at] == _WEB:
            url = body[at + 2 : at + 2 + body[at + 1]].decode("ascii")
            at += 2 + body[at + 1]
            if at > len(body) or not is_web(url):
                raise ValueError("no address")
            check_address(url, "the invite")
            yield url
            continue
        if body[at] == _FOLDER:
            folder = body[at + 2 : at + 2 + body[at + 1]].decode()
            at += 2 + body[at + 1]
            if at > len(body) or not folder.isprintable():
                raise ValueError("no name of a folder")
            yield f"{FOLDER}{folder}"
            continue
        kind, scheme = body[at] % _RELAYED, RELAY if body[at] >= _RELAYED else TCP
        known = body[at] < 2 * _RELAYED
        at += 1
        size = {_IPV4: 4, _IPV6: 16}.get(kind, 0) or body[at]
        at += kind == _NAME
        host, port, at = body[at : at + size], body[at + size : at + size + 2], at + size + 2
        if len(port) < 2 or kind not in (_IPV4, _IPV6, _NAME) or not known:
            raise ValueError("no address")
        yield f"{scheme}{_host(kind, host)}:{int.from_bytes(port, 'big')}"


def _host(kind: int, host: bytes) -> str:
    if kind == _NAME:
        name = host.decode("ascii")
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError("no name of a host")
        return name
    number = ipaddress.ip_address(host)
    return f"[{number}]" if number.version == _IPV6 else str(number)


def _base32(body: bytes) -> str:
    number = int.from_bytes(body, "big") << (-8 * len(body) % 5)
    count = -(-8 * len(body) // 5)
    return "".join(_LETTERS[number >> 5 * place & 31] for place in reversed(range(count)))


def _bytes_of(letters: str) -> bytes:
    """Return the bytes that these letters encode."""
    number = 0
    for letter in letters:
        value = _LETTERS.find(letter)
        if value < 0:
            raise ConfigError("the invite has a letter that no invite has", ASK_ANEW)
        number = number << 5 | value
    count, rest = divmod(5 * len(letters), 8)
    return (number >> rest).to_bytes(count, "big")
