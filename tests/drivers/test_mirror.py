"""A folder that grows on another machine, told in pieces: its copy is the folder, and never ahead of its journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgossip.base.errors import ConfigError
from fedgossip.drivers.clusters.mirror import FolderNews, apply, content_of

NAMES = st.sampled_from(
    ["metrics.jsonl", "log.txt", "ended.json", "model/weights.safetensors", "checkpoint.safetensors"]
)
CONTENT = st.binary(max_size=40)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), NAMES, CONTENT),
        st.tuples(st.just("replace"), NAMES, CONTENT),
        st.tuples(st.just("delete"), NAMES, st.just(b"")),
        st.tuples(st.just("tell"), st.just(""), st.just(b"")),
    ),
    max_size=25,
)


def do(folder: Path, deed: str, name: str, content: bytes) -> None:
    """What a participant does to its files: journals grow, all others are replaced by a file that is whole."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if deed == "delete":
        path.unlink(missing_ok=True)
    elif deed == "append" and name.endswith((".jsonl", ".txt")):
        with path.open("ab") as file:
            file.write(content)
    else:
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.replace(path)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@given(deeds=DEEDS, limit=st.integers(1, 60))
@settings(max_examples=60)
def test_the_copy_is_the_folder_whatever_was_done_and_however_small_an_answer_is(
    deeds: list[tuple[str, str, bytes]], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, copy = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("here")
    news = FolderNews(folder)
    for deed in deeds:
        if deed[0] == "tell":
            apply(copy, news.pieces(limit))
        else:
            do(folder, *deed)
    while pieces := news.pieces(limit):
        apply(copy, pieces)
    assert files(copy) == files(folder)


def test_a_large_file_appears_whole_or_not_and_begins_again_where_it_was_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgossip.drivers.clusters.mirror.PIECES_BYTES", 10)
    folder, copy = tmp_path / "there", tmp_path / "here"
    do(folder, "replace", "model", b"a" * 35)
    news = FolderNews(folder)
    apply(copy, news.pieces(10))
    assert not (copy / "model").exists()
    do(folder, "replace", "model", b"b" * 25)
    seen = []
    while pieces := news.pieces(10):
        apply(copy, pieces)
        seen.append((copy / "model").read_bytes() if (copy / "model").exists() else None)
    assert seen == [None, None, b"b" * 25]


def test_what_a_line_of_a_journal_speaks_of_is_there_before_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The participant writes a snapshot and then its line, between the two looks of one answer too."""
    from fedgossip.drivers.clusters import mirror

    folder = tmp_path / "there"
    do(folder, "append", "metrics.jsonl", b"1\n")
    looks = []

    def looked(place: Path) -> object:
        if looks:  # between the look at journals and the one at all others
            do(folder, "replace", "snapshots/000002.safetensors", b"vector")
            do(folder, "append", "metrics.jsonl", b"2\n")
        looks.append(place)
        return plain(place)

    plain = mirror._files_in
    monkeypatch.setattr(mirror, "_files_in", looked)
    news = FolderNews(folder)
    told = [(name, data) for name, _, data, _ in news.pieces()]
    assert told == [("snapshots/000002.safetensors", b"vector"), ("metrics.jsonl", b"1\n")]
    assert not (folder / "snapshots" / "000002.safetensors").exists()  # it was for the reader alone


def test_a_folder_goes_to_a_node_and_what_is_known_is_not_told_again(tmp_path: Path) -> None:
    folder, node = tmp_path / "here", tmp_path / "node"
    do(folder, "append", "metrics.jsonl", b"1\n")
    do(folder, "replace", "checkpoint.safetensors", b"c")
    apply(node, content_of(folder))
    news = FolderNews(node)
    news.mark_sent()
    assert files(node) == files(folder) and news.pieces() == []
    do(node, "append", "metrics.jsonl", b"2\n")
    apply(folder, news.pieces())
    assert (folder / "metrics.jsonl").read_bytes() == b"1\n2\n"


@pytest.mark.parametrize("name", ["../key.toml", "/etc/passwd", "a/../../b", ""])
def test_a_path_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no path in the folder"):
        apply(tmp_path / "copy", [(name, 0, b"x", True)])
