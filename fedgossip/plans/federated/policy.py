"""The demands of a client, in its file policy.toml; nothing from the network changes it.

It pins the coordinator, the other clients, the minimum number of clients in a sum, bounds and rounding, the privacy
budget, and the learning code with its model's behaviour; anything else is refused.
"""

from __future__ import annotations

import os
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, NotWrittenError, nearest
from fedgossip.core.glossary import SITES, first_sentence, terms_of
from fedgossip.core.machine import NodeId
from fedgossip.core.model_fingerprint import CODE, FROZEN, PROBE, Likeness
from fedgossip.core.task import LocalTask, segments_of
from fedgossip.data.columns.table_schema import FEDERATED
from fedgossip.net.endpoints import Endpoints, roster_of
from fedgossip.plans.approvals.approvals import HowLong
from fedgossip.plans.compose import likeness_of
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import is_unagreed
from fedgossip.secure.session import Policy

MAKE = "Make one, and read it: fedgossip privacy policy EXPERIMENT --endpoints FILE"


class PolicyFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """policy.toml; each line of the file explains its field."""

    task: str
    """Hash of the experiment: of every key that changes the learning result."""
    coordinator: str
    """The coordinator's signing key: frames without its signature are refused."""
    roster: str
    """Hash of all clients' keys."""
    min_clients: int
    """Minimum number of clients in a sum."""
    max_clients: int
    """Maximum number of clients in a sum."""
    bound: float
    """Maximum absolute value of an element that leaves here."""
    bits: int
    """Number of bits per element."""
    weight_max: int
    """Maximum number of examples that count."""
    layout: str
    """Hash of the model's layout, and of everything in the sum."""
    code: str
    """Hash of the source of the user's own modules named in the experiment, and of their imports."""
    frozen: list[float]
    """Projections of the tensors that are neither trained nor mixed."""
    probe: list[float]
    """Projections of the first model's outputs for examples of the common test set; empty, and not compared, if the
    sites had not agreed on the statistics that scale the examples.
    """
    unit: str
    """Unit of the privacy budget: record, client, none."""
    clip: float
    """Maximum L2 norm of the gradient of one record, or of the update of one client."""
    noise: float
    """Standard deviation of the noise, in units of clip."""
    delta: float
    """Probability that the epsilon bound fails."""
    max_epsilon: float
    """Privacy budget, epsilon."""
    test_noise: float = 0.0
    """Standard deviation of the noise on the results on held-out examples; 0: not reported."""
    approval_days: float = 0.0
    """Maximum number of days that the site's approval of a plan holds; 0: no approval required unless one was given."""
    approval_rounds: int = 0
    """Maximum number of rounds, over all runs, under one approval; 0: the approval's own number."""


def policy_of(
    plan: FederationPlan, node: NodeId, endpoints: Endpoints, task: LocalTask, approvals: HowLong | None = None
) -> PolicyFile:
    """Return the policy of client `node` that agrees with the local experiment and code."""
    group = plan.tree.group(plan.tree.parent(node))
    numbers = plan.with_segments(segments_of(task)).numbers
    fixed, s = numbers.fixed_point(task.length, task.schema), plan.section
    held = approvals or HowLong()
    alike = likeness_of(plan, task)
    roster = roster_of(endpoints).first(plan.coordinator)
    return PolicyFile(
        task=plan.task_id,
        coordinator=endpoints[group.coordinator].verify,
        roster=roster.hash.hex(),
        min_clients=plan.least,
        max_clients=min(plan.invited, len(group.members)),
        bound=fixed.clip_inf,
        bits=fixed.q_bits,
        weight_max=fixed.weight_max,
        layout=fixed.schema.hex(),
        code=alike.code,
        frozen=list(alike.frozen),
        probe=[] if is_unagreed(plan.experiment) else list(alike.probe),
        unit=s.privacy.unit,
        clip=s.privacy.clip,
        noise=s.privacy.noise,
        delta=s.privacy.delta,
        max_epsilon=s.privacy.max_epsilon,
        test_noise=s.privacy.test_noise,
        approval_days=held.days,
        approval_rounds=held.rounds,
    )


def agreed(path: Path, plan: FederationPlan, node: NodeId, endpoints: Endpoints, task: LocalTask) -> Policy:
    """Return the policy in the file at `path`, for the session's steps.

    Raises ConfigError for a missing, invalid, or readable-by-others file, and if experiment, endpoints, own code or
    model differ from it, naming each.
    """
    pinned, offered = read(path), policy_of(plan, node, endpoints, task)
    stricter = msgspec.structs.replace(
        offered,
        min_clients=max(offered.min_clients, pinned.min_clients),
        max_clients=min(offered.max_clients, pinned.max_clients),
        approval_days=pinned.approval_days,
        approval_rounds=pinned.approval_rounds,
    )
    differing = [
        f"{name}: pinned {_short(getattr(pinned, name))}, here {_short(getattr(offered, name))}"
        for name in PolicyFile.__struct_fields__
        if name not in (FROZEN, PROBE) and getattr(pinned, name) != getattr(stricter, name)
    ]
    if not pinned.probe and plan.experiment.data.scale == FEDERATED:  # the policy was written before the agreement
        offered = msgspec.structs.replace(offered, probe=[])
    unlike = _likeness(pinned).unlike(_likeness(offered))
    differing += [f"{name}: not as it was pinned" for name in unlike if name != CODE]
    if differing:
        advice = "Ask why it was changed.  If you agree, make the policy again: fedgossip privacy policy"
        raise ConfigError(f"{path} allows another run than this one: {'; '.join(differing)}", advice)
    if pinned.min_clients > pinned.max_clients:
        text = f"{path}: min_clients = {pinned.min_clients}, and no more than {pinned.max_clients} take part in a round"
        raise ConfigError(text, f"Set min_clients to at most {pinned.max_clients}.")
    coordinator = bytes.fromhex(pinned.coordinator)
    parent, whole = plan.tree.parent(node), plan.with_segments(segments_of(task))
    limits = {"n_min": pinned.min_clients, "cohort_max": pinned.max_clients}
    return whole.policy(parent, coordinator, task.length, task.schema, limits)


def demands(
    path: Path, plan: FederationPlan, node: NodeId, endpoints: Endpoints, task: LocalTask | None
) -> Policy | None:
    """Return a client's policy; None without masking and without a file.

    Raises ConfigError as `agreed`, and for a file without a secure sum.
    """
    if task is not None and plan.hides(node):
        return agreed(path, plan, node, endpoints, task)
    if path.exists():
        advice = f"Ask why, or remove {path} if you agree that the coordinator sees every update of yours."
        raise ConfigError(f"{path} is there, and the experiment has switched the secure sum off", advice)
    return None


def how_long(path: Path) -> HowLong | None:
    """Return the limits of approvals in a policy; None without limits or without a policy.  Raises ConfigError."""
    found = read(path) if path.exists() else None
    return HowLong(found.approval_days, found.approval_rounds) if found and found.approval_days else None


def _likeness(policy: PolicyFile) -> Likeness:
    return Likeness(policy.code, tuple(policy.frozen), tuple(policy.probe))


def read(path: Path) -> PolicyFile:
    """Read a policy.  Raises ConfigError."""
    try:
        mode, content = path.stat().st_mode, from_toml(outside_files.read_text(outside_files.resolve(path)))
    except OSError as error:
        raise ConfigError(f"{path}: no policy there ({error.strerror})", MAKE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}", MAKE) from None
    if mode & 0o077:
        raise ConfigError(f"{path}: others can read or change this policy", f"Run: chmod 600 {path}")
    unknown = [key for key in content if key not in PolicyFile.__struct_fields__]
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}", nearest(unknown[0], PolicyFile.__struct_fields__))
    try:
        return msgspec.convert(content, PolicyFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}", MAKE) from None


def write(path: Path, policy: PolicyFile) -> None:
    """Write a policy, readable only by its owner.  Raises ConfigError if the file exists, and NotWrittenError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(marked(path, text(policy)))
    except FileExistsError:
        advice = "Compare it, or name another file with --out."
        raise ConfigError(f"{path}: a policy exists already", advice) from None
    except OSError as error:
        raise NotWrittenError(path, error) from None


def marked(path: Path, text: str) -> str:
    """Return the text of a policy at `path` with the user's mark, which survives edits.  Raises NotWrittenError."""
    return owner_files.with_mark(text, f"policy {path.resolve()}")


def check_own(path: Path) -> None:
    """Raise ConfigError for a policy that no command of this user made at this place, and for an invalid one."""
    read(path)
    owner_files.check_marked(path, outside_files.read_text(outside_files.resolve(path)), f"policy {path.resolve()}")


def text(policy: PolicyFile) -> str:
    """Return the file's content, with an explanation on every line."""
    import tomli_w

    lines = ["# The requirements of this client, which the coordinator cannot change.  Read it before you agree.", ""]
    content: dict[str, Any] = msgspec.to_builtins(policy)
    known = terms_of(SITES)
    for name, value in content.items():
        meaning = _MEANING.get(name) or first_sentence(known[name])
        lines += [*(f"# {line}" for line in textwrap.wrap(meaning, _WIDTH)), tomli_w.dumps({name: value}).strip()]
    return "\n".join(lines) + "\n"


def summary(policy: PolicyFile) -> list[tuple[str, str]]:
    """Return (label, text) of the demands that people decide on, in reading order; `text` has all."""
    many = f"{policy.min_clients} to {policy.max_clients}"
    budget = f"epsilon at most {policy.max_epsilon:g} at delta {policy.delta:g} for each {policy.unit}, "
    budget += f"noise {policy.noise:g}, clip {policy.clip:g}"
    rounds = f", for {policy.approval_rounds} rounds" if policy.approval_rounds else ""
    approval = f"at most {policy.approval_days:g} days old{rounds}" if policy.approval_days else "where one was given"
    return [
        ("run", f"experiment {_short(policy.task)}, layout {_short(policy.layout)}, and no other"),
        ("with", f"{many} clients of roster {_short(policy.roster)}, coordinator {_short(policy.coordinator)}"),
        ("leaves", f"numbers of at most {policy.bound:g} (bound), under masks"),
        ("budget", budget if policy.unit != "none" else "none: no epsilon covers the run's disclosure of a record"),
        ("approval", approval),
    ]


_WIDTH = 110
_MEANING = {
    "task": "the experiment, by a hash of every key that changes what is learned",
    "coordinator": "the key of the coordinator's signatures: unsigned messages are ignored",
    "min_clients": "never sum with fewer clients; raise it as you like",
    "max_clients": "never sum with more",
    "weight_max": "the most examples that count",
    "code": 'the source of one\'s own modules that the experiment names, by a hash; "" where there are none',
    "unit": "what the privacy budget is of: record, client, none",
    "max_epsilon": "the budget: the round that would cross it is refused",
    "approval_days": "an approval of a plan holds so many days at most; with 0 none is asked for where none was given",
    "approval_rounds": "and for so many rounds at most, over all runs; 0: as many as the plan has",
    "test_noise": "noise on the count of right answers, where records are hidden; with 0 no such count leaves here",
}
"""Meanings of keys; the other keys are in the terms."""


def _short(value: object) -> str:
    return f"{value[:16]}..." if isinstance(value, str) and len(value) > 20 else str(value)
