"""How a run is repeated, and whether the same digest results: stated only where it holds."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedgossip.base.decoding import from_toml
from fedgossip.core.event_kinds import event_kinds
from fedgossip.report.page.reading import RecordedRun

GIVEN = "given"
"""The data's source of a run with a task passed by a program."""

PLACE = "{peer}"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

NAMED = (("data", "source"), ("data", "test"), ("model", "source"), ("algorithm", "name"))
"""Where an experiment may name a function of the user's."""


@dataclass(frozen=True)
class Repeating:
    """`command` is None where no command can; `same`: whether the digest will be the same under what `text` names."""

    text: str
    command: str | None
    same: bool


def repeating(run: RecordedRun) -> Repeating:
    """Return the steps with which a reader of the run's folder repeats it."""
    summary = run.summary
    if _at(_experiment(run), "task", "kind") == "loop":
        return _of_loops(run)
    if summary.data and summary.data.source == GIVEN:
        text = (
            "Its task was given by a program, simulate(task=...), and is in no file: experiment.toml names other data."
            "  The same call with the same task repeats it."
        )
        return Repeating(text, None, same=False)
    e = _experiment(run)
    seed = "" if summary.seed is None else f" --seed {summary.seed}"
    engine = "stacked" if summary.driver == "stacked" else "sim"
    command = f"fedgossip run experiment.toml --on {engine}{seed}"
    before = _where(e)
    reason = next(_reasons(run, e), None)
    if reason:
        return Repeating(f"{before}, this computes the same again; {reason}:", command, same=False)
    return Repeating(f"{before}, this ends with the same digest, bit for bit, {_provided(run, e)}:", command, same=True)


def _of_loops(run: RecordedRun) -> Repeating:
    """Loops are a user's script: only the user can judge whether it repeats."""
    if not run.script:
        return Repeating("Its loops are the user's own, which no file here names.", None, same=False)
    text = (
        f"In this folder, with its experiment.toml and a copy of {run.script[0]}, this computes the same again if the"
        " script does, simulated; a synchronous run without missed peers then has the same digest:"
    )
    words = shlex.join(run.script)
    return Repeating(text, f"fedgossip launch --simulate --experiment experiment.toml {words}", same=False)


def _experiment(run: RecordedRun) -> Mapping[str, Any]:
    try:
        return from_toml(run.experiment or "")
    except tomllib.TOMLDecodeError:
        return {}


def _where(e: Mapping[str, Any]) -> str:
    named = [str(_at(e, *path)) for path in NAMED]
    own = sorted({one.partition(":")[0] for one in named if _FUNCTION.fullmatch(one) and not _is_kind(one)})
    where = "In this folder, with its experiment.toml"
    if own:
        where += f" and a copy of {', '.join(f'{name}.py' for name in own)}"
    every = PLACE in str(_at(e, "data", "source"))
    return where + (" and every participant’s file where that names it" if every else "")


def _is_kind(name: str) -> bool:
    """Whether it is a file, or a model with its sizes, and no function."""
    return name.partition(":")[0] in ("csv", "npz", "text", "mnist", "fashion-mnist", "mlp", "cnn", "chars", "gpt")


def _reasons(run: RecordedRun, e: Mapping[str, Any]) -> Iterator[str]:
    """Why the digest may be another, what matters most first."""
    summary = run.summary
    if summary.digest is None:
        yield "there is no digest of this run to compare with, for not all participants reached its end"
    if summary.driver not in ("sim", "stacked"):
        yield from _of_a_real_run(run, e)
    if summary.kernels == "as they come":
        yield "the digest may be another, for torch was imported before fedgossip and took its kernels as they come"
    if str(_at(e, "train", "device")).startswith("cuda"):
        yield "the digest may be another, for a GPU rounds in ways of its own"
    if _at(e, "train", "parallel") == "hogwild":
        yield "the digest is another, for processes stepped on one model without waiting for each other"
    for name in ("threads", "processes"):
        count = _at(e, "train", name)
        if isinstance(count, int) and count > 1:
            yield f"the digest may be another, for {count} {name} add up in an order of their own"


def _of_a_real_run(run: RecordedRun, e: Mapping[str, Any]) -> Iterator[str]:
    summary = run.summary
    if summary.privacy is not None:
        yield "the digest is another, for the noise of a real run is from the operating system and not from a seed"
    if summary.mode == "async" or summary.algorithm == "fedbuff":
        yield "the digest is another, for here messages arrived in an order of their own"
    if summary.events.get("unlike"):
        yield "the digest may be another, for processors of several kinds have trained here"
    happened = [name for name, kind in event_kinds().items() if kind.disturbs and summary.events.get(name)]
    if happened or e.get("faults"):
        what = ", ".join(name.replace("_", " ") for name in happened[:3]) or "faults"
        yield f"the digest may be another, for here things happened at times of their own ({what})"


def _provided(run: RecordedRun, e: Mapping[str, Any]) -> str:
    """Where the bits are promised."""
    if _at(e, "task", "kind") in ("averaging", "quadratic"):
        return "with the same version of NumPy"
    if _at(e, "train", "portable"):
        return "on any x86-64 processor, with the same versions"
    device = "" if _at(e, "train", "device") == "cpu" else ", without a GPU"
    on = f" ({run.summary.processor})" if run.summary.processor else ""
    return f"on a processor of the same kind{on}{device}, with the same versions"


def _at(content: Mapping[str, Any], section: str, key: str) -> Any:
    found = content.get(section)
    return found.get(key) if isinstance(found, Mapping) else None
