"""Fault scripts: kind, time and targets of a run's faults, for the simulator and for real processes.

It imports `core` and `base`.  A script is a function of the experiment's [[faults]] and its seed: it owns no clock and
no socket, and answers the drivers' questions.  The fate of a message depends on (seed, fault, link, count of messages
on that link) alone.  Seconds count from the beginning of the run: virtual seconds in the simulator; for real processes,
seconds since the first training of the run.

A lost message: the simulator asks the script at each `Send`, and `net.faulty` asks it between a real machine and its
sockets; both get the same answer.
"""

from fedgossip.faults.script import (
    KINDS,
    LOST,
    MOST_IN_VAIN,
    NOTHING,
    NS,
    UNHARMED,
    Crash,
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
    pairs_of,
)

__all__ = [
    "KINDS",
    "LOST",
    "MOST_IN_VAIN",
    "NOTHING",
    "NS",
    "UNHARMED",
    "Crash",
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
    "pairs_of",
]
