"""Sites with unlike patients: one model for all, a model at each site alone, and Ditto's, which is between them.

Twenty clients share digits very unevenly (Dirichlet, alpha 0.3), and some have few.  Each keeps 30 % of its examples
from its training and tests three models on them: the shared one, one that it trained alone, and its own of Ditto (Li et
al., ICML 2021), which is trained beside the shared one and pulled to it.  The coordinator sees sums alone.
"""

import fedgossip


def run(personal="ditto?lambda=1"):
    """Return the run of twenty clients with models of their own."""
    return fedgossip.simulate(
        {
            "rounds": 20,
            "data": {"local_test": 0.3, "partition": {"kind": "dirichlet", "alpha": 0.3, "min_size": 10}},
            "model": {"source": "mlp:64-32-10"},
            "train": {"local_steps": 10, "device": "cpu"},
            "coordinator": {"clients": 20, "personal": personal},
        },
    )


def last_scores(of):
    """Return the scores that each client logged in the last round, a mapping by name for each."""
    return [row.logged for row in of.rows if getattr(row, "logged", None) and row.round == 20 and row.peer < 20]


if __name__ == "__main__":
    found = run()
    for name in ("shared", "alone", "personal"):
        scores = sorted(one[f"score_{name}"] for one in last_scores(found))
        print(f"{name:9} mean {sum(scores) / len(scores):.3f}   worst {scores[0]:.3f}   median {scores[10]:.3f}")
    gains = found.summary["personal"]
    print(f"worse off than with the shared model: {gains['behind_shared']}, than alone: {gains['behind_alone']}, of 20")
