"""Every file of a run directory, once: who writes it, what may be done with it, and what it is.

Adding a file to a run means a row here and the code that writes it. Resume, scrub, prune, compress, the reports' own
clean-up, the inputs of a report and the table in docs/running.md all follow from the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import PurePath, PurePosixPath
from typing import Literal

from attrs import define, evolve

from llm_perf_opt.files import finished_name
from llm_perf_opt.nsight.nsys import TRAFFIC_SET

MANIFEST = "manifest.json"
LOCK = ".lock"
RESERVE = ".reserve"  # removed when the disk is full
REPORT_LIST = ".llm-perf-files"  # what the report in the folder consists of
REPORT_LOCK = ".llm-perf-lock"  # while a report is put into the folder
COMMIT = ".llm-perf-commit"  # a whole new report that is being moved to its places
SWEEP = "multirun.yaml"  # of Hydra, beside the runs of a sweep
SWEEP_FILES = {  # of ours there, with how they begin
    "sweep.json": b'{\n "schema_version": ',
    "sweep.md": b"<!-- llm-perf compare -->",
    "sweep.html": b"<!doctype html>\n<!-- llm-perf compare -->",
}
DRAFT = re.compile(r"\.llm-perf-report\.(?P<pid>\d+)\..+\.tmp")  # folders of reports that are being written
VERIFY = "verify"  # the capture of whole regions that the estimates are compared with
PACKED = (".gz", ".xz")
JOB = "job.json"  # in the folder that the ranks of a job share
RANKS = "ranks"  # below it: a run directory for each rank
MERGED_BY = ".merged-by"  # below it: the rank that makes the report of all
RANK_FOLDER = re.compile(r"rank-(?P<rank>\d{1,6})")
_IN_RANK = re.compile(rf"^{RANKS}/{RANK_FOLDER.pattern}/")
EARLIER = re.compile(r"earlier-(\d{1,6})")  # folders of what was taken again when the run was resumed

Writer = Literal[
    "run", "measure", "stage1", "nsys", "export", "stats", "ncu", "raw", "details", "report", "try", "hydra"
]
# What a copy to share has of it: rebuilt from known tables, cleaned in its format or as a text (of a report only known
# secrets go: its words are names of regions), or not at all because it cannot be cleaned or is of use here only.
# Of what a program printed only the number of lines is shared, of a profiler's log the lines that are known; settings
# and command lines are cleaned anew.
Share = Literal[
    "sqlite", "ncu-rep", "environment", "settings", "commands", "cmd", "text", "report", "page", "output",
    "profiler log", "drop", "leave out",
]  # fmt: skip
Input = Literal["", "timeline", "measured", "counters", "counter table"]

_CAPTURE = "{capture}"


@define(frozen=True)
class Artefact:
    """One file, or one kind of files, of a run directory."""

    path: str  # below the run; `{capture}`: the name of a capture, `*`: anything (ours only where a report lists it)
    step: Writer  # who writes it
    share: Share
    about: str = ""  # a line for the documentation; those with the same line share one
    wide: str = ""  # files recorded by hand under such names are read and shared too, but never removed
    input: Input = ""  # what a report reads it as; the first that is there wins
    pack: bool = False  # large enough to be packed
    retaken: bool = False  # moved out of the way when its step is taken again

    @property
    def pattern(self) -> str:
        """Names it is recognised by."""
        return self.wide or self.path.replace(_CAPTURE, "*")

    @property
    def is_fixed(self) -> bool:
        return _CAPTURE not in self.path and "*" not in self.path

    def matches(self, name: str) -> bool:
        """Is this path below a run, neither packed nor unfinished, such a file?"""
        parts, wanted = name.split("/"), self.pattern.split("/")
        return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _rows(step: Writer, share: Share, about: str, *paths: str, retaken: bool = False) -> tuple[Artefact, ...]:
    return tuple(Artefact(path, step, share, about, retaken=retaken) for path in paths)


_STAGE1_ABOUT = "stage 1 of the built-in workload: times of its stages, operators, FLOPs and bytes by formula"
_UNDER_PROFILERS = "the same files of the built-in workload when run under the profilers"
_WORKLOAD = (
    Artefact(
        "env.json", "run", "environment", "environment variables that are known to matter, if their values are plain"
    ),
    Artefact("inputs.yaml", "run", "settings", "the inputs of the built-in workload"),
    Artefact("predictions.jsonl", "stage1", "output", "what the built-in workload generated"),
    *_rows("stage1", "text", _STAGE1_ABOUT, *(f"torch_profiler/{n}" for n in ("report.md", "operators.md"))),
    *_rows("stage1", "text", _STAGE1_ABOUT, "torch_profiler/metrics.json"),
    Artefact("torch_profiler/trace.json", "stage1", "text", _STAGE1_ABOUT, input="timeline"),
    *_rows("stage1", "text", _STAGE1_ABOUT, *(f"static_analysis/static_compute.{ending}" for ending in ("json", "md"))),
)
_TIMELINE = "the timeline, as SQLite and in nsys's own format"
_LOAD = "for servers: how long answers took, as seen by the built-in client"
_GENERATOR = "for servers: output of the load generator"
_VERIFICATION = "with `--verify`: whole regions, measured; not mixed into the report's values"
_SECTIONS = "the requested sections: ncu's own details page, or counters under ncu's section titles"
_WINDOWS = "where ncu was switched on and off from inside the program, with notes from the program"
_REGION_FILES = ("report.md", "kernels.csv", "metrics.csv", "sections.txt")
_HERE_ONLY = "only for the run itself: locks, reserved disk space, the list of the report's files"

ARTEFACTS: tuple[Artefact, ...] = (
    Artefact(
        MANIFEST,
        "run",
        "commands",
        "what ran, tool versions, GPU, driver, clocks before and after, every command with exit code, time and "
        "diagnoses; updated during the run",
    ),
    Artefact(JOB, "run", "commands", "for jobs with one llm-perf per rank: launcher, ranks and command"),
    *_rows("run", "leave out", _HERE_ONLY, LOCK, RESERVE, REPORT_LIST, REPORT_LOCK, MERGED_BY, "nsys/.program.pid"),
    Artefact("config.yaml", "run", "settings", "the requested settings"),
    Artefact("plan.json", "run", "commands", "which launches were planned, and their predicted cost"),
    *_rows(
        "run",
        "cmd",
        "the commands, to paste into a shell",
        *(f"{f}cmd.txt" for f in ("", "nsys/", "ncu/", "measure/", "try/")),
    ),
    Artefact("annotate.jsonl", "nsys", "output", "notes of the injected ranges", retaken=True),
    Artefact(
        *("measure/run.json", "measure", "report", "times of the program's ranges without a profiler"),
        input="measured",
        retaken=True,
    ),
    Artefact("measure/annotate.jsonl", "measure", "output", "notes of the injected timers", retaken=True),
    Artefact("measure/workload.log", "measure", "output", "output of the program in each run", retaken=True),
    *_rows("measure", "text", _LOAD, "measure/load.json"),
    *_rows("nsys", "text", _LOAD, "nsys/load.json"),
    *_rows("ncu", "text", _LOAD, "ncu/load.json"),
    *_rows("measure", "output", _GENERATOR, "measure/load.log"),
    *_rows("nsys", "output", _GENERATOR, "nsys/load.log"),
    *_rows("ncu", "output", _GENERATOR, "ncu/load.log"),
    *_rows("run", "leave out", _HERE_ONLY, ".window-start", ".window-stop"),
    Artefact("try.json", "try", "report", "which levers were tried, what each gained, and whether the outputs agree"),
    Artefact("try.html", "try", "page", "the same as a page"),
    Artefact("try/workload.log", "try", "output", "output of the program in each run"),
    Artefact("stage1.log", "stage1", "output", "output of stage 1", retaken=True),
    Artefact("workload.log", "nsys", "output", "output of the program in each run", retaken=True),
    # -- the timeline
    Artefact("nsys/run.sqlite", "export", "sqlite", _TIMELINE, "nsys/*.sqlite", "timeline", pack=True, retaken=True),
    Artefact("nsys/run.nsys-rep", "nsys", "drop", _TIMELINE, "nsys/*.nsys-rep", "timeline", pack=True, retaken=True),
    Artefact("nsys/run.qdstrm", "nsys", "drop", "an unfinished timeline", wide="nsys/*.qdstrm", retaken=True),
    Artefact("nsys/*.qdrep", "nsys", "drop"),
    Artefact(
        *("nsys/summary_cuda_gpu_kern_sum.csv", "stats", "text", "nsys's own table of the kernels"),
        wide="nsys/*.csv",
        pack=True,
    ),
    Artefact("nsys/nsys.log", "nsys", "profiler log", "output of the profilers", wide="nsys/*.log", retaken=True),
    Artefact("nsys/window.json", "nsys", "text", "after which range the program was ended", retaken=True),
    Artefact(f"nsys/{TRAFFIC_SET}", "nsys", "text", "which counters of the whole GPU were sampled"),
    *_WORKLOAD,
    *(evolve(row, path=f"workload/{row.path}", input="", about=_UNDER_PROFILERS) for row in _WORKLOAD),
    # -- counters
    Artefact(f"ncu/{VERIFY}.ncu-rep", "ncu", "ncu-rep", _VERIFICATION, pack=True),
    Artefact(
        "ncu/{capture}.ncu-rep", "ncu", "ncu-rep", "counters of one capture", input="counters", pack=True, retaken=True
    ),
    Artefact("ncu/{capture}-workload.log", "ncu", "output", "output of the program in each run", retaken=True),
    Artefact("ncu/{capture}.log", "ncu", "profiler log", "output of the profilers", retaken=True),
    Artefact("ncu/{capture}-windows.json", "ncu", "text", _WINDOWS, retaken=True),
    Artefact("ncu/{capture}-windows.jsonl", "ncu", "output", _WINDOWS, retaken=True),
    Artefact("ncu/raw-{capture}.csv", "raw", "text", "the counters as a table", pack=True, retaken=True),
    Artefact(
        *("ncu/raw.csv", "raw", "text", "the counters as a table", "ncu/raw*.csv", "counter table"),
        pack=True,
        retaken=True,
    ),
    # As ncu prints them where sections were asked for; without ncu the report has its own.
    *_rows("details", "text", _SECTIONS, "ncu/sections_report.txt", "ncu/sections_report-{capture}.txt", retaken=True),
    # -- the report; what a renderer adds under such names is the report's too
    *_rows("report", "page", "the report", "report.html"),
    *_rows("report", "report", "the report", "report.json", "report.md", "report.*"),
    *_rows(
        "report", "report", "regions and kernels as tables", "regions.csv", "kernels.csv", "kernels.md", "kernels.*"
    ),
    *_rows("report", "report", "a page for readers who do not profile", "stakeholder_summary.md"),
    *_rows("report", "report", "the pictures of the report", "pictures/*.svg"),
    *_rows("report", "report", "a copy of the report next to its regions", "ncu/regions/report.json"),
    *_rows("report", "report", "a copy of the report next to its regions", "ncu/regions/report.md"),
    *_rows("report", "report", "a folder for each region", *(f"ncu/regions/*/{name}" for name in _REGION_FILES)),
    *_rows("report", "report", "", *(f"regions/*/{name}" for name in _REGION_FILES)),
    *_rows("hydra", "settings", "the configuration and log of the Hydra runners", ".hydra/*.yaml"),
    *_rows("hydra", "output", "the configuration and log of the Hydra runners", "*.log"),
)
FOLDERS = tuple(dict.fromkeys(a.path.partition("/")[0] for a in ARTEFACTS if "/" in a.path and a.step != "hydra"))
_FOLDER_OF = {"nsys": "nsys", "export": "nsys", "stats": "nsys", "ncu": "ncu", "raw": "ncu", "details": "ncu"}


@lru_cache(maxsize=4096)  # a run asks for each of its files several times
def artefact(name: str) -> Artefact | None:
    """The row of a path below a run, or below that of a rank in its job, packed or not; None where there is no such."""
    plain = _IN_RANK.sub("", name)
    for ending in PACKED:
        plain = plain.removesuffix(ending)
    return next((row for row in ARTEFACTS if row.matches(plain)), None)


def rank_folder(rank: int) -> PurePosixPath:
    """The run directory of a rank, below the folder of its job."""
    return PurePosixPath(RANKS) / f"rank-{rank}"


def rank_of_folder(path: PurePath) -> int | None:
    """The rank whose run directory a path is, or lies in."""
    for folder in (path, *path.parents):
        if (found := RANK_FOLDER.fullmatch(folder.name)) and folder.parent.name == RANKS:
            return int(found["rank"])
    return None


def unfinished(name: str) -> str | None:
    """The path that a half-written file below a run was to get; None where it is whole."""
    path = PurePosixPath(name)
    finished = finished_name(path.name)
    return None if finished is None else str(path.with_name(finished))


def is_half_written(name: str) -> bool:
    """Is this what a killed process was writing? Tools write tables to `.NAME.tmp`, we to `.NAME.PID.tmp`."""
    row = artefact(unfinished(name) or "")
    return row is not None and (
        row.step in ("export", "stats", "raw", "details") or re.search(r"\.\d+\.tmp$", name) is not None
    )


def is_of_report(name: str) -> bool:
    """Could a report have written this? Its list is only a file, and may name recordings or files elsewhere."""
    return any(row.step in ("report", "details") and row.matches(name) for row in ARTEFACTS)


def input_patterns(read_as: Input) -> Iterator[str]:
    """Where a run keeps what a report reads, in the order of preference."""
    for row in ARTEFACTS:
        if read_as and row.input == read_as:
            yield from (row.pattern + ending for ending in ("", *PACKED))


def verification_files() -> tuple[str, ...]:
    return tuple(f"ncu/{VERIFY}.ncu-rep{ending}" for ending in ("", *PACKED))


def is_of_verification(name: str) -> bool:
    """Is this file of the capture of whole regions?"""
    return name.startswith((f"{VERIFY}.", f"raw-{VERIFY}."))


def retaken_with(step: str, capture: str = "") -> list[str]:
    """What has to be out of the way when a step is taken again."""
    steps = (step, "export") if step == "nsys" else (step,)
    rows = [row for row in ARTEFACTS if row.step in steps and row.retaken]
    return [*(row.path for row in rows if row.is_fixed), *_of_capture(rows, capture)]


def _of_capture(rows: list[Artefact], capture: str) -> Iterator[str]:
    if is_plain(capture):
        yield from (row.path.replace(_CAPTURE, capture) for row in rows if _CAPTURE in row.path)


@cache
def fixed_names() -> frozenset[str]:
    """Paths that are this project's in every run."""
    return frozenset(row.path for row in ARTEFACTS if row.is_fixed)


def names_of_step(step: str, capture: str, files: dict[str, int]) -> Iterator[str]:
    """Paths that are this project's because the manifest has such a step."""
    folder = _FOLDER_OF.get(step)
    if folder is not None:
        yield from (f"{folder}/{name}" for name in files if is_plain(name))
        if folder == "ncu":
            yield from _of_capture([row for row in ARTEFACTS if row.step in ("ncu", "raw", "details")], capture)


def is_known(name: str, ours: frozenset[str]) -> bool:
    """Is this path below a run one of `ours`, whole or unfinished, packed or not, moved away or not?"""
    path = PurePosixPath(name)
    if path.parts[0] == COMMIT or DRAFT.fullmatch(path.parts[0]):
        return True  # of a report whose writer was killed
    if len(path.parts) > 1 and EARLIER.fullmatch(path.parts[0]):
        name = str(path.relative_to(path.parts[0]))
    plain = unfinished(name) or name
    return plain in ours or any(plain.removesuffix(ending) in ours for ending in PACKED)


def is_plain(name: str) -> bool:
    """Can this be the name of a file in a folder? A manifest may come from anyone: it never leads out of the run."""
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name
