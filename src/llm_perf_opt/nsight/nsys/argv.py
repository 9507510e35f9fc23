"""Nsight Systems' command lines as pure functions: settings in, argv list out.

The defaults are the light ones: CPU sampling and context switches off, because a toy program recorded
with them wrote 2 GB, and neither is needed to tell which range a kernel belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import attrs
from attrs import define, field

from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight.option_values import (
    StrPath,
    arguments,
    is_switch,
    listed,
    switch,
    text,
    with_overrides,
    workload,
)


@define(frozen=True, kw_only=True)
class NsysOptions:
    """What nsys is asked for. `None` leaves an option out: nsys's own default holds then."""

    # APIs to trace. `osrt` and library traces (cublas, cudnn) are to be had, at more overhead and larger files.
    # An empty list is an answer too: nsys's own default would trace osrt and opengl.
    trace: tuple[str, ...] = field(default=("cuda", "nvtx"), converter=listed, metadata={"joined": "none"})
    # none (ours) | process-tree (nsys's default: CPU samples, 2 GB for a toy) | system-wide.
    sample: str | None = field(default="none", converter=text)
    # none (ours) | process-tree (nsys's default) | system-wide. Which thread ran when; not needed for regions.
    cpuctxsw: str | None = field(default="none", converter=text)
    # none | cudaProfilerApi | nvtx | hotkey. A smaller recording; a range that never opens leaves no file, exit 0.
    capture_range: str | None = field(default=None, converter=text)
    # What happens at its end. `stop` (ours, where a capture range is given) lets the program finish;
    # nsys's own default, stop-shutdown, kills it. repeat[:N] writes one report for every opening.
    capture_range_end: str | None = field(default=None, converter=text)
    # NAME, NAME@DOMAIN or NAME@* (the other way round than ncu): the range that opens the capture.
    # Implies capture_range=nvtx, and needs `environment`.
    nvtx_capture: str | None = field(default=None, converter=text)
    # graph (nsys's default: a CUDA graph is one block without kernels) | node (its kernels, more overhead).
    cuda_graph_trace: str | None = field(default=None, converter=text)
    # A name for `nsys stop --session`, which writes the report of a program that is still running.
    session_new: str | None = field(default=None, converter=text)
    # Samples of whole GPUs (see `gpu_metrics.py`): which GPUs, the set of metrics, and how often a second.
    gpu_metrics_devices: str | None = field(default=None, converter=text)
    gpu_metrics_set: str | None = field(default=None, converter=text)
    gpu_metrics_frequency: str | None = field(default=None, converter=text)
    # Stacks of Python, so many a second: what the host did while the GPU waited. Exported with `include_blobs` alone.
    python_sampling: str | None = field(default=None, converter=text)
    python_sampling_frequency: str | None = field(default=None, converter=text)
    # Off: where the report exists nsys writes to /tmp instead, and says so in one line.
    force_overwrite: bool = field(default=False, converter=switch, validator=is_switch, metadata={"on": ["true"]})
    # Handed to nsys as they are, one argv element each, before the program. nsys refuses an option given twice.
    extra_args: tuple[str, ...] = field(default=(), converter=listed, metadata={"flag": ""})


def build_nsys_cmd(
    out_base: StrPath, work_argv: Sequence[StrPath], *, nsys: StrPath = "nsys", **settings: Any
) -> list[str]:
    """The argv that records `work_argv` into `out_base`.nsys-rep; run it under `environment(options)`.

    `settings` as in `nsys_arguments`. `%p`, `%h`, `%n`, `%q{VAR}` in `out_base` are filled in by nsys.
    """
    argv = workload(work_argv, "nsys")
    return [os.fspath(nsys), "profile", *nsys_arguments(out_base, **settings), *argv]


def nsys_arguments(out_base: StrPath, *, options: NsysOptions | None = None, **overrides: Any) -> list[str]:
    """The options of `nsys profile`, without the program: what `help_text.validate` checks. `overrides`: fields of them."""
    asked = _completed(with_overrides(options or NsysOptions(), overrides, "pipeline.nsys"))
    return arguments(asked, out_base, asked.extra_args)


def environment(options: NsysOptions) -> dict[str, str]:
    """Variables nsys must be started with.

    Python's NVTX strings are not registered ones, and nsys compares only those unless set otherwise:
    the capture would never open.
    """
    return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"} if options.nvtx_capture else {}


def build_nsys_stop_cmd(nsys: StrPath, session: str) -> list[str]:
    """End the recording of a session and write its report, kernels included; the program goes on."""
    return [os.fspath(nsys), "stop", f"--session={session}"]


def build_nsys_export_cmd(nsys: StrPath, report: StrPath, sqlite: StrPath, *, blobs: bool = False) -> list[str]:
    """Export an .nsys-rep to SQLite. Overwrites: a half-written file of a killed export is of no use to anyone.

    `blobs`: with what marks carry, the stacks of Python among them.
    """
    target, source = os.fspath(sqlite), os.fspath(report)
    options = ["--type", "sqlite", "--force-overwrite", "true", *(["--include-blobs", "true"] if blobs else [])]
    return [os.fspath(nsys), "export", *options, "-o", target, source]


def build_nsys_stats_cmd(nsys: StrPath, source: StrPath) -> list[str]:
    """Print nsys's summary of the kernels of a report or SQLite file as CSV on standard output.

    Not into a file: nsys reads the name behind `--output` as a list (a comma in a folder's name sends the
    result elsewhere) or, after `@`, as a command to run.
    """
    options = ["--quiet", "--report", "cuda_gpu_kern_sum", "--format", "csv", "--output", "-"]
    return [os.fspath(nsys), "stats", *options, os.fspath(source)]


def _completed(options: NsysOptions) -> NsysOptions:
    """Fill in what one setting implies for another, and refuse pairs that would record nothing."""
    if options.nvtx_capture and options.capture_range is None:
        options = attrs.evolve(options, capture_range="nvtx")
    capture = options.capture_range
    if options.nvtx_capture and capture != "nvtx":
        raise UserError(
            f"nvtx_capture={options.nvtx_capture!r} has no effect with capture_range={capture!r}.",
            "Set capture_range to nvtx, or leave it out.",
        )
    if capture is None or capture == "none":
        return options
    needed = {"nvtx": ("nvtx",), "cudaProfilerApi": ("cuda", "cuda-hw")}.get(capture)
    if needed and not set(needed) & set(options.trace):
        raise UserError(
            f"capture_range={capture} never opens while trace={','.join(options.trace) or 'none'} leaves out {needed[0]}.",
            f"Add {needed[0]} to trace.",
        )
    return attrs.evolve(options, capture_range_end=options.capture_range_end or "stop")
