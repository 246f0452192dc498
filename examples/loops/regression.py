"""Predict how a disease progresses: a small network, Adam and a cosine schedule."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

import fedgossip

torch.manual_seed(0)
x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True, scaled=True))
y = ((y - y.mean()) / y.std()).unsqueeze(1)
x, y, test_x, test_y = x[:-80], y[:-80], x[-80:], y[-80:]

model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
peer = fedgossip.join(model, optimizer)
x, y = x[peer.node :: peer.n], y[peer.node :: peer.n]

for _ in range(100):
    batch = torch.randint(len(x), (32,))
    loss = nn.functional.mse_loss(model(x[batch]), y[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    peer.step(examples=len(batch))
peer.close()

model.eval()
with torch.no_grad():
    print(f"explained on the test set: {1 - nn.functional.mse_loss(model(test_x), test_y) / test_y.var():.3f}")
