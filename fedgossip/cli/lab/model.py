"""`fedgossip model`: a trained model as a file for machines without torch, compressed, and measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.sites.evaluate import MODEL, model_options
from fedgossip.cli.text import CommandGroup, columns, echo, print_json, some

if TYPE_CHECKING:
    from fedgossip.data.dataset import Dataset
    from fedgossip.lab.edge.bench import Benchable, NamedExamples
    from fedgossip.learning.models.loaded_model import LoadedModel

DATA = click.option("--data", metavar="SOURCE", help="A CSV file, a data.source, or FILE.toml: its test set.")


@click.group(cls=CommandGroup)
def model() -> None:
    """A trained model for small machines: one ONNX file, compressed, and compared with torch."""


@model.command()
@MODEL
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=Path("model.onnx"),
    show_default=True,
    help="File to write; an existing one is not overwritten.",
)
@click.option(
    "--quantize",
    type=click.Choice(["dynamic", "static"]),
    help="Eight bits: dynamic, of linear layers' weights; static, of inner values too.",
)
@click.option(
    "--prune",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Remove this share of the weights: single ones are set to zero, which makes nothing smaller or faster.",
)
@click.option("--structured", is_flag=True, help="--prune of whole units of hidden layers: smaller, and faster.")
@click.option(
    "--epochs",
    type=click.IntRange(1, 10_000),
    help="After --prune --structured train so long on the run's training examples, or on --data.",
)
@click.option(
    "--exit",
    "threshold",
    type=click.FloatRange(0, 1),
    metavar="ENTROPY",
    help="Of a model with an exit: two files, a device's part, which answers alone up to this entropy, and a server's.",
)
@DATA
@model_options
def export(
    model: Path,
    to: Path,
    threshold: float | None,
    quantize: str | None,
    prune: float | None,
    structured: bool,
    epochs: int | None,
    data: str | None,
    node: int | None,
    run_code: bool,
) -> None:
    """Write MODEL, a run directory or its folder model/, as one ONNX file.

    Its inputs are unscaled examples; its outputs are those of `fedgossip predict`: probabilities, or numbers in the
    labels' units.  The outputs are compared with torch's before the file is kept.  --quantize static finds the ranges
    of inner values on examples that the run's first participant trained on, or on --data.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.lab.edge.onnx_model import WITHIN, check_answers, check_free, graph_of, write, write_parts
    from fedgossip.learning.models.loaded_model import load_model

    check_free(to)
    if structured and prune is None:
        raise ConfigError("--structured without --prune", "Name the share to remove, for example --prune 0.5.")
    if epochs is not None and not structured:
        text = "--epochs is for --prune SHARE --structured: training would fill zeros again"
        raise ConfigError(text, "Leave it out, or add --structured.")
    if data is not None and quantize != "static" and epochs is None:
        raise ConfigError("--data is for --quantize static and --epochs, which read examples", "Leave it out.")
    loaded = load_model(model, node=node, run_code=run_code)
    check_answers(loaded)
    if threshold is not None:
        if quantize is not None or prune is not None:
            raise ConfigError("--exit with --quantize or --prune", "Leave one of them out.")
        device, server = write_parts(loaded, threshold, to)
        rows = _file(loaded.facts, device.path)
        rows += [["server", f"{server.path}: of examples whose entropy at the exit is above {threshold:g}"]]
        echo(columns([*rows, ["differs", f"from torch by at most {max(device.difference, server.difference):.1g}"]]))
        echo(f"Measure both, and torch:  fedgossip model bench {shlex.join(map(str, (device.path, model)))}", err=True)
        return
    examples = _examples_for_static(model, loaded, data, run_code=run_code) if quantize == "static" else None
    pruned = None
    if prune is not None:
        loaded, pruned = _pruned(model, loaded, prune, epochs, data, structured=structured, run_code=run_code)
    graph = graph_of(loaded)
    if quantize is not None:
        from fedgossip.lab.edge import compression

        graph = compression.dynamic(graph) if examples is None else compression.static(graph, examples)
    if prune is not None:
        from fedgossip.lab.edge.onnx_model import also

        also(graph, f"{100 * prune:g} % pruned")
    written = write(graph, loaded, to, within=WITHIN if quantize is None else None)
    differs = f"from {'torch' if pruned is None else 'the pruned model in torch'} by at most {written.difference:.1g}"
    if quantize is not None:  # random examples may be outside the calibrated ranges
        differs = "by rounding to eight bits: bench measures its cost"
    rows = _file(loaded.facts, to) + ([["pruned", pruned]] if pruned is not None else [])
    echo(columns([*rows, ["differs", differs]]))
    echo(f"Measure it, compared with torch:  fedgossip model bench {shlex.join(map(str, (to, model)))}", err=True)


def _pruned(
    path: Path,
    loaded: LoadedModel,
    share: float,
    epochs: int | None,
    data: str | None,
    *,
    structured: bool,
    run_code: bool,
) -> tuple[LoadedModel, str]:
    from fedgossip.lab.edge import compression

    if not structured:
        words = f"{100 * share:g} % of the weights are zero; neither size nor latency change: --structured changes both"
        return compression.zeroed(loaded, share), words
    found = compression.structured(loaded, share)
    words = f"{loaded.facts.source} to {found.facts.source}, {100 * share:g} % of the units of each hidden layer"
    if epochs is None:
        return found, f"{words}; --epochs 2 trains the rest"
    from fedgossip.lab.edge.bench import settings_of
    from fedgossip.lab.edge.compression import retrained

    examples = _learned_from(path, loaded, data, everybody=True, run_code=run_code)
    words += f"; then {some(epochs, 'epoch')} on {examples.words}"
    return retrained(found, examples.examples, settings_of(path), epochs), words


def _examples_for_static(path: Path, loaded: LoadedModel, data: str | None, *, run_code: bool) -> Dataset:
    """Return the examples for the ranges; print their source."""
    from fedgossip.base.errors import ConfigError

    if loaded.facts.vocabulary is not None:
        raise ConfigError("--quantize static is not for models of text", "Take --quantize dynamic.")
    found = _learned_from(path, loaded, data, everybody=False, run_code=run_code)
    echo(f"Ranges found on {found.words}", err=True)
    return found.examples


def _learned_from(
    path: Path, loaded: LoadedModel, data: str | None, *, everybody: bool, run_code: bool
) -> NamedExamples:
    """Return the named data, else training examples of the run."""
    from fedgossip.lab.edge.bench import load_named, needed_experiment, trained_on

    if data is not None:
        return load_named(loaded, data, run_code=run_code)
    return trained_on(needed_experiment(path), loaded.facts.node, everybody=everybody, run_code=run_code)


def _file(facts: Any, to: Path) -> list[list[str]]:
    from fedgossip.lab.edge.onnx_model import OPSET, output_of
    from fedgossip.report.page.numbers import data_size

    text = facts.vocabulary is not None
    shape = ", ".join(["batch", *(["time"] if text else map(str, facts.shape))])
    given = f"int64 [{shape}], places in the vocabulary" if text else f"float32 [{shape}], unscaled"
    given += f": {_some(facts.columns)}" if facts.columns else ""
    answers = ", ".join(["batch", *(["time"] if facts.kind == "language" else []), str(facts.outputs)])
    of = _some(facts.labels if facts.kind in ("regression", "multi-label") else () if text else facts.classes)
    return [
        ["file", f"{to}, {data_size(to.stat().st_size)}, ONNX of opset {OPSET}"],
        ["model", f"{facts.source}, {facts.kind}"],
        ["takes", f"examples {given}"],
        ["gives", f"{output_of(facts)} float32 [{answers}]" + (f": {of}" if of else "")],
    ]


def _some(names: Any) -> str:
    return ", ".join(names[:6]) + (f", ... {len(names)} in all" if len(names) > 6 else "")


@model.command()
@MODEL
@click.option("--student", required=True, metavar="SOURCE", help="The small model: softmax, mlp:64-16-10, cnn:8-16.")
@click.option(
    "--temperature",
    type=click.FloatRange(0.05, 100),
    default=2.0,
    show_default=True,
    help="Divisor of the logits: a larger one weights unlikely classes more.",
)
@click.option("--epochs", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Passes over examples.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of first weights and batches; the run's own.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the student; it is made.")
@DATA
@model_options
def distill(
    model: Path,
    student: str,
    temperature: float,
    epochs: int,
    seed: int | None,
    out: Path,
    data: str | None,
    node: int | None,
    run_code: bool,
) -> None:
    """Train a small model on the outputs of MODEL, a run directory or its folder model/; for classification.

    The examples are those that the run trained on, or --data; their labels are not read.  The settings are the run's
    [train].  The result is a model's folder for `model export`, `model bench` and `predict`.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.lab.edge import compression
    from fedgossip.lab.edge.bench import experiment_of, settings_of, tested_on
    from fedgossip.lab.edge.onnx_model import check_answers
    from fedgossip.learning.models.loaded_model import load_model

    if out.exists():
        raise ConfigError(f"{out}: there already", "Name another folder with --out.")
    teacher = load_model(model, node=node, run_code=run_code)
    check_answers(teacher)
    compression.check(teacher.facts, student)
    examples, settings = _learned_from(model, teacher, data, everybody=True, run_code=run_code), settings_of(model)
    seed = teacher.facts.seed if seed is None else seed
    how: Any = {"temperature": temperature, "epochs": epochs, "seed": seed}
    found = compression.distilled(teacher, examples.examples, student, settings, **how)
    experiment = experiment_of(model)
    test = tested_on(experiment, teacher.facts.node, run_code=run_code) if experiment is not None else examples
    ours, theirs = (compression.accuracy(one, test.examples) for one in (found, teacher))
    on = test.words if experiment is not None else f"{test.words}, which it learned from"
    compression.write(found, out, {"name": "accuracy", "value": ours, "on": on})
    agreed = compression.agreement(found, teacher, test.examples)
    echo(columns([
        ["student", f"{student}, {out}"],
        ["teacher", f"{teacher.facts.source}, {model}"],
        ["learned", f"from its logits at temperature {temperature:g}, {some(epochs, 'epoch')} on {examples.words}"],
        ["accuracy", f"{ours:.4f}, of the teacher {theirs:.4f}, on {on}"],
        ["agrees", f"with the teacher on {100 * agreed:.1f} % of these"],
    ]))  # fmt: skip
    echo(f"Put them side by side:  fedgossip model bench {shlex.join(map(str, (model, out)))}", err=True)


@model.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@DATA
@click.option("--calls", type=click.IntRange(10, 100_000), default=300, show_default=True, help="Calls of each.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="Threads of each.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@model_options
def bench(
    models: tuple[Path, ...],
    data: str | None,
    calls: int,
    threads: int,
    as_json: bool,
    node: int | None,
    run_code: bool,
) -> None:
    """Measure MODELS side by side: ONNX files, and runs in torch.

    The source run of a file is also measured, if its directory is in the same folder; without --data all models are
    evaluated on its test set.
    """
    from dataclasses import asdict

    from fedgossip.lab.edge.bench import measured

    opened = _opened(models, node, run_code=run_code)
    examples = _examples(opened, data, run_code=run_code)
    found = measured(opened, examples.examples, calls=calls, threads=threads)
    score = opened[0][2].facts.metrics[0].partition("?")[0]
    if as_json:
        print_json({"examples": len(examples.examples), "score": score, "calls": calls, "threads": threads,
                    "models": [asdict(one) for one in found]})  # fmt: skip
        return
    echo(f"On {examples.words}; one example at a time, {calls} calls in turn, {some(threads, 'thread')}")
    echo()
    exits = any(one.on_device is not None for one in found)
    heads = ["model", "runtime", "numbers", "size", "p50", "p99", score, *(["on the device", "sent"] if exits else [])]
    echo(columns([heads, *(_row(one, exits=exits) for one in found)]))
    if exits:
        echo("sent: bytes of an example to the server, the mean; sizes are those of the device's file")


def _row(one: Any, *, exits: bool) -> list[str]:
    from fedgossip.report.page.numbers import data_size, duration

    times = [duration(one.p50), duration(one.p99)]
    row = [one.name, one.runtime, one.how, data_size(one.size), *times, f"{one.score:.4g}"]
    if not exits:
        return row
    return [*row, *(["", ""] if one.on_device is None else [f"{100 * one.on_device:.1f} %", data_size(one.sent)])]


def _opened(paths: tuple[Path, ...], node: int | None, *, run_code: bool) -> list[tuple[str, Path, Benchable]]:
    """Open all models; by default the run is the one next to the first file."""
    from fedgossip.lab.edge.bench import origin_of
    from fedgossip.lab.edge.onnx_model import open_onnx
    from fedgossip.learning.models.loaded_model import load_model

    found: list[tuple[str, Path, Benchable]] = []
    for path in paths:
        one = load_model(path, node=node, run_code=run_code) if path.is_dir() else open_onnx(path)
        found.append((str(path), path, one))
    if not any(path.is_dir() for path in paths):
        origin = origin_of(paths[0], found[0][2].facts)
        if origin is None:
            echo("Its run is not in a folder next to it: name the run too, for a comparison with torch.", err=True)
        else:
            found.insert(0, (str(origin), origin, load_model(origin, node=node, run_code=run_code)))
    return found


def _examples(opened: list[tuple[str, Path, Benchable]], data: str | None, *, run_code: bool) -> NamedExamples:
    from fedgossip.lab.edge.bench import load_named, needed_experiment, tested_on

    first = opened[0][2]
    if data is not None:
        return load_named(first, data, run_code=run_code)
    run = next((path for _, path, _ in opened if path.is_dir()), opened[0][1])
    return tested_on(needed_experiment(run), first.facts.node, run_code=run_code)
