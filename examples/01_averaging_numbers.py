"""Eight peers on a ring, a number each.  Nobody sees all of them, and yet everybody learns their mean.

In every round each peer replaces its number by a weighted mean of its own and its two neighbours' numbers.  The
weights (Metropolis: 1 / (1 + larger degree), so a third each here) have rows and columns that sum to one: rows bring
the numbers together, columns keep the mean of all where it was.  Nothing is trained and torch is not imported.
"""

import sys

import numpy as np

import fedgossip

N = 8


def after(rounds: int) -> np.ndarray:
    """Return the peers' numbers after so many rounds."""
    run = fedgossip.simulate(
        {
            "rounds": rounds,
            "seed": 3,
            "topology": {"graph": "ring", "n": N},
            "task": {"kind": "averaging", "dtype": "float64"},  # N(0, 1), one number per peer
        }
    )
    return np.concatenate(run.vectors)


mixing = fedgossip.build(fedgossip.resolve("ring", N))
print("peer 0 sums", {peer: round(weight, 4) for peer, weight in mixing.row(0).items()}, "\n")

print("rounds    " + "".join(f"peer {peer}  " for peer in range(N)) + "   mean   disagreement")
for rounds in (1, 2, 5, 10, 20, 40, 80):
    x = after(rounds)
    print(f"{rounds:6}  " + "".join(f"{value:8.4f}" for value in x) + f"{x.mean():9.4f}   {x.std():.2e}")

drift = abs(after(80).mean() - after(1).mean())
print(f"\nThe mean moved by {drift:.1e} in 80 rounds: that is rounding.")
print("torch was imported" if "torch" in sys.modules else "torch was not needed.")
