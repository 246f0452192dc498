"""What one whose key nobody knows can do at a peer that lets guests ask to join: ask, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from test_net_security import DIM, EXPECTED, HELLO, arrived, calling, greeting, header, heard_until, mark, reasons

from fedgossip.base.errors import ConfigError
from fedgossip.cli import cli
from fedgossip.core.messages import DECLARED, AnyMessage, Carrier, Entry, Join
from fedgossip.core.wire import VOCABULARY, Header, frames
from fedgossip.net.endpoints import Endpoint, block, load_members
from fedgossip.net.identity import Identity, verify
from fedgossip.net.links.mesh import GUEST_MESSAGES, Links
from fedgossip.net.sockets import GUESTS
from fedgossip.net.transport import NOBODY
from fedgossip.protocols.members.membership_updates import admission_of

pytestmark = pytest.mark.sockets

SAID = b"what was signed"


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    made = Links(0, f"ipc://{tmp_path}/0", Identity.new())
    made.connect((), {}, EXPECTED, HELLO)
    made.admit_guests(None)
    yield made
    made.close()


def asking(identity: Identity, address: str) -> Join:
    return Join(Entry(7, 1, address, identity.public, identity.verify))


def said(message: Join) -> tuple[bytes, bytes]:
    ((first, body),) = frames(message, 1, ())
    return first, bytes(body)


def test_a_guest_may_ask_to_join_and_is_heard_as_a_member_once_it_is_let_in(links: Links, tmp_path: Path) -> None:
    stranger = Identity.new()
    with calling(links, stranger) as caller:
        caller.send(*greeting(HELLO))
        caller.send(*said(asking(stranger, f"ipc://{tmp_path}/7")))
        (asked,) = arrived(heard_until(links, arrived))
        assert asked.sender == NOBODY and isinstance(asked.message, Join)
        links.meet(7, Endpoint(asked.message.entry.address, asked.message.entry.key))
        (greeted,) = arrived(heard_until(links, arrived))  # what it said before it was known
        assert (greeted.sender, greeted.message) == (7, HELLO)
        caller.send(*greeting(HELLO))
        assert arrived(heard_until(links, arrived))[0].sender == 7


def test_a_guest_is_not_heard_in_another_name_nor_with_another_message(links: Links, tmp_path: Path) -> None:
    stranger, other = Identity.new(), Identity.new()
    model = header(type="model", round=0, schema="layout", parts=[["float32", DIM]])
    with calling(links, stranger) as caller:
        caller.send(*said(asking(other, f"ipc://{tmp_path}/7")))
        caller.send(mark(b"H", 1), header(type="leaving", round=0))
        caller.send(mark(b"H", 1), model)
        caller.send(mark(b"H", 1), bytes(10_000))
        caller.send(mark(b"C", 1), bytes(100))
        events = heard_until(links, lambda heard: len(reasons(heard)) == 5)
    assert reasons(events) == ["guest", "guest", "vectors", "oversized", "order"] and not arrived(events)


@pytest.mark.parametrize("error", [TypeError, OverflowError, RecursionError, MemoryError, AssertionError])
def test_whatever_a_guests_frame_does_to_its_reader_costs_that_frame_only(
    links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    real = VOCABULARY.decoded

    def decoded(body: bytes) -> Header:
        if body == b"evil":
            raise error
        return real(body)

    stranger = Identity.new()
    monkeypatch.setattr(VOCABULARY, "decoded", decoded)
    with calling(links, stranger) as caller:
        caller.send(mark(b"H", 1), b"evil")
        caller.send(*said(asking(stranger, f"ipc://{tmp_path}/7")))
        events = heard_until(links, arrived)
    assert reasons(events) == ["broken"]


CARRIERS = [kind for kind in DECLARED if issubclass(kind, Carrier)]


def _empty_header(kind: type[AnyMessage]) -> bytes:
    """The header of a message with vectors that announces nothing: no layout, no type, one vector of no elements."""
    of = VOCABULARY.headers[kind]
    fields = msgspec.inspect.type_info(of).fields
    words = {field.encode_name: _least(field.type) for field in fields} | {"parts": [["float32", 0]]}
    return header(type=of.__struct_config__.tag, **words)


def _least(kind: msgspec.inspect.Type) -> object:
    """Return the shortest text or list, or the smallest number, that a header's field may be."""
    match kind:
        case msgspec.inspect.StrType():
            return ""
        case msgspec.inspect.BytesType():
            return b""
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return max(kind.ge or 0, (kind.gt or 0) + 1 if kind.gt is not None else 0)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return []
        case msgspec.inspect.TupleType():
            return [_least(item) for item in kind.item_types]
        case msgspec.inspect.UnionType():
            return _least(kind.types[0])
    raise TypeError(f"no least value of {kind}")


@pytest.mark.parametrize("kind", CARRIERS, ids=lambda kind: kind.__name__)
def test_a_guest_may_announce_no_vectors_not_even_none(links: Links, kind: type[AnyMessage]) -> None:
    """Two messages of one without a key ended a peer: such a header, which fitted, and a chunk."""
    with calling(links, Identity.new()) as caller:
        caller.send(mark(b"H", 1), _empty_header(kind))
        caller.send(mark(b"C", 1), b"")
        caller.send(*greeting(HELLO))
        events = heard_until(links, lambda heard: len(reasons(heard)) == 2)
    assert reasons(events) == ["vectors", "order"]


def test_a_guest_that_talks_on_is_not_listened_to(links: Links) -> None:
    with calling(links, Identity.new()) as caller:
        for _ in range(GUEST_MESSAGES + 5):
            caller.send(*greeting(HELLO))
        events = heard_until(links, lambda heard: len(reasons(heard)) == 5)
    assert set(reasons(events)) == {"guest"} and not arrived(events)


def test_a_guest_that_talked_too_much_is_heard_again_after_a_while(
    links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Identity.new()
    with calling(links, stranger) as caller:
        for _ in range(GUEST_MESSAGES + 1):
            caller.send(*greeting(HELLO))
        heard_until(links, lambda heard: len(reasons(heard)) == 1)
        monkeypatch.setattr("fedgossip.net.links.mesh.GUEST_SECONDS", 0.0)
        caller.send(*said(asking(stranger, f"ipc://{tmp_path}/7")))
        assert arrived(heard_until(links, arrived))[0].sender == NOBODY


def test_strangers_do_not_shut_the_door(links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgossip.net.sockets.GUESTS_SECONDS", 0.0)
    asked, late = Identity.new(), Identity.new()
    with ExitStack() as stack:
        for number in range(GUESTS):
            caller = stack.enter_context(calling(links, asked if number == 0 else Identity.new()))
            caller.send(*greeting(HELLO))
            heard_until(links, lambda _, number=number: len(links.guests.known) == number + 1)  # type: ignore[misc]
            if number == 0:
                caller.send(*said(asking(asked, f"ipc://{tmp_path}/6")))
                heard_until(links, arrived)
        caller = stack.enter_context(calling(links, late))
        caller.send(*greeting(HELLO))
        caller.send(*said(asking(late, f"ipc://{tmp_path}/7")))
        assert arrived(heard_until(links, arrived))[0].sender == NOBODY
        assert len(links.guests.known) == GUESTS and {asked.public, late.public} <= links.guests.known.keys()


def test_a_guest_for_whom_there_is_no_room_tries_again(
    links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgossip.net.sockets.GUESTS", 0)
    late = Identity.new()
    with calling(links, late) as caller:
        caller.send(*said(asking(late, f"ipc://{tmp_path}/7")))
        heard_until(links, lambda heard: "unknown_key" in reasons(heard))
        monkeypatch.setattr("fedgossip.net.sockets.GUESTS", 16)
        assert arrived(heard_until(links, arrived))[0].sender == NOBODY


def test_an_address_or_a_key_that_cannot_be_used_costs_nothing_but_itself(links: Links) -> None:
    for endpoint in (Endpoint("http://x", Identity.new().public), Endpoint("tcp://10.0.0.1:1", "short")):
        with pytest.raises(ConfigError):
            links.meet(7, endpoint)
    assert links.partners == ()


def test_signatures_are_those_of_the_key_in_the_file(tmp_path: Path) -> None:
    identity = Identity.new()
    identity.save(tmp_path / "peer.key")
    signature = Identity.load(tmp_path / "peer.key").sign(SAID)
    assert verify(identity.verify, SAID, signature)
    for key, data, text in (
        (Identity.new().verify, SAID, signature),
        (identity.verify, SAID + b"!", signature),
        (identity.verify, SAID, signature[:-2] + ("00" if signature[-2:] != "00" else "01")),
        ("nonsense", SAID, signature),
        (identity.verify, SAID, "ü"),
    ):
        assert not verify(key, data, text)


def test_the_file_of_members_needs_keys_of_signatures_and_ones_own_block(tmp_path: Path) -> None:
    path, identity = tmp_path / "endpoints.toml", Identity.new()
    full = Endpoint("tcp://10.0.0.1:5700", identity.public, identity.verify)
    path.write_text(f"organiser = '{identity.verify}'\n" + block(0, full))
    members = load_members(path, 0)
    assert members.organiser == identity.verify and set(members.founders) == {0}
    for text, words in ((block(0, replace(full, verify="")), "verify"), (block(1, full), "no entry for peer 0")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load_members(path, 0)
    path.write_text("organiser = 'x'\n" + block(0, full))
    with pytest.raises(ConfigError, match="organiser"):
        load_members(path, 0)


@pytest.mark.parametrize("flag", ["--members", "--join"])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--set", "algorithm.name=window-doubling", "--set", "topology.graph=window-doubling"), "window-doubling"),
        (("--trace",), "replayed"),
    ],
)
def test_what_cannot_go_on_with_members_is_refused_before_anything_is_made(
    tmp_path: Path, flag: str, words: tuple[str, ...], error: str
) -> None:
    experiment, out = tmp_path / "experiment.toml", tmp_path / "out"
    experiment.write_text('[topology]\ngraph = "ring"\nn = 4\n')
    given = [str(experiment), "--id", "0", "--endpoints", str(tmp_path / "none.toml"), "--out", str(out), flag, *words]
    with pytest.raises(ConfigError, match=error) as refused:
        cli(["peer", *given], standalone_mode=False)
    assert refused.value.exit_code == 2 and refused.value.advice and not out.exists()


def test_the_organisers_commands_make_an_admission_that_members_believe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def says(*words: str) -> str:
        capsys.readouterr()
        cli(["keys", *words], standalone_mode=False)
        return capsys.readouterr().out

    line = says("organiser")
    first = says("new", "--out", "0.key", "--id", "0", "--address", "tcp://10.0.0.1:5700")
    words = ("--id", "2", "--address", "tcp://10.0.0.2:5700")
    late_block = says("new", "--out", "2.key", *words)
    assert says("show", "2.key", *words) == late_block
    (tmp_path / "block.toml").write_text(late_block)
    (tmp_path / "endpoints.toml").write_text(line + first + says("admit", "block.toml"))
    members = load_members(tmp_path / "endpoints.toml", 2)
    late = members.endpoints[2]
    assert set(members.founders) == {0} and set(members.endpoints) == {0, 2}
    assert verify(members.organiser, admission_of(2, late.key, late.verify), late.admission)
