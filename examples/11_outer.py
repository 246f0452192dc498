"""Long local work, then an outer step: how many bytes are sent, in all and in the fullest round.

DiLoCo (Douillard et al. 2023) and Streaming DiLoCo (2025) by [parallel.outer]; the same on a ring of neighbours by a
codec.  Four learn the bundled digits, 400 steps each: every step shared, every 20th, a quarter of the model every 5.
"""

import fedgossip
from fedgossip.core.records import PeerRow

STEPS = 400
WAYS = {
    "every step": (1, {"parallel": {"workers": 4}}),
    "every 20 steps": (20, {"parallel": {"workers": 4, "outer": {"lr": 1.0, "beta": 0.5}}}),
    "a quarter every 5": (5, {"parallel": {"workers": 4, "outer": {"lr": 1.0, "beta": 0.5, "fragments": 4}}}),
    "on a ring, by signs": (
        20,
        {
            "topology": {"graph": "ring", "n": 4},
            "algorithm": {"name": "diloco", "options": {"lr": 1.0, "beta": 0.5, "codec": "sign"}},
        },
    ),
}


def learned(local: int, how: dict) -> tuple[float, int, int]:
    """Return (accuracy of the averaged model, bytes that all send, those of the fullest round)."""
    rounds = STEPS // local
    run = fedgossip.simulate(
        {
            "rounds": rounds,
            "model": {"source": "mlp:64-32-10"},
            "train": {"optimizer": "adamw", "lr": 0.003, "local_steps": local, "batch_size": 16, "device": "cpu"},
            "eval": {"every": rounds},
            **how,
        },
        engine="stacked",
    )
    sent = [0] * (rounds + 1)
    for row in run.rows:
        if isinstance(row, PeerRow):
            sent[row.round] += row.payload_sent
    return run.network()[-1].score_averaged, sum(sent), max(sent)


if __name__ == "__main__":
    print("                      accuracy   kB in all   kB in the fullest round")
    for name, (local, how) in WAYS.items():
        accuracy, whole, fullest = learned(local, how)
        print(f"{name:20}  {100 * accuracy:6.1f} %  {whole / 1000:10.1f}  {fullest / 1000:10.1f}")
