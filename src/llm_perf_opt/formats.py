"""The formats of a report: what `--format` of `llm-perf report` takes, who renders each, and how its files begin.

A new format is a module with a `RENDERER` (see `report/renderers.py`) and one entry here; the help, the check of
`--format`, the writing and the docs follow. It stands below all rooms: the command line names the formats without
importing what renders them, and a run directory knows by their beginnings which files are a report's.
"""

from __future__ import annotations

import re

from attrs import define


@define(frozen=True)
class Format:
    """One value of `--format`."""

    module: str  # that holds its RENDERER; with a dot in front: of `llm_perf_opt.report`
    begins: dict[str, bytes]  # ending of its files -> a pattern that only files of ours begin with, of any version


FORMATS = {
    "json": Format(".json_report", {".json": rb'\{\s*"schema_version":\s*"[^"]*",\s*"(generation|generated_at)":\s*"'}),
    "md": Format(".markdown", {
        ".md": rb"# (Region report\n\n.*\bllm-perf|Kernels\n\nScope `|Performance summary\n\n.*\bllm-perf|.*\n\n\|  \| inclusive )",
        ".svg": rb'<svg xmlns="http://www.w3.org/2000/svg" viewBox="[^"]*" width="\d+" height="\d+" role="img" aria-label="',
        ".txt": rb".*\n\nSection: ",
    }),
    "csv": Format(".csv_report", {".csv": rb"scope,(kernel_name|region),|(grid,block,)?kernel_name,short_name,|metric,which,"}),
    "html": Format(".html", {".html": rb'(?is)<!doctype html>.{0,2000}?<meta name="generator" content="llm-perf-opt'}),
}  # fmt: skip


def begins_like_ours(ending: str, content: bytes) -> bool:
    """Does a file with this ending begin as one of a report does?"""
    patterns = (format_.begins.get(ending) for format_ in FORMATS.values())
    return any(pattern and re.match(pattern, content) for pattern in patterns)
