"""Plans of gossip runs: the graph, its weights and forecast, and the machine of each peer.

It imports `topology`, `protocols` and `plans`.  `gossip` makes the plan of [topology] and [algorithm], and with
`gossip_machines` the machine of each seat.

A user's own name is accepted like a built-in one: "module:Class" as `algorithm.name`, "module:function" as
`topology.graph` (n, seed) and `topology.weights` (topology); `simulate(schedule=, mixing=, algorithm=)` takes objects.
`own_graphs` checks them before a run.  The fingerprint includes the mixings (weights to 6 digits); the Hello includes
the source of each function.
"""
