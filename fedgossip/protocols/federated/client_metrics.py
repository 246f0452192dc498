"""The metrics that a client sends beside its vectors: one declaration, for machines and for the wording of plans.

    of unit      exact                                     covered: has noise, or follows from what has
    none         examples, steps, loss, kept, tests, cut,  -
                 and of personal models gains, twentieth,
                 of users' own loops logged
    record       examples, steps                           cut; kept and tests, where the count has noise of its own
    client       -                                         shorter, where the clip follows the updates

An undeclared fact never leaves: its fields are BLANK in a `Contribution`, and a secure sum has no coordinate for it.
The number of right answers on a client's kept examples (`tests`) is an exact count of single records, so where records
are hidden it stays at the client, or gets noise there first (`test_noise` of [coordinator.privacy]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedgossip.core.gains import BEHIND, COUNTS, TWENTIETHS
from fedgossip.protocols.federated.client_round import PreparedContribution


@dataclass(frozen=True)
class Fact:
    """`fields`: of a `Contribution`, or coordinates of a secure sum."""

    name: str
    fields: tuple[str, ...]
    words: str


FACTS = (
    Fact("examples", ("examples",), "the number of examples"),
    Fact("steps", ("steps",), "the number of training steps"),
    Fact("loss", ("loss",), "the mean loss"),
    Fact("logged", ("logged",), "whether its loop logs a loss"),
    Fact("kept", ("tested",), "the number of examples kept for tests"),
    Fact("tests", ("measured",), "how well the model does on the examples kept for tests"),
    Fact("gains", BEHIND, "whether its own model does worse than the shared one, and than one trained alone"),
    Fact("twentieth", TWENTIETHS, "the twentieth in which its own model's share of right answers lies"),
    Fact("cut", ("clipped",), "whether an update was cut to the bound"),
    Fact("shorter", ("shorter",), "whether an update was shorter than the clip"),
)

SCORE_TOLD = "read_score"

BLANK: Mapping[str, float | None] = {"examples": 1, "steps": 1, "loss": None, "measured": 0.0, "tested": 0}
"""The values of unsent fields of a `Contribution`."""


@dataclass(frozen=True)
class Telling:
    """The facts that the clients of a run send, by the names of FACTS."""

    exact: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    """Covered by the noise of the budget: with noise of their own, or computed from noisy values."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a `Contribution`, and the coordinates of a sum, that carry a fact."""
        return _fields_of((*self.exact, *self.covered))

    @property
    def measured(self) -> str:
        """The metric of a training that holds the score to send: with noise, where that covers it."""
        return SCORE_TOLD if "tests" in self.covered else "score"

    def of(self, work: PreparedContribution) -> PreparedContribution:
        """Return the work with blank values for unsent facts."""
        fields = self.fields
        blank: Any = {field: value for field, value in BLANK.items() if field not in fields}
        return replace(work, **blank) if blank else work

    @property
    def counts(self) -> tuple[str, ...]:
        """The fields that count participants: each adds 0 or 1, whatever its weight."""
        return tuple(name for name in self.fields if name in COUNTS)

    def words(self, names: tuple[str, ...]) -> list[str]:
        return [fact.words for fact in FACTS if fact.name in names]


@cache
def _fields_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields of these facts."""
    return tuple(field for fact in FACTS if fact.name in fields for field in fact.fields)


EVERYTHING = Telling(tuple(fact.name for fact in FACTS if fact.name not in ("shorter", "gains", "twentieth", "logged")))
"""All facts in the clear, where nothing is hidden and clients test."""


def telling(
    unit: str,
    *,
    secure: bool,
    by_examples: bool,
    tested: bool,
    adaptive: bool,
    noisy_tests: bool = False,
    compared: Sequence[str] = (),
    loops: bool = False,
) -> Telling:
    """Return the facts that clients send where a budget protects `unit`: "none", "record" or "client".

    `secure`: through a secure sum, which reveals the total number of examples (`by_examples`) and the number of
    clipped updates.  `tested`: clients test the received model; `noisy_tests`: with noise on the count of right
    answers.  `adaptive`: the clip follows the updates.  `compared`: the facts on personal models, of secure sums alone.
    `loops`: the clients are users' own loops, some of which may log no loss.
    """
    if unit == "client":
        return Telling(covered=("shorter",) if adaptive else ())
    counts = ("examples", "steps") if by_examples or not secure else ("steps",)
    cut = ("cut",) if secure else ()
    kept = ("kept",) if tested else ()
    if unit == "record" and tested and noisy_tests:
        return Telling((*counts, *kept), ("tests", *cut))
    if unit == "record":
        return Telling(counts, cut)
    own = compared if secure and tested else ()
    loss = ("loss", "logged") if secure and loops else ("loss",)
    return Telling((*counts, *loss, *kept, *(["tests"] if tested else []), *own, *cut))


def mean_loss(metrics: Mapping[str, float]) -> float | None:
    """Return the mean loss of the clients of a secure sum that have one, weighted as the sum; None where none has."""
    if not (share := metrics.get("logged", 1.0)):
        return None
    return metrics["loss"] / share if "loss" in metrics else None
