"""Every method of the registry has its machines, and is named where people look for methods."""

from __future__ import annotations

import re
from collections.abc import Set

import pytest

from fedgossip.algorithms.codecs.names import CODECS
from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.algorithms.gossip.names import METHODS, GraphFacts, make
from fedgossip.data.data import SOURCES
from fedgossip.experiment.meanings import keys
from fedgossip.plans.federated.federation import FEDBUFF
from fedgossip.plans.gossip.gossip_machines import MODES, message_content

ASKS = {"diloco": [{"fragments": 2}]}
"""Options by which a method's peers tell each other something else."""


def ways() -> set[tuple[str, str]]:
    """What the methods ask for: (what is told, mode)."""
    asked = [(name, one, options) for name, one in METHODS.items() for options in ({}, *ASKS.get(name, []))]
    made = [(make(name, one, GraphFacts(7), options), one) for name, one, options in asked]
    found = {(message_content(algorithm, private=False), mode) for algorithm, one in made for mode in one.modes}
    return found | {(message_content(algorithm, private=True), "sync") for algorithm, one in made if one.private}


def test_every_method_and_mode_has_its_machine_and_no_machine_is_left_over() -> None:
    assert ways() == MODES.keys()


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("algorithm.name", METHODS.keys()),
        ("coordinator.algorithm", {*ALGORITHMS, FEDBUFF}),
        ("coordinator.codec", CODECS.keys() - {"dgc"}),
        ("parallel.codec", CODECS.keys()),
        ("data.source", SOURCES.keys()),
    ],
)
def test_every_name_of_a_table_is_printed_at_its_key(key: str, names: Set[str]) -> None:
    (meant,) = keys()[key]
    assert names <= set(re.findall(r"`([\w-]+)[`:]", meant.meaning + meant.allowed))
