"""The same experiment twice: simulated, and as eight processes that talk over encrypted ZeroMQ.  One digest.

The processes are real: each has its own sockets, key and data, finds its neighbours, trains and exchanges models.
Which of them is scheduled first, and whose model arrives first, differs from run to run; the final bits do not.
"""

import tempfile
from pathlib import Path

import fedgossip

EXPERIMENT = {
    "rounds": 20,
    "topology": {"graph": "ring", "n": 8},
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}},
    "model": {"source": "mlp:64-16-10"},
    "train": {"lr": 0.1, "local_steps": 5, "device": "cpu"},  # a GPU would round otherwise
}


def main() -> None:
    experiment = fedgossip.load_experiment(EXPERIMENT)
    simulated = fedgossip.simulate(experiment)
    with tempfile.TemporaryDirectory() as folder:
        real = fedgossip.run_local(experiment, Path(folder) / "run", report=False)
        left = sorted(path.name for path in (Path(folder) / "run" / "peers" / "00").iterdir())
    for name, run in (("simulated", simulated), ("real", real)):
        print(f"{name:<10} worst peer {run.accuracy['worst_peer']:.4f}   sha256 {run.digest}")
    print(f"{real.summary['bytes_sent'] / 1e6:.1f} MB were sent in {real.summary['seconds']:.1f} seconds.")
    print("Peer 0 left", ", ".join(left))


if __name__ == "__main__":  # the peers are processes of their own: a script that starts processes needs this line
    main()
