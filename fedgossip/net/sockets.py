"""Sockets of ZeroMQ for all links, their allow-list, and system calls on their connections.

**The allow-list** is a ZAP handler (RFC 27) that admits known keys, each with its peer id as User-Id.  Without a
running handler a CURVE server serves any key.  So the handler is bound before any address, and without it
ZAP_ENFORCE_DOMAIN refuses all.

**System calls** take a descriptor's number.  ZeroMQ may close it at any moment, and another file may then have the
number: nothing here takes ownership of it, and queries about a file of another kind return None.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from socket import socketpair

import zmq
from zmq.utils import z85

from fedgossip.base import kernels
from fedgossip.base.errors import NetworkError
from fedgossip.base.owner_files import patiently
from fedgossip.core.machine import NodeId
from fedgossip.core.wire import CHUNK_BYTES, FRAME_BYTES_MAX
from fedgossip.net.identity import Identity

ZmqSocket = zmq.Socket[bytes]

QUEUED_CHUNKS = 2
"""High-water mark of every socket, in messages of one chunk; the rest waits in the outbox as a reference, and at the
receiver through TCP's back-pressure.
"""

CIPHER_BYTES = 64
"""Maximum bytes that CURVE adds to a frame (33 today); libzmq compares MAXMSGSIZE with the frame on the wire."""

SILENCE_MS = 10_000
"""Milliseconds without an acknowledgement from the other end before a connection counts as broken: neither of data nor
of TCP's probes, after PROBE_SECONDS and then every PROBE_AGAIN_SECONDS.

Not ZeroMQ's heartbeat: it waits behind data, and ends the process (libzmq 4.3.5, issue 4364) if the other end
disconnects while this end has not read for 2 s.
"""

PROBE_SECONDS, PROBE_AGAIN_SECONDS = 4, 2

CONNECT_MS = 3_000
"""Milliseconds before an unaccepted connection attempt is repeated; TCP doubles its wait each time."""

LINGER_MS = 2_000

DRAIN_FRAMES = 64
"""Maximum number of frames taken from one socket before the others get their turn."""

NOW, MORE_NOW = int(zmq.NOBLOCK), int(zmq.SNDMORE | zmq.NOBLOCK)  # flags of an enum are added in Python, slowly


def make(context: zmq.Context[ZmqSocket], kind: int) -> ZmqSocket:
    """Return a new socket of the context, with all limits set."""
    socket = patiently(lambda: context.socket(kind))
    socket.linger = LINGER_MS
    socket.sndhwm = socket.rcvhwm = QUEUED_CHUNKS
    socket.immediate = True  # otherwise sixty sends of 4 MiB to a dead peer are all accepted, and wait in memory
    socket.maxmsgsize = FRAME_BYTES_MAX + CIPHER_BYTES
    socket.tcp_keepalive, socket.tcp_keepalive_cnt = 1, (SILENCE_MS // 1000 - PROBE_SECONDS) // PROBE_AGAIN_SECONDS
    socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl = PROBE_SECONDS, PROBE_AGAIN_SECONDS
    socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 2_000
    socket.connect_timeout, socket.tcp_maxrt, socket.handshake_ivl = CONNECT_MS, SILENCE_MS, SILENCE_MS
    socket.ipv6 = True
    return socket


def bind(router: ZmqSocket, address: str, identity: Identity | None) -> str:
    """Let holders of keys in the context's allow-list call; return the address with its real port.

    Raises NetworkError if the address is not available.
    """
    if identity:
        router.curve_server = True
        router.curve_secretkey = identity.secret.encode()
        router.curve_publickey = identity.public.encode()
        router.zap_domain = DOMAIN
        router.zap_enforce_domain = True
    try:
        router.bind(address)
    except zmq.ZMQError as error:
        advice = (
            "Stop the program that listens there, or choose another port."
            if error.errno == zmq.EADDRINUSE
            else ("Is this an address of this machine?")
        )
        raise NetworkError(f"cannot listen on {address}: {error.strerror.lower()}", advice) from None
    return router.getsockopt_string(zmq.LAST_ENDPOINT)


def keep_message_memory() -> None:
    """Let freed messages be used again: fresh pages for each cost a fifth of the plain link's processor time."""
    kernels.keep(8 * CHUNK_BYTES, 32 * CHUNK_BYTES)


class Waker:
    """Ends a poll from another thread, or from a signal's handler: `fileno` becomes readable."""

    def __init__(self) -> None:
        self._out, self._in = socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)
        self._signals = False

    def fileno(self) -> int:
        return self._in.fileno()

    def on_signals(self) -> None:
        """Have signals wake the owner too, until `close`."""
        signal.set_wakeup_fd(self._out.fileno(), warn_on_full_buffer=False)
        self._signals = True

    def wake(self) -> None:
        try:
            self._out.send(b"!")
        except (BlockingIOError, OSError):  # a full pipe wakes anyway; a closed one has no owner to wake
            return

    def clear(self) -> None:
        self._in.recv(4096)

    def close(self) -> None:
        if self._signals:  # before the descriptor is closed and means another file
            signal.set_wakeup_fd(-1)
        self._in.close()
        self._out.close()


class Wakeable:
    """An object that waits in `poll` for a Waker, among other things."""

    _waker: Waker

    def wake_on_signals(self) -> None:
        """Let a signal make `poll` return a Woken, until `close`."""
        self._waker.on_signals()

    def wake(self) -> None:
        """Make `poll` return a Woken; callable from any thread."""
        self._waker.wake()


DOMAIN = b"fedgossip"  # not "*": that does not match a set zap_domain

GUEST = "guest "
"""Prefix of the User-Id of a caller with an unknown key; the key follows."""

GUESTS, GUESTS_SECONDS = 16, 10.0
"""Maximum number of guests admitted per period, and the period in seconds."""


class AllowList:
    """Answers the context's authentication requests.  Owned and polled by the thread that owns the sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.allowed: dict[bytes, NodeId] = {}
        self.guests = False
        """Whether a caller with an unknown key may connect, to request membership; see Links."""
        self.welcome: set[bytes] = set()
        """Keys of guests admitted regardless of the number of others."""
        self._let_in: list[float] = []
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def allow(self, keys: Mapping[str, NodeId]) -> None:
        """Admit the holders of these public keys from now on."""
        self.allowed.update({z85.decode(key): node for key, node in keys.items()})

    def forget(self, node: NodeId) -> None:
        """Admit no caller as `node` from now on; its key is then that of a stranger."""
        self.allowed = {key: of for key, of in self.allowed.items() if of != node}

    def answer(self) -> str | None:
        """Answer one waiting request.  Return the address of a refused caller; otherwise None."""
        request = self.socket.recv_multipart()
        version, number, domain, address, _identity, mechanism, *credentials = [*request, *[b""] * 7][:8]
        key = credentials[0] if credentials else b""
        known, proved = self.allowed.get(key), (version, domain, mechanism) == (b"1.0", DOMAIN, b"CURVE")
        if proved and known is not None:
            self.socket.send_multipart([b"1.0", number, b"200", b"OK", str(known).encode(), b""])
            return None
        if proved and key and self._may(key):
            guest = (GUEST + z85.encode(key).decode()).encode()
            self.socket.send_multipart([b"1.0", number, b"200", b"OK", guest, b""])
            return None
        status = b"300" if self.guests else b"400"  # 300: the caller calls again later; 400: never again
        self.socket.send_multipart([b"1.0", number, status, b"unknown key", b"", b""])
        return address.decode(errors="replace")

    def _may(self, key: bytes) -> bool:
        now = time.monotonic()
        self._let_in = [at for at in self._let_in if now - at < GUESTS_SECONDS]
        if self.guests and key in self.welcome:
            return True
        if not self.guests or len(self._let_in) >= GUESTS:
            return False
        self._let_in.append(now)
        return True


FILES = 128
"""Number of files that a process opens in addition to its connections."""
FILES_OF_A_LINK = 8
"""Descriptors of a partner with connections both ways: 7 in use (two sockets with their wakers, two streams), one in
reserve.
"""

LINUX = sys.platform == "linux"

_BYTES_RECEIVED_AT, _TCP_INFO_BYTES = 128, 136  # linux/tcp.h: struct tcp_info, tcpi_bytes_received
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # asm-generic/socket.h
_DROP_ALL = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0))  # one instruction of BPF: return 0 bytes
_FILTER = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(_DROP_ALL)))
_NOWHERE = ctypes.create_string_buffer(struct.pack("H14x", socket.AF_UNSPEC))  # struct sockaddr

_libc = ctypes.PyDLL(None if os.name == "posix" else "ws2_32")
"""PyDLL: none of these calls blocks, so they keep Python's lock; a thread that releases it may wait for
milliseconds.
"""


def count_received(descriptor: int) -> tuple[int, int] | None:
    """Return the bytes of a TCP connection read here, and those waiting; None if unknown."""
    info = ctypes.create_string_buffer(_TCP_INFO_BYTES)
    size = ctypes.c_uint(_TCP_INFO_BYTES)
    if not LINUX or _libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size)):
        return None
    if size.value < _TCP_INFO_BYTES:
        return None
    import termios

    unread = ctypes.c_int()  # queried second, so that the number of read bytes is never too large
    if _libc.ioctl(descriptor, ctypes.c_ulong(termios.FIONREAD), ctypes.byref(unread)):
        return None
    received = int.from_bytes(info.raw[_BYTES_RECEIVED_AT:_TCP_INFO_BYTES], sys.byteorder)
    return received - unread.value, unread.value


def unacknowledged(descriptor: int) -> int:
    """Return the number of sent bytes that the other end's system has not acknowledged; 0 if the local system does not
    report it.

    Closing before that may revoke them, by a reset.
    """
    if not LINUX:
        return 0
    import termios

    waiting = ctypes.c_int()
    failed = _libc.ioctl(descriptor, ctypes.c_ulong(termios.TIOCOUTQ), ctypes.byref(waiting))
    return 0 if failed else waiting.value


def shut_down(descriptor: int, is_it: Callable[[int], bool]) -> None:
    """Shut a connection down if `is_it` confirms the descriptor; received bytes can still be read."""
    _to_connection(descriptor, is_it, _shut_down)


def break_off(descriptor: int, is_it: Callable[[int], bool]) -> None:
    """Shut the connection down, and drop unread bytes: megabytes may wait in the system."""
    _to_connection(descriptor, is_it, _disconnect if LINUX else _shut_down)


def _to_connection(descriptor: int, is_it: Callable[[int], bool], act: Callable[[int], object]) -> None:
    try:
        held = os.dup(descriptor)  # any file may have the number from now on
    except OSError:  # closed already; or no descriptor is left, which is when hanging up is needed most
        if is_it(descriptor):
            act(descriptor)
        return
    try:
        if is_it(held):
            act(held)
    finally:
        os.close(held)


def _shut_down(descriptor: int) -> None:
    _libc.shutdown(descriptor, socket.SHUT_RDWR)


def _disconnect(descriptor: int) -> None:
    """Reset the connection: connect(2) to an address of the family AF_UNSPEC."""
    _libc.connect(descriptor, _NOWHERE, len(_NOWHERE) - 1)


def pause(listener: int, *, paused: bool) -> None:
    """Refuse new callers, or admit them again: a refused caller gets no reply and retries by itself."""
    option = _ATTACH_FILTER if paused else _DETACH_FILTER
    if LINUX:
        _libc.setsockopt(listener, socket.SOL_SOCKET, option, _FILTER, len(_FILTER) - 1)


def raise_open_files() -> int:
    """Raise this process's limit of open files to the system's maximum; return the limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # "unlimited" is more than the system has
            pass
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def check_files(what: str, needed: int) -> None:
    """Raise NetworkError if this process may not open as many files as `what` may need."""
    if (most := raise_open_files()) < needed:
        text = f"{what} need {needed} open files, and this process may have {most}"
        raise NetworkError(text, "Raise the limit: ulimit -Hn, or LimitNOFILE= of the service.")


def check_links(links: int) -> None:
    """Raise NetworkError if this process cannot have links to this number of partners, and would disconnect some."""
    check_files(f"{links} partners" if links != 1 else "one partner's links", FILES + FILES_OF_A_LINK * links)
