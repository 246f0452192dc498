"""Membership: peers that join, leave and fail during a run.

It imports `gossip`, `state_transfer` and `core`.  `member` wraps any gossip machine.

The roster (`roster`) has one entry per member, signed by the member; the highest incarnation counts.  The participants
of round r, and so its graph, are a function of (roster, r) (`RosterSchedule`); changes take effect at boundaries of 4
rounds, at least 5 rounds ahead.  A peer that receives a change too late has another `view` of the round: its edges do
not count until it has the change.

Failures (`membership`, `failure_detector`): a member pings another each second, asks helpers about a silent one,
suspects it, and gives a verdict after 4 s (times log10 n) without a message of the suspect.  A digest of the roster in
every ping finds lost updates.

A joiner: Join, the only message allowed from a guest -> Compare and MembershipUpdate -> the model (`state_transfer`) ->
announcement of its first round -> gossip.

Incarnations: an incarnation is the second of its start, as in Cassandra, so a peer without a disk can return.  Of two
processes with one key the later one stays.  A verdict on an unknown incarnation is refused: no peer can be driven to
the last incarnation.  A part's refusal becomes a report; the other parts' handling of the event stays valid.

Verdicts are evidence (`roster`): one of each judge on each incarnation, a set that grows to the same value in any
order.  A quorum (2 in up to 7 members, up to 5 in more; 1 of 2), or all that can judge, excludes a member; so fewer
colluders than a quorum change no graph, both sides of a partition continue, and all compute from the same evidence when
they meet.  A judge whose verdict was refuted without a quorum loses its vote for 64 rounds.

Claims of one member (the network's round, the newest model) are not believed: the second highest counts, and an earlier
incarnation is proved by its signature.

Address and removal: a changed address (`Moved`) is an update of the entry.  The organiser's revocation of (id, keys),
`fedgossip keys revoke`, is written into any member's endpoints.toml, which is read during the run
(`drivers.members.Informed`).  It removes every update by or about that member; each peer closes its links (`Part`), and
stores the revocation (revoked.toml) before it forwards it.
"""
