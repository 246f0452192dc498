"""Membership: peers that join, leave and fail while a run goes on.

It imports `gossip`, `transfer` and `core`.  `member` stands round any gossip machine.

The roster (`roster`) has one entry per member, signed by itself; the highest incarnation counts.  Beside it stand the
others' verdicts.  Who takes part in round r, and so the graph of r, is a function of (roster, r) (`roster_schedule`);
changes take effect at boundaries of 4 rounds, at least 5 rounds ahead.  A peer that learns of a change too late has
another `view` of the round: its edges do not count until it has the change.

Failures (`membership`, `failure_detector`).  A member pings one other per second, asks helpers about
a silent one, suspects it, and gives a verdict after 4 s (times log10 n) without a message of the suspect itself.  The
digest of the roster in every ping finds updates that were lost (`failure_detector`).

A joiner.  Join, the only message that a guest may send -> Compare and MembershipUpdate -> ModelQuery, ModelInfo,
ChunkRequest, ModelChunk (`transfer.state_transfer`) -> its first round is announced -> gossip.  The gossip machine
decides how to go on from a fetched model (`resume_point`); window doubling cannot.

Lives.  The incarnation of a life is the second of its start, as in Cassandra, so a peer without a disk can return
after a crash.  Of two processes with one key the later stays, and the earlier ends with an error.  A verdict or a
suspicion that does not name a known incarnation is refused: a peer cannot be driven to the last incarnation that there
is.  Each part of a member refuses for itself, by a report: what the other parts did with the event stays done.

Verdicts (`roster`) are evidence.  All are stored, one of each judge on each life, so the roster is a set that grows
to the same value in any order.  A member is out of round r when a quorum of judges (2 in up to 7 members, up to 5 in
more; 1 of 2) has verdicts with ends up to r, or all that can judge where these are fewer.  A judge takes part in r, is
not out itself, and was not judged by the own peer.  So one liar changes no graph, and fewer colluders than a quorum
change none; the end is never earlier than what some honest judge found; both sides of a partition, however small, and
the last of three go on alone.  The own peer's verdicts are the only part that is not shared.  They matter only where
fewer than a quorum can reach it: those few are cut off with it and judge alike.  When the network is whole again
everyone refutes its verdicts, and all compute from the same evidence.  A verdict that was refuted, and that fewer than
a quorum had given on that life, costs its judge its vote within 64 rounds of the round that it named; a judge without
a vote needs no answer. Suspicions change no graph; the same one counts once in the time of a suspect.

Claims of one member are not believed: the round that the network is in, the newest model, an earlier presence.  Of
rounds and of offered models the second highest counts, and an earlier life is proved by its own signature.  A source
that does not deliver is tried last.

Address and removal.  A member whose address changes (`Moved`) announces it as an update of its entry.  To remove one,
the organiser signs a revocation of (id, keys), `fedgossip keys revoke`, and puts it into any member's endpoints.toml,
which is read again while the run goes on (`drivers.members.Informed`).  It spreads as other updates do, counts at once
and for all rounds, and removes every update by or about that member; each peer closes its links and forgets its key
(`Part`), and stores the revocation in its folder (revoked.toml) before it sends it on.
"""
