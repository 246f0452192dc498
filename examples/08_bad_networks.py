"""Thirty-two peers average numbers while messages get lost, and sixteen learn while one of them is ten times slower.

First, what a lost message costs: with three ways to average, the drift of the mean is printed in units of the peers'
first spread.  An exchange counts at both ends or at neither, so it stays at rounding however many are lost.  Then the
virtual time until the averaged model has the loss that the synchronous run ends with: rounds wait for the slow one,
exchanges in pairs do not.
"""

import numpy as np

import fedgossip
from fedgossip.learning.analytic import Averaging

PEERS = 32
START = np.array([Averaging(PEERS, 1, dtype="float64", seed=1).initial(node)[0] for node in range(PEERS)])


def drift(lost: float, **algorithm: object) -> float:
    """How far the mean has moved after 40 rounds in which each message is lost with this probability."""
    run = fedgossip.simulate(
        {
            "rounds": 40,
            "task": {"kind": "averaging", "dtype": "float64"},
            "topology": {"graph": "regular:4", "n": PEERS},
            "algorithm": {"least_deadline": 0.2, **algorithm},
            "faults": [{"kind": "drop", "probability": lost}] if lost else [],
        }
    )
    return abs(float(np.mean(run.vectors)) - START.mean()) / START.std()


print("messages lost    synchronous   asynchronous")
for lost in (0.0, 0.01, 0.05, 0.2):
    print(f"{100 * lost:11.0f} %{drift(lost):15.0e}{drift(lost, mode='async'):15.0e}")

LEARNING = {
    "rounds": 30,
    "train": {"local_steps": 2, "device": "cpu"},
    "topology": {"graph": "regular:4", "n": 16},
    "faults": [{"kind": "slow", "peers": [5], "factor": 10.0}],
    "eval": {"every": 1},
}

rounds = fedgossip.simulate(LEARNING).network()
target, patient = rounds[-1].test_loss, rounds[-1].seconds
pairs = fedgossip.simulate({**LEARNING, "rounds": 120, "algorithm": {"mode": "async"}}).network()
reached = next(row.seconds for row in pairs if row.test_loss is not None and row.test_loss <= target)
print(f"\nOne peer ten times slower; loss {target:.3f} after {patient:.1f} virtual seconds of synchronous rounds,")
print(f"after {reached:.1f} of exchanges in pairs: {patient / reached:.1f} times sooner.")
