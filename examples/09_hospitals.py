"""Eight hospitals learn one model under a coordinator that sees sums and nothing else.

Every site trains on its own records, of which some have few of some classes; the coordinator invites all of them, and a
secure sum of their updates is all that it is told.  The same run without the secure sum ends with the same model, to
rounding.  Then two sites vanish in the middle of it: rounds go on with those that are left, as long as more than two
thirds answer to the end.
"""

import numpy as np

import fedgossip

PILOT = {
    "rounds": 15,
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 20}},
    "model": {"source": "mlp:64-32-10"},
    "train": {"lr": 0.1, "local_epochs": 2, "device": "cpu"},
    "coordinator": {"clients": 8, "deadline": 2.0, "least_deadline": 0.5},
}


def pilot(*overrides: str, **more: object) -> fedgossip.Run:
    return fedgossip.simulate({**PILOT, **more}, overrides=overrides)


secure = pilot()
plain = pilot("coordinator.secure.on=false")
apart = np.abs(np.subtract(secure.vectors[-1], plain.vectors[-1])).max()
by_sums, in_clear = (100 * run.accuracy["averaged"] for run in (secure, plain))
print(f"accuracy {by_sums:.1f} % by secure sums, {in_clear:.1f} % in the clear;")
print(f"their weights differ by {apart:.0e} at most: rounding, and nothing else")

gone = [{"kind": "crash", "peers": [site], "start": 0.4} for site in (2, 5)]
fewer = pilot(faults=gone)
sites = [row.peers for row in fewer.network()[1:]]
print(f"\nsites in each round when two vanish: {sites}")
accuracy = 100 * fewer.accuracy["averaged"]
print(f"rounds that were given up: {fewer.summary['rounds_abandoned']}, accuracy {accuracy:.1f} %")

scaffold = pilot('coordinator.algorithm="scaffold"')
print(f"\nSCAFFOLD, for sites that differ: {100 * scaffold.accuracy['averaged']:.1f} %")
