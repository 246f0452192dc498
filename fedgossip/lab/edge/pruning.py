"""A model without its smallest weights: whole units of hidden layers removed, or single weights set to zero.

A unit is a row of a linear layer or a channel of a convolution.  Units with the smallest norm of weights are removed,
layer after layer, together with the columns by which the next layer reads them: a smaller model of the same kind, with
a regular name (Li, Kadav, Durdanovic, Samet and Graf, Pruning filters for efficient ConvNets, ICLR 2017).
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import torch

from fedgossip.base.errors import ConfigError
from fedgossip.learning.models import models
from fedgossip.learning.models.architectures import Architecture, ConvolutionalSizes, DenseSizes, architecture
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.one_model.flat import Layout


def structured(model: LoadedModel, share: float) -> LoadedModel:
    """Return the model without `share` of the units of each hidden layer, 0 < share < 1; each layer keeps one at least.

    Raises ConfigError for a model without hidden layers, and for one without a name for its thinner form.
    """
    facts = model.facts
    vocabulary = len(facts.vocabulary) if facts.vocabulary is not None else None
    sized = None if facts.document else architecture(facts.source, facts.shape, facts.outputs, vocabulary)
    source = _thinner(facts.source, sized, share)
    tensors = {name: tensor.detach() for name, tensor in model.module.named_parameters()}
    layers = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    for layer, following in pairwise(layers):
        weight, columns = tensors[f"{layer}.weight"], tensors[f"{following}.weight"]
        keep = _largest(weight.flatten(1).norm(dim=1), kept(len(weight), share))
        tensors[f"{layer}.weight"], tensors[f"{layer}.bias"] = weight[keep], tensors[f"{layer}.bias"][keep]
        by_units = torch.unflatten(columns, 1, (len(weight), -1))  # behind a flattened image a unit has many columns
        tensors[f"{following}.weight"] = by_units[:, keep].flatten(1, 2)
    module = models.build(source, facts.shape, facts.outputs, facts.seed)
    module.load_state_dict(tensors)
    layout = tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items())
    return model.having(module, source=source, layout=layout, schema=Layout.from_module(module).schema)


def zeroed(model: LoadedModel, share: float) -> LoadedModel:
    """Return the model with `share` of the weights of each layer set to zero, those nearest to it; biases stay.

    Raises ConfigError for a model without layers.
    """
    module = deepcopy(model.module)
    weights = [one for one in module.parameters() if one.dim() > 1]
    if not weights:
        raise ConfigError(f"{model.facts.source} has no layers whose weights could be zero", "Leave --prune out.")
    with torch.no_grad():
        for one in weights:
            least = torch.argsort(one.abs().flatten(), stable=True)[: round(share * one.numel())]
            one.view(-1)[least] = 0
    return model.having(module)


def kept(units: int, share: float) -> int:
    """Return the number of units that a layer keeps when `share` of them are removed."""
    return max(1, units - round(share * units))


def _thinner(source: str, sized: Architecture | None, share: float) -> str:
    match sized:
        case DenseSizes((inputs, *hidden, outputs)) if hidden:
            return "mlp:" + "-".join(map(str, [inputs, *(kept(one, share) for one in hidden), outputs]))
        case ConvolutionalSizes(norm=False):
            hidden = [*sized.channels, *sized.sizes[1:-1]]
            return "cnn:" + "-".join(str(kept(one, share)) for one in hidden)
    text = f"{source}: --structured takes units out of mlp and cnn models with hidden layers, without BatchNorm"
    raise ConfigError(text, "Leave --structured out, which makes no file smaller; or train a smaller model.")


def _largest(norms: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places of the `count` largest, in their order; on ties the last."""
    return torch.argsort(norms, stable=True)[len(norms) - count :].sort().values
