"""Drivers without sockets: whole machines in virtual time, and the mathematics alone on stacked arrays.

It imports `protocols`, `algorithms`, `topology`, `faults` and `core`.  `simulator` takes what is due at each instant,
in the order in which it was requested: (number, node, event), over a seeded `network`.  A machine's `Send` is
scheduled at the time at which the link delivers it; the receiver gets `Received`.

Training is lazy and in batches (`network`).  A Train effect is scheduled to finish at a virtual time and is
not computed.  When the first such event is due, *every outstanding job* is computed in one call, since their inputs
are fixed already; the history is unchanged, and 20 000 jobs of random speeds need 933 calls.  An AddingMachine reports
the elements that it adds up, and the simulator counts the time of that.

Stacked arrays (`stacked`) run the algorithm's object on all nodes' vectors, rows of one [n, d], with the bits of the
machines; RelaySGD has arrays [arcs, d] (`stacked`), whose exchange receives everything that was sent at once
(`mix_all`).

Resident models (`resident_rounds`, with `learning.many_nodes`): models of linear layers that plain SGD trains and
averaging mixes stay in the layout in which products read them.  A round goes from `models` to `trained` and back into
`models` by mixing.  Vectors are made in watched and in evaluated rounds and for an image; bits, losses and distances
are those of `run_stacked`.

Forecasts (`probe`, `shadow`) run the algorithm's own object (`realised`) on given updates, and may follow peers where
a graph takes them (`shadow`).  After a run that lost something `realised` makes of its record (missed, held,
repaired, who has a row) the schedule that was really mixed, and the same shadow runs over it.  The record has no row
of weights, since these events determine them.
"""
