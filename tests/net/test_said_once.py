"""On a link that lives nothing is lost, so nothing large is said twice on it: a repeat takes a model's memory twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sealed_kit import Two, model, two

from fedgossip.core.messages import Account, Model
from fedgossip.net.streams.sealed_way import SealedWay
from fedgossip.net.transport import Arrived, ModelBegun

pytestmark = pytest.mark.sockets


@pytest.fixture(params=["sealed", "curve"])
def pair(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Two]:
    with two(monkeypatch, request.param, request.param) as made:
        made.until(lambda: all(made.ups(node) for node in (0, 1)), "links")
        yield made


def said(pair: Two, node: int, message: Model | Account) -> bool:
    """Let a peer send to the other; tell whether it has been queued or sent."""
    before = pair.peers[node].bytes_sent
    pair.peers[node].send(1 - node, message)
    return pair.peers[node].bytes_sent > before


def test_a_model_that_waits_or_is_under_way_is_not_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same vectors in another message all is said: it may be of another round, or of an edge that changed."""
    with two(monkeypatch) as pair:
        pair.seal()
        with monkeypatch.context() as network:
            network.setattr(SealedWay, "send", lambda *_: False)  # it takes nothing
            under_way, waiting = model(1), model(2)
            assert said(pair, 0, under_way) and said(pair, 0, waiting)
            assert not said(pair, 0, under_way) and not said(pair, 0, waiting)
            assert not said(pair, 0, replace(waiting))
            assert said(pair, 0, replace(waiting, missing=1))
        pair.peers[0]._flush(pair.peers[0]._links[1])
        pair.until(lambda: pair.rounds(1).count(2) == 2, "the models")
        pair.turn()
        assert pair.rounds(1) == [0, 1, 2, 2]
        assert said(pair, 0, waiting)  # it may have been lost on the receiver's side of the link
        pair.until(lambda: pair.rounds(1) == [0, 1, 2, 2, 2], "the model again")


def test_a_model_that_is_coming_in_is_not_asked_for(pair: Two) -> None:
    pair.peers[0].send(1, model(5))
    pair.until(lambda: any(isinstance(event, ModelBegun) for event in pair.heard[1]), "its beginning")
    question = Account(5, asks=True)
    assert pair.rounds(1) == [] and not said(pair, 1, question)
    assert said(pair, 1, Account(4, asks=True)) and said(pair, 1, Account(5))
    pair.until(lambda: pair.rounds(1) == [5], "all of it")
    assert said(pair, 1, question)
    pair.until(lambda: Arrived(1, question) in pair.heard[0], "the question")


def test_a_link_that_breaks_says_the_model_again_that_was_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not said twice on one connection is said on the next."""
    with two(monkeypatch) as pair:
        pair.seal()
        pair.send(0, 7)
        link = pair.peers[0]._links[1]
        assert link.recent[-1].round == 7  # type: ignore[union-attr]
        pair.peers[0]._broke(link, pair.heard[0])
        pair.until(lambda: 7 in pair.rounds(1) and pair.ups(0)[-1], "the model, by another connection")
