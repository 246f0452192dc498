"""release.json: the description of a model in a release, for its page and for `fedgossip release verify`."""

from __future__ import annotations

from typing import Any

import msgspec

from fedgossip.core import run_format

FORMAT = 1


class ReleasedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The description of the model."""

    source: str
    kind: str
    numbers: int
    """Number of elements of all its tensors."""
    weights: str
    """sha256 of `file`."""
    file: str = f"{run_format.MODEL}/{run_format.WEIGHTS}"
    """Path of the model in the release: tensors, trees, or the fit itself where nothing else is needed."""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    score: dict[str, Any] = {}
    """The run's measurement: the metric's name, its value, and its data."""
    versions: dict[str, str] = {}


class ReleasedPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The promised privacy: `unit` is "none" without a budget."""

    unit: str
    epsilon: float | None = None
    delta: float | None = None
    words: tuple[tuple[str, str], ...]
    """(what, text) in the order in which to read them."""


class ReleasedApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The approval of one site, with its signed line in the release."""

    site: int
    """-1 for a site that joined by an invite, where the release contains no keys."""
    by: str
    time: str
    until: str
    key: str

    @property
    def who(self) -> str:
        return f"site {self.site}" if self.site >= 0 else "a site that joined"


class ReleasedLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One log or transcript, with its verdict at the time of the release."""

    file: str
    what: str
    sound: bool
    told: str


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of release.json."""

    format: int = FORMAT
    version: str
    """Version of fedgossip."""
    name: str
    made: str
    signer: str
    """The signer's public key, in hex."""
    use: str
    """Intended use and exclusions, as typed by a person."""
    model: ReleasedModel
    privacy: ReleasedPrivacy
    plan: str
    """The hash of the plan."""
    approvals: tuple[ReleasedApproval, ...]
    rounds: int
    clients: int = 0
    """Number of sites of the plan; 0 in older releases without this field, where `counted` gives it."""
    least: int
    """Minimum number of sites for a round to count."""
    counted: tuple[tuple[int, ...], ...]
    """Per site the rounds, from 1, whose sum contains it; () where the record does not follow single sites."""
    logs: tuple[ReleasedLog, ...]
    agreed: str = ""
    """sha256 of agreed.json; "" where the sites agreed on no statistics."""
    agreed_file: str = run_format.AGREED
    """Name of that file in the sites' experiment folders; data.agreed."""
    judged: bool = False
    """Whether the release contains an evaluation by all sites."""
    fit: str = ""
    """The file of the fit by sums over the sites; "" for a trained model."""
    study: tuple[tuple[str, str], ...] = ()
    """What people agreed on beside the run ([study] of the plan), as (what, text)."""
    files: dict[str, str]
    """sha256 of each file of the release but this one."""

    @property
    def fit_alone(self) -> bool:
        """Whether the release contains the fit alone: a curve, or hazards, which sites cannot judge by sums."""
        return self.model.file == self.fit

    @property
    def sites(self) -> int:
        return self.clients or len(self.counted)


def encoded(release: Release) -> bytes:
    return msgspec.json.format(msgspec.json.encode(release), indent=1)


def ranges(rounds: tuple[int, ...]) -> str:
    """Return rounds as "1 to 4, 6"; "none" for ()."""
    found: list[list[int]] = []
    for one in rounds:
        if found and found[-1][-1] == one - 1:
            found[-1].append(one)
        else:
            found.append([one])
    return ", ".join(f"{one[0]} to {one[-1]}" if len(one) > 1 else str(one[0]) for one in found) or "none"
