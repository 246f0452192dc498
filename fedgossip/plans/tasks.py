"""Creates the task of an experiment: examples, their partition, training, and personal models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.algorithms.federated.base import ClientRule
from fedgossip.algorithms.federated.fedavg import Training
from fedgossip.base.errors import ConfigError
from fedgossip.base.kernels import uncollected
from fedgossip.core.machine import NodeId
from fedgossip.core.task import LocalTask
from fedgossip.data.columns.table_schema import DROP, FEDERATED, TableSchema, options_of, schema_of
from fedgossip.data.custom import is_function
from fedgossip.data.dataset import Dataset, Indices
from fedgossip.data.objectives import (
    CLASSIFICATION,
    CONVEX,
    COX,
    EVALUATION,
    GLM,
    LANGUAGE,
    REGRESSION,
    SPARSE,
    STATISTICS,
    SURVIVAL,
    TABLES,
    TREES,
)
from fedgossip.data.partitions import PLACE, DrawExamples, count_held_out
from fedgossip.data.record_groups import selected_rows
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import Experiment, FederatedExperiment, GossipExperiment, ParallelExperiment
from fedgossip.experiment.run_sections import SERVED
from fedgossip.experiment.sections import VALIDATION
from fedgossip.learning.analytic import Averaging, Quadratic
from fedgossip.learning.linear.sparse_steps import SparseLogistic, SparseSteps
from fedgossip.learning.linear.word_tables import word_table
from fedgossip.learning.personal.base import PersonalMethod, check_steps
from fedgossip.learning.personal.logits import FedDF
from fedgossip.learning.personal.methods import OF_LOGITS, Ifca, MeanRegularised, method_of
from fedgossip.learning.personal.personal_task import PersonalTask
from fedgossip.plans.own_parts import codec_named, make_partition, make_task
from fedgossip.secure.primitives import Entropy

if TYPE_CHECKING:
    from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy


MADE_BY = {
    STATISTICS: "fedgossip data agree EXPERIMENT",
    EVALUATION: "fedgossip evaluate MODEL EXPERIMENT",
    GLM: "fedgossip fit EXPERIMENT",
    TREES: "fedgossip fit EXPERIMENT",
    SURVIVAL: "fedgossip fit EXPERIMENT",
    COX: "fedgossip fit EXPERIMENT",
    TABLES: "fedgossip fit EXPERIMENT",
}
"""Commands that run an experiment with only sums."""


HELD_MOST = 1_000
"""Maximum number of clients for which examples of a function stay in memory; with more they are made again for each
training.
"""

SPREAD_MOST = 10_000
"""Maximum number of peers with examples counted per class for the summary and the report."""


@dataclass(frozen=True)
class DataShares:
    """The number of examples of each peer; `counts` is [n][classes], None without classes or for too many peers."""

    source: str
    classes: int | None = None
    counts: list[list[int]] | None = None
    sizes: list[int] | None = None
    test: str = ""
    """Description of the test examples."""
    trained_on: Mapping[NodeId, int] = field(default_factory=dict)
    """Number of examples that each node in this process trains on."""
    digest: str = ""
    """Hash of all examples and their partition, compared by peers; with own files, of the common test set with columns
    and classes.
    """
    notes: tuple[str, ...] = ()
    """Omissions and changes while reading the examples, one line each."""


@uncollected()
def task_of(
    experiment: Experiment,
    n: int,
    held: Sequence[NodeId] | None = None,
    entropy: Entropy | None = None,
    *,
    unagreed: bool = False,
) -> tuple[LocalTask, DataShares]:
    """Make the task of all `n` peers.  Imports torch only for learning.  Raises ConfigError.

    `held`: the peers that train in this process, None: all; others' own files are not read.  `entropy`: source of the
    noise that protects examples, os.urandom in a real run; by default the seed, which protects nothing.  `unagreed`: as
    in `task_of_dry_run`.
    """
    settings = experiment.task
    if settings.kind == "averaging":
        averaging = Averaging(n, settings.dim, dtype=settings.dtype, seed=experiment.seed)
        return averaging, DataShares("none")
    if settings.kind == "quadratic":
        quadratic = Quadratic(
            n,
            placement=settings.placement,
            eta=settings.eta,
            sigma=settings.sigma,
            dim=settings.dim,
            dtype=settings.dtype,
            seed=experiment.seed,
        )
        return with_personal(experiment, quadratic), DataShares("none")
    if settings.kind == SPARSE:
        sizes = settings.dim, settings.examples, settings.nonzeros, experiment.train.batch_size
        problem = SparseLogistic(n, *sizes, seed=experiment.seed)
        return problem if _served(experiment) else SparseSteps(
            problem, experiment.train, experiment.rounds
        ), DataShares("none")
    if experiment.own_task:
        return make_task(experiment, n), DataShares("none")
    if settings.kind in MADE_BY:
        raise ConfigError(f"task.kind = {settings.kind}: nothing is learned", f"Use it as  {MADE_BY[settings.kind]}.")
    if settings.kind == "loop":
        advice = "Start the script: fedgossip launch --experiment FILE train.py; it takes part by fedgossip.join."
        raise ConfigError("task.kind = loop: a training loop of your own, which no other command can run", advice)
    blank = unagreed and is_unagreed(experiment)
    return _learning(experiment, range(n) if held is None else held, n, entropy, blank=blank)


def is_unagreed(experiment: Experiment) -> bool:
    """Return whether the statistics that scale the sites' tables are not agreed on so far."""
    return experiment.data.scale == FEDERATED and not Path(experiment.data.agreed).exists()


def task_of_dry_run(
    experiment: Experiment, n: int, held: Sequence[NodeId] | None = None, *, unagreed: bool = False
) -> tuple[LocalTask, DataShares]:
    """Make the task of a dry run: layout and examples, without weights.

    `held` as in `task_of`.  `unagreed`: statistics may be missing.  Torch is imported if a model's name does not
    determine its layout, or if settings are tested.  Raises ConfigError as `task_of`.
    """
    e = experiment
    blank = unagreed and is_unagreed(e)
    if not e.learns or e.task.kind == CONVEX or word_table(e.model.source) or e.simulation.inside is not None:
        return task_of(e, n, held, unagreed=unagreed)
    from fedgossip.learning.untrained import Untrained, layout_of_answers, untrained

    found, described = _read(e, range(n) if held is None else held, n, blank=blank)
    objective = replace(e.objective, kind=found.train.kind)
    private = _record_privacy(e, None) is not None
    shares, _ = _trained_on(e, found)
    outlines: dict[str, Untrained] = {}
    for source in dict.fromkeys([*e.model.sources, e.model.source]):
        outlined = untrained(found.train, found.test, shares, source, e.train, objective, private=private)
        if outlined is None:
            return _build_torch_task(e, found, described, None)
        outlines[source] = outlined
    described = replace(described, trained_on={node: len(x) for node, x in shares.items()})
    if found.common is None:
        return with_personal(e, outlines[e.model.source]), described
    sizes = {source: 4 * outlines[source].length for source in e.model.sources or [e.model.source]}
    answers = Untrained(layout_of_answers(found.common, found.test), e.train)
    return with_personal(e, answers), _with_sizes(described, found.common, sizes)


def centralised(experiment: Experiment, n: int) -> dict[str, float]:
    """Train one model on all peers' data with the same number of steps, each on as many examples as one step of all
    peers.

    Returns metrics and "loss" on the common test set, "train_loss", "steps".  Raises ConfigError without data.
    """
    e = experiment
    if not e.learns or e.task.kind == CONVEX:
        raise ConfigError(f"task {e.task.kind!r} has no centralised counterpart", "Leave --centralised out.")
    from fedgossip.learning.task import train_centralised

    found = examples_of(e, range(n), n)
    train, test = found.train, found.test
    size, objective = e.train.examples_per_step * n, replace(e.objective, kind=train.kind)
    per_round = e.train.local_steps or max(1, round((e.train.local_epochs or 1) * len(train) / size))
    return train_centralised(train, test, e.model.source, e.train, e.seed, e.rounds * per_round, size, objective)


@dataclass(frozen=True)
class SharedExamples:
    """Training and test examples; shares[node]: indices into `train`; `digest` as in DataShares; `draw`: function from
    nodes to (train, shares).
    """

    train: Dataset
    test: Dataset
    shares: Mapping[NodeId, Indices]
    digest: str
    draw: DrawExamples | None = None
    common: Dataset | None = None
    """Examples on which all participants compute logits; None without an exchange of logits."""


def _draws(e: Experiment, held: Sequence[NodeId]) -> bool:
    """Return whether examples of a function are made at training, as for many clients."""
    if not isinstance(e, FederatedExperiment) or len(held) <= HELD_MOST or not is_function(e.data.source):
        return False
    needs_all = e.data.local_test or e.personal or e.coordinator.sampling == "size" or e.train.processes > 1
    private = e.budget is not None and e.budget.unit == "record"
    return e.data.partition.get("kind") == "own" and e.task.kind != CONVEX and not (needs_all or private)


def examples_of(experiment: Experiment, held: Sequence[NodeId], n: int, *, blank: bool = False) -> SharedExamples:
    """Read the examples; they depend on `held` only if peers have their own files.

    The digest is of unscaled, common examples, as scaling rounds differently between machines.  `blank`: without the
    sites' statistics.
    """
    from fedgossip.data import data, partitions

    e, source, tested_on = experiment, experiment.data.source, experiment.data.test
    kind = e.objective.data_kind
    if e.data.scale == FEDERATED:
        return _agreed_examples(e, held, blank=blank)
    if e.data.partition.get("kind") == "own":  # with {peer} in the file name, or each participant's own source
        test = data.load(str(tested_on), seed=e.seed, kind=kind, buckets=e.data.buckets, standard=e.data.by_test)
        draws, read = _draws(e, held), test.digest()

        def load_nodes(nodes: Sequence[NodeId]) -> tuple[Dataset, Dataset, Mapping[NodeId, Indices]]:
            train, shares = partitions.load_own(source, test, nodes)
            return *(data.scaled_by_test(train, test) if test.scale != "none" else (train, test)), shares

        def draw(nodes: Sequence[NodeId]) -> tuple[Dataset, Mapping[NodeId, Indices]]:
            train, _, shares = load_nodes(nodes)
            return train, shares

        if is_function(source):
            partitions.check_drawn(source, test, held[0])
        train, scaled, shares = load_nodes(() if draws else held)
        common = _common(e, test, scaled)
        return SharedExamples(train, scaled, shares, read, draw if draws else None, common)
    if isinstance(tested_on, str) and tested_on != data.OWN:
        test = data.load(tested_on, seed=e.seed, kind=kind, buckets=e.data.buckets)
        train = data.load(source, seed=e.seed, like=test)
        read = train.digest() + test.digest()
    else:
        dataset = data.load(source, seed=e.seed, kind=kind, buckets=e.data.buckets)
        read = dataset.digest()
        kept, held_out = data.split_indices(dataset, tested_on, e.seed)
        train, test = dataset.subset(kept), dataset.subset(held_out)
    if e.data.validation:
        train, validation = data.validation_split(train, e.data.validation, e.seed)
        test = validation if e.eval.on == VALIDATION else test
    like, apart = test, None
    if e.exchanges_logits and not isinstance(e.data.common, str):
        train, apart = data.validation_split(train, e.data.common, e.seed, "common")
    train, test = data.scaled(train, test)
    common = _common(e, like, test, apart)
    divided = _divided(e, train, n)
    total = hashlib.sha256(read.encode())
    for share in divided:
        total.update(len(share).to_bytes(8, "little") + share.data)
    return SharedExamples(train, test, dict(enumerate(divided)), total.hexdigest(), common=common)


def _common(e: Experiment, test: Dataset, scaled: Dataset, apart: Dataset | None = None) -> Dataset | None:
    """Return the common examples, scaled as for `scaled`; `apart`: held out of training."""
    from fedgossip.data import data

    if not e.exchanges_logits:
        return None
    if not isinstance(e.data.common, str):
        if apart is None:
            text = f"data.common = {e.data.common:g} is a share of all examples, and each has a file of its own"
            raise ConfigError(text, f"Write {data.RANDOM}:500, or name a file that all have.")
        return data.standardised(apart, scaled)
    if e.data.common.partition(":")[0] == data.RANDOM:
        return data.draw_examples(scaled, e.data.common, e.seed)
    return data.standardised(data.load(e.data.common, seed=e.seed, like=test), scaled)


def _agreed_examples(e: Experiment, held: Sequence[NodeId], *, blank: bool) -> SharedExamples:
    from fedgossip.data import partitions
    from fedgossip.data.agreed import agreed_table

    path, kind = Path(e.data.agreed), e.objective.data_kind
    schema = schema_of_experiment(e)
    table = agreed_table.unknown(schema, e.data.suppress) if blank else agreed_table.read(path)
    agreed_table.check_same(table, schema, path)
    read = partial(agreed_table.read_examples, agreed=table, kind=kind)
    test = read(options_of(str(e.data.test))[0])
    parts = [read(site_file(e, node)) for node in held]
    total = hashlib.sha256(f"{test.digest()} {table.digest}".encode())
    train, shares = partitions.together(e.data.source, test, held, parts)
    return SharedExamples(agreed_table.scaled(train), agreed_table.scaled(test), shares, total.hexdigest())


def schema_of_experiment(e: Experiment) -> TableSchema:
    """Return the columns required at all sites, by the common test file and [data.columns].  Raises ConfigError."""
    return _schema(e, e.objective.data_kind)


def _schema(e: Experiment, kind: str) -> TableSchema:
    d, query = e.data, options_of(e.data.source)[0].query
    return schema_of(
        str(d.test), d.columns, kind, missing=d.missing, categories=d.categories, query=query, where=d.where
    )


def released_rows(e: Experiment, source: str) -> str:
    """Return which records of a site's own table an experiment releases, for its ledger; "" for all."""
    if not (e.data.where or e.data.missing == DROP):
        return ""
    return selected_rows(options_of(source)[0], _schema(e, REGRESSION))  # of any task, also of sums


def site_file(e: Experiment, node: NodeId) -> TableFile:
    """Return a site's own file."""
    return options_of(e.data.source.replace(PLACE, str(node)))[0]


def _divided(experiment: Experiment, train: Dataset, n: int) -> Sequence[Indices]:
    from fedgossip.data import partitions

    keys = dict(experiment.data.partition)
    kind = keys.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError("data.partition has no kind", 'Write partition = { kind = "iid" }.')
    if given := sorted(keys.keys() & {"labels", "n", "seed", "groups"}):
        advice = "Labels, groups, seed and the number of peers are the experiment's own."
        raise ConfigError(f"data.partition: unknown key {given[0]!r}", advice)
    if is_function(kind):
        classes = train.labels if train.labels.ndim == 1 else train.labels[:, -1]
        return make_partition(kind, classes, n, experiment.seed, keys)
    return partitions.partition(kind, train.labels, n, seed=experiment.seed, groups=train.groups, **keys)


def _test_set(e: Experiment, examples: int) -> str:
    counted, test = f"{examples:,}".replace(",", " "), e.data.test
    if e.eval.on == VALIDATION:
        return f"for validation, {100 * e.data.validation:g} % of the training examples: {counted}"
    if isinstance(test, str):
        return f"the source's own {counted}" if test == "own" else f"{test}: {counted}"
    return f"{100 * test:g} % of the examples: {counted}"


def _learning(
    experiment: Experiment, held: Sequence[NodeId], n: int, entropy: Entropy | None, *, blank: bool = False
) -> tuple[LocalTask, DataShares]:
    e = experiment
    found, described = _read(e, held, n, blank=blank)
    train, shares = found.train, found.shares
    if e.task.kind == CONVEX:
        from fedgossip.learning.linear.convex import ConvexTask

        what = e.objective.loss, e.task.lam, e.train
        about: Any = {
            "positive": e.task.positive,
            "smooth": e.task.smooth,
            "seed": e.seed,
            "rounds": e.rounds,
            "whole": len(shares) == n,
        }
        return ConvexTask(train, found.test, shares, *what, **about), described
    if sizes := word_table(e.model.source):
        from fedgossip.learning.linear.words import WordsTask, WordSteps

        words = WordsTask(train, found.test, shares, sizes, e.train, e.seed)
        return words if _served(e) else WordSteps(words, e.train, e.rounds), described
    return _build_torch_task(e, found, described, entropy)


def _read(e: Experiment, held: Sequence[NodeId], n: int, *, blank: bool = False) -> tuple[SharedExamples, DataShares]:
    from fedgossip.data.data import unlike_scales, untrained_classes

    found = examples_of(e, held, n, blank=blank)
    train, shares = found.train, found.shares
    tested, notes = _test_set(e, len(found.test)), (*train.notes, *unlike_scales(train))
    described = DataShares(e.data.source, train.classes or None, test=tested, digest=found.digest, notes=notes)
    if len(shares) == n:
        described = replace(described, sizes=[len(shares[node]) for node in range(n)])
        if e.data.local_test and described.sizes:
            trained = [size - count_held_out(size, e.data.local_test) for size in described.sizes]
            least, most = min(trained), max(trained)
            each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            note = f"each trains with {each} of its examples and tests with the others (data.local_test)"
            described = replace(described, notes=(*described.notes, note))
    if len(shares) == n <= SPREAD_MOST and train.kind in (CLASSIFICATION, LANGUAGE):
        sizes, classes = [len(shares[node]) for node in range(n)], train.classes
        labels = train.labels[np.concatenate([shares[node] for node in range(n)])]
        of = np.repeat(np.arange(n), sizes) * classes + labels
        counts = np.bincount(of, minlength=n * classes).reshape(n, classes)
        notes = (*described.notes, *untrained_classes(train, found.test))
        described = replace(described, counts=counts.tolist(), notes=notes)
    return replace(found, train=_flipped(e, train, shares)), described


def _build_torch_task(
    e: Experiment, found: SharedExamples, described: DataShares, entropy: Entropy | None
) -> tuple[LocalTask, DataShares]:
    with uncollected():
        from fedgossip.learning.task import TorchTask

    shares, kept = _trained_on(e, found)
    how: Any = {"seed": e.seed, "rounds": e.rounds}

    def build(source: str) -> TorchTask:
        return TorchTask(
            found.train,
            found.test,
            shares,
            source,
            e.train,
            **how,
            kept=kept,
            privacy=_record_privacy(e, entropy),
            objective=replace(e.objective, kind=found.train.kind),
            draw=found.draw,
        )

    described = replace(described, trained_on={node: len(share) for node, share in shares.items()})
    method = personal_of(e)
    if not isinstance(method, FedDF) or found.common is None:
        return with_personal(e, build(e.model.source)), described
    from fedgossip.learning.unlike import UnlikeTasks

    sources = e.model.sources or [e.model.source]
    unlike = UnlikeTasks(build, sources, e.model.source, found.common, found.test, e.train, method, **how)
    return with_personal(e, unlike), _with_sizes(described, found.common, unlike.model_bytes)


def _with_sizes(described: DataShares, common: Dataset, model_bytes: Mapping[str, int]) -> DataShares:
    """Return the facts with the bytes of an exchange of logits."""
    models = ", ".join(f"{source} {size:,}" for source, size in model_bytes.items())
    sent = f"logits for {len(common):,} common examples, {4 * len(common) * common.classes:,} bytes, are exchanged"
    return replace(described, notes=(*described.notes, f"{sent}; models stay, of bytes: {models}"))


def _served(experiment: Experiment) -> bool:
    return isinstance(experiment, ParallelExperiment) and experiment.parallel.method == SERVED


def _trained_on(
    e: Experiment, found: SharedExamples
) -> tuple[Mapping[NodeId, Indices], Mapping[NodeId, Indices] | None]:
    """Return each node's training and held-out examples, None without."""
    from fedgossip.data import partitions

    share = e.data.local_test
    return partitions.hold_out(found.shares, share, e.seed) if share else (found.shares, None)


def _flipped(e: Experiment, train: Dataset, shares: Mapping[NodeId, Indices]) -> Dataset:
    """Return the examples; those of label-flip attackers have label C - 1 - y in place of y."""
    if not isinstance(e, GossipExperiment) or not e.adversary.peers or e.adversary.attack != "label-flip":
        return train
    if train.kind != CLASSIFICATION:
        raise ConfigError(f"label-flip: the labels of {e.data.source} are no classes", "Take another attack.")
    y = train.y.copy()
    for node in e.adversary.peers:
        if node in shares:
            y[shares[node]] = train.classes - 1 - y[shares[node]]
    return replace(train, y=y)


def _record_privacy(experiment: Experiment, entropy: Entropy | None) -> RecordPrivacy | None:
    p = experiment.budget
    if p is None or p.unit != "record":
        return None
    from fedgossip.learning.dp_sgd.record_privacy import RecordPrivacy

    return RecordPrivacy(p.clip, p.noise, entropy, p.test_noise)


def label_counts(experiment: Experiment, n: int) -> list[list[int]]:
    """Return the number of examples of each class at each of `n` peers, [n][classes], without training.

    Raises ConfigError for a task without classes, and for peers with their own files.
    """
    if not experiment.learns or experiment.data.partition.get("kind") == "own":
        text = "the peers' label counts are not known here"
        raise ConfigError(text, "Name an experiment whose [data] is divided by data.partition.")
    found = examples_of(experiment, range(n), n)
    if found.train.kind not in (CLASSIFICATION, LANGUAGE):
        raise ConfigError(f"{experiment.data.source} has no classes", "Take data that is classified.")
    labels = found.train.labels
    return [np.bincount(labels[found.shares[node]], minlength=found.train.classes).tolist() for node in range(n)]


def example_counts(experiment: Experiment, n: int) -> list[int]:
    """Return the number of examples of each of `n` peers, [n], without training.

    Raises ConfigError for a task without examples, and for peers with their own files.
    """
    if not experiment.learns or experiment.data.partition.get("kind") == "own":
        text = "how many examples each peer has is not known to the others"
        raise ConfigError(text, "Take data that is divided by data.partition, or weights = pi:FILE.")
    shares = examples_of(experiment, range(n), n).shares
    return [len(shares[node]) for node in range(n)]


def personal_of(e: Experiment) -> PersonalMethod | None:
    """Return the personal method of an experiment; None without one.  Raises ConfigError for an unknown one."""
    return method_of(_key(e), e.personal) if e.personal else None


def with_personal(e: Experiment, task: LocalTask) -> LocalTask:
    """Return the task with personal models if the experiment has them."""
    method = personal_of(e)
    compared = e.eval.every if e.data.local_test else 0
    if method is None:
        return task
    return PersonalTask(task, method, e.train, rounds=e.rounds, seed=e.seed, score=e.score, compared=compared)


def check_personal_clients(e: FederatedExperiment, rule: ClientRule) -> None:
    """Raise ConfigError for a personal method that the federated run does not support."""
    method = _checked(e)
    if method is None:
        return
    s, where = e.coordinator, f"{_key(e)} = {e.personal!r}"
    if s.personal and s.algorithm in OF_LOGITS:
        text = f"coordinator.personal = {s.personal!r} with coordinator.algorithm = {s.algorithm!r}, a method too"
        raise ConfigError(text, "Leave one of them out; options of the algorithm stand in coordinator.options.")
    if isinstance(method, FedDF | MeanRegularised) and s.algorithm == "fedbuff":
        text = f"{where} with fedbuff, which adds differences from an older mean to a newer one"
        raise ConfigError(text, "Take fedavg, or another algorithm that goes by rounds.")
    plain = isinstance(rule, Training) and not rule.mu
    if rule.gradient or not (plain or method.follows):
        text = f"{where} with coordinator.algorithm = {s.algorithm!r}, whose clients train by a rule of its own"
        raise ConfigError(text, "Take fedavg, or a server such as fedavgm or fedadam.")
    if isinstance(method, Ifca) and method.clusters > s.clients:
        text = f"{where}: {method.clusters} clusters of {s.clients} clients"
        raise ConfigError(text, f"Write ifca?clusters={min(2, s.clients)}, or fewer than clients.")
    _check_sources(e, s.clients)
    if s.codec and codec_named(s.codec).remembers:
        text = f"{where} with coordinator.codec = {s.codec!r}, which adds what it left out to a later update"
        raise ConfigError(text, "Leave coordinator.codec out, or take one without a memory: bf16.")
    if e.budget and e.budget.unit == "record" and not method.private:
        text = f"{where} with coordinator.privacy.unit = 'record': it reads losses and gradients besides training"
        raise ConfigError(text, "Take ditto, mr-mtl or finetune.")


def check_personal_peers(e: GossipExperiment) -> None:
    """Raise ConfigError for a personal method that the gossip run does not support."""
    method = _checked(e)
    if method is None:
        return
    a, where = e.algorithm, f"algorithm.personal = {e.personal!r}"
    changed = a.name != "dsgd" or a.mode != "sync" or a.options.get("order", "atc") != "atc"
    if changed and not method.follows:  # a peer sends x + update, which the method computes
        name = " ".join([repr(a.name), a.mode, *map(str, a.options.values())])
        text = f"{where} with algorithm.name = {name}, which goes by updates of usual training"
        raise ConfigError(text, "Take dsgd with its usual order, in sync mode; or ditto or finetune.")
    if isinstance(method, Ifca) and e.topology.n is not None and method.clusters > e.topology.n:
        raise ConfigError(f"{where}: {method.clusters} clusters of {e.topology.n} peers", "Write ifca?clusters=2.")
    if e.topology.n is not None:
        _check_sources(e, e.topology.n)


def _checked(e: Experiment) -> PersonalMethod | None:
    """Return the method.  Raises ConfigError."""
    method = personal_of(e)
    if method is None:
        return None
    where = f"{_key(e)} = {e.personal!r}"
    if not (e.learns and e.task.kind != CONVEX) and e.task.kind != "quadratic":
        text = f"{where} with task.kind = {e.task.kind!r}, which trains no model of a participant's own"
        raise ConfigError(text, "Leave it out, or learn a model from data.")
    if e.train.personal:
        text = f"{where} with train.personal = {e.train.personal!r}: both keep parameters at their node"
        raise ConfigError(text, "Leave train.personal out; fedrep?head=PATTERNS keeps layers, and trains them apart.")
    check_steps(method, str(e.personal), e.train)
    if isinstance(method, FedDF):
        _check_answers(e, where)
    return method


def _check_answers(e: Experiment, where: str) -> None:
    """Raise ConfigError for a task without logits of classes, or partial models."""
    if not e.learns or e.objective.data_kind != CLASSIFICATION:
        text = f"{where}: participants answer with logits of classes, and the task is {e.task.kind}"
        raise ConfigError(text, "Take data with classes, or fedavg.")
    if e.train.processes > 1 or e.train.buffers == "local":
        key = "processes" if e.train.processes > 1 else "buffers"
        text = f"{where} with train.{key} = {getattr(e.train, key)!r}: a model that answers is whole, in one process"
        raise ConfigError(text, f"Leave train.{key} out.")


def _check_sources(e: Experiment, participants: int) -> None:
    if len(e.model.sources) > participants:
        text = f"model.sources names {len(e.model.sources)} models of {participants} participants"
        raise ConfigError(text, "Name at most one for each: participant i has the one at i modulo their number.")


def _key(e: Experiment) -> str:
    if isinstance(e, FederatedExperiment):
        return "coordinator.algorithm" if e.coordinator.algorithm in OF_LOGITS else "coordinator.personal"
    return "algorithm.personal"
