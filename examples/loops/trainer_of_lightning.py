"""A Trainer of Lightning, with a module of a few lines."""

import os

import lightning.pytorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedgossip.drivers.loops.lightning import joining


class Line(lightning.pytorch.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


torch.manual_seed(0)
module, x = Line(), torch.randn(256, 4)
x = x[int(os.environ.get("FEDGOSSIP_NODE", "0")) :: int(os.environ.get("FEDGOSSIP_N", "1"))]  # our share
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
trainer = lightning.pytorch.Trainer(
    max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.callbacks.append(joining())
trainer.fit(module, loader)
print("weights:", [round(weight, 2) for weight in module.layer.weight[0].tolist()])
