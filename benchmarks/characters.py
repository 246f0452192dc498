"""What four loops learn together, each from a quarter of the plays, beside one loop that has them all.

A character transformer of two layers, `examples/loops/characters.py`, as four peers on a ring; and the bare loop over
the whole text, with as many steps and four times as many examples in each.  Printed: the loss of both on the last
tenth of the text, in nats per character, and the ratio.

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


def compared(text: Path, steps: int) -> tuple[float, float]:
    """Return the loss of the four loops' model, and of the one loop."""
    given = [str(text.resolve()), str(steps)]
    with TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "fedgossip", "launch", "-n", str(PEERS), "--graph", "ring", "--no-report"]
        together = loss_of([*launch, "--out", "run", str(LOOPS / "characters.py"), *given, str(BATCHES)], folder)
        alone = [sys.executable, str(LOOPS / "characters_bare.py"), *given, str(PEERS * BATCHES)]
        return together, loss_of(alone, folder)


if __name__ == "__main__":
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    together, alone = compared(Path(sys.argv[1]), steps)
    print(f"{steps} steps, nats per character: {together:.4f} by {PEERS} loops, {alone:.4f} by one")
    print(f"ratio {together / alone:.4f}")
