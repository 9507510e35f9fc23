"""All files of a report, into one folder: what the chosen renderers make of its view."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.files import make_folder, make_folder_inside, write_text
from llm_perf_opt.report.renderers import FORMATS, File, chosen
from llm_perf_opt.report.view import BESIDE, View, view_of
from llm_perf_opt.rundir.contents import listed_in_report, remove
from llm_perf_opt.rundir.layout import REPORT_LIST, is_of_report


def write_report(
    report: NCUProfileRegionReport,
    out: Path,
    formats: Sequence[str] = FORMATS,
    top: int = 30,
    regions: str = BESIDE,
    folders: list[Path] | None = None,
) -> list[Path]:
    """Write the chosen formats and return the files. `regions`: where region folders go, below `out`.

    `folders`: what `write_folders` has written of the same report.
    """
    make_folder(out)
    earlier = {name for name in listed_in_report(out) if is_of_report(name)}
    view = _view(report, formats, top, regions)
    written = list(_write(out, _region_files(view, formats))) if folders is None else [*folders]
    # report.json last: where it is, the others are.
    for renderer in reversed(chosen(formats)):
        files = renderer.render(view)
        written += _write(out, (f for f in files if not (f.stands_in and _is_of_others(out, f.place, earlier))))
    _forget(out, earlier - {str(path.relative_to(out)) for path in written})
    write_text(out / REPORT_LIST, "".join(f"{path.relative_to(out)}\n" for path in written))
    return written


def write_folders(
    report: NCUProfileRegionReport, out: Path, formats: Sequence[str] = FORMATS, top: int = 30, regions: str = BESIDE
) -> list[Path]:
    """The files of the single regions: all of a report that does not depend on how its run ended."""
    make_folder(out)
    return list(_write(out, _region_files(_view(report, formats, top, regions), formats)))


def _view(report: NCUProfileRegionReport, formats: Sequence[str], top: int, regions: str) -> View:
    folders = any(renderer.render_region for renderer in chosen(formats))
    return view_of(report, top=top, regions_at=regions, folders=folders)


def _region_files(view: View, formats: Sequence[str]) -> Iterator[File]:
    renderers = [renderer.render_region for renderer in chosen(formats) if renderer.render_region]
    for region in view.regions:
        for render in renderers if region.folder else ():
            for file in render(view, region):
                yield File(f"{view.regions_at}/{region.folder}/{file.place}", file.text)


def _write(out: Path, files: Iterable[File]) -> Iterator[Path]:
    for file in files:
        place = PurePosixPath(file.place)
        yield write_text(make_folder_inside(out, *place.parent.parts) / place.name, file.text)


def _is_of_others(out: Path, place: str, earlier: set[str]) -> bool:
    return place not in earlier and (out / place).exists()


def _forget(out: Path, names: set[str]) -> None:
    """Remove files of an earlier report that this one does not have, so that old and new never mix."""
    for name in names:
        with contextlib.suppress(OSError):  # one that cannot go, or that a link leads to, stays
            remove(out.resolve(), [name])
