"""The one view of a finished report, from which every output is made.

It is made once: stages, answer and the names of the regions' folders are settled here, and a renderer only puts them
into its format. The report itself is never changed; `View.report` is the report as it is written, with those folders.
"""

from __future__ import annotations

from attrs import define, evolve

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.ranking import is_host_only
from llm_perf_opt.report.answer import ShownAnswer, answer_of
from llm_perf_opt.report.files import folder_names
from llm_perf_opt.report.stages import stage_regions
from llm_perf_opt.report.text import gpu_time

MOST_FOLDERS = 256  # regions with a folder of their own: those with the most GPU time
BESIDE = "regions"  # region folders beside the report; in a run directory they are elsewhere


@define(frozen=True)
class View:
    """What all outputs show of a report."""

    report: NCUProfileRegionReport
    answer: ShownAnswer
    stages: list[NCUProfileRegion]  # the longest first
    host_only: bool  # no GPU work: times of ranges are all there is
    top: int  # kernels listed per region where lists are cut
    regions_at: str  # where region folders go, below the output folder

    @property
    def scope(self) -> Scope | None:
        return self.report.main_scope

    @property
    def regions(self) -> list[NCUProfileRegion]:
        return self.scope.regions if self.scope else []

    @property
    def in_run(self) -> bool:
        """In a run directory, which keeps a copy of the region report with the folders of its regions."""
        return self.regions_at != BESIDE


def view_of(report: NCUProfileRegionReport, *, top: int = 30, regions_at: str = BESIDE, folders: bool = False) -> View:
    """`folders`: the regions get folders of their own."""
    written = _with_folders(report) if folders else report
    return View(written, answer_of(written), stage_regions(written), is_host_only(written), top, regions_at)


def _with_folders(report: NCUProfileRegionReport) -> NCUProfileRegionReport:
    """The heaviest regions of the main scope with the names of their folders; it says so where not all get one."""
    scope = report.main_scope
    if scope is None:
        return report
    chosen = sorted(scope.regions, key=lambda r: -(gpu_time(r.inclusive) or 0))[:MOST_FOLDERS]
    labels = [(r.domain, [*r.path, "start-end"] if r.range_kind == "start_end" else r.path) for r in chosen]
    names = {region.key: name for region, name in zip(chosen, folder_names(labels), strict=True)}
    regions = [evolve(r, folder=names[r.key]) if r.key in names else r for r in scope.regions]
    scopes = [evolve(s, regions=regions) if s is scope else s for s in report.scopes]
    left = len(scope.regions) - len(chosen)
    if left <= 0:
        return evolve(report, scopes=scopes)
    cut = diagnose("REGION_FOLDERS_CUT", folders=MOST_FOLDERS, left=left)
    return evolve(report, scopes=scopes, diagnostics=[*report.diagnostics, cut])
