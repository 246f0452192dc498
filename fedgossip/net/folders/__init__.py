"""Links through a folder: messages are files, sealed between keys, that any file system or synchroniser carries.

It imports `net`, and of its folders `measuring`.  `pair_folder` seals one message and holds what waits on
the way from one participant to another, and `folder_links` is the Transport of a participant.

    DIR/fedgossip-1a2b3c4d5e6f7a8b/        one run: its experiment and the keys of all
      from-000002-to-000000/               written by participant 2 alone
        greeting.fgm                       its Hello and its key of this run; stays
        0000000007.fgm                     message 7: written as 0000000007.PART, synced, renamed
        received.fgm                       number of the last message that 2 has on its own disk from 0

Each file has one writer, so a synchroniser has nothing to merge, and nobody takes a lock.  A reader asks for the file
of the next number, and for copies of it under other names only where that is missing: strangers' files cost nothing.
A message is acknowledged when its event is in the reader's journal, and removed by its writer after that; a file that
disappears before is written again.  The numbers decide, no clock does.

The owner of the folder sees who sends to whom, when, and how many bytes; it can delay, delete and restore old files,
which stops a run and never changes its result.
"""
