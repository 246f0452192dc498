"""The format of what a run leaves: every file and folder by name, where it lies, and what it is.

The one declaration: all rooms write `folder / run_format.SUMMARY`, and no other module has such a name as a literal.
`fedgossip explain NAME` and docs/reference/reference.md print the text below a name.
"""

from __future__ import annotations

from typing import Annotated

InRun = Annotated[str, "In the folder of a run"]
InPeer = Annotated[str, "In the folder of one participant: peers/03, or --out of a command that runs one"]
InModel = Annotated[str, "In the folder of a model: model, model-best"]
InLoop = Annotated[str, "In the folders of loops that take part: launch, `loop.join`"]
InCluster = Annotated[str, "In the folder cluster of a run that was placed on one"]
InRelease = Annotated[str, "In a release, a signed zip"]
InHosting = Annotated[str, "In the folder of a host or a member by an invite"]
BesideKey = Annotated[str, "Behind the name of a key, as in peer.key.spent; or in the folder of the participant"]
InSweep = Annotated[str, "In the folder of a sweep, or of a comparison"]

# A run

EXPERIMENT: InRun = "experiment.toml"
"""The experiment with every default written out; also in the folder of a participant."""
ROLES: InRun = "roles.json"
"""Who takes part: ids, names of roles, who learns; and the name of the run.  The summary has the same as `roles`."""
PLAN: InRun = "plan.json"
"""Of a federated run: the statement that its sites were asked to approve."""
AGREED: InRun = "agreed.json"
"""The columns and statistics that all sites agreed on: the same bytes at each of them."""
APPROVAL: InRun = "approval.jsonl"
"""The signed approval of a site; in its own folder, and collected in that of the run."""
APPROVAL_RUN: InRun = "approval.run"
"""The name by which an approval counts the rounds of this run once, also where it goes on; in a site's own folder."""
ENDPOINTS: InRun = "endpoints.toml"
"""Address and public keys of every participant."""
BEGAN: InRun = "began"
"""When the first training began, in nanoseconds of this machine's clock: time 0 of a fault script."""
ROWS: InRun = "metrics.jsonl"
"""The record, written while the run goes on; of a participant its own.  A JSON object per line, by `kind`: peer (one
peer, one round: loss, bytes, seconds), network (all peers, one round: scores, consensus distance), event (a peer gone,
a deadline missed, a frame refused).  On stacked arrays more than 256 peers have rows in evaluated rounds alone, with
the bytes since the last.  A field at its default (nothing measured, 0) is left out."""
TIMELINE: InRun = "timeline.json"
"""Of a simulation: what its participants did when, and their messages, in its first part; for `fedgossip timeline`."""
SUMMARY: InRun = "summary.json"
"""How the run ended, its scores, costs, versions and the events of all lives; written last, in one piece."""
FORECAST: InRun = "forecast.json"
"""What was forecast, written before the first row; where a forecast was asked for."""
REALISED: InRun = "forecast-realised.json"
"""The same forecast for the rounds as they were mixed, where messages or peers were lost."""
MODEL: InRun = "model"
"""The folder of the trained model, with all that it takes to use it: the mean over the peers, or the coordinator's; of
a participant its own."""
MODEL_BEST: InRun = "model-best"
"""The folder of the model of the best round, with eval.keep = "best"."""
BEST: InRun = "best.safetensors"
"""The model of the best round, while the run goes on."""
TABLE: InRun = "table.safetensors"
"""Of a model that is a table: the rows that were trained."""
REPORT: InRun = "report.html"
"""The page of the run, readable offline; it ends with the line that repeats the run."""
PEERS: InRun = "peers"
"""A folder for each participant that was a process of its own: peers/00, peers/01, ..."""
ENGINE: InRun = "run.json"
"""Which engine simulated the run: sim or stacked; a resumed run takes the same."""
CHECKPOINT: InRun = "checkpoint.safetensors"
"""The newest checkpoint, of a simulation or of a participant: --resume goes on from it.  A finished run needs none."""
CHECKPOINT_BEFORE: InRun = "checkpoint.previous.safetensors"
"""The checkpoint before it, read where the newest is damaged."""
FAILURE: InRun = "failure.json"
"""Of a cell of a sweep: why it has no summary, and gets none unless it is run again."""
PLACED: InRun = "placed.json"
"""What was asked of a cluster for a run whose participants were placed on one."""
CLUSTER: InRun = "cluster"
"""The folder by which the tasks of a cluster's job find each other."""
ROUNDS_CSV: InRun = "rounds.csv"
"""A line per round, a column per number, with track.to = ["csv"]."""
TENSORBOARD: InRun = "tensorboard"
"""The event files of TensorBoard, with track.to = ["tensorboard"]."""
MLRUNS: InRun = "mlruns"
"""The runs of MLflow, beside the folder of the run, with track.to = ["mlflow"]."""
FIT: InRun = "fit.json"
"""Coefficients, errors and tests of a statistical model that sites have fitted by sums."""
CURVES: InRun = "survival.json"
"""Survival curves that sites have estimated by sums."""
FIT_OF_TREES: InRun = "trees-fit.json"
"""How boosted trees were grown by sums, beside their model."""
TABLES: InRun = "tables.json"
"""Tables of a statistic that sites have computed by sums: of groups, of tests, of models without predictions."""
INCOMPLETE: InRun = "INCOMPLETE"
"""There until all of the above is; still there when a run was interrupted, failed or killed."""

# A participant

ENDPOINT: InPeer = "endpoint.toml"
"""Its own address and public keys, and its id."""
ENDED: InPeer = "ended.json"
"""How it ended: status, rounds, counts, and the error of one that failed; written last."""
COUNTS: InPeer = "counts.json"
"""The events and the bytes to each partner of all its lives; of one that was killed, up to its last checkpoint."""
VECTOR: InPeer = "vector.safetensors"
"""Its final vector."""
SNAPSHOTS: InPeer = "snapshots"
"""Its vectors of evaluated rounds, for the process that collects the run, which deletes them."""
LOG: InPeer = "log.txt"
"""What its process printed."""
INCARNATION: InPeer = "incarnation"
"""The number of its life, from 0; on disk before it greets anybody."""
PUBLIC_KEY: InPeer = "key.txt"
"""Its public key; the secret one lies outside the run, in a folder of its owner."""
KEY_BEFORE: InPeer = "key.toml"
"""Its pair of keys, as earlier releases stored it."""
AUDIT_LOG: InPeer = "audit.jsonl"
"""Its signed log of what left it, in a federated run."""
TRANSCRIPTS: InPeer = "rounds"
"""Of a coordinator: the folder of its transcripts of secure sums."""
TRANSCRIPT: InPeer = ".transcript"
"""The ending of a transcript, behind the number of its session: rounds/000003.transcript."""
TRACE: InPeer = "trace.bin"
"""All events and effects of its first life, for `fedgossip replay`; with --trace.  Later lives: trace.1.bin, ..."""
TRACES: InPeer = "trace*.bin"
"""The traces of all its lives."""
JOURNAL: InPeer = "journal.bin"
"""Of a run by folder: every event of the participant, from which `fedgossip step` goes on.  It holds the secrets of
masks, and is removed when the run has ended and all was fetched."""
FOLDER_STATE: InPeer = "folder.json"
"""Of a run by folder: the participant's key of this run, and those of its partners."""
STEP: InPeer = "step.json"
"""Of a run by folder: the command that `fedgossip step` repeats, the folder that it was given in, and the mark of who
gave it."""
REVOKED: InPeer = "revoked.toml"
"""The members that the organiser has revoked, as far as this one has received it."""

# A loop

LAUNCHED: InLoop = "launched.json"
"""In the folder of the run: the script that was launched or simulated, and its arguments."""
ASKED: InLoop = "asked"
"""The folder of vectors that loops are asked to measure, and their answers."""
OVER: InLoop = "over"
"""In it: nothing more is asked."""
SEAT: InLoop = "seat.json"
"""What the participant beside a loop is started with."""
HELD: InLoop = "process"
"""Locked by the process that has this seat."""
LOOP: InLoop = "loop.json"
"""The layout of the model that a loop exchanges."""
LOOP_FIRST: InLoop = "first.safetensors"
"""The first vector of a loop."""

# A model

MODEL_FACTS: InModel = "model.json"
"""What it is, its columns and classes, its score, and the versions that made it."""
WEIGHTS: InModel = "weights.safetensors"
"""Its tensors."""
TREES: InModel = "trees.json"
"""The model itself where it is boosted trees."""
MODEL_CODE: InModel = "code"
"""The modules of the user's own that make it."""
MODEL_OWN: InModel = "own"
"""Tensors that a participant does not share, a file for each: own/003.safetensors."""
EVALUATION: InModel = "evaluation.json"
"""How good it is by the joint evaluation of its sites."""

# A run on a cluster

JOB: InCluster = "job.json"
"""What each task of the job is started with."""
STOP: InCluster = "stop"
"""There when all participants shall end."""

# A release

RELEASE: InRelease = "release.json"
"""What the release states of model, privacy and sites, with the sha256 of each of its files."""
CARD: InRelease = "card.html"
"""The card of the model."""
USE: InRelease = "use.txt"
"""How to use the model."""
LOGS: InRelease = "logs"
"""The folder of the signed logs and transcripts that come with it."""

# Runs by invite

INVITE: InHosting = "invite.json"
"""The invite, and the members that were let in."""
INVITE_TEXT: InHosting = "invite.txt"
"""Of a run by folder: the text of the invite, with its secret, for `fedgossip step`."""
REPLIES: InHosting = "replies"
"""Of a run by folder: the sealed replies of the organiser."""
HOSTED: InHosting = "run"
"""The folder of the participant's own part in the run."""
OWNER_MARK: InHosting = "owner.mark"
"""The mark of the user whose commands made this folder: its keys, policy and consent are taken as that user's."""
ORGANISER_KEY: InHosting = "organiser.key"
"""The organiser's pair of keys, for all runs that it hosts."""
PEER_KEY: InHosting = "peer.key"
"""The pair of keys of the participant on this machine."""
PROPOSAL: InHosting = "proposal.hash"
"""The hash of the proposal that was agreed to, and the mark of who has; the invite is for no other."""
OWN_MODEL: InHosting = "model-source"
"""The source of the model that this member brings, in a run that exchanges logits; empty: that of the experiment."""
PROPOSED_FILES: InHosting = "proposed-files"
"""The files of the experiment that came with the invite."""
TEST_SET: InHosting = "test-set"
"""The common test set that came with it."""
OWN_TABLES: InHosting = "tables"
"""Of a pilot: this site's own table, a link to it, and what the sites agreed on."""
DECISIONS: InHosting = "decisions"
"""Of a pilot: the signed log of every answer of people, and of the commands that followed."""

# What outlives a run

SPENT: BesideKey = "spent"
"""The ledger of the privacy that was spent on the data of this key."""
MASKED: BesideKey = "masked"
"""The rounds whose masks this key has made: none may be used twice."""
APPROVALS: BesideKey = "approvals"
"""The signed log of the plans that were approved with this key, and of the rounds that used them."""
PLANS: BesideKey = "plans"
"""The folder of those plans."""

# Several runs

SWEEP: InSweep = "sweep.toml"
"""The sweep: its experiment, its axes and its seeds."""
CELLS: InSweep = "cells"
"""A folder for each cell, with its run."""
SWEEP_TABLE: InSweep = "table.csv"
"""A line for each cell."""
SWEEP_ROWS: InSweep = "cells.jsonl"
"""The same, as JSON lines."""
SWEEP_PARQUET: InSweep = "table.parquet"
"""The same, for programs that read Parquet."""
SWEEP_PAGE: InSweep = "sweep.html"
"""The page of the sweep."""
COMPARISON: InSweep = "comparison.html"
"""The page of `fedgossip compare`, or of several runs beside each other."""
COMPARED: InSweep = "compared.json"
"""What that page shows, as numbers."""
