"""A candidate for a GPU: kernels that read each row of a stack once, beside the operations that the framework takes.

    python benchmarks/row_kernels.py [--nodes 1000,10000] [--columns 10240,1440,800] [--turns 5] [--interpret]

This is a candidate that has NOT BEEN MEASURED: no GPU has run it.  Its kernels have been compiled for GPUs of compute
capability 8.0 and 9.0, and their bits compared in Triton's interpreter.  No run uses them.

    mixing      out_i = sum_j w_ij x_j on a random 4-regular graph, beside `DeviceMixing`
    leaving     t_i <- x_i + (t_i - x_i), and whether all of t_i - x_i is finite, beside the lines of `DeviceStack`

Their bits are compared with the framework's first; one that differs ends the benchmark with exit code 1.  --columns are
the numbers of a row: about those of the two layers of MLP 64-128-10, and of softmax.  Times are of one call of CALLS in
a CUDA graph, as a round of the framework is one: medians of turns, by CUDA events.  A ratio is the framework's time by
that of (columns of a program, warps, terms added without a look for more): above 1 the kernel is the quicker one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from crew import machine, median

from fedgossip.base.vectors import RowGroups
from fedgossip.learning.many_nodes.device_stack import DeviceMixing
from fedgossip.learning.one_model.captured_steps import capture_on
from fedgossip.topology import build, resolve

try:
    import triton
    import triton.language as tl
except ImportError:  # torch's builds for CUDA bring it along
    triton = None

CALLS = 20
"""Calls in a CUDA graph."""

Work = Callable[[], Any]


class Variant(NamedTuple):
    """How a kernel is divided: columns of a program, warps, terms behind the first added without a look for more."""

    block: int
    warps: int
    more: int = 0


LEAVING = [Variant(b, w) for b in (256, 512, 1024, 2048, 4096) for w in (1, 2, 4, 8) if 8 <= b // (32 * w) <= 32]
MIXING = [*(each._replace(more=4) for each in LEAVING), Variant(1024, 2, 1)]


def mix_rows(
    x: tl.tensor,
    out: tl.tensor,
    begins: tl.tensor,
    ids: tl.tensor,
    w: tl.tensor,
    n: tl.tensor,
    columns: tl.tensor,
    MORE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A block of columns of a row; all rows of a block come one after the other, so that a GPU's cache holds them.

    `x` and `out` are [n, columns]; row i has the terms begins[i] to begins[i + 1] - 1 of `ids` and `w`.
    """
    program = tl.program_id(0)
    row, first = (program % n).to(tl.int64), (program // n).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    here, inside = x + first + lanes, lanes < columns - first
    at, end = tl.load(begins + row), tl.load(begins + row + 1)
    # the first is not added to 0: that would change the sign of a zero
    total = tl.load(w + at) * tl.load(here + tl.load(ids + at) * columns, mask=inside)
    at += 1
    while at + MORE <= end:
        for place in tl.static_range(MORE):
            term = at + place
            total += tl.load(w + term) * tl.load(here + tl.load(ids + term) * columns, mask=inside)
        at += MORE
    while at < end:
        total += tl.load(w + at) * tl.load(here + tl.load(ids + at) * columns, mask=inside)
        at += 1
    tl.store(out + row * columns + first + lanes, total, mask=inside)


def leave_rows(
    trained: tl.tensor, given: tl.tensor, finite: tl.tensor, columns: tl.tensor, blocks: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """A block of columns of a row of `trained` and `given` [n, columns]; `finite` [n] holds ones beforehand."""
    program = tl.program_id(0)
    row, first = (program // blocks).to(tl.int64), (program % blocks).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    here, inside = row * columns + first + lanes, lanes < columns - first
    before = tl.load(given + here, mask=inside, other=0.0)
    change = tl.load(trained + here, mask=inside, other=0.0) - before
    tl.store(trained + here, before + change, mask=inside)
    unknown = (change - change) != 0  # of an infinite number, and of one that is none
    tl.store(finite + row + lanes * 0, (lanes * 0).to(tl.int8), mask=inside & unknown)


class Kernels:
    """Both kernels.  Without fusion products and sums are mul.rn and add.rn of PTX, which no compiler may join."""

    def __init__(self) -> None:
        # columns alone are specialised: of a multiple of 16, whole pieces of 16 bytes are read
        self._mix = triton.jit(mix_rows, do_not_specialize=["n"])
        self._leave = triton.jit(leave_rows, do_not_specialize=["blocks"])

    def mix(self, source: torch.Tensor, out: torch.Tensor, terms: Sequence[torch.Tensor], variant: Variant) -> None:
        n, columns = source.shape
        how: Any = {"MORE": variant.more, "BLOCK": variant.block, "num_warps": variant.warps}
        self._mix[n * -(-columns // variant.block),](source, out, *terms, n, columns, **how, enable_fp_fusion=False)

    def leave(self, trained: torch.Tensor, given: torch.Tensor, finite: torch.Tensor, variant: Variant) -> None:
        finite.fill_(True)
        n, columns = trained.shape
        blocks = -(-columns // variant.block)
        how: Any = {"BLOCK": variant.block, "num_warps": variant.warps, "enable_fp_fusion": False}
        self._leave[n * blocks,](trained, given, finite.view(torch.int8), columns, blocks, **how)


def terms_of(groups: RowGroups, n: int, device: torch.device) -> list[torch.Tensor]:
    """Return where each row's terms begin [n + 1], and the `ids` and `weights` of all, one row after the other."""
    rows = {node: row for nodes, *terms in groups for node, *row in zip(nodes, *terms, strict=True)}
    begins = np.cumsum([0, *(len(rows[node][0]) for node in range(n))])
    ids, weights = (np.concatenate([rows[node][part] for node in range(n)]) for part in (0, 1))
    return [torch.from_numpy(one).to(device) for one in (begins, ids.astype(np.int64), weights.astype(np.float32))]


def leave_by_operations(trained: torch.Tensor, given: torch.Tensor, finite: torch.Tensor) -> None:
    """Do what `DeviceStack` does when nodes have trained."""
    sums = torch.zeros(len(finite), device=finite.device).add_(trained.sub_(given).sum(1))
    trained.add_(given)
    finite.copy_(torch.isfinite(sums))


def require_equal(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Raise SystemExit where two tensors have not the same bits."""
    if not torch.equal(found.contiguous().view(torch.int8), expected.contiguous().view(torch.int8)):
        raise SystemExit(f"{what}: the kernel has other bits than the framework")


def compare_small(kernels: Kernels, device: torch.device, mixing: list[Variant], leaving: list[Variant]) -> None:
    """Compare the bits of small stacks, with subnormal numbers, zeros below 0, and rows that are not finite."""
    n, random = 12, np.random.default_rng(0)
    for columns in (1, 37, 272, 1025):
        rows, given = (torch.from_numpy(random.standard_normal((n, columns), np.float32)).to(device) for _ in range(2))
        rows[:, 0] *= 1e-39
        rows[3:, -1] = -0.0
        for graph in ("regular:4", "path", "star", "complete"):  # whose rows all weigh alike, or each otherwise
            groups = build(resolve(graph, n, seed=0), "metropolis").rows_by_degree()
            plain, terms = DeviceMixing(groups, n, device), terms_of(groups, n, device)
            scaled, expected = rows.clone(), torch.empty_like(rows)
            plain.scale([scaled])
            plain.mix([scaled], [expected], n)
            for variant in mixing:
                found = torch.full_like(rows, torch.nan)
                kernels.mix(rows, found, terms, variant)
                require_equal(found, expected, f"mixing on {graph}, {columns} columns, {variant}")
        rows[2, -1], rows[4, 0], given[5, 0] = torch.inf, torch.nan, -torch.inf
        left, finite = rows.clone(), torch.zeros(n, dtype=torch.bool, device=device)
        leave_by_operations(left, given, finite)
        for variant in leaving:
            found, seen = rows.clone(), torch.zeros_like(finite)
            kernels.leave(found, given, seen, variant)
            require_equal(seen, finite, f"what is finite, {columns} columns, {variant}")
            require_equal(found[finite], left[finite], f"leaving, {columns} columns, {variant}")


def in_turns(ways: Mapping[Any, Work], device: torch.device, turns: int) -> dict[Any, float]:
    """Return the microseconds of a call of each, which has been called before."""
    capture = capture_on(device)
    assert capture is not None
    replays = {name: capture(lambda way=way: [way() for _ in range(CALLS)]) for name, way in ways.items()}
    found: dict[Any, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 1):  # the first warms up
        for name, replay in replays.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) * 1e3 / CALLS)
    return {name: median(us[1:]) for name, us in found.items()}


def measure(kernels: Kernels, n: int, columns: int, turns: int) -> None:
    """Compare the bits of n rows, then print what mixing them takes, and what leaving does."""
    device = torch.device("cuda")
    groups = build(resolve("regular:4", n, seed=0), "metropolis").rows_by_degree()
    plain, terms = DeviceMixing(groups, n, device), terms_of(groups, n, device)
    rows, given = (torch.randn(n, columns, device=device) for _ in range(2))
    copied, mixed, found = rows.clone(), torch.empty_like(rows), torch.empty_like(rows)
    finite = torch.zeros(n, dtype=torch.bool, device=device)

    def mix() -> None:
        plain.scale([copied])
        plain.mix([copied], [mixed], n)

    def compare(what: str, framework: Work, expected: torch.Tensor, ways: dict[Variant, Work]) -> None:
        framework()
        for variant, way in ways.items():
            found.copy_(rows)
            way()
            require_equal(found, expected, f"{what} {n} x {columns}, {variant}")
        us = in_turns({"": framework, "copy": lambda: found.copy_(rows), **ways}, device, turns)
        print(f"{what} {n} x {columns}: framework {us['']:.4g} us, a copy of the rows {us['copy']:.4g} us; ratios:")
        print(" ", "  ".join(f"{us[''] / us[each]:.2f} {tuple(each)}" for each in sorted(ways, key=us.__getitem__)))

    compare("mixing", mix, mixed, {each: partial(kernels.mix, rows, found, terms, each) for each in MIXING})
    copied.copy_(rows)
    leave = partial(leave_by_operations, copied, given, finite)
    compare("leaving", leave, copied, {each: partial(kernels.leave, found, given, finite, each) for each in LEAVING})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1000,10000")
    parser.add_argument("--columns", default="10240,1440,800")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--interpret", action="store_true", help="only compare bits: needs Triton, but no GPU")
    options = parser.parse_args()
    if triton is None or not (options.interpret or torch.cuda.is_available()):
        print("Nothing was measured: this needs Triton and a CUDA GPU, or with --interpret Triton alone.")
        return
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        with np.errstate(invalid="ignore"):  # of what is not finite, as quiet as on a GPU
            compare_small(Kernels(), torch.device("cpu"), MIXING, LEAVING)
        print(f"Small stacks have the framework's bits in the interpreter of Triton {triton.__version__}.")
        return
    print(f"{machine()}\n{torch.cuda.get_device_name()}; torch {torch.__version__}, Triton {triton.__version__}")
    kernels = Kernels()
    compare_small(kernels, torch.device("cuda"), MIXING[:1], LEAVING[:1])
    for n in map(int, options.nodes.split(",")):
        for columns in map(int, options.columns.split(",")):
            measure(kernels, n, columns, options.turns)


if __name__ == "__main__":
    main()
