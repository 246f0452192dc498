"""A run in progress: its files are followed as they grow, merged into one state, and shown.

This package writes nothing, and sends nothing to a peer: watching cannot disturb a run.

    places     what is watched: a run directory, or the folders of peers
    tail       the new lines of a file that grows
    peers      the state of one peer
    federation the settings of a federated run, and its coordinator's rows
    curves     what is drawn over rounds, thinned out
    state      all rows merged: the newest of each peer, of the network, of the links
    follow     a place and its state, kept up to date
    table      it on a terminal;  lines: on a pipe
    layout     the positions of nodes in a drawing
    snapshot   a state as plain data, for the page
    serving    the page on 127.0.0.1
"""
