"""The Python API: `llm_perf_opt.open(...)` returns a `Report`, a thin facade over the finished report.

The report itself is `Report.data`, the object that `report.json` holds. The facade adds what a notebook wants:
data frames that are built once, selection, comparison, the HTML page, and short texts where it is shown.
Launches and ranges are not in a report: they are read from the timeline when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define, field

from llm_perf_opt.api.finished import finish_report, is_report, recordings_beside
from llm_perf_opt.api.frames import DataFrame, data_frame
from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.fixes import Answer
from llm_perf_opt.regions.model import Coverage, NCUProfileRegionReport, Opportunity, Scope, VerifiedCounter
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.report import tables

if TYPE_CHECKING:
    from llm_perf_opt.api.compared import Compared
    from llm_perf_opt.api.displays import Display
    from llm_perf_opt.diagnosis import Diagnosis
    from llm_perf_opt.metrics.hardware.limits import GpuHardware
    from llm_perf_opt.regions.attribution import Attribution, Mode
    from llm_perf_opt.regions.columns import Timeline

AnyPath = str | PathLike[str]


@define(repr=False)
class Report:
    """A finished report as data frames, a page and a summary; `data` is the report as `report.json` has it."""

    data: NCUProfileRegionReport
    recordings: Sequence[str] = field(default=(), eq=False)  # where launches and ranges can be read
    _narrowed: bool = field(default=False, eq=False)  # by patterns of `open` or `select`

    # -- what the report holds --------------------------------------------------------------------------

    @property
    def scopes(self) -> list[Scope]:
        return self.data.scopes

    @property
    def main_scope(self) -> Scope | None:
        """The aggregate where there is one, otherwise the first scope."""
        return self.data.main_scope

    def scope(self, name: str) -> Scope:
        """The scope called `name`; `KeyError` names the ones that exist."""
        return self.data.scope(name)

    @property
    def diagnostics(self) -> list[Diagnosis]:
        return self.data.diagnostics

    @property
    def inputs(self) -> list[dict[str, Any]]:
        return self.data.inputs

    @property
    def environment(self) -> dict[str, Any]:
        return self.data.environment

    @property
    def hardware(self) -> list[GpuHardware]:
        return self.data.hardware

    @property
    def stages(self) -> list[str]:
        return self.data.stages

    @property
    def answer(self) -> Answer:
        """Which stage to look at, why it takes its time, what to do first, and all fixes."""
        return self.data.answer

    @property
    def opportunities(self) -> list[Opportunity]:
        return self.data.opportunities

    @property
    def coverage(self) -> Coverage | None:
        return self.data.coverage

    @property
    def verification(self) -> list[VerifiedCounter]:
        return self.data.verification

    @property
    def available_ranges(self) -> list[str]:
        """Where nothing matched: the ranges that could have been asked for."""
        return self.data.available_ranges

    # -- the frames, each built once --------------------------------------------------------------------

    @cached_property
    def regions(self) -> DataFrame:
        """One row per scope and region."""
        return data_frame(tables.regions_table(self.data))

    @cached_property
    def kernels(self) -> DataFrame:
        """One row per scope, region, kernel and device; where `region` is missing, the whole scope."""
        return data_frame(tables.kernels_table(self.data))

    @cached_property
    def metrics(self) -> DataFrame:
        """One row per scope, region and counter."""
        return data_frame(tables.metrics_table(self.data))

    @cached_property
    def launches(self) -> DataFrame:
        """One row per piece of GPU work, in order of start; read from the timeline."""
        return data_frame(self._selected(tables.launches_table(*self._timeline)))

    @cached_property
    def ranges(self) -> DataFrame:
        """One row per instance of a range, in order of start; read from the timeline."""
        return data_frame(self._selected(tables.ranges_table(*self._timeline)))

    @cached_property
    def _timeline(self) -> tuple[Timeline, Attribution]:
        from llm_perf_opt.api.inputs import Inputs, load
        from llm_perf_opt.regions.columns import Timeline
        from llm_perf_opt.regions.merge import merge_timelines
        from llm_perf_opt.regions.prepared import find_regions, prepare_timeline

        if not self.recordings:
            raise UserError(
                "A report.json has no single launches and ranges; they are in the timeline it was made from.",
                "Open the run directory or the recordings: llm_perf_opt.open('run.sqlite')",
            )
        recordings = load(Inputs.of(self.recordings), quiet=True, streams=True)
        timelines = [found for found in recordings if isinstance(found, Timeline)]
        if not timelines:
            raise UserError(
                "These recordings have only counters, which do not say when anything ran.",
                "Open a timeline too: nsys SQLite, .nsys-rep or a PyTorch trace.",
            )
        selection = self.data.selection
        chosen = RegionFilter.of(selection.get("include_patterns", ()), selection.get("exclude_patterns", ()))
        timeline = merge_timelines([prepare_timeline(timeline, chosen) for timeline in timelines])
        modes: dict[str, Mode] = {"thread": "thread", "process": "process"}
        return find_regions(timeline, modes.get(self.data.attribution, "auto"))

    def _selected(self, table: tables.Table) -> tables.Table:
        """The rows whose region is in this report; all of them where no region was chosen."""
        if not self._narrowed:
            return table
        keys = {region.key for scope in self.scopes for region in scope.regions}
        rows = [i for i, key in enumerate(table["region"]) if key in keys]
        return {name: [values[i] for i in rows] for name, values in table.items()}

    # -- other reports ----------------------------------------------------------------------------------

    def select(self, pattern: str, *more: str, exclude: Sequence[str] = ()) -> Report:
        """A report of the regions that match, and of those inside them; patterns as for `--include`."""
        return self._filtered(RegionFilter.of((pattern, *more), exclude))

    def _filtered(self, chosen: RegionFilter) -> Report:
        from llm_perf_opt.analysis.verdicts.conclusion import conclude
        from llm_perf_opt.api.reporting import refuse_ncu_expressions

        refuse_ncu_expressions(chosen)
        scopes = [
            attrs.evolve(scope, regions=[r for r in scope.regions if chosen.keeps(r.domain, r.path)])
            for scope in self.scopes
        ]
        keys = {region.key for scope in scopes for region in scope.regions}
        selection = {
            name: [*self.data.selection.get(name, []), *patterns] for name, patterns in chosen.as_json().items()
        }
        data = attrs.evolve(
            self.data,
            scopes=scopes,
            selection=selection,
            stages=[key for key in self.data.stages if key in keys],
            opportunities=[o for o in self.data.opportunities if o.region in keys],
            verification=[v for v in self.data.verification if v.region in keys],
        )
        return Report(attrs.evolve(data, answer=conclude(data)), self.recordings, narrowed=True)

    def compare(self, other: Report, *, min_change: float = 0.02) -> Compared:
        """This report is the base, `other` the new one: what changed, whether it is more than noise, and why.

        `min_change`: the least relative change of a time that counts.
        """
        if not isinstance(other, Report):
            raise UserError("compare takes another report.", "Open it first: a.compare(llm_perf_opt.open(PATH))")
        from llm_perf_opt.api.compared import Compared
        from llm_perf_opt.api.comparing_sides import compare_sides
        from llm_perf_opt.api.sides import side_of

        base, new = (side_of(r.data, r.recordings, narrowed=r._narrowed) for r in (self, other))
        return Compared(compare_sides(base, new, min_change=min_change))

    def to_html(self, path: AnyPath, *, top: int = 30, force: bool = False) -> Path:
        """Write the page; `top`: kernels per region where a list has to be cut. `force`: over any file that is there."""
        from llm_perf_opt.report.files import make_folder, replaceable, write_text
        from llm_perf_opt.report.html import render_html
        from llm_perf_opt.report.view import view_of
        from llm_perf_opt.rundir.generation import is_ours

        target = Path(path)
        replaceable([target], lambda there: is_ours(there.parent, there.name), force=force)
        make_folder(target.parent)
        return write_text(target, render_html(view_of(self.data, top=top)))

    # -- parts of it, for a notebook ---------------------------------------------------------------------

    @cached_property
    def tree(self) -> Display:
        """Regions inside regions, as a table."""
        from llm_perf_opt.api.displays import tree_of

        return tree_of(self.data)

    @cached_property
    def roofline(self) -> Display:
        """Kernels against the roofs of the GPU, as a picture."""
        from llm_perf_opt.api.displays import roofline_of

        return roofline_of(self.data)

    # -- shown ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return repr(self.data).replace(type(self.data).__name__, type(self).__name__, 1)

    def _repr_html_(self) -> str:
        from llm_perf_opt.api.summary import summary_html

        return summary_html(self)

    def _repr_markdown_(self) -> str:
        from llm_perf_opt.api.summary import summary_markdown

        return summary_markdown(self)


def open_report(
    *paths: AnyPath,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    attribution: Mode | None = None,
) -> Report:
    """See `llm_perf_opt.open`."""
    from llm_perf_opt.analysis.report_options import ReportOptions
    from llm_perf_opt.api.reporting import make_report

    if not paths:
        raise UserError("Nothing to open was given.", "Give recordings, a run directory or a report.json.")
    if attribution not in (None, "auto", "thread", "process"):
        raise UserError(f"attribution={attribution!r} is not known.", "Use auto, thread or process.")
    names = [fspath(path) for path in paths]
    for name in names:
        finish_report(Path(name))
    chosen = RegionFilter.of(_listed(include), _listed(exclude))
    asks = bool(chosen.include or chosen.exclude)
    finished = next((name for name in names if is_report(Path(name), alone=len(names) == 1)), None)
    if finished and len(names) > 1:
        raise UserError(
            f"{finished} is a finished report, which cannot be joined with other inputs.",
            "Open it alone, or open the recordings it was made from.",
        )
    recordings = recordings_beside(Path(finished)) if finished else names
    if finished and (not recordings or not (asks or attribution)):
        return _read(Path(finished), recordings, chosen if asks else None, attribution)
    options = ReportOptions(include=_listed(include), exclude=_listed(exclude), attribution=attribution or "auto")
    return Report(make_report(recordings, options, quiet=True, formats=("html",)), recordings, narrowed=asks)


def _listed(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _read(path: Path, recordings: list[str], chosen: RegionFilter | None, attribution: str | None) -> Report:
    from llm_perf_opt.report.json_report import read_report

    data, mixture = read_report(path), finish_report(path)
    found = Report(attrs.evolve(data, diagnostics=[*data.diagnostics, mixture]) if mixture else data, recordings)
    if attribution is not None and attribution != found.data.attribution:
        raise UserError(
            f"{path} was built with attribution={found.data.attribution!r}, and the recordings are not there to change it.",
            "Open the recordings.",
        )
    return found if chosen is None else found._filtered(chosen)
