"""The questions that `llm-perf mcp` answers. Needs no SDK: functions of plain values, tested as they are.

Their names, parameters and docstrings are what an agent sees. Every row has an `id`, which `evidence` explains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from attrs import define

from llm_perf_opt.agents.caps import capped, rows_answer
from llm_perf_opt.agents.workspace import Workspace
from llm_perf_opt.api.reporting import refuse_ncu_expressions
from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.regions.ranking import stage_regions, weight
from llm_perf_opt.report.region_detail import find_region, kernel_rows, line_rows, region_detail, region_row

Answered = dict[str, Any]


@define
class Questions:
    """Questions about everything below a folder."""

    workspace: Workspace

    @property
    def all(self) -> list[Callable[..., Answered]]:
        return [*(self.list_runs, self.answer, self.regions, self.kernels, self.lines), *(self.compare, self.evidence)]

    def list_runs(self, folder: str = "", limit: int = 20) -> Answered:
        """List runs, reports and recordings, newest runs first, each with the headline of its report where it has one.

        The value of `run` in a row is what the other tools take. Recordings are known by the endings of their names.
        folder: below the root; empty for all of it.
        """
        found = sorted(self.workspace.entries(folder), key=lambda entry: entry["run"])
        found.sort(key=lambda entry: entry.get("started_at") or "", reverse=True)
        return rows_answer(found, limit)

    def answer(self, run: str | list[str], limit: int = 5) -> Answered:
        """Say where the time of a run goes, why, and what to do first, with the stages and the fixes by what they gain.

        run: as list_runs names it; a list of recordings of one program (a timeline and its counters, or the ranks of a
        job) is joined. Times are nanoseconds; those of a fix are of one steady instance of its stage.
        """
        report, limit = self.workspace.open(run).data, max(1, limit)
        found = report.answer
        fixes = [{"id": f"fix:{n}", **_fix(fix)} for n, fix in enumerate(found.fixes, 1)]
        notes = [
            {"id": f"diagnosis:{n}", "code": note.code, "severity": note.severity, "message": note.message}
            for n, note in enumerate(report.diagnostics, 1)
        ]
        stages = [_identified(region) for region in stage_regions(report)]
        facts = report.environment.get("run")
        words = facts.get("command") or facts.get("workload") if isinstance(facts, dict) else None
        return capped(
            {
                "answer": {
                    name: getattr(found, name)
                    for name in ("stage", "verdict", "confidence", "where", "why", "do_first")
                },
                "fixes": fixes[:limit],
                "stages": stages[:limit],
                "diagnostics": notes[:limit],
                "totals": _totals(report),
                "gpus": [gpu.name for gpu in report.hardware],
                "command": words or [],
                "truncated": max(len(fixes), len(stages), len(notes)) > limit,
            }
        )

    def regions(self, run: str | list[str], pattern: str = "", limit: int = 20) -> Answered:
        """List regions of a run (NVTX ranges, nested), those that take most time first.

        pattern: a glob over names, `A/B` for nesting, `DOMAIN@NAME`; regions inside a matching one are listed too.
        """
        report = self.workspace.open(run).data
        chosen = RegionFilter.of([pattern] if pattern else [], [])
        refuse_ncu_expressions(chosen)
        kept = [region for region in _regions(report) if chosen.keeps(region.domain, region.path)]
        return rows_answer([_identified(region) for region in sorted(kept, key=weight, reverse=True)], limit)

    def kernels(self, run: str | list[str], region: str = "", limit: int = 20) -> Answered:
        """List kernels of a region, those that take most time first: calls, time, family, operator, line, what bounds it.

        region: its key; empty for the whole run.
        """
        report = self.workspace.open(run).data
        scope = report.main_scope
        if region:
            of = find_region(report, region)
            rows, total = kernel_rows(of.kernels, of.performance), len(of.kernels) + of.kernels_omitted
        else:
            rows = kernel_rows(scope.kernels, None) if scope else []
            total = len(rows)
        named = [{"id": f"kernel:{n}@{region}", **row} for n, row in enumerate(rows, 1)]
        return rows_answer(named, limit, total=total, region=region)

    def lines(self, run: str | list[str], region: str = "", limit: int = 20) -> Answered:
        """List lines of the program's source: kernel time each launches, and how long the GPU waited in it.

        region: its key; empty for the stage of the answer.
        """
        report = self.workspace.open(run).data
        of = find_region(report, region or report.answer.stage)
        rows = [{"id": f"line:{n}@{of.key}", **row} for n, row in enumerate(line_rows(of.performance), 1)]
        known = of.performance.lines_known if of.performance else None
        return rows_answer(rows, limit, region=of.key, lines_known=known)

    def compare(self, base: str, new: str, limit: int = 10) -> Answered:
        """Compare two runs: better, worse, same or unsure, by how much, and the causes, which add up to the change."""
        from llm_perf_opt.api.comparing_sides import compare_sides
        from llm_perf_opt.api.sides import open_side

        sides = [open_side(self.workspace.input(name), quiet=True) for name in (base, new)]
        found = compare_sides(*sides)
        regions = sorted(found.regions, key=lambda region: (not region.decides, -abs(region.delta_ns)))
        rows = []
        for region in regions:
            row = region.as_json()
            row["exact"] = [change for change in row["exact"] if change["changed"]]
            row["causes"] = sorted(row["causes"], key=lambda cause: -abs(cause["delta_ns"]))[:8]
            rows.append(row)
        said = found.as_json()
        kept = {
            name: said[name] for name in ("verdict", "reasons", "sentences", "new_regions", "gone_regions", "notes")
        }
        return rows_answer(rows, limit, base=base, new=new, **kept)

    def evidence(self, run: str | list[str], id: str) -> Answered:
        """Everything known about one row of another answer, by its id.

        `region:KEY`: times, idle causes, verdict with its numbers, counters. `fix:N`: why, and the rule behind it.
        `kernel:N@KEY`: its launch configurations against the roofs. `line:N@KEY`, `diagnosis:N`.
        """
        report = self.workspace.open(run).data
        kind, _, name = id.partition(":")
        number, _, key = name.partition("@")
        try:
            content = _EVIDENCE[kind](report, name if kind == "region" else number, key)
        except (KeyError, IndexError, ValueError):
            raise UserError(
                f"There is no evidence {id!r}.", "Give an id of a row, as in region:decode or fix:1."
            ) from None
        return capped({"id": id, **content})


def _regions(report: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    return report.main_scope.regions if report.main_scope else []


def _identified(region: NCUProfileRegion) -> Answered:
    return {"id": f"region:{region.key}", **region_row(region)}


def _fix(fix: Any) -> Answered:
    found = attrs.asdict(fix)
    for one in (found, *found["also"]):
        one["lines"] = one["lines"][:3]
    return found


def _totals(report: NCUProfileRegionReport) -> Answered:
    scope = report.main_scope
    names = ("kernel_count", "gpu_time_ns", "gpu_busy_ns", "span_ns", "unattributed_kernel_count", "graph_launches")
    return {name: getattr(scope.totals, name) for name in names} if scope else {}


def _numbered(rows: list[Any], number: str) -> Any:
    if int(number) < 1:
        raise IndexError(number)
    return rows[int(number) - 1]


def _of_region(report: NCUProfileRegionReport, name: str, _: str) -> Answered:
    return region_detail(report, find_region(report, name))


def _of_fix(report: NCUProfileRegionReport, number: str, _: str) -> Answered:
    from llm_perf_opt.analysis.rules.all_rules import RULES

    fix = _numbered(report.answer.fixes, number)
    rule = next((rule for rule in RULES if rule.id == fix.rule), None)
    stage = find_region(report, fix.stage)
    verdict = attrs.asdict(stage.performance.verdict) if stage.performance else None
    return {"fix": attrs.asdict(fix), "rule": _rule(rule), "stage": region_row(stage), "verdict": verdict}


def _rule(rule: Any) -> Answered | None:
    return None if rule is None else {n: v for n, v in attrs.asdict(rule).items() if isinstance(v, str)}


def _of_kernel(report: NCUProfileRegionReport, number: str, key: str) -> Answered:
    scope = report.main_scope
    region = find_region(report, key) if key else None
    kernels = region.kernels if region else scope.kernels if scope else []
    kernel = _numbered(kernels, number)
    known = region.performance if region else None
    records = [record for record in (known.signatures if known else []) if record.kernel_name == kernel.kernel_name]
    said = [rule for rule in (region.rules if region else []) if rule.kernel_name == kernel.kernel_name]
    return {
        "kernel": attrs.asdict(kernel),
        "launch_configurations": [attrs.asdict(record) for record in records],
        "ncu_rules": [attrs.asdict(rule) for rule in said],
    }


def _of_line(report: NCUProfileRegionReport, number: str, key: str) -> Answered:
    known = find_region(report, key).performance
    return {"line": attrs.asdict(_numbered(known.lines if known else [], number))}


def _of_diagnosis(report: NCUProfileRegionReport, number: str, _: str) -> Answered:
    return {"diagnosis": attrs.asdict(_numbered(report.diagnostics, number))}


_EVIDENCE: dict[str, Callable[[NCUProfileRegionReport, str, str], Answered]] = {
    "region": _of_region,
    "fix": _of_fix,
    "kernel": _of_kernel,
    "line": _of_line,
    "diagnosis": _of_diagnosis,
}
