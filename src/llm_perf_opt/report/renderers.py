"""What outputs are: the renderers behind `--format` of `llm-perf report`, and the options of `llm-perf export`.

A new output is a module with a `RENDERER` and one entry in `formats.py`, or with an `EXPORTER` and one line here; the
command lines, the writing and the list in the docs follow. The modules are imported when they are used: some need a
while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define

from llm_perf_opt.formats import FORMATS as FORMATS  # for those who write

if TYPE_CHECKING:
    from llm_perf_opt.regions.attribution import Attribution
    from llm_perf_opt.regions.columns import Timeline
    from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
    from llm_perf_opt.report.view import View


@define(frozen=True)
class ExportOption:
    """An option of `llm-perf export`: all that the command line needs to know."""

    name: str
    metavar: str  # FILE or DIR
    what: str  # for the help text
    module: str  # holds its EXPORTER


EXPORTS = (
    ExportOption("perfetto", "FILE", "write a trace; .gz at the end of the name packs it", "perfetto"),
    ExportOption("csv", "DIR", "write tables as CSV", "tables"),
    ExportOption("parquet", "DIR", "write tables as Parquet (needs pyarrow)", "parquet"),
)


@define(frozen=True)
class File:
    """One file of an output: its place below the output folder, with `/`, and what is in it."""

    place: str
    text: str
    stands_in: bool = False  # a file of the same name that a profiler wrote is the better one


@define(frozen=True)
class Renderer:
    """Turns a view into the files of one format."""

    what: str  # for the docs: the files it writes, and what is in them
    render: Callable[[View], Iterable[File]]
    render_region: Callable[[View, NCUProfileRegion], Iterable[File]] | None = None  # names relative to its folder
    needs_launches: bool = False  # draws single launches: the report has to be built with them


@define(frozen=True)
class ExportSource:
    """What can be exported: the report, and where there is a timeline that with its ranges."""

    report: Callable[[], NCUProfileRegionReport]  # built when it is needed
    timeline: Timeline | None
    attribution: Callable[[], Attribution]


@define(frozen=True)
class Exporter:
    """Writes files for other programs."""

    write: Callable[[ExportSource, Path], list[Path]]
    files: Callable[[Path], list[Path]]  # all that it may write there
    is_ours: Callable[[Path], bool]  # did it write this file?
    needs_timeline: bool = False
    note: str = ""  # what to do with the files


def renderer(name: str) -> Renderer:
    found: Renderer = import_module(FORMATS[name].module, "llm_perf_opt.report").RENDERER
    return found


def exporter(option: ExportOption) -> Exporter:
    found: Exporter = import_module(f"llm_perf_opt.report.{option.module}").EXPORTER
    return found


def chosen(formats: Collection[str]) -> list[Renderer]:
    """The renderers of these formats, in the order of the registry."""
    return [renderer(name) for name in FORMATS if name in formats]


def needs_launches(formats: Collection[str]) -> bool:
    """Whether one of these formats draws single launches."""
    return any(found.needs_launches for found in chosen(formats))
