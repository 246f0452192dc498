"""Lines of several lengths, in buckets: what is read, drawn, padded, counted, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from commands import typed
from torch.nn import functional

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Job
from fedgossip.data import text
from fedgossip.data.data import load, split
from fedgossip.data.dataset import Dataset
from fedgossip.data.ragged import IGNORED, Ragged, from_rows
from fedgossip.drivers.local import run_local
from fedgossip.experiment import load_experiment
from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy
from fedgossip.learning.models import models
from fedgossip.learning.models.loaded_model import load_model
from fedgossip.learning.one_model.batches import BucketBatches
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.module_engine import ModuleLoop
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.task import TorchTask
from fedgossip.plans import compose

PLAYS = "shakespeare/tinyshakespeare.txt"
BUCKETS = [4, 8, 16]
WORDS = ["to", "be", "or", "not", "be,", "that", "is", "the", "question"]


def written(folder: Path, count: int = 90) -> Path:
    """A file of lines of 2 to 15 characters, each of its own."""
    rows = [" ".join([WORDS[k % 9], WORDS[k * k % 8], str(k)])[: 2 + k * 7 % 14] for k in range(count)]
    path = folder / "lines.txt"
    path.write_text("\n".join(rows) + "\n")
    return path


def read(folder: Path, buckets: list[int] = BUCKETS) -> Dataset:
    return load(f"lines:{written(folder)}", buckets=buckets)


def task_of(data: Dataset, model: str = "chars:8", shares: Any = None, **how: Any) -> TorchTask:
    settings = TrainSettings(**{"device": "cpu", "batch_size": 6, "local_steps": 3, **how})
    shares = [np.arange(len(data))] if shares is None else shares
    return TorchTask(data, data, shares, model, settings, seed=1, rounds=9)


def words_of(data: Dataset, row: int) -> tuple[list[int], list[int]]:
    """One line as it is, without padding: what is read, and what is to be predicted."""
    assert isinstance(data.x, Ragged) and isinstance(data.y, Ragged)
    where = slice(data.x.offsets[row], data.x.offsets[row + 1])
    return data.x.values[where].tolist(), data.y.values[where].tolist()


def unpadded(task: TorchTask, data: Dataset, model: str, vector: Vector, rows: Any) -> tuple[torch.Tensor, Vector, int]:
    """Return the mean loss over the characters of these lines, its gradient, and how many are guessed, line by line."""
    assert data.vocabulary is not None
    module = models.build(model, data.shape, data.classes, 1, len(data.vocabulary))
    layout = Layout.from_module(module)
    layout.write(module, vector)
    total, characters, right = torch.zeros(()), 0, 0
    for row in rows:
        read, wanted = (torch.tensor([part]) for part in words_of(data, int(row)))
        logits = module(read)
        total = total + functional.cross_entropy(logits[0], wanted[0], reduction="sum")
        characters += wanted.numel()
        right += int((logits.argmax(-1) == wanted).sum())
    loss = total / characters
    loss.backward()
    gradient = np.concatenate([parameter.grad.reshape(-1).numpy() for parameter in module.parameters()])  # type: ignore[union-attr]
    return loss.detach(), frozen(gradient), right


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_line_is_read_from_its_first_character_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffäb\r\n\r\n  \nc\n".encode())
    data = load(f"lines:{tmp_path}/a.txt", buckets=[2, 4])
    assert data.vocabulary == "\nbcä" and len(data) == 2
    spelled = [["".join(data.vocabulary[code] for code in part) for part in words_of(data, row)] for row in (0, 1)]
    assert spelled == [["\näb", "äb\n"], ["\nc", "c\n"]]


def test_padding_is_behind_the_line_and_no_label(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab\nc\n")
    data = load(f"lines:{tmp_path}/a.txt", buckets=[2, 4, 6])
    assert data.x.padded(np.array([1])).tolist() == [[0, 3]] and data.x.padded(np.array([0])).tolist() == [[0, 1, 2, 0]]
    assert data.y.padded(np.array([1, 0])).tolist() == [[3, 0, IGNORED, IGNORED], [1, 2, 0, IGNORED]]
    assert np.asarray(data.y).shape == data.y.shape == data.x[:].shape == (2, 6)


def test_rows_are_taken_and_joined_as_lists_of_them_are(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
    ragged = from_rows(rows, (2, 4), 0)
    places = np.array([3, 1, 1])
    assert [part[part > 0].tolist() for part in ragged.take(places)[:]] == [rows[place] for place in places]
    assert ragged.lengths.tolist() == [3, 1, 2, 4] and ragged.bucket.tolist() == [1, 0, 0, 1]
    assert ragged.padding_share() == pytest.approx(1 - 10 / 12)
    assert ragged.padded(np.empty(0, np.int64)).shape == (0, 2)


def test_what_is_cut_or_left_out_is_counted_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh\n\nabc\n \nabcdef\n")
    notes = load(f"lines:{tmp_path}/a.txt", buckets=[2, 5]).notes
    assert notes[0] == "a.txt: 3 lines, 7 % padding in their buckets"  # of 15 places the last one of abc and its end
    assert notes[1] == "a.txt: 2 empty lines left out"
    assert (
        notes[2] == "a.txt: 2 lines cut to 5 characters, the last bucket: 6 characters lost"
    )  # ends count: 9 + 7 - 10


def test_a_dry_run_and_a_summary_tell_it_too(tmp_path: Path) -> None:
    content = experiment(written(tmp_path), buckets=[4, 8])
    (tmp_path / "cut.toml").write_text(tomli_w.dumps(content))
    said = typed(["run", "cut.toml", "--dry-run"], tmp_path)
    told = [line[2:] for line in said.out.splitlines() if line.startswith("# lines.txt: ")]
    assert said.code == 0 and any("cut to 8 characters" in line for line in told)
    assert fedgossip.simulate(content, engine="stacked").summary["data"]["notes"] == told


def test_the_report_of_a_federated_run_tells_it_too(tmp_path: Path) -> None:
    content = experiment(written(tmp_path), buckets=[4, 8])
    del content["topology"]
    fedgossip.simulate({**content, "coordinator": {"clients": 3}}, out=tmp_path / "run", report=True)
    assert "cut to 8 characters, the last bucket" in (tmp_path / "run" / "report.html").read_text()


@pytest.fixture(scope="module")
def plays(data_folder: Path) -> Dataset:
    path = data_folder / PLAYS
    return load(f"lines:{path}", buckets=[128]) if path.is_file() else pytest.skip(f"no plays at {data_folder}")


@pytest.mark.data
@pytest.mark.parametrize(
    ("buckets", "share"),
    [([128], 0.74), ([64], 0.47), ([16, 32, 64, 128], 0.31), ([16, 24, 32, 40, 48, 56, 64, 96, 128], 0.12)],
)
def test_batches_of_the_plays_reach_their_share_of_padding(plays: Dataset, buckets: list[int], share: float) -> None:
    """32 777 lines of 34 characters on average, the longest 64; the shares were counted from their lengths alone."""
    y = replace(plays.y, buckets=tuple(buckets))
    assert (len(y), int(y.lengths.max()), round(y.lengths.mean())) == (32_777, 64, 34)
    settings = TrainSettings(device="cpu", batch_size=32, local_steps=600)
    plan = BucketBatches([np.arange(len(y))], settings, 1, y.bucket, len(buckets)).plan(0, 0)
    drawn = [y.padded(rows) for rows in plan.batches]
    padding = sum(int((one == IGNORED).sum()) for one in drawn) / sum(one.size for one in drawn)
    assert abs(padding - share) < 0.02
    assert abs(padding - y.padding_share()) < 0.01


class Pooled(torch.nn.Module):
    """A line's mean character, normalised over the batch."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.read, self.norm = torch.nn.Embedding(classes, 4), torch.nn.BatchNorm1d(4)
        self.top = torch.nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.norm(self.read(x).mean(1)))[:, None].expand(-1, x.shape[1], -1)


def pooled(shape: tuple[int, ...], classes: int) -> Pooled:
    return Pooled(classes)


@pytest.mark.parametrize(("size", "refused"), [(4, True), (3, False)])
def test_a_batch_of_one_line_is_refused_before_training_by_the_lines_of_its_bucket(
    size: int, refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("ab\n" * 5 + "abcdef\n" * 8)  # of each bucket 5 = 4 + 1, 8 = 4 + 4
    data = load(f"lines:{tmp_path / 'lines.txt'}", buckets=BUCKETS)
    how: Any = {"model": "tests.learning.test_length_buckets:pooled", "batch_size": size, "local_steps": None}
    with pytest.raises(ConfigError, match="a batch here is one example") if refused else nullcontext():
        task_of(data, **how, local_epochs=1)


# --- what is drawn ----------------------------------------------------------------------------------------------------


def drawn_by(sizes: list[int], **how: Any) -> tuple[BucketBatches, np.ndarray]:
    bucket = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return BucketBatches([np.arange(len(bucket))], TrainSettings(device="cpu", **how), 1, bucket, len(sizes)), bucket


@pytest.mark.parametrize("sizes", [[40, 25, 3, 0, 1], [5], [1, 1], [2, 300]])
def test_steps_are_full_of_one_bucket_and_all_lines_are_seen_alike(sizes: list[int]) -> None:
    size, rounds = 8, 40
    batches, bucket = drawn_by(sizes, batch_size=size, local_steps=5)
    plans = [batches.plan(0, number) for number in range(rounds)]
    seen = np.zeros(len(bucket), np.int64)
    for plan in plans:
        assert plan.counts.tolist() == [size] * 5
        assert all(len(set(bucket[rows].tolist())) == 1 for rows in plan.batches)
        np.add.at(seen, plan.indices.reshape(-1), 1)
    fair = rounds * 5 * size / len(bucket)
    for place, m in enumerate(sizes):  # of each bucket: one batch more or less, and a pass that is not through
        assert abs(seen[bucket == place].sum() - fair * m) <= size * (len(sizes) + 1) + m
        assert m == 0 or np.ptp(seen[bucket == place]) <= 1


def test_a_plan_is_a_function_of_node_and_round() -> None:
    in_order, _ = drawn_by([30, 11, 4], batch_size=4, local_steps=3)
    plans = [in_order.plan(0, number).indices for number in range(12)]
    for number in (11, 3, 7, 0):
        afresh, _ = drawn_by([30, 11, 4], batch_size=4, local_steps=3)
        assert np.array_equal(afresh.plan(0, number).indices, plans[number])
    assert len({plan.tobytes() for plan in plans}) == len(plans)


def test_an_epoch_has_every_line_once() -> None:
    batches, bucket = drawn_by([30, 11, 4], batch_size=4, local_epochs=2)
    plan = batches.plan(0, 1)
    assert len(plan.counts) == 2 * (8 + 3 + 1) and plan.counts.sum() == 2 * 45
    assert all(len(set(bucket[rows].tolist())) == 1 for rows in plan.batches)
    assert np.bincount(np.concatenate(plan.batches)).tolist() == [2] * 45
    first = [int(bucket[rows[0]]) for rows in plan.batches[:12]]
    assert first != sorted(first)


# --- what is learned --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["chars:8", "gpt:1-8-2"])
def test_a_gradient_is_that_of_the_lines_without_padding(tmp_path: Path, model: str) -> None:
    data = read(tmp_path)
    task = task_of(data, model)
    vector = task.initial(0)
    rows = np.concatenate(task._batches.plan(0, 2).batches)
    (update,) = task.gradients([Job(0, 2, vector)])
    loss, gradient, _ = unpadded(task, data, model, vector, rows)
    assert update.difference is not None
    assert np.abs(update.difference - gradient).max() < 1e-6
    assert update.metrics["loss"] == pytest.approx(float(loss), abs=1e-6)
    assert update.metrics["rows"] == sum(len(words_of(data, int(row))[0]) for row in rows)


def test_gradients_of_workers_add_up_to_that_of_all_their_lines(tmp_path: Path) -> None:
    data = read(tmp_path)
    task = task_of(data, shares=[np.arange(30), np.arange(30, 90)], local_steps=1)
    vector = task.initial(0)
    updates = task.gradients([Job(node, 0, vector) for node in (0, 1)])
    rows = np.concatenate([task._batches.plan(node, 0).batches[0] for node in (0, 1)])
    total = sum(update.metrics["rows"] for update in updates)
    mean = sum(update.difference * np.float32(update.metrics["rows"] / total) for update in updates)  # type: ignore[operator]
    assert np.abs(mean - unpadded(task, data, "chars:8", vector, rows)[1]).max() < 1e-6


def test_a_batch_in_pieces_gives_the_step_of_the_whole(tmp_path: Path) -> None:
    data = read(tmp_path)
    whole, pieces = task_of(data, batch_size=12), task_of(data, batch_size=3, accumulate=4)
    vector = whole.initial(0)
    steps = [task.train([Job(0, 0, vector)])[0].difference for task in (whole, pieces)]
    assert steps[0] is not None and steps[1] is not None and np.abs(steps[0]).max() > 1e-3
    assert np.abs(steps[0] - steps[1]).max() < 1e-6


def test_an_evaluation_counts_characters_and_no_padding(tmp_path: Path) -> None:
    data = read(tmp_path)
    task = task_of(data)
    vector = task.train([Job(0, 0, task.initial(0))])[0].difference
    assert vector is not None
    loss, _, right = unpadded(task, data, "chars:8", vector, range(len(data)))
    (found,) = task.evaluate([vector])
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["accuracy"] == right / len(data.y.values)


def test_batches_that_a_thread_makes_ready_are_the_same(tmp_path: Path) -> None:
    data = read(tmp_path)
    here, ahead = task_of(data), task_of(data, prefetch=2)
    job = Job(0, 1, here.initial(0))
    assert np.array_equal(here.train([job])[0].difference, ahead.train([job])[0].difference)  # type: ignore[arg-type]
    assert here.evaluate([job.vector]) == ahead.evaluate([job.vector])


def experiment(path: Path, **data: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": {"source": f"lines:{path}", "buckets": BUCKETS, **data},
        "model": {"source": "chars:8"},
        "train": {"lr": 0.5, "local_steps": 2, "batch_size": 4, "device": "cpu"},
        "topology": {"graph": "ring", "n": 3},
        "eval": {"every": 3},
    }


@pytest.mark.sockets
def test_simulator_arrays_and_processes_end_with_the_same_bits(tmp_path: Path) -> None:
    """Lines go to the loop, a model after another, also where the other engines stack what they can."""
    content = experiment(written(tmp_path))
    task, _ = compose.task_of(load_experiment(content), 3)
    assert isinstance(task, TorchTask) and isinstance(task._engine, ModuleLoop) and not task.trains_stacks(3)
    runs = [fedgossip.simulate(content), fedgossip.simulate(content, engine="stacked")]
    runs.append(run_local(load_experiment(content), tmp_path / "run", report=False))
    assert len({run.digest for run in runs}) == 1 and runs[0].digest


def test_a_linear_model_of_ones_own_goes_to_the_loop(tmp_path: Path) -> None:
    task = task_of(read(tmp_path), "test_length_buckets:linear")
    assert isinstance(task._engine, ModuleLoop)


def linear(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], classes))


@pytest.mark.long
@pytest.mark.sockets
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    data = read(tmp_path)
    one, two = task_of(data), task_of(data, processes=2)
    job = Job(0, 0, one.initial(0))
    steps = [task.train([job])[0].difference for task in (one, two)]
    assert steps[0] is not None and steps[1] is not None and np.abs(steps[0]).max() > 1e-3
    assert np.abs(steps[0] - steps[1]).max() < 1e-6
    assert one.evaluate([job.vector])[0] == pytest.approx(two.evaluate([job.vector])[0], rel=1e-6)


def test_peers_with_files_of_their_own_share_the_characters_of_the_common_one(tmp_path: Path) -> None:
    common = written(tmp_path)
    for peer, written_text in enumerate(("to be\n", "or not\nthat\n", "is\n")):
        (tmp_path / f"peer-{peer}.txt").write_text(written_text)
    own = {"source": f"lines:{tmp_path}/peer-{{peer}}.txt", "test": f"lines:{common}", "partition": {"kind": "own"}}
    run = fedgossip.simulate(experiment(common, **own), engine="stacked")
    assert run.summary["data"]["sizes"] == [1, 2, 1]
    (tmp_path / "peer-1.txt").write_text("not Ω\n")
    with pytest.raises(ConfigError, match=r"peer-1\.txt: the character 'Ω' is not among its"):
        fedgossip.simulate(experiment(common, **own), engine="stacked")


def test_a_model_out_of_its_folder_is_worth_on_lines_what_its_run_measured(tmp_path: Path) -> None:
    content = experiment(written(tmp_path))
    run = fedgossip.simulate(content, out=tmp_path / "run")
    model = load_model(tmp_path / "run")
    whole = load(f"lines:{tmp_path}/lines.txt", like=model.like)
    _, test = split(load(f"lines:{tmp_path}/lines.txt", buckets=BUCKETS), 0.2, run.summary["seed"])
    assert whole.shape == (16,)
    assert model.evaluate(test)["accuracy"] == pytest.approx(run.summary["score"]["averaged"], abs=1e-9)
    assert model.evaluate(test)["loss"] == pytest.approx(run.summary["test_loss"], rel=1e-5)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no line has a character"),
        (b"\n\n  \n", "no line has a character"),
        (b"caf\xe9\n", "byte 3 is no text"),
        (b"a\0b\n", "character 1 is NUL"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert said in refused(f"lines:{tmp_path}/a.txt")


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.setattr(text, "MOST_BYTES", 100)
    assert "more than 0 MiB" in refused(f"lines:{tmp_path}/lines.txt")
    assert "there is no file" in refused(f"lines:{tmp_path}/other.txt")
    assert "unknown option 'context'" in refused(f"lines:{tmp_path}/lines.txt?context=3")
    assert "names no file" in refused("lines:")


def refused(source: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(source)
    assert error.value.advice and "\n" not in str(error.value)
    return f"{error.value} {error.value.advice}"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"buckets": [16, 16]}, r"data\.buckets = \[16, 16\] do not ascend"),
        ({"buckets": [32, 16]}, r"do not ascend"),
        ({"buckets": [0, 16]}, "from 0 to 16"),
        ({"buckets": [16, 65_537]}, "from 16 to 65537"),
        ({"buckets": list(range(1, 66))}, r"data\.buckets are 65"),
        ({"buckets": [16], "source": "digits"}, r"data\.buckets of 'digits'"),
        ({"buckets": [16], "source": "text:a.txt"}, r"whose examples are all of one length"),
    ],
)
def test_buckets_that_are_none_are_refused(tmp_path: Path, data: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        load_experiment(experiment(written(tmp_path), **data))
    assert error.value.advice


def test_runs_without_buckets_have_the_hash_that_they_had() -> None:
    assert "buckets" not in load_experiment({"topology": {"graph": "ring", "n": 3}}).to_dict()["data"]


def test_the_experiment_that_the_page_shows_learns(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "use" / "data.md").read_text()
    written(tmp_path)
    (tmp_path / "lines.toml").write_text(page.partition("<!-- file: lines.toml -->\n```toml\n")[2].partition("```")[0])
    run = fedgossip.simulate(tmp_path / "lines.toml", engine="stacked", overrides=["rounds=10"])
    first = fedgossip.simulate(tmp_path / "lines.toml", engine="stacked", overrides=["rounds=1"])
    assert run.summary["test_loss"] < 0.8 * first.summary["test_loss"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"processes": 2, "mesh": {"pipeline": 2}, "batch_size": 8}, "stages know one"),
        ({"metrics": ["test_length_buckets:own_metric"]}, "lines have several lengths"),
        ({"model": "mlp:16-8-20"}, "cannot read text"),
        ({"model": "words:64-4-2"}, "its examples are text"),
    ],
)
def test_what_lines_cannot_have_is_refused(tmp_path: Path, how: dict[str, Any], said: str) -> None:
    content = experiment(written(tmp_path))
    content["task"] = {"metrics": how.pop("metrics")} if "metrics" in how else {}
    content["model"] = {"source": how.pop("model", "chars:8")}
    content["train"] |= how
    with pytest.raises(ConfigError, match=said):
        fedgossip.simulate(content)


def own_metric(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float(len(outputs) + len(labels))


def test_single_lines_cannot_be_hidden_in_buckets(tmp_path: Path) -> None:
    data, how = read(tmp_path), TrainSettings(device="cpu")
    with pytest.raises(ConfigError, match="single lines are private"):
        TorchTask(data, data, [np.arange(9)], "chars:8", how, seed=1, rounds=1, privacy=RecordPrivacy(1.0, 1.0))
