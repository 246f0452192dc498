"""Write like a play: a character transformer, gradient accumulation, bfloat16 by autocast.

    python characters.py PLAY [STEPS]            (without a play: its own source)
"""

import sys
from pathlib import Path

import torch
from torch import nn

WIDTH, CONTEXT, BATCH, ACCUMULATE = 64, 64, 8, 4
play = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).read_text()
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
letters = torch.tensor([min(ord(one), 127) for one in play])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.out(self.layers(self.letter(text) + self.place.weight[: text.shape[1]], mask, is_causal=True))


torch.manual_seed(0)
model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _step in range(steps):
    for _ in range(ACCUMULATE):
        starts = torch.randint(len(letters) - CONTEXT - 1, (BATCH,))
        text = torch.stack([letters[at : at + CONTEXT + 1] for at in starts])
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        (loss / ACCUMULATE).backward()
    optimizer.step()
    optimizer.zero_grad()

print(f"bits per character in the last batch: {loss.item() / 0.6931:.2f}")
