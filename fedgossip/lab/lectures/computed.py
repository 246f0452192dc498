"""Measures of lectures on arrays only: the parts of an algorithm, with counted bytes, in one process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import CodecTurn, VectorLayout
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.codecs.quantized import BFloat16
from fedgossip.base import seeds
from fedgossip.base.vectors import frozen
from fedgossip.core.timeline import Bar, Timeline
from fedgossip.lab.lectures.trained import MeasuredLecture
from fedgossip.report.page.lectures import Plot, PlottedCurve, Stacks
from fedgossip.report.page.timeline import NamedTimeline

FloatArray = npt.NDArray[np.float64]


def lost_updates(processes: int, rows: int, shares: Sequence[float], steps: int) -> MeasuredLecture:
    """Add 1 to some rows of one array from several processes, without a lock, in the worst order: all read, then all
    write.

    Returns lost_K, the share of additions that the array lacks for the K-th share of rows, and share_K; picture: all,
    with the formula.
    """
    random = seeds.stream(0, "lecture", processes)
    found = list[float]()
    for share in shares:
        shared, touched = np.zeros(rows), round(share * rows)
        for _ in range(steps):
            chosen = [random.choice(rows, touched, replace=False) for _ in range(processes)]
            read = [shared[own] for own in chosen]
            for own, before in zip(chosen, read, strict=True):
                shared[own] = before + 1
        found.append(1 - float(shared.sum()) / (steps * processes * touched))
    line = np.geomspace(min(shares) / 2, 1.0, 60)
    formula = 1 - (1 - (1 - line) ** processes) / (processes * line)
    values = {f"lost_{place}": one for place, one in enumerate(found)}
    values |= {f"share_{place}": one for place, one in enumerate(shares)}
    curves = [PlottedCurve("run", shares, found, points=True), PlottedCurve("formula", list(line), list(formula))]
    return MeasuredLecture(values, Plot("share of the rows that a step writes", "share of updates lost", curves, "xy"))


def sharded_optimiser(processes: int, elements: int, steps: int = 3) -> MeasuredLecture:
    """Train with Adam by data parallelism, and with ZeRO's stages 1, 2 and 3, on float32 arrays of N processes.

    Returns held_STAGE, bytes of a process between its backward pass and its step (stages 0 to 3), sent_STAGE, bytes
    that a process sends in a step by rings, apart, the largest difference of parameters, and p, their bytes.
    """
    held, sent, ends = dict[int, float](), dict[int, float](), list[FloatArray]()
    cut = [slice(k * elements // processes, (k + 1) * elements // processes) for k in range(processes)]
    for stage in range(4):
        model = seeds.stream(0, "model", elements).standard_normal(elements).astype(np.float32)
        first, second = np.zeros_like(model), np.zeros_like(model)
        total = 0.0
        for step in range(1, steps + 1):
            gathers = 2 if stage == 3 else 1  # before the forward and the backward pass, or after the step
            part = model[cut[0]].nbytes
            total += gathers * (processes - 1) * part  # an all-gather of parameters, or the second half of a ring
            gradients = [
                (model * np.float32(0.1) + seeds.stream(rank, "noise", step).standard_normal(elements)).astype(
                    np.float32
                )
                for rank in range(processes)
            ]
            total += (processes - 1) * part  # a reduce-scatter of gradients
            mean = np.stack(gradients).mean(axis=0)
            pieces = cut if stage else [slice(None)]
            for piece in pieces:  # each by its own process
                first[piece] = 0.9 * first[piece] + 0.1 * mean[piece]
                second[piece] = 0.99 * second[piece] + 0.01 * mean[piece] ** 2
                model[piece] -= 0.01 * first[piece] / (np.sqrt(second[piece]) + 1e-8)
        ends.append(model.astype(np.float64))
        own = cut[0]
        arrays = [model[own] if stage >= 3 else model, mean[own] if stage >= 2 else mean]
        arrays += [first[own], second[own]] if stage >= 1 else [first, second]
        held[stage] = float(sum(one.nbytes for one in arrays))
        sent[stage] = total / steps
    names = ["data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3"]
    size = 4.0 * elements
    parts = {
        "parameters": [size, size, size, size / processes],
        "gradients": [size, size, size / processes, size / processes],
        "Adam's two moments": [2 * size, *[2 * size / processes] * 3],
    }
    shown = {part: [value / size for value in values] for part, values in parts.items()}
    values = {f"held_{stage}": one for stage, one in held.items()} | {
        f"sent_{stage}": one for stage, one in sent.items()
    }
    values |= {"p": size, "apart": float(max(np.abs(ends[0] - one).max() for one in ends))}
    return MeasuredLecture(values, Stacks("memory of a process, in sizes of the model", names, shown))


def split_layers(processes: int, rows: int, width: int, inner: int) -> MeasuredLecture:
    """Compute relu(X A) B whole, and with A cut by columns and B by rows over processes, and results summed.

    Returns apart, the largest relative difference, sent, each process's bytes in the ring all-reduce, and share, of its
    multiplications; picture: the largest and summed times.
    """
    from fedgossip.algorithms.collectives.names import COLLECTIVES
    from fedgossip.algorithms.collectives.table import Way

    random = seeds.stream(0, "layers", width)
    x, a, b = (random.standard_normal(shape) for shape in ((rows, width), (width, inner), (inner, width)))
    whole = np.maximum(x @ a, 0) @ b
    columns = np.array_split(np.arange(inner), processes)
    parts = [np.maximum(x @ a[:, own], 0) @ b[own] for own in columns]
    away = np.abs(sum(parts) - whole).max() / np.abs(whole).max()
    table = COLLECTIVES["ring"].table(processes)
    moves = [part for move, part in table.of(0, whole.size) if move.way is Way.SEND]
    sent = 4.0 * sum(part.stop - part.start for part in moves)
    counts = range(1, 17)
    curves = [
        PlottedCurve("multiplications of a process", list(counts), [1 / count for count in counts]),
        PlottedCurve("numbers sent, of one result", list(counts), [2 * (c - 1) / c for c in counts]),
    ]
    values = {"apart": float(away), "sent": sent, "share": len(columns[0]) / inner, "result": 4.0 * whole.size}
    return MeasuredLecture(values, Plot("processes", "share", curves))


def pipelined(stages: int, pieces: int, forward: float = 1.0, backward: float = 2.0) -> MeasuredLecture:
    """Pass pieces of a batch through stages by GPipe's schedule and by 1F1B.

    Returns idle_gpipe and idle_f1b, a stage's idle share, kept_gpipe and kept_f1b, the first stage's maximum number of
    stored pieces; picture: both schedules.
    """
    values, drawn = dict[str, float](), list[NamedTimeline]()
    for name, title in (("gpipe", "GPipe"), ("f1b", "1F1B")):
        bars, end, kept = _scheduled(stages, pieces, forward, backward, early=name == "f1b")
        busy = sum(bar.ended - bar.began for bar in bars)
        values |= {f"idle_{name}": 1 - busy / (stages * end), f"kept_{name}": float(kept)}
        names = [f"stage {stage}" for stage in range(stages)]
        words = {"computing": "forward", "mixing": "backward"}
        drawn.append(NamedTimeline(title, Timeline(stages, list(range(stages)), end, bars), names, words))
    return MeasuredLecture(values, drawn)


def _scheduled(stages: int, pieces: int, forward: float, backward: float, *, early: bool) -> tuple[list[Bar], int, int]:
    """Return the bars of a schedule, its end in ns, and the maximum number of pieces that stage 0 stores.

    Forward passes ahead (`stages` - s at stage s with `early`, else all), then backward and forward passes in turn.
    """
    second = 1_000_000_000
    orders = []
    for stage in range(stages):
        ahead = min(pieces, stages - stage) if early else pieces
        order = [("F", piece) for piece in range(ahead)]
        for piece in range(pieces):
            order.append(("B", piece))
            if ahead + piece < pieces:
                order.append(("F", ahead + piece))
        orders.append(order)
    done: dict[tuple[str, int, int], int] = {}
    free, at, bars = [0] * stages, [0] * stages, list[Bar]()
    kept = most = 0
    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            kind, piece = orders[stage][at[stage]]
            before = ("F", piece, stage - 1) if kind == "F" else ("B", piece, stage + 1)
            if kind == "F" and stage == 0:
                ready = 0
            elif kind == "B" and stage == stages - 1:
                ready = done[("F", piece, stage)]
            elif before in done:
                ready = done[before]
            else:
                continue
            began = max(ready, free[stage])
            ended = began + int((forward if kind == "F" else backward) * second)
            done[(kind, piece, stage)] = free[stage] = ended
            bars.append(Bar(stage, "computing" if kind == "F" else "mixing", began, ended))
            at[stage] += 1
            if stage == 0:
                kept += 1 if kind == "F" else -1
                most = max(most, kept)
    return bars, max(free), most


def ring_attention(processes: int, context: int, width: int) -> MeasuredLecture:
    """Compute attention over a whole context, and over a context divided between processes, with keys and values passed
    around a ring, by online softmax.

    Returns apart, the largest difference, sent, bytes of float32 of a process, and scores, of a block over the whole.
    """
    random = seeds.stream(0, "attention", context)
    q, k, v = (random.standard_normal((context, width)) for _ in range(3))
    whole_scores = q @ k.T / math.sqrt(width)
    weights = np.exp(whole_scores - whole_scores.max(axis=1, keepdims=True))
    whole = weights @ v / weights.sum(axis=1, keepdims=True)
    own = np.array_split(np.arange(context), processes)
    sent, found = 0.0, np.empty_like(whole)
    for rank, rows in enumerate(own):
        top, total, mean = np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros((len(rows), width))
        for step in range(processes):
            block = own[(rank - step) % processes]  # the block received around the ring
            scores = q[rows] @ k[block].T / math.sqrt(width)
            higher = np.maximum(top, scores.max(axis=1))
            shrink, part = np.exp(top - higher), np.exp(scores - higher[:, None])
            mean = mean * shrink[:, None] + part @ v[block]
            total, top = total * shrink + part.sum(axis=1), higher
            if rank == 0 and step < processes - 1:
                sent += 4.0 * 2 * len(block) * width
        found[rows] = mean / total[:, None]
    counts = [1, 2, 4, 8, 16, 32]
    curves = [
        PlottedCurve("stored activations", counts, [1 / count for count in counts]),
        PlottedCurve("one block of scores", counts, [1 / count**2 for count in counts]),
    ]
    values = {"apart": float(np.abs(found - whole).max()), "sent": sent, "scores": scores.size / whole_scores.size}
    return MeasuredLecture(values, Plot("processes", "share of one process", curves, "xy"))


def rounded(elements: int, steps: int) -> MeasuredLecture:
    """Round numbers to bfloat16 and to half precision, and add small steps to a weight in bfloat16 and in float32.

    Returns off_bf16 and off_fp16, the largest relative error, bytes, of bfloat16 over float32, lost, the share of
    gradients between 2^-30 and 2^-20 that half precision rounds to 0, scaled, the same after 2^10, and stuck and
    master, the weight after `steps` steps of 2^-9 from 1.
    """
    random = seeds.stream(0, "numbers", elements)
    numbers = np.ldexp(1 + random.random(elements), random.integers(-8, 8, elements)).astype(np.float32)
    codec, turn = BFloat16(), CodecTurn(0, 0, 1)
    layout = VectorLayout.of(frozen(numbers))
    payload = codec.encode(frozen(numbers), layout, turn)
    back = codec.decoded(payload, layout, turn)
    half = numbers.astype(np.float16).astype(np.float32)
    small = np.exp2(random.uniform(-30, -20, elements)).astype(np.float32)
    one = VectorLayout.of(frozen(np.ones(1, np.float32)))
    weight, master, drawn = np.ones(1, np.float32), np.ones(1, np.float32), list[tuple[float, float]]()
    for _ in range(steps):
        master = master + np.float32(2**-9)
        summed = frozen(weight + np.float32(2**-9))
        weight = codec.decoded(codec.encode(summed, one, turn), one, turn)
        drawn.append((float(weight[0]), float(master[0])))
    values = {
        "off_bf16": float((np.abs(back - numbers) / numbers).max()),
        "off_fp16": float((np.abs(half - numbers) / numbers).max()),
        "bytes": codec.size(layout, 1) / numbers.nbytes,
        "lost": float((small.astype(np.float16) == 0).mean()),
        "scaled": float(((small * 1024).astype(np.float16) == 0).mean()),
        "stuck": drawn[-1][0],
        "master": drawn[-1][1],
    }
    x = list(range(1, steps + 1))
    curves = [PlottedCurve("bfloat16 weight", x, [one for one, _ in drawn])]
    curves.append(PlottedCurve("float32 master weight", x, [one for _, one in drawn]))
    return MeasuredLecture(values, Plot("step", "weight", curves))


def few_bits(elements: int, bits: Sequence[int], block: int) -> MeasuredLecture:
    """Round uniform numbers to 2^bits levels, and a model to eight bits with a scale per block.

    Returns noise_B, the signal to noise ratio in decibel, size, of the eight-bit model over float32, and error, its
    root mean square over a step.
    """
    random = seeds.stream(0, "levels", elements)
    numbers = random.uniform(-1, 1, elements)
    ratios = []
    for count in bits:
        step = 2.0 / 2**count
        levels = (np.floor(numbers / step) + 0.5) * step
        ratios.append(10 * math.log10(float((numbers**2).mean() / ((levels - numbers) ** 2).mean())))
    codec, turn = make_codec(f"int8:{block}"), CodecTurn(0, 0, 1)
    vector = frozen(random.standard_normal(elements).astype(np.float32))
    layout = VectorLayout.of(vector)
    back = codec.decoded(codec.encode(vector, layout, turn), layout, turn)
    starts = np.arange(0, elements, block)
    steps = np.repeat(np.maximum.reduceat(np.abs(vector), starts) / 127, block)[:elements]
    values = {f"noise_{count}": ratio for count, ratio in zip(bits, ratios, strict=True)}
    values |= {"size": codec.size(layout, 1) / vector.nbytes}
    values |= {"error": float(np.sqrt((((back - vector) / steps) ** 2).mean()))}
    curves = [PlottedCurve("run", list(bits), ratios, points=True)]
    curves.append(PlottedCurve("formula", list(bits), [20 * count * math.log10(2) for count in bits]))
    return MeasuredLecture(values, Plot("bits", "signal over noise, dB", curves))


def kept_energy(elements: int, share: float) -> MeasuredLecture:
    """Encode a Gaussian vector by random-k and by top-k; return random_left and top_left, the omitted share of the
    square.
    """
    vector = frozen(seeds.stream(0, "gradient", elements).standard_normal(elements).astype(np.float32))
    layout, turn = VectorLayout.of(vector), CodecTurn(0, 0, 1)
    values, curves = dict[str, float](), list[PlottedCurve]()
    shares = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
    for name in ("random", "top"):
        left = [_measure_left_out(f"{name}-k:{one}", vector, layout, turn) for one in shares]
        values[f"{name}_left"] = _measure_left_out(f"{name}-k:{share}", vector, layout, turn)
        curves.append(PlottedCurve(f"{name}-k", shares, left, points=True))
    curves.append(PlottedCurve("1 - k/d", shares, [1 - one for one in shares]))
    return MeasuredLecture(values, Plot("share of the elements sent", "squared norm left out", curves, "x"))


def _measure_left_out(name: str, vector: npt.NDArray[np.floating], layout: VectorLayout, turn: CodecTurn) -> float:
    codec = make_codec(name)
    back = codec.decoded(codec.encode(frozen(vector), layout, turn), layout, turn)
    kept = back != 0  # nonzero, because random-k scales the kept elements
    return float(((vector * ~kept) ** 2).sum() / (vector**2).sum())
