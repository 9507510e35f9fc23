"""What a run or a report is asked for, and how the values of options become that, for both front ends.

An option names the places its value goes to (`counters.level`); only options that decide together are handled here
by name. Everything is checked before a tool is looked for or a folder is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs
from attrs import Factory, define

from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.calibration import store
from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics.groups import DEFAULT_LEVEL
from llm_perf_opt.metrics.hardware import parse_overrides
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.nsight.ncu.rank_options import Lockstep
from llm_perf_opt.nsight.nsys.argv import NsysOptions
from llm_perf_opt.nsight.nsys.gpu_metrics import DEFAULT_HZ, RankOnNode
from llm_perf_opt.nsight.option_values import expressions
from llm_perf_opt.options.declared import KERNEL, LAUNCH, MODE, NCU_ENABLE, NSYS_ENABLE, STRATEGY, TOP_N_KERNELS
from llm_perf_opt.options.option import TEXTS, Option
from llm_perf_opt.options.values import bytes_of, local_address, parse_seconds

Strategy = Literal["auto", "as_given"]
# Kernels of a CUDA graph one by one: as one block they would belong to no module and have no signature.
LIGHT_TIMELINE = NsysOptions(cuda_graph_trace="node")
Values = Mapping[Option[Any], Any]
T = TypeVar("T")
_Request = TypeVar("_Request", bound=attrs.AttrsInstance)


@define(frozen=True, kw_only=True)
class TimelineRequest:
    """The timeline nsys takes."""

    enable: bool = True
    options: NsysOptions = LIGHT_TIMELINE
    timeout_s: float | None = None
    max_bytes: int = 2 * 10**9  # a recording that grows beyond is ended; 0: no limit
    recording: str | None = None  # plan for this one instead of taking another
    lines: bool = True  # note which line of the program launches what
    traffic_hz: int = DEFAULT_HZ  # samples a second of what the GPUs move, with counters or of a `rank`; 0: none
    rank: RankOnNode | None = None  # of a job with an nsys for each rank, whose GPU is to be sampled


@define(frozen=True, kw_only=True)
class CounterRequest:
    """The counters ncu takes. Region patterns are those of the report: what is shown is what is measured."""

    enable: bool = True
    # As the user gave them; `nvtx_include` stays empty, patterns go in the report's.
    options: NcuOptions = Factory(NcuOptions)
    # auto: the timeline decides which launches are worth their cost; as_given: ncu gets the options and nothing else.
    strategy: Strategy = "auto"
    gating_nvtx: bool = True  # profile inside the chosen regions only
    sample: str = "all"  # instances of a repeated range: all | first | middle | last | every:N
    level: str = DEFAULT_LEVEL  # of the metrics: time | roofline | bound | stalls | full
    budget_s: float | None = None  # for all captures together; None: what a good result takes
    launches: int = 3  # of each kernel and launch configuration, where the strategy is auto
    top_n_kernels: int | None = None  # the heaviest kernels of the chosen regions; None: all
    fallback: bool = True  # where the program does not allow a replay mode, try the next
    windows: bool = True  # have the program switch ncu on around the planned launches only, where it can
    run_to_end: bool = False  # let the program go on under the profilers when they have all they need
    verify: bool = False  # measure the regions as wholes too, and hold the estimates against that
    timeout_s: float | None = None
    lockstep: Lockstep | None = None  # ranks that ncu keeps in step; None: there is one


@define(frozen=True, kw_only=True)
class AnnotateRequest:
    """Ranges for a Python program that has none of its own."""

    mode: str = "off"  # "off" | "stages" | "modules"
    depth: int = 3  # levels of modules below the model


@define(frozen=True, kw_only=True)
class MeasureRequest:
    """The program by itself, every range timed from inside."""

    enable: bool = True
    runs: int = 1
    timeout_s: float | None = None


@define(frozen=True, kw_only=True)
class ServingRequest:
    """Of a program that serves until it is ended: which part of its run is taken, and the load it is put under."""

    window: int | None = None  # steps after which it is ended
    after: str | None = None  # seconds, or what it prints, before which nothing counts
    load: int | None = None  # requests that the built-in client sends
    concurrency: int = 8
    prompt_tokens: int = 512
    output_tokens: int = 128
    url: str = "http://127.0.0.1:8000"
    load_model: str | None = None  # None: the first that the server lists
    keep: bool = False  # let the server go on when the window is closed
    load_command: str | None = None  # a load generator of the user's own
    counters: bool = False  # take counters of it, which makes its clients wait

    @property
    def is_asked(self) -> bool:
        return any(value is not None for value in (self.window, self.after, self.load, self.load_command))


@define(frozen=True, kw_only=True)
class ProfileRequest:
    """A whole run."""

    command: list[str]
    report: ReportOptions = Factory(ReportOptions)
    timeline: TimelineRequest = Factory(TimelineRequest)
    counters: CounterRequest = Factory(CounterRequest)
    annotate: AnnotateRequest = Factory(AnnotateRequest)
    measure: MeasureRequest = Factory(MeasureRequest)
    serving: ServingRequest = Factory(ServingRequest)
    # Run first, without a profiler: the built-in workload times its stages. A program that fails here costs little.
    timings: list[str] = Factory(list)
    out: str | None = None  # the run directory; None: a fresh one
    calibration: str | None = None  # a file of measured peaks; None: those of this machine
    strict: bool = False
    show_command: bool = False  # of command lines that are written down, hide only what looks like a secret
    label: str = ""  # before each line of progress: which rank of a job it is
    by_keys: bool = False  # asked for by configuration keys: advice names those instead of options
    # What makes two runs the same where the command has paths of its own run in it; empty: the command.
    known_as: list[str] = Factory(list)
    # Of options without a place above, where they are not as by default: see `value`.
    values: Values = Factory(dict)

    def value(self, option: Option[T]) -> T:
        """What an option was set to, for the place where it acts."""
        found: T = self.values[option] if option in self.values else _converted(option, option.default)
        return found

    @property
    def picks_launches(self) -> bool:
        """Did the user say which launches, so that no plan of ours may narrow or widen it?"""
        given = self.counters.options
        chosen = (given.kernel_name, given.kernel_id, given.launch_skip, given.launch_count, given.filter_mode)
        return any(value is not None for value in chosen)


@define(frozen=True, kw_only=True)
class ReportRequest:
    """A report of recordings."""

    report: ReportOptions = Factory(ReportOptions)
    out: str | None = None
    formats: str | None = None  # with commas; None: all
    calibration: str | None = None
    strict: bool = False
    force: bool = False


def report_request(values: Values) -> ReportRequest:
    """What `report` and `ranges` are asked for."""
    return _placed(ReportRequest(), _places(values))


def profile_request(values: Values, command: Sequence[str], **rest: Any) -> ProfileRequest:
    """What a run is asked for; `rest`: fields that are not options."""
    given = {o: _converted(o, value) for o, value in values.items() if not o.to and value != o.default}
    request = ProfileRequest(command=list(command), values=given, **rest)
    together = _decided_by_keys(values) if request.by_keys else _one_launch(values)
    return _of_server(_placed(request, _places(values) | together))


def _of_server(request: ProfileRequest) -> ProfileRequest:
    """Steps of a server are known by the annotation alone. Its counters are taken where that is wanted, in one pass."""
    asked = request.serving
    if not asked.is_asked:
        return request
    if asked.load is not None and asked.load_command is not None:
        raise UserError("--load and --load-command both put the server under load.", "Give one of them.")
    if asked.keep and asked.counters:
        raise UserError("--keep lets the server continue, but --server-counters starts it again.", "Give one of them.")
    local_address(asked.url)
    mode = "stages" if request.annotate.mode == "off" else request.annotate.mode
    annotate = attrs.evolve(request.annotate, mode=mode)
    enable = asked.counters and request.counters.enable
    counters = attrs.evolve(request.counters, enable=enable, launches=1, windows=False, fallback=False)
    return attrs.evolve(request, annotate=annotate, counters=counters)


def _decided_by_keys(values: Values) -> dict[str, Any]:
    """Keys that are left open follow others."""
    timeline, counters, top = values[NSYS_ENABLE], values[NCU_ENABLE], values[TOP_N_KERNELS]
    return {
        "timeline.enable": values[STRATEGY] != "as_given" if timeline is None else timeline,
        "counters.enable": values[MODE] == "deep" if counters is None else counters,
        "counters.top_n_kernels": None if top in (0, TOP_N_KERNELS.default) else top,
        "report.top": max(top, 1),
    }


def _one_launch(values: Values) -> dict[str, Any]:
    """`--kernel`: one launch costs little, so everything is worth knowing of it."""
    launch = values.get(LAUNCH)
    if not values.get(KERNEL):
        if launch is not None:
            raise UserError(
                "--launch selects one launch of a kernel, but no --kernel is given.",
                "Add --kernel NAME; the number of launches of every kernel is --launches.",
            )
        return {}
    places = _places(values)
    return {
        "counters.options.set": None if places.get("counters.options.metrics") else "full",
        "counters.options.launch_skip": (launch or 1) - 1,
        "counters.options.launch_count": 1,
        # A launch is chosen by its number among all that match, wherever it happens, unless regions are named.
        "counters.gating_nvtx": bool(places.get("report.include")),
    }


def _places(values: Values) -> dict[str, Any]:
    """Places in a request with what goes there."""
    return {place: _converted(option, value) for option, value in values.items() for place in option.to}


def _converted(option: Option[Any], value: Any) -> Any:
    if value is None:
        return None
    if option.kind == "size":
        return bytes_of(value)
    if option.kind == "duration":
        return parse_seconds(str(value))
    if option.kind == "patterns":
        # An empty one is refused with the patterns; a configuration may hold null.
        return [str(item) for item in value if item is not None] if isinstance(value, list) else [*expressions(value)]
    if option.kind == "assignments":
        return _assignments(option.flag, value)
    if "report.hardware" in option.to:
        parse_overrides(value)
    if option.kind in TEXTS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # YAML reads 3 as a number
    return value


def _assignments(flag: str, words: Sequence[str]) -> dict[str, str]:
    """Figures of the GPU, `NAME=VALUE` each."""
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        if not value.strip():
            raise UserError(f"{flag} {word} has no value.", f"Write it as {flag} bandwidth=4.8TB/s")
        found[name.strip()] = value.strip()
    parse_overrides(found)
    return found


def _placed(request: _Request, places: Mapping[str, Any]) -> _Request:
    """A copy of a request with values in their places."""
    own: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for place, value in places.items():
        head, _, rest = place.partition(".")
        if rest:
            below.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    if (calibration := own.get("calibration")) is not None:
        store.load(Path(calibration))  # one that cannot be read is refused now, not after the captures
    nested = {head: _placed(getattr(request, head), values) for head, values in below.items()}
    changed: _Request = attrs.evolve(request, **own, **nested)  # type: ignore[misc]  # some class of attrs
    return changed
