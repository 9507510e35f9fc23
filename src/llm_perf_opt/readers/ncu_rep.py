"""Nsight Compute's `.ncu-rep`, through NVIDIA's own reader.

Every action keeps its whole NVTX stack in every domain, so one kernel-replay report serves all regions.
Actions of one report may carry different metrics. A metric's `rollup_operation()` says how it combines
over the units of the chip, and that is also how plain counters combine over launches; percentages,
rates and ratios (metrics with a sub-type) are averaged, weighted by time, never added.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from llm_perf_opt.errors import MissingTool, UnreadableInput
from llm_perf_opt.readers.device_facts import device_facts
from llm_perf_opt.readers.ncu_container import read_container
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo, Rule
from llm_perf_opt.regions.model import Diagnosis

# Facts about the device, the launch and the profiler: not counters of the kernel's work.
_NOT_COUNTERS = re.compile(
    r"^(device__|launch__|profiler__|numa__|nvlink__|c2clink__|breakdown:|group:|pmsampling:|source__|derived_temp|smsp__pcsamp)"
)
_ROLLUPS = {1: "mean", 2: "max", 3: "min", 4: "sum"}  # IMetric.RollupOperation_*
_KINDS = {0: "kernel", 1: "range", 2: "range", 3: "graph"}  # IAction.WorkloadType_*
_NUMBERS = {3, 4, 5, 6}  # IMetric.ValueKind_FLOAT … UINT64

DEFAULT_DOMAIN = "<default domain>"

Progress = Callable[[int], None]


def read_ncu_rep(path: Path, source: str, *, progress: Progress | None = None) -> CounterSet:
    """Read a report. Raises `UnreadableInput` for a damaged file, `MissingTool` without the reader."""
    try:
        import ncu_report
    except ImportError as error:
        raise MissingTool(
            f"{source} is an Nsight Compute report, and the package that reads them is not installed.",
            "Install it with: pip install ncu-report  (Linux x86-64), or export the report: ncu --import FILE --csv --page raw",
        ) from error
    container = read_container(path, source)
    try:
        with path.open("rb") as file:
            counters = _read(
                ncu_report.load_report(_utf8_name(path, file)),  # type: ignore[no-untyped-call,call-arg]
                source,
                container.process_ids,
                container.process_of_result,
                progress,
            )
    except (RuntimeError, TypeError, AttributeError, ValueError, SystemError, OSError) as error:
        # The reader does not check what it reads: damage surfaces as any of these, far from its cause.
        raise UnreadableInput(
            f"{source} is a damaged Nsight Compute report: NVIDIA's reader gave up on it ({error}).",
            "Copy the file again, or profile again.",
        ) from error
    if len(counters.actions) < container.results:
        # The reader leaves out what it cannot parse, with a line on stderr at the most.
        raise UnreadableInput(
            f"{source} is a damaged Nsight Compute report: NVIDIA's reader finds {len(counters.actions)} of its "
            f"{container.results} results.",
            "Copy the file again, or profile again.",
        )
    return counters


def _utf8_name(path: Path, file: IO[bytes]) -> str:
    """A name of an open file that NVIDIA's reader takes: it wants UTF-8, which a path need not be."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"/proc/self/fd/{file.fileno()}"
    return str(path)


def _read(report: Any, source: str, pids: list[int], pid_of: list[int] | None, progress: Progress | None) -> CounterSet:
    counters = CounterSet(source=source, kind="ncu-rep", actions=[])
    gpus: dict[int, str] = {}
    for range_index in range(report.num_ranges()):
        result_range = report.range_by_idx(range_index)
        for index in range(result_range.num_actions()):
            action = _action(result_range.action_by_idx(index), counters, gpus)
            counters.actions.append(action)
            if progress is not None:
                progress(1)
    if pid_of is not None and len(pid_of) == len(counters.actions):
        for action, pid in zip(counters.actions, pid_of, strict=True):
            action.process = pid
    elif len(pids) == 1:
        for action in counters.actions:
            action.process = pids[0]
    elif pids:
        counters.diagnostics.append(
            Diagnosis(
                "UNKNOWN_PROCESSES",
                "info",
                f"{source} holds results of {len(pids)} processes but does not say which result is whose.",
            )
        )
    counters.environment = {"tool": "Nsight Compute", "gpus": gpus}
    if not counters.actions:
        counters.diagnostics.append(
            Diagnosis(
                "NO_RESULTS",
                "warning",
                f"{source} holds no results: ncu profiled nothing.",
                "The NVTX or kernel filter matched no launch. List what exists with: llm-perf ranges TIMELINE",
            )
        )
    return counters


def _action(raw: Any, counters: CounterSet, gpus: dict[int, str]) -> Action:
    names = list(raw.metric_names())
    if not names:
        raise ValueError("a result without any metric")
    kind = _KINDS.get(int(raw.workload_type()), "range")
    facts = _facts(raw, names)
    action = Action(
        kind=kind,
        name=_text(raw.name(raw.NameBase_DEMANGLED)) or _text(raw.name()),
        device=facts("launch__device_id"),
        passes=facts("profiler__replayer_passes"),
    )
    if action.device is not None and "device__attribute_display_name" in names:
        gpus[action.device] = _text(raw.metric_by_name("device__attribute_display_name").as_string())
        if action.device not in counters.gpu_facts:
            counters.gpu_facts[action.device] = device_facts(gpus[action.device], facts)
    if kind == "kernel":
        action.demangled, action.mangled, action.short = (
            _text(raw.name(base)) for base in (raw.NameBase_DEMANGLED, raw.NameBase_MANGLED, raw.NameBase_FUNCTION)
        )
        action.grid = _dimensions(facts, "launch__grid_dim_")
        action.block = _dimensions(facts, "launch__block_dim_")
        static, dynamic = (facts(f"launch__shared_mem_per_block_{part}") for part in ("static", "dynamic"))
        action.shared_memory = None if static is None or dynamic is None else static + dynamic
    elif "launch__grid_dim_x" in names:
        # One instance per kernel of the range or graph.
        action.kernels_inside = int(raw.metric_by_name("launch__grid_dim_x").num_instances()) or None
    _stacks(raw.nvtx_state(), action)
    for name in names:
        if not _NOT_COUNTERS.match(name):
            _counter(raw.metric_by_name(name), name, action, counters.metric_info)
    action.rules = [rule for result in raw.rule_results_as_dicts() if (rule := _rule(result))]
    for section in raw.sections():
        # "section0" is what ncu calls the metrics that were asked for one by one.
        if (identifier := _text(section.identifier())) != "section0":
            action.sections.append(identifier)
            known = counters.section_metrics.setdefault(identifier, [])
            for metric in (*section.header_metrics(), *section.body_metrics()):
                if metric is not None and (name := _text(metric.name())) in action.metrics and name not in known:
                    known.append(name)
    return action


def _facts(raw: Any, names: list[str]) -> Callable[[str], int | None]:
    known = set(names)

    def fact(name: str) -> int | None:
        if name not in known:
            return None
        metric = raw.metric_by_name(name)
        return int(metric.as_double()) if metric.kind() in _NUMBERS else None

    return fact


def _dimensions(fact: Callable[[str], int | None], prefix: str) -> tuple[int, int, int] | None:
    x, y, z = (fact(prefix + axis) for axis in "xyz")
    return None if x is None or y is None or z is None else (x, y, z)


def _text(value: Any) -> str:
    """Names may be any bytes: what is not UTF-8 is replaced, so that everything later can print it."""
    return str(value or "").encode("utf-8", "replace").decode("utf-8", "replace")


def _stacks(state: Any, action: Action) -> None:
    if state is None:
        return
    for key in state.domains():
        domain = state[key]
        name = _text(domain.name())
        name = "" if name == DEFAULT_DOMAIN else name
        if stack := [_text(n) for n in domain.push_pop_ranges()]:
            action.push_pop[name] = stack
        if ranges := [_text(n) for n in domain.start_end_ranges()]:
            action.start_end[name] = ranges


def _counter(metric: Any, name: str, action: Action, info: dict[str, MetricInfo]) -> None:
    if metric.kind() not in _NUMBERS or not metric.has_value():
        return
    value = float(metric.as_double())
    if not math.isfinite(value):
        return
    action.metrics[name] = value
    if name not in info:
        operation = metric.rollup_operation()
        plain = metric.metric_subtype() is None and operation is not None
        info[name] = MetricInfo(unit=_text(metric.unit()), rollup=_ROLLUPS.get(operation, "mean") if plain else "mean")


def _rule(result: dict[str, Any]) -> Rule | None:
    message = result.get("rule_message") or {}
    text = _text(message.get("message"))
    if not text:
        return None
    estimate = (result.get("speedup_estimation") or {}).get("speedup")
    return Rule(
        rule=_text(result.get("rule_identifier")),
        title=_text(message.get("title")) or _text(result.get("name")),
        message=_plain(text),
        estimated_speedup_percent=float(estimate) if isinstance(estimate, int | float) else None,
    )


def _plain(message: str) -> str:
    """ncu's links (`@url:Title:https://…@`, `@section:Id:Title@`) as plain text."""
    message = re.sub(r"@url:([^@]*?):https?://[^@]*@", r"\1", message)
    return re.sub(r"@section:[^:@]*:([^@]*)@", r"\1", message)
