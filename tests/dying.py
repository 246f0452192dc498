"""python tests/dying.py PHASE ROUND coordinator ...: the command, which kills itself (SIGKILL) when it is there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from fedgossip.cli import main
from fedgossip.core.machine import Effect, Event
from fedgossip.drivers import peer


class Dying:
    """Stands round a coordinator's machine."""

    def __init__(self, machine: Any, phase: str, round: int) -> None:
        self.machine, self.phase, self.round = machine, phase, round

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        effects: Sequence[Effect] = self.machine.handle(event, now_ns)
        exchange = self.machine.exchange
        if exchange and (exchange.phase, exchange.round) == (self.phase, self.round):
            os.kill(os.getpid(), signal.SIGKILL)
        return effects


if __name__ == "__main__":
    phase, round = sys.argv[1], int(sys.argv[2])
    del sys.argv[1:3]
    make = peer._PeerLife._machine
    peer._PeerLife._machine = lambda self, *given: Dying(make(self, *given), phase, round)  # type: ignore[assignment, return-value]
    main()
