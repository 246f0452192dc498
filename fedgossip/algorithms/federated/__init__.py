"""Federated algorithms: one small file each, that reads like its paper."""
