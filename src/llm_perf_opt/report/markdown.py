"""`report.md` and `kernels.md`: made to be read by a person, the answer first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from llm_perf_opt.metrics.catalogue import role_of, with_roles
from llm_perf_opt.regions.model import KernelRecord, MetricValue, NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.shell import ncu_options, shell_line
from llm_perf_opt.report.accounting import account_line
from llm_perf_opt.report.collective_rows import HEAD as COLLECTIVE_HEAD
from llm_perf_opt.report.collective_rows import WORDS, collective_table
from llm_perf_opt.report.md_syntax import code, command, plain, table
from llm_perf_opt.report.md_tables import answer_lines, diagnosis_words, region_lines
from llm_perf_opt.report.performance_md import (
    family_table,
    fix_lines,
    hardware_lines,
    line_table,
    region_performance,
    rule_lines,
    signature_table,
    speed_of_light_table,
    verdict_table,
)
from llm_perf_opt.report.pictures import pictures
from llm_perf_opt.report.rank_rows import TEXTS, imbalance_sentences, rank_sentence, rank_table
from llm_perf_opt.report.region_table import mean_ns
from llm_perf_opt.report.renderers import File, Renderer
from llm_perf_opt.report.stakeholder import render_stakeholder
from llm_perf_opt.report.step_rows import HEAD, step_rows, step_sentence
from llm_perf_opt.report.text import (
    LAUNCH_ROLES,
    NOT_MEASURED,
    bar,
    duration,
    full_label,
    gpu_time,
    interesting_metrics,
    launch_headline,
    launch_place,
    quantity,
    share,
    trust,
    verified_rows,
    work_count,
)
from llm_perf_opt.report.view import View
from llm_perf_opt.version import __version__

_PICTURES = "pictures"
_DETAILED_REGIONS = 12  # regions with a kernel table of their own


def render(view: View) -> Iterator[File]:
    drawn = pictures(view)
    for picture in drawn:
        yield File(f"{_PICTURES}/{picture.name}", picture.svg)
    yield File("report.md", render_markdown(view, [(p.title, f"{_PICTURES}/{p.name}") for p in drawn]))
    yield File("kernels.md", render_kernels(view.report))
    yield File("stakeholder_summary.md", render_stakeholder(view))
    if view.in_run:
        # Pictures are once in the run, seen from another folder.
        up = "../" * len(PurePosixPath(view.regions_at).parts)
        seen = [(p.title, f"{up}{_PICTURES}/{p.name}") for p in drawn]
        yield File(f"{view.regions_at}/report.md", render_markdown(view, seen))
        if sections := [render_sections(region) for region in view.regions if region.sections]:
            place = f"{PurePosixPath(view.regions_at).parent}/sections_report.txt"
            yield File(place, "\n".join(sections), stands_in=True)


def render_region_files(view: View, region: NCUProfileRegion) -> Iterator[File]:
    yield File("report.md", render_region(region, view.top))
    yield File("sections.txt", render_sections(region))


RENDERER = Renderer(
    "`report.md`, `kernels.md`, `stakeholder_summary.md`, `pictures/`: to be read; `report.md` of each region",
    render,
    render_region_files,
)


def render_markdown(view: View, pictures: Iterable[tuple[str, str]] = ()) -> str:
    """`pictures`: title and path of each, as seen from the file."""
    report, scope, top = view.report, view.scope, view.top
    lines = ["# Region report", "", _about(report), "", "## In short", ""]
    lines += answer_lines(view)
    lines += [f"- {plain(sentence)}" for sentence in view.answer.sentences]
    for title, path in pictures:
        lines += ["", f"![{title}]({path})"]
    if view.host_only:
        told = account_line(view)
        lines += ["", "## Regions", "", *region_lines(view), *(["", plain(told)] if told else []), *_steps(view)]
        lines += _diagnostics(report)
        return "\n".join(lines) + "\n"
    lines += verdict_table(view)
    lines += fix_lines(view)
    if report.available_ranges:
        lines += ["", "## Ranges that exist", ""]
        lines += [f"- {code(key)}" for key in report.available_ranges]
    lines += _launches(report)
    if scope is not None and scope.regions:
        lines += ["", "## Regions", "", *region_lines(view)]
        lines += _steps(view)
        lines += speed_of_light_table(view)
        lines += line_table(view)
        lines += family_table(view)
        lines += signature_table(view)
        lines += _counters(scope)
        lines += rule_lines(view)
        lines += ["", "## Top kernels per region", "", *_kernels_per_region(scope, top)]
    elif scope is not None and scope.kernels:
        lines += ["", "## Top kernels", "", *_kernel_table(scope.kernels[:top], scope.totals.gpu_time_ns)]
    lines += _other_scopes(report)
    lines += _coverage(report)
    lines += _verification(report)
    lines += hardware_lines(report)
    lines += _diagnostics(report)
    lines += ["", "## How to read this", "", *_reading_notes(report)]
    return "\n".join(lines) + "\n"


def _steps(view: View) -> list[str]:
    """The steps of a server, and those of the ranks of a job."""
    rows = [[code(name), *map(plain, cells)] for name, *cells in step_rows(view)]
    sentence = ["", plain(said)] if (said := step_sentence(view)) else []
    return [*(["", "## Steps", "", *table(list(HEAD), rows, numbers=6), *sentence] if rows else []), *_ranks(view)]


def _ranks(view: View) -> list[str]:
    head, *rows = [list(map(plain, row)) for row in rank_table(view)] or [[]]
    notes = sum(title in TEXTS for title in head)
    shown = table(head, rows, numbers=len(head) - notes, notes=notes)
    steps = ["", "## Ranks", "", plain(rank_sentence(view)), "", *shown] if rows else []
    collectives = [[code(name), *map(plain, cells)] for name, *cells in collective_table(view)]
    sent = table(list(COLLECTIVE_HEAD), collectives, numbers=len(COLLECTIVE_HEAD) - WORDS)
    steps += [line for said in imbalance_sentences(view) for line in ("", plain(said))]
    return [*steps, *(["", "## Collectives", "", *sent] if collectives else [])]


def _launches(report: NCUProfileRegionReport) -> list[str]:
    """Launches picked by hand, each with its place and its counters."""
    lines: list[str] = ["", "## Profiled launches"] if report.launches else []
    for launch in report.launches:
        lines += ["", f"### {code(launch.short_name)}", "", f"{plain(launch_place(launch))}.", ""]
        lines += [f"- {title}: {value}" for title, value in launch_headline(launch)]
        where = ", ".join(code(key) for key in launch.regions) or "no range"
        shape = f"grid {tuple(launch.grid)}, block {tuple(launch.block)}"
        lines += [f"- in {where}; {shape}; {code(launch.kernel_name)}"]
        lines += [f"- all {len(launch.metrics)} counters are in `report.json` under `launches`"]
    return lines


def _about(report: NCUProfileRegionReport) -> str:
    gpus = sorted(set(report.environment.get("gpus", {}).values()))
    parts = [", ".join(plain(g) for g in gpus)] if gpus else []
    parts += [f"{code(str(i.get('path', '')))} ({plain(str(i.get('kind', '')))})" for i in report.inputs]
    parts.append(f"attribution {report.attribution}")
    return f"{' · '.join(parts)} · made {report.generated_at} by llm-perf {__version__}"


def _count(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,}"


def _counters(scope: Scope) -> list[str]:
    rows = [
        [code(full_label(region)), title, _amount(value), trust(value)]
        for region in [r for r in scope.regions if r.inclusive.metrics and r.depth <= 1][:_DETAILED_REGIONS]
        for _, title, value in interesting_metrics(region.inclusive.metrics)
    ]
    return ["", "## Counters", "", *table(["region", "counter", "value", "how"], rows, 1, notes=1)] if rows else []


def _kernels_per_region(scope: Scope, top: int) -> list[str]:
    # Outer regions before inner ones, heavy before light: that is what people ask about first.
    first = sorted(scope.regions, key=lambda r: (r.depth, -(gpu_time(r.inclusive) or 0)))[:_DETAILED_REGIONS]
    keys = {region.key for region in first}
    chosen = [region for region in scope.regions if region.key in keys]
    lines: list[str] = []
    for region in chosen:
        if region.kernels:
            lines += [f"### {plain(full_label(region))}", ""]
            lines += [*_kernel_table(region.kernels[:top], region.inclusive.gpu_time_ns), ""]
            hidden = len(region.kernels) + region.kernels_omitted - top
            if hidden > 0:
                lines += [f"{hidden:,} more kernels are in `report.json`.", ""]
    if len(scope.regions) > _DETAILED_REGIONS:
        lines += [
            f"The other {len(scope.regions) - _DETAILED_REGIONS:,} regions have their tables in folders of their own and in `report.json`."
        ]
    return lines


def _kernel_table(kernels: Iterable[KernelRecord], total_ns: int | None) -> list[str]:
    rows = []
    for kernel in kernels:
        taken = (kernel.total_ms, kernel.mean_ms, kernel.min_ms, kernel.max_ms)
        times = [None if t is None else t * 1e6 for t in taken]
        name, device = code(kernel.short_name or kernel.kernel_name), _count(kernel.device)
        shares = [share(times[0], total_ns), bar(times[0], total_ns, 8)]
        rows.append([name, device, f"{kernel.calls:,}", *map(duration, times), *shares])
    head = ["kernel", "device", "calls", "total", "mean", "min", "max", "share", ""]
    return table(head, rows, numbers=7, notes=1)


def _other_scopes(report: NCUProfileRegionReport) -> list[str]:
    if len(report.scopes) < 2:
        return []
    head = ["scope", "kernels", "GPU time", "GPU busy", "copies and fills", "outside ranges"]
    cells = []
    for scope in report.scopes:
        totals = scope.totals
        copies = f"{totals.memory.count:,} ({duration(totals.memory.time_ns)})"
        cells.append(
            [
                code(scope.scope),
                work_count(totals),
                duration(gpu_time(totals)),
                duration(totals.gpu_busy_ns),
                copies if totals.gpu_busy_ns is not None else NOT_MEASURED,
                f"{totals.unattributed_kernel_count:,}",
            ]
        )
    return ["", "## Scopes", "", *table(head, cells, numbers=5)]


def _coverage(report: NCUProfileRegionReport) -> list[str]:
    coverage = report.coverage
    if coverage is None:
        return []
    lines = [
        "",
        "## Coverage of the counters",
        "",
        f"{coverage.signatures_matched} of {coverage.signatures} kernel signatures in the regions have counters: "
        f"{share(coverage.gpu_time_matched_ns, coverage.gpu_time_ns)} of the GPU time, "
        f"{share(coverage.launches_matched, coverage.launches)} of the launches. "
        f"{coverage.results - coverage.results_unmatched} of {coverage.results} kernel results of ncu were used.",
    ]
    if coverage.signatures_scaled:
        lines[-1] += (
            f" {coverage.signatures_scaled} of the signatures, {share(coverage.gpu_time_scaled_ns, coverage.gpu_time_ns)} "
            "of the GPU time, use the counters of the same kernel on a grid of nearly the same size."
        )
    if coverage.unmatched_signatures:
        lines += ["", "Not sampled, longest first:", "", *(f"- {code(s)}" for s in coverage.unmatched_signatures)]
    if coverage.unmatched_results:
        lines += ["", "Results that match no launch:", "", *(f"- {code(s)}" for s in coverage.unmatched_results)]
    return lines


def _verification(report: NCUProfileRegionReport) -> list[str]:
    """Estimates against the same regions measured as wholes."""
    if not report.verification:
        return []
    head = ["region", "counter", "estimate", "measured as a whole", "estimate / measured", "stated error", ""]
    rows = [
        [code(region), plain(counter), *numbers, "agrees" if agrees else "**differs**"]
        for region, counter, *numbers, agrees in verified_rows(report)
    ]
    return ["", "## Estimates against range replay", "", *table(head, rows, numbers=4, notes=1)]


def _diagnostics(report: NCUProfileRegionReport) -> list[str]:
    if not report.diagnostics:
        return []
    told = [f"- **{d.severity}** {code(d.code)}: {diagnosis_words(d)}" for d in report.diagnostics]
    return ["", "## What you should know", "", *told]


def _reading_notes(report: NCUProfileRegionReport) -> list[str]:
    notes = [
        "- A region is a domain and a path of range names; its instances are pooled. Values include nested regions; *own* leaves them out.",
        "- *GPU time* is the sum of kernel durations. *Wall* is the time from the start to the end of the range on the host.",
        "- *GPU idle* is the part of the wall time during which the GPU ran no kernel, copy or fill of this process.",
    ]
    if any(r.time_source == "ncu" for s in report.scopes for r in s.regions):
        notes.append(
            "- Times are ncu's: kernels ran alone and were replayed. They are not the times of the undisturbed program."
        )
    return notes


def render_kernels(report: NCUProfileRegionReport, top: int = 100) -> str:
    """`kernels.md`: all kernels of the main scope, longest first, with their full names."""
    scope = report.main_scope
    lines = ["# Kernels", ""]
    if scope is None or not scope.kernels:
        return "\n".join([*lines, "The recording has no kernels.", ""])
    lines += [
        f"Scope {code(scope.scope)}: {len(scope.kernels):,} different kernels, {scope.totals.kernel_count:,} launches.",
        "",
    ]
    lines += _kernel_table(scope.kernels[:top], scope.totals.gpu_time_ns)
    if len(scope.kernels) > top:
        lines += ["", f"{len(scope.kernels) - top:,} more are in `kernels.csv`."]
    lines += _measured(report, top)
    lines += ["", "## Full names", ""]
    full = {k.kernel_name: k.short_name for k in scope.kernels[:top] if k.kernel_name != k.short_name}
    lines += [f"- {code(short)}: {code(visible(name, 2000))}" for name, short in full.items()]
    return "\n".join(lines) + "\n"


def _measured(report: NCUProfileRegionReport, top: int) -> list[str]:
    """What ncu measured of each kernel: the first counters to look at."""
    columns = with_roles(report.counter_units, LAUNCH_ROLES)
    if not report.measured or not columns:
        return []
    rows = []
    for one in report.measured[:top]:
        cells = [plain(quantity(one.metrics.get(c.name), report.counter_units[c.name])) for c in columns]
        rows.append([code(one.short_name), "×".join(map(str, one.grid)) or NOT_MEASURED, f"{one.results:,}", *cells])
    titles = ["kernel", "grid", "results", *(counter.title for counter in columns)]
    more = "All counters of each, and what ncu's rules say, are in `report.json` under `measured`; counters also in `kernels.counters.csv`."
    return ["", "## Counters of one launch", "", *table(titles, rows, len(titles) - 2), "", more]


def render_region(region: NCUProfileRegion, top: int = 30) -> str:
    """`report.md` of one region's folder."""
    wall = duration(region.wall_ns)
    if region.inclusive.gpu_time_ns is None and region.wall_ns is not None and not region.inclusive.metrics:
        each = f" · {duration(mean_ns(region))} each" if (region.instances or 0) > 1 else ""
        told = f"Instances {_count(region.instances)} · wall {wall}{each}. No GPU work is in the recording."
        return f"# {plain(full_label(region))}\n\n{told}\n"
    both = (region.inclusive, region.exclusive)
    rows = [
        ["GPU time", *(duration(gpu_time(values)) for values in both)],
        ["kernels", *map(work_count, both)],
        ["copies and fills", *(f"{values.memory.count:,}" for values in both)],
    ]
    lines = [
        f"# {plain(full_label(region))}",
        "",
        *table(["", "inclusive", "own"], rows, numbers=2),
        "",
        f"Instances {_count(region.instances)} · wall {wall} · GPU busy {duration(region.gpu_busy_ns)} · "
        f"GPU idle {duration(region.gpu_idle_ns)} ({share(region.gpu_idle_ns, region.wall_ns)})",
        "",
        f"Select it in `ncu --nvtx` with {command(shell_line(ncu_options(region)))}"
        if region.nvtx_include
        else "The recording has no ranges: ncu selects all of it without a filter."
        if region.is_whole_recording
        else "ncu cannot select this region: it is not an NVTX range at the launch, or is inside one of the same name.",
    ]
    lines += region_performance(region)
    if region.kernels:
        lines += ["", "## Kernels", "", *_kernel_table(region.kernels[:top], region.inclusive.gpu_time_ns)]
    if region.inclusive.metrics:
        metrics = region.inclusive.metrics
        shown = [name for name in sorted(metrics) if not _is_detail(name, metrics)]
        cells = [_counter_cells(name, metrics[name]) for name in shown]
        lines += ["", "## Counters", "", *table(["counter", "value", "how"], cells, 1, notes=1)]
        if hidden := len(metrics) - len(shown):
            lines += ["", f"{hidden} average, minimum and maximum values over the chip's units are in `metrics.csv`."]
    if region.rules:
        lines += ["", "## What ncu's rules say", ""]
        for rule in region.rules[:10]:
            gain = rule.estimated_speedup_percent
            promised = f" (estimated speed-up of the kernel {gain:.0f} %)" if gain else ""
            lines.append(f"- {code(rule.kernel_name)} **{plain(rule.title)}**{promised}: {plain(rule.message)}")
    return "\n".join(lines) + "\n"


def _is_detail(name: str, metrics: dict[str, MetricValue]) -> bool:
    """The average, least or greatest over the units of the chip of a counter whose sum is there too."""
    base, _, last = name.rpartition(".")
    return last in ("avg", "min", "max") and f"{base}.sum" in metrics


def _counter_cells(name: str, value: MetricValue) -> list[str]:
    how = trust(value) + ("; time under ncu, not of the undisturbed program" if role_of(name) == "time" else "")
    return [code(name), _amount(value), how]


def render_sections(region: NCUProfileRegion) -> str:
    """`sections.txt`: a region's counters under ncu's section titles, as text; those of no section come last."""
    lines = [full_label(region), ""]
    metrics = region.inclusive.metrics
    if not metrics:
        return "\n".join([*lines, "No counters were collected for this region.", ""])
    sections = {title: [n for n in content["metrics"] if n in metrics] for title, content in region.sections.items()}
    seen = {name for names in sections.values() for name in names}
    if rest := [name for name in sorted(metrics) if name not in seen]:
        sections["Other counters" if seen else "Counters"] = rest
    for title, names in sections.items():
        width = max(map(len, names), default=0)
        lines.append(f"Section: {title}")
        lines += [f"  {n:<{width}}  {_amount(metrics[n]):>14}  {trust(metrics[n])}" for n in names]
        lines.append("")
    return "\n".join(lines)


def _amount(value: MetricValue) -> str:
    return quantity(value.value, value.unit)
