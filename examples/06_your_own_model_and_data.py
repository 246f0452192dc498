"""Your own data and your own model: functions in a module, named "module:function".

spirals.py beside this file has both.  `points` returns (x, y, groups); groups says whom an example belongs to by
nature, so partition "natural" gives whole groups to peers: here each peer knows one piece of every spiral and has
never seen the rest.  `network` takes (shape, classes) and returns any torch.nn.Module.

In an experiment file the same names are written as

    [data]
    source = "spirals:points"
    partition = { kind = "natural" }
    [model]
    source = "spirals:network"

and the module is looked for in the folder where fedgossip is started, then where Python finds installed packages.
"""

import fedgossip

EXPERIMENT = {
    "rounds": 60,
    "data": {"source": "spirals:points", "partition": {"kind": "natural"}, "test": 0.25},
    "model": {"source": "spirals:network"},
    "train": {"optimizer": "adam", "lr": 0.01, "local_steps": 4, "device": "cpu"},
}

for graph in ("none", "ring"):
    run = fedgossip.simulate({**EXPERIMENT, "topology": {"graph": graph, "n": 6}})
    print(f"graph {graph}: {run.summary['parameters']} parameters, examples per peer {run.summary['data']['sizes']}")
    for row in run.network():
        if row.score_worst_peer is not None and row.round % 20 == 0:
            mean, worst = row.score_mean_peer, row.score_worst_peer
            print(f"   round {row.round:2}   mean peer {mean:.3f}   worst {worst:.3f}")
