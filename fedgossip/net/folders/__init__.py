"""Links through a folder: messages are files, sealed between keys, that any file system or synchroniser carries.

It imports `net` and `measuring`.  `pair_folder` seals messages and holds them on the way; `folder_links` is a
participant's Transport.

    DIR/fedgossip-1a2b3c4d5e6f7a8b/        one run: its experiment and the keys of all
      from-000002-to-000000/               written by participant 2 alone
        greeting.fgm                       its Hello and its key of this run; stays
        0000000007.fgm                     message 7: written as 0000000007.PART, synced, renamed
        received.fgm                       number of the last message that 2 has on its own disk from 0

Each file has one writer, so a synchroniser has nothing to merge, and there are no locks.  A reader asks for the next
number's file, and for copies only where it is missing.  A message is acknowledged when it is in the reader's journal,
then removed by its writer; one that disappears earlier is written again.

The owner of the folder sees who sends to whom, when, and how many bytes; it can delay, delete and restore old files,
which stops a run and never changes its result.
"""
