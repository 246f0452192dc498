"""Membership: peers that join, leave and fail while a run goes on."""
