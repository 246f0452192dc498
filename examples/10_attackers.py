"""Sixteen honest peers learn to read digits while four lie: which rule holds against which attack, as a heatmap.

    python examples/10_attackers.py                            seconds: 8 rounds on one graph
    python examples/10_attackers.py --full attackers.svg       minutes: 40 rounds on two graphs, and a drawing

Each number is the mean accuracy of the honest peers' models.  The sum falls to sign-flip and ipm, and on two cliques to
dissensus; no rule is the best in every column, and those that go by coordinate cost accuracy where nobody lies.
"""

import sys

import fedgossip

LIARS = [4, 9, 14, 19]
ATTACKS = {
    "none": {},
    "sign-flip": {},
    "noise": {"scale": 1.0},
    "label-flip": {},
    "ipm": {"scale": 1.0},
    "alie": {"z": 1.5},
    "dissensus": {"scale": 1.5},
}
RULES = {
    "linear": {},
    "clipped": {"f": 2},
    "trimmed-mean": {"f": 2},
    "median": {},
    "geometric-median": {},
    "nna": {"f": 2},
}


def accuracy(graph: str, attack: str, rule: str, rounds: int) -> float:
    """The mean accuracy of honest peers after so many rounds."""
    adversary = {"peers": LIARS, "attack": attack, "options": ATTACKS[attack]}
    run = fedgossip.simulate(
        {
            "rounds": rounds,
            "data": {"partition": {"kind": "dirichlet", "alpha": 1.0}},
            "train": {"lr": 0.3, "local_steps": 3, "device": "cpu"},
            "topology": {"graph": graph, "n": 20},
            "algorithm": {"combine": rule, "combine_options": RULES[rule]},
            "adversary": {} if attack == "none" else adversary,
            "eval": {"every": rounds},
        },
        engine="stacked",
    )
    return float(run.summary["score"]["mean_peer"])


def table(graph: str, rounds: int) -> list[list[float]]:
    """Print the accuracies on one graph, a rule a line, and return them."""
    print(f"{graph}, {rounds} rounds".ljust(18), *(f"{attack:>10}" for attack in ATTACKS))
    found = []
    for rule in RULES:
        found.append([accuracy(graph, attack, rule, rounds) for attack in ATTACKS])
        print(rule.ljust(18), *(f"{100 * one:9.1f}%" for one in found[-1]))
    print()
    return found


def draw(tables: dict[str, list[list[float]]], path: str) -> None:
    """Draw a heatmap for each graph."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(tables), figsize=(7 * len(tables), 4), layout="constrained", squeeze=False)
    for axis, (graph, cells) in zip(axes[0], tables.items(), strict=True):
        axis.imshow(cells, vmin=0.1, vmax=1.0, cmap="cividis", aspect="auto")
        axis.set(title=f"{graph}: accuracy of the honest, %")
        axis.set_xticks(range(len(ATTACKS)), list(ATTACKS), rotation=30, ha="right")
        axis.set_yticks(range(len(RULES)), list(RULES))
        for y, row in enumerate(cells):
            for x, one in enumerate(row):
                axis.text(x, y, f"{100 * one:.0f}", ha="center", va="center", color="white" if one < 0.6 else "black")
    figure.savefig(path)


if __name__ == "__main__":
    full = "--full" in sys.argv
    graphs, rounds = (["regular:6", "two-cliques"], 40) if full else (["regular:6"], 8)
    tables = {graph: table(graph, rounds) for graph in graphs}
    if sys.argv[1:] and not sys.argv[-1].startswith("--"):
        draw(tables, sys.argv[-1])
