"""What a resumed run has already: filled by the steps, each with its own part (steps/), and read by them again."""

from __future__ import annotations

from pathlib import Path

from attrs import Factory, define

from llm_perf_opt.planning import PlannedCapture


@define
class ResumeState:
    """What a run need not take again. A new run has nothing."""

    resumed: bool = False
    timings: bool = False
    recording: bool = False  # nsys's own; its export may be missing
    timeline: Path | None = None  # the export
    captures: list[PlannedCapture] | None = None  # as they were planned; None: there is no plan yet
    reports: dict[str, list[Path]] = Factory(dict)  # of ncu, by the name of the planned capture
    verification: bool = False  # the regions measured as wholes
    # Tables the tools print of their recordings; written last, so a kill may have cost them alone.
    lacks_summary: bool = False
    lacks_table: list[Path] = Factory(list)  # reports of ncu
