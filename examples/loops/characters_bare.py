"""Write like a play: a character transformer, gradient accumulation, bfloat16 by autocast.

    python characters.py PLAY [STEPS [BATCHES]]      (without a play: its own source)

BATCHES of eight are one step; the last tenth of the play is kept to measure by.
"""

import sys
from pathlib import Path

import torch
from torch import nn

WIDTH, CONTEXT, BATCH = 64, 64, 8
play = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).read_text()
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
ACCUMULATE = int(sys.argv[3]) if len(sys.argv) > 3 else 4
letters = torch.tensor([min(ord(one), 127) for one in play])
letters, kept = letters[: -len(letters) // 10], letters[-len(letters) // 10 :]


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


def batch(letters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(letters) - CONTEXT - 1, (BATCH,))
    text = torch.stack([letters[at : at + CONTEXT + 1] for at in starts])
    return text[:, :-1], text[:, 1:].flatten()


for _step in range(steps):
    for _ in range(ACCUMULATE):
        text, after = batch(letters)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(text).flatten(0, 1), after)
        (loss / ACCUMULATE).backward()
    optimizer.step()
    optimizer.zero_grad()

torch.manual_seed(1)
with torch.no_grad():
    losses = [nn.functional.cross_entropy(model(text).flatten(0, 1), after) for text, after in map(batch, 64 * [kept])]
print(f"nats per character of what was kept: {torch.stack(losses).mean().item():.4f}")
