"""Which launches of the timeline a kernel name and numbers given by hand select, as ncu would."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.nsight.ncu.replay_modes import RANGE_MODES
from llm_perf_opt.regions.model import KernelRecord
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.spelling import nearest


def no_such_launch(kernels: Sequence[KernelRecord], options: NcuOptions) -> str | None:
    """Why ncu would find no launch of this name and number; None where it would, or where the timeline cannot tell."""
    named = _named(kernels, options)
    if named is None:
        return None
    wanted = options.kernel_name
    if not named:
        plain = (wanted or "").removeprefix("regex:").strip(".*")
        close = nearest(plain, sorted({short_kernel_name(k.kernel_name) for k in kernels}), 3)
        return f"none of the {len({k.kernel_name for k in kernels})} kernels there is called {wanted!r}; nearest: {', '.join(close)}"
    there, skipped = sum(kernel.calls for kernel in named), options.launch_skip or 0
    if skipped < there or not _counts_globally(options):
        return None
    what = f"kernels called {wanted!r} are" if wanted else "kernels are"
    return f"{what} launched {there:,} times there, and launch {skipped + 1:,} was asked for; give a number up to {there:,}"


def picked(kernels: Sequence[KernelRecord], options: NcuOptions) -> int | None:
    """How many launches a name and numbers given by hand select; None where the timeline cannot tell."""
    named = _named(kernels, options)
    if not named or not _counts_globally(options) or options.replay_mode in RANGE_MODES:
        return None
    left = sum(kernel.calls for kernel in named) - (options.launch_skip or 0)
    return left if options.launch_count is None else min(left, options.launch_count)


def _counts_globally(options: NcuOptions) -> bool:
    """Does ncu number all matching launches together?"""
    return options.filter_mode in (None, "global") and options.range_filter is None and options.kernel_id is None


def _named(kernels: Sequence[KernelRecord], options: NcuOptions) -> list[KernelRecord] | None:
    """The kernels a name of the user selects, all of them without one; None where the timeline cannot tell."""
    wanted = options.kernel_name
    if not kernels or options.kernel_name_base == "mangled":
        return None
    if wanted is None:
        return list(kernels)
    base = short_kernel_name if options.kernel_name_base in (None, "function") else str
    if wanted.startswith("regex:"):
        try:
            pattern = re.compile(wanted.removeprefix("regex:"))
        except re.error:
            return None  # ncu's grammar is not Python's; it will say what is wrong with it
        # The short names here are not exactly ncu's, so a pattern may also match the full one.
        return [k for k in kernels if pattern.search(k.kernel_name) or pattern.search(base(k.kernel_name))]
    # The name of a function stands in front of its templates and arguments.
    inside = re.compile(rf"(?:^|[:\s]){re.escape(wanted)}(?:[<(]|$)")
    return [
        k
        for k in kernels
        if wanted in (k.kernel_name, base(k.kernel_name)) or (base is not str and inside.search(k.kernel_name))
    ]
