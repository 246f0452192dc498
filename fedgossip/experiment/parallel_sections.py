"""The section that a run of workers on one model has: [parallel], and in it [server] and [outer]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fedgossip.algorithms.codecs.low_rank import LOW_RANK
from fedgossip.algorithms.codecs.names import FORMS
from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.descent.names import DESCENTS
from fedgossip.algorithms.descent.row_filters import FILTERS
from fedgossip.algorithms.gossip.fragments import FRAGMENTS_MAX
from fedgossip.base.limits import MOST, KnownNames, OneOf, Seconds, SecondsOr0, Within
from fedgossip.core.messages import SERVERS_MAX, SHARDS_MAX, WORKERS_MAX
from fedgossip.data.custom import NamesCode
from fedgossip.experiment.coordinator_sections import CODEC_CODE
from fedgossip.learning.settings import HOGWILD

SERVED, MAPREDUCE, LBFGS, ASYNC = "parameter-server", "mapreduce", "lbfgs", "async"
"""Values of parallel.method beside the collectives, and of parallel.server.staleness beside a number."""


class ServerSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.server]: servers of the model, for parallel.method = "parameter-server" alone
    (docs/together/parallel.md).
    """

    servers: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Their number; each has a part of the model."""
    virtual_nodes: Annotated[int, Within(1, SHARDS_MAX // SERVERS_MAX)] = 64
    """Points of each server on the circle of consistent hashing; more make their parts more alike."""
    replication: Annotated[int, Within(1, SERVERS_MAX)] = 1
    """Number of copies of each part; from 2 on a manager replaces lost servers."""
    staleness: int | str = 0
    """Rounds by which a worker may be ahead of the slowest; 0: a step per round, on the mean of all; "async": any."""
    placement: Annotated[str, OneOf(("ranges", "tensors"))] = "ranges"
    """Smallest unit of the partition between servers: single elements, or whole tensors, as lars and lamb require."""
    damp: bool = False
    """The rate of a push is divided by 1 + the steps since the model of its gradient; not with staleness 0."""
    n_fetch: Annotated[int, Within(1, MOST)] = 1
    """staleness "async": a worker takes so many steps on its own copy before it pulls the model (Downpour SGD)."""
    n_push: Annotated[int, Within(1, MOST)] = 1
    """staleness "async": a worker pushes the sum of so many gradients, a multiple of n_fetch; a round is one
    gradient, and rounds are a multiple of it."""
    filters: Annotated[list[str], NamesCode(FILTERS.__contains__)] = msgspec.field(default_factory=list)
    """Filters for a table's pushed rows, in sequence: `key-cache`, `threshold:T`, `random-skip:P`, `kkt`, `kkt:T`,
    `module:function` (docs/together/parallel.md)."""

    pull_codec: str = ""
    """Codec of the model from servers: `bf16`, `fp16`, `int8:BLOCK`; uncoded after the last round; empty: uncoded.  For
    gradients: parallel.codec."""


class OuterSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel.outer]: workers train alone by [train] in every round, and take an outer step along the mean
    displacement: DiLoCo (docs/together/outer.md)."""

    lr: Annotated[float, Within(0)] = 0.0
    """Length of the step: 0.7 is usual, 1 with beta = 0 is the mean of their models.  0: there is no outer step, and
    workers share every step."""
    beta: float = 0.9
    """The share of the last step that is kept, from 0 to below 1."""
    nesterov: bool = True
    """Look ahead."""
    delay: Annotated[int, Within(0, 1)] = 0
    """1: the mean of a round travels while the next one is trained, and counts at its end; links quicker than the
    training cause no waiting."""
    fragments: Annotated[int, Within(1, FRAGMENTS_MAX)] = 1
    """Number of fragments of the model, one sent per round in turn: with 4, and train.local_steps = 10, each is sent
    every 40 steps, and a round sends a quarter of the bytes."""


class ParallelSection(msgspec.Struct, forbid_unknown_fields=True):
    """[parallel]: workers that take one step on the mean of all their gradients in every round
    (docs/together/parallel.md).
    """

    workers: Annotated[int, Within(1, WORKERS_MAX)]
    """Their number; all know each other."""
    method: Annotated[str, OneOf((*COLLECTIVES, MAPREDUCE, LBFGS, SERVED, HOGWILD))] = "ring"
    """Distribution of the mean; mapreduce: by a server, which takes the step; lbfgs: the same, and the server
    takes steps of L-BFGS, by gradients of all examples; hogwild: without messages, the workers
    are processes of one participant, which step on one model in shared memory without waiting."""
    descent: Annotated[str, OneOf(("", *DESCENTS))] = ""
    """Descent method of the step, with train.lr; empty: train.optimizer."""
    l1: Annotated[float, Within(0)] = 0.0
    """ftrl: the sum of gradients below which a weight stays 0; more makes more weights 0."""
    accumulate: Annotated[int, Within(1, MOST)] = 1
    """Batches of train.batch_size that a worker's gradient is the mean of; train.local_steps does not count here."""
    backups: Annotated[int, Within(0, WORKERS_MAX - 1)] = 0
    """mapreduce: so many workers of a round, the last to answer, are not waited for."""
    bucket: Annotated[int | None, Within(0, MOST)] = None
    """Bytes of a stretch of the gradient that is summed by itself; none: 1 MiB per worker; 0: all at once."""
    codec: Annotated[str, CODEC_CODE, KnownNames({**FORMS, f"{LOW_RANK}:RANK": ""})] = ""
    """Codec of gradients; the remainder is sent later.  Every collective supports random-k and powersgd, ring and
    all-to-all the others and `module:Class` too; servers support all but powersgd; empty: uncoded
    (docs/together/codecs.md)."""
    overlap: bool = False
    """Whether buckets leave while the rest of the gradient is computed, last layers first; the bits are the same."""
    deadline: Seconds = 30.0
    """The longest wait for a round, in seconds; above the slowest worker's gradient."""
    least_deadline: SecondsOr0 = 5.0
    """The shortest, in seconds: between the two the deadline follows the rounds that were seen."""
    start_timeout: Seconds = 300.0
    """Seconds to wait for all workers before the first round, and for enough of them, or for one, to be back later."""
    outer: OuterSection = msgspec.field(default_factory=OuterSection)
    """Local training, and an outer step along its mean, in place of a step on the mean gradient; by a collective."""

    @property
    def local(self) -> bool:
        """Whether workers contribute the result of training to a round, not a gradient."""
        return self.outer.lr > 0 or self.races

    @property
    def races(self) -> bool:
        """Whether the workers are processes of one participant."""
        return self.method == HOGWILD

    @property
    def participants(self) -> int:
        """Their number as others count them."""
        return 1 if self.races else self.workers

    @property
    def collective(self) -> str:
        """By which of the collectives participants add; one alone has nothing to do in any."""
        return "ring" if self.races else self.method

    server: ServerSection = msgspec.field(default_factory=ServerSection)
    """Servers that have the model, where workers do not reduce it among themselves."""
