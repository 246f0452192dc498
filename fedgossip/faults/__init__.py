"""Fault scripts: what goes wrong in a run, when, and for whom, in the simulator and in real processes alike.

It imports `core` and `base`.  A script is a function of the experiment's [[faults]] and its seed: it owns no clock and
no socket, and answers the drivers' questions.  The fate of a message depends on (seed, fault, link, count of messages
on that link) alone. Seconds count from the beginning of the run: virtual seconds in the simulator; real processes
count from the first training of the run.

A lost message: the simulator asks the script at each `Send`, and `net.faulty` asks it between a real machine and its
sockets; both decide alike.
"""

from fedgossip.faults.script import (
    KINDS,
    LOST,
    MOST_IN_VAIN,
    NOTHING,
    NS,
    UNHARMED,
    Fate,
    Fault,
    FaultScript,
    Flap,
    Happening,
    Partition,
    RunProgress,
    Slow,
    Strike,
    Turn,
)

__all__ = [
    "KINDS",
    "LOST",
    "MOST_IN_VAIN",
    "NOTHING",
    "NS",
    "UNHARMED",
    "Fate",
    "Fault",
    "FaultScript",
    "Flap",
    "Happening",
    "Partition",
    "RunProgress",
    "Slow",
    "Strike",
    "Turn",
]
