"""What a fix would gain, from what kernels would take at the roof of the GPU, each with an interval.

Nobody reaches a printed peak: the parts of it that good kernels reach are below. Where neither counters nor shapes say
what a kernel does, a rule has to guess; the interval is wide then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from attrs import define

from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.idle_causes import IdlePart
from llm_perf_opt.analysis.verdicts.launched import LaunchKind
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.metrics.data_types import types_of_name
from llm_perf_opt.metrics.families import label_of
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import nanoseconds
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.regions.names import short_kernel_name

LEAST = 0.05  # of the region's time: less is not worth a word of a rule that rests on names or shapes
PRODUCTS = ("gemm", "convolution")
_NAMED = 3
_TENSOR = (0.55, 0.70, 0.85)  # of the printed peak of the tensor cores: few, most, the best kernels
_MEMORY = (0.75, 0.85, 0.95)  # of the printed bandwidth
_ON_TENSOR_CORES = {"fp32": "tf32"}
_NAMES_KEPT = 1 << 15  # all regions of a report ask about the same kernels


@define(frozen=True)
class Gain:
    """Nanoseconds of all steady instances."""

    likely: float
    low: float
    high: float

    @staticmethod
    def certain(ns: float, around: float = 0.1) -> Gain:
        return Gain(ns, ns * (1 - around), ns * (1 + around))


@lru_cache(maxsize=_NAMES_KEPT)
def named(what: str, name: str) -> bool:
    """Does the name of a kernel fit a pattern of `[named_kernels]`?"""
    return re.search(verdict_rules().named_kernels[what], name, re.IGNORECASE) is not None


@lru_cache(maxsize=_NAMES_KEPT)
def generation_of(name: str) -> int | None:
    """The compute capability a kernel was written for, as far as its name tells."""
    known: dict[str, int] = verdict_rules().named_kernels["generations"]
    return next((major for pattern, major in known.items() if re.search(pattern, name, re.IGNORECASE)), None)


@define(frozen=True)
class Product:
    """A matrix product by its shapes: batches of rows x columns, summed over `depth`."""

    batches: int
    rows: int
    columns: int
    depth: int
    dtype: str
    bytes_per_value: int

    @property
    def flops(self) -> float:
        return 2.0 * self.batches * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> float:
        values = self.rows * self.depth + self.depth * self.columns + self.rows * self.columns
        return float(self.batches * values * self.bytes_per_value)


_OPERANDS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
    "aten::_int_mm": 0,
}


def product_of(kind: LaunchKind) -> Product | None:
    """What a product multiplies, where its operator says so."""
    first = _OPERANDS.get(kind.operators[-1]) if kind.operators else None
    operands = kind.inputs[first : first + 2] if first is not None else ()
    if len(operands) != 2 or operands[0] is None or operands[1] is None or operands[0].bytes is None:
        return None
    left, right = operands[0].dims, operands[1].dims
    if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
        return None
    batches = left[0] if len(left) == 3 else 1
    size = (operands[0].bytes or 0) // max(operands[0].elements, 1)
    return Product(batches, left[-2], right[-1], left[-1], operands[0].dtype, size)


def flops_of(kind: LaunchKind) -> float | None:
    """Of a product, where its shapes are known."""
    product = product_of(kind)
    return None if product is None else product.flops


def bytes_of(kind: LaunchKind) -> float | None:
    """What a product has to read and write, where its shapes are known."""
    product = product_of(kind)
    return None if product is None else product.bytes


def at_peak(gpu: GpuHardware | None, flops: float, dtype: str, bytes_moved: float) -> Gain | None:
    """What work takes at best (`low`), likely and at worst (`high`) in ns; None where the peaks are not known."""
    peak = gpu.peaks.get(f"tensor_{_ON_TENSOR_CORES.get(dtype, dtype)}") if gpu else None
    if gpu is None or gpu.bandwidth is None or (flops and peak is None):
        return None
    compute = flops / peak.of("FLOP/s") * 1e9 if flops and peak else 0.0
    memory = bytes_moved / gpu.bandwidth.of("B/s") * 1e9
    slow, usual, fast = (max(compute / t, memory / m) for t, m in zip(_TENSOR, _MEMORY, strict=True))
    return Gain(usual, fast, slow)


def above_peak(of: Evaluated, rows: Bools, guess: tuple[float, float, float], dtype: str = "") -> Gain:
    """What products of some rows take beyond a good kernel. `guess`: the same as parts of their time, where unknown.

    `dtype`: the type that they should have; as it is where none is given.
    """
    if not rows.any():
        return Gain(0.0, 0.0, 0.0)
    launched, counted = of.launched, of.roofed.parts_above
    time = np.bincount(launched.which[rows], weights=launched.time_ns[rows], minlength=len(launched.kinds))
    calls = np.bincount(launched.which[rows], weights=launched.calls[rows], minlength=len(launched.kinds))
    sums = [0.0, 0.0, 0.0]
    for number in np.flatnonzero(time).tolist():
        kind, now, product = launched.kinds[number], time[number], product_of(launched.kinds[number])
        best = None
        if product is not None:
            best = at_peak(of.gpu, product.flops, dtype or product.dtype, product.bytes)
        if best is not None:
            parts = [max(now - one * calls[number], 0.0) for one in (best.likely, best.high, best.low)]
        elif kind.kernel in counted:
            parts = [now * counted[kind.kernel]] * 3
        else:
            parts = [now * part for part in guess]
        sums = [total + part for total, part in zip(sums, parts, strict=True)]
    return Gain(*(value * launched.scale for value in sums))


def found_in_kernels(
    of: Evaluated,
    rule: str,
    rows: Bools,
    gain: Gain,
    *,
    kind: str = "kernels",
    least: float = LEAST,
    waiting: Sequence[IdlePart] = (),
    texts: str = "",
    **words: str,
) -> Iterator[Found]:
    """The finding of a rule about the kernels of some rows, where it is worth a word; they are taken then.

    `waiting`: idle time that has the same cause, and is part of `gain`.
    """
    scale, launched = overlap_scale(of.split), of.launched
    if gain.likely * scale < least * of.light.now.of("ns"):
        return
    of.free.rows &= ~rows
    times: dict[LaunchKind, float] = {}
    for number, time in enumerate(np.bincount(launched.which[rows], weights=launched.time_ns[rows]).tolist()):
        if time:
            times[launched.kinds[number]] = time
    longest = sorted(times, key=lambda one: -times[one])
    families = list(dict.fromkeys(one.family for one in longest))
    yield Found(
        rule,
        kind,
        nanoseconds(launched.time(rows) + sum(part.time_ns for part in waiting)),
        nanoseconds(gain.likely * scale),
        family="+".join(families),
        words={"families": family_names(families), **words},
        kernels=list(dict.fromkeys(short_kernel_name(one.kernel) for one in longest))[:_NAMED],
        texts=texts,
        interval=(nanoseconds(gain.low * scale), nanoseconds(gain.high * scale)),
        rows=rows,
        idle=waiting,
    )


def family_names(families: Sequence[str]) -> str:
    return " + ".join(label_of(family) for family in families[:3]) + (" + others" if len(families) > 3 else "")


def unclaimed(of: Evaluated, test: Callable[[LaunchKind], bool]) -> Bools:
    """Rows that no rule has spoken for, of kinds that pass a test."""
    return of.launched.fits(test) & of.free.rows


def kernel_type(kind: LaunchKind) -> str:
    """The data type of a product, by its operator or its name; "" where neither says."""
    product = product_of(kind)
    return product.dtype if product else next(iter(types_of_name(kind.kernel)), "")
