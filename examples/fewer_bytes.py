"""Peers that agree by a tenth of what has changed, and peers that mix a tenth of their models and never do.

CHOCO-SGD (Koloskova, Stich and Jaggi 2019) sends what others do not know yet of a model, as far as a codec says it, and
what is left comes later.  No torch: sixteen peers on a ring have sixty numbers each, and want their mean.
"""

import numpy as np

import fedgossip
from fedgossip.algorithms.codecs.sparse import largest
from fedgossip.topology import build, resolve

N, NUMBERS, ROUNDS = 16, 60, 1000


def choco():
    """Return (how far the peers are apart at the end, the bytes that one has sent to each of its neighbours)."""
    run = fedgossip.simulate(
        {
            "rounds": ROUNDS,
            "task": {"kind": "averaging", "dim": NUMBERS, "dtype": "float64"},
            "topology": {"graph": "ring", "n": N},
            "algorithm": {"name": "choco", "options": {"codec": "top-k:0.1", "gamma": 0.3}},
            "eval": {"every": ROUNDS},
        },
        engine="stacked",
    )
    sent = sum(getattr(row, "payload_sent", 0) for row in run.rows)
    return run.network()[-1].consensus_distance, sent // N // 2


def models_in_part():
    """Return how far they are apart where the largest tenth of each model is mixed, and nothing else."""
    mixing = np.asarray(build(resolve("ring", N), "metropolis").matrix())
    x = np.random.default_rng(0).standard_normal((N, NUMBERS))
    for _ in range(ROUNDS):
        said = np.zeros_like(x)
        for row, own in zip(said, x, strict=True):
            places = largest(own, NUMBERS // 10)
            row[places] = own[places]
        x = x + mixing @ said - said
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()))


if __name__ == "__main__":
    apart, sent = choco()
    whole = ROUNDS * NUMBERS * 8
    print(f"what has changed   {apart:.1e} apart, {sent} bytes to each neighbour, {whole} would be whole models")
    print(f"parts of models    {models_in_part():.1e} apart")
