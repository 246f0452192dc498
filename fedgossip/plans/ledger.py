"""The privacy that a key has spent in all runs: a ledger beside the key, read at every start.

    peer.key.spent          a line per release: its data, the log of its run, and the spend

The budget belongs to the data, not to a folder: a run into another `--out` goes on with the account of earlier runs.  A
line is on disk before its release, and before the same line of the run's own log; so a crash counts at most one release
too many.  Lines that a log has and the ledger lacks (it was lost, or an earlier version kept none) are taken over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedgossip import file_locks
from fedgossip.decoding import UnreadableError, from_json
from fedgossip.errors import ConfigError, NotWrittenError
from fedgossip.learning.per_peer import PLACE
from fedgossip.machine import NodeId
from fedgossip.plans.privacy_budget import account_before
from fedgossip.privacy.accounting import Mechanism
from fedgossip.privacy.budget import Spend

SUFFIX = "spent"
"""The suffix of the file beside the key; its name where the folder of a run holds it."""

FILES = ("csv", "npz", "text", "mnist", "fashion-mnist")


class LedgerLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One release.  `log`: the hash of the first entry of the run's log, which no other log has."""

    data: str
    log: str
    spend: dict[str, str | int | float]


_decoder = msgspec.json.Decoder(LedgerLine)


def data_of(source: str, node: NodeId) -> str:
    """Return the data that a budget is of: a file by its real path, without options; else the source as it is written.

    A copy of a file under another name counts as other data.
    """
    kind, colon, rest = source.replace(PLACE, str(node)).partition(":")
    if kind not in FILES or not rest:
        return kind + colon + rest
    return f"{kind}:{os.path.realpath(rest.partition('?')[0])}"


class SpentLedger:
    """The ledger of one key, for the data and unit of one run; one process holds it at a time.

    Raises ConfigError where another process holds it or a line cannot be read, and NotWrittenError.
    """

    def __init__(self, path: Path, unit: str, data: str) -> None:
        self.path, self._unit, self._data, self._log = path, unit, data, ""
        self._file = _locked(path)
        try:
            self._lines = self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> list[LedgerLine]:
        found, whole = _lines(self.path)
        os.ftruncate(self._file, whole)
        return [one for one in found if (one.spend["unit"], one.data) == (self._unit, self._data)]

    def take_up(self, log: str, logged: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """Return what was spent beside `logged`, the spends in this run's `log`; add those of them that are missing."""
        self._log = log
        own = [one.spend for one in self._lines if one.log == log]
        for facts in logged[len(own) :]:
            self.add({name: value for name, value in facts.items() if isinstance(value, str | int | float)})
        others = [one.spend for one in self._lines if one.log != log]
        return [*others, *own[len(logged) :]]

    def add(self, spend: Mapping[str, str | int | float]) -> None:
        """Write a release that is about to be made; it is on disk when this returns.  Raises NotWrittenError."""
        rest = msgspec.json.encode(LedgerLine(self._data, self._log, dict(spend))) + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            raise NotWrittenError(self.path, error) from None

    def close(self) -> None:
        os.close(self._file)


def _lines(path: Path) -> tuple[list[LedgerLine], int]:
    """Return the whole lines, and their bytes; a line cut short by a crash is of a release that was never made."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    found = []
    for place, line in enumerate(content[:whole].splitlines(), 1):
        try:
            found.append(from_json(_decoder, line))
            Spend.from_mapping(found[-1].spend)
        except (UnreadableError, ConfigError) as error:
            advice = "Put the file back as it was: without it nothing more may be released with this key."
            raise ConfigError(f"{path}, line {place}: {error}", advice) from None
    return found, whole


def spent_on(path: Path, unit: str, data: str) -> list[Mechanism]:
    """Return what a ledger holds of one unit of some data, equal releases as one."""
    steps: dict[tuple[float, float], int] = {}
    for line in _lines(path)[0] if path.exists() else ():
        if (line.spend["unit"], line.data) == (unit, data):
            one = Spend.from_mapping(line.spend).mechanism
            steps[one.noise, one.rate] = steps.get((one.noise, one.rate), 0) + one.steps
    return [Mechanism(noise, rate, count) for (noise, rate), count in steps.items()]


@dataclass(frozen=True)
class SpentBudget:
    """The budget that was spent of one unit of some data."""

    unit: str
    data: str
    epsilon: float
    releases: int
    runs: int


def accounts(path: Path, delta: float) -> list[SpentBudget]:
    """Return the accounts of a ledger; none where there is no ledger.  Raises ConfigError where it cannot be read."""
    if not path.exists():
        return []
    lines, _ = _lines(path)
    found = []
    for unit, data in sorted({(str(one.spend["unit"]), one.data) for one in lines}):
        mine = [one for one in lines if (one.spend["unit"], one.data) == (unit, data)]
        spent = account_before(one.spend for one in mine).epsilon(delta)
        found.append(SpentBudget(unit, data, spent, len(mine), len({one.log for one in mine})))
    return found


def _locked(path: Path) -> int:
    try:
        file = file_locks.opened(path)
        if file_locks.taken(file):
            return file
        os.close(file)
    except OSError as error:
        raise NotWrittenError(path, error) from None
    text = f"{path}: another process spends of the budget of this key"
    raise ConfigError(text, "Wait until it has ended, or stop it.")
