"""A connection to a relay by the web: wss://HOST[:PORT][/PATH], through the network's proxy if it has one.

    name      of the proxy, or else of the relay
    proxy     CONNECT of HTTP with Basic authentication, or SOCKS5
    TLS       the certificate is checked: by the system's authorities, or those of SSL_CERT_FILE, and of --ca besides
    upgrade   to a WebSocket
    relay     from here on its own protocol, as by TCP

The proxy is `--proxy`, HTTPS_PROXY (HTTP_PROXY for ws://), otherwise ALL_PROXY; NO_PROXY names hosts without one.  No
connection bypasses a given proxy.  Its password is in no error.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import os
import re
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, NetworkError
from fedgossip.base.untrusted_text import line
from fedgossip.net.relays.splice import PIECE_BYTES, wait_within
from fedgossip.net.relays.web_stream import MESSAGE_BYTES_MAX, TcpStream, WebStream, send_waiting, to_tls

PROXY, AUTHORITIES = "FEDGOSSIP_PROXY", "FEDGOSSIP_CA"
"""Environment variables of `--proxy` and `--ca`, inherited by started processes."""
NO_PROXY = "none"
STEP_SECONDS = 5.0
"""Maximum seconds for each step of a connection."""

OWN_AUTHORITIES = 16
"""Maximum number of authorities in a file that counts as the user's own, not as the public ones."""

ReportStep = Callable[[str, str], None]
"""Receives the name of a step that succeeded, and its finding."""
_Done = TypeVar("_Done")

_CERTIFICATE = {
    9: ("is not valid yet", "Set this machine's clock, or the relay's certificate."),
    10: ("has expired", "The relay's operator renews it; a wrong clock of this machine looks the same."),
    18: ("is signed by itself", "Name it with --ca FILE, if that is intended."),
    62: ("is of another name", "Call the relay by the name in its certificate."),
    64: ("is of another address", "Call the relay by the name in its certificate."),
}
_AUTHORITY = (
    "is of an authority that this machine does not know",
    "Where your network opens TLS, or the authority is your own: name it with --ca FILE, or SSL_CERT_FILE.",
)
_UPGRADE = "Is the path right?  The server before the relay, and a proxy that opens TLS, must pass on Upgrade."
_UNREACHED = "The server before the relay does not reach it: is `fedgossip relay` running, at the port that it calls?"
_ANSWERS = {
    **dict.fromkeys((301, 302, 303, 307, 308, 511), "Does this network want a login first?  Open a page in a browser."),
    **dict.fromkeys((401, 403, 451), "The network, or the server, blocks this host: ask its administrator."),
    407: "A proxy on the way wants a user and a password: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT.",
    **dict.fromkeys((400, 426, 505), f"{_UPGRADE}  It takes HTTP/1.1 (nginx: proxy_http_version 1.1)."),
    **dict.fromkeys((502, 503, 504), _UNREACHED),
}
"""Advice on an answer other than an upgrade, by its code."""
_AWAY = 502, 503, 504
"""Codes with which a proxy reports that it cannot reach the target, not that it refuses."""
_SOCKS = {1: "failed", 2: "does not allow it", 3: "finds no network", 4: "finds no such host", 5: "is refused there"}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy; `kind` is http, https or socks5."""

    kind: str
    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.kind}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Target:
    secure: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def silent(_step: str, _found: str) -> None:
    """Report no step."""


async def open_web(url: str, report: ReportStep = silent) -> WebStream:
    """Return a WebSocket to a relay; `report` receives each step.

    Raises NetworkError with the failed step and its remedy, ConfigError for an unusable proxy or file of authorities.
    """
    parts = urllib.parse.urlsplit(url)
    secure = parts.scheme == "wss"
    target = _Target(secure, parts.hostname or "", parts.port or (443 if secure else 80))
    proxy = proxy_for(secure, target.authority)
    report("proxy", str(proxy) if proxy else "none")
    inner = await _connect(proxy, target, report)
    try:
        if proxy and proxy.kind == "socks5":
            await _within(_tunnel_by_socks(inner, proxy, target), f"the proxy {proxy} does not answer in SOCKS5")
            report("SOCKS5", f"to {target.authority}")
        elif proxy:
            await _within(_tunnel_by_connect(inner, proxy, target), f"the proxy {proxy} does not answer CONNECT")
            report("CONNECT", f"to {target.authority}")
        if secure:
            inner = await _secured(inner, target.host, f"{target.host}: the certificate")
            report("TLS", _describe_tls(inner[1]))
        stream = await _within(_upgraded(inner, url), f"{target.authority} does not answer the upgrade to a WebSocket")
        report("upgrade", "to a WebSocket")
    except BaseException:
        inner[1].transport.abort()
        raise
    return stream


async def _within(work: Awaitable[_Done], silence: str) -> _Done:
    """Return a step's result.  Raises NetworkError if it is late or the connection breaks."""
    try:
        return await wait_within(work, STEP_SECONDS)
    except asyncio.LimitOverrunError:
        text = f"{silence} in a header of at most {PIECE_BYTES >> 10} KiB"
        raise NetworkError(text, "Is it the right host and port, of an HTTP server?") from None
    except (TimeoutError, EOFError, OSError) as error:
        why = f"in {STEP_SECONDS:g} seconds" if isinstance(error, TimeoutError) else "and hangs up"
        raise NetworkError(f"{silence} {why}", "Is it the right host and port, of an HTTP server?") from None


# --- the steps --------------------------------------------------------------------------------------------------------


async def _connect(proxy: Proxy | None, target: _Target, report: ReportStep) -> TcpStream:
    """Return a TCP connection to the proxy, or without a proxy to the relay."""
    host, port = (proxy.host, proxy.port) if proxy else (target.host, target.port)
    what = f"the proxy {proxy}" if proxy else f"the relay {target.authority}"
    try:
        looking = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = await wait_within(looking, STEP_SECONDS)
    except (TimeoutError, OSError):
        text = f"{what}: the name {host} is not known here"
        advice = "Correct the name; where only the proxy resolves names, name it: HTTPS_PROXY, or --proxy URL."
        raise NetworkError(text, advice) from None
    report("name", f"{host} is {found[0][4][0]}")
    try:
        inner = await wait_within(asyncio.open_connection(host, port, happy_eyeballs_delay=0.25), STEP_SECONDS)
    except (TimeoutError, OSError) as error:
        reason = os.strerror(error.errno) if error.errno else f"no answer in {STEP_SECONDS:g} seconds"
        advice = "Is its address right, and does it run?" if proxy else (
            "Where this network lets out a proxy's traffic alone, name the proxy: HTTPS_PROXY, or --proxy URL."
        )  # fmt: skip
        raise NetworkError(f"{what} cannot be connected to: {reason.lower()}", advice) from None
    if proxy and proxy.kind == "https":
        try:
            inner = await _secured(inner, host, f"the proxy {proxy}: its certificate")
        except BaseException:
            inner[1].transport.abort()
            raise
    return inner


async def _tunnel_by_connect(inner: TcpStream, proxy: Proxy, target: _Target) -> None:
    reader, writer = inner
    words = [f"CONNECT {target.authority} HTTP/1.1", f"Host: {target.authority}"]
    if proxy.user:
        words.append(
            f"Proxy-Authorization: Basic {base64.b64encode(f'{proxy.user}:{proxy.password}'.encode()).decode()}"
        )
    writer.write("\r\n".join([*words, "", ""]).encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    answer = re.match(r"HTTP/1\.[01] (\d{3})([^\r]*)", head)
    code = int(answer[1]) if answer else 0
    if 200 <= code < 300:
        return
    if code == 407:
        ways = re.findall(r"(?im)^proxy-authenticate:\s*([\w-]+)", head)
        if ways and "basic" not in map(str.lower, ways):
            text = f"the proxy {proxy} wants {line(' or '.join(ways), 40)}; Basic alone is known here"
            raise NetworkError(
                text, "Run a forwarder on this machine that logs in (cntlm, px), and name that as the proxy."
            )
        found = "does not accept this user and password" if proxy.user else "wants a user and a password"
        text = f"the proxy {proxy} {found}"
        raise NetworkError(text, "Put both into HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, or a file: --proxy FILE.")
    if answer is None:
        raise NetworkError(
            f"the proxy {proxy} answers no HTTP", "Is it a proxy of HTTP?  For one of SOCKS: socks5://..."
        )
    reason = line(f"{code}{answer[2]}", 60)
    if code in _AWAY:
        advice = "Does the relay run, under this name and port?  Squid answers 503 to an unknown name too."
        raise NetworkError(f"the proxy {proxy} does not reach {target.authority}: {reason}", advice)
    advice = f"Its operator allows CONNECT to {target.authority}; most proxies allow port 443 alone."
    raise NetworkError(f"the proxy {proxy} refuses CONNECT to {target.authority}: {reason}", advice)


async def _tunnel_by_socks(inner: TcpStream, proxy: Proxy, target: _Target) -> None:
    """Connect through a SOCKS5 proxy, RFC 1928 and 1929; the proxy resolves the name."""
    reader, writer = inner
    named = bool(proxy.user)
    writer.write(b"\x05\x01" + (b"\x02" if named else b"\x00"))
    version, way = await reader.readexactly(2)
    advice = "Put both into ALL_PROXY=socks5://USER:PASSWORD@HOST:PORT, or a file: --proxy FILE."
    if version != 5:
        raise NetworkError(f"the proxy {proxy} is none of SOCKS5", "For a proxy of HTTP: http://HOST:PORT.")
    if way == 2 and named:
        user, password = proxy.user.encode(), proxy.password.encode()
        writer.write(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        if (await reader.readexactly(2))[1]:
            raise NetworkError(f"the proxy {proxy} does not accept this user and password", advice)
    elif way:
        raise NetworkError(f"the proxy {proxy} wants a user and a password", advice)
    name = target.host.encode()
    writer.write(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + target.port.to_bytes(2, "big"))
    _, code, _, kind = await reader.readexactly(4)
    if code:
        text = f"the proxy {proxy}: the way to {target.authority} {_SOCKS.get(code, f'is refused ({code})')}"
        raise NetworkError(text, f"Its operator allows {target.authority}.")
    size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
    await reader.readexactly(size + 2)


async def _secured(inner: TcpStream, host: str, what: str) -> TcpStream:
    try:
        return await to_tls(inner, _context(), STEP_SECONDS, host=host)
    except ssl.SSLCertVerificationError as error:
        text, advice = _CERTIFICATE.get(error.verify_code, _AUTHORITY)
        if error.verify_code not in (*_CERTIFICATE, 2, 19, 20, 21):
            text = f"is refused: {line(error.verify_message, 80)}"
        raise NetworkError(f"{what} {text}", advice) from None
    except (OSError, EOFError) as error:
        reason = line(getattr(error, "reason", None) or str(error), 80).lower().replace("_", " ")
        advice = "Is there TLS at this port?  Without it: ws://; a network that cuts TLS off ends it here too."
        raise NetworkError(f"{host}: no TLS: {reason or 'the connection ended'}", advice) from None


async def _upgraded(inner: TcpStream, url: str) -> WebStream:
    reader, writer = inner
    protocol = ClientProtocol(parse_uri(url), max_size=MESSAGE_BYTES_MAX)
    protocol.send_request(protocol.connect())
    send_waiting(protocol, writer)
    head = await reader.readuntil(b"\r\n\r\n")  # not by the library, which would wait for the end of a foreign page
    answer = re.match(r"HTTP/1\.([01]) (\d{3})([^\r]*)", head.decode("latin-1"))
    if answer is None or (answer[1], answer[2]) != ("1", "101"):
        found = line(answer[2] + answer[3], 60) + (" in HTTP/1.0" if answer[1] == "0" else "") if answer else "no HTTP"
        advice = _ANSWERS.get(int(answer[2]) if answer else 0, _UPGRADE)
        raise NetworkError(f"{url}: no WebSocket: the server answers {found}", advice)
    protocol.receive_data(head)
    events = protocol.events_received()
    if protocol.handshake_exc is None:
        return WebStream(inner, protocol, events[1:])
    found = line(str(protocol.handshake_exc), 80)
    raise NetworkError(f"{url}: no WebSocket: the server answers 101, and no such upgrade: {found}", _UPGRADE)


# --- what it is made with ---------------------------------------------------------------------------------------------


def proxy_for(secure: bool, authority: str) -> Proxy | None:
    """Return the proxy for a relay at HOST:PORT, if any.  Raises ConfigError for an unusable one."""
    if chosen := os.environ.get(PROXY):
        return None if chosen == NO_PROXY else _proxy(chosen, PROXY)
    named = urllib.request.getproxies()
    for name in ("https" if secure else "http", "all", "socks"):
        if (url := named.get(name)) and not _is_exempt(authority):
            return _proxy(url if name != "socks" else url.replace("http://", "socks5://"), f"{name.upper()}_PROXY")
    return None


def _is_exempt(authority: str) -> bool:
    """Return whether NO_PROXY names a host: its name, a domain, or a network."""
    if urllib.request.proxy_bypass(authority):
        return True
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    try:
        number = ipaddress.ip_address(authority.rpartition(":")[0].strip("[]"))
        return any(number in ipaddress.ip_network(one.strip(), strict=False) for one in named.split(",") if "/" in one)
    except ValueError:
        return False


def _proxy(text: str, where: str) -> Proxy:
    """Return the proxy of a URL; its text, which may contain a password, is in no error."""
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
        kind = {"http": "http", "https": "https", "socks5": "socks5", "socks5h": "socks5"}[parts.scheme]
        port = parts.port or {"http": 80, "https": 443, "socks5": 1080}[kind]
        user, password = (urllib.parse.unquote(one or "") for one in (parts.username, parts.password))
    except (KeyError, ValueError):
        raise ConfigError(f"{where} is no URL of a proxy", "Write http://HOST:PORT or socks5://HOST:PORT.") from None
    if not parts.hostname or max(len(user.encode()), len(password.encode())) > 255:
        raise ConfigError(f"{where} is no URL of a proxy", "Write http://HOST:PORT or socks5://HOST:PORT.")
    return Proxy(kind, parts.hostname, port, user, password)


def without_tls(url: str) -> str:
    """Return a notice for a relay on another machine called without TLS; "" for others."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "ws" or (parts.hostname or "").startswith(("127.", "localhost", "::1")):
        return ""
    return f"{url} is without TLS: a listener sees who talks to whom, and ciphertext."


def choose(proxy: str | None, authorities: str | None) -> None:
    """Set the proxy and authorities for all web connections of this process and its children.

    `proxy`: a URL without a password, `none`, or a file with a URL; `authorities`: a file of certificates; None: the
    environment's.  Raises ConfigError.
    """
    if proxy is not None:
        os.environ[PROXY] = _chosen(proxy)
    if authorities is not None:
        _authorities(authorities, "--ca")
        os.environ[AUTHORITIES] = authorities


def _chosen(proxy: str) -> str:
    if proxy == NO_PROXY:
        return proxy
    if "@" in proxy:
        advice = "Every user of this machine can read it there.  Set HTTPS_PROXY, or name a file with the URL."
        raise ConfigError("--proxy: a password has no place on a command line", advice)
    if "://" not in proxy:
        try:
            proxy = outside_files.read_text(outside_files.resolve(proxy), 4096).strip()
        except (OSError, UnicodeDecodeError):
            advice = "Write http://HOST:PORT, socks5://HOST:PORT, none, or the name of a file with such a line."
            raise ConfigError(f"--proxy {line(proxy, 80)}: neither a URL nor a file", advice) from None
    _proxy(proxy, "--proxy")
    return proxy


def _context() -> ssl.SSLContext:
    """Return the TLS settings.  Raises ConfigError."""
    return _trusting(os.environ.get("SSL_CERT_FILE", ""), os.environ.get(AUTHORITIES, ""))


@functools.lru_cache(2)  # reading some hundred authorities takes longer than a handshake
def _trusting(system: str, own: str) -> ssl.SSLContext:
    for path, where in ((system, "SSL_CERT_FILE"), (own, "--ca")):
        if path:
            _authorities(path, where)
    context = ssl.create_default_context()
    if own:
        context.load_verify_locations(own)
        # the authority of a network often lacks extensions of RFC 5280, without which Python 3.13 refuses it
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _authorities(path: str, where: str) -> list[object]:
    """Return the names of the authorities in a file."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        found.load_verify_locations(path)
    except (OSError, ssl.SSLError):
        raise ConfigError(f"{where} {path}: no file of certificates", "It holds them in PEM.") from None
    return [one.get("subject") for one in found.get_ca_certs()]


def _describe_tls(writer: asyncio.StreamWriter) -> str:
    found = writer.get_extra_info("ssl_object")
    certificate = found.getpeercert() or {}
    issuer = {name: value for part in certificate.get("issuer", ()) for name, value in part}
    name = line(", ".join(filter(None, (issuer.get("organizationName"), issuer.get("commonName")))), 80) or "no name"
    by = f"{found.version()}, certificate by {name}"
    if certificate.get("issuer") not in _list_own_authorities():
        return by
    return f"{by}, an authority that you named: where it is your network's, it opens TLS, and sees ciphertext of ours"


def _list_own_authorities() -> list[object]:
    """Return the authorities in the user's own files, not the usual public ones."""
    subjects: list[object] = []
    for name in ("SSL_CERT_FILE", AUTHORITIES):
        if path := os.environ.get(name):
            held = _authorities(path, name)
            subjects += held if len(held) <= OWN_AUTHORITIES else []
    return subjects
