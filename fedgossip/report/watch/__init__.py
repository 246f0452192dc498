"""A run as it goes on: its files are followed as they grow, folded into one state, and shown.

Nothing here writes, or sends to a peer: watching cannot disturb a run.

    places     what is watched: a run directory, or the folders of peers
    tail       the new lines of a file that grows
    peers      what is known of one peer
    federation what a coordinator and its clients are, and tell
    curves     what is drawn over rounds, thinned out
    state      all rows folded: the newest of each peer, of the network, of the links
    follow     a place and its state, kept up to date
    table      it on a terminal;  lines: on a pipe
    layout     where the nodes of a drawing stand
    snapshot   a state as plain data, for the page
    serving    the page on 127.0.0.1
"""
