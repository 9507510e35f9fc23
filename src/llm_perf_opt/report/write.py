"""All files of a report, into one folder, as a whole: what the chosen renderers make of its view."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from attrs import evolve

from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.files import make_folder
from llm_perf_opt.report.renderers import FORMATS, File, chosen
from llm_perf_opt.report.view import BESIDE, View, view_of
from llm_perf_opt.rundir.draft import Draft
from llm_perf_opt.rundir.generation import is_ours


def write_report(
    report: NCUProfileRegionReport,
    out: Path,
    formats: Collection[str] = FORMATS,
    top: int = 30,
    regions: str = BESIDE,
    draft: Draft | None = None,
    *,
    force: bool = False,
    replaced: list[str] | None = None,
) -> list[Path]:
    """Write the chosen formats and return the files. `regions`: where region folders go, below `out`.
    `draft`: what `draft_folders` has written of the same report. `force`: files that are not ours are replaced, and
    noted in `replaced`.
    """
    with _told(out):
        begun = draft or _begin(out)
        try:
            view = _view(report, begun, formats, top, regions)
            if draft is None:
                _write(begun, _region_files(view, formats))
            for renderer in reversed(chosen(formats)):
                _write(begun, (f for f in renderer.render(view) if not (f.stands_in and _is_of_others(out, f.place))))
            foreign = begun.publish(force=force)
        except BaseException:
            begun.discard()
            raise
    if replaced is not None:
        replaced += foreign
    return [out / place for place in begun.files]


def draft_folders(
    report: NCUProfileRegionReport, out: Path, formats: Collection[str] = FORMATS, top: int = 30, regions: str = BESIDE
) -> Draft:
    """A draft with the files of the single regions: all of a report that does not depend on how its run ended."""
    with _told(out):
        draft = _begin(out)
        try:
            _write(draft, _region_files(_view(report, draft, formats, top, regions), formats))
        except BaseException:
            draft.discard()
            raise
    return draft


def _begin(out: Path) -> Draft:
    made = not out.exists()
    return Draft.begin(make_folder(out, "--out"), made=made)


@contextlib.contextmanager
def _told(out: Path) -> Iterator[None]:
    """What the system refuses, in words; the report that was there is as it was."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {out}: {error.strerror or error} ({error.filename or out}).",
            "Free some space, or choose another folder with --out. What was there has not changed.",
        ) from error


def _view(report: NCUProfileRegionReport, draft: Draft, formats: Collection[str], top: int, regions: str) -> View:
    folders = any(renderer.render_region for renderer in chosen(formats))
    return view_of(evolve(report, generation=draft.generation), top=top, regions_at=regions, folders=folders)


def _region_files(view: View, formats: Collection[str]) -> Iterator[File]:
    renderers = [renderer.render_region for renderer in chosen(formats) if renderer.render_region]
    for region in view.regions:
        for render in renderers if region.folder else ():
            for file in render(view, region):
                yield File(f"{view.regions_at}/{region.folder}/{file.place}", file.text)


def _is_of_others(out: Path, place: str) -> bool:
    return (out / place).exists() and not is_ours(out, place)


def _write(draft: Draft, files: Iterable[File]) -> None:
    for file in files:
        draft.add(file.place, file.text)
