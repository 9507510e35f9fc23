"""Planned captures as the manifest keeps them, signed: what a resumed run starts again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning import PlannedCapture


def to_spec(capture: PlannedCapture) -> dict[str, Any]:
    options = attrs.asdict(capture.options, value_serializer=lambda _, __, v: list(v) if isinstance(v, tuple) else v)
    return {
        "name": capture.name,
        "options": options,
        "expressions": list(capture.expressions),
        "expected": capture.expected,
        "windows": capture.windows and capture.windows.as_json(),
        "alternatives": [to_spec(other) for other in capture.alternatives],
    }


def from_spec(spec: Mapping[str, Any]) -> PlannedCapture:
    """Raises KeyError, TypeError or ValueError where it is not what this version writes."""
    windows, name = spec["windows"], str(spec["name"])
    if not re.fullmatch(r"[^./\0][^/\0]*", name):  # it names files in the run, and must not lead out of it
        raise ValueError(f"{name!r} is no name of a capture")
    return PlannedCapture(
        name,
        NcuOptions(**spec["options"]),
        tuple(map(str, spec["expressions"])),
        spec["expected"],
        windows=windows and CaptureWindows.from_json(windows),
        alternatives=tuple(from_spec(other) for other in spec["alternatives"]),
    )
