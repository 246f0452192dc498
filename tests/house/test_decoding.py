"""What comes from outside is decoded in one place, which refuses deep nesting before a decoder meets it."""

from __future__ import annotations

import ast
import json
import re
import struct
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_kit import public, signer

from fedgossip.audit import entries, records
from fedgossip.base.decoding import DEPTH_MAX, UnreadableError, from_json, from_msgpack, from_toml, json_value
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.core.wire import VOCABULARY
from fedgossip.net.identity import Identity
from fedgossip.report.watch.follow import _json
from fedgossip.runs import checkpoints
from fedgossip.runs.checkpoints import RefusedError
from fedgossip.runs.trace import MAGIC, Reading, TraceError
from fedgossip.secure import frames

PACKAGE = Path(__file__).parents[2] / "fedgossip"
DEEP = 50_000

_any: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=30,
)


def nested(depth: int, innermost: object = 1, *, maps: bool = False) -> Any:
    value = innermost
    for _ in range(depth):
        value = {"x": value} if maps else [value]
    return value


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


# --- the one place ---------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(values)
def test_what_is_not_deep_comes_through_as_it_is(value: object) -> None:
    body = msgspec.msgpack.encode(value)
    if depth(value) <= DEPTH_MAX:
        assert from_msgpack(_any, body) == value
    else:
        with pytest.raises(UnreadableError):
            from_msgpack(_any, body)


@pytest.mark.parametrize(
    "number", ["1" + 300 * "0", "-" + 4000 * "9", '{"a": [0, ' + 300 * "7" + "]}", 300 * "1" + ".5"]
)
def test_a_number_that_no_float_can_hold_is_no_json(number: str) -> None:
    """Of a record it ended `fedgossip watch` with an OverflowError."""
    for decode in (json_value, lambda text: from_json(msgspec.json.Decoder(), text.encode())):
        with pytest.raises(UnreadableError, match="a number of 300 digits or more"):
            decode(number)
        assert decode(f'"{300 * "1"}"') == 300 * "1" and decode(299 * "1")


@pytest.mark.parametrize("maps", [False, True], ids=["lists", "maps"])
@pytest.mark.parametrize("beside", [0, 20, 7_000], ids=["alone", "among a few", "among many"])
def test_the_limit_is_a_number_of_levels(maps: bool, beside: int) -> None:
    """Empty ones, many beside each other, and bytes that look like lists and are none, do not count."""
    many = [[], {}, 7, "]]][[[{{{", b"\x91" * 300, 2**40, -1, None] * (beside // 8)
    plain = [one for one in many if not isinstance(one, bytes)]
    reads: list[Callable[[Any], Any]] = [
        lambda inner: from_msgpack(_any, msgspec.msgpack.encode([*many, inner])),
        lambda inner: json_value(json.dumps([*plain, inner])),
        lambda inner: from_json(_anything, json.dumps([*plain, inner]).encode()),
    ]
    fits, does_not = nested(DEPTH_MAX - 1, maps=maps), nested(DEPTH_MAX, maps=maps)
    for read in reads:
        assert read(fits)[-1] == fits
        with pytest.raises(UnreadableError, match="more than 32 deep"):
            read(does_not)


PIECES = [b"\x91", b"\x81\xa1x", b"\xdd\xff\xff\xff\xff", b"\xc4\xff", b"\xdf\0\0\0\2", b"\xa3abc", b"\xc1", b"{", b"["]


@given(st.binary(max_size=200) | st.lists(st.sampled_from(PIECES)).map(b"".join))
def test_no_bytes_give_another_error(body: bytes) -> None:
    for read in (lambda: from_msgpack(_any, body), lambda: from_json(_anything, body), lambda: json_value(body)):
        try:
            read()
        except UnreadableError as error:
            assert str(error)


DEEP_TOML = {
    "endless": "x = " + "[" * DEEP,
    "lists": "x = " + "[" * 40 + "]" * 40,
    "tables": "x = " + "{a=" * 40 + "1" + "}" * 40,
    "a long name": "[" + "a." * 40 + "a]",
}


@pytest.mark.parametrize("part", ["a", '"a"', "'a'"])
@pytest.mark.parametrize("dot", [".", " . "])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(part: str, dot: str) -> None:
    """tomllib takes a time that grows by the square of the parts: minutes for what fits into one proposal."""
    for text in ("{} = 1", "[{}]", "x = {{ {} = 1 }}"):
        with pytest.raises(tomllib.TOMLDecodeError, match=f"more than {DEPTH_MAX} deep"):
            from_toml(text.format(dot.join([part] * 30_000)))
    assert from_toml(f"{dot.join([part] * 20)} = 1")


def test_a_number_longer_than_python_converts_is_no_toml() -> None:
    with pytest.raises(tomllib.TOMLDecodeError, match="4300 digits"):
        from_toml("seed = " + "9" * 5000)


@pytest.mark.parametrize("place", ["{}", "[1, {}]", "[[{{ a = {} }}]]"])
@pytest.mark.parametrize("number", ["0x" + "f" * 6000, "-18446744073709551617", "0x1" + "0" * 16])
def test_a_number_of_more_bits_than_toml_has_is_no_toml(place: str, number: str) -> None:
    """Hexadecimal ones of any length are read, and no message can print them."""
    with pytest.raises(tomllib.TOMLDecodeError, match="more than 64 bits"):
        from_toml(f"seed = {place.format(number.replace('-0x', '0x'))}")
    assert from_toml("seed = [0xffffffffffffffff, -9223372036854775808, true]")


@pytest.mark.parametrize("text", DEEP_TOML.values(), ids=DEEP_TOML.keys())
def test_deep_toml_is_refused_as_what_is_no_toml(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        from_toml(text)


def test_toml_of_the_usual_kind_is_read() -> None:
    text = "[a.b]\nx = [[1, 2], [3]]\n"
    assert from_toml(text) == tomllib.loads(text)


ELSEWHERE = {
    "drivers/fork_server.py": "orders of the process that started it, by its own pipe",
    "drivers/peer_processes.py": "what the fork server says, by its own pipe",
    "learning/processes/ipc.py": "between the processes of one client",
    "drivers/image_write.py": "images, which have a reader of their own",
    "runs/checkpoints.py": "what has been written here a moment before",
}


def test_nothing_from_outside_is_decoded_elsewhere() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"\.(decode|loads?)\b", text) else ():
            if isinstance(node, ast.Attribute) and place not in ELSEWHERE and place != "base/decoding.py":
                of, what = ast.unparse(node.value), node.attr
                decoder = re.fullmatch(r"msgspec\.(msgpack|json|toml)|.*_?decoder|_up|_down", of, re.IGNORECASE)
                if (what == "decode" and decoder) or (what in ("load", "loads") and of in ("json", "tomllib")):
                    found.append(f"{place}: {of}.{what}")
    assert found == []


# --- and those who use it -------------------------------------------------------------------------------------------

BODY = b"\x82\xa1x" + b"\x91" * DEEP + b"\x01" + b"\xa4type" + b"\xa5model"
"""A map whose first entry is nested, before the word that would say what it is."""


def test_a_header_that_is_nested_is_no_header() -> None:
    with pytest.raises(UnreadableError):
        VOCABULARY.decoded(BODY)


def test_a_signed_frame_that_is_nested_changes_nothing() -> None:
    """It ended the coordinator: a client may sign what it likes."""
    frame = signer(3)(frames._signed(3, BODY)) + BODY
    with pytest.raises(ProtocolError, match="client 3: a signed frame that is no message"):
        frames.from_client(frame, 3, public(3))


def test_a_trace_that_is_nested_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    text = b"\x82\xa1x" + b"\x91" * DEEP + b"\x01" + b"\xa4kind" + b"\xa7opening"
    path.write_bytes(MAGIC + struct.pack("<IQI", len(text), 0, zlib.crc32(text)) + text)
    with pytest.raises(TraceError, match="32 deep"):
        Reading(path)


@pytest.mark.parametrize("where", ["header", "about"])
def test_a_checkpoint_that_is_nested_is_no_checkpoint(tmp_path: Path, where: str) -> None:
    deep = "[" * DEEP + "]" * DEEP
    header = f'{{"__metadata__": {{"about": "{deep}", "sha256": ""}}}}' if where == "about" else deep
    (tmp_path / "c").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(RefusedError) as refused:
        checkpoints.take(tmp_path / "c")
    assert refused.value.reason == "corrupt"


def test_logs_transcripts_and_words_of_files_that_are_nested_are_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"[" * DEEP)
    with pytest.raises(ValueError, match="no entry"):
        entries.parsed(b'{"x":' + b"[" * DEEP + b"\n")
    assert _json(tmp_path / "x") == {}
    (tmp_path / "t").write_bytes(records.MAGIC + records.LENGTH.pack(len(BODY)) + BODY)
    with pytest.raises(records.RecordError):
        list(records.records(tmp_path / "t"))
    (tmp_path / "peer.key").write_text("public = " + "[" * DEEP)
    (tmp_path / "peer.key").chmod(0o600)
    with pytest.raises(ConfigError):
        Identity.load(tmp_path / "peer.key")
