"""A graph in eight bits without what only its maker reads: its long names, and the same array twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedgossip.data.extras import needed

ROUNDED = ("", "_quantized", "_Transposed_quantized")
"""What onnxruntime adds to the name of a weight that it leaves, rounds, or turns round and rounds."""


def compact(graph: Any, layers: Iterable[str]) -> None:
    """Shorten the names of inner values, keep each constant once, and leave out inner shapes; answers stay the same.

    A model of 20 000 weights has an eighth of its eight-bit file in those words.  `layers` are the names that weights
    keep.  Zero points stay, though a reader would take 0 where there is none: without those of the weights,
    onnxruntime 1.32 fuses no linear layer.  A graph with graphs inside keeps its names: they speak of values outside.
    """
    del graph.graph.value_info[:]
    _once(graph.graph)
    if not any(value.HasField("g") or value.graphs for node in graph.graph.node for value in node.attribute):
        _rename(graph.graph, {name + added: name for name in layers for added in ROUNDED})


def _once(graph: Any) -> None:
    tensors = needed("onnx.numpy_helper", "edge", "a model in eight bits")
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    known: dict[str, str] = {}
    for one in graph.initializer:
        content = (one.data_type, tuple(one.dims), tensors.to_array(one).tobytes())
        known[one.name] = first.setdefault(content, one.name)
    for node in graph.node:
        node.input[:] = [known.get(name, name) for name in node.input]
    kept = [one for one in graph.initializer if known[one.name] == one.name]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _rename(graph: Any, weights: Mapping[str, str]) -> None:
    constants = {one.name for one in graph.initializer}
    short: dict[str, str] = {name: name for name in ("", *(one.name for one in (*graph.input, *graph.output)))}

    def named(name: str) -> str:
        return short.setdefault(name, weights[name] if name in constants & weights.keys() else str(len(short)))

    for one in graph.initializer:
        one.name = named(one.name)
    for node in graph.node:
        node.name = ""
        node.input[:] = [named(name) for name in node.input]
        node.output[:] = [named(name) for name in node.output]
