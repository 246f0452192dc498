"""Where training happens: a CUDA GPU, Apple's GPU, or the CPU."""

from __future__ import annotations

import torch

from fedgossip.errors import ConfigError


def device_for(name: str) -> torch.device:
    """Return the device that `name` means here; "auto" is the first of cuda, mps and cpu."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, ready in there.items() if ready))
    if not there[name]:
        raise ConfigError(f"device = {name!r}, but torch finds none here", 'Use "auto" or "cpu".')
    return torch.device(name)


def describe(device: torch.device) -> str:
    """Return the device's name, for people."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return {"mps": "Apple's GPU", "cpu": "the CPU: no GPU was found"}[device.type]
