"""Addresses, reachability, and relays for peers that cannot be dialled."""
