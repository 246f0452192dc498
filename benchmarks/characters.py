"""What four loops learn together, each from a quarter of the plays, beside one loop that has them all.

A character transformer of two layers, `examples/loops/characters.py`, as four peers on a ring; and the bare loop over
the whole text, with as many steps of as many examples as each peer has, and with four times as many examples in a step,
as all peers have together.  Printed: the loss of each on the last tenth of the text, in nats per character, and ratios.

    python benchmarks/characters.py TEXT [STEPS]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

LOOPS = Path(__file__).parents[1] / "examples" / "loops"
PEERS, BATCHES = 4, 4


def loss_of(words: list[str], folder: str) -> float:
    """Return the last loss that a command prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(re.findall(r"nats per character of what was kept: ([\d.]+)", done.stdout)[-1])


def together(text: Path, steps: int, folder: str) -> float:
    """Return the loss of the mean of the four loops' models."""
    launch = [sys.executable, "-m", "fedgossip", "launch", "-n", str(PEERS), "--graph", "ring", "--no-report"]
    script = [str(LOOPS / "characters.py"), str(text.resolve()), str(steps), str(BATCHES)]
    return loss_of([*launch, "--out", "run", *script], folder)


def alone(text: Path, steps: int, folder: str, batches: int = BATCHES) -> float:
    """Return the loss of one loop that has all the text."""
    script = [str(LOOPS / "characters_bare.py"), str(text.resolve()), str(steps), str(batches)]
    return loss_of([sys.executable, *script], folder)


if __name__ == "__main__":
    text, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 800
    with TemporaryDirectory() as folder:
        peers, one = together(text, steps, folder), alone(text, steps, folder)
        larger = alone(text, steps, folder, PEERS * BATCHES)
    print(f"{steps} steps, nats per character: {peers:.4f} by {PEERS} loops")
    print(f"one loop with as many examples a step as each of them: {one:.4f}, ratio {peers / one:.4f}")
    print(f"one loop with as many as all of them: {larger:.4f}, ratio {peers / larger:.4f}")
