"""Three graphs, two algorithms, three seeds: which differences are more than chance?

Eighteen runs with paired seeds; the same call goes on where it was stopped.  `fedgossip sweep` does it from a file
(docs/use/sweeps.md).
"""

import tempfile

import fedgossip

SWEEP = {
    "name": "example",
    "base": {
        "rounds": 30,
        "data": {"partition": {"kind": "dirichlet", "alpha": 0.3}},
        "train": {"device": "cpu"},
        "topology": {"graph": "ring", "n": 8},
    },
    "seeds": 3,
    "grid": {"topology.graph": ["ring", "hypercube", "star"], "algorithm.name": ["dsgd", "gradient-tracking"]},
}

with tempfile.TemporaryDirectory() as folder:
    table = fedgossip.sweep(SWEEP, f"{folder}/sweep")

print(f"{table.done} cells; differences of the mean peer's accuracy to {table.reference!r}, seed by seed:\n")
for combination in table.combinations[1:]:
    found = table.difference(combination)
    assert found is not None and found.student is not None
    low, high = found.student
    chance = "" if found.sure else "   may be chance"
    print(f"{combination:62} {found.mean:+.3f}   95 %: {low:+.3f} to {high:+.3f}{chance}")
