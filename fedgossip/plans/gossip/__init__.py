"""Plans of gossip runs: the graph, its weights and forecast, and the machine of each peer.

It imports `topology`, `protocols` and `plans`.  `gossip` makes the plan of [topology] and [algorithm]: the schedule,
the mixing of each round, the forecast, and by `gossip_machines` the machine of each seat.

A user's own names stand wherever ours do: "module:Class" as `algorithm.name`, "module:function" as `topology.graph`
(n, seed) and `topology.weights` (topology); `simulate(schedule=, mixing=, algorithm=)` takes objects.  `own_graphs`
calls a function twice, compares the results, and checks size, sums and connection before anything runs, each round of
a schedule when it is made; an error names the function.  The mixings are in the fingerprint (weights to 6 digits,
since processors round); the Hello has the source behind each function by its name, and the one that differs is named
first.
"""
