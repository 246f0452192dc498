"""Four workers that learn plays over slow links: every step shared, or long local work and an outer step.

A transformer of characters, gpt:2-64-4, AdamW with a cosine schedule, the same examples for all: what is lost in the
loss on a twentieth of the plays, at equal numbers of characters, and how many times fewer bytes are sent; then what
share of the time processors work over simulated links of 50 Mbit/s and 30 ms, where a step takes 10 ms.

    python benchmarks/outer.py [TEXT [STEPS]]       about 20 minutes of processor time for 2000 steps

    python benchmarks/outer.py --seeds 4 TEXT       the way that was chosen, beside every step, on other seeds

    python benchmarks/outer.py --kills [TEXT [STEPS [SEED]]]   workers killed every 30 s, on digits, or on that text

    python benchmarks/outer.py --paired-kills 8   what they cost on digits, over so many seeds

    python benchmarks/outer.py --together 3 TEXT [STEPS]   bytes, loss, computing and kills of one setting, over so many
                                                           seeds that it was not chosen by; 10 000 steps, 17 min each

Without TEXT 50 steps on its own source, as a play of four.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import t

import fedgossip
from fedgossip.core.records import NetworkRow

WORKERS, BATCH, STEP_SECONDS = 4, 16, 0.01
LINKS = {"latency": 0.03, "bandwidth": 50e6 / 8, "downlink": 50e6 / 8}
ELEMENTS = 107_136  # of the transformer
MILD = {"lr": 1.0, "beta": 0.5}

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "every step": (1, {}),
    "4 fragments, H = 28, qsgd:7": (7, {"outer": {**MILD, "fragments": 4}, "codec": "qsgd:7"}),
    "H = 27, qsgd:7": (27, {"outer": MILD, "codec": "qsgd:7"}),
    "H = 50, 0.7 and 0.9": (50, {"outer": {"lr": 0.7, "beta": 0.9}}),
    "H = 50": (50, {"outer": MILD}),
    "H = 50, top-k:0.02": (50, {"outer": {"lr": 1.0, "beta": 0.0}, "codec": "top-k:0.02"}),
    "H = 50, top-k:0.02, 0.7 and 0.9": (50, {"outer": {"lr": 0.7, "beta": 0.9}, "codec": "top-k:0.02"}),
    "H = 50, int8:256": (50, {"outer": MILD, "codec": "int8:256"}),
    "H = 27": (27, {"outer": MILD}),
    "H = 27, qsgd:7, 0.7 and 0.9": (27, {"outer": {"lr": 0.7, "beta": 0.9}, "codec": "qsgd:7"}),
    "H = 27, top-k:0.08": (27, {"outer": MILD, "codec": "top-k:0.08"}),
    "H = 20, qsgd:3": (20, {"outer": MILD, "codec": "qsgd:3"}),
    "H = 10": (10, {"outer": MILD}),
    "H = 10, 1.0 and 0": (10, {"outer": {"lr": 1.0, "beta": 0.0}}),
    "H = 7, sign": (7, {"outer": {"lr": 1.0, "beta": 0.0}, "codec": "sign"}),
    "H = 8, powersgd:4": (8, {"outer": {"lr": 1.0, "beta": 0.0}, "codec": "powersgd:4"}),
    "H = 27, qsgd:7, 1.0 and 0.6": (27, {"outer": {"lr": 1.0, "beta": 0.6}, "codec": "qsgd:7"}),
    "H = 10, sign": (10, {"outer": {"lr": 1.0, "beta": 0.0}, "codec": "sign"}),
}
SEEDED = "4 fragments, H = 28, qsgd:7"
TOGETHER: tuple[int, dict[str, Any]] = (
    8,
    {"outer": {**MILD, "fragments": 4, "delay": 1}, "codec": "qsgd:7", "method": "all-to-all"},
)
"""What few bytes, little loss, no waiting and kills are measured by at once."""
TOGETHER_STEPS, WARM_UP = 10_000, 0.03
"""The steps of that, and the share of them in which the rate rises, for every step and for it alike."""
CRASH = {"kind": "crash", "every": 30.0, "after": 3.0}
SHORT = 6
"""The first so many are in the short form, on the benchmark's own source."""
"""(local steps, more of [parallel])"""


def experiment(
    text: str, steps: int, local: int, more: dict[str, Any], seed: int = 1, warm_up: float = 0.0
) -> dict[str, Any]:
    """Return a run of as many rounds as `steps` steps of each worker are; in a share of them the rate rises."""
    rounds = steps // local
    rises = int(warm_up * rounds)
    schedule = f"warmup:{rises},cosine" if rises else "cosine"
    train = {"optimizer": "adamw", "lr": 4e-3, "schedule": schedule, "batch_size": BATCH, "local_steps": local}
    return {
        "rounds": rounds,
        "seed": seed,
        "data": {"source": f"text:{text}", "test": 0.05},
        "model": {"source": "gpt:2-64-4"},
        "train": {"device": "cpu", **train},
        "parallel": {"workers": WORKERS, "method": "ring", **more},
        "eval": {"every": rounds},
    }


def learned(
    text: str, steps: int, local: int, more: dict[str, Any], seed: int = 1, warm_up: float = 0.0
) -> tuple[float, float]:
    """Return the last loss, in nats per character, and the bytes that a step of all workers costs."""
    content = experiment(text, steps, local, more, seed, warm_up)
    run = fedgossip.simulate(content, engine="stacked")
    losses = [row.test_loss for row in run.rows if isinstance(row, NetworkRow) and row.test_loss is not None]
    return losses[-1], run.summary["bytes_sent"] / (content["rounds"] * local)


def share_computing(local: int, more: dict[str, Any]) -> float:
    """Return the share of simulated time in which processors train, over ten rounds of a vector of that length."""
    content = {
        "rounds": 10,
        "task": {"kind": "quadratic", "dim": ELEMENTS, "placement": "random"},
        "parallel": {"workers": WORKERS, "method": "ring", **more},
        "simulation": {**LINKS, "training": local * STEP_SECONDS},
    }
    return float(10 * local * STEP_SECONDS / fedgossip.simulate(content, engine="sim").summary["seconds"])


def late(more: dict[str, Any]) -> dict[str, Any]:
    return {**more, "outer": {**more["outer"], "delay": 1}} if "outer" in more else more


def own_play(folder: str) -> str:
    """Return the place of this source as a play in which each of four says all of it."""
    place, words = Path(folder) / "play.txt", "\n".join(filter(None, Path(__file__).read_text().splitlines()))
    place.write_text("\n\n".join(f"{name}:\n{words}" for name in ("Ann", "Bea", "Cid", "Dot")))
    return str(place)


def seeds(text: str, steps: int, count: int) -> None:
    """Print, of seeds that no way was chosen by, the loss of the way of fewest bytes by every step's."""
    ratios = []
    for seed in range(2, 2 + count):
        losses = [learned(text, steps, *WAYS[way], seed)[0] for way in ("every step", SEEDED)]
        ratios.append(losses[1] / losses[0])
        print(f"seed {seed}: {losses[0]:.4f} and {losses[1]:.4f}, x {ratios[-1]:.4f}", flush=True)
    if count > 1:
        print(f"{SEEDED}: {told_of(ratios)}")


def told_of(ratios: list[float]) -> str:
    """Return the mean of two ratios or more, with Student's 95 % interval."""
    half, mean = t.ppf(0.975, len(ratios) - 1) * stdev(ratios) / len(ratios) ** 0.5, fmean(ratios)
    return f"x {mean:.4f} [{mean - half:.4f}, {mean + half:.4f}] of {len(ratios)} seeds"


def together(text: str, steps: int, count: int) -> None:
    """Print, of one setting and seeds that it was not chosen by, how many times fewer bytes it sends, its loss by every
    step's, the share of the time that workers compute over slow links, and its loss by its own where they are killed.

    Steps take 10 ms, and 100 ms where workers are killed, so that there are 33 kills in 10 000.  Seeds begin with 3.
    """
    local, more = TOGETHER
    ratios, costs, fewer, shares = [], [], [], []
    for seed in range(3, 3 + count):
        every, sent = learned(text, steps, *WAYS["every step"], seed, WARM_UP)
        content = experiment(text, steps, local, more, seed, WARM_UP)
        trained = content["rounds"] * local * STEP_SECONDS
        calm = {**content, "simulation": {**LINKS, "training": local * STEP_SECONDS}}
        torn = {**content, "simulation": {**LINKS, "training": 0.1 * local}, "faults": [CRASH]}
        ours = fedgossip.simulate(calm, engine="sim").summary
        ratios.append(ours["test_loss"] / every)
        fewer.append(sent * content["rounds"] * local / ours["bytes_sent"])
        shares.append(trained / ours["seconds"])
        told = f"every step {every:.4f}, ours {ours['test_loss']:.4f} x {ratios[-1]:.4f}"
        print(f"seed {seed}: {told}; {fewer[-1]:.1f} times fewer bytes, {shares[-1]:.3f} computing", flush=True)
        killed = fedgossip.simulate(torn, engine="sim").summary
        costs.append(killed["test_loss"] / ours["test_loss"])
        ends = f"{killed['seconds']:.1f} s, {killed['status']}"
        print(f"seed {seed}, killed: {killed['test_loss']:.4f} x {costs[-1]:.4f}, {ends}", flush=True)
    print(f"times fewer bytes: {min(fewer):.1f}; share computing: {min(shares):.3f}")
    if count > 1:
        print(f"loss by every step's: {told_of(ratios)}; with kills by without: {told_of(costs)}")


def kills() -> None:
    """Print what workers killed every 30 s of virtual time cost: losses on digits, and seconds, without and with."""
    print("one of four killed every 30 s, back 3 s later: test loss, seconds; undisturbed and with kills")
    for codec in ("", "top-k:0.1"):
        for delay in (0, 1):
            content = {
                "rounds": 80,
                "model": {"source": "mlp:64-32-10"},
                "train": {"device": "cpu", "lr": 0.05, "local_steps": 25},
                "parallel": {"workers": WORKERS, "method": "ring", "codec": codec, "outer": {**MILD, "delay": delay}},
                "simulation": {"training": 2.5},
                "eval": {"every": 80},
            }
            runs = [fedgossip.simulate({**content, "faults": faults}).summary for faults in ([], [CRASH])]
            told = "  ".join(f"{one['test_loss']:.4f} {one['seconds']:.1f}" for one in runs)
            print(f"{codec or 'whole':10} delay = {delay}  {told}", flush=True)


def paired_kills(count: int) -> None:
    """Print how much more loss there is with kills than without, on digits by AdamW, with Student's interval."""
    local, more = WAYS[SEEDED]
    train = {"device": "cpu", "optimizer": "adamw", "lr": 4e-3, "schedule": "cosine", "batch_size": BATCH}
    for name, parallel in {SEEDED: more, "without a codec": {"outer": more["outer"]}, "H = 7": {"outer": MILD}}.items():
        costs = []
        for seed in range(1, 1 + count):
            content = {
                "rounds": 280,
                "seed": seed,
                "model": {"source": "mlp:64-32-10"},
                "train": {**train, "local_steps": local},
                "parallel": {"workers": WORKERS, "method": "ring", **parallel},
                "simulation": {"training": 0.1 * local},
                "eval": {"every": 280},
            }
            runs = [fedgossip.simulate({**content, "faults": faults}, engine="sim").summary for faults in ([], [CRASH])]
            costs.append(runs[1]["test_loss"] / runs[0]["test_loss"])
        print(f"{name:28} {told_of(costs)}, one seed varies by {stdev(costs):.3f}", flush=True)


def kills_on(text: str, steps: int, seed: int = 1) -> None:
    """Print the same of the way that was chosen, on a text, with steps of 0.1 s; 6 kills in 2000 steps."""
    local, more = WAYS[SEEDED]
    content = experiment(text, steps, local, more, seed)
    content["simulation"] = {"training": 0.1 * local}
    for faults in ([], [CRASH]):
        run = fedgossip.simulate({**content, "faults": faults}, engine="sim").summary
        name = "killed every 30 s" if faults else "undisturbed"
        print(f"{name:18} {run['test_loss']:.4f} {run['seconds']:.1f} s, {run['status']}", flush=True)


def table(text: str, steps: int, ways: dict[str, tuple[int, dict[str, Any]]]) -> None:
    """Print a line for each way."""
    least = None
    print(f"{steps} steps: nats per character, to every step's; times fewer bytes; share computing, with delay = 1")
    for name, (local, more) in ways.items():
        loss, sent = learned(text, steps, local, more)
        least = least or (loss, sent)
        shares = [share_computing(local, one) for one in (more, late(more))]
        times = f"{loss:.4f} {loss / least[0]:.3f}  {least[1] / sent:6.1f}"
        print(f"{name:32} {times}  {shares[0]:.2f} {shares[1]:.2f}", flush=True)


if __name__ == "__main__":
    if "--together" in sys.argv[1:]:
        place = sys.argv.index("--together")
        together(sys.argv[place + 2], int((*sys.argv[place:], TOGETHER_STEPS)[3]), int(sys.argv[place + 1]))
        sys.exit()
    if "--paired-kills" in sys.argv[1:]:
        paired_kills(int(sys.argv[-1]))
        sys.exit()
    if "--kills" in sys.argv[1:]:
        of = sys.argv[sys.argv.index("--kills") + 1 :]
        kills_on(of[0], *map(int, (*of, *(2000, 1)[len(of) - 1 :])[1:3])) if of else kills()
        sys.exit()
    if "--seeds" in sys.argv[1:]:
        place = sys.argv.index("--seeds")
        seeds(sys.argv[place + 2], int((*sys.argv[place:], 2000)[3]), int(sys.argv[place + 1]))
        sys.exit()
    with TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            table(sys.argv[1], int((*sys.argv, 2000)[2]), WAYS)
        else:
            table(own_play(folder), 50, dict(list(WAYS.items())[:SHORT]))
