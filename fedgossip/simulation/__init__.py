"""Drivers without sockets: whole machines in virtual time, and the mathematics alone on stacked arrays.

It imports `protocols`, `algorithms`, `topology`, `faults` and `core`.  `simulator` handles the events of each instant
in the order of scheduling: (number, node, event).  A seeded `network` delivers a `Send` as `Received`.

Training is lazy and in batches: when the first Train's result is due, *every outstanding job* is computed in one call,
since their inputs are fixed; the history is unchanged (20 000 jobs of random speeds: 933 calls).

Stacked arrays (`stacked`) run the algorithm's object on all nodes' vectors [n, d] with the machines' bits; RelaySGD has
arrays [arcs, d].  Resident models (`resident_rounds`, with `learning.many_nodes`) stay in the layout that products
read.

Forecasts (`probe`, `shadow`) run the algorithm's object on given updates.  After a lossy run `realised` derives the
mixed schedule from its record (missed, held, repaired), and the same shadow runs over it.
"""
