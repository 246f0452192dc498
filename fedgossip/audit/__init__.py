"""Signed logs of messages that left a participant, and a coordinator's proof of a round without a secret.

It imports `secure` and `base`.  Machines request lines by `Log`, which identifies frames by session, stage, size and
hash; a line is written before its frame is sent.  A coordinator's `Witness` frames make a transcript per session,
verified offline.

    entries.py  one line of an audit log: chained, signed       log.py         writes them, for many incarnations
    verify.py   is a log unchanged?  do two logs agree?         records.py     the file of one secure sum
    transcript.py  writes it                                    verify_round.py   did the round follow the protocol?

The facts of an entry of any kind:

    to      it left this participant, or was about to        session  the secure sum that it belongs to
    from    it arrived here (kind "refused": and was refused)   stage    of that session, secure.aborts.Stage
    bytes   of the frame, or the message                     words    of a vector behind it, 4 bytes each
    sha256  of the frame's body, which its signature covers (`frames.body_hash`), or of the numbers sent

Two logs are compared by session, stage, bytes and sha256, and if present by a reveal's `alive` and `dropped` (ids as
`secure.session.ranges`), and `sum_sha256`, the received sum's hash.
"""
