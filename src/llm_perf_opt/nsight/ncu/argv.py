"""Nsight Compute's command line as a pure function: settings in, argv list out.

Every setting of `pipeline.ncu.ncu_cli` is one field of `NcuOptions` and one option of ncu, under the
same name. Nothing is validated against a list of ours, because ncu's options change from version to
version: `help_text.validate` holds the argv against what the installed ncu says of itself.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from typing import Any

import attrs
from attrs import define, field

from llm_perf_opt.metrics.groups import groups_for
from llm_perf_opt.nsight.option_values import (
    StrPath,
    arguments,
    count,
    expressions,
    flag_of,
    is_count,
    is_switch,
    listed,
    switch,
    text,
    with_overrides,
    workload,
)
from llm_perf_opt.regions.patterns import push_pop_expressions

# Where nothing is known of the GPU. One pass on an H200: time, DRAM and L2 traffic, tensor operations of bf16.
DEFAULT_METRICS = tuple(counter.name for counter in groups_for("9.0")[0].of_level("roofline", ["bf16"]))


@define(frozen=True, kw_only=True)
class NcuOptions:
    """What ncu is asked for. `None` (or an empty list) leaves an option out: ncu's own default holds then."""

    # -- what to collect --
    # Named set of sections. Without set, sections and metrics ncu takes `basic`: 10 passes a kernel;
    # `roofline` takes 17, `full` 38, at about 60 ms a kernel and pass.
    set: str | None = field(default=None, converter=text)

    # -- how to replay --
    # kernel (ncu's default: one result a kernel) | application | range | app-range (one result a range).
    # `range` fails on the CUDA calls most transformers make; both range modes refuse SASS metrics.
    replay_mode: str | None = field(default=None, converter=text)
    # all | application-only. torchrun and other launchers start the model in a child, so: all.
    target_processes: str | None = field(default="all", converter=text)

    # -- which ranges --
    # thread (ncu's default) | process. `process` finds backward passes, which autograd launches from a
    # thread of its own; with several busy threads it also takes kernels of their neighbours.
    nvtx_push_pop_scope: str | None = field(default=None, converter=text)
    # `::N`, `::[2-4]`, `::3|9`: which instances of the matching ranges. The way to take one decode step.
    range_filter: str | None = field(default=None, converter=text)

    # -- which kernels --
    # An exact name, or `regex:…` (partial unless anchored). Never split at commas: template arguments have them.
    kernel_name: str | None = field(default=None, converter=text)
    # demangled (ours, where a name is given) | function (ncu's: no arguments, no templates) | mangled. What
    # kernel_name is compared with.
    kernel_name_base: str | None = field(default=None, converter=text)
    # `context:stream:[regex:]name:invocation`; counts launches for each kernel, which launch_skip does not.
    kernel_id: str | None = field(default=None, converter=text)
    # Matching launches to pass over, counted over all kernels together (see filter_mode).
    launch_skip: int | None = field(default=None, converter=count, validator=is_count)
    # Matching launches to profile, then no more. The surest bound on what a capture costs.
    launch_count: int | None = field(default=None, converter=count, validator=is_count)
    # global (ncu's default) | per-gpu | per-launch-config. The last, with launch_count=1, takes every
    # signature (name, grid, block, shared memory) once: 66 kernels instead of tens of thousands.
    filter_mode: str | None = field(default=None, converter=text)
    # node (ncu's default: each kernel of a CUDA graph) | graph (one result a graph launch, fewer passes).
    graph_profiling: str | None = field(default=None, converter=text)

    # -- application replay only --
    # name | grid (ncu's default) | all: how kernels of two passes are paired.
    app_replay_match: str | None = field(default=None, converter=text)
    # strict | balanced | relaxed. `relaxed` survives programs that differ from run to run, and drops kernels.
    app_replay_mode: str | None = field(default=None, converter=text)

    # -- the state of the GPU --
    # none (ours) | base (ncu's default: clocks locked low, figures comparable between runs, not with the timeline).
    clock_control: str | None = field(default="none", converter=text)
    # stable (ncu's default: tensor cores boost alike in every run) | dynamic (as without ncu).
    pipeline_boost_state: str | None = field(default=None, converter=text)
    # none (ours) | all (ncu's default: caches flushed before every pass, which makes the DRAM figures
    # of a region wrong by up to 1.8 times).
    cache_control: str | None = field(default="none", converter=text)

    # -- the report file --
    # no (ours) | yes. With the machine code a report of 0.1 MB becomes one of 20 MB; needed for ncu-ui's source page.
    import_sass: str | None = field(default="no", converter=text)

    # -- lists and switches, which come last in the command --
    # Section identifiers, each with a flag of its own (ncu takes no comma list); `regex:` works.
    sections: tuple[str, ...] = field(default=(), converter=listed, metadata={"flag": "--section"})
    # Metric names, one flag for all. The cheapest way: what fits into one pass costs a seventh of `basic`.
    # ncu drops a misspelt metric without a word and exits 0.
    metrics: tuple[str, ...] = field(default=(), converter=listed, metadata={"joined": ""})
    # Ranges with every result; without it they belong to no region. A filter by ranges needs it and switches it on.
    nvtx: bool = field(default=True, converter=switch, validator=is_switch)
    # ncu's own filter expressions (several mean "or"); a string is one expression, for ncu reads a comma
    # as "and". Handed over as they are, unlike `nvtx_expr` of the functions below.
    nvtx_include: tuple[str, ...] = field(default=(), converter=expressions)
    # As nvtx_include; kernels inside these ranges are left out.
    nvtx_exclude: tuple[str, ...] = field(default=(), converter=expressions)
    # Off: ncu refuses to start where the report exists, so that no run overwrites another's result.
    force_overwrite: bool = field(default=False, converter=switch, validator=is_switch)
    # Handed to ncu as they are, one argv element each, before the program. ncu refuses an option given twice.
    extra_args: tuple[str, ...] = field(default=(), converter=listed, metadata={"flag": ""})

    def __attrs_post_init__(self) -> None:
        if self.kernel_name and not self.kernel_name_base:
            object.__setattr__(self, "kernel_name_base", "demangled")


_NEED_NVTX = ("nvtx_include", "nvtx_exclude", "nvtx_push_pop_scope", "range_filter")


def build_ncu_cmd(
    out_base: StrPath,
    work_argv: Sequence[StrPath],
    *,
    ncu: StrPath = "ncu",
    nvtx_expr: str | Sequence[str] | None = None,
    options: NcuOptions | None = None,
    **overrides: Any,
) -> list[str]:
    """The argv that profiles `work_argv` into `out_base`.ncu-rep; the settings are those of `ncu_arguments`."""
    argv = workload(work_argv, "ncu")
    return [os.fspath(ncu), *ncu_arguments(out_base, nvtx_expr=nvtx_expr, options=options, **overrides), *argv]


def ncu_arguments(
    out_base: StrPath,
    *,
    nvtx_expr: str | Sequence[str] | None = None,
    options: NcuOptions | None = None,
    **overrides: Any,
) -> list[str]:
    """ncu's own part of the command, without the program: what `help_text.validate` checks.

    `nvtx_expr`: push/pop ranges in place of `options.nvtx_include`, by name (`layer1`, `LLM@prefill`), by pattern
    or as ncu's expression (`layer1/`); a list means "or", an empty one no filter. `overrides` are fields of
    `NcuOptions`. `%p`, `%h`, `%i`, `%q{VAR}` in `out_base` are filled in by ncu.
    """
    asked = with_overrides(options or NcuOptions(), overrides, "pipeline.ncu.ncu_cli")
    if nvtx_expr is not None:
        chosen = [e for one in expressions(nvtx_expr) for e in push_pop_expressions(one)]
        asked = attrs.evolve(asked, nvtx_include=chosen)
    if any(getattr(asked, name) for name in _NEED_NVTX):
        asked = attrs.evolve(asked, nvtx=True)
    return arguments(asked, out_base, asked.extra_args)


def build_ncu_raw_cmd(ncu: StrPath, report: StrPath) -> list[str]:
    """Print every result of a report with all its metrics as CSV on standard output."""
    return [os.fspath(ncu), "--import", os.fspath(report), "--page", "raw", "--csv", "--print-units", "base"]


def build_ncu_details_cmd(ncu: StrPath, report: StrPath) -> list[str]:
    """Print the sections and rules of every result as a text for people on standard output."""
    return [os.fspath(ncu), "--import", os.fspath(report), "--page", "details"]


def without_unknown_defaults(options: NcuOptions, known: Container[str]) -> NcuOptions:
    """Leave out defaults of ours that an older ncu does not know (2024.1 has no `--import-sass`).

    What the user set to something else stays, and is refused by `help_text.validate` with ncu's own list.
    """
    unknown = {
        attribute.name: None
        for attribute in attrs.fields(NcuOptions)
        if isinstance(attribute.default, str)
        and getattr(options, attribute.name) == attribute.default
        and flag_of(attribute.name) not in known
    }
    return attrs.evolve(options, **unknown)
