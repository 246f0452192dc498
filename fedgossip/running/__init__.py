"""Composition: from an experiment to a run, and from a run to a folder that others can read.

compose      the parts: graph, weights, forecast, task, machines
simulated    all peers in this process                    nursery   the warmed parent of local peers
peer         one real peer                                local     all of them as processes of this machine
runs         the run directory and its summary            collect   peers' folders put together
"""
