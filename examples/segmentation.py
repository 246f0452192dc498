"""Four clinics learn to segment pictures by a small U-Net, in a loop of one's own.

The pictures are synthetic: a shape on a noisy background.  Every clinic has six of one shape, and is tested on all
four by the overlap (Dice: twice the common pixels over the sum of both) of what it marks with what is there.
"""

import numpy as np
import torch
from torch import nn

import fedgossip

SIDE, PICTURES = 16, 6
SHAPES = {  # by the distances down and right of the centre
    "disc": lambda down, right: down**2 + right**2 < 16,
    "square": lambda down, right: np.maximum(abs(down), abs(right)) < 4,
    "ring": lambda down, right: abs(down**2 + right**2 - 20) < 10,
    "cross": lambda down, right: (np.minimum(abs(down), abs(right)) < 1.5) & (np.maximum(abs(down), abs(right)) < 5),
}


def pictures(shape, count, seed):
    """Return pictures [count, 1, side, side], and their pixels of the shape as 0 and 1 in the same form."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(5, SIDE - 5, size=(2, count, 1, 1))
    marked = SHAPES[shape](*(np.mgrid[:SIDE, :SIDE][:, None] - centres))
    x = marked + rng.normal(0, 0.7, marked.shape)
    return tuple(torch.tensor(each, dtype=torch.float32).unsqueeze(1) for each in (x, marked))


class UNet(nn.Module):
    """One step down and one up, with the features of the upper level beside those from below."""

    def __init__(self):
        super().__init__()
        self.down, self.below = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.last = nn.Conv2d(24, 8, 3, padding=1), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        upper = torch.relu(self.down(x))
        lower = torch.relu(self.below(nn.functional.max_pool2d(upper, 2)))
        both = torch.cat([upper, nn.functional.interpolate(lower, scale_factor=2)], dim=1)
        return self.last(torch.relu(self.up(both)))


def overlaps(graph, steps=100):
    """Return each clinic's Dice on twenty new pictures of every shape, [clinics]."""
    found = [0.0] * len(SHAPES)
    new = [torch.cat(each) for each in zip(*(pictures(one, 20, 100 + i) for i, one in enumerate(SHAPES)), strict=True)]

    def loop():
        torch.manual_seed(0)  # all begin with the same weights
        model = UNet()
        peer = fedgossip.join(model, optimizer := torch.optim.Adam(model.parameters(), lr=0.01))
        x, marked = pictures(list(SHAPES)[peer.node], PICTURES, peer.node)
        for _ in range(steps):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), marked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            peer.step(examples=len(x))
        peer.close()
        with torch.no_grad():
            seen = (model(new[0]) > 0).float()
        found[peer.node] = (2 * (seen * new[1]).sum() / (seen + new[1]).sum()).item()

    fedgossip.simulate_loop(loop, len(SHAPES), graph=graph, overrides=["train.local_steps=2"])
    return np.array(found)


if __name__ == "__main__":
    alone, ring = overlaps("none"), overlaps("ring")
    print(f"Dice on all shapes, {len(SHAPES)} clinics with {PICTURES} pictures of one shape each")
    print(f"alone {alone.mean():.3f}, worst {alone.min():.3f}")
    print(f"on a ring {ring.mean():.3f}, worst {ring.min():.3f}")
    print(f"gain over alone {ring.mean() - alone.mean():+.3f}")
