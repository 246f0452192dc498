"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, MLSys 2020), algorithm 2:

    client    w_k ~ argmin_w F_k(w) + (mu / 2) ||w - x||^2         each step's gradient gets mu (w - x)
    server    x <- mean of w_k

mu = 0 is FedAvg, by the same path and with the same bits.  Where we differ: the paper draws clients by size and
averages them alike; that is `weighting="clients"` with `sampling.BySize`.  A client that is too slow is cut off by the
deadline; it does not send what it has.
"""

from __future__ import annotations

from fedgossip.algorithms.federated.fedavg import Training


def proximal(mu: float = 0.01, weighting: str = "examples") -> Training:
    """The client of FedProx.  mu: 0 or more; the paper tries 0.001 to 1, more where clients differ more."""
    return Training(mu, weighting)
