"""Ten graphs forecast before a run, by one training, and then run: sixteen peers learn to read digits.

A shadow run trains all peers at their exact mean, once, and follows beside it how far every graph would let them come
apart: two edges for the disagreement and for the scores, in each round.  Then the ten runs are made.  The table says
in which share of the rounds each kept to its forecast, and forecast_then_run.png draws the measurement over it.
"""

import fedgossip
from fedgossip.core.forecasts import kept

GRAPHS = (
    *("ring", "star", "two-cliques", "regular:3", "torus:4x4"),
    *("directed-exponential", "one-peer-exponential", "base:1", "el-oracle:4", "random-matching"),
)
EXPERIMENT = {
    "rounds": 40,
    "topology": {"graph": "ring", "n": 16},
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}},
    "model": {"source": "mlp:64-32-10"},
    "train": {"lr": 0.1, "batch_size": 16, "local_steps": 5, "device": "cpu"},
    "eval": {"every": 20},
}


def drawn(forecasts, runs, path):
    """Draw each measured distance over its forecast."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    for axes, forecast, run in zip(figure.subplots(2, 5, sharex=True, sharey=True).flat, forecasts, runs, strict=True):
        rounds = range(1, forecast.rounds + 1)
        axes.fill_between(rounds, forecast.lower, forecast.upper, color="#56b4e9", alpha=0.35, linewidth=0)
        axes.plot(rounds, [row.consensus_distance for row in run.network()[1:]], color="#0072b2", linewidth=1.4)
        share = f"kept in {100 * kept(forecast, run.network()):.0f} %"
        axes.set_title(f"{forecast.graph}: {'wide, ' if forecast.wide else ''}{share}", fontsize=8)
        axes.set_yscale("log")
    figure.supxlabel("round", fontsize=9)
    figure.supylabel("consensus distance: forecast (area), measured (line)", fontsize=9)
    figure.savefig(path, dpi=110)


forecasts = fedgossip.forecast_run(EXPERIMENT, "shadow", graphs=GRAPHS)
trained = forecasts[0].jobs
print(f"forecast of {len(forecasts)} graphs by {trained} local trainings; a run takes {16 * EXPERIMENT['rounds']}\n")
print("graph                 disagreement in round 40           mean peer                 kept")
print("                      forecast             measured      forecast         measured")
runs = []
for graph, forecast in zip(GRAPHS, forecasts, strict=True):
    run = fedgossip.simulate(EXPERIMENT, overrides=[f"topology.graph={graph}"], engine="stacked")
    runs.append(run)
    low, high = forecast.scores.mean_peer[-1]
    print(
        f"{graph:<22}{forecast.lower[-1]:.4f} to {forecast.upper[-1]:<8.4f}"
        f"{run.summary['consensus_distance']:9.4f}       {low:.3f} to {high:.3f}   "
        f"{run.accuracy['mean_peer']:.3f}    {100 * kept(forecast, run.network()):5.1f} %"
        f"{'   weakly tied: wide' if forecast.wide else ''}"
    )
drawn(forecasts, runs, "forecast_then_run.png")
