"""What `--json` prints, verb by verb: the keys that other programs rely on, declared once.

`llm-perf schema VERB` prints them as JSON Schema; tests hold what the verbs print against it. Keys may be added, none is
renamed, removed or given another meaning without a new `schema_version`. Every verb may print `Failure` instead.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.regions.fixes import Answer, Fix
from llm_perf_opt.regions.idle import IdleTime
from llm_perf_opt.regions.model import RegionWork, TimeSplit, Verdict
from llm_perf_opt.regions.timing import Timing

_Verdict = Literal["better", "worse", "same", "unsure", "not_comparable"]


class Printed(TypedDict):
    """What all of them have."""

    schema_version: str


class FailureText(TypedDict):
    """Why a command failed, and what to do."""

    message: str
    fix: str
    exit_code: int


class Failure(Printed):
    """A command line that was refused, or an input that cannot be used."""

    error: FailureText


class ScopeSummary(TypedDict):
    """One scope of a report."""

    scope: str
    kernel_count: int
    gpu_time_ns: int | None
    regions: int


class ReportSummary(Printed):
    """A report was written: the answer, and where the files are. All of it is in report.json."""

    out: str
    files: list[str]  # below `out`
    matched: bool
    answer: Answer
    scopes: list[ScopeSummary]
    available_ranges: list[str]
    diagnostics: list[Diagnosis]
    replaced: list[str]


class RunFailure(Printed):
    """A run that captured nothing a report could be made of."""

    out: str
    matched: bool
    diagnostics: list[Diagnosis]
    exit_code: int


class Range(TypedDict):
    """A range, and how ncu selects it."""

    key: str
    domain: str
    path: list[str]
    name: str
    kind: str
    instances: int | None
    kernel_count: int
    gpu_time_ns: int | None
    wall_ns: int | None
    nvtx_include: str
    ncu_options: list[str]


class Ranges(Printed):
    """All ranges of a recording."""

    ranges: list[Range]
    available_ranges: list[str]
    diagnostics: list[Diagnosis]


class Cause(TypedDict):
    """A part of a region's change; all of them add up to it."""

    kind: str
    what: str
    delta_ns: float


class Counted(TypedDict):
    """Something that is counted, per instance."""

    what: str
    before: float
    after: float
    changed: bool


class RegionChange(TypedDict):
    """A region of both sides."""

    key: str
    verdict: _Verdict
    reason: str
    before_ns: float | None
    after_ns: float | None
    change: float | None
    interval: list[float] | None
    basis: str
    source: str
    instances: list[int]
    decides: bool
    renamed_from: str | None
    causes: list[Cause]
    exact: list[Counted]


class Comparison(Printed):
    """Two sides, region by region; compare.json has the same without `files` and `exit_code`."""

    verdict: _Verdict
    reasons: list[str]
    base: str
    new: str
    sentences: list[str]
    regions: list[RegionChange]
    new_regions: list[str]
    gone_regions: list[str]
    notes: list[str]
    budgets: list[dict[str, Any]]
    files: NotRequired[list[str]]
    exit_code: NotRequired[int]


class SavedBaseline(Printed):
    """A baseline was written, nothing was compared."""

    baseline: str


class Attempt(TypedDict):
    """A lever that was tried, or several together."""

    name: str
    title: str
    levers: list[str]
    rules: Annotated[list[str], "ids of the fixes that ask for it"]
    applied: Annotated[bool, "it took effect"]
    evidence: Annotated[str, "how that is known"]
    launches: Annotated[list[int] | None, "of one step on a GPU, as it is and with the lever"]
    new_kernels: Annotated[list[str], "of that step, that do not run without it"]
    verdict: _Verdict | Literal["refused", "not applied", "failed", "left out"]
    reason: str
    stage: Annotated[str | None, "key of the region that takes most time"]
    before: Annotated[float | None, "one steady instance of it as it is, ns"]
    after: Annotated[float | None, "the same with the lever, ns"]
    gain: Annotated[float | None, "by what factor the program is faster, over all stages that decide"]
    interval: Annotated[list[float] | None, "of the gain in that stage"]
    predicted_gain: Annotated[float | None, "what the fixes of the report said"]
    outputs: Literal["same", "within noise", "different", "not compared"]
    outputs_detail: str
    difference: Annotated[float | None, "root mean square, as a part of that of the outputs"]
    tolerance: float | None
    warmup_s: Annotated[float | None, "compiling and capturing graphs, more than without it"]
    pays_off_after: Annotated[int | None, "instances of the stage"]
    runs: Annotated[int, "that were timed"]
    changes: Annotated[str, "what it may change in the results"]
    patch: Annotated[list[str], "lines to write in one's own code"]
    place: Annotated[str | None, "file and line where the program first uses what the lever acts on"]
    regions: Annotated[list[RegionChange], "those that decide"]


class Trial(Printed):
    """Levers that were tried; try.json has the same without `out`."""

    out: NotRequired[str]
    command: Annotated[list[str], "the program, secrets removed"]
    best: Annotated[str | None, "the lever that gained most and left the results what they are, or those together"]
    sentences: list[str]
    levers: list[Attempt]
    together: Attempt | None
    program: Annotated[dict[str, int], "what the program did, that levers act on, and how often"]
    notes: list[str]


class Lever(TypedDict):
    """A lever there is."""

    name: str
    title: str
    about: str
    rules: list[str]
    needs: list[str]
    changes: str
    patch: str


class Levers(Printed):
    """`llm-perf try --list`."""

    levers: list[Lever]


class PlannedCapture(TypedDict):
    """A run of ncu that would be made."""

    name: str
    why: str
    launches: int | None
    passes: int | None
    passes_source: str | None
    seconds: float | None
    metrics: list[str]
    argv: list[str]


class Plan(Printed):
    """What `profile` would capture. What depends on a table of launches is there where there is one."""

    timeline: str
    skipped: str
    captures: list[PlannedCapture]
    diagnostics: NotRequired[list[Diagnosis]]
    level: NotRequired[str]
    asked_level: NotRequired[str]
    data_types: NotRequired[list[str]]
    budget_s: NotRequired[float | None]
    program_s: NotRequired[float | None]
    predicted: NotRequired[dict[str, Any]]
    costs: NotRequired[dict[str, Any]]
    regions: NotRequired[dict[str, Any]]
    assumptions: NotRequired[list[str]]
    signatures: NotRequired[list[dict[str, Any]]]
    verification: NotRequired[dict[str, Any]]


class Written(Printed):
    """Files of an export, by its kind."""

    written: dict[str, list[str]]


class ScrubbedFile(TypedDict):
    """A file, and what became of it."""

    path: str
    action: str
    detail: str


class Scrubbed(Printed):
    """A copy that can be shared; `out` is null where the originals were replaced."""

    out: str | None
    files: list[ScrubbedFile]
    warnings: list[str]
    secrets_searched: int
    not_checked: list[str]
    scopes_compared: list[str]


class Calibrated(Printed):
    """Peaks that were measured."""

    out: str
    calibration: dict[str, Any]


class Ready(TypedDict):
    """What would work."""

    timeline: bool
    counters: bool


class DoctorCheck(TypedDict):
    """One thing that profiling depends on."""

    name: str
    state: Literal["ok", "warning", "missing", "error"]
    found: str
    why_it_matters: str
    fix_command: str
    blocks: list[str]


class Examined(Printed):
    """What a machine can do."""

    ready: Ready
    summary: str
    checks: list[DoctorCheck]
    facts: dict[str, Any]
    exit_code: int


class Reason(TypedDict):
    """Something that was left alone."""

    path: str
    reason: str


class NamedReason(TypedDict):
    """A file that was left alone."""

    name: str
    reason: str


class RunEntry(TypedDict):
    """A run directory."""

    path: str
    state: str
    started_at: str | None
    finished_at: str | None
    command: list[str] | None
    bytes: int
    foreign: list[NamedReason]
    problem: str
    result: Annotated[dict[str, str] | None, "stage, verdict, confidence and where of its report"]


class RunList(Printed):
    """`runs list`: newest first."""

    folder: str
    bytes: int
    runs: list[RunEntry]
    others: list[Reason]


class RunShown(Printed, RunEntry):
    """`runs show`."""

    settings: dict[str, Any]
    tools: dict[str, Any]
    steps: list[dict[str, Any]]
    resumed: list[dict[str, Any]]
    files: list[dict[str, Any]]
    report_problem: str
    next: list[str]


class Pruned(Printed):
    """`runs prune`."""

    folder: str
    dry_run: bool
    removed: list[dict[str, Any]]
    failed: list[Reason]
    kept: list[str]
    left: list[Reason]
    bytes_left: int
    too_large: bool


class Packed(Printed):
    """`runs compress`."""

    dry_run: bool
    runs: list[dict[str, Any]]


class History(Printed):
    """`runs history`."""

    programs: list[dict[str, Any]]
    unreadable: list[dict[str, str]]
    files: list[str]


class SweepShown(Printed):
    """`runs sweep`: its jobs, those on the Pareto front marked; sweep.json has the same without `files`."""

    keys: list[str]
    jobs: list[dict[str, Any]]
    best: dict[str, str]
    files: list[str]


class WindowAsked(Printed):
    """`window start` or `window stop`."""

    run: str
    asked: Literal["start", "stop"]


class Opened(Printed):
    """The page of a run; `opened` is false where there is no browser."""

    page: str
    opened: bool


class RegionShown(Printed):
    """One region. Its parts are as in report.json."""

    region: dict[str, Any]
    path: list[str]
    domain: str
    children: list[str]
    timing: Timing | None
    verdict: Verdict | None
    gpu_verdict: Verdict | None
    time: TimeSplit | None
    work: RegionWork | None
    idle: IdleTime | None
    fixes: list[Fix]
    kernels: list[dict[str, Any]]
    kernels_omitted: int
    lines: list[dict[str, Any]]
    counters: list[dict[str, Any]]


class Tool(TypedDict):
    """A question that an agent can ask."""

    name: str
    description: str


class Tools(Printed):
    """`llm-perf mcp --json`: the questions, without a server."""

    root: str
    tools: list[Tool]


class CompletionScript(Printed):
    """A script for a shell."""

    shell: str
    script: str


class SchemaNames(Printed):
    """`llm-perf schema` alone: what there is a schema of."""

    schemas: list[str]


# By what is typed after `llm-perf schema`; several shapes where a verb prints one of them.
SHAPES: dict[str, tuple[type, ...]] = {
    "doctor": (Examined,),
    "measure": (ReportSummary, RunFailure),
    "profile": (ReportSummary, RunFailure, Trial),
    "plan": (Plan,),
    "report": (ReportSummary,),
    "ranges": (Ranges,),
    "show": (RegionShown,),
    "open": (Opened,),
    "compare": (Comparison, SavedBaseline),
    "try": (Trial, Levers, RunFailure),
    "export": (Written,),
    "demo": (ReportSummary,),
    "scrub": (Scrubbed,),
    "calibrate": (Calibrated,),
    "runs list": (RunList,),
    "runs show": (RunShown,),
    "runs sweep": (SweepShown,),
    "runs history": (History,),
    "runs prune": (Pruned,),
    "runs compress": (Packed,),
    "window": (WindowAsked,),
    "mcp": (Tools,),
    "completion": (CompletionScript,),
    "schema": (SchemaNames,),
}
