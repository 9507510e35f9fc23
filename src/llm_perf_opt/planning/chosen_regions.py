"""Which regions of the timeline are profiled, in the words of the report and in ncu's expressions."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.regions.libraries import is_library_range
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.request import ProfileRequest

# Of nested matching ranges ncu's range modes measure the outermost only, so a region that merely holds others
# is replaced by them where they hold nearly all of its kernels.
_HELD_BELOW = 0.99


def outermost(report: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    """The chosen regions that lie in no other chosen one."""
    return _outermost(report.main_scope) if report.main_scope else []


def _outermost(scope: Scope) -> list[NCUProfileRegion]:
    ranges = [region for region in scope.regions if not region.is_whole_recording]
    whole = [region for region in scope.regions if region.is_whole_recording]
    # Beside ranges the whole recording is there to be evaluated: ncu is asked for what was marked. Ranges that a library
    # makes around its own calls are no marks: PyTorch has some in every program.
    marked = any(region.inclusive.kernel_count and not is_library_range(region) for region in ranges)
    regions = ranges if marked or not whole else whole
    chosen = {region.key for region in regions}
    return [region for region in regions if region.parent not in chosen]


def cut(
    regions: Sequence[NCUProfileRegion], report: NCUProfileRegionReport, *, repeated: bool
) -> list[NCUProfileRegion]:
    """Replace regions that only hold others by those; `repeated`: also by ranges that repeat inside them."""
    scope = report.main_scope
    below: dict[str, list[NCUProfileRegion]] = {}
    for region in scope.regions if scope else []:
        if region.parent is not None:
            below.setdefault(region.parent, []).append(region)
    result: list[NCUProfileRegion] = []
    todo = list(regions)
    while todo:
        region = todo.pop(0)
        children = [c for c in below.get(region.key, []) if c.inclusive.kernel_count and c.nvtx_include]
        held = sum(c.inclusive.kernel_count for c in children)
        once = all(c.instances == region.instances for c in children)
        many = len(children) == 1 and (children[0].instances or 0) > (region.instances or 0)
        if children and held >= _HELD_BELOW * region.inclusive.kernel_count and (many if repeated else once):
            todo = [*children, *todo]
        else:
            result.append(region)
    return result


def selectable_regions(scope: Scope) -> tuple[dict[str, str], list[str]]:
    """From a report of the timeline: ncu's expression of every region (none is needed for a whole recording), and the
    outermost regions with kernels.

    Ranges that a library makes around its own calls are no stages of the program: they lie inside those, and where
    they do not, nobody asked for them.
    """
    expressions = {region.key: region.nvtx_include for region in scope.regions if region.is_selectable}
    outer = [region for region in _outermost(scope) if region.inclusive.kernel_count and region.is_selectable]
    own = [region for region in outer if not is_library_range(region)]
    return expressions, [region.key for region in own or outer]


def talks_between_processes(report: NCUProfileRegionReport) -> bool:
    """Several processes with collectives: under ncu they would deadlock."""
    processes = [scope for scope in report.scopes if scope.scope.startswith("process:")]
    return len(processes) > 1 and any("nccl" in k.kernel_name.lower() for s in processes for k in s.kernels)


def raw_expressions(patterns: Sequence[str]) -> tuple[str, ...]:
    """The `ncu:` patterns among some, without the prefix."""
    return tuple(p.removeprefix("ncu:") for p in patterns if p.startswith("ncu:"))


def excluded(request: ProfileRequest) -> tuple[str, ...]:
    """Regions left out, as ncu's expressions; a `regex:` over paths it cannot have, the report leaves out alone."""
    patterns = [p for p in RegionFilter.of(include=request.report.exclude).include if not p.text.startswith("regex:")]
    return tuple(expression for pattern in patterns for expression in pattern.ncu_expressions())
