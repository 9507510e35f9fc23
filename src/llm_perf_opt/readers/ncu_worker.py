"""Runs NVIDIA's reader in a process of its own: `ncu_rep` starts this file, one process a report.

That reader is native code that does not check what it reads: a damaged or hostile report can make it
crash, take all memory or never return. Here it can do none of that to the program that asked. Only the
standard library and `ncu_report` are imported, so that the start costs a tenth of a second.

What it says goes to standard output as JSON, a line a result, then `{"end": N}` or `{"error": TEXT}`.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

# Facts about the device, the launch and the profiler: not counters of the kernel's work.
NOT_COUNTERS = re.compile(
    r"^(device__|launch__|profiler__|numa__|nvlink__|c2clink__|breakdown:|group:|pmsampling:|source__|derived_temp|smsp__pcsamp)"
)
_ROLLUPS = {1: "mean", 2: "max", 3: "min", 4: "sum"}  # IMetric.RollupOperation_*
_KINDS = {0: "kernel", 1: "range", 2: "range", 3: "graph"}  # IAction.WorkloadType_*
_NUMBERS = {3, 4, 5, 6}  # IMetric.ValueKind_FLOAT … UINT64

_LEAST_MEMORY = 1 << 30  # beside what is in use when the reading begins
_MEMORY_PER_BYTE = 24  # of the report; three to twenty were seen

LARGEST_COUNTER = 1e100  # no counter is so large, and sums of squares of what is below stay finite
LARGEST_FACT = 2**53  # sizes and attributes: whole numbers that a float holds exactly

DEFAULT_DOMAIN = "<default domain>"
_ATTRIBUTE = "device__attribute_"

Facts = Callable[[str], int | None]


def main(path: str) -> None:
    # What the native code prints must not get between our lines.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        ncu_report = _reader()
    except ImportError as error:
        _send(out, {"missing": str(error)})
        return
    _limit_memory(Path(path).stat().st_size)
    try:
        with Path(path).open("rb") as file:
            report = ncu_report.load_report(utf8_name(path, file))
            results = _read(report, out)
    except (RuntimeError, TypeError, AttributeError, ValueError, SystemError, OSError, LookupError) as error:
        # The reader does not check what it reads: damage surfaces as any of these, far from its cause.
        _send(out, {"error": str(error)[:300]})
    except MemoryError:
        _send(out, {"error": "it asks for more memory than a report of this size needs"})
    else:
        _send(out, {"end": results})


def _reader() -> Any:
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        from llm_perf_opt.readers.ncu_module import of_an_installed_ncu

        return of_an_installed_ncu()


def utf8_name(path: str, file: IO[bytes]) -> str:
    """A name of an open file that NVIDIA's reader takes: it wants UTF-8, which a path need not be."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return f"/proc/self/fd/{file.fileno()}"
    return path


def _limit_memory(size: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + _LEAST_MEMORY + _MEMORY_PER_BYTE * size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash must not leave a file in the user's folder


def _send(out: IO[bytes], what: dict[str, Any]) -> None:
    out.write(json.dumps(what).encode("ascii") + b"\n")
    out.flush()


def _read(report: Any, out: IO[bytes]) -> int:
    sent: set[str] = set()
    results = 0
    for range_index in range(report.num_ranges()):
        result_range = report.range_by_idx(range_index)
        for index in range(result_range.num_actions()):
            _send(out, _action(result_range.action_by_idx(index), sent))
            results += 1
    return results


def _action(raw: Any, sent: set[str]) -> dict[str, Any]:
    """One result as plain values; units and roll-ups of metrics only where they are met for the first time."""
    names = list(raw.metric_names())
    if not names:
        raise ValueError("a result without any metric")
    kind = _KINDS.get(int(raw.workload_type()), "range")
    facts = _facts(raw, names)
    found: dict[str, Any] = {
        "kind": kind,
        "name": _text(raw.name(raw.NameBase_DEMANGLED)) or _text(raw.name()),
        "device": facts("launch__device_id"),
        "passes": facts("profiler__replayer_passes"),
    }
    if f"{_ATTRIBUTE}display_name" in names:
        found["gpu"] = _text(raw.metric_by_name(f"{_ATTRIBUTE}display_name").as_string())
        if f"gpu {found['device']}" not in sent:
            sent.add(f"gpu {found['device']}")
            values = {name: facts(name) for name in names if name.startswith(_ATTRIBUTE)}
            found["attributes"] = {name: value for name, value in values.items() if value is not None}
    if kind == "kernel":
        bases = {"demangled": raw.NameBase_DEMANGLED, "mangled": raw.NameBase_MANGLED, "short": raw.NameBase_FUNCTION}
        found |= {name: _text(raw.name(base)) for name, base in bases.items()}
        found["grid"] = _dimensions(facts, "launch__grid_dim_")
        found["block"] = _dimensions(facts, "launch__block_dim_")
        static, dynamic = (facts(f"launch__shared_mem_per_block_{part}") for part in ("static", "dynamic"))
        found["shared_memory"] = None if static is None or dynamic is None else static + dynamic
    elif "launch__grid_dim_x" in names:
        # One instance per kernel of the range or graph.
        found["kernels_inside"] = int(raw.metric_by_name("launch__grid_dim_x").num_instances()) or None
    found["push_pop"], found["start_end"] = _stacks(raw.nvtx_state())
    found["metrics"], found["info"] = _counters(raw, names, sent)
    found["rules"] = [rule for result in raw.rule_results_as_dicts() if (rule := _rule(result))]
    found["sections"] = _sections(raw, found["metrics"])
    return found


def _facts(raw: Any, names: list[str]) -> Facts:
    known = set(names)

    def fact(name: str) -> int | None:
        if name not in known:
            return None
        metric = raw.metric_by_name(name)
        value = float(metric.as_double()) if metric.kind() in _NUMBERS else math.nan
        return int(value) if abs(value) < LARGEST_FACT else None

    return fact


def _dimensions(fact: Facts, prefix: str) -> tuple[int, int, int] | None:
    x, y, z = (fact(prefix + axis) for axis in "xyz")
    return None if x is None or y is None or z is None else (x, y, z)


def _text(value: Any) -> str:
    """Names may be any bytes: what is not UTF-8 is replaced, so that everything later can print it."""
    return str(value or "").encode("utf-8", "replace").decode("utf-8", "replace")


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


def _counters(raw: Any, names: list[str], sent: set[str]) -> tuple[dict[str, float], dict[str, list[str]]]:
    values: dict[str, float] = {}
    info: dict[str, list[str]] = {}
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
        if name not in sent:
            sent.add(name)
            operation = metric.rollup_operation()
            plain = metric.metric_subtype() is None and operation is not None
            info[name] = [_text(metric.unit()), _ROLLUPS.get(operation, "mean") if plain else "mean"]
    return values, info


def _sections(raw: Any, metrics: dict[str, float]) -> list[list[Any]]:
    """Identifier of each section, and the counters shown in it."""
    found: list[list[Any]] = []
    for section in raw.sections():
        # "section0" is what ncu calls the metrics that were asked for one by one.
        if (identifier := _text(section.identifier())) != "section0":
            shown = (*section.header_metrics(), *section.body_metrics())
            names = [_text(metric.name()) for metric in shown if metric is not None]
            found.append([identifier, [name for name in names if name in metrics]])
    return found


def _rule(result: dict[str, Any]) -> dict[str, Any] | None:
    message = result.get("rule_message") or {}
    text = _text(message.get("message"))
    if not text:
        return None
    estimate = (result.get("speedup_estimation") or {}).get("speedup")
    return {
        "rule": _text(result.get("rule_identifier")),
        "title": _text(message.get("title")) or _text(result.get("name")),
        "message": _plain(text),
        "estimated_speedup_percent": _finite(estimate),
    }


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _plain(message: str) -> str:
    """ncu's links (`@url:Title:https://…@`, `@section:Id:Title@`) as plain text."""
    message = re.sub(r"@url:([^@]*?):https?://[^@]*@", r"\1", message)
    return re.sub(r"@section:[^:@]*:([^@]*)@", r"\1", message)


if __name__ == "__main__":
    main(sys.argv[1])
