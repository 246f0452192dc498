"""The keys of masks in private gossip, and the rounds that they have masked.

A key must never mask two vectors.  The machine ensures that within an incarnation.  For later ones, or another run with
the same keys, a real peer records every round next to its key before it sends anything masked in it.

    peer.key.masked         lines of a run's hash and the first unused round; the last line of a run applies
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, NotWrittenError, ResumeError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Effect, Event, Machine, NodeId, Send
from fedgossip.core.messages import Hello, Masked
from fedgossip.net.endpoints import Endpoints
from fedgossip.net.identity import Identity, raw
from fedgossip.plans.plan import Plan
from fedgossip.protocols.gossip.lifecycle import FRESH
from fedgossip.protocols.private_gossip import MODEL
from fedgossip.runs.incarnations import MakeMachine
from fedgossip.secure.pairs import AgreedPairs, Other, Own, run_of

_LINE = re.compile(rb"([0-9a-f]{64}) (\d{10})\n")


def agreed_pairs(
    node: NodeId, identity: Identity, endpoints: Endpoints, run: bytes, incarnation: int = 0
) -> AgreedPairs:
    """Return the source of masks for one incarnation of a real peer.  Raises ConfigError."""
    others = {}
    for other, endpoint in endpoints.items():
        if not endpoint.verify:
            advice = "Have it run `fedgossip keys show --block`, and replace its block in endpoints.toml."
            raise ConfigError(f"peer {other} has no key of signatures (verify), which signs those of its masks", advice)
        if other != node:
            others[other] = Other(raw(endpoint.key), bytes.fromhex(endpoint.verify))
    return AgreedPairs(Own(node, incarnation, raw(identity.secret), identity.sign_bytes, os.urandom), others, run)


def run_hash(hello: Hello, endpoints: Endpoints) -> bytes:
    """Return the hash from which all keys of the run are derived: of the experiment, the layout and all participants'
    keys.
    """
    keys = [f"{node} {endpoint.key}" for node, endpoint in sorted(endpoints.items())]
    return run_of(hello.experiment, hello.schema, hello.version, *keys)


class MaskLedger:
    """The rounds that one key has masked, on disk; one process at a time can open it.

    Raises ConfigError if another process has it open, and NotWrittenError.
    """

    def __init__(self, path: Path, run: bytes) -> None:
        self.path, self._run, self.new = path, run.hex(), not path.exists()
        try:
            self._file = owner_files.opened_to_lock(path)
            free = owner_files.try_lock(self._file)
        except OSError as error:
            raise NotWrittenError(path, error) from None
        if not free:
            self.close()
            raise ConfigError(f"{path}: another process masks with this key", "Stop one of the two.")
        self.free = self._read()

    def _read(self) -> int | None:
        """Return the first round that was never masked; None for a new key."""
        content = outside_files.read_bytes(self.path) + b"\n"  # the round of a torn line was never masked
        rounds = [int(round) for run, round in _LINE.findall(content) if run.decode() == self._run]
        return max(rounds, default=None)

    def use(self, round: int) -> None:
        """Record that `round` is about to be masked; the line is on disk when this returns."""
        if self.free is None or round < self.free:
            raise AssertionError(f"round {round} of this key was masked before")
        self._write(round + 1)

    def begin(self) -> None:
        """Record that this key takes part in the run, once."""
        if self.free is None:
            self._write(0)

    def _write(self, free: int) -> None:
        try:
            os.write(self._file, f"{self._run} {free:010d}\n".encode())
            os.fsync(self._file)
        except OSError as error:
            raise NotWrittenError(self.path, error) from None
        self.free = free

    def close(self) -> None:
        os.close(self._file)


class Noted:
    """A machine that records every round in the ledger before it sends a masked vector."""

    def __init__(self, machine: Machine, ledger: MaskLedger) -> None:
        self._machine, self._ledger = machine, ledger

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        effects = self._machine.handle(event, now_ns)
        masked = {e.message.round for e in effects if isinstance(e, Send) and isinstance(e.message, Masked)}
        for round in sorted(masked):
            self._ledger.use(round)
        return effects


def private_maker(
    plan: Plan,
    node: NodeId,
    hello: Hello,
    identity: Identity,
    endpoints: Endpoints,
    path: Path,
    stack: contextlib.ExitStack,
    *,
    resume: bool,
) -> MakeMachine:
    """Return the maker of a real private peer's machine; `path` is its ledger, which `stack` closes.

    Raises ConfigError if this key has masked this run before, ResumeError if the ledger is missing.
    """
    run = run_hash(hello, endpoints)
    ledger = MaskLedger(path, run)
    stack.callback(ledger.close)
    if resume and ledger.new:
        advice = f"Put {path.name} back there, or start a new run with another seed."
        raise ResumeError(f"{path}: the rounds that this key has masked are unknown", advice)
    if ledger.free is not None and not resume:
        advice = "Give the experiment another seed, on all peers; or resume with --resume."
        raise ConfigError(f"{path}: this key has masked models of this very experiment", advice)
    ledger.begin()

    def make(initial: Vector, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        free = ledger.free or 0
        if free > (checkpoint.round if checkpoint else 0):  # these rounds were lost by a crash
            before = checkpoint or Checkpoint(0, {MODEL: initial}, FRESH)
            checkpoint = Checkpoint(free, before.vectors, before.facts)
        pairs = agreed_pairs(node, identity, endpoints, run, incarnation)
        machine = plan.machine(node, initial, hello.schema, checkpoint, incarnation=incarnation, own=pairs)
        return Noted(machine, ledger)

    return make
