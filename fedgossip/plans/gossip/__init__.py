"""Plans of gossip runs: the graph, its weights and forecast, and the machine of each peer.

It imports `topology`, `protocols` and `plans`.  `gossip` makes the plan of [topology] and [algorithm], and by
`gossip_machines` the machine of each seat.

A user's own names stand wherever ours do: "module:Class" as `algorithm.name`, "module:function" as `topology.graph` (n,
seed) and `topology.weights` (topology); `simulate(schedule=, mixing=, algorithm=)` takes objects.  `own_graphs` checks
them before anything runs.  The mixings are in the fingerprint (weights to 6 digits); the Hello has the source behind
each function.
"""
