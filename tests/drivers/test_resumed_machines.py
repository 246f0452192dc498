"""Every machine, method and codec goes on from an image that was taken in mid-run as if nothing had stopped it.

No image is taken of a run with masks: `plan.pausable`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import pytest
from resuming import from_the_middle
from typing_extensions import TypeAliasType

from fedgossip.algorithms.codecs.names import CODECS
from fedgossip.algorithms.federated.names import ALGORITHMS as FEDERATED
from fedgossip.algorithms.gossip.names import METHODS as GOSSIP
from fedgossip.drivers.image_types import alternatives, name_of
from fedgossip.drivers.image_write import NOTHING, Reader, UnfitError
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.federated.aggregation_round import PlainRound
from fedgossip.protocols.federated.clear_tier import IntegerPart
from fedgossip.protocols.federated.client_round import ClientPart, PlainPart, SecurePart

Content = dict[str, Any]

ROUNDS = 4

NUMBERS = {"top-k": ":0.3", "random-k": ":0.3", "dgc": ":0.3", "qsgd": ":4"}
"""What codecs take behind their name, where they need it."""

REDUCED = ["ring", "halving-doubling", "recursive-doubling", "tree", "star", "all-to-all", "mapreduce"]


def gossip(**algorithm: Any) -> Content:
    graph = {"relaysgd": "tree", "window-doubling": "window-doubling"}.get(algorithm.get("name", ""), "complete")
    return {"topology": {"graph": graph, "n": 4}, "algorithm": algorithm}


def clients(algorithm: str = "fedavg", **more: Any) -> Content:
    return {"coordinator": {"clients": 6, "algorithm": algorithm, "secure": {"on": False}, **more}}


def workers(method: str, count: int = 3, **more: Any) -> Content:
    return {"parallel": {"workers": count, "method": method, **more}, "train": {"lr": 0.1}}


def machines() -> Iterator[tuple[str, Content]]:
    """Yield each kind of run, by a name: all methods as they are, and all codecs where vectors are coded."""
    codecs = [name + NUMBERS.get(name, "") for name in CODECS]
    for name, method in GOSSIP.items():
        for mode in method.modes:
            yield f"{name}, {mode}", gossip(name=name, mode=mode)
    yield "private", gossip(private=True)
    for name in FEDERATED:
        if name != "cocoa":  # of dual variables, which no quadratic has
            yield name, clients(name)
    yield "fedbuff", clients("fedbuff")
    yield "one cohort", clients(cohort=4)
    for codec in codecs:
        if "dgc" not in codec:  # of single steps, and an update is of many
            yield f"clients, {codec}", clients(codec=codec)
        yield f"ring, {codec}", workers("ring", codec=codec)
        yield f"servers, {codec}", workers("parameter-server", codec=codec)
    yield "ring, powersgd", workers("ring", codec="powersgd:1")
    for collective in REDUCED:
        yield collective, workers(collective, 4)
    yield "outer step", workers("ring", outer={"lr": 0.7, "delay": 1})
    for staleness, replication in itertools.product([0, 1, "async"], [1, 2]):
        served = {"servers": 2, "staleness": staleness, "replication": replication}
        yield f"servers, {staleness}, {replication}", workers("parameter-server", server=served)
    yield "servers, pulled", workers("parameter-server", server={"pull_codec": "int8:16"})


MACHINES: Mapping[str, Content] = dict(machines())

OUT_OF_STEP = "async", "fedbuff", "servers, 1"
"""Stacked arrays go by rounds: no machines whose order follows time."""


def is_coded(name: str) -> bool:
    return any("codec" in section for section in MACHINES[name].values())


CASES = [pytest.param(name, "sim", id=f"{name}, sim") for name in MACHINES]
CASES += [
    pytest.param(name, "stacked", id=f"{name}, stacked", marks=() if is_coded(name) else pytest.mark.long)
    for name in MACHINES
    if not any(word in name for word in OUT_OF_STEP)
]


def plan_of(name: str) -> compose.Plan:
    task = {"kind": "quadratic", "dim": 24}
    return compose.plan(load_experiment({"rounds": ROUNDS, "task": task, "seed": 3, **MACHINES[name]}))


def goes_on(name: str, engine: str, events: int, folder: Path) -> None:
    whole, again = from_the_middle(plan_of(name), folder, engine, events)
    assert again.digest == whole.digest and again.rows == whole.rows


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_a_run_goes_on_from_an_image_of_its_middle_bit_for_bit(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on(name, engine, 0, tmp_path)


@pytest.mark.parametrize(
    "events", [5, 11, pytest.param(2, marks=pytest.mark.long), pytest.param(17, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", [*REDUCED, "outer step", "ring, sign", "servers, async, 2", "one cohort"])
def test_a_sum_that_is_half_made_goes_on_where_it_was(
    name: str, events: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on(name, "sim", events, tmp_path)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (PlainPart, "a PlainPart with other attributes"),  # admitted, and then its fields are compared
        (SecurePart, "SecurePart where ClientPart belongs"),
        (IntegerPart, "IntegerPart where ClientPart belongs"),
        (PlainRound, "PlainRound where ClientPart belongs"),
    ],
)
def test_a_clients_part_in_an_image_is_one_without_secrets(kind: type, why: str) -> None:
    image = Reader([("object", name_of(kind), [])], {}, lambda _: None)
    with pytest.raises(UnfitError, match=why):
        image.value([0], ClientPart, NOTHING)


@pytest.mark.parametrize("section", [{}, {"tiers": [{"clients": 3}, {"clients": 2, "secure": False}]}])
def test_no_image_is_taken_of_a_run_whose_clients_have_other_parts(section: Content) -> None:
    content = {"task": {"kind": "quadratic", "dim": 3}, "coordinator": {"clients": 6, **section}}
    assert not compose.plan(load_experiment(content)).pausable


def test_an_alias_of_a_type_stands_for_its_value() -> None:
    """numpy's NDArray is one from numpy 2.5 on."""
    part = TypeVar("part")
    one = TypeAliasType("one", list[part] | None, type_params=(part,))
    assert alternatives(one[int]) == (list[int], NoneType)
