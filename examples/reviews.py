"""Four shops learn to tell good reviews from bad ones: a small BERT and the Trainer of transformers, by one callback.

The reviews are drawn here.  Each shop's customers have words of their own for good and bad, and few of the others';
all are tested on reviews with the words of all shops.  Needs `pip install 'fedgossip[transformers]'`.
"""

import os
import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

import fedgossip
from fedgossip.drivers.loops.transformers import joining

SHOPS, LENGTH, WORDS = 4, 8, 12
NEUTRAL = range(1, 41)
"""Ids of words without an opinion; 0 is the end of a review."""


def opinions(shop, good):
    """Return the ids of a shop's words for good, or for bad."""
    first = 41 + (2 * shop + good) * WORDS
    return np.arange(first, first + WORDS)


def reviews(shop, count, seed, foreign):
    """Return reviews as examples of a Trainer; a share `foreign` of them has the words of any shop."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        good = int(rng.integers(2))
        spoken = int(rng.integers(SHOPS)) if rng.random() < foreign else shop
        words = rng.choice(NEUTRAL, LENGTH)
        words[rng.integers(LENGTH)] = rng.choice(opinions(spoken, good))
        found.append({"input_ids": torch.tensor(words), "labels": torch.tensor(good)})
    return found


def accuracies(graph):
    """Return each shop's accuracy on reviews with the words of all, [shops]."""
    found, tested = np.zeros(SHOPS), reviews(0, 400, 99, foreign=1.0)
    words = torch.stack([one["input_ids"] for one in tested])
    labels = torch.stack([one["labels"] for one in tested])

    def loop():
        torch.manual_seed(0)  # all begin with the same weights
        size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        model = BertForSequenceClassification(BertConfig(vocab_size=41 + 2 * SHOPS * WORDS, **size))
        with tempfile.TemporaryDirectory() as folder:
            chosen = {"max_steps": 120, "per_device_train_batch_size": 16, "learning_rate": 3e-3, "use_cpu": True}
            quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no"}
            settings = TrainingArguments(folder, **chosen, **quiet)
            shop = int(os.environ["FEDGOSSIP_NODE"])
            trainer = Trainer(model, settings, train_dataset=reviews(shop, 300, shop, 0.05), callbacks=[joining()])
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        with torch.no_grad():
            found[shop] = (model.eval()(words).logits.argmax(1) == labels).float().mean()

    fedgossip.simulate_loop(loop, SHOPS, graph=graph, overrides=["train.local_steps=5"])
    return found


if __name__ == "__main__":
    alone, together = accuracies("none"), accuracies("complete")
    print(f"share of reviews with the words of all {SHOPS} shops that is judged right")
    print(f"alone {alone.mean():.3f}, worst {alone.min():.3f}")
    print(f"together {together.mean():.3f}, worst {together.min():.3f}")
    print(
        f"gain over alone {together.mean() - alone.mean():.0%}; better at {(together > alone).sum()} of {SHOPS} shops"
    )
