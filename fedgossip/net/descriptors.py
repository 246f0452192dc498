"""System calls on a connection, by the number of its descriptor.

The descriptors belong to ZeroMQ, which may close one at any moment, and the number may then belong to another file.  So
nothing here takes over a descriptor, and queries about a file of another kind return None.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable

from fedgossip.base.errors import NetworkError

FILES = 128
"""Number of files that a process opens beside its connections."""
FILES_OF_A_LINK = 8
"""Descriptors of a partner with connections both ways: 7 at work (two sockets with their wakers, two streams), one in
reserve.
"""

LINUX = sys.platform == "linux"

_BYTES_RECEIVED_AT, _TCP_INFO_BYTES = 128, 136  # linux/tcp.h: struct tcp_info, tcpi_bytes_received
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # asm-generic/socket.h
_DROP_ALL = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0))  # one instruction of BPF: return 0 bytes
_FILTER = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(_DROP_ALL)))
_NOWHERE = ctypes.create_string_buffer(struct.pack("H14x", socket.AF_UNSPEC))  # struct sockaddr

_libc = ctypes.PyDLL(None if os.name == "posix" else "ws2_32")
"""None of these calls waits, so they keep Python's lock: a thread that releases it may wait for milliseconds."""


def brought(descriptor: int) -> tuple[int, int] | None:
    """Return how many bytes of a TCP connection have been read here, and how many wait to be read.

    None where the system does not report it.
    """
    info = ctypes.create_string_buffer(_TCP_INFO_BYTES)
    size = ctypes.c_uint(_TCP_INFO_BYTES)
    if not LINUX or _libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size)):
        return None
    if size.value < _TCP_INFO_BYTES:
        return None
    import termios

    unread = ctypes.c_int()  # queried second: never too many as read
    if _libc.ioctl(descriptor, ctypes.c_ulong(termios.FIONREAD), ctypes.byref(unread)):
        return None
    received = int.from_bytes(info.raw[_BYTES_RECEIVED_AT:_TCP_INFO_BYTES], sys.byteorder)
    return received - unread.value, unread.value


def unacknowledged(descriptor: int) -> int:
    """Return how many bytes sent on a TCP connection the other end's system lacks; 0 where ours does not report it.

    Closing before may revoke them: later data from the other end are then answered by a reset.
    """
    if not LINUX:
        return 0
    import termios

    waiting = ctypes.c_int()
    failed = _libc.ioctl(descriptor, ctypes.c_ulong(termios.TIOCOUTQ), ctypes.byref(waiting))
    return 0 if failed else waiting.value


def shut_down(descriptor: int, is_it: Callable[[int], bool]) -> None:
    """Shut the connection down; it breaks at the other end, and bytes received before can still be read.

    `is_it` checks whether a descriptor is that of the connection.
    """
    _to_connection(descriptor, is_it, _shut_down)


def break_off(descriptor: int, is_it: Callable[[int], bool]) -> None:
    """Shut the connection down, and drop unread bytes: megabytes may wait in the system."""
    _to_connection(descriptor, is_it, _disconnect if LINUX else _shut_down)


def _to_connection(descriptor: int, is_it: Callable[[int], bool], act: Callable[[int], object]) -> None:
    try:
        held = os.dup(descriptor)  # the number may belong to any file from now on
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
    """Keep new callers out, or admit them again: a caller that is kept out gets no reply and retries by itself."""
    option = _ATTACH_FILTER if paused else _DETACH_FILTER
    if LINUX:
        _libc.setsockopt(listener, socket.SOL_SOCKET, option, _FILTER, len(_FILTER) - 1)


def raise_open_files() -> int:
    """Let this process open as many files as the system allows it to, and return how many."""
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
    """Raise NetworkError where this process may not open as many files as `what` may need."""
    if (most := raise_open_files()) < needed:
        text = f"{what} need {needed} open files, and this process may have {most}"
        raise NetworkError(text, "Raise the limit: ulimit -Hn, or LimitNOFILE= of the service.")


def check_links(links: int) -> None:
    """Raise NetworkError where this process cannot have a link to so many partners, and would hang up on some."""
    check_files(f"{links} partners" if links != 1 else "one partner's links", FILES + FILES_OF_A_LINK * links)
