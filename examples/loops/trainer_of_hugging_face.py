"""A Trainer of Hugging Face, with a GPT-2 of two layers that is made here."""

import os
from pathlib import Path
from tempfile import mkdtemp

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from fedgossip.drivers.loops.transformers import joining

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=2, n_head=2))
text = Path(__file__).read_text()
letters = torch.tensor([min(ord(one), 127) for one in text])
parts = [letters[at : at + 32] for at in range(0, len(text) - 32, 16)]
lines = [{"input_ids": part, "labels": part} for part in parts]
lines = lines[int(os.environ.get("FEDGOSSIP_NODE", "0")) :: int(os.environ.get("FEDGOSSIP_N", "1"))]  # our share

arguments = TrainingArguments(
    mkdtemp(), max_steps=20, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2,
    lr_scheduler_type="cosine", report_to=[], logging_steps=5, save_strategy="no", disable_tqdm=True, use_cpu=True,
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=lines)
trainer.add_callback(joining())
done = trainer.train()
print(f"loss: {done.training_loss:.3f}")
