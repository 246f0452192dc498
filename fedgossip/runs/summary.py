"""The summary of a run, summary.json: status, costs, results, and versions."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedgossip.base import kernels
from fedgossip.base.scores import Score
from fedgossip.base.vectors import Vector, consensus_distance, digest, empty, mean
from fedgossip.core.gains import OWN_TESTED, OwnScores, gains_counted, gains_of, last_scores
from fedgossip.core.machine import NodeId
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.run_summary import (
    AddedFacts,
    BestFacts,
    BusiestFacts,
    ChosenFacts,
    DataFacts,
    InsideFacts,
    PersonalFacts,
    RaceFacts,
    RefusalFacts,
    RunSummary,
    ScoreFacts,
)
from fedgossip.core.task import Job, LocalTask
from fedgossip.experiment import Experiment
from fedgossip.learning.processes.ipc import LOST
from fedgossip.learning.settings import HOGWILD
from fedgossip.plans import compose
from fedgossip.plans.completeness import Lacking, describe_failed_learning, describe_wrong_numbers
from fedgossip.plans.compose import DataShares, Plan
from fedgossip.plans.plan import PARTIAL
from fedgossip.runs.run_directory import WHOLE
from fedgossip.runs.tracking import Keeper

# The participant and the link with the most bytes of vectors: a faster network would help there first.


Link = tuple[NodeId, NodeId]


def busiest(rows: Sequence[Row], links: Mapping[Link, int]) -> BusiestFacts:
    """Return the node with the most bytes (in its larger direction) and the link with the most; of equal ones the
    lowest id.

    `links`: bytes of vectors from the first to the second; empty without links, and the link is then None.
    """
    sent: dict[NodeId, int] = {}
    received: dict[NodeId, int] = {}
    for row in rows:
        if type(row) is PeerRow:
            peer = row.peer
            sent[peer] = sent.get(peer, 0) + row.payload_sent
            received[peer] = received.get(peer, 0) + row.payload_received
    most = max((*sent.values(), *received.values()), default=0)
    node = min((node for way in (sent, received) for node, payload in way.items() if payload == most), default=None)
    largest = max(links.values(), default=None)
    link = min((link for link, payload in links.items() if payload == largest), default=None)
    return {"node": node if most else None, "bytes": most, "link": link and list(link), "link_bytes": largest}


# Summary facts of a run without waiting between its processes (Hogwild!).


def race_facts(experiment: Experiment, rows: Sequence[Row]) -> RaceFacts:
    """Return the fact that the run's bits are not reproducible, and the share of lost updates if it was counted."""
    if experiment.train.parallel != HOGWILD:
        return {}
    logged = [row.logged.get(LOST) for row in rows if isinstance(row, PeerRow) and row.logged]
    counted = [share for share in logged if share is not None]
    lost: RaceFacts = {LOST: sum(counted) / len(counted)} if counted else {}
    return {"identical": False, **lost}


def personal_facts(plan: Plan, rows: Sequence[Row]) -> PersonalFacts:
    """Return the scores of personal models, if participants have them."""
    if not plan.experiment.personal:
        return {}
    scores: dict[NodeId, OwnScores] = {}
    counts: Mapping[str, float | None] = {}
    for row in rows:
        if isinstance(row, PeerRow):
            last_scores(scores, row)
            counts = row.logged if row.logged and OWN_TESTED in row.logged else counts
    score, n = plan.experiment.score, plan.learners
    found = gains_of(scores.values(), score, n) or gains_counted(counts, n)
    exchanged: PersonalFacts = {"exchanged": "logits" if plan.experiment.exchanges_logits else "models"}
    return {**exchanged, "personal": found} if found else exchanged


def inside_facts(
    plan: Plan, task: LocalTask, driver: str, sizes: Sequence[int] | None, rows: Sequence[Row]
) -> InsideFacts:
    """Return the step of a participant's processes if the simulator's times come from it, and the run's bytes."""
    e = plan.experiment
    step = compose.step_inside(e, task) if driver == "sim" else None
    if step is None:
        return {}
    examples, accumulate = compose.job_examples(e, sizes), getattr(getattr(e, "parallel", None), "accumulate", None)
    sent, each = Counter[NodeId](), sum(step["sent"].values()) / e.train.batch_size
    for row in rows:
        if isinstance(row, PeerRow) and row.peer < plan.learners and row.seconds_training:
            job = Job(row.peer, row.round, empty(1, "float32"), gradient=plan.gradients, accumulate=accumulate)
            sent[row.peer] += round(examples(job) * each)
    return {"inside": step, "inside_bytes": max(sent.values(), default=0)}


CAUSES_KEPT = 20
"""Maximum number of causes of refusals in a summary."""


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run from its driver: final vectors, and counts of events."""

    vectors: Sequence[Vector | None]
    counts: Mapping[str, int]
    status: str
    wall_seconds: float | None
    """None without a driver during the run."""
    payload: Mapping[tuple[NodeId, NodeId], int] = field(default_factory=dict)
    """Bytes of vectors on each link, if the driver has links."""


def status_of(plan: Plan, words: Sequence[str | None], rows: Sequence[Row], vectors: Sequence[Vector | None]) -> str:
    """Return the run's status from all participants' final statuses; partial if some of its work is missing.

    `vectors`: the participants' final models.
    """
    verdict = plan.verdict(words)
    return PARTIAL if verdict == "finished" and lacking_of(plan, rows, vectors).sentences else verdict


def lacking_of(plan: Plan, rows: Sequence[Row], vectors: Sequence[Vector | None]) -> Lacking:
    """Return the missing work of a run, including a usable model."""
    found = plan.lacking(rows)
    wrong = describe_wrong_numbers(rows, plan.outcome(vectors), plan.segments)
    return Lacking((*found.sentences, *wrong), found.in_vain) if wrong else found


def summarize(
    plan: Plan, driver: str, task: LocalTask, shares: DataShares, record: Network, keeper: Keeper, ended: RunOutcome
) -> RunSummary:
    """Return the summary of a run in the form of summary.json and `--json`."""
    networks = [row for row in keeper.rows if isinstance(row, NetworkRow)]
    last = networks[-1] if networks else NetworkRow(0, plan.n, 0.0, 0)
    outcome = plan.outcome(ended.vectors)
    there = [vector for vector in outcome if vector is not None]
    evaluated = _last_evaluated(networks, last, there, record)
    whole = len(there) == len(outcome) and ended.status in WHOLE
    experiment = plan.experiment
    lacking = _lacking(plan, keeper, ended, [*networks, evaluated])
    added: AddedFacts = {}  # filled by the callers
    return {
        "name": experiment.name or plan.name,
        "driver": driver,
        "status": ended.status,
        "lacking": lacking.sentences,
        "in_vain": lacking.in_vain,
        "seed": experiment.seed,
        "n": plan.learners,
        "roles": plan.roles.plain,
        "rounds": last.round,
        "digest": digest(there) if whole else None,
        "score": _scores(experiment.score, evaluated),
        **(chosen(record) if record.best else best_of(experiment.score, [*networks, evaluated])),
        "test_loss": evaluated.test_loss,
        "consensus_distance": consensus_distance(there) if there else last.consensus_distance,
        "bytes_sent": record.bytes_sent,
        "busiest": busiest(keeper.rows, ended.payload),
        "seconds": last.seconds,
        "wall_seconds": ended.wall_seconds,
        "parameters": task.length,
        "dtype": task.dtype.name,
        "schema": task.schema,
        "measured_contraction": record.measured_contraction(),
        "events": _events(keeper, ended),
        "refusals": refusals(keeper.rows),
        "data": _data(shares),
        "versions": compose.versions(),
        "cores": os.cpu_count(),
        "processor": kernels.processor(),
        "kernels": kernels.used(),
        **race_facts(experiment, keeper.rows),
        **personal_facts(plan, keeper.rows),
        **inside_facts(plan, task, driver, shares.sizes, keeper.rows),
        **plan.facts(keeper.rows),
        **keeper.compare_with_forecast(networks, experiment.score, whole=ended.status in (*WHOLE, PARTIAL)),
        **added,
    }


def _last_evaluated(
    networks: Sequence[NetworkRow], last: NetworkRow, there: Sequence[Vector], record: Network
) -> NetworkRow:
    """Return the row with the newest scores; if the run ended between two evaluations, with scores of its final
    models; if the mean was never measured, as by loops on several machines, with the peers' own.
    """
    by_peers = next((row for row in reversed(networks) if row.score_mean_peer is not None), last)
    measured = next((row for row in reversed(networks) if row.measured), by_peers)
    if measured is last or not there:
        return measured
    final = NetworkRow(last.round, len(there), last.seconds, last.bytes_sent)
    record.fill(final, there)
    return final if final.measured else measured  # stopped loops leave no process to measure


def _events(keeper: Keeper, ended: RunOutcome) -> dict[str, int]:
    counts = keeper.events  # rows cover all incarnations; counts also include what has no row
    events = {name: max(counts.get(name, 0), ended.counts.get(name, 0)) for name in {**counts, **ended.counts}}
    if keeper.lost:
        events["rows_lost"] = ended.counts.get("rows_lost", 0) + keeper.lost
    return dict(sorted(events.items()))


def _lacking(plan: Plan, keeper: Keeper, ended: RunOutcome, networks: Sequence[NetworkRow]) -> Lacking:
    lacking = Lacking(keeper.missed if ended.status == "finished" else ())
    if ended.status == PARTIAL:
        lacking = lacking_of(plan, keeper.rows, ended.vectors)
    if plan.experiment.personal:  # the mean of personal models belongs to no participant
        return lacking
    return Lacking((*describe_failed_learning(networks, plan.experiment.score), *lacking.sentences), lacking.in_vain)


def _scores(score: Score, evaluated: NetworkRow) -> ScoreFacts:
    return {
        "name": score.name,
        "better": score.better,
        "unit": score.unit,
        "averaged": evaluated.score_averaged,
        "mean_peer": evaluated.score_mean_peer,
        "worst_peer": evaluated.score_worst_peer,
        "round": evaluated.round,
    }


def _data(shares: DataShares) -> DataFacts:
    found: DataFacts = {
        "source": shares.source, "test": shares.test, "classes": shares.classes, "shares": shares.counts,
        "sizes": shares.sizes,
    }  # fmt: skip
    if shares.notes:
        found["notes"] = list(shares.notes)
    return found


def chosen(record: Network) -> ChosenFacts:
    """Return the round of the kept model, or of the last improvement, and the data it was scored on; empty before an
    evaluation.
    """
    best = record.best
    if best is None or not best.round:
        return {}
    found: BestFacts = {"round": best.round, "score": best.value}
    if record.at_clients:
        found["at"] = "clients"
    return {"best": found}


def best_of(score: Score, rows: Sequence[NetworkRow]) -> ChosenFacts:
    """Return the first round with the best score of the averaged model; empty without scores."""
    known = [(row.round, row.score_averaged) for row in rows if row.score_averaged is not None]
    known = [(round, value) for round, value in known if math.isfinite(value)]
    if not known:
        return {}
    most = score.best(value for _, value in known)
    return {"best": {"round": next(round for round, value in known if value == most), "score": most}}


def refusals(rows: Sequence[Row]) -> list[RefusalFacts]:
    """Return the causes of each participant's refusals: each cause once, with its count, the most frequent first."""
    earlier: dict[tuple[NodeId, str, str], int] = {}  # refusals of earlier incarnations
    newest: dict[tuple[NodeId, str, str], int] = {}
    for row in rows:
        if isinstance(row, EventRow) and row.name == "refused":
            facts = row.value if isinstance(row.value, Mapping) else {"text": row.value}
            cause = row.peer, str(facts.get("text") or facts.get("reason")), str(facts.get("advice", ""))
            count = facts.get("count", 1)  # refusals of this incarnation so far
            before, newest[cause] = newest.get(cause, 0), count if isinstance(count, int) else 1
            earlier[cause] = earlier.get(cause, 0) + (before if newest[cause] <= before else 0)
    total = {cause: count + earlier[cause] for cause, count in newest.items()}
    found = sorted(total, key=lambda cause: (-total[cause], cause))
    return [
        {"peer": peer, "times": total[peer, text, advice], "text": text, "advice": advice}
        for peer, text, advice in found[:CAUSES_KEPT]
    ]


def averaged(vectors: Sequence[Vector | None]) -> Vector | None:
    """Return the mean of the existing vectors."""
    there = [vector for vector in vectors if vector is not None]
    return mean(there) if there else None
