"""Eight sensors learn to forecast their next reading: a small LSTM in a loop of one's own, which takes part by join().

The partition is natural: every sensor has its own readings, a daily wave with a phase of its own, and noise.  It has
recorded three days, and is tested on the week that follows.
"""

import numpy as np
import torch
from torch import nn

import fedgossip

SENSORS, PAST, DAY = 8, 12, 24


def readings(sensor):
    """Return [hours] of ten days: a wave of the day, its third harmonic, and noise."""
    rng = np.random.default_rng(sensor)
    hours = 2 * np.pi * np.arange(10 * DAY) / DAY + rng.uniform(0, 2 * np.pi)
    wave = np.sin(hours) + 0.5 * np.sin(3 * hours + 1.0)
    return torch.tensor(wave + rng.normal(0, 0.2, len(wave)), dtype=torch.float32)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, past):
        return self.last(self.lstm(past.unsqueeze(2))[0][:, -1]).squeeze(1)


def errors(graph, steps=80):
    """Return each sensor's squared error on its last week, [sensors], after training on its first three days."""
    found = [0.0] * SENSORS

    def loop():
        torch.manual_seed(0)  # all begin with the same weights
        model = Forecaster()
        peer = fedgossip.join(model, optimizer := torch.optim.Adam(model.parameters(), lr=0.02))
        windows = readings(peer.node).unfold(0, PAST + 1, 1)
        mine, later = windows[: 3 * DAY - PAST], windows[3 * DAY :]
        rng = torch.Generator().manual_seed(peer.node)
        for _ in range(steps):
            batch = mine[torch.randint(len(mine), (16,), generator=rng)]
            loss = nn.functional.mse_loss(model(batch[:, :PAST]), batch[:, PAST])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            peer.step(examples=len(batch))
        peer.close()
        with torch.no_grad():
            found[peer.node] = nn.functional.mse_loss(model(later[:, :PAST]), later[:, PAST]).item()

    fedgossip.simulate_loop(loop, SENSORS, graph=graph, overrides=["train.local_steps=5"])
    return np.array(found)


if __name__ == "__main__":
    alone, ring = errors("none"), errors("ring")
    print(f"mean squared error of the next hour, {SENSORS} sensors; noise alone is 0.040")
    print(f"alone {alone.mean():.3f}, worst {alone.max():.3f}")
    print(f"on a ring {ring.mean():.3f}, worst {ring.max():.3f}")
    print(
        f"gain over alone {1 - ring.mean() / alone.mean():.0%}; better at {(ring < alone).sum()} of {SENSORS} sensors"
    )
