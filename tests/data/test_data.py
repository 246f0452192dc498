"""Readers of data files, on tiny files made here and on the real ones where they are."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from fedgossip import simulate
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.cli.run.progress import Progress
from fedgossip.core.roles import peer_roles
from fedgossip.data import idx as idx_files
from fedgossip.data.data import load, split, split_indices, unlike_scales
from fedgossip.data.dataset import Dataset
from fedgossip.experiment import load_experiment
from fedgossip.plans.tasks import task_of

PLAY = "ANNA:\nTo be or not to be, that is it.\n\nBEN:\nNo.\nNever: ever!\n\nANNA:\nWell then, good night.\n"


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_pair(folder, part="t10k", m=6, packed=False):
    folder.mkdir(exist_ok=True)
    pixels = np.arange(m * 20).reshape(m, 4, 5) % 256
    for name, array in (("images-idx3", pixels), ("labels-idx1", np.arange(m) % 3)):
        raw = idx(array)
        path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(raw) if packed else raw)
    return pixels


def refused(source, **how):
    with pytest.raises(ConfigError) as error:
        load(source, **how)
    assert error.value.advice
    return f"{error.value} {error.value.advice}"


# --- bundled ----------------------------------------------------------------------------------------------------


def test_digits_are_images_in_zero_to_one():
    digits = load("digits")
    assert digits.x.shape == (1797, 64)
    assert (digits.x.min(), digits.x.max(), digits.classes, digits.shape) == (0, 1, 10, (64,))


def test_breast_cancer_is_standardised_by_the_training_examples_alone():
    cancer = load("breast-cancer")
    assert cancer.x.shape == (569, 30)
    train, test = split(cancer, 0.2, 0)
    assert np.allclose(train.x.mean(0), 0, atol=1e-5)
    assert np.allclose(train.x.std(0), 1, atol=1e-5)
    assert np.abs(test.x.mean(0)).max() > 1e-3  # the test set's own statistics are not used


# --- IDX --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_packed_or_not(tmp_path, packed):
    pixels = write_pair(tmp_path / "mnist", packed=packed)
    data = load(f"mnist:{tmp_path}/mnist")
    assert data.x.dtype == np.float32
    assert np.allclose(data.x[:, 0] * 255, pixels)
    assert data.y.tolist() == [0, 1, 2, 0, 1, 2]


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write_pair(tmp_path / "fashion-mnist")
    monkeypatch.setenv("FEDGOSSIP_DATA", str(tmp_path))
    assert len(load("fashion-mnist")) == 6


def test_both_pairs_make_one_set_with_a_test_set_of_its_own(tmp_path):
    write_pair(tmp_path, "train", 9)
    write_pair(tmp_path, "t10k", 6)
    train, test = split(load(f"mnist:{tmp_path}"), "own", 0)
    assert (len(train), len(test)) == (9, 6)


def test_missing_files_are_named_with_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGOSSIP_DATA", str(tmp_path))
    message = refused("mnist")
    assert all(word in message for word in ("train-images-idx3-ubyte", str(tmp_path / "mnist"), "FEDGOSSIP_DATA"))
    monkeypatch.delenv("FEDGOSSIP_DATA")
    assert "FEDGOSSIP_DATA is not set" in refused("mnist")


def test_images_without_labels_are_refused(tmp_path):
    write_pair(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert "t10k-labels-idx1-ubyte[.gz] is missing" in refused(f"mnist:{tmp_path}")


def test_a_truncated_idx_file_says_what_was_expected(tmp_path):
    write_pair(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-7])
    assert "113 bytes of data; expected 6 x 4 x 5 = 120" in refused(f"mnist:{tmp_path}")


def test_a_truncated_gzip_is_refused(tmp_path):
    write_pair(tmp_path, packed=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    assert "cannot be read" in refused(f"mnist:{tmp_path}")


def test_a_wrong_magic_number_is_refused(tmp_path):
    write_pair(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x09\x03" + bytes(20))
    assert "magic number 0x00000903; expected 0x00000803" in refused(f"mnist:{tmp_path}")


def test_images_and_labels_of_different_lengths_are_refused(tmp_path):
    write_pair(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(5)))
    assert "6 images" in refused(f"mnist:{tmp_path}")


def test_mnist_is_read(real_data, monkeypatch):
    monkeypatch.setenv("FEDGOSSIP_DATA", str(real_data))
    mnist = load("mnist")
    assert mnist.shape == (1, 28, 28)
    assert mnist.classes == 10
    assert np.bincount(mnist.y[-10_000:]).tolist()[:3] == [980, 1135, 1032]  # the t10k labels, LeCun et al. 1998


# --- csv --------------------------------------------------------------------------------------------------------


def table(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_text(text)
    return f"csv:{path}"


def test_a_table_has_labels_in_words_and_groups(tmp_path):
    source = table(tmp_path, "a,kind,site,b\n1,cat,x,2\n3,dog,y,4\n5,cat,x,6\n")
    data = load(f"{source}?label=kind&group=site")
    assert data.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.y.tolist() == [0, 1, 0]
    assert (data.groups.tolist(), data.group_names) == ([0, 1, 0], ("x", "y"))


def test_a_relative_path_starts_at_the_base(tmp_path):
    table(tmp_path, "a,y\n1,0\n2,1\n")
    assert len(load("csv:table.csv?label=y", base=tmp_path)) == 2


def test_labels_in_numbers_keep_their_order(tmp_path):
    data = load(table(tmp_path, "a,y\n1,10\n2,9\n3,10\n") + "?label=y")
    assert data.y.tolist() == [1, 0, 1]


def test_columns_are_dropped(tmp_path):
    data = load(table(tmp_path, "a,b,name,y\n1,7,ann,0\n3,7,bo,1\n") + "?label=y&drop=name")
    assert data.x.tolist() == [[1, 7], [3, 7]]


def test_columns_are_scaled_by_the_training_examples_alone(tmp_path):
    rows = "".join(f"{1e9 + k},7,{k % 2}\n" for k in range(10))  # a clock's seconds: float32 would lose them
    data = load(table(tmp_path, "a,b,y\n" + rows) + "?label=y&scale=standard")
    chosen, _ = split_indices(data, 0.2, 0)
    train, test = split(data, 0.2, 0)
    mean, deviation = chosen.mean(), chosen.std()
    held_out = np.setdiff1d(np.arange(10), chosen)
    assert train.x.dtype == test.x.dtype == np.float32
    assert np.allclose(train.x, [[(k - mean) / deviation, 0] for k in chosen], atol=1e-6)
    assert np.allclose(test.x, [[(k - mean) / deviation, 0] for k in held_out], atol=1e-6)


def test_columns_of_unlike_scale_are_stated_unless_they_are_scaled(tmp_path):
    rows = "".join(f"{k % 7},{k * 5000},{k * 1e-4},{int(k == 1)},9,{k % 2}\n" for k in range(40))
    source = table(tmp_path, "age,income,ratio,rare,same,y\n" + rows) + "?label=y"
    (note,) = unlike_scales(split(load(source), 0.2, 0)[0])
    assert "'ratio' has deviation 0.001" in note and "'income' has deviation" in note and "scale=standard" in note
    assert unlike_scales(split(load(f"{source}&drop=income,ratio"), 0.2, 0)[0]) == ()
    assert unlike_scales(split(load(f"{source}&scale=standard"), 0.2, 0)[0]) == ()


def test_a_class_that_only_the_test_set_has_is_stated_before_the_first_round(tmp_path, capsys):
    test = table(tmp_path, "a,y\n1,benign\n2,malignant\n3,mailgnant\n", "test.csv")
    train = table(tmp_path, "a,y\n" + "1,benign\n2,malignant\n" * 6)
    data = {"source": f"{train}?label=y", "test": f"{test}?label=y", "partition": {"kind": "iid"}}
    content = {"topology": {"graph": "ring", "n": 2}, "rounds": 1, "data": data, "train": {"device": "cpu"}}
    _, shares = task_of(load_experiment(content), 2)
    assert shares.notes == ("classes of the test set without a training example: mailgnant (1 of 3 tested)",)
    simulate(content, watch=Progress("ring", 1, peer_roles(2), moving=False))
    assert capsys.readouterr().err.splitlines()[:2] == ["ring: 2 peers, 1 round", f"data: {shares.notes[0]}"]


def test_a_column_of_words_is_a_feature_for_each_of_them(tmp_path):
    source = table(tmp_path, "age,ward,smokes,y\n30,north,yes,0\n40,south,no,1\n50,east,yes,0\n")
    data = load(f"{source}?label=y&categories=smokes,ward")
    assert data.columns == ("age", "ward=east", "ward=north", "ward=south", "smokes=no", "smokes=yes")
    assert data.x.tolist() == [[30, 0, 1, 0, 0, 1], [40, 0, 0, 1, 1, 0], [50, 1, 0, 0, 0, 1]]
    assert data.encoding.features == data.columns


def test_files_with_other_words_are_not_the_same_features(tmp_path):
    known = load(table(tmp_path, "ward,y\nnorth,0\nsouth,1\n") + "?label=y&categories=ward")
    other = table(tmp_path, "ward,y\nnorth,0\neast,1\n") + "?label=y&categories=ward"
    assert 'data.scale = "federated"' in refused(other, like=known)


@pytest.mark.parametrize(
    ("text", "query", "message"),
    [
        ("a,b,y\n1,oops,0\n3,ah,1\n", "?label=y", "'oops' is not a number that float32 can hold A column of words"),
        ("a,b,y\n1,oops,0\n3,,1\n", "?label=y&categories=b", "line 3, column 'b' holds no category"),
        ("a,b,y\n1,oops,0\n3,ah,1\n", "?label=y&categories=y", "'y' is among the categories, and no feature"),
        ("a,b,y\n1,oops,0\n3,ah,1\n", "?label=y&categories=c", "no column 'c'"),
        ("b,y\n" + "".join(f"w{k},{k % 2}\n" for k in range(1001)), "?label=y&categories=b", "1001 different words"),
        ("a,b,y\n1,2,0\n3,oops,1\n", "?label=y", "line 3, column 'b': 'oops' is not a number"),
        ("a,b,y\n1,2,0\n3,1e39,1\n", "?label=y", "line 3, column 'b': '1e39' is not a number that float32 can hold"),
        ("a,b,y\n1,2,0\n3,nan,1\n", "?label=y", "line 3, column 'b': 'nan' is not a number"),
        ("a,b,y\n1,2,0\n3,1\n", "?label=y", "line 3: 2 cells; expected 3"),
        ("a,label,y\n1,2,0\n", "?label=lable", "no column 'lable' Did you mean 'label'"),
        ("a,y\n1,0\n", "", "which column is the label"),
        ("a,y\n1,0\n", "?label=y&lable=y", "unknown option 'lable' Did you mean 'label'"),
        ("a,y\n", "?label=y", "no rows"),
        ("a,y\n1,0\n2,0\n", "?label=y", "at least two"),
        ("y\n1\n2\n", "?label=y", "no column is left"),
        ("a,y\n1,sick\n2,\n3,well\n", "?label=y", "line 3, column 'y' holds no label"),
        ("a,y\n1,0\n2,1\n3,NaN\n", "?label=y", "line 4, column 'y' holds no label: 'NaN'"),
        ("a,a,y\n1,2,0\n3,4,1\n", "?label=y", "two columns are called 'a'"),
    ],
)
def test_a_bad_table_says_where(tmp_path, text, query, message):
    assert message in refused(table(tmp_path, text) + query)


def test_a_table_that_is_not_there_is_refused(tmp_path):
    assert "there is no file" in refused("csv:none.csv?label=y", base=tmp_path)


# --- npz --------------------------------------------------------------------------------------------------------


def test_arrays_are_read_with_their_groups(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((4, 3)), y=[0, 1, 2, 1], groups=["u", "v", "u", "v"])
    data = load(f"npz:{tmp_path}/a.npz")
    assert (data.x.dtype, data.classes, data.groups.tolist()) == (np.float32, 3, [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((4, 3)), "y": [0, 1]}, "x has 4 examples and y 2"),
        ({"x": np.full((2, 3), np.nan), "y": [0, 1]}, "x[0] is not finite"),
        ({"x": np.ones((2, 3)), "y": [0.5, 1]}, "whole numbers"),
        ({"x": np.ones((2, 3)), "y": [-1, 1]}, "labels from -1"),
        ({"x": np.ones((2, 3))}, "no array 'y'"),
        ({"x": np.ones((2, 3)), "y": np.array([{}, {}], object)}, "not an npz archive of arrays"),
        ({"x": np.ones((2, 3)), "y": [0, 1], "groups": ["u"]}, "2 examples and 1 group ids"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    assert message in refused(f"npz:{tmp_path}/a.npz")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 not really")
    assert "not an npz archive" in refused(f"npz:{tmp_path}/a.npz")


# --- text -------------------------------------------------------------------------------------------------------


def play(tmp_path, text=PLAY):
    (tmp_path / "play.txt").write_text(text)
    return f"text:{tmp_path}/play.txt"


def test_a_speaker_is_a_client_and_targets_follow_by_one(tmp_path):
    data = load(play(tmp_path) + "?context=5&min_chars=10")
    assert data.group_names == ("ANNA", "BEN")
    ben = data.groups == 1
    assert "".join(data.vocabulary[c] for c in data.x[ben].reshape(-1)) == "No.\nNever: ever!"[:15]
    assert "".join(data.vocabulary[c] for c in data.y[ben].reshape(-1)) == "No.\nNever: ever!"[1:16]


def test_speakers_with_little_to_say_are_left_out(tmp_path):
    assert load(play(tmp_path) + "?context=5&min_chars=40").group_names == ("ANNA",)
    assert "no speaker has 4000" in refused(play(tmp_path) + "?min_chars=4000")


def test_text_is_split_at_the_end_of_each_speaker(tmp_path):
    data = load(play(tmp_path) + "?context=3&min_chars=10")
    train, test = split_indices(data, 0.3, 0)
    for group in (0, 1):
        assert train[data.groups[train] == group].max() < test[data.groups[test] == group].min()


@pytest.mark.parametrize(
    ("text", "query", "message"), [("just words\n", "", "no speaker found"), (PLAY, "?context=0", "context = '0'")]
)
def test_bad_text_is_refused(tmp_path, text, query, message):
    assert message in refused(play(tmp_path, text) + query)


def test_shakespeare_is_read(real_data):
    plays = load(f"text:{real_data}/shakespeare/tinyshakespeare.txt")
    assert "ROMEO" in plays.group_names
    assert plays.x.shape == plays.y.shape == (len(plays), 32)
    assert np.array_equal(plays.x[0, 1:], plays.y[0, :-1])
    assert np.bincount(plays.groups).min() * 32 >= 960


# --- the user's own ---------------------------------------------------------------------------------------------


def test_a_function_in_the_folder_of_the_experiment_is_called(tmp_path):
    (tmp_path / "own_data_of_test.py").write_text(
        "import numpy as np\n"
        "def pair(): return np.ones((4, 2)), [0, 1, 0, 1]\n"
        "def wrong(): return 3\n"
        "def raises(): raise ValueError('no')\n"
        "def leaves(): raise SystemExit(0)\n"
    )
    assert load("own_data_of_test:pair", base=tmp_path).x.shape == (4, 2)
    assert "gave a int" in refused("own_data_of_test:wrong", base=tmp_path)
    assert "no function 'par'" in refused("own_data_of_test:par", base=tmp_path)
    with pytest.raises(TrainingError, match="own_data_of_test:raises raised ValueError"):
        load("own_data_of_test:raises", base=tmp_path)
    with pytest.raises(TrainingError, match=r"own_data_of_test:leaves raised SystemExit\(0\)"):
        load("own_data_of_test:leaves", base=tmp_path)
    (tmp_path / "leaving_of_test.py").write_text("import sys\nsys.exit(0)\n")
    text = refused("leaving_of_test:data", base=tmp_path)
    assert "importing leaving_of_test failed: SystemExit(0) (leaving_of_test.py, line 2)" in text


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("digit", "digits"),
        ("cvs", "csv"),
        ("digits:x", "Write digits"),
        ("csv:", "csv:PATH"),
        ("odd.csv", "csv:odd.csv?label=COLUMN"),
        ("in/A.XLSX?label=y", "excel:in/A.XLSX?label=y"),
    ],
)
def test_an_unknown_source_is_refused_with_the_nearest(source, advice):
    assert advice in refused(source)


# --- splitting --------------------------------------------------------------------------------------------------


def test_a_split_keeps_the_share_of_every_class():
    digits = load("digits")
    train, test = split_indices(digits, 0.2, 0)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(1797))
    share = np.bincount(digits.y[test]) / np.bincount(digits.y)
    assert np.all(np.abs(share - 0.2) < 0.004)


def test_labels_that_are_all_unlike_are_refused_with_their_cause_and_not_the_share():
    data = Dataset("d", np.zeros((10, 1), np.float32), np.arange(10), 10)
    with pytest.raises(ConfigError, match="one side empty") as found:
        split_indices(data, 0.2, 0)
    assert "is the label an identifier?" in found.value.advice


def test_a_split_is_a_function_of_its_seed():
    digits = load("digits")
    assert np.array_equal(split_indices(digits, 0.2, 1)[1], split_indices(digits, 0.2, 1)[1])
    assert not np.array_equal(split_indices(digits, 0.2, 1)[1], split_indices(digits, 0.2, 2)[1])


def test_a_split_keeps_groups_with_their_examples():
    data = Dataset(
        "d", np.arange(10, dtype=np.float32)[:, None], np.arange(10) % 2, 2, np.arange(10), tuple("abcdefghij")
    )
    train, _ = split(data, 0.2, 0)
    assert np.array_equal(train.x[:, 0], train.groups)


@pytest.mark.parametrize("test", [0.0, 1.0, 0.01])
def test_a_split_with_an_empty_side_is_refused(test):
    data = Dataset("d", np.zeros((10, 1), np.float32), np.arange(10) % 2, 2)
    with pytest.raises(ConfigError, match="test ="):
        split(data, test, 0)


def test_a_set_without_a_test_set_needs_a_share():
    with pytest.raises(ConfigError, match="no test set of its own"):
        split(load("digits"), "own", 0)


def test_an_idx_file_is_unpacked_once_while_files_are_kept_and_again_when_it_changed(tmp_path, monkeypatch):
    path, read = tmp_path / "labels", []
    unpack = idx_files._bytes
    monkeypatch.setattr(idx_files, "_bytes", lambda place: (read.append(place), unpack(place))[1])
    path.write_bytes(struct.pack(">II", 0x0801, 2) + bytes([1, 2]))
    with idx_files.keep_files(), idx_files.keep_files():
        first, second = idx_files.read_array(path, 1), idx_files.read_array(path, 1)
        assert first.tolist() == second.tolist() == [1, 2] and len(read) == 1
        assert not first.flags.writeable, "a run cannot change what the next one reads"
        path.write_bytes(struct.pack(">II", 0x0801, 3) + bytes([1, 2, 3]))
        assert idx_files.read_array(path, 1).tolist() == [1, 2, 3] and len(read) == 2
    idx_files.read_array(path, 1)
    assert len(read) == 3 and idx_files._kept is None
