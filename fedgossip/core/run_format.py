"""The file format of a run: every file and folder by name, with its place and its content.

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
"""The participants' ids, names of roles, and which of them learn; and the run's name.  As `roles` in the summary."""
PLAN: InRun = "plan.json"
"""Of a federated run: the statement that its sites were asked to approve."""
AGREED: InRun = "agreed.json"
"""The columns and statistics that all sites agreed on, with the same bytes at each site."""
APPROVAL: InRun = "approval.jsonl"
"""The signed approval of a site; in its own folder, and collected in that of the run."""
APPROVAL_RUN: InRun = "approval.run"
"""Identifies this run in an approval, which counts each of its rounds once, also after a resume; in a site's folder."""
ENDPOINTS: InRun = "endpoints.toml"
"""Address and public keys of every participant."""
BEGAN: InRun = "began"
"""When the first training began, in nanoseconds of this machine's clock: time 0 of a fault script."""
ROWS: InRun = "metrics.jsonl"
"""The record, written during the run; a participant has one too.  One JSON object per line, by `kind`: peer (one peer,
one round: loss, bytes, seconds), network (all peers, one round: scores, consensus distance), event (a peer gone, a
deadline missed, a frame refused).  On stacked arrays, networks of more than 256 peers have peer rows in evaluated
rounds only, with the bytes since the last.  A field at its default (not measured, 0) is omitted.
"""
TIMELINE: InRun = "timeline.json"
"""Of a simulation: the participants' activities over time and messages, in its first part; for `fedgossip timeline`."""
SUMMARY: InRun = "summary.json"
"""The outcome of the run: its scores, costs, versions, and the events of all restarts; written last, in one piece."""
FORECAST: InRun = "forecast.json"
"""The forecast, written before the first row, if one was requested."""
REALISED: InRun = "forecast-realised.json"
"""The same forecast for the rounds as mixed, if messages or peers were lost."""
MODEL: InRun = "model"
"""The folder of the trained model, with everything needed to use it: the mean over the peers, or the coordinator's; in
a participant's folder, its own.
"""
MODEL_BEST: InRun = "model-best"
"""The folder of the model of the best round, with eval.keep = "best"."""
BEST: InRun = "best.safetensors"
"""The model of the best round, during the run."""
TABLE: InRun = "table.safetensors"
"""Of a model that is a table: the trained rows."""
REPORT: InRun = "report.html"
"""The report page of the run, readable offline; it ends with the command that repeats the run."""
PEERS: InRun = "peers"
"""One folder for each participant that ran in a separate process: peers/00, peers/01, ..."""
ENGINE: InRun = "run.json"
"""The engine that simulated the run: sim or stacked; a resumed run uses the same."""
CHECKPOINT: InRun = "checkpoint.safetensors"
"""The newest checkpoint, of a simulation or of a participant: --resume continues from it.  A finished run needs none.
"""
CHECKPOINT_BEFORE: InRun = "checkpoint.previous.safetensors"
"""The checkpoint before it, read if the newest is damaged."""
FAILURE: InRun = "failure.json"
"""Of a cell of a sweep: the reason why it has no summary; it gets one only if it is run again."""
PLACED: InRun = "placed.json"
"""The request to a cluster, for a run whose participants were placed on one."""
CLUSTER: InRun = "cluster"
"""The folder through which the tasks of a cluster's job find each other."""
ROUNDS_CSV: InRun = "rounds.csv"
"""One line per round, one column per number, with track.to = ["csv"]."""
TENSORBOARD: InRun = "tensorboard"
"""The event files of TensorBoard, with track.to = ["tensorboard"]."""
MLRUNS: InRun = "mlruns"
"""The runs of MLflow, next to the folder of the run, with track.to = ["mlflow"]."""
FIT: InRun = "fit.json"
"""Coefficients, errors and tests of a statistical model that sites fitted by sums."""
CURVES: InRun = "survival.json"
"""Survival curves that sites estimated by sums."""
FIT_OF_TREES: InRun = "trees-fit.json"
"""The record of how boosted trees were grown by sums, next to their model."""
TABLES: InRun = "tables.json"
"""Tables of a statistic that sites computed by sums: of groups, of tests, of models without predictions."""
INCOMPLETE: InRun = "INCOMPLETE"
"""Exists until the summary is written; it remains if a run was interrupted, failed or killed."""

# A participant

ENDPOINT: InPeer = "endpoint.toml"
"""The participant's address, public keys and id."""
ENDED: InPeer = "ended.json"
"""The participant's outcome: status, rounds, counts, and its error if it failed; written last."""
COUNTS: InPeer = "counts.json"
"""The participant's events, and bytes to each partner, over all its restarts; if killed, up to its last checkpoint."""
VECTOR: InPeer = "vector.safetensors"
"""Its final vector."""
SNAPSHOTS: InPeer = "snapshots"
"""The participant's vectors of evaluated rounds; the process that collects the run deletes them."""
LOG: InPeer = "log.txt"
"""The output of the participant's process."""
INCARNATION: InPeer = "incarnation"
"""The number of the participant's starts, from 0; on disk before its first message."""
PUBLIC_KEY: InPeer = "key.txt"
"""The participant's public key; the secret key is outside the run, in a folder of its owner."""
KEY_BEFORE: InPeer = "key.toml"
"""The participant's key pair, as earlier releases stored it."""
AUDIT_LOG: InPeer = "audit.jsonl"
"""The participant's signed log of what left it, in a federated run."""
TRANSCRIPTS: InPeer = "rounds"
"""Of a coordinator: the folder of its transcripts of secure sums."""
TRANSCRIPT: InPeer = ".transcript"
"""The suffix of a transcript, after the number of its session: rounds/000003.transcript."""
TRACE: InPeer = "trace.bin"
"""All events and effects of the participant's first start, for `fedgossip replay`; with --trace.  After restarts:
trace.1.bin, ...
"""
TRACES: InPeer = "trace*.bin"
"""The traces of all its starts."""
JOURNAL: InPeer = "journal.bin"
"""Of a run by folder: the participant's state and every event since; `fedgossip step` continues from it.  It holds
the secrets of masks, and is removed when the run has ended and all results were fetched.
"""
FOLDER_STATE: InPeer = "folder.json"
"""Of a run by folder: the participant's key for this run, and those of its partners."""
STEP: InPeer = "step.json"
"""Of a run by folder: the command that `fedgossip step` repeats, its working folder, and the mark of its user."""
REVOKED: InPeer = "revoked.toml"
"""The members that the organiser has revoked, as far as this participant has received it."""

# A loop

LAUNCHED: InLoop = "launched.json"
"""In the folder of the run: the script that was launched or simulated, and its arguments."""
ASKED: InLoop = "asked"
"""The folder of vectors that loops are requested to measure, and of their answers."""
OVER: InLoop = "over"
"""A file in it: no more requests follow."""
SEAT: InLoop = "seat.json"
"""The start parameters of the participant next to a loop."""
HELD: InLoop = "process"
"""Locked by the process that uses this seat."""
LOOP: InLoop = "loop.json"
"""The layout of the model that a loop exchanges."""
LOOP_FIRST: InLoop = "first.safetensors"
"""The first vector of a loop."""

# A model

MODEL_FACTS: InModel = "model.json"
"""The model's kind, columns and classes, its score, and the versions that made it."""
WEIGHTS: InModel = "weights.safetensors"
"""The model's tensors."""
TREES: InModel = "trees.json"
"""The model itself, if it is boosted trees."""
MODEL_CODE: InModel = "code"
"""The user modules that build it."""
MODEL_OWN: InModel = "own"
"""Tensors that a participant does not share, one file for each: own/003.safetensors."""
EVALUATION: InModel = "evaluation.json"
"""The model's quality, by the joint evaluation of its sites."""

# A run on a cluster

JOB: InCluster = "job.json"
"""The start parameters of each task of the job."""
STOP: InCluster = "stop"
"""Exists when all participants must end."""

# A release

RELEASE: InRelease = "release.json"
"""The release's statement on model, privacy and sites, with the sha256 of each of its files."""
CARD: InRelease = "card.html"
"""The model card."""
USE: InRelease = "use.txt"
"""How to use the model."""
LOGS: InRelease = "logs"
"""The folder of the signed logs and transcripts of the release."""

# Runs by invite

INVITE: InHosting = "invite.json"
"""The invite, and the admitted members."""
INVITE_TEXT: InHosting = "invite.txt"
"""Of a run by folder: the text of the invite, with its secret, for `fedgossip step`."""
REPLIES: InHosting = "replies"
"""Of a run by folder: the sealed replies of the organiser."""
HOSTED: InHosting = "run"
"""The folder of the participant's part of the run."""
OWNER_MARK: InHosting = "owner.mark"
"""The mark of the user whose commands made this folder: its keys, policy and consent are taken as that user's."""
ORGANISER_KEY: InHosting = "organiser.key"
"""The organiser's key pair, for all runs that it hosts."""
PEER_KEY: InHosting = "peer.key"
"""The key pair of the participant on this machine."""
PROPOSAL: InHosting = "proposal.hash"
"""The hash of the proposal that a user agreed to, and the mark of that user; the invite is valid for no other proposal.
"""
OWN_MODEL: InHosting = "model-source"
"""The source of the model that this member brings, in a run that exchanges logits; empty: that of the experiment."""
PROPOSED_FILES: InHosting = "proposed-files"
"""The experiment's files that the invite contained."""
TEST_SET: InHosting = "test-set"
"""The common test set that the invite contained."""
OWN_TABLES: InHosting = "tables"
"""Of a pilot: this site's table, a link to it, and the columns that the sites agreed on."""
DECISIONS: InHosting = "decisions"
"""Of a pilot: the signed log of every human answer, and of the commands that followed."""

# Files that outlive a run

SPENT: BesideKey = "spent"
"""The ledger of the privacy budget spent on the data of this key."""
MASKED: BesideKey = "masked"
"""Numbers of the rounds with masks made by this key: none may be used twice."""
APPROVALS: BesideKey = "approvals"
"""The signed log of the plans approved with this key, and of the rounds that used them."""
PLANS: BesideKey = "plans"
"""The folder of those plans."""

# Several runs

SWEEP: InSweep = "sweep.toml"
"""The sweep: its experiment, its axes and its seeds."""
CELLS: InSweep = "cells"
"""One folder for each cell, with its run."""
SWEEP_TABLE: InSweep = "table.csv"
"""One line for each cell."""
SWEEP_ROWS: InSweep = "cells.jsonl"
"""The same, as JSON lines."""
SWEEP_PARQUET: InSweep = "table.parquet"
"""The same, for programs that read Parquet."""
SWEEP_PAGE: InSweep = "sweep.html"
"""The report page of the sweep."""
COMPARISON: InSweep = "comparison.html"
"""The page of `fedgossip compare`, or of several runs next to each other."""
COMPARED: InSweep = "compared.json"
"""The numbers that this page shows."""
