"""What left a participant, in its own signed words; and what a coordinator can show of a round, without a secret.

    entries.py  one line of an audit log: chained, signed       log.py         writes them, for many lives
    verify.py   is a log as it was written?                     compare.py     do two participants say the same?
    records.py  the file of one secure sum                      transcript.py  writes it
    transcript_frames.py, round_checks.py, verify_round.py                         did the round go as the protocol
    says? export.py   for people who ask

What an entry says, by the names of its facts, whatever its kind:

    to      it left this participant, or was about to        session  the secure sum that it belongs to
    from    it came here (kind "refused": and was refused)   stage    of that session, secure.aborts.Stage
    bytes   of the frame, or the message                     words    of a vector behind it, 4 bytes each
    sha256  of the frame's body, which its signature covers (`frames.body_hash`), or of the numbers sent

Two logs are compared by session, stage, bytes and sha256.  More facts are compared where they are there: of a reveal
`alive` and `dropped`, whose share of which kind was given, ids as `secure.session.ranges` writes them; and
`sum_sha256`, the hash of the sum that a client was told.
"""
