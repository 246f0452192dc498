"""What a graph promises before a run, and what the run then does: two predictions from the spectrum, two measurements.

1. Pure averaging.  With symmetric weights W the disagreement shrinks per round at least by the factor
   slem = max(|lambda_2|, |lambda_n|), and in the long run by exactly that (Xiao and Boyd 2004).

2. Learning.  Peer i minimises (x - b_i)^2 / 2 by gradient steps of size eta, and mixes after each.  Where b is a
   pattern on the graph with eigenvalue lambda and mean square 1, the disagreement settles at

       mean_i (x_i - mean)^2  =  (eta lambda / (1 - (1 - eta) lambda))^2

   Neighbours alike (smooth, lambda = lambda_2) or neighbours opposed (alternating, lambda = lambda_n): the same graph,
   the same gap, the same numbers b, placed otherwise.  So no forecast from the gap alone can be right for both.
"""

import math

import fedgossip

GRAPHS = ("ring", "path", "star", "two-cliques", "regular:3", "torus:4x4", "hypercube")
ETA = 0.1


def contraction(graph: str, slem: float) -> float:
    """Return the factor per round over the last quarter of a run that shrinks the disagreement a million times."""
    rounds = math.ceil(math.log(1e-6) / math.log(slem))
    run = fedgossip.simulate(
        {
            "rounds": rounds,
            "topology": {"graph": graph, "n": 16},
            "task": {"kind": "averaging", "dim": 16, "dtype": "float64"},
        },
        engine="stacked",
    )
    distances = [row.consensus_distance for row in run.network()]
    quarter = max(1, rounds // 4)
    return (distances[-1] / distances[-1 - quarter]) ** (1 / quarter)


print("16 peers          gap      slem, forecast   contraction, measured")
for graph in GRAPHS:
    forecast = fedgossip.forecast(fedgossip.build(fedgossip.resolve(graph, 16, seed=1)))
    measured = contraction(graph, forecast.slem)
    print(f"{graph:<14}{forecast.spectral_gap:9.6f}{forecast.slem:18.6f}{measured:18.6f}")

print("\nThe same sixteen targets on one ring, eta = 0.1, disagreement once it is steady:\n")
print("placement         lambda       formula      measured")
spectrum = fedgossip.spectrum(fedgossip.build(fedgossip.resolve("ring", 16)))
errors = {}
for placement, lambda_ in (("smooth", spectrum.lambda2), ("alternating", spectrum.lambda_n)):
    run = fedgossip.simulate(
        {
            "rounds": 400,
            "topology": {"graph": "ring", "n": 16},
            "task": {"kind": "quadratic", "placement": placement, "eta": ETA, "dtype": "float64"},
        },
        engine="stacked",
    )
    formula = (ETA * lambda_ / (1 - (1 - ETA) * lambda_)) ** 2
    errors[placement] = run.summary["consensus_distance"] ** 2
    print(f"{placement:<14}{lambda_:10.6f}{formula:14.8f}{errors[placement]:14.8f}")
print(f"\n{errors['smooth'] / errors['alternating']:.0f} times apart, by placement alone.")
