"""Invites: the line of text, discovery in a local network, and the admission of new members.

It imports `net`, `net.links`, `net.folder_links` and `protocols.members`; `drivers.invite_joining` uses it.  A joiner's
messages: InviteProof (bound to the keys of both) -> Proposal (the experiment, shown to a person) -> FileQuery, FilePart
(the common test set) -> Enrol, repeated every 2 s -> Gathering -> Beginning (all entries, with the organiser's
admissions).

Every request carries the proof and has one answer: the server stores nothing of strangers, and has a separate socket,
context and thread.  An admission is on disk before it is sent (`invite_admission`).  After the Beginning it is a run
with `--members`.  A proposal names no file of its receiver's machine, and no code is sent.  Through a folder messages
are sealed files (`invite_folder`); a leaf coordinator passes its clients' requests on (`invite_server`).
"""
