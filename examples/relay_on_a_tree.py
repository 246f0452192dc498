"""On a path of peers with unlike data: does it help that models are relayed, and not averaged with neighbours alone?

RelaySGD (Vogels and others 2021) passes sums of models on, so that each model counts once at every peer; gossip mixes
those at hand, and what is far away comes late and weak.  One sweep, paired seeds.
"""

import tempfile

import fedgossip

SWEEP = {
    "name": "relay",
    "base": {
        "rounds": 100,
        "data": {"partition": {"kind": "dirichlet", "alpha": 0.05, "min_size": 8}},
        "train": {"device": "cpu"},
        "topology": {"graph": "path", "n": 16},
    },
    "seeds": 5,
    "grid": {"algorithm.name": ["dsgd", "relaysgd"]},
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        table = fedgossip.sweep(SWEEP, f"{folder}/sweep")
    print(f"{table.done} cells; difference of the mean peer's accuracy to {table.reference!r}, seed by seed:\n")
    for combination in table.combinations[1:]:
        found = table.difference(combination)
        assert found is not None and found.student is not None
        low, high = found.student
        chance = "" if found.sure else "   may be chance"
        print(f"{combination:26} {found.mean:+.3f}   95 %: {low:+.3f} to {high:+.3f}{chance}")
