"""Graphs, their mixing weights and the convergence that their spectra imply.  Needs neither torch nor the network.

It imports `base`, numpy, scipy and networkx.

    mixing = build(resolve("torus:4x4"), "metropolis")
    mixing.row(0)                       # {0: 0.2, 1: 0.2, 3: 0.2, 4: 0.2, 12: 0.2}
    forecast(mixing).spectral_gap       # 0.4

    schedule = resolve_schedule("base:1", 25)
    forecast_of(schedule).exact_after   # 9

A schedule gives a mixing for each round.  A repeating schedule is a cycle with a period; a drawn one is a function of
(seed, round, n).  `for_rounds` returns a run's schedule, whose partners are those used within the run: links are opened
for these only.
"""

from __future__ import annotations

from fedgossip.topology.graphs.files import load, load_weighted, ready, ready_names
from fedgossip.topology.graphs.graph import Topology, require_connected
from fedgossip.topology.graphs.names import (
    family_names,
    is_drawn,
    resolve,
    resolve_schedule,
    schedule_names,
    weighted_names,
)
from fedgossip.topology.schedules.schedules import Cycle, Endless, Random, Schedule, for_rounds, union
from fedgossip.topology.spectra.convergence import (
    Forecast,
    disagreement_band,
    effective_neighbours,
    forecast,
    rounds_to,
)
from fedgossip.topology.spectra.sequences import forecast_of, product_norm
from fedgossip.topology.spectra.spectrum import Spectrum, spectrum
from fedgossip.topology.weights.mixing_matrix import Mixing
from fedgossip.topology.weights.weights import build, push_weights, rule_names

__all__ = [
    "Cycle",
    "Endless",
    "Forecast",
    "Mixing",
    "Random",
    "Schedule",
    "Spectrum",
    "Topology",
    "build",
    "disagreement_band",
    "effective_neighbours",
    "family_names",
    "for_rounds",
    "forecast",
    "forecast_of",
    "is_drawn",
    "load",
    "load_weighted",
    "product_norm",
    "push_weights",
    "ready",
    "ready_names",
    "require_connected",
    "resolve",
    "resolve_schedule",
    "rounds_to",
    "rule_names",
    "schedule_names",
    "spectrum",
    "union",
    "weighted_names",
]
