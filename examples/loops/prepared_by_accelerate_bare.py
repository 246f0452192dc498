"""A loop whose parts Accelerate has prepared: it moves batches, gathers gradients and scales losses."""

import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
x = torch.randn(1024, 4)
x = x[int(os.environ.get("FEDGOSSIP_NODE", "0")) :: int(os.environ.get("FEDGOSSIP_N", "1"))]  # our share
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

print(f"loss of the last batch: {loss.item():.3f}")
