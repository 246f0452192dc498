"""Fault scripts: what goes wrong in a run, when, and to whom; the same words for the simulator and for real processes.

A script is a function of the experiment's [[faults]] and its seed: it owns no clock and no socket, and answers the
questions of the drivers.  What becomes of a message depends on (seed, fault, link, count of messages on that link)
alone.  Seconds count from the beginning of the run: virtual ones in the simulator; of real processes, from the first
training of the run.
"""

from fedgossip.faults.script import LOST, NOTHING, UNHARMED, Fate, FaultScript, Happening, Strike, Turn
from fedgossip.faults.words import KINDS, NS, Fault, Flap, Partition, Slow

__all__ = [
    "KINDS",
    "LOST",
    "NOTHING",
    "NS",
    "UNHARMED",
    "Fate",
    "Fault",
    "FaultScript",
    "Flap",
    "Happening",
    "Partition",
    "Slow",
    "Strike",
    "Turn",
]
