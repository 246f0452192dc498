"""What hosts tell each other, below the machines."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.core.messages.base import Code, Count, Note, Numbers, declared
from fedgossip.core.model_fingerprint import Likeness


@declared
@dataclass(frozen=True, slots=True)
class Hello(Note):
    """The first words on a link, between hosts: peers of two experiments, or of two layouts, must not mix.

    `experiment` is the hash of the resolved experiment, `schema` of the parameter layout, `version` fedgossip's.
    `incarnation` counts the lives of the sender: after a crash it is a higher one.  `process` is drawn at its start, so
    that two with one identity can be told apart; 0: not said.  `processor` is a hash of the processor's name where that
    decides the bits of what is learned; 0: it does not.  `code`, `frozen` and `probe` are those of `Likeness`.
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
        """What must be alike, beside what must be equal."""
        return Likeness(self.code, self.frozen, self.probe)
