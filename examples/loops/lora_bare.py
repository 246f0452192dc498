"""Adapt a language model by LoRA: the base is frozen, and only small matrices beside it learn.

The model is a GPT-2 of two layers made here; one of your own comes by `from_pretrained`.
"""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True))
letters = torch.tensor([min(ord(one), 127) for one in Path(__file__).read_text()])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)

for _ in range(20):
    starts = torch.randint(len(letters) - 32, (8,))
    text = torch.stack([letters[at : at + 32] for at in starts])
    loss = model(input_ids=text, labels=text).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

print(f"loss of the last batch: {loss.item():.3f}")
