"""release.json: what a release says of a model, as its page shows it and `fedgossip release verify` checks it."""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1
FACTS, PAGE, USE = "release.json", "card.html", "use.txt"


class ReleasedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the model is."""

    source: str
    kind: str
    numbers: int
    """Of all its tensors."""
    weights: str
    """sha256 of `file`."""
    file: str = "model/weights.safetensors"
    """What the model is, in the release: tensors, trees, or the fit itself where nothing else is needed."""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    score: dict[str, Any] = {}
    """What the run measured: the metric's name, its value, and of what."""
    versions: dict[str, str] = {}


class ReleasedPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is promised: `unit` is "none" without a budget."""

    unit: str
    epsilon: float | None = None
    delta: float | None = None
    words: tuple[tuple[str, str], ...]
    """(what, text) in the order in which to read them."""


class ReleasedApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The approval of one site, whose signed line is in the release."""

    site: int
    """-1 for one that joined by an invite, where nobody's keys are in the release."""
    by: str
    time: str
    until: str
    key: str

    @property
    def who(self) -> str:
        return f"site {self.site}" if self.site >= 0 else "a site that joined"


class ReleasedLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One log or transcript, as it was found when the release was made."""

    file: str
    what: str
    sound: bool
    told: str


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file."""

    format: int = FORMAT
    version: str
    """Of fedgossip."""
    name: str
    made: str
    signer: str
    """The key of signatures of who has made it, in hex."""
    use: str
    """What the model is for, and what not, as a person has typed it."""
    model: ReleasedModel
    privacy: ReleasedPrivacy
    plan: str
    """The hash of the plan."""
    approvals: tuple[ReleasedApproval, ...]
    rounds: int
    clients: int = 0
    """Sites of the plan; 0 in releases from before it was told, whose `counted` says it."""
    least: int
    """Number of sites without which no round counts."""
    counted: tuple[tuple[int, ...], ...]
    """The rounds, from 1, whose sum each site is in; () where the record does not follow single sites."""
    logs: tuple[ReleasedLog, ...]
    agreed: str = ""
    """sha256 of agreed.json; "" where the sites have agreed on no statistics."""
    agreed_file: str = "agreed.json"
    """What the sites call that file, in the folders of their experiment; data.agreed."""
    judged: bool = False
    """Whether there is an evaluation by all sites."""
    fit: str = ""
    """The file that tells what sums over the sites have fitted; "" where a model was trained."""
    files: dict[str, str]
    """sha256 of each file of the release but this one."""

    @property
    def fit_alone(self) -> bool:
        """Whether the fit is all that there is: a curve, or hazards, which sites cannot judge by sums."""
        return self.model.file == self.fit

    @property
    def sites(self) -> int:
        return self.clients or len(self.counted)


def encoded(release: Release) -> bytes:
    return msgspec.json.format(msgspec.json.encode(release), indent=1)


def ranges(rounds: tuple[int, ...]) -> str:
    """Return rounds as "1 to 4, 6"; "none" of none."""
    found: list[list[int]] = []
    for one in rounds:
        if found and found[-1][-1] == one - 1:
            found[-1].append(one)
        else:
            found.append([one])
    return ", ".join(f"{one[0]} to {one[-1]}" if len(one) > 1 else str(one[0]) for one in found) or "none"
