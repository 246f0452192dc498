"""Invites: the line of text, discovery in a local network, and the admission of new members.

It imports `net`, `net.links`, `net.folders` and `protocols.members`; `drivers.invite_joining` and
`drivers.invite_joining` use it.
An invite has the organiser's addresses and key, and a secret of 128 bits (`invitation`).  A joiner: InviteProof (a
proof of the secret, bound to the keys of both) -> Proposal (the experiment, shown to a person) -> FileQuery, FilePart
(the common test set) -> Enrol, repeated every 2 s -> Gathering, until the organiser begins -> Beginning (everybody's
entry, each with the organiser's admission).

Every request carries the proof and has one answer, so the server stores nothing of callers that are not admitted; an
admitted one is on disk first (`invite_admission`).  The server has a socket, a context and a thread of its own:
strangers' requests cost the run nothing.  After the Beginning it is a run with `--members`, whose founders are the
enrolled peers; later ones join.  A proposal names no file of the machine that receives it, and no code travels.
Through a folder the same messages are sealed files, and all begin together (`invite_folder`).
In a run with tiers a guest names its place, and a leaf coordinator passes its clients' requests on (`invite_port`).
"""
