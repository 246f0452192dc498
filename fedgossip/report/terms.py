"""What a comparison calls things: networks of peers, federated runs, and both together have each their own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.report.reading import Run


@dataclass(frozen=True)
class Terms:
    """The words."""

    members: str
    method: str
    model: str
    in_table: str
    """The model, as the head of a column."""
    of_model: str
    """The model, in a sentence."""
    senders: str
    learners: str


OF_PEERS = Terms(
    members="Peers",
    method="Graph",
    model="averaged model",
    in_table="Averaged model",
    of_model="the average of all models in each round: what the network knows together",
    senders="all peers together",
    learners="the peers",
)
OF_CLIENTS = Terms(
    members="Clients",
    method="Algorithm",
    model="global model",
    in_table="Global model",
    of_model="the coordinator’s model after each round",
    senders="all together",
    learners="those who took part",
)
OF_BOTH = Terms(
    members="Members",
    method="Graph or algorithm",
    model="averaged or global model",
    in_table="Model",
    of_model="the average of all peers’ models, or of the coordinator’s model, after each round",
    senders="all together",
    learners="those who trained",
)


def terms_of(runs: Sequence[Run]) -> Terms:
    """Return the words for a page with these runs."""
    kinds = {run.summary.federated for run in runs}
    return OF_BOTH if len(kinds) > 1 else OF_CLIENTS if True in kinds else OF_PEERS


def method_of(run: Run) -> str:
    """Return what a run did: its graph; or its algorithm, and whether a coordinator saw updates."""
    summary = run.summary
    if not summary.federated:
        return summary.graph
    secrecy = {True: ", secure sum", False: ", in the clear", None: ""}[summary.secure]
    return summary.algorithm + secrecy
