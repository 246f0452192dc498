"""Privacy that a key has spent in all runs: a ledger next to the key, read at every start.

    peer.key.spent          a line per release: its data, a digest of its records, the log of its run, and the spend

The budget belongs to the records, not to a folder.  Records are recognised by their file's path or digest
(`data.record_groups`); lines linked by either are one data set.  Releases without noise have a line, outside any
epsilon; so have the clients of exact sums, which must be the same in all runs, and their records, if data.where or
data.missing leave some out: two subsets with almost the same records disclose the others.  A site may limit the total
of all runs; the latest such line applies.  A line is on disk before its release and before the run's log: a crash
counts at most one release too many.  Lines that are missing here are added from logs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import BudgetError, ConfigError, NotWrittenError
from fedgossip.core.machine import NodeId
from fedgossip.data.partitions import PLACE
from fedgossip.data.record_groups import fewest_alike
from fedgossip.data.table_files import OF_TABLES, SQL, unnamed
from fedgossip.plans.federated.privacy_budget import account_before
from fedgossip.privacy.accounting import Mechanism, RenyiAccount, account_of
from fedgossip.privacy.budget import Spend, TotalBudget, compute_record_cost

FILES = (*OF_TABLES, "npz", "text", "mnist", "fashion-mnist")


TRAINING = "training"
"""Kind of a release without noise by training; other kinds are sums: statistics, evaluation, a fit."""


class TotalLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's limit for each of its data sets, over all runs."""

    max_epsilon_total: float
    delta: float
    exact: int = 0
    """Number of releases without noise that it also allows."""


class LedgerLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One release, or a limit.  `log`: the hash of the first entry of the run's log, which is unique."""

    data: str
    log: str
    spend: dict[str, str | int | float] = {}
    """Empty for a release without noise, and for a limit."""
    records: str = ""
    """Digest of the records; "" if they are not a site's own."""
    exact: str = ""
    """Kind of a release without noise."""
    rows: Annotated[str, msgspec.Meta(pattern=r"^(\d+:[0-9a-f]+)?$")] = ""
    """Records of this release, as `record_groups.selected_rows`; "" for all of them."""
    layout: str = ""
    """Hash of the layout of an exact sum before consent to it."""
    company: str = ""
    """Hash of the clients of the exact sum."""
    other_sites: bool = False
    """Whether later exact sums may have other clients; applies to all data."""
    limit: TotalLimit | None = None


_decoder = msgspec.json.Decoder(LedgerLine)


def data_of(source: str, node: NodeId) -> str:
    """Return the name of the data for a budget: a file's real path, or a database's address, without options;
    otherwise the source as written.
    """
    kind, colon, rest = source.replace(PLACE, str(node)).partition(":")
    if kind not in FILES or not rest:
        return kind + colon + rest
    place = rest.partition("?")[0]
    return f"{kind}:{unnamed(place) if kind == SQL and '://' in place else os.path.realpath(place)}"


class SpentLedger:
    """The ledger of one key, for the data and unit of one run; one process at a time can open it.

    `data`, `records`: from `data_of` and `record_groups`.  Raises ConfigError if it is in use or unreadable, and
    NotWrittenError.
    """

    def __init__(self, path: Path, unit: str, data: str, records: str = "") -> None:
        self.path, self._unit, self._data, self._records, self._log = path, unit, data, records, ""
        self._file = _locked(path)
        try:
            self._lines = self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> list[LedgerLine]:
        found, whole = _lines(self.path)
        os.ftruncate(self._file, whole)  # a torn last line is cut: its release was not made
        self.limit = limit_of(found)
        self._set = same_records(found, self._data, self._records)
        anew = max((place for place, one in enumerate(found) if one.other_sites), default=-1)
        later = {id(one) for one in found[anew + 1 :]}
        self._companies = {one.layout: one.company for one in self._set if one.layout and id(one) in later}
        return [one for one in self._set if one.spend.get("unit") == self._unit]

    def total(self) -> TotalBudget | None:
        """Return the site's remaining budget for these records; None without a limit.  Call it after `take_up`."""
        if self.limit is None:
            return None
        return TotalBudget(self.limit.max_epsilon_total, self.limit.delta, account_of_records(self._set))

    @property
    def exact(self) -> int:
        """Number of releases of these records without noise."""
        return sum(bool(one.exact) for one in self._set)

    def exact_before(self, log: str = "") -> Mapping[str, int]:
        """Return the number of releases without noise by other runs, per kind."""
        return Counter(one.exact for one in self._set if one.exact and one.log != log)

    def check_rows(self, what: str, rows: str, least: int) -> None:
        """Raise BudgetError if a release of these rows ("": all) and earlier ones of the same records differ by sums
        over fewer than `least` records.
        """
        before = {one.rows for one in self._set if one.exact and one.records == self._records}
        fewest = fewest_alike({rows, *before}) if before else None
        if fewest is not None and fewest < least:
            text = f"{what} of other records: by its difference to an earlier release"
            advice = (
                "Take data.where, and the columns with empty cells that data.missing drops, of an earlier release; or "
                "others, which differ from each by more records."
            )
            raise BudgetError(f"{text} it would disclose sums of fewer than {least} records", advice)

    def note_exact(self, what: str, log: str, rows: str = "", least: int = 1) -> None:
        """Record a release of these records without noise, once per log; `rows`: of some of them.

        Raises BudgetError if the site's limit over all runs forbids it, and as `check_rows`; and NotWrittenError.
        """
        if any(one.log == log and one.exact for one in self._set):
            return
        self.check_rows(what, rows, least)
        if self.limit and self.exact >= self.limit.exact:
            held = f"this site allows epsilon {self.limit.max_epsilon_total:g} of its records in all"
            text = f"{what} without noise: {held}"
            advice = 'Set coordinator.privacy.unit = "record"; or allow it: fedgossip privacy ledger --allow-exact N.'
            raise BudgetError(f"{text}, and {self.limit.exact} such releases, of which {self.exact} were made", advice)
        self._write(LedgerLine(self._data, log, records=self._records, exact=what, rows=rows))

    def company(self, layout: str) -> str:
        """Return the hash of the clients of earlier exact sums with this layout on these records; "" without any."""
        return self._companies.get(layout, "")

    def note_company(self, layout: str, company: str, log: str) -> None:
        """Record the clients of a sum with this layout before the sum is made.  Raises NotWrittenError."""
        if self.company(layout) != company:
            self._write(LedgerLine(self._data, log, records=self._records, layout=layout, company=company))
            self._companies[layout] = company

    def allow_other_sites(self) -> None:
        """Record that earlier exact sums may be repeated with other sites.  Raises NotWrittenError."""
        self._write(LedgerLine("", "", other_sites=True))
        self._companies.clear()

    def take_up(self, log: str, logged: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """Return the spends that `logged`, the entries of the run log `log`, lacks; add the ones missing here to the
        ledger.
        """
        self._log = log
        own = [one.spend for one in self._lines if one.log == log]
        for facts in logged[len(own) :]:  # the ledger can lack only the last entries of the log
            self.add({name: value for name, value in facts.items() if isinstance(value, str | int | float)})
        others = [one.spend for one in self._lines if one.log != log]
        return [*others, *own[len(logged) :]]

    def add(self, spend: Mapping[str, str | int | float]) -> None:
        """Write a release before it is made; the line is on disk when this returns.  Raises NotWrittenError."""
        self._write(LedgerLine(self._data, self._log, dict(spend), self._records))

    def set_limit(self, limit: TotalLimit) -> None:
        """Record the site's limit for each of its data sets, valid from now on.  Raises NotWrittenError."""
        self._write(LedgerLine("", "", limit=limit))
        self.limit = limit

    def _write(self, line: LedgerLine) -> None:
        rest = msgspec.json.encode(line) + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            raise NotWrittenError(self.path, error) from None
        if line.limit is None and not line.other_sites:
            self._set.append(line)

    def close(self) -> None:
        os.close(self._file)


def counted(released: Mapping[str, int]) -> str:
    """Return numbers of releases in words: "evaluation once, statistics 2 times"."""
    return ", ".join(f"{what} {'once' if times == 1 else f'{times} times'}" for what, times in sorted(released.items()))


def _lines(path: Path) -> tuple[list[LedgerLine], int]:
    """Return the complete lines and their number of bytes; the release of a torn line was never made."""
    content = outside_files.read_bytes(path)
    whole = content.rfind(b"\n") + 1
    found = []
    for place, line in enumerate(content[:whole].splitlines(), 1):
        try:
            one = from_json(_decoder, line)
            if not (one.limit or one.exact or one.layout or one.other_sites):
                Spend.from_mapping(one.spend)
            found.append(one)
        except (UnreadableError, ConfigError) as error:
            advice = "Put the file back as it was: without it nothing more may be released with this key."
            raise ConfigError(f"{path}, line {place}: {error}", advice) from None
    return found, whole


def same_records(lines: Sequence[LedgerLine], data: str, records: str) -> list[LedgerLine]:
    """Return the lines of the same records: those with this path or digest, and transitively those linked to them."""
    paths, digests = {data}, {records} - {""}
    while True:
        found = [
            one for one in lines if not (one.limit or one.other_sites) and (one.data in paths or one.records in digests)
        ]
        more = {one.data for one in found}, {one.records for one in found} - {""}
        if more[0] <= paths and more[1] <= digests:
            return found
        paths, digests = paths | more[0], digests | more[1]


def limit_of(lines: Sequence[LedgerLine]) -> TotalLimit | None:
    return next((one.limit for one in reversed(lines) if one.limit), None)


def account_of_records(lines: Iterable[LedgerLine]) -> RenyiAccount:
    """Return the account of all releases with noise, each as its cost for one record."""
    return account_of(compute_record_cost(Spend.from_mapping(one.spend)) for one in lines if one.spend)


def read_releases(path: Path, unit: str, data: str, records: str = "") -> list[Mechanism]:
    """Return the releases of one unit of some data in a ledger, with equal ones combined."""
    steps: dict[tuple[float, float], int] = {}
    for line in same_records(_lines(path)[0], data, records) if path.exists() else ():
        if line.spend.get("unit") == unit:
            one = Spend.from_mapping(line.spend).mechanism
            steps[one.noise, one.rate] = steps.get((one.noise, one.rate), 0) + one.steps
    return [Mechanism(noise, rate, count) for (noise, rate), count in steps.items()]


def standing(path: Path, data: str, records: str = "") -> tuple[TotalBudget | None, int]:
    """Return a site's remaining budget for some records (None: no limit) and its remaining releases without noise; only
    reads.

    Raises ConfigError if the ledger cannot be read.
    """
    lines = _lines(path)[0] if path.exists() else []
    if (limit := limit_of(lines)) is None:
        return None, 0
    mine = same_records(lines, data, records)
    left = limit.exact - sum(bool(one.exact) for one in mine)
    return TotalBudget(limit.max_epsilon_total, limit.delta, account_of_records(mine)), left


@dataclass(frozen=True)
class SpentBudget:
    """Spent budget of one unit of some data."""

    unit: str
    data: str
    epsilon: float
    releases: int
    runs: int


def accounts(path: Path, delta: float) -> list[SpentBudget]:
    """Return the accounts of a ledger; an empty list without a ledger.  Raises ConfigError if it cannot be read."""
    if not path.exists():
        return []
    lines = [one for one in _lines(path)[0] if one.spend]
    found = []
    for unit, data in sorted({(str(one.spend["unit"]), one.data) for one in lines}):
        mine = [one for one in lines if (one.spend["unit"], one.data) == (unit, data)]
        spent = account_before(one.spend for one in mine).epsilon(delta)
        found.append(SpentBudget(unit, data, spent, len(mine), len({one.log for one in mine})))
    return found


@dataclass(frozen=True)
class RecordsSpent:
    """Total spending of one data set over all runs."""

    data: tuple[str, ...]
    """Its names, the latest last."""
    records: str
    """Its latest digest; "" if it is not a site's own."""
    epsilon: float
    """Total per record, including the spending that protects whole clients."""
    releases: int
    runs: int
    exact: Mapping[str, int]
    """Number of releases without noise, which no epsilon covers, per kind."""


def data_sets(path: Path, delta: float) -> tuple[list[RecordsSpent], TotalLimit | None]:
    """Return the spending on each data set in a ledger, and the site's limit.

    Raises ConfigError if the ledger cannot be read.
    """
    lines = _lines(path)[0] if path.exists() else []
    found, seen = [], set[int]()
    for one in lines:
        if one.limit is not None or one.other_sites or id(one) in seen:
            continue
        mine = same_records(lines, one.data, one.records)
        seen |= {id(line) for line in mine}
        noisy, exact = [line for line in mine if line.spend], Counter(line.exact for line in mine if line.exact)
        names = tuple(dict.fromkeys(line.data for line in mine))
        digest = next((line.records for line in reversed(mine) if line.records), "")
        spent, runs = account_of_records(noisy).epsilon(delta), len({line.log for line in mine})
        found.append(RecordsSpent(names, digest, spent, len(noisy), runs, dict(exact)))
    return found, limit_of(lines)


def _locked(path: Path) -> int:
    try:
        file = owner_files.opened_to_lock(path)
        if owner_files.try_lock(file):
            return file
        os.close(file)
    except OSError as error:
        raise NotWrittenError(path, error) from None
    text = f"{path}: another process spends of the budget of this key"
    raise ConfigError(text, "Wait until it has ended, or stop it.")
