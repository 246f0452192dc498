"""Models by name, and the layout of their vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedgossip import simulate
from fedgossip.base.errors import ConfigError
from fedgossip.data.objectives import Objective
from fedgossip.learning.models import models
from fedgossip.learning.models.architectures import architecture
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.losses import Criterion

SOURCES = [
    ("softmax", (64,), None, (3, 10)),
    ("mlp:64-32-10", (64,), None, (3, 10)),
    ("mlp:784-16-10", (1, 28, 28), None, (3, 10)),
    ("cnn:small", (64,), None, (3, 10)),
    ("cnn:small", (1, 28, 28), None, (3, 10)),
    ("cnn:small-bn", (1, 8, 8), None, (3, 10)),
    ("cnn:4-6-12-8", (3, 13, 10), None, (3, 10)),
    ("resnet:8", (3, 12, 12), None, (3, 10)),
    ("resnet:14-gn", (1, 9, 7), None, (3, 10)),
    ("chars:16", (12,), 10, (3, 12, 10)),
    ("gpt:2-16-2", (12,), 10, (3, 12, 10)),
    ("gpt:1-16-2?experts=3&top=2", (12,), 10, (3, 12, 10)),
    ("mlp:64-32-16-10?exit=2", (64,), None, (3, 10)),
    ("cnn:4-6-12?exit=1", (64,), None, (3, 10)),
    ("cnn:4-6-12?exit=3&weight=.5", (1, 13, 10), None, (3, 10)),
]


def example(shape, vocabulary):
    return torch.zeros((3, *shape)) if vocabulary is None else torch.zeros((3, *shape), dtype=torch.int64)


@pytest.mark.parametrize(("source", "shape", "vocabulary", "out"), SOURCES)
def test_every_model_takes_its_data(source, shape, vocabulary, out):
    module = models.build(source, shape, 10, 0, vocabulary)
    assert module.eval()(example(shape, vocabulary)).shape == out


@pytest.mark.parametrize(("source", "shape", "vocabulary", "out"), SOURCES)
def test_first_weights_are_a_function_of_the_seed(source, shape, vocabulary, out):
    before = torch.get_rng_state()
    first, again, other = (models.build(source, shape, 10, seed, vocabulary) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    layout = Layout.from_module(first)
    assert np.array_equal(layout.read(first), layout.read(again))
    assert not np.array_equal(layout.read(first), layout.read(other))


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize(("source", "shape", "vocabulary", "out"), SOURCES)
def test_sizes_alone_give_the_layout_of_the_module(source, shape, vocabulary, out, buffers):
    sized = architecture(source, shape, 10, vocabulary)
    layout = Layout.from_module(models.build(source, shape, 10, 0, vocabulary), buffers)
    assert Layout.from_shapes(sized.parameters, sized.buffers, buffers) == layout


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("mlp:784-32-10", "mlp:64-32-10"),
        ("mlp:64-32-2", "mlp:64-32-10"),
        ("mlp:32", "mlp:64-32-10"),
        ("mlp:64-a-10", "mlp:64-32-10"),
        ("mlp", "mlp:64-32-10"),
        ("softmx", "softmax"),
        ("cnn:smal", "cnn:small"),
        ("cnn:16", "cnn:16-32-64"),
        ("cnn:16-0-64", "cnn:16-32-64"),
        ("cnn:16-32-", "cnn:16-32-64"),
        ("chars:64", "Use softmax"),
        ("gpt:2-64-4", "Use softmax"),
        ("mlp:64-32-10?exist=1", "exit"),
        ("mlp:64-32-16-10?exit=3", "exit=1, up to 2"),
        ("mlp:64-32-10?exit=1&weight=0", "weight=1"),
        ("mlp:64-10?exit=1", "one with a layer more"),
        ("mlp:64-32-10?exit=one", "exit=1"),
        ("cnn:small-bn?exit=1", "cnn:16-32-64"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_one_that_does(source, advice):
    with pytest.raises(ConfigError) as error:
        models.build(source, (64,), 10, 0)
    assert advice in error.value.advice


def test_a_convolution_refuses_a_table():
    with pytest.raises(ConfigError, match="images"):
        models.build("cnn:small", (30,), 2, 0)


def test_the_small_convolutions_are_those_of_16_and_32_channels():
    small, sized = (models.build(source, (64,), 10, 0) for source in ("cnn:small", "cnn:16-32"))
    assert Layout.from_module(small).schema == Layout.from_module(sized).schema


def test_a_model_by_sizes_has_the_parameters_of_its_layers():
    module = models.build("cnn:16-32-180", (64,), 10, 0)
    assert Layout.from_module(module).length == 16 * 10 + 32 * (16 * 9 + 1) + 180 * (32 * 4 + 1) + 10 * 181  # 29 830


def test_text_needs_a_model_of_characters():
    with pytest.raises(ConfigError, match="cannot read text"):
        models.build("softmax", (32,), 60, 0, 60)


def number(shape, classes):
    return 7


def test_a_function_that_gives_no_module_is_refused():
    with pytest.raises(ConfigError, match="gave a int"):
        models.build("tests.learning.test_models:number", (4,), 2, 0)


@pytest.mark.parametrize(
    ("source", "message"), [("tests.learning.test_models:numbr", "no function"), ("no_such_module:f", "no module")]
)
def test_a_function_that_is_not_there_is_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        models.build(source, (4,), 2, 0)


def test_a_vector_written_and_read_is_the_same():
    module = models.build("cnn:small-bn", (64,), 10, 0)
    layout = Layout.from_module(module)
    vector = np.arange(layout.length, dtype=np.float32)
    layout.write(module, vector)
    assert np.array_equal(layout.read(module), vector)
    assert all(parameter.grad_fn is None for parameter in module.parameters())


def test_the_segments_cover_the_vector():
    layout = Layout.from_module(models.build("mlp:64-32-10", (64,), 10, 0))
    assert [one.name for one in layout.segments] == ["layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"]
    assert [one.start for one in layout.segments] == [0, *(one.stop for one in layout.segments[:-1])]
    assert layout.segments[-1].stop == layout.length


def test_schemas_differ_where_averaging_would_have_no_meaning():
    def schema(source, buffers="average"):
        return Layout.from_module(models.build(source, (64,), 10, 0), buffers).schema

    assert schema("softmax") == schema("softmax")
    found = [schema("softmax"), schema("mlp:64-32-10"), schema("mlp:64-10-32-10"), schema("cnn:small-bn")]
    assert len({*found, schema("cnn:small-bn", "local")}) == 5
    assert all(len(one) == 16 for one in found)


def test_frozen_parameters_stay_with_their_module():
    module = models.build("mlp:64-32-10", (64,), 10, 0)
    module.get_submodule("layer1").requires_grad_(False)
    assert Layout.from_module(module).names == ("layer2.weight", "layer2.bias")


def test_a_vector_of_another_length_is_refused():
    module = models.build("softmax", (4,), 2, 0)
    with pytest.raises(ConfigError, match="a vector of 3 elements for a model of 10"):
        Layout.from_module(module).write(module, np.zeros(3, np.float32))


# --- residual networks ------------------------------------------------------------------------------------------------


def test_the_residual_network_of_20_layers_has_the_paper_s_parameters():
    """0.27 million in He, Zhang, Ren and Sun, CVPR 2016, table 6; by hand: convolutions, two per channel of a norm,
    and 64 x 10 + 10."""
    by_hand = 9 * (3 * 16 + 6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2)
    by_hand += 2 * (16 * 7 + 32 * 6 + 64 * 6) + 650
    for source in ("resnet:20", "resnet:20-gn"):
        module = models.build(source, (3, 32, 32), 10, 0)
        assert sum(one.numel() for one in module.parameters()) == by_hand == 269_722
        assert sum(isinstance(part, torch.nn.Conv2d) for part in module.modules()) + 1 == 20


def test_a_shortcut_is_the_block_s_input_halved_and_with_channels_of_zeros():
    block = models.build("resnet:8-gn", (3, 8, 8), 10, 0).stage2[0]
    torch.nn.init.zeros_(block.norm2.weight)
    x = torch.rand(2, 16, 8, 8)
    found = block(x)
    assert torch.equal(found[:, 8:24], x[:, :, ::2, ::2]) and not found[:, :8].any() and not found[:, 24:].any()


@pytest.mark.parametrize("source", ["resnet:21", "resnet:20-ln", "resnet:2", "resnet:", "resnet"])
def test_a_residual_network_of_no_such_depth_is_refused(source):
    with pytest.raises(ConfigError, match=r"6 n \+ 2") as error:
        models.build(source, (3, 32, 32), 10, 0)
    assert error.value.advice == "Write resnet:20 or resnet:20-gn."


@pytest.mark.parametrize("model", ["resnet:20", "resnet:20-gn"])
def test_it_trains_by_d_psgd_on_files_of_the_format_of_cifar(tmp_path, model):
    """Records of a label and 3 x 1024 pixels; the classes differ in their brightness."""
    random = np.random.default_rng(0)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in ("data_batch_1", "test_batch"):
        labels = np.tile(np.arange(10, dtype=np.uint8), 4)
        pixels = random.integers(0, 30, (40, 3072), np.uint8) + 20 * labels[:, None]
        records = np.concatenate([labels[:, None], pixels], 1).astype(np.uint8)
        (tmp_path / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(records.tobytes())
    content = {
        "rounds": 2, "eval": {"every": 2}, "model": {"source": model}, "topology": {"graph": "ring", "n": 3},
        "data": {"source": f"cifar10:{tmp_path}", "test": "own"},
        "train": {"local_steps": 1, "batch_size": 8, "lr": 0.05, "device": "cpu"},
    }  # fmt: skip
    run = simulate(content, engine="stacked")
    first, last = run.network()[0], run.network()[-1]
    assert last.loss is not None and np.isfinite(last.loss) and last.update_spread > 0
    assert last.test_loss != first.test_loss and run.vectors[0].size >= 269_722


def test_an_exit_is_trained_with_the_last_outputs_by_the_weighted_sum_of_both_losses():
    """In eval mode the model is the one without an exit, whose first weights it has."""
    x, y = torch.randn(6, 64, generator=torch.Generator().manual_seed(1)), torch.arange(6)
    module = models.build("mlp:64-32-16-10?exit=1&weight=.25", (64,), 10, 0)
    plain = models.build("mlp:64-32-16-10", (64,), 10, 0)
    h = plain[:3](x)
    by_hand = functional.cross_entropy(plain(x), y) + 0.25 * functional.cross_entropy(module.exit(h), y)
    loss = Criterion(Objective()).mean(module(x), y)
    assert torch.equal(loss, by_hand)
    (ours,) = torch.autograd.grad(loss, module.device.layer1.weight)
    (theirs,) = torch.autograd.grad(by_hand, plain.layer1.weight)
    assert torch.allclose(ours, theirs, atol=1e-7)
    assert torch.equal(module.eval()(x), plain(x))


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("softmax?exit=1", "exit= goes with mlp or cnn alone."),
        ("resnet:8?exit=1", "exit= goes with mlp or cnn alone."),
        ("mlp:64-32-10?experts=4", "experts= goes with gpt alone."),
        ("chars:8?wide=4", "Leave it out: chars takes no options."),
    ],
)
def test_an_option_of_another_model_names_those_that_take_it(source, advice):
    with pytest.raises(ConfigError) as error:
        models.build(source, (1, 8, 8), 10, 0)
    assert error.value.advice == advice
