"""Things both kinds of report need: which regions are kept, how ncu selects them, kernel records, sections."""

from __future__ import annotations

from collections import Counter
from typing import Any

from llm_perf_opt.analysis.sample_matrix import Samples
from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.regions.model import KernelRecord, MetricValue
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import RegionFilter, exact_expression
from llm_perf_opt.regions.table import ROOT, RegionTable


def ncu_expressions(table: RegionTable) -> list[str]:
    """For every region the shortest ncu expression that selects it and no other region; empty where there is none.

    ncu looks at the first place of a name in the stack only, so a range inside one of the same name cannot
    be selected by its path.
    """
    names = Counter(zip(table.domain, table.start_end, table.name, strict=True))
    expressions = []
    for i in range(len(table)):
        alone = names[table.domain[i], table.start_end[i], table.name[i]] == 1
        path = [table.name[i]] if alone else table.path(i)
        selectable = len(set(path)) == len(path) and i not in table.whole
        expression = exact_expression(
            table.domain[i], path, anchored=not alone, start_end=table.start_end[i], pools=table.pools
        )
        expressions.append(expression if selectable else "")
    return expressions


def kept_regions(table: RegionTable, region_filter: RegionFilter) -> list[bool]:
    """Which regions the patterns select. Parents come first in the table, so one pass reaches down."""
    kept: list[bool] = []
    banned: list[bool] = []
    for number in range(len(table)):
        parent = table.parent[number]
        domain, path = table.domain[number], table.path(number)
        out = (parent != ROOT and banned[parent]) or any(p.matches(domain, path) for p in region_filter.exclude)
        banned.append(out)
        inside = (
            not region_filter.include
            or (parent != ROOT and kept[parent])
            or any(p.matches(domain, path) for p in region_filter.include)
        )
        kept.append(inside and not out)
    return kept


def kernel_record(name: str, device: int | None, calls: int, total: int, low: int, high: int) -> KernelRecord:
    return KernelRecord(
        kernel_name=name,
        device=device,
        total_ms=total / 1e6,
        calls=calls,
        mean_ms=total / calls / 1e6,
        min_ms=low / 1e6,
        max_ms=high / 1e6,
        short_name=short_kernel_name(name),
        family=family_of(name),
    )


def sections_of(samples: Samples, metrics: dict[str, MetricValue]) -> dict[str, Any]:
    """ncu's sections, each with those of its counters that the region has."""
    found = {}
    for section, names in samples.sections.items():
        if here := [name for name in names if name in metrics]:
            found[section] = {"metrics": here}
    return found
