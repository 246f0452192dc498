"""Who is who in a run: ids without gaps, those that learn first, and words for everybody."""

from __future__ import annotations

import pytest

from fedgossip.core.roles import CLIENT, SERVER, Role, Roles, federated_roles, peer_roles, roles_from, roles_in

WORKERS = Role("worker", 0, 8, counted=False, transport=CLIENT)
SERVERS = Role("server", 8, 2, learns=False, transport=SERVER)


def test_members_of_a_role_are_counted_from_its_first() -> None:
    roles = Roles((WORKERS, SERVERS))
    assert (roles.label(7), roles.label(9)) == ("worker 7", "server 1")
    assert (roles.n, roles.learners, roles.counted, roles.leader) == (10, 8, (8, 9), None)
    assert roles.wording == "8 workers, 2 servers"


def test_the_only_one_that_does_not_learn_needs_no_number() -> None:
    assert federated_roles(5).label(5) == "coordinator"
    assert federated_roles(1).label(0) == "client 0"


def test_one_leads_where_its_model_alone_is_the_outcome() -> None:
    assert federated_roles(5).leader == 5
    assert peer_roles(1).leader is None


def test_only_those_that_are_called_need_an_address() -> None:
    roles = federated_roles(3)
    assert [roles.listens(node) for node in (0, 3, 9)] == [False, True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        (Role("worker", 1, 8),),
        (WORKERS, Role("server", 9, 1, learns=False)),
        (Role("server", 0, 1, learns=False), Role("worker", 1, 8)),
    ],
)
def test_gaps_and_servers_before_workers_are_refused(wrong: tuple[Role, ...]) -> None:
    with pytest.raises(ValueError, match="ids"):
        Roles(wrong)


def test_roles_are_read_back_as_they_were_written() -> None:
    roles = Roles((WORKERS, SERVERS))
    assert roles_from(roles.plain) == roles


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        [{}],
        [{"name": "peer", "count": -1}],
        [{"name": "peer", "count": "3"}],
        [{"name": "\x1b[2J", "count": 3}],
        [{"name": "peer" * 20, "count": 3}],
    ],
)
def test_what_is_no_list_of_roles_is_refused(content: object) -> None:
    with pytest.raises(ValueError):
        roles_from(content)


def test_a_summary_from_before_roles_has_peers_or_clients_of_a_coordinator() -> None:
    assert roles_in({"n": 4, "mode": "sync"}) == peer_roles(4)
    assert roles_in({"n": 4, "mode": "federated"}) == federated_roles(4)
