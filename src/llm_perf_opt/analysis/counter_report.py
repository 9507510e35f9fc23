"""Scopes and regions of counter results alone: regions come from the NVTX stack every result carries."""

from __future__ import annotations

from attrs import Factory, define

from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.analysis.sample_matrix import Samples, add_up_results, rules_of
from llm_perf_opt.analysis.scopes import AGGREGATE, only
from llm_perf_opt.analysis.selected import kept_regions, kernel_record, ncu_expressions, sections_of
from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.regions.columns import CounterSet
from llm_perf_opt.regions.model import KernelRecord, NCUProfileRegion, RegionStats, Scope, ScopeTotals
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter
from llm_perf_opt.regions.table import ROOT, RegionTable


@define(eq=False)
class CounterRows:
    """Results of every reported region, by scope and region key."""

    samples: Samples
    rows: dict[tuple[str, str], list[int]] = Factory(dict)


def counter_scopes(
    counter_sets: list[CounterSet], options: ReportOptions, region_filter: RegionFilter, kernel_filter: NameFilter
) -> tuple[list[Scope], RegionTable, CounterRows]:
    """The scopes, all regions, and which results each reported region has."""
    samples = Samples.of(counter_sets)
    chosen = [
        row
        for row, action in enumerate(samples.actions)
        if action.kind != "kernel" or kernel_filter.keeps(action.name, short_kernel_name(action.name))
    ]
    table = RegionTable(pools={name: pool for c in counter_sets for name, pool in c.pools.items()})
    own: dict[int, list[int]] = {}
    for row in chosen:
        action = samples.actions[row]
        stacks = action.push_pop
        if action.kind == "range" and len(stacks) > 1:
            # It measured one of the ranges around it, and without a timeline the deepest is the best guess.
            domain = max(stacks, key=lambda d: (len(stacks[d]), d != ""))
            stacks = {domain: stacks[domain]}
        for domain, stack in stacks.items():
            own.setdefault(table.intern_path(domain, stack), []).append(row)
        for domain, names in action.start_end.items():
            for name in dict.fromkeys(names):
                own.setdefault(table.intern(domain, True, ROOT, name), []).append(row)
    if not any(action.push_pop or action.start_end for action in samples.actions) and chosen:
        own[table.intern_whole()] = list(chosen)
    kept = kept_regions(table, region_filter)
    expressions = ncu_expressions(table)
    groups: list[tuple[str, list[int], int | None, int | None]] = []
    pids = sorted({p for row in chosen if (p := samples.actions[row].process) is not None})
    devices = sorted({d for row in chosen if (d := samples.actions[row].device) is not None})
    for pid in pids:
        rows = [r for r in chosen if samples.actions[r].process == pid]
        groups.append((f"process:{pid}", rows, pid, only(samples.actions[r].device for r in rows)))
    for device in devices:
        rows = [r for r in chosen if samples.actions[r].device == device]
        groups.append((f"device:{device}", rows, only(samples.actions[r].process for r in rows), device))
    if options.aggregate:
        groups.append((AGGREGATE, chosen, only(pids), only(devices)))
    rows_of = CounterRows(samples)
    scopes = [
        _counter_scope(samples, table, own, kept, expressions, region_filter, rows_of, *group) for group in groups
    ]
    return scopes, table, rows_of


def _counter_scope(
    samples: Samples,
    table: RegionTable,
    own: dict[int, list[int]],
    kept: list[bool],
    expressions: list[str],
    region_filter: RegionFilter,
    rows_of: CounterRows,
    name: str,
    rows: list[int],
    process_id: int | None,
    device: int | None,
) -> Scope:
    inside = set(rows)
    mine = {number: [r for r in members if r in inside] for number, members in own.items()}
    below = {number: list(members) for number, members in mine.items()}
    for number in range(len(table) - 1, -1, -1):
        if table.parent[number] != ROOT:
            below.setdefault(table.parent[number], []).extend(below.get(number, []))
    regions = []
    for number in table.in_tree_order():
        members = sorted(below.get(number, []))
        if not members or not kept[number]:
            continue
        inclusive = _result_stats(samples, members, mine.get(number, []))
        rows_of.rows[name, table.key(number)] = members
        parent = table.parent[number]
        whole = [r for r in mine.get(number, []) if samples.actions[r].kind == "range"]
        regions.append(
            NCUProfileRegion(
                name=table.name[number],
                domain=table.domain[number],
                path=table.path(number),
                parent=None if parent == ROOT else table.key(parent),
                depth=table.depth[number],
                device=device,
                process_id=process_id,
                instances=len(whole) or None,
                inclusive=inclusive,
                exclusive=_result_stats(samples, mine.get(number, []), mine.get(number, [])),
                key=table.key(number),
                numbers=table.numbers(number),
                range_kind=table.kind(number),
                time_source="ncu",
                nvtx_include=expressions[number],
                sections=sections_of(samples, inclusive.metrics),
                rules=rules_of(samples, members, _result_shares(samples, members)),
                kernels=_result_kernels(samples, members),
                selection=region_filter.as_json(),
            )
        )
    kernels = [r for r in rows if samples.actions[r].kind == "kernel"]
    inside = {r for members in own.values() for r in members}
    outside = [r for r in kernels if r not in inside]
    return Scope(
        scope=name,
        totals=ScopeTotals(
            gpu_time_ns=samples.time_ns(rows),
            kernel_count=_kernel_count(samples, rows),
            unattributed_kernel_count=len(outside),
            unattributed_gpu_time_ns=samples.time_ns(outside) if outside else 0,
        ),
        regions=regions,
        kernels=_result_kernels(samples, rows),
    )


def _result_stats(samples: Samples, rows: list[int], own: list[int]) -> RegionStats:
    """Values of some results. A range result of the region itself measured it whole: it stands alone."""
    whole = [r for r in own if samples.actions[r].kind == "range"]
    parts = [r for r in rows if samples.actions[r].kind != "range"]
    chosen = whole or parts or rows
    metrics = add_up_results(samples, parts if whole else chosen) | add_up_results(samples, whole)
    return RegionStats(
        gpu_time_ns=samples.time_ns(chosen),
        kernel_count=_kernel_count(samples, chosen),
        metrics=metrics,
        graph_launches=sum(samples.actions[r].kind == "graph" for r in chosen),
    )


def _kernel_count(samples: Samples, rows: list[int]) -> int:
    """Kernels measured one by one, and those known to be inside range results."""
    actions = [samples.actions[r] for r in rows]
    return sum(1 if a.kind == "kernel" else (a.kernels_inside or 0) for a in actions)


def _result_shares(samples: Samples, rows: list[int]) -> dict[int, float | None]:
    total = samples.time_ns(rows)
    if not total:
        return dict.fromkeys(rows)
    return {r: (samples.actions[r].time_ns() or 0.0) / total for r in rows}


def _result_kernels(samples: Samples, rows: list[int]) -> list[KernelRecord]:
    groups: dict[tuple[str, int | None], list[int]] = {}
    for row in rows:
        action = samples.actions[row]
        if action.kind == "kernel":
            groups.setdefault((action.name, action.device), []).append(row)
    records = []
    for (name, device), members in groups.items():
        total = samples.time_ns(members)
        if total is None:
            short = short_kernel_name(name)
            records.append(KernelRecord(name, device, None, len(members), None, None, None, short, family_of(name)))
            continue
        times = [round(samples.actions[r].time_ns() or 0) for r in members]
        records.append(kernel_record(name, device, len(members), total, min(times), max(times)))
    return sorted(records, key=lambda r: -(r.total_ms or 0))
