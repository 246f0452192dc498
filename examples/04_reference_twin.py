"""Synchronous gossip in plain loops: what the machines, the simulator and the stacked engine have to equal, bit by bit.

One peer after the other, no messages, no batches.  What matters for the bits is one thing: each peer sums its own
and its neighbours' vectors in ascending order of their ids, with one rounding for a product and one for a sum.
"""

import numpy as np

import fedgossip
from fedgossip.base.vectors import digest
from fedgossip.core.task import Job
from fedgossip.plans import compose

EXPERIMENT = {
    "rounds": 12,
    "topology": {"graph": "regular:3", "n": 10},
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}},
    "model": {"source": "mlp:64-16-10"},
    "train": {"lr": 0.1, "local_steps": 5, "momentum": 0.9, "device": "cpu"},
}


def reference_twin(experiment: fedgossip.Experiment) -> list[np.ndarray]:
    """Return every peer's final vector, ascending."""
    plan = compose.plan(experiment)
    task, _ = compose.task_of(experiment, plan.n)
    x = [task.initial(i) for i in range(plan.n)]
    for number in range(experiment.rounds):
        trained = []
        for i in range(plan.n):
            (update,) = task.train([Job(i, number, x[i])])
            trained.append(x[i] if update.difference is None else x[i] + update.difference)
        mixed = []
        for i in range(plan.n):
            terms = [trained[j] * trained[j].dtype.type(weight) for j, weight in sorted(plan.mixing.row(i).items())]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            mixed.append(total)
        x = mixed
    return x


if __name__ == "__main__":
    experiment = fedgossip.load_experiment(EXPERIMENT)
    print("plain loops   ", digest(reference_twin(experiment)))
    print("simulator     ", fedgossip.simulate(experiment).digest)
    print("stacked arrays", fedgossip.simulate(experiment, engine="stacked").digest)
