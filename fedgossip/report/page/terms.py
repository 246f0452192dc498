"""What a comparison calls things: networks of peers, federated runs, and both together have each their own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgossip.report.page.reading import RecordedRun


@dataclass(frozen=True)
class RoleWords:
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


OF_PEERS = RoleWords(
    members="Peers",
    method="Graph",
    model="averaged model",
    in_table="Averaged model",
    of_model="the average of all models in each round: what the network knows together",
    senders="all peers together",
    learners="the peers",
)
OF_CLIENTS = RoleWords(
    members="Clients",
    method="Algorithm",
    model="global model",
    in_table="Global model",
    of_model="the coordinator’s model after each round",
    senders="all together",
    learners="those who took part",
)
OF_BOTH = RoleWords(
    members="Members",
    method="Graph or algorithm",
    model="averaged or global model",
    in_table="Model",
    of_model="the average of all peers’ models, or of the coordinator’s model, after each round",
    senders="all together",
    learners="those who trained",
)


def terms_of(runs: Sequence[RecordedRun]) -> RoleWords:
    """Return the words for a page with these runs."""
    kinds = {run.summary.led for run in runs}
    return OF_BOTH if len(kinds) > 1 else OF_CLIENTS if True in kinds else OF_PEERS


def method_of(run: RecordedRun) -> str:
    """Return what a run did: its graph; or its algorithm, and whether a coordinator saw updates."""
    summary = run.summary
    if not summary.led:
        return summary.graph or summary.algorithm
    secrecy = {True: ", secure sum", False: ", in the clear", None: ""}[summary.secure]
    return summary.algorithm + secrecy
