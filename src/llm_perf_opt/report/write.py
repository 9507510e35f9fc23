"""All files of a report, into one folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report import csv_report
from llm_perf_opt.report.files import folder_names, make_folder, make_folder_inside, write_text
from llm_perf_opt.report.json_report import render_json
from llm_perf_opt.report.sections import render_sections
from llm_perf_opt.report.text import gpu_time
from llm_perf_opt.rundir.contents import listed_in_report, remove
from llm_perf_opt.rundir.layout import REPORT_LIST, is_of_report

FORMATS = ("json", "md", "csv", "html")
MOST_FOLDERS = 256  # regions with a folder of their own: those with the most GPU time


def write_report(
    report: NCUProfileRegionReport,
    out: Path,
    formats: Sequence[str] = FORMATS,
    top: int = 30,
    regions: str = "regions",
    folders: list[Path] | None = None,
) -> list[Path]:
    """Write the chosen formats and return the files. `regions`: where region folders go, below `out`.

    `folders`: what `write_folders` has written of the same report.
    """
    make_folder(out)
    earlier = {name for name in listed_in_report(out) if is_of_report(name)}
    written: list[Path] = []
    if folders is None:
        _name_folders(report, formats)
    if "md" in formats:
        from llm_perf_opt.report import markdown
        from llm_perf_opt.report.pictures import pictures
        from llm_perf_opt.report.stakeholder import render_stakeholder

        drawn = pictures(report)
        for picture in drawn:
            written.append(write_text(make_folder_inside(out, _PICTURES) / picture.name, picture.svg))
        shown = [(picture.title, f"{_PICTURES}/{picture.name}") for picture in drawn]
        written.append(write_text(out / "report.md", markdown.render_markdown(report, top, shown)))
        written.append(write_text(out / "kernels.md", markdown.render_kernels(report)))
        written.append(write_text(out / "stakeholder_summary.md", render_stakeholder(report)))
    if "csv" in formats:
        written.append(write_text(out / "regions.csv", csv_report.render_regions(report)))
        written.append(write_text(out / "kernels.csv", csv_report.render_kernels(report)))
    if "html" in formats:
        from llm_perf_opt.report.html import render_html

        written.append(write_text(out / "report.html", render_html(report, top)))
    written += _write_folders(report, out, regions, formats, top) if folders is None else folders
    if "json" in formats:
        # Last, because it names the folders of the regions.
        written.append(write_text(out / "report.json", render_json(report)))
    if regions != _BESIDE:
        written += _write_sections(report, out, Path(regions).parent, formats)
        # A run directory keeps a copy of the region report with the folders of its regions.
        for name in ("report.json", "report.md"):
            if out / name in written:
                text = (out / name).read_text(encoding="utf-8")
                if name.endswith(".md"):
                    # Pictures are once in the run, seen from another folder.
                    text = text.replace(f"]({_PICTURES}/", f"]({'../' * len(Path(regions).parts)}{_PICTURES}/")
                written.append(write_text(make_folder_inside(out, *Path(regions).parts) / name, text))
    _forget(out, earlier - {str(path.relative_to(out)) for path in written})
    write_text(out / REPORT_LIST, "".join(f"{path.relative_to(out)}\n" for path in written))
    return written


def write_folders(
    report: NCUProfileRegionReport,
    out: Path,
    formats: Sequence[str] = FORMATS,
    top: int = 30,
    regions: str = "regions",
) -> list[Path]:
    """The files of the single regions: all of a report that does not depend on how its run ended."""
    make_folder(out)
    _name_folders(report, formats)
    return _write_folders(report, out, regions, formats, top)


def _write_sections(report: NCUProfileRegionReport, out: Path, below: Path, formats: Sequence[str]) -> list[Path]:
    """All regions under ncu's section titles in one text, where sections were collected."""
    scope = report.main_scope
    regions = [region for region in (scope.regions if scope else []) if region.sections]
    if "md" not in formats or not regions:
        return []
    text = "\n".join(render_sections(region) for region in regions)
    return [write_text(make_folder_inside(out, *below.parts) / "sections_report.txt", text)]


_PICTURES = "pictures"
_BESIDE = "regions"  # region folders beside the report


def _forget(out: Path, names: set[str]) -> None:
    """Remove files of an earlier report that this one does not have, so that old and new never mix."""
    for name in names:
        with contextlib.suppress(OSError):  # one that cannot go, or that a link leads to, stays
            remove(out.resolve(), [name])


def _name_folders(report: NCUProfileRegionReport, formats: Sequence[str]) -> None:
    """Give the heaviest regions of the main scope a folder; say so where not all get one."""
    scope = report.main_scope
    if scope is None or not {"md", "csv"} & set(formats):
        return
    chosen = sorted(scope.regions, key=lambda r: -(gpu_time(r.inclusive) or 0))[:MOST_FOLDERS]
    labels = [(r.domain, [*r.path, "start-end"] if r.range_kind == "start_end" else r.path) for r in chosen]
    for region, name in zip(chosen, folder_names(labels), strict=True):
        region.folder = name
    left = len(scope.regions) - len(chosen)
    if left > 0:
        report.diagnostics.append(
            Diagnosis(
                "REGION_FOLDERS_CUT",
                "info",
                f"The {MOST_FOLDERS} regions with the most GPU time have folders of their own; {left:,} more are in report.json and regions.csv.",
                "Choose regions with --include.",
            )
        )


def _write_folders(
    report: NCUProfileRegionReport, out: Path, regions: str, formats: Sequence[str], top: int
) -> list[Path]:
    from llm_perf_opt.report.markdown import render_region

    scope = report.main_scope
    written: list[Path] = []
    for region in scope.regions if scope else []:
        if not region.folder:
            continue
        here = make_folder_inside(out, *Path(regions).parts, region.folder)
        if "csv" in formats:
            written.append(write_text(here / "kernels.csv", csv_report.render_region_kernels(region)))
            written.append(write_text(here / "metrics.csv", csv_report.render_region_metrics(region)))
        if "md" in formats:
            written.append(write_text(here / "report.md", render_region(region, top)))
            written.append(write_text(here / "sections.txt", render_sections(region)))
    return written
