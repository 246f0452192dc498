"""Trainers of others as loops, with tiny models made from a config; each where its library is installed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from loops_kit import ring
from torch import nn

import fedgossip
from fedgossip.core.records import PeerRow
from fedgossip.runs.run_directory import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that are not ours

TEXT = torch.arange(512).reshape(16, 32) % 50


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


class Lines(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return len(TEXT)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": TEXT[place], "labels": TEXT[place]}


def logged(run: Run) -> set[str]:
    """Return the names of all logged numbers."""
    return {name for row in run.rows if isinstance(row, PeerRow) for name in row.logged or ()}


def test_a_trainer_of_hugging_face_takes_part_by_one_line(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from fedgossip.loops.transformers import joining  # the name of earlier releases: scripts of users have it

    def run() -> None:
        model = gpt2()
        args = transformers.TrainingArguments(
            str(tmp_path), max_steps=6, per_device_train_batch_size=4, report_to=[], logging_steps=1, use_cpu=True,
            save_strategy="no", disable_tqdm=True, eval_strategy="steps", eval_steps=1,
        )  # fmt: skip
        data = {"train_dataset": Lines(), "eval_dataset": Lines()}
        trainer = transformers.Trainer(model=model, args=args, callbacks=[joining()], **data)
        trainer.train()
        trainer.evaluate()  # after the run

    done = fedgossip.simulate_loop(run, experiment=ring(2))
    assert done.summary["status"] == "finished" and done.summary["rounds"] == 3
    assert logged(done) == {"eval_loss"}


def test_of_a_model_with_lora_adapters_they_travel_alone() -> None:
    peft = pytest.importorskip("peft")

    def run() -> None:
        model = peft.get_peft_model(gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=True))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        peer = fedgossip.join(model, optimizer)
        for _ in range(4):
            model(input_ids=TEXT[:4], labels=TEXT[:4]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            peer.step(examples=4)
        peer.close()

    done = fedgossip.simulate_loop(run, experiment=ring(2))
    assert done.summary["parameters"] == 2 * (16 * 2 + 2 * 48)  # two layers, A and B of each


def test_a_trainer_of_lightning_takes_part_by_one_line(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from fedgossip.drivers.loops.lightning import joining

    class Small(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return (self.layer(batch[0]) ** 2).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_size", self.layer(batch[0]).abs().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 0.1)

    def run() -> None:
        data = torch.utils.data.TensorDataset(torch.ones(32, 4))
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, callbacks=[joining()], accumulate_grad_batches=2,
        )  # fmt: skip
        with warnings.catch_warnings():
            batches, module = torch.utils.data.DataLoader(data, batch_size=4), Small()
            trainer.fit(module, batches, batches)
            trainer.validate(module, batches, verbose=False)  # after the run

    done = fedgossip.simulate_loop(run, experiment=ring(2))
    assert done.summary["status"] == "finished" and done.summary["rounds"] == 4  # 16 batches, 8 steps
    assert logged(done) == {"val_size"}


def test_what_accelerate_has_prepared_joins_as_it_is() -> None:
    accelerate = pytest.importorskip("accelerate")

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.1))
        peer = fedgossip.join(model, optimizer)
        for _ in range(4):
            accelerator.backward(model(torch.ones(3, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
            peer.step()
        peer.close()

    done = fedgossip.simulate_loop(run, experiment=ring(2))
    assert done.summary["status"] == "finished" and done.summary["rounds"] == 2
