"""The keys of summary.json, each with its unit and meaning: settings, outcome, costs and results of a run.

`runs/summary` writes a `RunSummary`, `Run.summary` is one, and readers take it by this type, so that mypy checks every
key.  A file is read without checks: later releases add keys, and earlier ones lack some (the reader has defaults).
Keys of a class with total=False exist in some runs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class ScoreFacts(TypedDict):
    """The metric of a run and its values, in the unit of the metric; None if nothing was scored."""

    name: str
    """Name of the metric; empty for a task without one."""
    better: str
    """higher or lower."""
    unit: str
    """Unit, as a text."""
    averaged: float | None
    """Score of the mean over the models; of a run with a coordinator, of its model."""
    mean_peer: float | None
    """Mean score of the peers' models."""
    worst_peer: float | None
    """The worst of these scores."""
    round: NotRequired[int]
    """The round after which the scores were measured."""


class BestFacts(TypedDict):
    """The first round whose model had the best score."""

    round: int
    """Its number."""
    score: float
    """Its score, in the unit of the metric."""
    at: NotRequired[str]
    """clients: measured by them, on their local examples."""


class BusiestFacts(TypedDict):
    """The node and the link with the most bytes of vectors; the node in its busier direction."""

    node: int | None
    """The node; None if no vector was sent."""
    bytes: int
    """Bytes that it sent or received, whichever is more."""
    link: list[int] | None
    """From node, to node; None if the driver has no links."""
    link_bytes: int | None
    """Bytes on that link."""


class RefusalFacts(TypedDict):
    """One cause of refusals by one participant."""

    peer: int
    """Id of the refusing participant."""
    times: int
    """Number of refusals."""
    text: str
    """The cause, as a text."""
    advice: str
    """The advised action; may be empty."""


class DataFacts(TypedDict):
    """The examples and their distribution over the learners."""

    source: str
    """data.source of the experiment; "given" for data that a program passed."""
    test: str
    """The examples for tests of models, as a text."""
    classes: int | None
    """Number of classes; None without classes."""
    shares: list[list[int]] | None
    """Number of examples by learner and class; None without classes."""
    sizes: list[int] | None
    """Number of examples by learner."""
    notes: NotRequired[list[str]]
    """Omissions and changes when the examples were read, a line each."""


class PrivacyFacts(TypedDict):
    """A budget of differential privacy and its spent part."""

    unit: str
    """The protected unit: client or record."""
    noise: float
    """Noise multiplier, in units of `clip`."""
    clip: float
    """Maximum norm of the contribution of one unit."""
    delta: float
    """Probability that the guarantee fails."""
    max_epsilon: float
    """The budget: the run ends before it spends more."""
    epsilon: float | None
    """The largest spending of a participant; None if only clients have it."""
    guarantee: str
    """The guarantee, as a text."""


class SpentFacts(TypedDict, total=False):
    """Of a run with a privacy budget."""

    epsilon: float | None
    """The same as privacy.epsilon."""
    privacy: PrivacyFacts
    """The budget and its spending."""


class MethodFacts(SpentFacts, total=False):
    """Keys of some kinds of run only; `Plan.facts` writes them."""

    graph: str
    """The graph as in the experiment; coordinator for a federated run."""
    algorithm: str
    """The method, as in the experiment."""
    mode: str
    """sync or async; federated; parallel."""
    forecast: dict[str, Any]
    """The forecast from the mixing's spectrum, made before the run: edges, slem, spectral_gap, n_w, ..."""
    topology: dict[str, Any]
    """The graph: n, name, directed, edges, labels, rows of weights if it has at most 512 nodes, period."""
    eigenvalues: Sequence[float] | None
    """Eigenvalues of the mixing, descending; None if unknown or more than 4096."""
    modes: Sequence[tuple[float, float]] | None
    """Complex eigenvalues of a directed normal mixing, without the mean's: real and imaginary part."""
    links: str
    """Number of links, as a text."""
    band: Mapping[str, Sequence[float]] | None
    """Bounds of the consensus distance after rounds 1, 2, ..., if no eigenvalues describe the graph."""
    summed: bool
    """Whether each peer continued from the weighted sum of honest models: the forecast assumes it."""
    pairwise: dict[str, Any]
    """Of exchanges between pairs: the share of a distance that remains after a round."""
    clients: int
    """Number of clients."""
    cohort: int
    """Number of clients in a round."""
    secure: bool
    """Whether the coordinator sees sums alone."""
    tiers: Mapping[str, Sequence[int]]
    """In tiers: the participants below each coordinator, by the coordinator's number."""
    codec: str
    """The codec of updates, gradients or models."""
    rounds_abandoned: int
    """Number of rounds that changed nothing."""
    descent: str
    """The optimiser of a parallel run: of its inner steps, or outer."""


class ForecastFacts(TypedDict, total=False):
    """How well the forecast was kept; absent without a forecast."""

    forecast_file: dict[str, Any]
    """Of forecast.json: level, sha256, exact, and whether its edges are wide."""
    forecast_kept: float | None
    """Share of the rounds whose consensus distance lies within its edges."""
    forecast_scores_kept: dict[str, float]
    """The same for the scores."""
    forecast_realised_kept: float | None
    """The same for forecast-realised.json."""


class RaceFacts(TypedDict, total=False):
    """Of processes that train one model without waiting for each other (Hogwild!)."""

    identical: bool
    """False: no other run has the same bits."""
    lost_updates: float
    """Share of the written elements that another process overwrote."""


class StepFacts(TypedDict):
    """A step of one participant, as forecast from simulation.inside."""

    seconds: float
    """Duration of the step: work, idle and messages."""
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
    """Floating-point operations of the whole batch, forward and back."""
    memory: int
    """Bytes of memory of the fullest process."""
    by_way: dict[str, int]
    """The same by ddp (ZeRO's stage 0), with its stage 1, and by fsdp with zero = 2 and 3, for several processes with
    parts of a batch.
    """


class InsideFacts(TypedDict, total=False):
    """Of a simulated run with simulation.inside."""

    inside: StepFacts
    """A step of one participant."""
    inside_bytes: int
    """Maximum over the participants of the bytes that the busiest process of one participant sends to its others in the
    whole run.
    """


class ChosenFacts(TypedDict, total=False):
    """Of a run with scored models."""

    best: BestFacts
    """The best round."""


class AddedFacts(TypedDict, total=False):
    """Keys added to a summary after it was made."""

    centralised: dict[str, float]
    """Metrics of one model trained by as many steps on all examples, with --centralised."""
    run_dir: str
    """The folder of the run; in memory and by --json, not in the file."""


class GainFacts(TypedDict):
    """Personal models over all participants that tested one, each on its local examples."""

    tested: int
    """Number of participants that tested their model."""
    untested: int
    """Number of other participants: without held-out examples, or never requested."""
    mean_own: float | None
    """Mean score over participants with equal weights; None if only counts are visible."""
    worst_own: float | None
    """The worst score; of counts, the lower end of its twentieth."""
    tenth_own: float | None
    """The 10th percentile from the worst: a tenth of the participants score no better."""
    behind_shared: int | None
    """Number of participants whose personal model scores worse than the shared one; None if no shared one was tested.
    """
    behind_alone: int | None
    """Number of participants with a personal model that scores worse than the one trained alone."""


class PersonalFacts(TypedDict, total=False):
    """Of a run with personal models."""

    personal: GainFacts
    """Their scores; absent if none was tested."""
    exchanged: str
    """models or logits: the kind of data that participants send."""


class RunSummary(ChosenFacts, RaceFacts, InsideFacts, PersonalFacts, MethodFacts, ForecastFacts, AddedFacts):
    """summary.json."""

    name: str
    """Name of the experiment, or of its graph or method."""
    driver: str
    """sim, stacked, local, launch, peers, slurm, ray: the driver that ran it."""
    status: str
    """finished, partial, exhausted, interrupted or failed."""
    lacking: Sequence[str]
    """Reasons, as texts, why a run is partial; exchanges that a finished run lacks; and whether training diverged."""
    in_vain: bool
    """Whether the missing parts make the run worthless."""
    seed: int
    """The root of all random streams."""
    n: int
    """Number of participants that learn."""
    roles: list[dict[str, Any]]
    """The participants' roles, as in roles.json."""
    rounds: int
    """Number of completed rounds."""
    digest: str | None
    """sha256 over all final vectors; None if the run did not reach its end."""
    score: ScoreFacts
    """The three scores."""
    test_loss: float | None
    """Loss of the averaged model, on the test set."""
    consensus_distance: float | None
    """sqrt(mean over peers of the squared distance to the mean), at the end."""
    bytes_sent: int
    """Bytes sent by all participants, including frames."""
    busiest: BusiestFacts
    """The node and the link with the most bytes of vectors."""
    seconds: float
    """Duration of the rounds: virtual in the simulator, else of the wall clock."""
    wall_seconds: float | None
    """Duration of the command; None if the folders of peers were collected."""
    parameters: int
    """Number of elements of the exchanged vector."""
    dtype: str
    """Type of an element."""
    schema: str
    """Hash of the layout of the vector."""
    measured_contraction: float | None
    """The share of the consensus distance that remains after one mixing, as a mean over rounds."""
    events: dict[str, int]
    """Number of events by name."""
    refusals: list[RefusalFacts]
    """Causes of refusals, the most frequent first, at most 20."""
    data: DataFacts
    """The examples and their distribution over the learners."""
    versions: dict[str, str]
    """Versions of fedgossip, Python, the machine and the libraries that determine the bits."""
    cores: int | None
    """Number of processors of the machine that wrote the summary."""
    processor: str
    """Name of its processor, or of those of the participants' machines."""
    kernels: str | None
    """The mode of torch's kernels; None if torch was not used."""
