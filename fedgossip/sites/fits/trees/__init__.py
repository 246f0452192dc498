"""Boosted trees of all sites' records, grown from sums of gradients over bins.

It imports `data.agreed`, `learning.models` and `secure`.  A round is a level of a tree (`tree_sums`): the ensemble goes
to the sites, their sums return, and the coordinator chooses the splits.
"""
