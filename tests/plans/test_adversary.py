"""Peers that lie: the same bits in every driver, records of the honest alone, and who holds against what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import load_experiment, simulate
from fedgossip.algorithms.robust.attacks import ATTACKS, ObservedModels, attack_of, lies
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.records import NetworkRow, PeerRow
from fedgossip.plans import compose
from fedgossip.plans.gossip.gossip_checks import roles_with

N, LIARS = 10, [3, 4, 8]
HONEST = [node for node in range(N) if node not in LIARS]
MODELS = [name for name in ATTACKS if name != "label-flip"]


def experiment(attack: str = "sign-flip", combine: str = "clipped", **more: Any) -> dict[str, Any]:
    return {
        "rounds": 12,
        "task": {"kind": "quadratic", "dim": 5, "placement": "random", "dtype": "float64"},
        "topology": {"graph": "regular:4", "n": N},
        "algorithm": {"combine": combine, "deadline": 1e5},
        "adversary": {"peers": LIARS, "attack": attack},
        "eval": {"every": 4},
        **more,
    }


# --- the attacks by hand ----------------------------------------------------------------------------------------------


def seen(own: Any, good: dict[int, Any], **more: Any) -> ObservedModels:
    vectors = {j: frozen(np.array(one, np.float64)) for j, one in good.items()}
    row = {0: 0.5, 1: 0.2, 2: 0.1, 9: 0.2}
    said: dict[str, Any] = {
        "node": 9,
        "round": 2,
        "seed": 1,
        "row_of": lambda _: row,
        "attackers": frozenset({9}),
        **more,
    }
    return ObservedModels(own=frozen(np.array(own, np.float64)), good=vectors, **said)


def told(name: str, view: ObservedModels, to: int = 0, **options: Any) -> Any:
    return lies(attack_of(name, options), view, (0, 1))[to].tolist()


def test_the_attacks_by_hand() -> None:
    view = seen([5.0, -1.0], {0: [1.0, 2.0], 1: [3.0, 2.0], 2: [2.0, 5.0]})
    assert told("sign-flip", view) == [-5.0, 1.0]
    assert told("label-flip", view) == [5.0, -1.0]
    assert told("ipm", view, scale=0.5) == pytest.approx([-1.0, -1.5])
    assert told("alie", view, z=2.0) == pytest.approx([2 - 2 * np.sqrt(2 / 3), 3 - 2 * np.sqrt(2.0)])
    # to 0, x_0 = (1, 2): w_01 (x_1 - x_0) + w_02 (x_2 - x_0) = (.4 + .1, 0 + .3), times -scale / .2
    assert told("dissensus", view, scale=2.0) == pytest.approx([1 - 5.0, 2 - 3.0])


def test_noise_is_a_function_of_seed_peer_and_round() -> None:
    first = told("noise", seen([0.0, 0.0], {}), scale=3.0)
    assert first == told("noise", seen([0.0, 0.0], {}), scale=3.0)
    assert first != told("noise", seen([0.0, 0.0], {}, round=3), scale=3.0)
    assert first == (3.0 * np.array(told("noise", seen([0.0, 0.0], {}), scale=1.0))).tolist()


def test_one_who_has_heard_nobody_says_what_it_has() -> None:
    for name in ("ipm", "alie", "dissensus"):
        assert told(name, seen([5.0], {})) == [5.0]


# --- in a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", ["linear", "nna"])
@pytest.mark.parametrize("attack", MODELS)
def test_one_digest_in_the_simulator_and_on_stacked_arrays(attack: str, combine: str) -> None:
    uneven = {"training_jitter": 1.0, "speed_spread": 0.5, "jitter": 0.01}
    arrays = simulate(experiment(attack, combine), engine="stacked")
    simulated = simulate(experiment(attack, combine, simulation=uneven))
    assert arrays.digest == simulated.digest
    assert [v.tolist() for v in arrays.vectors] == [v.tolist() for v in simulated.vectors], "of attackers too"
    one, other = ([row for row in run.rows if isinstance(row, NetworkRow)] for run in (arrays, simulated))
    for here, there in zip(one, other, strict=True):
        assert (here.loss, here.consensus_distance, here.update_spread, here.peers) == (
            there.loss, there.consensus_distance, there.update_spread, there.peers,
        )  # fmt: skip
    honest = simulate({**experiment(attack, combine), "adversary": {}}, engine="stacked")
    assert [v.tolist() for v in arrays.vectors] != [v.tolist() for v in honest.vectors]


@pytest.mark.parametrize("graph", ["el-oracle:4", "directed-exponential"])
def test_the_same_where_the_graph_changes_or_is_directed(graph: str) -> None:
    content = experiment("dissensus", "linear", topology={"graph": graph, "n": N})
    assert simulate(content).digest == simulate(content, engine="stacked").digest


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("attack", "combine"),
    [
        ("dissensus", "clipped"),
        ("ipm", "linear"),  # peers mix in the memory of what they receive
        *(pytest.param(a, "clipped", marks=pytest.mark.long) for a in MODELS[:-1]),
    ],
)
def test_sockets_have_the_bits_of_the_arrays(attack: str, combine: str) -> None:
    content = experiment(attack, combine)
    plan = compose.plan(load_experiment(content))
    vectors, _ = run_over_sockets(plan, compose.task_of(plan.experiment, plan.n)[0])
    arrays = simulate(content, engine="stacked")
    assert digest(plan.outcome(vectors)) == arrays.digest == digest([arrays.vectors[node] for node in HONEST])


def test_records_are_of_the_honest_and_attackers_have_rows_of_their_own() -> None:
    run = simulate(experiment("noise", "linear"), engine="stacked")
    honest = np.stack([run.vectors[node] for node in HONEST])
    network = [row for row in run.rows if isinstance(row, NetworkRow)]
    assert {row.peers for row in network} == {len(HONEST)}
    spread = float(np.sqrt(((honest - honest.mean(axis=0)) ** 2).sum(axis=1).mean()))
    assert network[-1].consensus_distance == pytest.approx(spread) == pytest.approx(run.summary["consensus_distance"])
    rows = [row for row in run.rows if isinstance(row, PeerRow) and row.round == 12]
    assert {row.peer for row in rows} == set(range(N)) and all(row.bytes_sent for row in rows)
    assert network[-1].bytes_sent == sum(row.bytes_sent for row in run.rows if isinstance(row, PeerRow))


def test_attackers_are_called_so_and_all_keep_their_ids() -> None:
    roles = roles_with(frozenset(LIARS), N)
    assert [roles.label(node) for node in (2, 3, 5, 8, 9)] == ["peer 2", "attacker 3", "peer 5", "attacker 8", "peer 9"]
    assert roles.wording == "7 peers, 3 attackers" and roles.counted == tuple(HONEST)
    assert roles_with(frozenset({0}), 3).one == "peer" and roles_with(frozenset(), 3).alike


def test_an_attacker_that_waits_for_everybody_stops_nobody() -> None:
    """Two attackers beside each other, messages lost, an honest neighbour dead: deadlines end every wait."""
    faults = [{"kind": "drop", "probability": 0.2}, {"kind": "crash", "peers": [2], "start": 0.3}]
    section = {"combine": "clipped", "deadline": 1.0, "least_deadline": 0.3}
    run = simulate(experiment("alie", algorithm=section, faults=faults))
    assert all(run.vectors[node] is not None for node in range(N) if node != 2)


def test_more_knowledge_makes_another_run_and_is_for_arrays_alone() -> None:
    content = experiment("alie")
    content["adversary"]["knowledge"] = "all"
    assert simulate(content, engine="stacked").digest != simulate(experiment("alie"), engine="stacked").digest
    with pytest.raises(ConfigError, match="a real attacker knows only the messages of its neighbours") as refused:
        simulate(content)
    assert "--on stacked" in refused.value.advice


def test_a_run_with_attackers_goes_on_from_an_image(tmp_path: Any) -> None:
    from test_resume import ctrl_c_after

    from fedgossip.drivers.simulate import simulate_plan

    for engine in ("sim", "stacked"):
        plan = compose.plan(load_experiment(experiment("alie")))
        simulate_plan(plan, engine=engine, out=tmp_path / engine, watch=ctrl_c_after(60))
        again = simulate_plan(plan, engine=engine, out=tmp_path / engine, resume=True)
        assert again.digest == simulate(experiment("alie"), engine="stacked").digest


def test_an_experiment_without_attackers_is_the_same_as_before_there_were_any() -> None:
    assert "adversary" not in load_experiment({**experiment(), "adversary": {}}).to_dict()
    assert load_experiment(experiment()).to_dict()["adversary"]["peers"] == LIARS


def learned(attack: str, combine: str, **options: Any) -> float:
    """The mean score of honest peers on digits."""
    content = {
        "rounds": 8,
        "data": {"partition": {"kind": "iid"}},
        "train": {"lr": 0.5, "local_steps": 3, "device": "cpu"},
        "topology": {"graph": "complete", "n": 8},
        "algorithm": {"combine": combine, "combine_options": options},
        "adversary": {"peers": [2, 5], "attack": attack} if attack else {},
        "eval": {"every": 8},
    }
    return float(simulate(content, engine="stacked").summary["score"]["mean_peer"])


def test_the_report_draws_attackers_apart_and_scores_the_honest(tmp_path: Any) -> None:
    content = {
        "rounds": 3,
        "train": {"device": "cpu"},
        "topology": {"graph": "regular:4", "n": 6},
        "algorithm": {"combine": "trimmed-mean"},
        "adversary": {"peers": [2], "attack": "noise"},
    }
    run = simulate(content, engine="stacked", out=tmp_path / "run", report=True)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "5 peers" in page and "1 attacker" in page and "attacker 2" in page and "peer 3" in page
    assert "Those in squares lie" in page
    assert "put together by another rule, or some of the peers lied" in " ".join(page.split())
    assert "inside the band" not in page
    assert run.summary["score"]["worst_peer"] is not None


def test_a_sum_falls_to_an_attack_that_rules_hold_against() -> None:
    quiet = learned("", "linear")
    assert quiet > 0.8
    assert learned("noise", "linear") < quiet - 0.15
    for combine, options in (("trimmed-mean", {"f": 2}), ("nna", {"f": 2})):
        assert learned("noise", combine, **options) > quiet - 0.05, combine


def test_flipped_labels_are_those_of_the_attackers_alone() -> None:
    from fedgossip.data import data
    from fedgossip.plans.tasks import _flipped

    digits, shares = data.load("digits", seed=1), {node: np.arange(node, 400, 4) for node in range(4)}
    content = {"topology": {"graph": "ring", "n": 4}, "adversary": {"peers": [1], "attack": "label-flip"}}
    lying = _flipped(load_experiment(content), digits, shares)
    assert (lying.y[shares[1]] == 9 - digits.y[shares[1]]).all()
    rest = np.setdiff1d(np.arange(len(digits.y)), shares[1])
    assert (lying.y[rest] == digits.y[rest]).all()
    assert _flipped(load_experiment({**content, "adversary": {}}), digits, shares) is digits


# --- what is refused --------------------------------------------------------------------------------------------------


RING_OF_MEDIANS = {"topology": {"graph": "ring", "n": N}, "algorithm": {"combine": "median"}}


def having(**adversary: Any) -> dict[str, Any]:
    return {**experiment(), "adversary": {"peers": LIARS, **adversary}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (having(peers=[10]), "adversary.peers: there is no peer 10"),
        (having(peers=[-1]), "adversary.peers"),
        (having(peers=list(range(9))), "9 of 10 peers lie"),
        (having(attack="lie"), "adversary.attack"),
        (having(options={"scale": 2}), "adversary.attack = 'sign-flip' has no option 'scale'"),
        (having(attack="noise", options={"scale": 0}), "scale is 0; expected a number above 0"),
        (having(attack="label-flip"), "label-flip: quadratic has no labels"),
        (experiment(algorithm={"private": True}), "with algorithm.private"),
        (experiment(algorithm={"mode": "async"}), "in async mode sends other things"),
        (experiment(algorithm={"name": "gradient-tracking"}), "gradient-tracking in sync mode sends other things"),
        (experiment(algorithm={"name": "push-sum"}), "push-sum in sync mode sends other things"),
        (having(peers=[3, 5]) | RING_OF_MEDIANS, "2 of the 3 models that node 4 puts together are lies, and median"),
    ],
)
def test_attackers_that_cannot_be_are_refused_before_anything_runs(content: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose.plan(load_experiment(content))
    assert said in str(refused.value) and refused.value.advice
    assert "\n" not in f"{refused.value}{refused.value.advice}"
