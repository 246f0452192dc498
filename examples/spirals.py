"""Data and a model of one's own, for 06_your_own_model_and_data.py: three spirals, cut into pieces along their arms."""

import numpy as np
import torch

PIECES = 6


def points() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x [m, 2], the arm y [m] of each point, and the piece of the arm that it lies on (its natural owner)."""
    random = np.random.default_rng(0)
    arm, along = np.repeat([0, 1, 2], 400), np.tile(np.linspace(0, 1, 400, endpoint=False), 3)
    angle = 2 * np.pi * arm / 3 + 4.0 * along + random.normal(0, 0.1, arm.size)
    radius = 0.2 + 1.8 * along
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return x, arm, (along * PIECES).astype(int)


def network(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """Return any torch module; its first weights follow from the experiment's seed."""
    (features,) = shape
    return torch.nn.Sequential(
        torch.nn.Linear(features, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, classes),
    )
