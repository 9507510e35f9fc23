"""What is said of a recording holds for the same recording with parts of it changed or taken away, where it can be known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.regions.fixes import Answer

RECORDING = Path(__file__).parent / "recordings" / "kineto-torch2.11-h200-2layers.json.gz"
GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")

Event = dict[str, Any]
Change = Callable[[list[Event]], list[Event]]


def without(*categories: str) -> Change:
    return lambda events: [event for event in events if event.get("cat") not in categories]


def shifted(events: list[Event]) -> list[Event]:
    return [event | {"ts": round(event["ts"] + 250_000_000.5, 3)} if "ts" in event else event for event in events]


def of_one_graph(events: list[Event]) -> list[Event]:
    """All kernels as nodes of one graph, launched before the trace began."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return [kernel | {"args": kernel["args"] | {"correlation": 7}} for kernel in kernels]


def answer(change: Change, tmp_path: Path) -> Answer:
    trace = json.loads(gzip.decompress(RECORDING.read_bytes()))
    trace["traceEvents"] = change(trace["traceEvents"])
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    return make_report([str(path)], ReportOptions(), quiet=True).answer


@pytest.mark.parametrize(
    ("change", "stage", "verdict", "first"),
    [
        (shifted, "decode", "host", "attention.replan"),
        (without("user_annotation", "gpu_user_annotation"), "whole recording", "host", "attention.replan"),
        # Nothing on the host: the gaps are there, what filled them is not known.
        (without("cpu_op", "user_annotation"), "whole recording", "host", "host.unknown"),
        (
            without("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"),
            "whole recording",
            "host",
            "host.unknown",
        ),
        (without(*GPU), "decode", "unknown", None),
        (of_one_graph, "whole recording", "host", "host.graphs"),
    ],
)
def test_an_answer_outlives_what_it_does_not_rest_on(
    change: Change, stage: str, verdict: str, first: str | None, tmp_path: Path
) -> None:
    found = answer(change, tmp_path)
    assert (found.stage, found.verdict) == (stage, verdict)
    assert [fix.rule for fix in found.fixes[:1]] == ([] if first is None else [first])


def test_kernels_of_a_graph_are_never_told_to_be_captured(tmp_path: Path) -> None:
    assert "launch.graph" not in [fix.rule for fix in answer(of_one_graph, tmp_path).fixes]
