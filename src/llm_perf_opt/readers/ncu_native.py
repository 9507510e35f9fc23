"""NVIDIA's own reader of `.ncu-rep`, and what of its answers is used.

It is native code that does not check what it reads: a damaged or hostile report can make it crash, take all memory or
never return. So it is only ever asked in a `sandbox`, and nothing else imports `ncu_report`.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any

from llm_perf_opt.errors import MissingTool, UnreadableInput
from llm_perf_opt.readers.device_facts import device_facts
from llm_perf_opt.readers.ncu_module import of_an_installed_ncu
from llm_perf_opt.readers.plausible import LARGEST_DEVICE, shortened
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo, Rule

# Facts about the device, the launch and the profiler: not counters of the kernel's work.
NOT_COUNTERS = re.compile(
    r"^(device__|launch__|profiler__|numa__|nvlink__|c2clink__|breakdown:|group:|pmsampling:|source__|derived_temp|smsp__pcsamp|"
    # Charts: what the value would be with other block sizes and so on. ncu gives their sum, thousands of per cent.
    r"derived__pct_occupancy_per_)"
)
# How a launch fills the SMs: what the name of the fact is to us.
FILL = {
    "launch__waves_per_multiprocessor": "waves",
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "warps",
    "launch__occupancy_limit_blocks": "blocks",
    "launch__occupancy_limit_barriers": "barriers",
}
_ROLLUPS = {1: "mean", 2: "max", 3: "min", 4: "sum"}  # IMetric.RollupOperation_*
_KINDS = {0: "kernel", 1: "range", 2: "range", 3: "graph"}  # IAction.WorkloadType_*
_NUMBERS = {3, 4, 5, 6}  # IMetric.ValueKind_FLOAT … UINT64

LARGEST_COUNTER = 1e100  # no counter is so large, and sums of squares of what is below stay finite
LARGEST_FACT = 2**53  # sizes and attributes: whole numbers that a float holds exactly

DEFAULT_DOMAIN = "<default domain>"
_ATTRIBUTE = "device__attribute_"

Facts = Callable[[str], int | None]


def _reader() -> Any:
    """NVIDIA's module: that of its package, else that of an installed ncu."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        return of_an_installed_ncu()


def native_results(path: Path, source: str, counters: CounterSet) -> Iterator[Action]:
    """Every result of a report; what they say of GPUs and metrics goes into `counters`.

    `UnreadableInput` where the reader gives up on it.
    """
    try:
        ncu_report = _reader()
    except ImportError as error:
        raise MissingTool(
            f"{source} is an Nsight Compute report, and the package that reads them is not installed.",
            "Install NVIDIA's reader: pip install ncu-report  (an installed ncu contains it, too), or export the report: ncu --import FILE --csv --page raw",
        ) from error
    try:
        with path.open("rb") as file:
            report: Any = ncu_report.load_report(_utf8_name(str(path), file))
            for range_index in range(report.num_ranges()):
                result_range = report.range_by_idx(range_index)
                for index in range(result_range.num_actions()):
                    yield _action(result_range.action_by_idx(index), counters)
    except (RuntimeError, TypeError, AttributeError, ValueError, SystemError, OSError, LookupError) as error:
        # The reader does not check what it reads: damage surfaces as any of these, far from its cause.
        raise UnreadableInput(
            f"{source} is a damaged Nsight Compute report: NVIDIA's reader rejected it ({str(error)[:300]}).",
            "Copy the file again, or profile again.",
        ) from error


def _utf8_name(path: str, file: IO[bytes]) -> str:
    """A name of an open file that NVIDIA's reader takes: it wants UTF-8, which a path need not be."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return f"/proc/self/fd/{file.fileno()}"
    return path


def _action(raw: Any, counters: CounterSet) -> Action:
    names = list(raw.metric_names())
    if not names:
        raise ValueError("a result without any metric")
    present = set(names)
    facts = _facts(raw, present)
    action = Action(
        kind=_KINDS.get(int(raw.workload_type()), "range"),
        name=_text(raw.name(raw.NameBase_DEMANGLED)) or _text(raw.name()),
        passes=facts("profiler__replayer_passes"),
    )
    device = facts("launch__device_id")
    action.device = device if device is not None and 0 <= device <= LARGEST_DEVICE else None
    if action.device is not None and f"{_ATTRIBUTE}display_name" in names:
        product = _text(raw.metric_by_name(f"{_ATTRIBUTE}display_name").as_string())
        counters.environment["gpus"][action.device] = product
        if action.device not in counters.gpu_facts:
            counters.gpu_facts[action.device] = device_facts(product, facts)
    if action.kind == "kernel":
        bases = (raw.NameBase_DEMANGLED, raw.NameBase_MANGLED, raw.NameBase_FUNCTION)
        action.demangled, action.mangled, action.short = (_text(raw.name(base)) for base in bases)
        action.grid, action.block = (_dimensions(facts, f"launch__{what}_dim_") for what in ("grid", "block"))
        static, dynamic = (facts(f"launch__shared_mem_per_block_{part}") for part in ("static", "dynamic"))
        action.shared_memory = None if static is None or dynamic is None else static + dynamic
        action.fill = {
            short: value for name, short in FILL.items() if (value := _number(raw, present, name)) is not None
        }
    elif "launch__grid_dim_x" in names:
        # One instance per kernel of the range or graph.
        action.kernels_inside = int(raw.metric_by_name("launch__grid_dim_x").num_instances()) or None
    action.push_pop, action.start_end = _stacks(raw.nvtx_state())
    action.metrics = _counters(raw, names, counters.metric_info)
    action.rules = [rule for result in raw.rule_results_as_dicts() if (rule := _rule(result))]
    for section in raw.sections():
        # "section0" is what ncu calls the metrics that were asked for one by one.
        if (identifier := _text(section.identifier())) != "section0":
            action.sections.append(identifier)
            metrics = (*section.header_metrics(), *section.body_metrics())
            shown = [_text(metric.name()) for metric in metrics if metric is not None]
            known = counters.section_metrics.setdefault(identifier, [])
            known += [name for name in dict.fromkeys(shown) if name in action.metrics and name not in known]
    return action


def _facts(raw: Any, known: Collection[str]) -> Facts:
    def fact(name: str) -> int | None:
        value = _number(raw, known, name)
        return None if value is None else int(value)

    return fact


def _number(raw: Any, known: Collection[str], name: str) -> float | None:
    if name not in known:
        return None
    metric = raw.metric_by_name(name)
    value = float(metric.as_double()) if metric.kind() in _NUMBERS else math.nan
    return value if abs(value) < LARGEST_FACT else None


def _dimensions(fact: Facts, prefix: str) -> tuple[int, int, int] | None:
    x, y, z = (fact(prefix + axis) for axis in "xyz")
    return None if x is None or y is None or z is None else (x, y, z)


def _text(value: Any) -> str:
    """Names may be any bytes: what is not UTF-8 is replaced, so that everything later can print it."""
    return shortened(str(value or "").encode("utf-8", "replace").decode("utf-8", "replace"))


def _stacks(state: Any) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    push_pop: dict[str, list[str]] = {}
    start_end: dict[str, list[str]] = {}
    for key in state.domains() if state is not None else ():
        domain = state[key]
        name = _text(domain.name())
        name = "" if name == DEFAULT_DOMAIN else name
        if stack := [_text(n) for n in domain.push_pop_ranges()]:
            push_pop[name] = stack
        if ranges := [_text(n) for n in domain.start_end_ranges()]:
            start_end[name] = ranges
    return push_pop, start_end


def _counters(raw: Any, names: list[str], known: dict[str, MetricInfo]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name in names:
        if NOT_COUNTERS.match(name):
            continue
        metric = raw.metric_by_name(name)
        if metric.kind() not in _NUMBERS or not metric.has_value():
            continue
        value = float(metric.as_double())
        if not abs(value) < LARGEST_COUNTER:
            continue
        name = _text(name)
        values[name] = value
        if name not in known:
            operation = metric.rollup_operation()
            plain = metric.metric_subtype() is None and operation is not None
            known[name] = MetricInfo(_text(metric.unit()), _ROLLUPS.get(operation, "mean") if plain else "mean")
    return values


def _rule(result: dict[str, Any]) -> Rule | None:
    message = result.get("rule_message") or {}
    text = _text(message.get("message"))
    if not text:
        return None
    estimate = (result.get("speedup_estimation") or {}).get("speedup")
    title = _text(message.get("title")) or _text(result.get("name"))
    return Rule(_text(result.get("rule_identifier")), title, _plain(text), _finite(estimate))


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _plain(message: str) -> str:
    """ncu's links (`@url:Title:https://…@`, `@section:Id:Title@`) as plain text."""
    message = re.sub(r"@url:([^@]*?):https?://[^@]*@", r"\1", message)
    return re.sub(r"@section:[^:@]*:([^@]*)@", r"\1", message)
