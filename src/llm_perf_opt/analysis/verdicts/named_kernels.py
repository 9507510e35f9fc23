"""Fixes that the names of kernels tell where no counters do: fusable ones, products in fp32, products for older GPUs.

Each speaks of the launches without a known roof alone; what counters know better is found in `opportunities.py`. What
could be won is a guess by experience, so that only a large part of the region is worth a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launches import Kind
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.metrics.families import label_of
from llm_perf_opt.metrics.quantity import nanoseconds
from llm_perf_opt.regions.names import short_kernel_name

_LEAST = 0.05  # of the region's time
_PRODUCTS = ("gemm", "convolution")
_TAKEN_ALONG = ("elementwise", "activation", "copy", "rope")  # of the fusable ones, those that only move data
_NAMED = 3
_FIRST_TENSOR_CORES = 7  # compute capability
_NAMES_KEPT = 1 << 15  # all regions of a report ask about the same kernels


def fusable_by_name(of: Evaluated) -> Iterator[Found]:
    """Elementwise kernels that no compiler has fused already."""

    def fits(kind: Kind) -> bool:
        return kind.family in _TAKEN_ALONG and not _has("compiled", kind.kernel_name)

    yield from _found(of, "fuse.elementwise", fits, kind="fusion")


def single_precision(of: Evaluated) -> Iterator[Found]:
    """Products in fp32 on a GPU that has tensor cores."""
    capability = of.facts.numbers.get("compute_capability")
    if capability is None or capability >= _FIRST_TENSOR_CORES:
        yield from _found(of, "gemm.fp32", _is_single)


def old_products(of: Evaluated) -> Iterator[Found]:
    """Products whose kernel was written for an older generation than the GPU is."""
    capability = of.facts.numbers.get("compute_capability")
    if capability is None:
        return

    def fits(kind: Kind) -> bool:
        if kind.family not in _PRODUCTS or _is_single(kind):
            return False
        older = _generation(kind.kernel_name)
        return older is not None and older < capability

    yield from _found(of, "gemm.old_kernel", fits)


def _is_single(kind: Kind) -> bool:
    # cuDNN has kernels of that name that read 16 bits and multiply in fp32.
    return kind.family in _PRODUCTS and _has("fp32", kind.kernel_name) and not _has("short", kind.kernel_name)


@lru_cache(maxsize=_NAMES_KEPT)
def _has(what: str, name: str) -> bool:
    return re.search(verdict_rules().named_kernels[what], name, re.IGNORECASE) is not None


@lru_cache(maxsize=_NAMES_KEPT)
def _generation(name: str) -> int | None:
    """The compute capability a kernel was written for, as far as its name tells."""
    known: dict[str, int] = verdict_rules().named_kernels["generations"]
    return next((major for pattern, major in known.items() if re.search(pattern, name, re.IGNORECASE)), None)


def _found(of: Evaluated, rule: str, fits: Callable[[Kind], bool], kind: str = "kernels") -> Iterator[Found]:
    launches, analysed = of.roofed.launches, of.roofed.analysed.tolist()
    times: dict[str, int] = {}
    families: dict[str, None] = {}
    for row, (one, time) in enumerate(launches.timed_kinds()):
        if not analysed[row] and fits(one):
            times[one.kernel_name] = times.get(one.kernel_name, 0) + time
            families[one.family] = None
    whole = nanoseconds(sum(times.values()))
    won = whole * (verdict_rules().named_kernels["won"][rule] * overlap_scale(of.split))
    if won >= of.light.now * _LEAST:
        longest = sorted(times, key=lambda name: -times[name])[:_NAMED]
        kernels = list(dict.fromkeys(map(short_kernel_name, longest)))
        words = {"families": " + ".join(map(label_of, families))}
        yield Found(rule, kind, whole, won, "+".join(families), words, kernels)
