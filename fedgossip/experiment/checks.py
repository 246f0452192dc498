"""Checks of an experiment with valid keys: values out of range, contradictory sections, keys that an engine ignores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import msgspec

from fedgossip.algorithms.codecs.base import LinearCodec
from fedgossip.algorithms.codecs.low_rank import low_rank_of
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.codecs.quantized import BFloat16, Half, Int8
from fedgossip.algorithms.codecs.sparse import DeepGradient
from fedgossip.algorithms.collectives.names import COLLECTIVES, GATHERS
from fedgossip.algorithms.gossip.names import METHODS
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.limits import MOST, Limit, Within, limits_of
from fedgossip.base.untrusted_text import line
from fedgossip.core.messages import WORKERS_MAX
from fedgossip.data.columns.table_schema import DROP, FEDERATED, TEST, options_of, sets_of
from fedgossip.data.custom import is_function
from fedgossip.data.objectives import (
    CONVEX,
    GLM,
    KINDS,
    OF_FORMULAS,
    SPARSE,
    SUMS,
    check_metrics,
    is_of_model,
    objective_of,
)
from fedgossip.data.partitions import PLACE
from fedgossip.data.ragged import check_buckets
from fedgossip.experiment.run_sections import (
    ALGORITHM_CODE,
    ASYNC,
    CODEC_CODE,
    LBFGS,
    MAPREDUCE,
    SERVED,
    OuterSection,
    ParallelSection,
    ServerSection,
)
from fedgossip.experiment.sections import (
    BEST,
    GIVEN,
    OF_STATISTICS,
    TRACKERS,
    VALIDATION,
    DataSection,
    Experiment,
    FederatedExperiment,
    GossipExperiment,
    ParallelExperiment,
)
from fedgossip.learning.settings import HOGWILD

OF_ROUNDS = {GossipExperiment.kind: "algorithm"}
"""Section with the deadlines of a kind of run, if not the section that selects the kind."""


def check(experiment: Experiment, where: str) -> None:
    """Raise ConfigError, naming the key, for an experiment that cannot run; `where` is the file's name in errors."""
    _check_loop(experiment, where)
    for key, value, limit in _limited(experiment):
        if not limit.allows(value):
            raise ConfigError(f"{where}: {key} = {line(repr(value))} {limit.refusal}", limit.advice(value))
    _check_seed("seed", experiment.seed, where)
    _check_objective(experiment, where)
    _check_convex(experiment, where)
    for text in experiment.track.to:
        if (to := text.partition(":")[0]) not in TRACKERS:
            raise ConfigError(f"{where}: track.to = {to!r} is not known", nearest(to, TRACKERS))
    _check_test(experiment.data.test, where)
    _check_common(experiment, where)
    _check_own(experiment.data, where)
    _check_buckets(experiment.data, where)
    _check_agreed(experiment, where)
    _check_unread(experiment, where)
    _check_validation(experiment, where)
    _check_selection(experiment, where)
    _check_unequal_work(experiment, where)
    _check_inside(experiment, where)
    if not 0 <= experiment.data.local_test < 1:
        raise ConfigError(f"{where}: data.local_test = {experiment.data.local_test} is no share", "Set it below 1.")


def _limited(section: object, path: str = "") -> Iterator[tuple[str, object, Limit]]:
    yield from ((path + name, getattr(section, name), limit) for name, limit in limits_of(type(section)))
    held = msgspec.structs.asdict(section) if isinstance(section, msgspec.Struct) else {}
    for name, value in held.items():
        if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
            yield from _limited(value, f"{path}{name}.")


OF_LOOPS = ("local_steps", "buffers", "portable")
"""Keys of [train] that still apply to a user's own training loop."""


def _check_loop(experiment: Experiment, where: str) -> None:
    """Raise ConfigError for keys without effect on a user's own loop or task, which decides them itself."""
    loops, own = experiment.loops, experiment.own_task
    if experiment.task.options and not own:
        raise ConfigError(f"{where}: task.options are of a task of your own", 'Set task.kind = "module:Class".')
    if not loops:
        if experiment.task.exchange:
            text = f"{where}: task.exchange = {experiment.task.exchange!r} is of a training loop's adapters"
            raise ConfigError(text, 'Set task.kind = "loop", or leave it out.')
        if not own:
            return
    advice = "Your loop has its own data, model and optimizer: [train] holds local_steps, buffers and portable alone."
    advice = "Your task has its own data, model and optimizer: give it options." if own else advice
    for name, section in (("data", experiment.data), ("model", experiment.model)):
        if section != type(section)():
            raise ConfigError(f"{where}: [{name}] with task.kind = {experiment.task.kind}", advice)
    usual = type(experiment.train)()
    for field in dataclasses.fields(usual):
        kept = OF_LOOPS if loops else ("portable",)
        if field.name not in kept and getattr(experiment.train, field.name) != getattr(usual, field.name):
            raise ConfigError(f"{where}: train.{field.name} with task.kind = {experiment.task.kind}", advice)
    if experiment.budget and experiment.budget.unit == "record":
        advice = 'Set coordinator.privacy.unit = "client"; or name a model of yours in model.source, trained from here.'
        what = "loop" if loops else "task"
        raise ConfigError(f"{where}: single records of a {what} of your own cannot be hidden from here", advice)


def _check_inside(e: Experiment, where: str) -> None:
    """Raise ConfigError for racks without a size, and for steps that simulation.inside cannot time."""
    if e.simulation.racks is not None and e.simulation.racks.size is None:
        raise ConfigError(f"{where}: simulation.racks without size", "Give the nodes of a rack: racks = { size = 4 }.")
    if e.simulation.inside is None:
        return
    if e.simulation.inside.flops is None:
        advice = "Give the FLOP per second of a process: inside = { flops = 1e12 }."
        raise ConfigError(f"{where}: simulation.inside without flops", advice)
    train, parallel = e.train, getattr(e, "parallel", None)
    trains = e.learns and not (e.loops or e.own_task or e.task.kind == CONVEX)
    accumulates = train.accumulate > 1 or (parallel is not None and parallel.accumulate > 1)
    beside = {
        f"task.kind = {e.task.kind}: torch trains no model by it": not trains,
        "simulation.per_example": e.simulation.per_example is not None,
        "several models: its steps are of one": bool(e.personal or e.model.sources),
        "train.offload: its copies need inside.pcie": train.offload and e.simulation.inside.pcie is None,
        "links and bandwidth: both give the same number": bool(
            e.simulation.inside.links and e.simulation.inside.bandwidth
        ),
        "zero = 1: it divides what the parts of a batch share by ddp": e.simulation.inside.zero is not None
        and (train.parallel != "ddp" or train.parts_of_batch < 2),
        "train.compression: it counts whole messages": train.compression != "none",
        f'train.parallel = "{HOGWILD}": its processes take no step together': train.parallel == HOGWILD,
        "accumulate: it counts the messages of every batch": train.processes > 1 and accumulates,
    }
    for what, stands in beside.items():
        if stands:
            text = f"{where}: simulation.inside with {what}"
            raise ConfigError(text, "Leave it out: simulation.training and per_example give any step its time.")


def check_gossip(e: GossipExperiment, where: str) -> None:
    """Raise ConfigError for invalid values of [topology] and [algorithm]."""
    name = e.algorithm.name
    if name not in METHODS and name != GIVEN and not ALGORITHM_CODE.find_name(name):
        raise ConfigError(f"{where}: algorithm.name = {name!r} is not known", nearest(name, METHODS))
    _check_seed("topology.seed", e.topology.seed, where)


def _check_seed(key: str, seed: int | None, where: str) -> None:
    if seed is not None and seed < 0:
        raise ConfigError(f"{where}: {key} = {seed} is negative", "Use 0 or a positive number.")
    if seed is not None and seed >> 63:
        raise ConfigError(f"{where}: {key} = {seed} has more than 63 bits", "A file holds no larger number.")


def _check_objective(experiment: Experiment, where: str) -> None:
    task = experiment.task
    names = [metric for metric in task.metrics if not is_of_model(metric)]
    if len(names) < len(task.metrics):
        _check_of_model(experiment, where)
    if (experiment.loops or experiment.own_task) and not task.loss:
        return
    if not experiment.learns and (task.loss or names):
        key = "loss" if task.loss else "metrics"
        advice = f"Leave task.{key} out, or learn from data: task.kind = {KINDS[0]!r}."
        raise ConfigError(f"{where}: task.{key} of {task.kind}, a problem with a known answer", advice)
    try:
        if experiment.learns:
            objective_of(task.kind, task.loss, task.metrics, experiment.data.source)
        elif not experiment.loops:
            check_metrics(task.kind, task.metrics)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", error.advice) from None


def _check_of_model(e: Experiment, where: str) -> None:
    """Raise ConfigError if a metric of (model, task) cannot be measured, or participants measure the score."""
    what = f"{where}: task.metrics names a function of (model, task)"
    if e.loops or e.task.kind in SUMS:
        advice = "Report the number from your loop." if e.loops else "Leave it out."
        raise ConfigError(f"{what} with task.kind = {e.task.kind}", advice)
    if is_of_model(e.task.metrics[0]) and (e.selects or e.personal or e.data.local_test):
        text = f"{what} first, and participants measure the score for themselves"
        raise ConfigError(text, "Put another metric first.")


def _check_convex(e: Experiment, where: str) -> None:
    if e.task.kind != CONVEX:
        return
    if e.model != type(e.model)():
        raise ConfigError(f"{where}: [model] with task.kind = convex, whose model is linear", "Leave it out.")
    if e.data.local_test:
        raise ConfigError(f"{where}: data.local_test with task.kind = convex", "Leave it out: data.test measures it.")
    if e.task.smooth != type(e.task)().smooth and e.task.loss != "lasso":
        text = f"{where}: task.smooth of task.loss = {e.objective.loss!r}, whose lam/2 |w|^2 is smooth"
        raise ConfigError(text, 'Leave it out, or set task.loss = "lasso".')
    if not e.train.plain and not isinstance(e, ParallelExperiment):
        text = f"{where}: task.kind = convex takes plain steps"
        raise ConfigError(text, "Leave train.optimizer, momentum, weight_decay and clip_norm out.")


def check_parallel(e: ParallelExperiment, where: str) -> None:
    """Raise ConfigError for invalid values of [parallel]."""
    workers = e.parallel.workers
    if workers > WORKERS_MAX:
        advice = "Use [topology] for peers that know their neighbours alone, or [coordinator]."
        raise ConfigError(f"{where}: {workers} workers, and {WORKERS_MAX} can all know each other", advice)
    if e.train.accumulate > 1 and not e.parallel.local:
        text = f"{where}: train.accumulate is of local training, and workers of [parallel] share every step"
        raise ConfigError(text, f"Write parallel.accumulate = {e.train.accumulate}.")
    _check_server(e, where)
    _check_mapreduce(e, where)
    _check_lbfgs(e, where)
    _check_race(e, where)
    if e.train.clip_norm is not None and not (e.parallel.local or e.parallel.codec.startswith("dgc")):
        text = f"{where}: train.clip_norm is of local steps, and workers of [parallel] send unclipped gradients"
        raise ConfigError(text, 'Leave it out; parallel.codec = "dgc:SHARE" clips each, parallel.outer trains locally.')
    if e.parallel.overlap and e.parallel.method not in COLLECTIVES:
        text = f"{where}: parallel.overlap with parallel.method = {e.parallel.method!r}"
        raise ConfigError(text, 'Leave it out, or take a collective: parallel.method = "ring".')
    _check_codec(e, where)
    _check_outer(e, where)
    if e.train.parallel == HOGWILD and not e.parallel.local:
        text = f'{where}: train.parallel = "{HOGWILD}": its processes take steps, and [parallel] wants a gradient'
        raise ConfigError(text, 'Set parallel.outer = { lr = 0.7 }, so that workers train; or train.parallel = "ddp".')
    if e.task.kind == "averaging":
        raise ConfigError(f"{where}: averaging has no gradient", 'Take task.kind = "quadratic", or learn from data.')
    if e.train.personal or e.train.buffers == "local":
        key = "personal" if e.train.personal else "buffers"
        raise ConfigError(f"{where}: train.{key} keeps a part at each worker, and all have one model", "Leave it out.")


def _check_server(e: ParallelExperiment, where: str) -> None:
    """Raise ConfigError for invalid values of [parallel.server]."""
    s, method = e.parallel.server, e.parallel.method
    usual = msgspec.structs.asdict(ServerSection())
    if other := [(key, value) for key, value in msgspec.structs.asdict(s).items() if value != usual[key]]:
        key, value = other[0]
        if method != SERVED:
            advice = f'Set parallel.method = "{SERVED}", or leave it out.'
            raise ConfigError(f"{where}: parallel.server.{key} = {value!r} with parallel.method = {method!r}", advice)
    if s.staleness != ASYNC and not Within(0, MOST).allows(s.staleness):
        advice = f'Set it to a number of rounds, 0 or more, or to "{ASYNC}".'
        raise ConfigError(f"{where}: parallel.server.staleness = {s.staleness!r} is no number of rounds", advice)
    if s.replication > s.servers:
        text = f"parallel.server.replication = {s.replication}, and parallel.server.servers = {s.servers}"
        raise ConfigError(f"{where}: {text}", "Give each copy a server of its own.")
    if s.damp and s.staleness == 0:
        advice = f'Set parallel.server.staleness = "{ASYNC}" or a number above 0, or leave damp out.'
        raise ConfigError(f"{where}: parallel.server.damp, and no push is late at staleness 0", advice)
    _check_downpour(e, where)
    step = e.parallel.descent or e.train.optimizer
    if method == SERVED and step in ("lars", "lamb") and s.placement != "tensors":
        advice = 'Set parallel.server.placement = "tensors".'
        raise ConfigError(f"{where}: {step} goes by whole tensors, and servers have ranges of elements", advice)


def _check_downpour(e: ParallelExperiment, where: str) -> None:
    """Raise ConfigError for n_fetch and n_push that do not fit the run."""
    s = e.parallel.server
    if s.n_fetch == s.n_push == 1 or min(s.n_fetch, s.n_push) < 1:  # limits are checked later
        return
    key = "n_push" if s.n_push > 1 else "n_fetch"
    beside = f"{where}: parallel.server.{key} = {getattr(s, key)}"
    if s.staleness != ASYNC:
        text = f"{beside} at staleness {s.staleness}, whose clocks count every gradient"
        raise ConfigError(text, f'Set parallel.server.staleness = "{ASYNC}", or leave it out.')
    if s.n_push % s.n_fetch:
        text = f"{where}: n_push = {s.n_push} is no multiple of n_fetch = {s.n_fetch}: a push is answered by a model"
        raise ConfigError(text, f"Set n_push to {-(-s.n_push // s.n_fetch) * s.n_fetch}, or n_fetch lower.")
    if e.rounds % s.n_push:
        text = f"{beside} for {e.rounds} rounds: the last gradients would reach no server"
        raise ConfigError(text, f"Set rounds to {-(-e.rounds // s.n_push) * s.n_push}.")
    if e.parallel.codec or s.pull_codec or e.task.kind == SPARSE or e.model.source.startswith("words"):
        what = "a codec" if e.parallel.codec or s.pull_codec else "a table, of which a worker has rows of one batch"
        raise ConfigError(f"{beside} with {what}", "Leave one of the two out.")


def _check_mapreduce(e: ParallelExperiment, where: str) -> None:
    p, server = e.parallel, e.parallel.method == MAPREDUCE
    if p.method in (MAPREDUCE, LBFGS) and p.bucket is not None:
        raise ConfigError(f"{where}: parallel.bucket with {p.method}, whose gradients are sent whole", "Leave it out.")
    if p.backups and not server:
        advice = f'Set parallel.method = "{MAPREDUCE}", or leave it out.'
        raise ConfigError(f"{where}: parallel.backups with {p.method}, which takes all workers", advice)
    if p.backups >= p.workers:
        text = f"{where}: parallel.backups = {p.backups} of {p.workers} workers: no worker is waited for"
        raise ConfigError(text, "Lower it.")


def _check_lbfgs(e: ParallelExperiment, where: str) -> None:
    """Raise ConfigError for settings that change the gradient's function per round, or take a second step."""
    p, beside = e.parallel, f'{where}: parallel.method = "{LBFGS}"'
    if p.method != LBFGS:
        return
    usual = ParallelSection(workers=p.workers, method=LBFGS)
    for key in ("descent", "l1", "accumulate", "codec"):
        if getattr(p, key) != getattr(usual, key):
            text = f"{beside} and parallel.{key}: its step takes the exact gradient of all examples"
            raise ConfigError(text, f'Leave it out, or set parallel.method = "{MAPREDUCE}".')
    if e.train.slots:
        text = f"{beside} and train.optimizer = {e.train.optimizer!r} with a memory: the server takes the step"
        raise ConfigError(text, 'Set train.optimizer = "sgd" and train.momentum = 0; train.lr is of the first step.')
    if e.task.kind == "quadratic":
        if e.task.sigma:
            text = f"{beside} and task.sigma = {e.task.sigma}: slopes of noise are no slopes"
            raise ConfigError(text, "Set task.sigma = 0.")
        return
    if not (e.learns or e.task.kind == CONVEX) or e.task.loss == "lasso":
        what = "task.loss = 'lasso'" if e.task.loss == "lasso" else f"task.kind = {e.task.kind!r}"
        raise ConfigError(f"{beside} and {what}, without a gradient everywhere", f'Take task.kind = "{CONVEX}".')
    if e.train.local_epochs != 1:
        text = (
            f"{beside} takes the gradient of all examples, and train.local_epochs is {e.train.local_epochs or 'unset'}"
        )
        raise ConfigError(text, "Set train.local_epochs = 1, in place of local_steps; a pass may have many batches.")


def _check_race(e: ParallelExperiment, where: str) -> None:
    p = e.parallel
    if not p.races:
        return
    beside = f'{where}: parallel.method = "{HOGWILD}"'
    if (e.train.processes, e.train.parallel) != (p.workers, HOGWILD):
        given = f"train.processes = {e.train.processes}, parallel = {e.train.parallel!r}"
        text = f"{beside}, whose {p.workers} workers are the processes, and {given}"
        raise ConfigError(text, f"Leave both out: parallel.workers = {p.workers} replaces them.")
    usual = ParallelSection(workers=p.workers, method=HOGWILD)
    for key in OF_SEVERAL:
        if getattr(p, key) != getattr(usual, key):
            text = f"{beside} and parallel.{key}: its workers share one memory, and nothing is sent or added up"
            raise ConfigError(text, 'Leave it out, or take a collective: parallel.method = "ring".')
    if e.task.kind == CONVEX or not (e.learns or e.task.kind == SPARSE):
        text = f"{beside} of task.kind = {e.task.kind}, whose steps no processes divide"
        raise ConfigError(text, f'Learn from data by a model, or take task.kind = "{SPARSE}".')


def _check_unequal_work(e: Experiment, where: str) -> None:
    if e.train.fewest_epochs is None and not e.train.own_optimizer:
        return
    key = f"{where}: {'train.optimizer of your own' if e.train.fewest_epochs is None else 'train.fewest_epochs'}"
    if e.train.own_optimizer and e.train.processes > 1:
        raise ConfigError(f"{key} with train.processes = {e.train.processes}", "Leave one of them out.")
    words = e.model.source.partition(":")[0] == "words"
    if not e.learns or e.task.kind == CONVEX or words or isinstance(e, ParallelExperiment):
        advice = "It is of models that peers or clients train by torch; leave it out."
        raise ConfigError(f"{key} has no effect on this kind of task or run", advice)
    if e.budget and e.budget.unit == "record" and e.train.fewest_epochs is not None:
        raise ConfigError(f"{key}, and the account of single records counts on equal passes", "Leave it out.")


OF_SEVERAL = ("descent", "l1", "accumulate", "bucket", "codec", "outer")
"""Keys of [parallel] that apply to a sum over several participants and to the step along it."""


def _check_codec(e: ParallelExperiment, where: str) -> None:
    """Raise ConfigError for an unknown codec, or one that conflicts with other keys."""
    p = e.parallel
    _check_pull_codec(p.server.pull_codec, where)
    if not p.codec:
        return
    try:
        of_low_rank = low_rank_of(p.codec) is not None and p.method in COLLECTIVES
        own = bool(CODEC_CODE.find_name(p.codec))
        codec = None if of_low_rank or own else make_codec(p.codec)
    except ConfigError as error:
        raise ConfigError(f"{where}: parallel.codec: {error}", error.advice) from None
    added = of_low_rank or isinstance(codec, LinearCodec)
    if p.method in COLLECTIVES and not added and p.method not in GATHERS:
        text = f"{where}: payloads of {p.codec} cannot be added, and {p.method} adds at every step"
        raise ConfigError(text, f'Set parallel.method to {" or ".join(GATHERS)}; or parallel.codec = "random-k:0.01".')
    if p.overlap:
        text = f"{where}: parallel.overlap with parallel.codec, which needs the whole gradient"
        raise ConfigError(text, "Leave one of them out.")
    if isinstance(codec, DeepGradient) and ((p.descent or e.train.optimizer) != "sgd" or e.train.nesterov):
        text = f"{where}: {p.codec} applies the momentum of sgd itself, before it leaves anything out"
        raise ConfigError(text, 'Take train.optimizer = "sgd" without nesterov, or top-k.')


def _check_outer(e: ParallelExperiment, where: str) -> None:
    """Raise ConfigError for keys that conflict with an outer step after local training."""
    p = e.parallel
    if p.outer.lr <= 0:  # a negative value is refused with the other values out of range
        usual = msgspec.structs.asdict(OuterSection(lr=p.outer.lr))
        idle = [name for name, value in msgspec.structs.asdict(p.outer).items() if value != usual[name]]
        if idle:
            text = f"{where}: parallel.outer.{idle[0]} without parallel.outer.lr: there is no outer step"
            raise ConfigError(text, "Set parallel.outer.lr, for example to 0.7, or leave it out.")
        return
    OuterStep(p.outer.lr, p.outer.beta, p.outer.nesterov, f"{where}: parallel.outer")
    if p.method not in COLLECTIVES:
        led = 'Take [coordinator] with algorithm = "fedavgm" and nesterov = true in its options; or a collective.'
        advice = led if p.method == MAPREDUCE else 'Leave it out, or take a collective: parallel.method = "ring".'
        raise ConfigError(f"{where}: parallel.outer with parallel.method = {p.method!r}", advice)
    if p.descent:
        text = f"{where}: parallel.descent = {p.descent!r} with parallel.outer, which takes the step"
        raise ConfigError(text, "Leave one of them out; train.optimizer takes the local steps.")
    if p.accumulate > 1:
        text = f"{where}: parallel.accumulate is of gradients that are shared, and parallel.outer shares none"
        raise ConfigError(text, "Leave it out; train.local_steps are the steps of a round.")
    if p.overlap:
        text = f"{where}: parallel.overlap with parallel.outer: an update is complete after the last step"
        raise ConfigError(text, "Leave one of them out.")
    if p.outer.fragments > e.rounds:
        text = f"{where}: parallel.outer.fragments = {p.outer.fragments} in {e.rounds} rounds: some would never go out"
        raise ConfigError(text, "Take fewer fragments, or more rounds of fewer train.local_steps.")
    if p.codec.partition(":")[0] == "dgc":
        text = f"{where}: {p.codec} applies the momentum of gradients, and parallel.outer has one of its own"
        raise ConfigError(text, "Take top-k.")


def _check_pull_codec(name: str, where: str) -> None:
    """Raise ConfigError for a codec too lossy, or too random, to encode a model."""
    try:
        codec = make_codec(name) if name else None
    except ConfigError as error:
        raise ConfigError(f"{where}: parallel.server.pull_codec: {error}", error.advice) from None
    if codec is not None and not (isinstance(codec, BFloat16 | Half | Int8) and not codec.unbiased):
        text = f"{where}: parallel.server.pull_codec = {name!r} leaves too much of a model out, or is random"
        raise ConfigError(text, 'Take "bf16" or "int8:256"; gradients go up by parallel.codec.')


def check_federated(experiment: FederatedExperiment, where: str) -> None:
    """Raise ConfigError for invalid values of [coordinator]."""
    c = experiment.coordinator
    if 0 < c.privacy.test_noise < TEST_NOISE_LEAST:
        advice = f"Set it to 0, so that no count is sent, or to at least {TEST_NOISE_LEAST:g}."
        raise ConfigError(f"{where}: coordinator.privacy.test_noise = {c.privacy.test_noise} hides nothing", advice)
    if c.cohort is not None and c.participation != 1.0:
        raise ConfigError(f"{where}: coordinator.cohort and coordinator.participation", "Give one of them.")


TEST_NOISE_LEAST = 0.5
"""Smallest test_noise that is drawn exactly (`secure.noise`); one release with it costs epsilon 11 at delta 1e-5."""


def _check_test(test: float | str, where: str) -> None:
    if isinstance(test, str):
        if test != "own" and ":" not in test:
            advice = 'Set it to a share: 0.2, to "own", or to a source: "csv:PATH?label=COLUMN".'
            raise ConfigError(f"{where}: data.test = {test!r} is no test set", advice)
    elif not 0 < test < 1:
        raise ConfigError(f"{where}: data.test = {test} is no share", 'Set it between 0 and 1, such as 0.2, or "own".')


def _check_common(e: Experiment, where: str) -> None:
    """Raise ConfigError for data.common or model.sources without an exchange of logits, or invalid with it."""
    common, usual = e.data.common, type(e.data)().common
    if not e.exchanges_logits:
        for key, given in (("model.sources", e.model.sources), ("data.common", common if common != usual else "")):
            if given:
                text = f"{where}: {key} = {given!r} without a method that exchanges logits"
                if isinstance(e, FederatedExperiment):
                    text += f": coordinator.algorithm = {e.coordinator.algorithm!r}"
                raise ConfigError(text, f'Set coordinator.algorithm = "feddf" or "fedmd", or leave {key} out.')
    if not isinstance(common, str) and not 0 < common < 1:
        advice = f'Set it between 0 and 1, such as 0.2, to "{usual}", or to a source.'
        raise ConfigError(f"{where}: data.common = {common} is no share", advice)
    if PLACE in str(common):
        text = f"{where}: data.common = {common!r} is a file of each one's own, and all answer the same examples"
        raise ConfigError(text, f'Name one that all have, or set it to "{usual}".')
    if e.exchanges_logits and e.data.scale == FEDERATED:
        text = f'{where}: logits with data.scale = "{FEDERATED}", by which common examples are not scaled'
        raise ConfigError(text, f'Set data.scale = "{TEST}": columns are then scaled by the common test set.')


def _check_unread(e: Experiment, where: str) -> None:
    """Raise ConfigError for keys of [data] or [model] if the problem has neither."""
    sections = ("data", "model") if e.task.kind in OF_FORMULAS and not e.own_task else ()
    for key in (key for name in sections for key in _set_in(e, name)):
        raise ConfigError(f"{where}: {key} of {e.task.kind}, which learns from no data", "Leave it out.")


def _set_in(e: Experiment, name: str) -> Iterator[str]:
    """Yield the keys of a section that differ from their default."""
    section = getattr(e, name)
    for field in msgspec.structs.fields(section):
        made = field.default_factory
        usual = field.default if made is msgspec.NODEFAULT else made()
        if usual not in (msgspec.NODEFAULT, getattr(section, field.name)):
            yield f"{name}.{field.name}"


def ignores(engine: str, key: str) -> bool:
    """Return whether an engine ignores a key: real processes have no virtual times, stacked arrays have none."""
    virtual = key.partition(".")[0] == "simulation"
    return engine != "sim" and (virtual or (engine == "stacked" and key.endswith("deadline")))


def ignored_by(engine: str, given: Experiment | Mapping[str, object]) -> list[str]:
    """Return the line on the keys that the engine ignores, if any; `given` may be the content of an incomplete file."""
    if isinstance(given, Mapping):
        sections = {name: one for name, one in given.items() if isinstance(one, Mapping)}
        keys = [f"{name}.{key}" for name, section in sections.items() for key in section]
    else:
        keys = [key for name in ("simulation", OF_ROUNDS.get(given.kind, given.kind)) for key in _set_in(given, name)]
    found = ", ".join(key for key in keys if ignores(engine, key))
    why = (
        "arrays have no times, and no participant is late"
        if engine == "stacked"
        else "processes have times of their own"
    )
    return [f"IGNORED: {found} ({why}; --on sim has virtual ones)"] if found else []


def _check_validation(e: Experiment, where: str) -> None:
    if e.eval.on == VALIDATION and not e.data.validation:
        raise ConfigError(f'{where}: eval.on = "validation", and nothing is kept for it', "Set data.validation = 0.1.")
    if e.data.validation and e.data.partition.get("kind") == "own":
        advice = "Leave data.validation out; data.local_test keeps a share of each one's own."
        raise ConfigError(f"{where}: data.validation of peers with their own files: no process has them all", advice)
    if e.data.validation and not e.learns:
        raise ConfigError(f"{where}: data.validation of {e.task.kind}, which learns from no data", "Leave it out.")


def _check_selection(e: Experiment, where: str) -> None:
    """Raise ConfigError if rounds cannot be compared: no score, one of the test set, or no evaluating participant."""
    if not e.selects:
        return
    key = f'eval.keep = "{BEST}"' if e.eval.keep == BEST else f"stop.patience = {e.stop.patience}"
    if e.loops:
        advice = "Copy the best state_dict in your loop, and leave the loop by break when it is over."
        raise ConfigError(f"{where}: {key} with task.kind = loop, whose models your own loop measures", advice)
    if not e.learns:
        raise ConfigError(f"{where}: {key} of {e.task.kind}, which learns from no data", "Leave it out.")
    if e.stop.patience and isinstance(e, ParallelExperiment):
        text = f"{where}: {key} with [parallel], whose workers measure nothing before their next step"
        raise ConfigError(text, f'Set fewer rounds, or eval.keep = "{BEST}".')
    if e.stop.patience and isinstance(e, GossipExperiment) and e.algorithm.mode != "sync":
        text = f"{where}: {key} with algorithm.mode = {e.algorithm.mode!r}, whose peers end no round together"
        raise ConfigError(text, f'Leave it out, or set eval.keep = "{BEST}".')
    if e.stop.patience and isinstance(e, FederatedExperiment) and e.coordinator.algorithm == "fedbuff":
        raise ConfigError(f"{where}: {key} with fedbuff, whose clients end no round together", "Leave it out.")
    if e.eval.on == VALIDATION:
        return
    if e.selects_at_clients and isinstance(e, FederatedExperiment):
        if e.coordinator.privacy.unit == "record" and not e.coordinator.privacy.test_noise:
            text = f"{where}: {key} by the clients' measurements, which they do not send if records are hidden"
            raise ConfigError(text, "Set coordinator.privacy.test_noise = 2, so that they count under noise.")
        return
    local = ", or data.local_test = 0.2" if isinstance(e, FederatedExperiment) else ""
    text = f"{where}: {key} by the test set, which would then be part of the choice"
    raise ConfigError(text, f'Set eval.on = "{VALIDATION}" and data.validation = 0.1{local}.')


def _check_own(data: DataSection, where: str) -> None:
    own = data.partition.get("kind") == "own"
    if own != (PLACE in data.source) and not (own and is_function(data.source)):
        advice = (
            f'A source with {PLACE} in it, or a function of the client, and partition = {{ kind = "own" }} go together.'
        )
        raise ConfigError(f"{where}: data.source = {data.source!r}, partition = {data.partition}", advice)
    if own and not (isinstance(data.test, str) and ":" in data.test and PLACE not in data.test):
        advice = 'Set it to a file that all peers have: "csv:PATH?label=COLUMN", "npz:PATH", "module:function".'
        raise ConfigError(f"{where}: data.test = {data.test!r} is not common to peers with files of their own", advice)


def _check_buckets(data: DataSection, where: str) -> None:
    if not data.buckets:
        return
    if data.source.partition(":")[0] not in ("lines", "own"):
        text = f"{where}: data.buckets of {data.source!r}, whose examples are all of one length"
        raise ConfigError(text, 'Leave it out, or set data.source = "lines:PATH".')
    try:
        check_buckets(data.buckets)
    except ConfigError as error:
        raise ConfigError(f"{where}: data.{error}", error.advice) from None


def _check_agreed(e: Experiment, where: str) -> None:
    """Raise ConfigError for keys that need missing statistics of all sites, and for data without statistics."""
    data = e.data
    if data.scale != FEDERATED:
        if data.scale == TEST and data.partition.get("kind") != "own":
            text = f'{where}: data.scale = "{TEST}" is for peers with files of their own'
            raise ConfigError(text, "Write scale=standard in data.source: it is fitted to the training examples.")
        if given := [key for key in OF_STATISTICS if key not in ("scale", *data.without_statistics)]:
            raise ConfigError(f"{where}: data.{given[0]} without statistics", f'Set data.scale = "{FEDERATED}".')
        return
    if data.partition.get("kind") != "own":
        advice = f'Name a file of each site, data.source = "csv:site-{PLACE}.csv?label=COLUMN"; else ?scale=standard.'
        raise ConfigError(f'{where}: data.scale = "{FEDERATED}" is for sites with files of their own', advice)
    if sets_of(data.missing) and e.model.source.partition(":")[0] != GLM:
        text = f'{where}: data.missing = "{data.missing}" with model.source = "{e.model.source}"'
        raise ConfigError(text, 'Of imputed tables glm:... is fitted: set data.missing = "mean" or "drop".')
    if data.missing == DROP and data.groups:
        text = f'{where}: data.groups with data.missing = "{DROP}", which leaves records out'
        raise ConfigError(text, 'Set data.missing = "mean" or "indicator", or leave data.groups out.')
    if data.where and data.groups:
        text = f"{where}: data.groups with data.where, which leaves records out"
        raise ConfigError(text, "Leave one of them out.")
    for source in (data.source, str(data.test)):
        try:
            options_of(source)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}", error.advice) from None
