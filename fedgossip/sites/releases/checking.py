"""Checks a release offline, only from its file, without torch: the signature over every byte, then files and hashes,
weights, the plan and the sites' signatures, logs and transcripts.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedgossip.audit.entries import find_owner
from fedgossip.audit.verify import Verification, verify_log
from fedgossip.audit.verify_round import coordinator_of, verify_transcripts
from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, FedgossipError
from fedgossip.core.run_format import (
    APPROVAL,
    AUDIT_LOG,
    CARD,
    ENDPOINTS,
    EVALUATION,
    LOGS,
    MODEL,
    MODEL_FACTS,
    PLAN,
    RELEASE,
    TRANSCRIPT,
    USE,
)
from fedgossip.learning.models.model_files import ModelFacts
from fedgossip.net.endpoints import load_blocks, roster_of
from fedgossip.plans.approvals import plan_statement
from fedgossip.plans.approvals.approvals import JOINING, read_signed, site_of
from fedgossip.plans.approvals.plan_statement import study_of
from fedgossip.sites.releases.released import ASK, FORMAT, Release, ReleasedLog, ReleaseError, SignedZip, open_signed


@dataclass(frozen=True)
class CheckedRelease:
    """A release with a valid signature.  `faults`: inconsistencies of its contents, in words."""

    release: Release
    logs: tuple[ReleasedLog, ...]
    whose: str
    """Name of the signer, if the keys in the release, or the given ones, contain it."""
    faults: tuple[str, ...]


def check(path: Path, known: Path | None = None) -> CheckedRelease:
    """Check a release; `known`: the user's endpoints.toml, which must contain the signer's key.

    Raises ReleaseError for a changed byte, and for signed contents that are no release.
    """
    with open_signed(path) as archive, tempfile.TemporaryDirectory() as folder:
        release = _facts(archive)
        try:
            _unpacked(archive, Path(folder))
            faults = [
                *_of_files(archive, release),
                *_of_model(archive, Path(folder), release),
                *_of_plan(Path(folder), release),
            ]
            logs = verified(Path(folder))
            faults += _of_keys(Path(folder), known)
            whose = _signer(release.signer, known or Path(folder) / ENDPOINTS, given=known is not None)
        except ConfigError as error:  # of a file in it, or of the given list
            if folder not in str(error):
                raise
            raise ReleaseError(f"{path}: {str(error).replace(f'{folder}/', '')}", ASK) from None
        if archive.signer != release.signer:
            faults.append("signed with another key than it names")
    faults += [f"{one.file}: {one.told}" for one in logs if not one.sound]
    if logs != release.logs:
        faults.append("the logs differ from those at the time of the release")
    return CheckedRelease(release, logs, whose, tuple(faults))


def _facts(archive: SignedZip) -> Release:
    try:
        release = from_json(msgspec.json.Decoder(Release), archive.read(RELEASE))
    except UnreadableError as error:
        raise ReleaseError(f"{archive.path}: signed, and {RELEASE} cannot be read: {error}", ASK) from None
    if release.format != FORMAT:
        advice = "Use the release of fedgossip that wrote it."
        raise ReleaseError(f"{archive.path}: format {release.format}; this is fedgossip for {FORMAT}", advice)
    return release


def _unpacked(archive: SignedZip, folder: Path) -> None:
    """Unpack the files to check; their names are checked already."""
    for name in archive.names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.read(name))


def _of_files(archive: SignedZip, release: Release) -> Iterator[str]:
    if set(archive.names) != {RELEASE, *release.files}:
        yield f"other files than {RELEASE} names"
    about = [f"{MODEL}/{MODEL_FACTS}"] if release.model.file.startswith(f"{MODEL}/") else []
    for name in (CARD, USE, PLAN, *about, release.model.file, *([release.fit] if release.fit else [])):
        if name not in archive.names:
            yield f"no {name} in it"
    for name, known in release.files.items():
        if name in archive.names and hashlib.sha256(archive.read(name)).hexdigest() != known:
            yield f"{name}: another hash than {RELEASE} names"


def _of_model(archive: SignedZip, folder: Path, release: Release) -> Iterator[str]:
    weights, about = folder / release.model.file, folder / MODEL / MODEL_FACTS
    if release.model.file not in archive.names:
        return
    found = digest = hashlib.sha256(outside_files.read_bytes(weights, outside_files.LARGE)).hexdigest()
    try:
        if about.is_file():
            digest = from_json(msgspec.json.Decoder(ModelFacts), outside_files.read_bytes(about)).weights
    except UnreadableError as error:
        yield f"{MODEL}/{MODEL_FACTS}: {error}"
        return
    if not found == digest == release.model.weights:
        yield f"{release.model.file}: not the weights that the card describes"
    if release.judged:
        from fedgossip.sites.evaluation import evaluated

        try:
            if evaluated.read(folder / MODEL / EVALUATION).layout.model != found:
                yield f"{MODEL}/{EVALUATION}: of another model"
        except ConfigError as error:
            yield str(error).replace(f"{folder}/", "")


def _of_plan(folder: Path, release: Release) -> Iterator[str]:
    path = folder / PLAN
    if path.is_file() and hashlib.sha256(outside_files.read_bytes(path)).hexdigest() != release.plan:
        yield f"{PLAN}: not the plan that the card describes"
    elif release.study and study_of(plan_statement.read(path)) != release.study:
        yield f"{PLAN}: another study than {RELEASE} names"
    if not (folder / APPROVAL).is_file():
        if release.approvals:
            yield f"no {APPROVAL} in it"
        return
    try:
        signed = read_signed(folder / APPROVAL)
        keys = _keys(folder)
    except FedgossipError as error:
        yield str(error).replace(f"{folder}/", "")
        return
    sites = [(site_of(one, keys), one.key) for one in signed]
    if sites != [(one.site, one.key) for one in release.approvals]:
        yield f"{APPROVAL}: other approvals than the card describes"
    for (site, key), one in zip(sites, signed, strict=True):
        who = "a site that joined" if site == JOINING else f"site {site}"
        if one.plan != release.plan:
            yield f"{APPROVAL}: {who} approved another plan"
        if keys and keys.get(site) != key:
            yield f"{APPROVAL}: {who} signed with a key that is not its own"


def _of_keys(folder: Path, known: Path | None) -> Iterator[str]:
    if known is None:
        return
    own, keys = {node: block.verify for node, block in load_blocks(known).items()}, _keys(folder)
    for node, key in keys.items():
        if own.get(node) != key:
            yield f"{ENDPOINTS}: {_label(node, keys)} has another key there than in {known}"


def _keys(folder: Path) -> Mapping[int, str]:
    path = folder / ENDPOINTS
    return {node: block.verify for node, block in load_blocks(path).items()} if path.is_file() else {}


def _label(node: int, blocks: Collection[int]) -> str:
    return "the coordinator" if node == max(blocks) else f"site {node}"


def _signer(signer: str, path: Path, *, given: bool) -> str:
    if not path.is_file():
        return "unknown here: compare it with its owner"
    blocks = load_blocks(path)
    for node, block in blocks.items():
        if block.verify == signer:
            by = "your own list" if given else "the list that is in it: compare the key with its owner"
            return f"{_label(node, blocks)}'s, by {by}"
    if given:
        raise ReleaseError(f"signed with {signer[:16]}, which is no key of {path}", "Ask who has made this release.")
    return "of no participant: compare it with its owner"


# --- logs -------------------------------------------------------------------------------------------------------------


def verified(folder: Path) -> tuple[ReleasedLog, ...]:
    """Verify the logs and transcripts below `folder`/logs, by the keys in its endpoints.toml."""
    if not (folder / LOGS).is_dir():
        return ()
    try:
        blocks = load_blocks(folder / ENDPOINTS)
        everybody = roster_of(blocks)
    except (FedgossipError, ValueError) as error:
        return (ReleasedLog(ENDPOINTS, "everybody's keys", sound=False, told=str(error).replace(f"{folder}/", "")),)
    found = []
    for path in sorted(path for path in (folder / LOGS).rglob(AUDIT_LOG) if path.is_file()):
        owner = find_owner(path)
        key = bytes.fromhex(blocks[owner.participant].verify) if owner and owner.participant in blocks else bytes(32)
        found.append(_released_log(folder, verify_log(path, key)))
    for rounds in sorted({path.parent for path in (folder / LOGS).rglob(f"*{TRANSCRIPT}")}):
        clients = everybody.first(len(everybody.members) - 1)
        verdicts = verify_transcripts(rounds, clients, coordinator_of(rounds, everybody))
        found += [_released_log(folder, one) for one in verdicts]
    return tuple(found)


def _released_log(folder: Path, one: Verification) -> ReleasedLog:
    facts = one.facts
    if "entries" in facts:
        description = f"{facts['entries']} entries, {facts['first']} to {facts['last']}"
    else:
        description = (
            f"{facts.get('outcome') or 'no end'}, {facts.get('survivors', 0)} of {facts.get('cohort', 0)} in the sum"
        )
    description = description if one.sound else "; ".join(one.worded())
    return ReleasedLog(one.path.relative_to(folder).as_posix(), one.what, one.sound, description)


def logs_of(contents: Mapping[str, bytes | Path]) -> tuple[ReleasedLog, ...]:
    """Return the verdicts on the logs among the files of a release in the making."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            if name == ENDPOINTS or name.startswith(f"{LOGS}/"):
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(
                    content if isinstance(content, bytes) else outside_files.read_bytes(content, outside_files.LARGE)
                )
        return verified(Path(folder))


# --- when a site withdraws --------------------------------------------------------------------------------------------


def contains(release: Release, site: int) -> Sequence[str]:
    """Return the parts of a release with contributions of site `site`.  Raises ConfigError for an unknown site."""
    if not 0 <= site < release.sites:
        raise ConfigError(f"there is no site {site}", f"Sites are 0 to {release.sites - 1}.")
    what, found = "its records" if release.fit else "its updates", []
    if not release.counted:
        found.append(f"{release.model.file}: {what} may be in the sums of all {release.rounds} rounds")
    elif rounds := release.counted[site]:
        found.append(f"{release.model.file}: {what} are in the sums of {len(rounds)} of {release.rounds} rounds")
    if release.agreed:
        name = release.agreed_file
        found.append(f"{name}: its records are in the statistics, if it agreed with the others: sums do not show it")
    if release.judged:
        found.append(f"{MODEL}/{EVALUATION}: its records are in the figures, if it judged with the others")
    return found
