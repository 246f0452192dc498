"""What a participant's signed log says of a contribution in the clear: the hash of the very bytes that left."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedgossip.audit.log import read
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Log, Send
from fedgossip.core.messages import Contribution, Invite
from fedgossip.core.run_format import AUDIT_LOG
from fedgossip.net.identity import Identity
from fedgossip.protocols.federated.client_round import PlainPart, PreparedContribution
from fedgossip.runs.audit_recorder import Recorder


@pytest.mark.parametrize("vectors", [1, 2])
def test_a_contribution_is_logged_with_the_hash_of_what_is_sent_after_it(tmp_path: Path, vectors: int) -> None:
    up = tuple(frozen(np.arange(5, dtype=np.float32) + k) for k in range(vectors))
    part = PlainPart(9, Invite(3, "layout", up))
    line, sent = part.trained(PreparedContribution(up, 7, 7, 2, 2.0, 0.5))
    assert isinstance(line, Log) and isinstance(sent, Send) and isinstance(sent.message, Contribution)
    identity = Identity.new()
    with Recorder(tmp_path, 0, "client", identity, "run", synced=False) as recorder:
        recorder.log(line)
        recorder.log(Log("spent", {"round": 3}))
    logged = read(tmp_path / AUDIT_LOG).logged
    whole = b"".join(vector.tobytes() for vector in sent.message.vectors)
    facts = {"round": 3, "to": 9, "bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    assert list(logged[-2:]) == [("contribution", facts), ("spent", {"round": 3})]
