"""A side in one small file that can be committed: what later runs are compared with when this one is long gone.

Kept are the heaviest regions, their medians run by run, all that is counted, and the kernels that take most of the
time. The file may come from anyone: it is read with a limit, and every value is checked.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.comparing.side import COUNTED, SOURCES, KernelUse, RegionSide, Side, Times, shortened
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.untrusted import read_json

_MARK = re.compile(rb'\s*\{\s*"llm_perf_baseline"\s*:')  # however a formatter of the repository laid it out
_VERSION = 1
_LARGEST = 32 << 20
_MOST_REGIONS = 60
_LEAST = 0.005  # of the time of all: regions that take less are left out
_MOST_KERNELS = 24  # of a region


def is_baseline(path: Path) -> bool:
    """By its content."""
    try:
        with path.open("rb") as file:
            return _MARK.match(file.read(200)) is not None
    except OSError:
        return False


def render_baseline(side: Side) -> str:
    """The text of the file: one line a region, so that a change of it can be reviewed."""
    names: dict[str, int] = {}
    heaviest, left_out = _heaviest(side)
    regions = [_region_json(region, names) for region in heaviest]
    head = {
        "label": side.label,
        "made_at": side.made_at,
        "gpus": list(side.gpus),
        "command": list(side.command),
        "inputs": side.inputs,
        "clock_mhz": side.clock_mhz,
        "recorders": list(side.recorders),
        "cpu_wait": None if side.cpu_wait is None else round(side.cpu_wait, 4),
        "left_out_ns": round(left_out),
        "accepted": side.accepted,
    }
    lines = [f'"llm_perf_baseline": {_VERSION}']
    lines += [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    for title, rows in (("names", list(names)), ("regions", regions)):
        lines.append(f'"{title}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _heaviest(side: Side) -> tuple[list[RegionSide], float]:
    """With those around them; and the time of the heaviest that is left out."""
    total = sum(region.weight_ns for region in side.regions.values() if region.parent is None) or 1.0
    ordered = sorted(side.regions.values(), key=lambda region: -region.weight_ns)
    kept = {region.key for region in ordered[:_MOST_REGIONS] if region.weight_ns >= _LEAST * total}
    for key in list(kept):
        while (parent := side.regions[key].parent) is not None and parent in side.regions:
            kept.add(parent)
            key = parent
    left_out = max((region.weight_ns for region in ordered if region.key not in kept), default=0.0)
    return [region for key, region in side.regions.items() if key in kept], left_out


def _region_json(region: RegionSide, names: dict[str, int]) -> dict[str, Any]:
    return {
        "key": region.key,
        "path": list(region.path),
        "parent": region.parent,
        "instances": region.instances,
        "recorded": region.recorded,
        "weight_ns": round(region.weight_ns),
        "busy_ns": None if region.busy_ns is None else round(region.busy_ns, 1),
        "early": round(region.early, 4),
        "numbers": list(region.numbers),
        "counts": {what: round(count, 6) for what, count in region.counts.items()},
        "times": {source: _times_json(times) for source, times in region.times.items()},
        "kernels": [_kernel_json(use, names) for use in shortened(region.kernels, _MOST_KERNELS)],
    }


def _times_json(times: Times) -> dict[str, Any]:
    spread = times.spread
    if spread is None:
        logs = np.log(np.concatenate(times.runs))
        low, high = np.quantile(logs, [0.16, 0.84])
        spread = float(high - low) / 2
    return {
        "medians": [round(m) for m in times.medians.tolist()],
        "spread": round(spread, 5),
        "instances": times.instances,
        **({"by_host": True} if times.by_host else {}),
    }


def _kernel_json(use: KernelUse, names: dict[str, int]) -> list[Any]:
    number = names.setdefault(use.name, len(names))
    amounts = [None if amount is None else float(f"{amount:.6g}") for amount in (use.flops, use.tensor, use.dram)]
    return [number, round(use.calls, 6), round(use.time_ns, 1), list(use.grid), list(use.block), use.kind, *amounts]


def read_baseline(path: Path) -> Side:
    """Raises UnreadableInput."""
    try:
        content = read_json(path, _LARGEST)
        if content["llm_perf_baseline"] != _VERSION:
            raise UnreadableInput(
                f"{path.name} is a baseline of another version of llm-perf.",
                f"Write it again: llm-perf compare RUN --save-baseline {path.name}",
            )
        side = Side(
            label=str(content["label"]),
            gpus=tuple(map(str, content["gpus"])),
            command=tuple(map(str, content["command"])),
            inputs=str(content["inputs"]),
            clock_mhz=None if content["clock_mhz"] is None else _positive(content["clock_mhz"]),
            # Later than the version of the file: older ones do not have these.
            recorders=tuple(map(str, content.get("recorders", ()))),
            cpu_wait=None if content.get("cpu_wait") is None else _positive(content["cpu_wait"]),
            left_out_ns=_positive(content.get("left_out_ns", 0)),
            made_at=str(content["made_at"]),
            accepted=[{str(k): str(v) for k, v in dict(one).items()} for one in content["accepted"]],
        )
        names = [str(name) for name in content["names"]]
        for row in content["regions"]:
            region = _region(row, names)
            side.regions[region.key] = region
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise UnreadableInput(
            f"{path} is not a baseline that can be read ({type(error).__name__}).",
            "Write it again: llm-perf compare RUN --save-baseline FILE",
        ) from error
    return side


def _region(row: dict[str, Any], names: list[str]) -> RegionSide:
    return RegionSide(
        key=str(row["key"]),
        path=tuple(map(str, row["path"])),
        parent=None if row["parent"] is None else str(row["parent"]),
        times={str(source): _times(times) for source, times in row["times"].items() if source in SOURCES},
        instances=int(row["instances"]),
        recorded=int(row["recorded"]),
        weight_ns=_positive(row["weight_ns"]),
        busy_ns=None if row["busy_ns"] is None else _positive(row["busy_ns"]),
        early=_positive(row["early"]),
        counts={what: _positive(count) for what, count in row["counts"].items() if what in COUNTED},
        numbers=tuple(float(number) for number in row["numbers"]),
        kernels=[_use(one, names) for one in row["kernels"]],
    )


def _times(row: dict[str, Any]) -> Times:
    runs = tuple(np.array([max(_positive(median), 1.0)]) for median in row["medians"])
    if not runs:
        raise ValueError("no medians")
    by_host = row.get("by_host") is True
    return Times(runs, spread=_positive(row["spread"]), instances=int(row["instances"]), by_host=by_host)


def _use(row: list[Any], names: list[str]) -> KernelUse:
    number, calls, time, grid, block, kind, *amounts = row
    flops, tensor, dram = (None if amount is None else _positive(amount) for amount in amounts)
    return KernelUse(
        names[number],
        _positive(calls),
        _positive(time),
        tuple(int(n) for n in grid),
        tuple(int(n) for n in block),
        flops,
        tensor,
        dram,
        str(kind),
    )


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 <= number < 1e30:
        raise ValueError(f"{number} is no amount")
    return number
