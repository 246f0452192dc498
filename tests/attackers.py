"""One who attacks, as a process of its own, so that its memory is not that of the attacked.

    python attackers.py call ADDRESS SERVER_KEY KEY_FILE FIRST...    FIRST (mark:body, in hex), then no end of a message
    python attackers.py answer ADDRESS KEY_FILE                      says its address; no end of a message to callers
    python attackers.py knock HOST PORT                              opens as many connections as it may, and holds them

A message without end: frames of the largest size there is, of one piece of memory; a new one when 300 MB are said.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
from pathlib import Path

import zmq

from fedgossip.core.wire import FRAME_BYTES_MAX
from fedgossip.net.identity import Identity

FRAMES = 1200

KNOCKS = 500


def endless(speaker: zmq.Socket[bytes], *first: bytes) -> None:
    body = zmq.Frame(bytes(FRAME_BYTES_MAX))
    while True:
        for one in first:
            speaker.send(one, zmq.SNDMORE)
        for _ in range(FRAMES):
            speaker.send(body, zmq.SNDMORE, copy=False)
        speaker.send(b"")  # ZeroMQ keeps a message to itself until it is whole


def call(address: str, server_key: str, key: str, *said: str) -> None:
    identity = Identity.load(Path(key))
    dealer: zmq.Socket[bytes] = zmq.Context().socket(zmq.DEALER)
    dealer.curve_serverkey = server_key.encode()
    dealer.curve_publickey, dealer.curve_secretkey = identity.public.encode(), identity.secret.encode()
    dealer.connect(address)
    for one in said:
        dealer.send_multipart([bytes.fromhex(part) for part in one.split(":")])
    endless(dealer)


def answer(address: str, key: str) -> None:
    identity = Identity.load(Path(key))
    router: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = identity.public.encode(), identity.secret.encode()
    router.bind(address)
    print(router.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    while True:
        name, *_ = router.recv_multipart()
        body = zmq.Frame(bytes(FRAME_BYTES_MAX))
        router.send(name, zmq.SNDMORE)
        for _ in range(FRAMES):
            router.send(body, zmq.SNDMORE, copy=False)
        router.send(b"")


def knock(host: str, port: str) -> None:
    """Say how many connections were opened, whenever it is KNOCKS more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    doors: list[socket.socket] = []
    opened = 0
    while True:
        with contextlib.suppress(OSError):
            door = socket.socket()
            door.settimeout(0.2)
            door.connect((host, int(port)))
            doors.append(door)
            opened += 1
            if opened % KNOCKS == 0:
                print(opened, flush=True)
        if len(doors) > hard - 100:
            for door in doors[: hard // 2]:
                door.close()
            doors = doors[hard // 2 :]


if __name__ == "__main__":
    {"call": call, "answer": answer, "knock": knock}[sys.argv[1]](*sys.argv[2:])
