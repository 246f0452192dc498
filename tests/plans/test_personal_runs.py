"""Models of the participants' own in whole runs: one digest in all drivers, secure sums, resuming, and refusals."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.cli.run.run import facts as closing
from fedgossip.core.gains import ALONE, PERSONAL, SHARED, gains_counted
from fedgossip.core.records import PeerRow
from fedgossip.data.partitions import hold_out
from fedgossip.drivers.resume import resume
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose
from fedgossip.plans.tasks import examples_of, with_personal
from fedgossip.report.page import write_report

ALL = "finetune", "ditto", "mr-mtl", "apfl", "fedrep", "pfedme", "ifca"
Content = dict[str, Any]


def content(**more: Any) -> Content:
    return {
        "rounds": 4,
        "data": {"local_test": 0.25, "partition": {"kind": "pathological", "classes_per_peer": 4}},
        "model": {"source": "mlp:64-16-10"},
        "train": {"local_steps": 3, "device": "cpu"},
        "eval": {"every": 2},
    } | more


def federated(personal: str | None, clients: int = 4, **more: Any) -> Content:
    section = {"clients": clients, **({"personal": personal} if personal else {}), **more}
    return content(coordinator=section)


def gossip(personal: str, n: int = 8, **more: Any) -> Content:
    return content(topology={"graph": "ring", "n": n}, algorithm={"personal": personal, **more})


def scores(run: fedgossip.Run) -> list[tuple[int, int, list[tuple[str, float | None]]]]:
    """Return what each participant measured on its own examples: of its own model, of the shared one, of one alone."""
    rows = [row for row in run.rows if isinstance(row, PeerRow) and PERSONAL in (row.logged or {})]
    return sorted((row.round, row.peer, sorted((row.logged or {}).items())) for row in rows)


@pytest.mark.parametrize("personal", ALL)
def test_clients_end_with_one_digest_in_the_simulator_and_on_arrays_secure_and_not(personal: str) -> None:
    """On arrays the integers of a secure sum are added without masks, keys or messages."""
    for secure in ({}, {"secure": {"on": False}}):
        runs = [fedgossip.simulate(federated(personal, **secure), engine=engine) for engine in ("sim", "stacked")]
        assert len({run.digest for run in runs}) == 1
        assert scores(runs[0]) == scores(runs[1]) and scores(runs[0])


@pytest.mark.parametrize("weighting", ["examples", "clients"])
def test_a_secure_sum_counts_who_is_behind_without_saying_who(weighting: str) -> None:
    """The coordinator has exact counts, whatever a client weighs in the mean; the clients' rows are not asked."""
    one = federated("ditto?lambda=5", 5, options={"weighting": weighting})
    for engine in ("sim", "stacked"):
        run = fedgossip.simulate(one, engine=engine)
        told = [row.logged for row in run.rows if isinstance(row, PeerRow) and row.peer == 5 and row.logged]
        assert len(told) == 2, "in evaluated rounds alone"
        found, exact = gains_counted(told[-1], 5), run.summary["personal"]
        assert found and found["tested"] == exact["tested"] == 5
        assert (found["behind_shared"], found["behind_alone"]) == (exact["behind_shared"], exact["behind_alone"])
        assert 0 <= (exact["worst_own"] or 0) - (found["worst_own"] or 0) < 0.05
    clear = fedgossip.simulate(federated("ditto?lambda=5", 5, secure={"on": False}))
    assert not any(row.logged for row in clear.rows if isinstance(row, PeerRow) and row.peer == 5)


@pytest.mark.parametrize("personal", ALL)
def test_peers_of_a_ring_end_with_one_digest_in_the_simulator_and_on_arrays(personal: str) -> None:
    runs = [fedgossip.simulate(gossip(personal), engine=engine) for engine in ("sim", "stacked")]
    assert len({run.digest for run in runs}) == 1
    assert scores(runs[0]) == scores(runs[1]) and len(scores(runs[0])) == 2 * 8


def test_ditto_leaves_the_shared_model_as_it_is_without() -> None:
    for of in (federated, gossip):
        plain = of("ditto")
        del plain["coordinator" if of is federated else "algorithm"]["personal"]
        assert fedgossip.simulate(of("ditto")).digest == fedgossip.simulate(plain).digest


@pytest.mark.sockets
def test_processes_of_clients_and_peers_end_with_the_digest_of_the_simulator(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    some = [federated(one, 3) for one in (ALL if request.config.getoption("--long") else ("ditto",))]
    if request.config.getoption("--long"):
        some += [gossip(one) for one in ALL]
    for place, one in enumerate(some):
        run = fedgossip.run_local(one, tmp_path / str(place), report=False)
        simulated = fedgossip.simulate(one)
        assert run.digest == simulated.digest and scores(run) == scores(simulated)


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("one", [federated("apfl", secure={"on": False}), gossip("mr-mtl", 4)])
def test_a_stopped_run_goes_on_with_the_models_of_its_own(one: Content, engine: str, tmp_path: Path) -> None:
    whole = fedgossip.simulate(one, engine=engine)
    rows = 0

    def stop(_: Any) -> None:
        nonlocal rows
        rows += 1
        if rows == 12:
            raise KeyboardInterrupt

    fedgossip.simulate(one, engine=engine, out=tmp_path / "run", watch=stop)
    again = resume(tmp_path / "run", report=False)
    assert rows >= 12 and again.digest == whole.digest and scores(again) == scores(whole)


def test_what_is_compared_is_the_shared_model_of_the_run_and_a_model_trained_alone() -> None:
    """Of equal shares, all in every round: a model alone is Ditto's without its pull, the shared one that of fedavg."""
    compared, alone = (fedgossip.simulate(federated(one)) for one in ("ditto?lambda=5", "ditto?lambda=0"))
    plain = {(row.round, row.peer): row.score for row in fedgossip.simulate(federated(None)).rows if is_client(row)}
    for (round, peer, found), (_, _, other) in zip(scores(compared), scores(alone), strict=True):
        assert dict(found)["score_alone"] == dict(other)["score_alone"] == dict(other)["score_personal"]
        assert dict(found)["score_shared"] == plain[round, peer]
    assert any(dict(found)["score_alone"] != dict(found)["score_personal"] for *_, found in scores(compared))


def is_client(row: Any) -> bool:
    return isinstance(row, PeerRow) and row.peer < 4


@pytest.mark.parametrize("kind", ["federated", "peers"])
def test_personal_models_that_nothing_tests_are_named_so(kind: str, tmp_path: Path) -> None:
    one: Content = {"rounds": 1, "train": {"local_steps": 1, "device": "cpu"}}
    one |= {"coordinator": {"clients": 3, "personal": "ditto"}} if kind == "federated" else {}
    one |= {"topology": {"graph": "ring", "n": 3}, "algorithm": {"personal": "ditto"}} if kind == "peers" else {}
    run = fedgossip.simulate(one, out=tmp_path / "run", report=True)
    assert dict(closing(run.summary, run.rows))["own models"].startswith("not measured: data.local_test")
    assert "not measured: data.local_test" in (tmp_path / "run" / "report.html").read_text()


def test_the_summary_and_the_page_say_who_gains(tmp_path: Path) -> None:
    run = fedgossip.simulate(federated("ditto", secure={"on": False}), out=tmp_path / "run", report=True)
    last = [dict(found) for round, _, found in scores(run) if round == 4]
    facts = run.summary["personal"]
    assert facts["worst_own"] == min(one["score_personal"] or 0 for one in last) and facts["tested"] == 4
    assert facts["behind_alone"] == sum((one["score_personal"] or 0) < (one["score_alone"] or 0) for one in last)
    page = (tmp_path / "run" / "report.html").read_text()
    assert (
        "Who gains" in page
        and 'id="gains"' in page
        and "gain in accuracy (points of 100)" in page
        and "Other recorded numbers" not in page
    )
    assert -1 < page.find("Own models, mean") < page.find("Global model") < page.find("What was learned")
    rows = [text for name, text in closing(run.summary, run.rows) if name in ("own models", "")]
    assert rows == [
        f"{facts['mean_own']:.4f} the mean, {facts['worst_own']:.4f} the worst, each on its client's own examples",
        f"of 4, {facts['behind_shared']} worse than the shared one and "
        f"{facts['behind_alone']} worse than one trained alone",
    ]
    counted: Any = {**run.summary, "personal": {**facts, "mean_own": None}}
    assert "at the clients" in dict(closing(counted, run.rows)), "a coordinator that sees counts alone has their mean"
    assert run.summary["exchanged"] == "models" and not {"personal", "exchanged"} & {
        *fedgossip.simulate(federated(None)).summary
    }


def test_the_page_of_a_coordinator_alone_has_its_counts(tmp_path: Path) -> None:
    fedgossip.simulate(federated("ditto"), out=tmp_path / "run", report=False)
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    own = [row for row in rows if "score_personal" not in row]
    assert len(own) < len(rows)
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(own))
    page = write_report(tmp_path / "run").read_text()
    assert "worse off than alone" in page and 'id="gains"' not in page


def one_untested(content: Content, examples: int = 1) -> tuple[fedgossip.Experiment, TorchTask]:
    """Return an experiment of three, and its task: a site has `examples` and keeps all of them for its training."""
    one = fedgossip.load_experiment(content | {"data": {"local_test": 0.5}})
    found = examples_of(one, range(3), 3)
    trained, kept = hold_out(found.shares, 0.5, 1)
    trained, kept = {**trained, 1: found.shares[1][:examples]}, {node: kept[node] for node in (0, 2)}
    return one, TorchTask(found.train, found.test, trained, "mlp:64-16-10", one.train, seed=1, rounds=4, kept=kept)


def test_a_participant_without_examples_to_test_on_is_counted_and_trains() -> None:
    one, plain = one_untested(federated("ditto", 3, secure={"on": False}))
    run = fedgossip.simulate(one, task=with_personal(one, plain))
    assert run.summary["personal"]["tested"] == 2 and run.summary["personal"]["untested"] == 1


@pytest.mark.parametrize("options", [{}, {"weighting": "clients"}])
def test_the_score_of_a_secure_sum_is_the_mean_of_the_clients_that_have_one(options: Content) -> None:
    """Those with a score have as many examples each: the mean is that of the clear."""
    found = []
    for secure, engine in (({"on": False}, "sim"), ({}, "sim"), ({}, "stacked")):
        one, task = one_untested(federated(None, 3, secure=secure, options=options), 100)
        run = fedgossip.simulate(one, task=task, engine=engine)
        rows = [row for row in run.rows if isinstance(row, PeerRow)]
        found.append([row.score_clients for row in rows if row.score_clients is not None])
        own = [row.score for row in rows if row.peer == 1]
        assert len(found[-1]) >= 2 and own and not any(score is not None for score in own)
    clear, *summed = found
    assert all(one == pytest.approx(clear, abs=2e-3) for one in summed)


@pytest.mark.parametrize("personal", ["ditto", "fedrep", "mr-mtl"])
def test_a_round_done_again_begins_from_the_models_of_before_it(personal: str) -> None:
    """A client that had answered dies with its coordinator, which waits for a slow one: both go on from checkpoints."""
    slow = {"kind": "slow", "peers": [2], "factor": 10.0}
    one = federated(personal, 3, secure={"on": False})
    crash = {"kind": "crash", "peers": [0, 3], "start": 0.7, "after": 0.05}
    whole, again = (fedgossip.simulate(one | {"faults": faults}) for faults in ([slow], [slow, crash]))
    assert again.digest == whole.digest and again.summary["events"]["restarted"] == 2
    assert {repr(row) for row in scores(again)} == {repr(row) for row in scores(whole)}


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.parametrize(
    "one",
    [federated("ditto", 3, secure={"on": False}, least_deadline=60.0), gossip("mr-mtl", 4, least_deadline=60.0)],
)
def test_stopped_processes_go_on_with_the_models_of_their_own(one: Content, tmp_path: Path) -> None:
    """In the clear: a secure sum that was going on is abandoned, with personal models and without; and a peer that had
    stopped a round ahead reports an exchange that is lost."""
    one = one | {"rounds": 40}
    whole, count = fedgossip.simulate(one), itertools.count()

    def stop(_: Any) -> None:
        if next(count) == 60:
            raise KeyboardInterrupt

    fedgossip.run_local(one, tmp_path / "run", report=False, watch=stop)
    again = resume(tmp_path / "run", report=False)
    lost = {"skipped", "missed", "late"}.intersection(again.summary["events"])
    assert again.summary["rounds"] == 40 and len(scores(again)) == len(scores(whole))
    assert lost or (again.digest == whole.digest and scores(again) == scores(whole))


PAGE = (Path(__file__).parents[2] / "docs" / "use" / "personal.md").read_text()
STUDY = (
    "finetune?epochs=5",
    "ditto?lambda=0.1",
    "mr-mtl?lambda=0.1",
    "apfl",
    "fedrep",
    "pfedme?lambda=2&steps=3&rate=0.25",
)
MNIST = {"source": "mnist", "local_test": 0.3, "partition": {"kind": "dirichlet", "alpha": 0.1, "min_size": 20}}
TWO_CLASSES = {"local_test": 0.3, "partition": {"kind": "pathological", "classes_per_peer": 2}}


def mean_of(run: fedgossip.Run, name: str) -> float:
    return fmean(dict(found)[name] or 0.0 for *_, found in scores(run))


def interval(differences: Sequence[float]) -> float:
    """Return half the 95 % interval of the mean of five, by Student's t."""
    return 2.776 * stdev(differences) / math.sqrt(len(differences))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("data", "model", "clients", "over_alone"),
    [
        (TWO_CLASSES, "mlp:64-32-10", 10, ()),  # two classes are easy to part alone
        (MNIST, "mlp:784-64-10", 20, ("finetune?epochs=5", "ditto?lambda=0.1", "fedrep")),
    ],
)
def test_over_five_seeds_personal_models_are_ahead_of_the_shared_one(
    data: Content, model: str, clients: int, over_alone: Sequence[str]
) -> None:
    """By more than the 95 % interval of the paired differences; `over_alone`: also of a model trained alone."""
    more = {"rounds": 30, "data": data, "model": {"source": model}, "train": {"local_steps": 10, "device": "cpu"}}
    ahead: dict[str, list[tuple[float, float]]] = {}
    fedavg: dict[int, tuple[float, float]] = {}
    for seed in range(1, 6):
        for personal in ("ditto", *STUDY):
            one = federated(personal, clients, secure={"on": False}) | more | {"seed": seed, "eval": {"every": 30}}
            if personal == "ditto":  # its shared model is that of fedavg, to the bit
                plain = fedgossip.simulate(one)
                fedavg[seed] = mean_of(plain, SHARED), mean_of(plain, ALONE)
                continue
            own = mean_of(fedgossip.simulate(one), PERSONAL)
            ahead.setdefault(personal, []).append((own - fedavg[seed][0], own - fedavg[seed][1]))
    for personal, pairs in ahead.items():
        found = [100 * number for one in zip(*pairs, strict=True) for number in (fmean(one), interval(one))]
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{personal}` | +")]
        shown = [float(one) for one in re.findall(r"[+-]?[\d.]+", row.partition("` |")[2])]
        assert data is MNIST or found == pytest.approx(shown[:4], abs=0.5), personal
        over = zip(*pairs, strict=True) if personal in over_alone else [[pair[0] for pair in pairs]]
        assert all(fmean(one) > interval(one) for one in over)


def test_personal_models_serve_clients_of_two_classes_better_than_the_shared_one() -> None:
    data = {"local_test": 0.3, "partition": {"kind": "pathological", "classes_per_peer": 2}}
    more = {"rounds": 12, "data": data, "train": {"local_steps": 10, "device": "cpu"}}
    of = {
        personal: fedgossip.simulate(federated(personal, 10, secure={"on": False}) | more).accuracy["mean_peer"]
        for personal in (None, "ditto?lambda=1", "fedrep")
    }
    shared = of.pop(None)
    assert shared is not None and all(score is not None and score > shared + 0.1 for score in of.values())


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (federated("ditto", codec="top-k:0.1", secure={"on": False}), "adds what it left out"),
        (federated("ditto") | {"train": {"personal": "layer2*"}}, "both keep parameters"),
        (gossip("fedrep") | {"train": {"personal": "layer2*"}}, "both keep parameters"),
        (federated("ditto?lambda=-1"), "out of range"),
        (federated("ifca?clusters=5"), "5 clusters of 4 clients"),
        (gossip("ifca?clusters=9"), "9 clusters of 8 peers"),
        (federated("ditto", algorithm="fedsgd"), "by a rule of its own"),
        (federated("mr-mtl", algorithm="scaffold"), "by a rule of its own"),
        (federated("mr-mtl", algorithm="fedbuff", secure={"on": False}), "an older mean"),
        (gossip("mr-mtl", name="gradient-tracking"), "updates of usual training"),
        (gossip("mr-mtl", mode="async"), "updates of usual training"),
        (gossip("fedrep", options={"order": "cta"}), "updates of usual training"),
        (federated("apfl") | {"train": {"local_epochs": 1}}, "local_epochs counts passes"),
        (federated("fedrep") | {"train": {"momentum": 0.9}}, "plain steps of SGD"),
        (federated("ditto") | {"task": {"kind": "averaging"}, "data": {}, "model": {}, "train": {}}, "trains no model"),
        (federated("ifca", privacy={"unit": "record"}), "reads losses and gradients"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_run(one: Content, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        compose.plan(fedgossip.load_experiment(one))
    assert error.value.advice and "\n" not in str(error.value.args[0])


def test_a_dry_run_has_the_layout_of_what_is_sent() -> None:
    for personal, length in (("ditto", 1210), ("fedrep", 1040), ("ifca?clusters=3", 3630)):
        plan = compose.plan(fedgossip.load_experiment(federated(personal)))
        dry, made = compose.task_of_dry_run(plan.experiment, 4)[0], compose.task_of(plan.experiment, 4)[0]
        assert dry.length == made.length == length and dry.schema == made.schema
        assert np.array_equal(np.zeros(length), dry.initial(0)) or personal.startswith("ifca")
