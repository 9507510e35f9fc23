"""Experts in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from llm_perf_opt.analysis.rules.gains import Gain, above_peak, found_in_kernels, product_of
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched
from llm_perf_opt.regions.columns import Bools, Int64s

# `where` with a condition alone calls nonzero; with values it selects no rows.
_SELECTS = ("aten::nonzero", "aten::index", "aten::index_select", "aten::masked_select")
_PUTS = ("aten::index_add_", "aten::index_put_", "aten::index_copy_", "aten::scatter_add_", "aten::_index_put_impl_")
_FEWEST = 8  # experts that are called one behind the other in a step
_LONGEST = 40  # launches of one expert
_SIZES = 3  # different numbers of rows: layers of a dense model have the same
_MOST_PRODUCTS = 4  # of one expert
_BETWEEN = ("elementwise", "activation", "copy", "embedding")
_CAUSES = ("host.sync", "launch.graph", "copy.host")


def _find(of: Evaluated) -> Iterator[Found]:
    launched = of.launched
    if not launched.ordered:
        return
    selects = launched.fits(lambda kind: kind.under(*_SELECTS))
    puts = launched.fits(lambda kind: kind.under(*_PUTS))
    product = launched.fits(lambda kind: kind.family == "gemm")
    each = launched.scale / launched.instances
    inside, loops = _called(selects, product, puts)
    most = of.light.waiting_ns
    if loops * each < _FEWEST:
        inside, loops = _sliced(launched, product)
        selects = puts = np.zeros_like(inside)
        gaps = launched.host_gaps
        most *= float(gaps.ns[inside].sum()) / gaps.total_ns if gaps is not None and gaps.total_ns else 0.0
    experts = loops * each
    if experts < _FEWEST:
        return
    rows = (selects | puts | product) & inside & of.free.rows
    products = above_peak(of, rows & product, (0.3, 0.1, 0.5))
    waiting = of.free.take_idle(_CAUSES, most)
    idle = sum(part.time_ns for part in waiting)
    around = launched.time(rows & ~product)
    gain = Gain(products.likely + 0.7 * around + idle, 0.6 * (around + idle), products.high + around + idle)
    yield from found_in_kernels(of, "moe.loop", rows, gain, waiting=waiting, experts=f"{experts:.0f}")


def _called(selects: Bools, product: Bools, puts: Bools) -> tuple[Bools, int]:
    """Which launches lie between the selection of an expert's rows and their return, and how many experts there are.

    Rows that are selected, and others put back hundreds of launches later, are something else.
    """
    number = np.arange(len(puts))
    last_select, last_product = (
        np.maximum.accumulate(np.where(rows, number, -1)) if len(number) else number for rows in (selects, product)
    )
    begins, ends = (
        np.flatnonzero(puts & ~other) for other in (np.append(False, puts[:-1]), np.append(puts[1:], False))
    )
    multiplied = last_product[begins]
    selected = np.where(multiplied >= 0, last_select[multiplied], -1)
    before = np.append(-1, ends[:-1])  # the return of the expert before
    fits = (selected > before) & (begins - selected <= _LONGEST)
    inside = np.zeros(len(puts) + 1, dtype=np.int64)
    np.add.at(inside, selected[fits], 1)
    np.add.at(inside, ends[fits] + 1, -1)
    return np.cumsum(inside[:-1]) > 0, int(fits.sum())


def _sliced(launched: Launched, product: Bools) -> tuple[Bools, int]:
    """The same where tokens were sorted by expert before, and each takes a slice: the products of an expert repeat those
    of the one before with other weights of the same shapes, and a number of rows of its own.
    """
    inside = np.zeros(len(launched), dtype=np.bool_)
    other: Int64s = np.cumsum(launched.fits(lambda kind: kind.family not in ("gemm", *_BETWEEN)))
    run: list[tuple[int, int, int]] = []  # of the experts so far: first and last launch, rows
    loops, before = 0, None
    for first, last, rows, shapes in [*_of_one_size(launched, np.flatnonzero(product), other), (0, 0, 0, ())]:
        if shapes and shapes == before and other[first] == other[run[-1][1]]:
            run.append((first, last, rows))
            continue
        if len(run) >= _FEWEST and len({one[2] for one in run}) >= _SIZES:
            inside[run[0][0] : run[-1][1] + 1] = True
            loops += len(run)
        run, before = [(first, last, rows)], shapes
    return inside, loops


def _of_one_size(
    launched: Launched, products: Int64s, other: Int64s
) -> Iterator[tuple[int, int, int, tuple[tuple[int, int], ...]]]:
    """Products one behind the other with as many rows: first and last, rows, and the shapes of their weights."""
    sizes = [product_of(kind) for kind in launched.kinds]
    of_kind = [(0, 0, 0) if one is None or one.batches > 1 else (one.rows, one.columns, one.depth) for one in sizes]
    for (rows, _), group in groupby(products.tolist(), lambda at: (of_kind[launched.which[at]][0], other[at])):
        mine = list(group)
        shapes = tuple(of_kind[launched.which[at]][1:] for at in mine)
        if rows and len(mine) <= _MOST_PRODUCTS:
            yield mine[0], mine[-1], rows, shapes
        else:
            yield mine[0], mine[-1], rows, ()


RULE = Rule(
    id="moe.loop",
    title="Experts run one after another in Python",
    costs="Each expert selects its tokens (the host waits to learn how many), multiplies a few rows, and puts them back.",
    seen="Eight times or more in a step, within 40 launches: rows are selected (nonzero, index), multiplied, and put back (index_add_, index_put_). Or matrix products with weights of the same shapes but varying numbers of rows follow one another, with only elementwise kernels between them, as when experts take slices of sorted tokens.",
    words=Words(
        because="{experts} experts are called one after another, {time} of {now} in their kernels and in waiting between them",
        action="sort tokens by expert and multiply all experts at once (torch.nn.functional.grouped_mm, a fused MoE kernel)",
    ),
    find=_find,
    operators=True,
    gain="The idle time between the experts, most of the time to select rows and put them back, and the time of the products above their roof.",
    before="for e, expert in enumerate(experts):\n    rows = torch.where(chosen == e)[0]\n    out.index_add_(0, rows, expert(x[rows]))",
    after="y = torch.nn.functional.grouped_mm(x[order], weights, offs=ends)",
    unless="There are few experts with many tokens each: one matrix product per expert then fills the GPU.",
)
