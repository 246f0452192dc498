"""A connection to a Ray cluster, or to one of this machine alone that ends with it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any

from fedgossip.base.errors import NetworkError
from fedgossip.base.extras import needed
from fedgossip.drivers.clusters.resources import LOCAL

ANSWER_SECONDS = 15.0
"""How long a cluster may take to answer; Ray itself waits for minutes."""

ADVICE_HERE = "Is the machine busy, or short of memory?  Ray's words are in /tmp/ray/session_latest/logs."
TRIES = "RAY_NUM_REDIS_GET_RETRIES", "12"
"""Ray's variable, read at its import: a server that speaks HTTP/2 and is no cluster is polled once a second."""
ADVICE = "Start one: ray start --head; or try it here, with local.  Of a cluster with a token: RAY_AUTH_MODE=token."

# A cluster's address is that of a server of HTTP/2, whose first frame, SETTINGS, answers these (RFC 9113, 3.4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_TYPE, _HEAD = 4, 9


def connected(address: str, cpus: int = 0) -> Any:
    """Return ray, connected to the cluster at HOST:PORT, `auto` (RAY_ADDRESS, or the one of this machine) or `local`.

    `cpus`: that a cluster started here has at least; it may promise more than the machine has.  Raises ConfigError
    without Ray, NetworkError where no cluster answers.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it warns of what its next release will do
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage report leaves the machine
    if address != LOCAL:
        os.environ.setdefault(*TRIES)
    ray = needed("ray", "cluster", "a Ray cluster")
    if address == LOCAL:
        where: dict[str, Any] = {"num_cpus": max(cpus, os.cpu_count() or 1), "include_dashboard": False}
    else:
        _check_answers(address if address != "auto" else os.environ.get("RAY_ADDRESS", "auto"))
        where = {"address": address}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**where, log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray raises Exception itself where a node of its own starts too slowly
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        if address == LOCAL:
            raise NetworkError(f"Ray does not start on this machine: {told}", ADVICE_HERE) from None
        raise NetworkError(f"no Ray cluster at {address}: {told}", ADVICE) from None
    finally:
        if threading.current_thread() is threading.main_thread():  # no other one may
            signal.signal(signal.SIGTERM, before)
    return ray


def _check_answers(address: str) -> None:
    """Raise NetworkError where nothing that speaks HTTP/2 answers at HOST:PORT; words are left to Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as line:
            line.settimeout(ANSWER_SECONDS)
            line.sendall(_PREFACE)
            head = b""
            while len(head) < _HEAD and (more := line.recv(_HEAD - len(head))):
                head += more
    except (OSError, OverflowError) as error:
        told = "no answer" if isinstance(error, TimeoutError) else str(error)
        raise NetworkError(f"no Ray cluster at {address}: {told}", ADVICE) from None
    if len(head) < _HEAD or head[3] != _SETTINGS_TYPE:
        raise NetworkError(f"no Ray cluster at {address}: another server answers there", ADVICE)
