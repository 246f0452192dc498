"""Messages between hosts, below the machines."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.core.messages.base import Code, Count, Note, Numbers, declared
from fedgossip.core.model_fingerprint import Likeness


@declared
@dataclass(frozen=True, slots=True)
class Hello(Note):
    """The first message on a link, between hosts: peers of two experiments, or of two layouts, must not mix.

    `experiment` is the hash of the resolved experiment, `schema` of the parameter layout, `version` fedgossip's.
    `incarnation` counts the starts of the sender: higher after a crash.  `process` is drawn at its start and
    distinguishes two processes with one identity; 0: not given.  `processor` is a hash of the processor's name where
    that affects the bits of the result; 0: it does not.  `code`, `frozen` and `probe` are those of `Likeness`.
    """

    schema: str
    experiment: str
    version: str
    incarnation: Count = 0
    process: Count = 0
    processor: Count = 0
    code: Code = ""
    frozen: Numbers = ()
    probe: Numbers = ()

    @property
    def likeness(self) -> Likeness:
        """Return the fields compared within a tolerance."""
        return Likeness(self.code, self.frozen, self.probe)
