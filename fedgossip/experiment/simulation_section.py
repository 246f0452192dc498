"""The section [simulation]: the virtual network and devices, and the classes of nodes that differ."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fedgossip.base.limits import ABOVE_0, LONGEST_SECONDS, SecondsOr0, Within

SecondsOr0Given = Annotated[float | None, Within(0, LONGEST_SECONDS)]
Rate = Annotated[float | None, Within(ABOVE_0)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]


class DeviceSection(msgspec.Struct, forbid_unknown_fields=True):
    """[[simulation.classes]]: nodes with other links or processors; keys left out are as for all."""

    nodes: str
    """Node ids and ranges of them: "0-3, 7"; a coordinator is the last."""
    bandwidth: Positive | None = None
    """Bytes per second that such a node can send, over all its links."""
    downlink: Positive | None = None
    """Bytes per second that it can receive."""
    latency: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """Seconds of its links, one way."""
    slower: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """Their training takes so many times as long."""


class SimulationSection(msgspec.Struct, forbid_unknown_fields=True):
    """[simulation]: the virtual network and devices of `--on sim`; real runs ignore it."""

    latency: SecondsOr0 = 0.005
    """Seconds of a virtual link, one way."""
    jitter: SecondsOr0 = 0.0
    """Seconds by which that varies."""
    bandwidth: Rate = None
    """Bytes per second that a peer can send, over all its links; none: any number."""
    downlink: Rate = None
    """Bytes per second that a peer can receive, over all its links: a server with many senders waits for all of them;
    none: unlimited."""
    detection: SecondsOr0 = 1.0
    """Seconds of silence after which a link is reported lost; a shorter cut only delays messages."""
    training: SecondsOr0 = 0.05
    """Seconds of a round's training."""
    per_example: SecondsOr0Given = None
    """Seconds of training per example, in place of `training`: a smaller batch takes less time."""
    summing: SecondsOr0 = 0.0
    """Seconds per element that a participant adds up: in collectives, servers, coordinators, synchronous gossip."""
    training_jitter: Annotated[float, Within(0, 1e6)] = 0.0
    """The share by which that varies."""
    speed_spread: Annotated[float, Within(0, 10)] = 0.0
    """Speeds of peers are exp(N(0, spread²))."""
    classes: list[DeviceSection] = msgspec.field(default_factory=list)
    """Nodes with other links or processors: { nodes = "0-3, 7", bandwidth = 1e6, slower = 4.0 }."""
