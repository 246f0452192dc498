"""The sections that a federated run has in place of [topology]: [coordinator], and in it [secure] and [privacy]."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fedgossip.algorithms.codecs.names import CODECS, FORMS
from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.base.limits import ABOVE_0, LONGEST_SECONDS, MOST, KnownNames, OneOf, Seconds, Within
from fedgossip.data.custom import NamesCode
from fedgossip.learning.personal.names import PERSONAL

CODEC_CODE = NamesCode(CODECS.__contains__)

BY_LOSSES = ("power-of-choice", "oort")
"""Sampling by reported losses."""

Count = Annotated[int | None, Within(1, MOST)]


class SecureSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.secure]: the coordinator sees the sum of a round's contributions, and none of them."""

    on: bool = True
    """`false`: the coordinator sees every client's update, as the run's first lines warn.  The robust algorithms and
    fedbuff require it."""
    threshold: Annotated[int | None, Within(1, 1000)] = None
    """Answers that a round needs to its end, of each share group; none: the smallest that clients accept, more than two
    thirds."""
    neighbours: Annotated[int | None, Within(2, 200)] = None
    """Clients that each client shares masks with, an even number, where more than 64 are invited."""
    bound: Annotated[float, Within(ABOVE_0)] = 1.0
    """No element of an update is larger: it is cut to this.  Smaller rounds finer.  Running statistics are not cut."""
    bits: Annotated[int | None, Within(2, 31)] = None
    """Bits of an element, rounded at random; none: 24 for up to 100 clients, 20 above."""
    weight_max: Annotated[int | None, Within(1, MOST)] = None
    """Maximum number of examples of a client: one with more is refused before it trains; larger values round coarser.
    none: 10,000; where the largest client is known from data.partition, the next sufficient one of 20,000, 50,000,
    100,000, ..."""
    score_max: Annotated[float, Within(ABOVE_0, 1e12)] = 64.0
    """No loss of a client, and no score that is not between 0 and 1 (rmse, mae, r2), counts as more; larger rounds
    coarser."""


class PrivacySection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator.privacy]: differential privacy, of a record at its site or of a whole client."""

    unit: Annotated[str, OneOf(("none", "record", "client"))] = "none"
    """The unit that the budget protects."""
    clip: Annotated[float, Within(ABOVE_0)] = 1.0
    """The longest gradient of one example (record), or update of one client (client)."""
    noise: Annotated[float, Within(ABOVE_0, 1e6)] = 1.0
    """Standard deviation of the noise, in units of clip; more protects better and learns worse."""
    delta: Annotated[float, Within(ABOVE_0, 0.5)] = 1e-5
    """The chance that the promise does not hold; well below one in the number of units."""
    max_epsilon: Annotated[float, Within(ABOVE_0)] = 8.0
    """The round that would cross it is refused."""
    test_noise: Annotated[float, Within(0, 1e6)] = 0.0
    """Of records: standard deviation of the noise on the number of right answers on held-out examples
    (data.local_test), which each client reports in evaluated rounds, out of the same budget; 0: not reported."""
    adaptive: bool = False
    """Of clients: the clip follows the median length of the updates; it begins with clip."""


class TierSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[coordinator.tiers]]: a tier of coordinators, the first one of clients, the last one of the root alone."""

    clients: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """Participants of the tier below that each coordinator of this tier has, in the order of their ids."""
    groups: list[str] = msgspec.field(default_factory=list)
    """In place of `clients`: the participants of each coordinator, numbered in their tier: ["0-4", "5, 6, 7"]."""
    secure: bool = True
    """`false`: a coordinator of this tier sees what each of its participants sends, as the run's first lines warn: the
    sum of each coordinator below, or each client's update.  A tier of two needs it."""


class CoordinatorSection(msgspec.Struct, forbid_unknown_fields=True):
    """[coordinator]: a federated run, in place of [topology] (docs/together/coordinator.md)."""

    clients: Annotated[int, Within(1, 1_000_000)]
    """All that may ever take part: ids 0 to clients - 1; the coordinator is the next."""
    participation: Annotated[float, Within(ABOVE_0, 1)] = 1.0
    """The share of the clients that is wanted in a round."""
    cohort: Count = None
    """Their number, in place of participation."""
    over_selection: Annotated[float, Within(1, 100)] = 1.0
    """So many times as many are invited; the round ends with the first that are wanted."""
    sampling: Annotated[str, NamesCode(), OneOf(("uniform", "size", "poisson", *BY_LOSSES), own=True)] = "uniform"
    """Sampling of the cohort: size, clients with more examples more often; poisson, each client independently: cohorts
    vary in size, so not with a secure sum; power-of-choice and oort, by the losses that clients reported last,
    which the coordinator has to see; module:Class, your own."""
    candidates: Count = None
    """power-of-choice: number of clients of which those with the greatest losses are invited; none: twice as many."""
    min_clients: Count = None
    """A round of fewer is abandoned; none: 5, or the cohort where that is smaller; 1 without a secure sum.  With tiers
    it holds in each leaf: one with fewer clients contributes nothing to the round."""
    algorithm: Annotated[str, NamesCode(), KnownNames(dict.fromkeys(ALGORITHMS, ""))] = "fedavg"
    """The rule, or `fedbuff`, which averages the first updates to arrive; `cocoa` is for task.kind = "convex"
    (docs/use/convex.md).  Robust, without a secure sum: `median`, `trimmed-mean`, `krum`, `multi-krum`,
    `geometric-median`, `clipped-mean`.  module:function, rules of your own (docs/together/coordinator.md)."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The algorithm's own, such as { mu = 0.1 } or { lr = 0.01 }."""
    personal: Annotated[str | None, KnownNames(PERSONAL)] = None
    """A model of its own at each client, beside the shared one: the method, with options behind a question mark,
    `ditto?lambda=0.1` (docs/use/personal.md)."""
    codec: Annotated[str, CODEC_CODE, KnownNames({form: "" for form in FORMS if not form.startswith("dgc")})] = ""
    """Codec of uploaded updates; a client sends the remainder later.  With a secure sum random-k alone; module:Class,
    your own; empty: uncoded (docs/together/codecs.md)."""
    deadline: Seconds = 300.0
    """The longest wait in one phase of a round, in seconds; above the slowest client's training."""
    least_deadline: Annotated[float, Within(0, LONGEST_SECONDS)] = 5.0
    """The shortest, in seconds: between the two the deadline follows the rounds that were seen."""
    start_timeout: Seconds = 300.0
    """Seconds to wait for all clients before the first round, and for enough of them whenever too few are left."""
    return_timeout: Annotated[float, Within(0, LONGEST_SECONDS)] = 10.0
    """Seconds that a restarted coordinator waits for all clients, before it continues with those present."""
    silence: Seconds = 600.0
    """Seconds without a link after which a client gives the coordinator up."""
    at_once: Count = None
    """fedbuff: clients that train at any time; none: twice the goal."""
    goal: Count = None
    """fedbuff: answers per step; none: 10, or half of the clients where that is fewer."""
    most_stale: Annotated[int, Within(0, MOST)] = 20
    """fedbuff: steps since a client was invited; an older answer is dropped."""
    tiers: list[TierSection] = msgspec.field(default_factory=list)
    """Coordinators between the clients and the root, from the clients upwards: [{ clients = 8 }, { clients = 4 }] is 4
    leaf coordinators of 8 clients each; the sizes multiply to `clients`.  Empty: one coordinator of all."""
    secure: SecureSection = msgspec.field(default_factory=SecureSection)
    privacy: PrivacySection = msgspec.field(default_factory=PrivacySection)
