"""Sources of data that people bring: small files made here, and hostile ones, each refused in one line."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgossip
from fedgossip.base import errors
from fedgossip.base.errors import ConfigError
from fedgossip.data import arrow as arrow_tables
from fedgossip.data import images
from fedgossip.data.cifar import CLASSES, PIXELS
from fedgossip.data.data import load
from fedgossip.experiment import load_experiment

PACKAGE = Path(fedgossip.__file__).parent


def refused(source: str, **how: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(source, **how)
    said = str(error.value)
    assert error.value.advice and "\n" not in said
    return f"{said} {error.value.advice}"


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------


def pixels(m: int, shift: int = 0) -> np.ndarray:
    return ((np.arange(m * PIXELS) + shift) % 251).astype(np.uint8).reshape(m, PIXELS)


def as_python(m: int, shift: int = 0) -> bytes:
    """A batch as Python 2 has written it: byte strings, and numpy's old name."""
    content = {b"data": pixels(m, shift), b"labels": [k % 10 for k in range(m)], b"batch_label": b"training batch"}
    return pickle.dumps(content, protocol=2).replace(b"numpy._core", b"numpy.core")


def as_binary(m: int, shift: int = 0) -> bytes:
    return b"".join(bytes([k % 10]) + row.tobytes() for k, row in enumerate(pixels(m, shift)))


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_both_archives_of_cifar_hold_the_same(tmp_path: Path) -> None:
    parts = {"data_batch_1": 0, "data_batch_2": 7, "test_batch": 99}
    python = archive(
        tmp_path / "python.tar.gz",
        {f"cifar-10-batches-py/{name}": as_python(5, shift) for name, shift in parts.items()},
    )
    binary = archive(
        tmp_path / "binary.tar.gz",
        {f"cifar-10-batches-bin/{name}.bin": as_binary(5, shift) for name, shift in parts.items()},
    )
    one, other = load(f"cifar10:{python}"), load(f"cifar10:{binary}")
    assert one.digest() == other.digest()
    assert one.x.shape == (15, 3, 32, 32) and one.own_test == 10 and one.class_names == CLASSES
    assert np.array_equal(np.rint(one.x[0] * 255).reshape(-1), pixels(1)[0])


def test_a_folder_of_cifar_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(as_python(4))
    found = load(f"cifar10:{tmp_path}")
    assert len(found) == 4 and found.own_test is None


def test_pickles_of_every_protocol_are_read(tmp_path: Path) -> None:
    for protocol in range(5):
        content = {"data": pixels(3), "labels": [0, 1, 2]}
        (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content, protocol=protocol))
        assert len(load(f"cifar10:{tmp_path}")) == 3, protocol


RUN: list[object] = []


class Malicious:
    """What a pickle can hold: a call of any function by its name."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile() -> dict[str, bytes]:
    """Pickles that would do more than hold a batch."""
    import os

    named = b"cnumpy\nndarray\n"
    return {
        "a call": pickle.dumps(Malicious(exec, "import test_data_sources as t; t.RUN.append(1)")),
        "a call among data": pickle.dumps({"data": Malicious(os.system, "true"), "labels": [0]}),
        "a builtin": pickle.dumps({"data": Malicious(getattr, [], "append"), "labels": [0]}),
        "an array of objects": pickle.dumps({"data": np.array([[None] * PIXELS]), "labels": [0]}),
        "an array of floats": pickle.dumps({"data": np.zeros((1, PIXELS)), "labels": [0]}),
        "an array made by its type": named + b"(I1000000000\ntR.",
        "attributes of a stand-in": named + b"}(S'x'\nI1\nsb.",
        "the stack": b"c__main__\n__dict__\n.",
        "an empty file": b"",
        "a cut file": as_python(2)[:-900],
        "a length that is not there": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        "deep lists": b"(" * 100_000 + b"l" * 100_000 + b".",
        "no batch": pickle.dumps([1, 2]),
        "too few labels": pickle.dumps({"data": pixels(2), "labels": [1]}),
        "another label": pickle.dumps({"data": pixels(1), "labels": [10]}),
        "labels that are texts": pickle.dumps({"data": pixels(1), "labels": ["cat"]}),
    }


@pytest.mark.parametrize("name", list(hostile()))
def test_a_pickle_that_holds_more_than_a_batch_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "data_batch_1").write_bytes(hostile()[name])
    assert "data_batch_1" in refused(f"cifar10:{tmp_path}")
    assert not RUN


def test_what_a_pickle_does_to_a_stand_in_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(hostile()["attributes of a stand-in"])
    refused(f"cifar10:{tmp_path}")
    (tmp_path / "data_batch_1").write_bytes(as_python(3))
    assert len(load(f"cifar10:{tmp_path}")) == 3


def test_pickles_are_read_in_one_file_alone() -> None:
    users = [path.name for path in PACKAGE.rglob("*.py") if "import pickle" in path.read_text()]
    assert users == ["cifar.py"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(as_binary(2)[:-1], "a multiple of 3073"), (b"\x0b" + bytes(PIXELS), "a label is 11"), (b"", "0 bytes")],
)
def test_a_binary_batch_that_is_none_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    assert said in refused(f"cifar10:{tmp_path}")


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    assert "not a tar archive" in refused(f"cifar10:{tmp_path / 'a.tar.gz'}")
    whole = archive(tmp_path / "b.tar.gz", {"cifar-10-batches-py/data_batch_1": as_python(9)}).read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) // 2])
    assert "b.tar.gz" in refused(f"cifar10:{tmp_path / 'b.tar.gz'}")
    empty = archive(tmp_path / "c.tar.gz", {"readme": b"hello"})
    assert "neither data_batch_1" in refused(f"cifar10:{empty}")
    assert "there is no file" in refused(f"cifar10:{tmp_path / 'nowhere'}")


# --- FEMNIST ----------------------------------------------------------------------------------------------------------


def writer(m: int, shift: int = 0) -> dict[str, Any]:
    x = [[((k + p + shift) % 11) / 10 for p in range(784)] for k in range(m)]
    return {"x": x, "y": [(k + shift) % 62 for k in range(m)]}


def leaf(path: Path, **users: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(user["y"]) for user in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": users}))
    return path


def test_the_writers_of_femnist_are_its_clients(tmp_path: Path) -> None:
    leaf(tmp_path / "train" / "all_data_0.json", ann=writer(3), ben=writer(2, 5))
    leaf(tmp_path / "train" / "all_data_1.json", eve=writer(4, 9))
    leaf(tmp_path / "test" / "all_data_0.json", ann=writer(1, 1), ben=writer(1, 2))
    found = load(f"femnist:{tmp_path}")
    assert found.x.shape == (11, 1, 28, 28) and found.classes == 62 and found.own_test == 9
    assert found.group_names == ("ann", "ben", "eve")
    assert found.groups is not None and found.groups.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 0, 1]


def test_femnist_is_learned_by_its_writers(tmp_path: Path) -> None:
    leaf(tmp_path / "few.json", **{f"w{k}": writer(12, k) for k in range(4)})
    content = {
        "data": {"source": f"femnist:{tmp_path / 'few.json'}", "partition": {"kind": "natural"}},
        "model": {"source": "cnn:2-4"},
        "train": {"device": "cpu", "local_steps": 1},
        "topology": {"graph": "ring", "n": 4},
        "rounds": 1,
    }
    assert fedgossip.simulate(content).summary["data"]["sizes"] is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a file of LEAF"),
        ('{"users": ["a"], "user_data": {}}', "has no data"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [1]}}}), "an image of 1 numbers"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [], "y": [1]}}}), "0 images and 1 labels"),
        (json.dumps({"users": ["a"], "user_data": {"a": {**writer(1), "y": [62]}}}), "expected 0 to 61"),
        ('{"users": [], "user_data": {}}', "no user has an example"),
        ("[" * 100_000, "not a file of LEAF"),
    ],
)
def test_a_file_of_leaf_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "f.json").write_text(text)
    assert said in refused(f"femnist:{tmp_path / 'f.json'}")


# --- pictures ---------------------------------------------------------------------------------------------------------


def png(width: int, height: int, value: int = 100, mode: str = "RGB") -> bytes:
    pillow = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    pillow.new(mode, (width, height), value if mode == "L" else (value, 0, 255)).save(buffer, "PNG")
    return buffer.getvalue()


def put(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def test_folders_of_pictures_are_classes(tmp_path: Path) -> None:
    for k, kind in enumerate(("cat", "dog", "dog")):
        put(tmp_path / kind, f"{k}.png", png(6, 4, 10 * k))
    put(tmp_path / "cat", "notes.txt", b"no picture")
    found = load(f"images:{tmp_path}")
    assert found.x.shape == (3, 3, 4, 6) and found.class_names == ("cat", "dog") and found.y.tolist() == [0, 1, 1]
    assert np.rint(found.x[:, 0, 0, 0] * 255).tolist() == [0, 10, 20] and float(found.x[0, 2].min()) == 1.0
    assert load(f"images:{tmp_path}?size=8&mode=gray").x.shape == (3, 1, 8, 8)


def test_folders_named_train_and_test_are_both_sets(tmp_path: Path) -> None:
    for part, m in (("train", 3), ("test", 2)):
        for kind in ("cat", "dog"):
            for k in range(m):
                put(tmp_path / part / kind, f"{k}.png", png(4, 4, k))
    found = load(f"images:{tmp_path}")
    assert len(found) == 10 and found.own_test == 6


def oversized() -> bytes:
    """A picture of a few bytes that says it is 60 000 x 60 000."""
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    whole = struct.pack(">I", len(head)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + whole + b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def test_pictures_that_cannot_be_taken_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "cat", "1.png", png(4, 4))
    assert "1 folder of pictures" in refused(f"images:{tmp_path}")
    put(tmp_path / "dog", "2.png", png(5, 4))
    assert "5 x 4 pixels; the first has 4 x 4" in refused(f"images:{tmp_path}")
    put(tmp_path / "dog", "2.png", png(40, 40)[:60])
    assert "2.png: not a picture" in refused(f"images:{tmp_path}")
    put(tmp_path / "dog", "2.png", oversized())
    assert "2.png" in refused(f"images:{tmp_path}")
    put(tmp_path / "dog", "2.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n")
    assert "not a picture" in refused(f"images:{tmp_path}")
    assert "unknown mode" in refused(f"images:{tmp_path}?mode=sepia")
    assert "size = 'large'" in refused(f"images:{tmp_path}?size=large")


def test_pictures_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LARGEST_ALL", 100)
    for kind in ("cat", "dog"):
        put(tmp_path / kind, "1.png", png(8, 8))
    assert "too many numbers" in refused(f"images:{tmp_path}")
    monkeypatch.setattr(images, "LARGEST_PIXELS", 63)
    assert "8 x 8 pixels; at most 63" in refused(f"images:{tmp_path}")


# --- parquet, and what datasets saves ---------------------------------------------------------------------------------


def arrow() -> Any:
    return pytest.importorskip("pyarrow")


def parquet(path: Path, **columns: Any) -> str:
    arrow()
    from pyarrow import parquet as writer

    writer.write_table(arrow().table(columns), path)
    return f"parquet:{path}"


def test_a_parquet_file_is_a_table(tmp_path: Path) -> None:
    numbers_of = {"a": [1.5, 2.5, 3.5, 4.5], "b": [1, 2, 3, 4]}
    source = parquet(tmp_path / "t.parquet", **numbers_of, who=["x", "y", "x", "y"], kind=["n", "p", "p", "n"])
    found = load(f"{source}?label=kind&group=who")
    assert found.x.tolist() == [[1.5, 1], [2.5, 2], [3.5, 3], [4.5, 4]] and found.columns == ("a", "b")
    assert found.class_names == ("n", "p") and found.y.tolist() == [0, 1, 1, 0] and found.group_names == ("x", "y")
    numbers = load(f"{source}?label=a&drop=who,kind&scale=standard", kind="regression")
    assert numbers.y[:, 0].tolist() == [1.5, 2.5, 3.5, 4.5] and numbers.scale == "standard"


def test_csv_and_parquet_give_the_same_examples(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,y\n1.5,1,0\n2.5,2,1\n0.25,3,1\n")
    source = parquet(tmp_path / "t.parquet", a=[1.5, 2.5, 0.25], b=[1, 2, 3], y=[0, 1, 1])
    assert load(f"csv:{tmp_path / 't.csv'}?label=y").digest() == load(f"{source}?label=y").digest()


def test_a_small_parquet_file_holds_no_word_a_million_times(tmp_path: Path) -> None:
    """By its dictionary a file of a kilobyte has the same 20 MB in each row, at any depth."""
    from pyarrow import parquet as writer

    a, path = arrow(), tmp_path / "t.parquet"
    words = a.DictionaryArray.from_arrays(a.array([0] * 4096, a.int32()), a.array(["a" * 20_000_000]))
    y = a.array([0.0] * 4096)
    lists = a.ListArray.from_arrays(a.array(range(4097), a.int32()), words)
    pictures = a.StructArray.from_arrays([words.cast(a.dictionary(a.int32(), a.binary())), words], ["bytes", "path"])
    for x in (words, lists, pictures):
        writer.write_table(a.table({"x": x, "y": y}), path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 10_000
        assert "bytes when unpacked, for a file of its size" in refused(f"parquet:{path}?label=y&drop=x")


def test_words_of_a_parquet_file_are_the_same_at_any_depth(tmp_path: Path) -> None:
    a, path = arrow(), tmp_path / "t.parquet"
    from pyarrow import parquet as writer

    columns = {
        "s": ["x", "y", None], "l": [["x"], [], ["y", None]], "b": a.array([b"x", b"", None]),
        "d": a.array(["x", "y", "x"]).dictionary_encode(),
        "m": a.array([[("k", "v")], [], None], a.map_(a.string(), a.string())),
        "p": [{"bytes": b"x", "path": "q"}, {"bytes": None, "path": None}, None], "n": [1, 2, None],
    }  # fmt: skip
    table = a.table(columns)
    writer.write_table(table, path)
    plain = writer.ParquetFile(path).schema_arrow
    with writer.ParquetFile(
        path, read_dictionary=["s", "l.list.element", "b", "d", "m.key_value.value", "p.path"]
    ) as coded:
        found = arrow_tables._bounded(path, coded.iter_batches(2), coded.schema_arrow, 1).cast(plain)
    assert found.to_pylist() == table.to_pylist()


def test_parquet_files_that_cannot_be_taken_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    source = parquet(path, a=[1.0, None, 3.0], b=["x", "y", "z"], y=[0, 1, 1])
    assert "which column is the label" in refused(source)
    assert "column 'a': nothing there in 1 of" in refused(f"{source}?label=y")
    assert "column 'b' holds string, which are not numbers A column of words" in refused(f"{source}?label=y&drop=a")
    assert load(f"{source}?label=y&drop=a&categories=b").columns == ("b=x", "b=y", "b=z")
    assert "no column 'yy'" in refused(f"{source}?label=yy")
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"PAR1" + b"\xff" * 200 + b"PAR1", b"", whole[:30] + b"\0" * 40 + whole[70:]):
        path.write_bytes(damaged)
        assert "t.parquet" in refused(f"{source}?label=y&drop=a,b") if damaged != whole else True
    path.write_bytes(whole)
    monkeypatch.setattr("fedgossip.data.arrow.CELLS_MOST", 5)
    assert "at most 5 cells" in refused(f"{source}?label=y")


def saved(folder: Path, table: Any, features: dict[str, Any]) -> None:
    """As datasets 5.2 writes it: state.json, dataset_info.json and a stream of record batches."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "data-00000-of-00001.arrow"
    with arrow().ipc.new_stream(str(folder / name), table.schema) as writer:
        writer.write_table(table)
    state = {"_data_files": [{"filename": name}], "_fingerprint": "b42a", "_format_type": None, "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


LABEL = {"names": ["no", "yes"], "_type": "ClassLabel"}


def table_of(m: int) -> Any:
    a = arrow()
    vectors = a.array([[float(k), 2.0, 3.0] for k in range(m)], a.list_(a.float32(), 3))
    return a.table({"a": a.array([float(k) for k in range(m)]), "v": vectors, "label": [k % 2 for k in range(m)]})


def test_a_saved_data_set_is_read_with_its_splits_and_class_names(tmp_path: Path) -> None:
    for split, m in (("train", 6), ("test", 2)):
        saved(tmp_path / split, table_of(m), {"label": LABEL})
    found = load(f"huggingface:{tmp_path}?label=label")
    assert found.x.shape == (8, 4) and found.own_test == 6
    assert found.class_names == ("no", "yes") and found.y.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]


def test_pictures_in_a_saved_data_set_are_read(tmp_path: Path) -> None:
    cells = [{"bytes": png(5, 4, 10 * k), "path": None} for k in range(4)]
    kind = arrow().struct([("bytes", arrow().binary()), ("path", arrow().string())])
    table = arrow().table({"image": arrow().array(cells, kind), "label": [0, 1, 0, 1]})
    saved(tmp_path, table, {"label": LABEL})
    found = load(f"huggingface:{tmp_path}?label=label")
    assert found.x.shape == (4, 3, 4, 5) and np.rint(found.x[:, 0, 0, 0] * 255).tolist() == [0, 10, 20, 30]


def test_saved_data_sets_that_cannot_be_taken_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, table_of(4), {"label": {"names": ["one"], "_type": "ClassLabel"}})
    source = f"huggingface:{tmp_path}?label=label"
    assert "none of the classes" in refused(source)
    file, state = tmp_path / "data-00000-of-00001.arrow", tmp_path / "state.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:200])
    assert "cannot be read" in refused(source)
    file.write_bytes(whole)
    state.write_text(json.dumps({"_data_files": [{"filename": "../secret.arrow"}]}))
    assert "names no data files" in refused(source)
    state.write_text(json.dumps({"_data_files": [{"filename": file.name}], "_indices_data_files": [{}]}))
    assert "only some rows" in refused(source)
    state.write_text("[")
    assert "state.json" in refused(source)
    table = arrow().table({"v": [0.0] * 100_000, "label": [0.0] * 100_000})
    options = arrow().ipc.IpcWriteOptions(compression="zstd")
    with arrow().ipc.new_stream(str(file), table.schema, options=options) as writer:
        writer.write_table(table)
    state.write_text(json.dumps({"_data_files": [{"filename": file.name}]}))
    assert "compressed, as save_to_disk writes none" in refused(f"huggingface:{tmp_path}?label=label")
    ragged = arrow().table({"v": [[1.0], [1.0, 2.0]], "label": [0, 1]})
    saved(tmp_path, ragged, {})
    assert "not of one length" in refused(source)


# --- all of them ------------------------------------------------------------------------------------------------------


def test_a_missing_library_says_which_extra_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    assert "fedgossip[parquet]" in refused(f"parquet:{tmp_path / 't.parquet'}?label=y")
    (tmp_path / "state.json").write_text("{}")
    assert "fedgossip[huggingface]" in refused(f"huggingface:{tmp_path}?label=y")
    with pytest.raises(ConfigError) as missing:
        errors.needed("no_such_library", "images", "a source of pictures")
    assert "fedgossip[images]" in missing.value.advice


def test_paths_of_a_file_start_at_its_folder(tmp_path: Path) -> None:
    for kind in ("parquet", "images", "cifar10", "femnist", "huggingface"):
        (tmp_path / "e.toml").write_text(f'data.source = "{kind}:here/x?label=y"\n[topology]\ngraph = "ring"\nn = 4\n')
        source = load_experiment(tmp_path / "e.toml").data.source
        assert source == f"{kind}:{tmp_path / 'here' / 'x'}?label=y"


def test_a_source_that_takes_no_such_option_says_so(tmp_path: Path) -> None:
    assert "unknown option 'size'" in refused(f"femnist:{tmp_path}?size=3")
    assert "names no file" in refused("images:")
