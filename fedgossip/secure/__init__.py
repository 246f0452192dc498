"""The cryptography of one secure sum, FG-SecAgg/1: the coordinator learns a sum over enough clients, and no more.

    client.py   the client's steps              server.py   the coordinator's
    session.py  what both must agree on         aborts.py   why a session is given up

Pure: no socket, clock or random source; entropy is an argument.  docs/privacy/attacks.md says what is defended and
what is not.

Sources: Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017; Bell et al.,
Secure single-server aggregation with (poly)logarithmic overhead, CCS 2020.
"""
