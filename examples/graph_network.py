"""Six sites with a graph each and one graph network, in plain torch: alike nodes are linked, and few classes are known.

Every site has a graph of its own (two communities, links mostly within them) with noisy features, and knows the class
of eight nodes.  A graph convolution (Kipf and Welling 2017) is two products: relu(A x W1), then A h W2.
"""

import numpy as np
import torch
from torch import nn

import fedgossip

SITES, NODES, FEATURES, KNOWN = 6, 120, 24, 8


def site_graph(site):
    """Return the normalised adjacency [n, n], features [n, f] and classes [n] of a site."""
    rng, common = np.random.default_rng(site), np.random.default_rng(1000)
    classes = rng.permutation(np.arange(NODES) % 2)
    linked = rng.random((NODES, NODES)) < np.where(classes[:, None] == classes, 0.06, 0.03)
    both = np.triu(linked, 1)
    adjacency = both + both.T + np.eye(NODES)
    degrees = adjacency.sum(1) ** -0.5
    centres = 0.35 * common.normal(size=(2, FEATURES))  # the same at all sites
    x = centres[classes] + rng.normal(size=(NODES, FEATURES))
    tensors = (torch.tensor(each, dtype=torch.float32) for each in (degrees[:, None] * adjacency * degrees, x))
    return *tensors, torch.tensor(classes)


class GraphNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 16), nn.Linear(16, 2)

    def forward(self, adjacency, x):
        return self.second(adjacency @ torch.relu(self.first(adjacency @ x)))


def accuracies(graph, steps=60):
    """Return each site's accuracy on the nodes whose class it does not know, [sites]."""
    found = [0.0] * SITES

    def loop():
        torch.manual_seed(0)  # all begin with the same weights
        model = GraphNetwork()
        peer = fedgossip.join(model, optimizer := torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-3))
        adjacency, x, classes = site_graph(peer.node)
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(adjacency, x)[:KNOWN], classes[:KNOWN])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            peer.step(examples=KNOWN)
        peer.close()
        with torch.no_grad():
            right = model(adjacency, x).argmax(1) == classes
        found[peer.node] = right[KNOWN:].float().mean().item()

    fedgossip.simulate_loop(loop, SITES, graph=graph, overrides=["train.local_steps=5"])
    return np.array(found)


if __name__ == "__main__":
    alone, ring = accuracies("none"), accuracies("ring")
    print(f"accuracy on nodes of unknown class, {SITES} sites with {KNOWN} known ones each")
    print(f"alone {alone.mean():.3f}, worst {alone.min():.3f}")
    print(f"on a ring {ring.mean():.3f}, worst {ring.min():.3f}")
    print(f"gain over alone {ring.mean() - alone.mean():+.3f}")
