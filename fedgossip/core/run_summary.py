"""The keys of summary.json, each with its unit and meaning: what a run was, how it ended, what it cost and brought.

`runs/summary` writes a `RunSummary`, `Run.summary` is one, and readers take it by this type, so that mypy knows every
key.  Nothing is checked where a file is read: later releases add keys, and earlier ones lack some (the reader
has defaults).  Keys of a class with total=False are there in some runs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class ScoreFacts(TypedDict):
    """The metric of a run and its values, in the unit of the metric; None where nothing was scored."""

    name: str
    """Of the metric; empty for a task without one."""
    better: str
    """higher or lower."""
    unit: str
    """In words."""
    averaged: float | None
    """Of the mean over the models; of a run with a coordinator, of its model."""
    mean_peer: float | None
    """The mean over the peers' own models."""
    worst_peer: float | None
    """The worst of them."""
    round: NotRequired[int]
    """The round after which these were measured."""


class BestFacts(TypedDict):
    """The first round whose model had the best score."""

    round: int
    """Its number."""
    score: float
    """Its score, in the unit of the metric."""
    at: NotRequired[str]
    """clients: measured by them, on examples of their own."""


class BusiestFacts(TypedDict):
    """Where most bytes of vectors went: the node, in its busier direction, and the link."""

    node: int | None
    """The node; None where no vector was sent."""
    bytes: int
    """What it sent or received, whichever is more."""
    link: list[int] | None
    """From node, to node; None where the driver has no links."""
    link_bytes: int | None
    """What that link carried."""


class RefusalFacts(TypedDict):
    """One cause for which one participant refused something."""

    peer: int
    """Id of the refusing participant."""
    times: int
    """Number of refusals."""
    text: str
    """The cause, in words."""
    advice: str
    """What to do; may be empty."""


class DataFacts(TypedDict):
    """The examples and who has them."""

    source: str
    """data.source of the experiment; given for data that a program handed over."""
    test: str
    """The examples that models are tested on, in words."""
    classes: int | None
    """Number of classes; None where there are none."""
    shares: list[list[int]] | None
    """Number of examples by learner and class; None where there are no classes."""
    sizes: list[int] | None
    """Number of examples by learner."""
    notes: NotRequired[list[str]]
    """What was left out or changed as the examples were read, a line each."""


class PrivacyFacts(TypedDict):
    """A budget of differential privacy and what was spent of it."""

    unit: str
    """What is hidden: client or record."""
    noise: float
    """Multiplier of the noise, in units of `clip`."""
    clip: float
    """Largest norm of what one unit adds."""
    delta: float
    """Probability with which the guarantee may fail."""
    max_epsilon: float
    """The budget: the run ends before more is spent."""
    epsilon: float | None
    """The largest spending of a participant; None where only clients know it."""
    guarantee: str
    """In words."""


class SpentFacts(TypedDict, total=False):
    """Of a run with a budget of privacy."""

    epsilon: float | None
    """The same as privacy.epsilon."""
    privacy: PrivacyFacts
    """The budget and its spending."""


class MethodFacts(SpentFacts, total=False):
    """What only some kinds of run have; `Plan.facts` writes it."""

    graph: str
    """The graph as in the experiment; coordinator for a federated run."""
    algorithm: str
    """The method, as in the experiment."""
    mode: str
    """sync or async; federated; parallel."""
    forecast: dict[str, Any]
    """What the spectrum of the mixing promised before the run: edges, slem, spectral_gap, n_w, ..."""
    topology: dict[str, Any]
    """The graph: n, name, directed, edges, labels, rows of weights where there are at most 512 nodes, period."""
    eigenvalues: Sequence[float] | None
    """Of the mixing, descending; None where unknown or more than 4096."""
    modes: Sequence[tuple[float, float]] | None
    """Complex eigenvalues of a directed normal mixing, without the mean's: real and imaginary part."""
    links: str
    """Number of links, in words."""
    band: Mapping[str, Sequence[float]] | None
    """Bounds of the consensus distance after rounds 1, 2, ..., where no eigenvalues describe the graph."""
    summed: bool
    """Whether each peer went on with the weighted sum of honest models: the forecast is about that."""
    pairwise: dict[str, Any]
    """Of exchanges between pairs: the share of a distance that a round leaves."""
    clients: int
    """Number of clients."""
    cohort: int
    """Number of clients in a round."""
    secure: bool
    """Whether the coordinator sees sums alone."""
    codec: str
    """The codec of updates, gradients or models."""
    rounds_abandoned: int
    """Number of rounds that changed nothing."""
    descent: str
    """The optimizer of a parallel run: of its inner steps, or outer."""


class ForecastFacts(TypedDict, total=False):
    """How far the forecast was kept; not there where none was made."""

    forecast_file: dict[str, Any]
    """Of forecast.json: level, sha256, exact, and whether its edges are wide."""
    forecast_kept: float | None
    """Share of the rounds whose consensus distance lies within its edges."""
    forecast_scores_kept: dict[str, float]
    """The same of the scores."""
    forecast_realised_kept: float | None
    """The same of forecast-realised.json."""


class RaceFacts(TypedDict, total=False):
    """Of processes that train one model without waiting for each other (Hogwild!)."""

    identical: bool
    """False: no other run has the same bits."""
    lost_updates: float
    """Share of the written elements that another process overwrote."""


class StepFacts(TypedDict):
    """A step of one participant by simulation.inside."""

    seconds: float
    """Of the step: work, idle and messages."""
    work: float
    """Seconds that the mean process computes."""
    idle: float
    """Seconds that it waits for other stages."""
    messages: dict[str, float]
    """Seconds of messages between the processes, by axis of the mesh."""
    sent: dict[str, float]
    """Bytes that the busiest process sends, by axis of the mesh."""
    copied: int
    """Bytes that a process copies between its device and host memory (train.offload)."""
    flops: float
    """Of the whole batch, forward and back."""
    memory: int
    """Bytes of the fullest process."""
    by_way: dict[str, int]
    """The same by ddp, which is ZeRO's stage 0, with its stage 1, and by fsdp with zero = 2 and 3, of several processes
    with parts of a batch."""


class InsideFacts(TypedDict, total=False):
    """Of a simulated run with simulation.inside."""

    inside: StepFacts
    """A step of one participant."""
    inside_bytes: int
    """Bytes that the busiest process of one participant sends to the others of it in the whole run: the most of all
    participants."""


class ChosenFacts(TypedDict, total=False):
    """Of a run whose models were scored."""

    best: BestFacts
    """The best round."""


class AddedFacts(TypedDict, total=False):
    """What is added to a summary after it was made."""

    centralised: dict[str, float]
    """Metrics of one model trained by as many steps on all examples, with --centralised."""
    run_dir: str
    """The folder of the run; in memory and by --json, not in the file."""


class GainFacts(TypedDict):
    """Personal models over all participants that tested one, each on examples of its own."""

    tested: int
    """Participants that tested their model."""
    untested: int
    """Others: without held-out examples, or never asked."""
    mean_own: float | None
    """Mean score over participants, each counted alike; None where only counts are seen."""
    worst_own: float | None
    """The worst score; of counts, the lower end of its twentieth."""
    tenth_own: float | None
    """The score that a tenth of the participants do not exceed in quality: the 10th percentile from the worst."""
    behind_shared: int | None
    """Participants whose own model scores worse than the shared one; None where no shared one was tested."""
    behind_alone: int | None
    """The same, than the model trained alone."""


class PersonalFacts(TypedDict, total=False):
    """Of a run whose participants have models of their own."""

    personal: GainFacts
    """Their scores; not there where none was tested."""
    exchanged: str
    """models or logits: what participants send."""


class RunSummary(ChosenFacts, RaceFacts, InsideFacts, PersonalFacts, MethodFacts, ForecastFacts, AddedFacts):
    """summary.json."""

    name: str
    """Of the experiment, or of its graph or method."""
    driver: str
    """sim, stacked, local, launch, peers, slurm, ray: what ran it."""
    status: str
    """finished, partial, exhausted, interrupted or failed."""
    lacking: Sequence[str]
    """What did not happen, in words: why a run is partial, or that single rounds of a finished one lack exchanges; and
    that the training diverged."""
    in_vain: bool
    """Whether what is lacking makes the run worthless."""
    seed: int
    """The root of all random streams."""
    n: int
    """Number of participants that learn."""
    roles: list[dict[str, Any]]
    """Who takes part as what; roles.json has the same."""
    rounds: int
    """Number of completed rounds."""
    digest: str | None
    """sha256 over all final vectors; None where the run did not reach its end."""
    score: ScoreFacts
    """The three scores."""
    test_loss: float | None
    """Of the averaged model, on the test set."""
    consensus_distance: float | None
    """sqrt(mean over peers of the squared distance to the mean), at the end."""
    bytes_sent: int
    """By all together, frames included."""
    busiest: BusiestFacts
    """The node and the link that carried most bytes of vectors."""
    seconds: float
    """Duration of the rounds: virtual in the simulator, else of the wall clock."""
    wall_seconds: float | None
    """Duration of the command; None where the folders of peers were collected."""
    parameters: int
    """Number of elements of the exchanged vector."""
    dtype: str
    """Type of an element."""
    schema: str
    """Hash of the layout of the vector."""
    measured_contraction: float | None
    """The share of the consensus distance that one mixing left, as a mean over rounds."""
    events: dict[str, int]
    """Number of events by name."""
    refusals: list[RefusalFacts]
    """Causes of refusals, the most frequent first, at most 20."""
    data: DataFacts
    """The examples and who has them."""
    versions: dict[str, str]
    """Of fedgossip, Python, the machine and the libraries that decide the bits."""
    cores: int | None
    """Number of processors of the machine that wrote the summary."""
    processor: str
    """Its name, or those of the participants' machines."""
    kernels: str | None
    """The mode of torch's kernels; None where torch was not used."""
