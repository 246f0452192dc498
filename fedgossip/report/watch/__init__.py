"""A run in progress: its files are followed as they grow, merged into one state, and shown.

This package writes nothing, and sends nothing to a peer: watching cannot disturb a run.

    places        the watched place: a run directory, or the folders of peers
    follow        a place's growing files and their state, kept up to date
    federation    a federated run's settings, the state of each peer, and curves thinned out over rounds
    state         all rows merged: the newest of each peer, of the network, of the links
    table         the state on a terminal, or line by line in a pipe
    snapshot      the state as plain data for the page, with the positions of nodes
    local_server  the page on 127.0.0.1
"""
