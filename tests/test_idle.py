"""Why the GPU waits: gaps by hand, recordings against plain loops over the same file, and what experts say of public ones."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from conftest import read, recording, regions_of, report
from llm_perf_opt.analysis.gaps import CAUSES, Cover, find_gaps
from llm_perf_opt.analysis.rules.all_rules import fix_words
from llm_perf_opt.analysis.verdicts.idle_causes import idle_parts, idle_words, undisturbed
from llm_perf_opt.metrics.host_calls import call_kind, code_kind
from llm_perf_opt.regions.columns import CALL, OPERATOR, PYTHON, UNKNOWN, CodeSpans, HostEvents, OperatorCalls, Timeline
from llm_perf_opt.regions.idle import IdleCause, IdleTime
from llm_perf_opt.regions.model import NCUProfileRegionReport, RegionPerformance
from llm_perf_opt.regions.whole_recording import with_whole_recording
from llm_perf_opt.report.stages import each_ns, stage_regions
from test_join_rules import timeline as made
from test_verdicts import evaluated, performance

PUBLIC = Path(__file__).parents[2] / "shared" / "data" / "public"
MS = 1_000_000
Event = tuple[int, str, int, int]  # kind, name, start, end


def with_host(timeline: Timeline, *events: Event, threads: list[int] | None = None) -> Timeline:
    """The timeline with these events on the thread that launches, or on others."""
    strings = list(timeline.strings)
    names = []
    for _, name, _, _ in events:
        if name not in strings:
            strings.append(name)
        names.append(strings.index(name))
    kind, start, end = (np.array([event[place] for event in events]) for place in (0, 2, 3))
    number = np.zeros(len(events), dtype=np.int32)
    thread = np.array(threads, dtype=np.int32) if threads is not None else number
    host = HostEvents(
        start.astype(np.int64), end.astype(np.int64), number, thread, np.array(names, np.int32), kind.astype(np.int32)
    )
    return evolve(timeline, strings=strings, host=host)


def one_long_gap(*events: Event, launched: int | None = None, **others: Any) -> RegionPerformance:
    """Two kernels of 1 ms, and 20 ms between them, in a range `step`; a range `part` covers most of that gap."""
    timeline = made([("step", 0, 22 * MS), ("part", 2 * MS, 19 * MS)], [("k", 1_000, MS), ("k", 21 * MS, MS)])
    if launched is not None:
        timeline.kernels.host_time[1] = launched
    return performance(evaluated(with_host(timeline, *events, **others)), "step")


def causes(of: RegionPerformance) -> dict[str, int]:
    assert of.idle is not None
    return of.idle.by_cause()


# -- by hand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel_v7000", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("cudaGraphLaunch", "launch"),
        ("cudaStreamSynchronize_v3020", "sync"),
        ("cudaMemcpyAsync", "copy"),
        ("cudaMalloc_v3020", "alloc"),
        ("cudaFreeAsync", "alloc"),
        ("cudaHostAlloc_v3020", "alloc"),
        ("cuLibraryLoadData", "module"),
        ("cuModuleLoadData", "module"),
        ("cudaEventRecord", "other"),
    ],
)
def test_calls_of_cuda_are_known_by_their_names(name: str, kind: str) -> None:
    assert call_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data"),
        ("Data loading", "data"),
        ("## load_batch ##", "data"),
        ("image_processor.preprocess", "data"),
        ("preprocess_logits_for_metrics", ""),
        ("gpu_model_runner: preprocess", ""),  # of vLLM: what a step needs, and no input pipeline
        ("torch/utils/data/dataloader.py(671): __next__", "data"),
        ("FusionKernelRuntime::compileFusionParallel", "compile"),
        ("## Call CompiledFxGraph fud64 ##", ""),
        ("vllm/v1/worker/gpu_model_runner.py(1297): _prepare_inputs", ""),
        ("aten::copy_", ""),
        ("zmq/sugar/socket.py(800): recv_pyobj", "wait"),
        ("<built-in function sleep>", "wait"),
        ("vllm/v1/engine/core.py(310): step", ""),
        ("model.layers.0.mlp.down_proj", ""),
    ],
)
def test_code_that_reads_input_or_compiles_is_known_by_its_name(name: str, kind: str) -> None:
    assert code_kind(name) == kind


def test_a_gap_belongs_to_the_shortest_event_that_covers_half_of_it() -> None:
    gaps = Cover(np.array([0, 100, 300]), np.array([10, 200, 310]))
    starts, ends = np.array([0, 90, 140, 160, 305]), np.array([400, 250, 195, 400, 306])
    # The first spans all; the second covers the middle gap, of which the third still has half; the fourth has less.
    assert gaps.of(starts, ends, np.arange(5)).tolist() == [0, 2, 3]
    assert gaps.of(starts, ends, np.array([4])).tolist() == [UNKNOWN] * 3


def test_a_long_gap_is_named_after_the_range_inside_the_region() -> None:
    of = one_long_gap()
    assert causes(of) == {"python": 20 * MS - 1_000, "launch": 1_001}
    assert of.idle is not None
    assert [(c.cause, c.what, c.gaps) for c in of.idle.causes] == [("python", "part", 1), ("launch", "", 1)]
    assert (of.verdict.bound, of.verdict.title) == ("host", "host-bound")
    assert "part 20 ms in 1 gap" in of.verdict.text
    assert [o.rule for o in of.opportunities] == ["host.python"]


@pytest.mark.parametrize(
    ("event", "cause", "rule"),
    [
        ((OPERATOR, "enumerate(DataLoader)#X.__next__", 3 * MS, 18 * MS), "data", "host.data"),
        ((PYTHON, "torch/utils/data/dataloader.py(1): __next__", 3 * MS, 18 * MS), "data", "host.data"),
        ((CALL, "cudaMalloc", 3 * MS, 18 * MS), "alloc", "host.alloc"),
        ((CALL, "cudaStreamSynchronize", 3 * MS, 18 * MS), "sync", "host.sync"),
        ((CALL, "cudaMemcpyAsync", 3 * MS, 18 * MS), "copy", "copy.host"),
        ((CALL, "cuModuleLoadData", 3 * MS, 18 * MS), "module", "warmup"),
        ((CALL, "cudaLaunchKernel", 3 * MS, 18 * MS), "module", "warmup"),
        ((OPERATOR, "compile the graph", 3 * MS, 18 * MS), "module", "warmup"),
    ],
)
def test_what_covers_a_gap_decides_on_the_fix(event: Event, cause: str, rule: str) -> None:
    of = one_long_gap(event)
    assert next(iter(causes(of))) == cause
    assert of.opportunities[0].rule == rule
    assert of.opportunities[0].recoverable.of("ns") == pytest.approx(20 * MS, rel=1e-3)


def test_work_that_was_launched_before_does_not_wait_for_the_host() -> None:
    of = one_long_gap(launched=500_000)
    assert causes(of)["gpu"] == 20 * MS - 1_000
    assert of.verdict.title == "gaps between kernels"
    assert not [o for o in of.opportunities if o.kind == "waiting"]


def test_another_thread_and_nothing_at_all_are_told_apart() -> None:
    alone = made([("step", 0, 22 * MS)], [("k", 1_000, MS), ("k", 21 * MS, MS)])
    assert next(iter(causes(performance(evaluated(alone), "step")))) == "unseen"
    elsewhere = with_host(alone, (OPERATOR, "aten::sort", 3 * MS, 19 * MS), threads=[UNKNOWN])
    found = performance(evaluated(elsewhere), "step")
    assert found.idle is not None
    assert (found.idle.causes[0].cause, found.idle.causes[0].what) == ("thread", "aten::sort")
    here = performance(evaluated(with_host(alone, (OPERATOR, "aten::sort", 3 * MS, 19 * MS))), "step")
    assert here.idle is not None
    assert (here.idle.causes[0].cause, here.idle.causes[0].what) == ("python", "aten::sort")


def test_long_gaps_before_attention_again_and_again_are_planning() -> None:
    attention = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma"

    def steps(count: int) -> RegionPerformance:
        rows = [(attention, 20 * MS * i, MS) for i in range(count)]
        timeline = made([("decode", 0, 20 * MS * count), ("attn", 2 * MS, 20 * MS * count)], rows)
        return performance(evaluated(timeline), "decode")

    of = steps(8)
    assert next(iter(causes(of))) == "replan"
    assert of.opportunities[0].rule == "attention.replan"
    assert "replan" not in causes(steps(2))  # that is its first use


@pytest.mark.parametrize(("ends_before", "cause"), [(1_000_000, "python"), (-1_000, "replan")])
def test_what_had_ended_before_attention_was_launched_planned_nothing(ends_before: int, cause: str) -> None:
    """Documents are looked up before a step, whose first kernel is attention; or attention is called by such a name."""
    rows = [("pytorch_flash::flash_fwd_kernel", 20 * MS * i, MS) for i in range(8)]
    seen = [(OPERATOR, "lookup", 20 * MS * i + 2 * MS, 20 * MS * (i + 1) - ends_before) for i in range(7)]
    timeline = with_host(made([("decode", 0, 160 * MS)], rows), *seen)
    assert next(iter(causes(performance(evaluated(timeline), "decode")))) == cause


def _making_ready(ranges: list[tuple[str, int, int]], ms: int) -> Timeline:
    """Work that begins after so long, and stops for a second."""
    kernels = [("fill", 1_000, MS), *(("k", (ms + 2 * number) * MS, MS) for number in range(500))]
    kernels.append(("k", (ms + 2_000) * MS, MS))  # the same line again, in the midst of it
    ready = [(2 * MS, (ms - 1) * MS), ((ms + 1_001) * MS, (ms + 1_999) * MS)]
    timeline = with_host(made(ranges, kernels), *((PYTHON, "train.py(9): load", *times) for times in ready))
    return with_whole_recording(timeline)


@pytest.mark.parametrize(("ranges", "cause"), [([], "startup"), ([("train", 0, 4_000 * MS)], "python")])
def test_what_a_program_without_ranges_does_before_its_work_is_making_ready(
    ranges: list[tuple[str, int, int]], cause: str
) -> None:
    ms = 4_000 if cause == "startup" else 1_000
    of = performance(evaluated(_making_ready(ranges, ms)), ranges[0][0] if ranges else "whole recording")
    assert causes(of)[cause] == pytest.approx((ms - 2 + (0 if cause == "startup" else 998)) * MS, rel=0.01)
    assert causes(of)["python"] >= 990 * MS


def test_first_uses_are_no_part_of_a_recording_without_ranges_unless_most_of_its_time() -> None:
    of = evaluated(_making_ready([], 4_000))
    assert performance(of, "whole recording").verdict.title == "warm-up"
    of = evaluated(_making_ready([], 1_000))
    warm = performance(of, "whole recording")
    assert (warm.verdict.title, warm.opportunities[0].rule) == ("host-bound", "host.python")
    assert set(causes(warm)) == {"python", "unseen"}
    assert warm.time.wall is not None
    assert warm.time.idle is not None
    assert warm.time.wall.of("ns") == pytest.approx(2_003 * MS, rel=0.01)
    assert warm.time.idle.of("ns") == sum(causes(warm).values())
    assert of.answer is not None
    assert of.answer.where == "The whole recording takes 2 s after 1 s of warm-up (first use)."
    (region,) = of.scopes[0].regions
    assert region.timing is not None
    assert (region.timing.warmup.total_ns + region.timing.steady.total_ns) == region.wall_ns


def test_a_gap_in_which_the_host_went_through_several_lines_is_not_unseen() -> None:
    """None of them fills half of it; each has its part, and only what none covers is not known."""
    timeline = made([("step", 0, 100 * MS)], [("k", 0, MS), ("k", 99 * MS, MS)])
    start = np.array([2, 32, 62], dtype=np.int64) * MS
    names = [f"/home/me/sample.py({n}): accept" for n in range(3)]
    place = np.arange(3, dtype=np.int32) + len(timeline.strings)
    alike = np.zeros(3, dtype=np.int32)
    thread = alike + timeline.ranges.thread[0]
    code = CodeSpans(start, start + 29 * MS, alike + timeline.ranges.process[0], thread, place)
    of = performance(evaluated(evolve(timeline, strings=[*timeline.strings, *names], code=code)), "step")
    assert causes(of)["python"] == pytest.approx(87 * MS, rel=0.01)
    assert causes(of).get("unseen", 0) <= 12 * MS


def test_short_gaps_after_a_synchronisation_are_its_cost() -> None:
    """Each kernel is waited for: the next gap begins while a thread is still in the call."""
    kernels = [("k", 100_000 * i, 20_000) for i in range(50)]
    timeline = made([("step", 0, 5 * MS)], kernels)
    waits = [(CALL, "cudaStreamSynchronize", 100_000 * i + 5_000, 100_000 * i + 25_000) for i in range(50)]
    of = performance(evaluated(with_host(timeline, *waits)), "step")
    assert causes(of) == {"sync": 4 * MS - 1, "launch": 1}
    assert (of.verdict.bound, of.verdict.title) == ("host", "held up by synchronisation")
    assert of.opportunities[0].rule == "host.sync"


def test_work_of_the_host_behind_a_tiny_copy_is_the_cost_of_waiting_for_it() -> None:
    """`.item()` is a copy of a few bytes: pinned memory would not help, not asking for the value would."""
    kernels = [("k", 500_000 * i, 300_000) for i in range(20)]
    timeline = made([("step", 0, 10 * MS)], kernels)
    waits = [(CALL, "cudaMemcpyAsync", 500_000 * i + 9_000, 500_000 * i + 305_000) for i in range(20)]
    of = performance(evaluated(with_host(timeline, *waits)), "step")
    assert next(iter(causes(of))) == "sync"
    assert of.opportunities[0].rule == "host.sync"


def test_many_short_allocations_fill_a_gap_together() -> None:
    frees = [(CALL, "cudaFree", MS * i, MS * i + 900_000) for i in range(2, 19)]
    of = one_long_gap((PYTHON, "memory.py(100): empty_cache", 2 * MS, 20 * MS), *frees)
    assert next(iter(causes(of))) == "alloc"
    assert of.opportunities[0].rule == "host.alloc"


def _short(kind: int, *names: str, each: int = 1_500_000, apart: int = 2 * MS) -> list[Event]:
    """One behind the other in the gap of `one_long_gap`, none of them half of it."""
    return [(kind, name, 2 * MS + number * apart, 2 * MS + number * apart + each) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("kind", "names", "told"),
    [
        (OPERATOR, ["aten::mul", "aten::mul", "aten::add"] * 3, {("python", "aten::mul"): 9 * MS, ("python", "aten::add"): 4_500_000}),
        (PYTHON, ["queue of 1", "queue of 2", "merge"] * 3, {("python", "queue of …"): 9 * MS, ("python", "merge"): 4_500_000}),
        (OPERATOR, ["collate", "render", "collate"] * 3, {("data", "collate"): 9 * MS, ("python", "render"): 4_500_000}),
        (CALL, ["cudaFuncSetAttribute"] * 4 + ["cudaEventQuery"] * 5, {("python", "cudaEventQuery"): 7_500_000, ("module", "cudaFuncSetAttribute"): 6 * MS}),
    ],
)  # fmt: skip
def test_a_gap_that_several_short_things_fill_is_named_after_them(
    kind: int, names: list[str], told: dict[tuple[str, str], int]
) -> None:
    timeline = made([("step", 0, 22 * MS)], [("k", 1_000, MS), ("k", 21 * MS, MS)])
    of = performance(evaluated(with_host(timeline, *_short(kind, *names))), "step")
    assert of.idle is not None
    assert {(c.cause, c.what): c.time_ns for c in of.idle.causes if c.what} == told
    assert sum(c.time_ns for c in of.idle.causes) == of.idle.total_ns
    # Those that fill too little of it do not name it.
    of = performance(evaluated(with_host(timeline, *_short(kind, *names[:6]))), "step")
    assert of.idle is not None
    assert [c.what for c in of.idle.causes if c.what] == []


def test_threads_that_are_not_known_fill_no_gap() -> None:
    """Beside a kernel whose launch was not recorded, what some thread in the background did is nothing the GPU waited for."""
    timeline = made([("step", 0, 22 * MS)], [("k", 1_000, MS), ("k", 2 * MS, 10), ("k", 21 * MS, MS)])
    timeline.kernels.thread[1] = UNKNOWN
    events = _short(OPERATOR, *["aten::mul"] * 9)
    of = performance(evaluated(with_host(timeline, *events, threads=[UNKNOWN] * 9)), "step")
    assert of.idle is not None
    assert [c.what for c in of.idle.causes if c.what] == []


def test_short_ranges_name_a_gap_but_not_that_of_their_own_region() -> None:
    ranges = [("step", 0, 22 * MS), *((f"part {n}", 2 * MS + n * 2 * MS, 3_500_000 + n * 2 * MS) for n in range(9))]
    timeline = made(ranges, [("k", 1_000, MS), ("k", 21 * MS, MS)])
    found = evaluated(timeline)
    of = performance(found, "step")
    assert of.idle is not None
    assert [(c.cause, c.what, c.time_ns) for c in of.idle.causes if c.what] == [("python", "part …", 13_500_000)]
    own = performance(found, "step/part 3")
    assert own.idle is not None
    assert [c.what for c in own.idle.causes] == [""]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("enumerate(DataLoader)#X.__next__", "num_workers"),
        ("torch/utils/data/dataloader.py(1): __next__", "num_workers"),
        ("tokenize prompts", "fast tokenizer"),
        ("decode_jpeg", "nvJPEG"),
        ("next_batch", "another thread or process"),
    ],
)
def test_what_to_do_about_input_goes_by_what_was_seen(name: str, says: str) -> None:
    of = one_long_gap((OPERATOR, name, 2 * MS, 20 * MS))
    (found,) = [one for one in of.opportunities if one.rule == "host.data"]
    assert says in found.advice
    assert ("DataLoader" in found.advice) == (says == "num_workers")


def waiting_steps(*waits: int) -> RegionPerformance:
    """Steps of two kernels, and such a wait between the two in each."""
    ranges, kernels, parts, at = list[tuple[str, int, int]](), list[tuple[str, int, int]](), [], 0
    for wait in waits:
        ranges.append(("step", at, at + wait + 20 * MS))
        parts.append(("compute", at + MS, at + MS + wait))
        kernels += [("k", at, MS), ("k", at + MS + wait, 19 * MS)]
        at += wait + 20 * MS
    return performance(evaluated(made([*ranges, *parts], kernels)), "step")


def test_the_gain_of_waiting_has_the_interval_of_its_instances() -> None:
    """Twenty steps, of which the last five wait longer: from 0.9 times the second shortest to 1.25 times the second longest."""
    waits = [10 * MS + n * 100_000 for n in range(15)] + [13 * MS, 14 * MS, 15 * MS, 16 * MS, 20 * MS]
    of = waiting_steps(*waits)
    assert of.idle is not None
    (found,) = [one for one in of.opportunities if one.rule == "host.python"]
    assert found.interval is not None
    assert found.recoverable.of("ns") == pytest.approx(sum(waits), rel=0.001)
    assert [end.of("ns") / 20 for end in found.interval] == pytest.approx([0.9 * 10_100_000, 1.25 * 16 * MS], rel=0.001)
    assert set(of.idle.spread) >= {"", "python"}


def test_of_one_instance_the_interval_is_wide() -> None:
    of = one_long_gap()
    assert of.idle is not None
    assert of.idle.spread == {}
    (found,) = of.opportunities
    assert found.interval == [found.time * 0.45, found.of]  # no more than the whole


@pytest.mark.parametrize(
    ("name", "cause", "rule"),
    [
        ("load_batch", "data", "host.data"),
        ("compile kernels", "module", "warmup"),
        ("postprocess", "thread", "host.python"),
    ],
)
def test_a_range_of_a_thread_that_launches_nothing_may_explain_a_gap(name: str, cause: str, rule: str) -> None:
    timeline = made([("step", 0, 22 * MS), (name, 2 * MS, 20 * MS)], [("k", 1_000, MS), ("k", 21 * MS, MS)])
    timeline = evolve(timeline, threads=[0, 0])
    timeline.ranges.thread[1] = 1
    of = performance(evaluated(timeline), "step")
    assert of.idle is not None
    assert (of.idle.causes[0].cause, of.idle.causes[0].what) == (cause, name)
    assert of.opportunities[0].rule == rule


def test_a_region_of_a_thread_that_launches_nothing_does_not_explain_itself() -> None:
    timeline = made([("step", 0, 22 * MS)], [("k", 1_000, MS), ("k", 21 * MS, MS)])
    timeline = evolve(timeline, threads=[0, 0])
    timeline.ranges.thread[0] = 1
    of = performance(evaluated(timeline), "step")
    assert of.idle is not None
    assert (of.idle.causes[0].cause, of.idle.causes[0].what) == ("unseen", "")


def test_who_waits_for_another_thread_does_what_that_one_does() -> None:
    get, main = (PYTHON, "queue.py(180): get", 2 * MS, 20 * MS), (PYTHON, "train.py(5): main", 0, 22 * MS)
    collate, render = (OPERATOR, "collate", 2 * MS, 20 * MS), (OPERATOR, "render", 2 * MS, 20 * MS)
    for other, cause in ((collate, "data"), (render, "thread")):
        timeline = made([("step", 0, 22 * MS)], [("k", 1_000, MS), ("k", 21 * MS, MS)])
        timeline.threads.append(0)
        of = performance(evaluated(with_host(timeline, main, get, other, threads=[0, 0, 1])), "step")
        assert of.idle is not None
        assert (of.idle.causes[0].cause, of.idle.causes[0].what) == (cause, other[1])
    alone = one_long_gap(main, get)
    assert causes(alone)["wait"] > 19 * MS  # and nobody is seen at work


def test_a_range_that_fills_a_short_gap_says_more_than_the_waiting_before_it() -> None:
    """The host waits for the first kernel, then works for 600 µs in a range of its own; or launches in that range."""
    for launched, cause in ((690_000, "python"), (400_000, "sync")):
        timeline = made(
            [("step", 0, MS), ("detokenise", 60_000, 680_000)], [("k", 1_000, 50_000), ("k", 700_000, 50_000)]
        )
        timeline.kernels.host_time[1] = launched
        of = performance(evaluated(with_host(timeline, (CALL, "cudaStreamSynchronize", 5_000, 55_000))), "step")
        assert of.idle is not None
        found = max(of.idle.causes, key=lambda one: one.time_ns)
        assert found.cause == cause
        assert (found.what == "detokenise") == (cause == "python")


def test_ranges_explain_gaps_where_the_launching_calls_are_missing_too() -> None:
    """Ranges that hold no work: the whole recording is the stage, and what lies around one gap alone names it."""
    ranges = [("IO", 2 * MS, 19 * MS), ("IO", 23 * MS, 40 * MS), ("all of it", 0, 43 * MS)]
    timeline = made(ranges, [("k", 1_000, MS), ("k", 21 * MS, MS), ("k", 42 * MS, MS)])
    timeline.kernels.host_time[:], timeline.kernels.thread[:] = UNKNOWN, UNKNOWN
    of = performance(evaluated(timeline), "whole recording")
    assert of.idle is not None
    assert (of.idle.causes[0].cause, of.idle.causes[0].what, of.idle.causes[0].gaps) == ("python", "IO", 2)


def test_launches_of_graphs_have_words_of_their_own() -> None:
    idle = IdleTime(1000, 16, [], [IdleCause("launch", "cudaGraphLaunch", 10, 1000)])
    rules = [part.rule for graphs in (False, True) for part in idle_parts(idle, False, graphs)]
    assert rules == ["host.python", "host.graphs"]


def test_few_launches_gain_nothing_by_a_graph() -> None:
    few = performance(evaluated(made([("step", 0, 400_000)], [("k", 200_000, 2_000)])), "step")
    assert [o.rule for o in few.opportunities] == ["host.python"]
    assert few.verdict.bound == "host"


def test_parts_never_promise_more_than_the_program_alone_waits() -> None:
    parts = [IdleCause("launch", "", 10, 600), IdleCause("data", "read", 1, 300), IdleCause("gpu", "", 5, 100)]
    idle = IdleTime(1000, 16, [], parts)
    assert {p.rule: p.time_ns for p in idle_parts(undisturbed(idle, 1000), True, False)} == {
        "launch.graph": 600,
        "host.data": 300,
    }
    # What a profiler adds, it adds to launches.
    assert {p.rule: p.time_ns for p in idle_parts(undisturbed(idle, 500), True, False)} == {
        "launch.graph": 100,
        "host.data": 300,
    }
    assert {p.rule: p.time_ns for p in idle_parts(undisturbed(idle, 200), True, False)} == {"host.data": 150}


def test_no_part_is_larger_than_the_whole() -> None:
    """Three products side by side take 1 ms, and 3 ms added up."""
    kernels = [("ampere_sgemm_128x128_tn", 1_000 + n, MS) for n in range(3)]
    of = performance(evaluated(made([("step", 0, MS + 10_000)], kernels)), "step")
    (found,) = [o for o in of.opportunities if o.rule == "gemm.fp32"]
    assert found.recoverable <= found.time <= found.of
    assert found.interval is not None
    assert found.interval[1] <= found.of
    assert "1 ms of 1.01 ms" in found.because


def test_a_trace_that_was_cut_off_is_not_said_to_wait_at_its_end() -> None:
    timeline = made([("step", 0, 30 * MS)], [("k", 1_000, MS), ("k", 3 * MS, MS)])
    one = np.array([0], dtype=np.int32)
    operator = OperatorCalls(np.array([10]), np.array([2 * MS]), one, one, one + UNKNOWN)
    cut = performance(evaluated(evolve(timeline, calls=operator)), "step")
    assert causes(cut) == pytest.approx({"end": 26 * MS, "unseen": 2 * MS, "launch": 1_000}, rel=0.01)
    assert (cut.verdict.bound, cut.verdict.confidence) == ("unknown", "low")
    assert "at the end of the recording, which shows neither work nor calls there: 26 ms in 1 gap" in cut.verdict.text
    assert "host.unknown" in {o.rule for o in cut.opportunities}
    # An operator that begins there: the host did something.
    later = evolve(operator, start=np.array([20 * MS]), end=np.array([29 * MS]))
    assert "end" not in causes(performance(evaluated(evolve(timeline, calls=later)), "step"))


def test_every_cause_has_words_and_a_fix() -> None:
    words, fixes = idle_words(), fix_words()
    assert set(words) == {*CAUSES, "graphs", "compile", "engine"} - {"warmup"}
    for cause in words.values():
        assert not cause.rule or cause.rule in fixes
        assert {cause.without_graph or "launch", cause.between_graphs or "launch"} <= set(words)


# -- from the GPU's side ------------------------------------------------------------------------------------


def running_ahead() -> Timeline:
    """Five steps of 1 ms of work every 1.1 ms, launched by ranges of 10 µs each."""
    ranges = [("step[DECODE bs=8]", 20_000 * i, 20_000 * i + 10_000) for i in range(5)]
    timeline = made(ranges, [("k", 200_000 + 1_100_000 * i, MS) for i in range(5)])
    timeline.kernels.host_time[:] = [20_000 * i + 5_000 for i in range(5)]
    return timeline


def test_a_program_that_runs_ahead_is_timed_on_the_gpu() -> None:
    of = performance(evaluated(running_ahead()), "step[DECODE bs=8]")
    side = of.gpu_side
    assert side is not None
    assert (side.instances, side.step_ns, side.time_ns) == (5, 1_100_000, 5_400_000)
    assert (side.idle_ns, side.idle_between_ns) == (400_000, 400_000)
    assert of.time.basis == "gpu"
    assert of.time.wall is not None
    assert of.time.wall.of("ns") == 5_400_000
    assert "in 5 steps, one every 1.1 ms, idle for 400 µs, 400 µs of that between steps" in of.verdict.text
    assert of.tokens is not None
    assert of.tokens.tokens.value == 40
    assert of.tokens.now.of("token/s") == pytest.approx(40 / 5.4e-3)


def test_idle_time_of_steps_that_alternate_is_told_once() -> None:
    """Decode steps of 1 ms by turns with samplers of two kernels, all launched long before: each wait has one owner.

    The pause from one decode step to the next is short, and holds all of a sampler with the waits in it.
    """
    ranges, kernels, launched, at = list[tuple[str, int, int]](), list[tuple[str, int, int]](), list[int](), MS
    for _ in range(6):
        for name, work in (("decode", [(70_000, MS)]), ("sampler", [(50_000, 100_000), (200_000, 100_000)])):
            begin = 20_000 * len(ranges)
            ranges.append((name, begin, begin + 10_000))
            for wait, length in work:
                launched.append(begin + 5_000)
                kernels.append((f"k_{name}", at + wait, length))
                at += wait + length
    timeline = made(ranges, kernels)
    timeline.kernels.host_time[:] = launched
    report = evaluated(timeline)
    for name, work, idle in (
        ("decode", 6 * MS, 5 * 70_000),  # of the wait before the first step nobody knows whose it is
        ("sampler", 6 * 200_000, 6 * 200_000 + 5 * 50_000),
    ):
        of = performance(report, name)
        assert of.gpu_side is not None
        assert of.idle is not None
        assert (of.gpu_side.instances, of.gpu_side.idle_ns, of.idle.total_ns) == (6, idle, idle)
        assert of.gpu_side.time_ns == work + idle
    gains = {fix.stage: fix.gain_ns * 6 for fix in report.answer.stage_fixes}
    assert sum(gains.values()) <= 6 * 320_000


def test_a_part_of_a_step_does_not_take_as_long_as_the_step() -> None:
    """Forward and backward take turns on the GPU: the time from one forward to the next is that of both."""
    names, works = ("forward", "backward"), (MS, 3 * MS)
    ranges = [(names[n % 2], 20_000 * n, 20_000 * n + 10_000) for n in range(10)]
    starts = [200_000 + 4 * MS * (n // 2) + (n % 2) * MS for n in range(10)]
    timeline = made(ranges, [("k", start, works[n % 2]) for n, start in enumerate(starts)])
    timeline.kernels.host_time[:] = [20_000 * n + 5_000 for n in range(10)]
    found = evaluated(timeline)
    for region in stage_regions(found):
        side = performance(found, region.name).gpu_side
        assert side is not None
        assert (side.step_ns, side.fills_steps, each_ns(region)) == (4 * MS, False, None)
    assert "takes 15 ms in 5 steps, 3 ms each on average" in found.answer.where


# -- recordings of the repository, against plain loops over the same rows ------------------------------------


def plain_gaps(spans: list[tuple[int, int]]) -> list[int]:
    """Lengths of the gaps between some work."""
    found, reach = [], None
    for start, end in sorted(spans):
        if reach is not None and start > reach:
            found.append(start - reach)
        reach = end if reach is None else max(reach, end)
    return found


@pytest.mark.parametrize(
    "name", ["nsys-*-h200-train.sqlite", "nsys-*-graph_node.sqlite", "nsys-*-decoder-8layers.sqlite"]
)
def test_gaps_of_a_recording_are_those_of_its_rows(name: str, unpacked: Callable[[Path], Path]) -> None:
    path = recording(name)
    timeline = read(path)
    assert isinstance(timeline, Timeline)
    spans: list[tuple[int, int]] = []
    with sqlite3.connect(unpacked(path)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        for table in {"KERNEL", "MEMCPY", "MEMSET"} & {name.rpartition("_")[2] for name in tables}:
            spans += db.execute(f'SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_{table}').fetchall()
    gaps = find_gaps(timeline, 0, np.zeros(len(timeline.ranges), dtype=np.bool_))
    between = (gaps.start >= min(s for s, _ in spans)) & (gaps.end <= max(e for _, e in spans))
    assert sorted((gaps.end - gaps.start)[between].tolist()) == sorted(plain_gaps(spans))


@pytest.mark.parametrize("name", ["nsys-*-h200-train.sqlite", "nsys-*-decoder-8layers.sqlite", "kineto-*.json.gz"])
def test_sizes_and_causes_add_up_to_the_idle_time(name: str) -> None:
    found = report(name)
    for key, region in regions_of(found.main_scope).items():
        of = region.performance
        if of is None or of.idle is None or of.time.idle is None:
            continue
        assert sum(one.time_ns for one in of.idle.causes) == of.idle.total_ns == sum(s.time_ns for s in of.idle.sizes)
        assert sum(one.gaps for one in of.idle.sizes) == of.idle.gaps
        # What a warm-up instance inside took longer is no idle time, and its gaps are left out.
        assert of.idle.total_ns == pytest.approx(of.time.idle.of("ns"), rel=0.05), key
        promised = sum(o.recoverable.of("ns") for o in of.opportunities if o.kind == "waiting")
        assert promised <= of.time.idle.of("ns") + 1


# -- public recordings, as an expert reads them --------------------------------------------------------------


def public(pattern: str) -> Path:
    found = sorted(PUBLIC.glob(pattern)) if PUBLIC.is_dir() else []
    if not found:
        pytest.skip(f"{pattern} is not here")
    return found[0]


def stage(found: NCUProfileRegionReport) -> RegionPerformance:
    """The stage that takes most of the time."""
    regions = [regions_of(found.main_scope)[key] for key in found.stages]
    of = max(regions, key=lambda r: r.wall_ns or 0).performance
    assert of is not None
    return of


@pytest.mark.slow
def test_resnet_without_workers_waits_for_input() -> None:
    path = public("pytorch+kineto+worker0.1623143089861.pt.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    work = [e for e in events if e.get("cat") in ("Kernel", "Memcpy", "Memset")]
    gaps = plain_gaps([(int(e["ts"]), int(e["ts"]) + int(e["dur"])) for e in work])  # µs
    long = [gap for gap in gaps if gap >= 10_000]
    assert len(long) == 5
    assert sum(long) / sum(gaps) == pytest.approx(0.73, abs=0.005)
    of = stage(report(path))
    # One more lies before the first kernel of the first step.
    assert of.idle is not None
    assert (of.idle.sizes[0].at_least_ns, of.idle.sizes[0].gaps) == (10 * MS, 6)
    assert (of.verdict.bound, of.verdict.title, of.opportunities[0].rule) == ("host", "input-bound", "host.data")
    assert "enumerate(DataLoader)" in of.opportunities[0].because
    assert of.opportunities[0].recoverable.of("ns") == pytest.approx(354.3e6, abs=0.1e6)


@pytest.mark.slow
def test_an_eager_step_on_a_b200_wants_a_graph() -> None:
    of = stage(report(public("*b200_eager_trace.json.gz")))
    assert of.time.wall is not None
    assert of.time.idle is not None
    assert of.time.wall.of("ns") == pytest.approx(87.4e6, abs=0.05e6)
    assert of.time.idle.of("ns") == pytest.approx(75.8e6, abs=0.05e6)
    assert (of.verdict.bound, of.opportunities[0].rule) == ("launch", "launch.graph")


@pytest.mark.slow
def test_an_asynchronous_decode_is_told_by_its_steps_on_the_gpu() -> None:
    path = public("*gptoss120b_bs-64*TP-0-DECODE.trace.json.gz")
    of = stage(report(path))
    side = of.gpu_side
    assert side is not None
    assert side.instances == 5
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "gpu_user_annotation" and "DECODE" in e["name"]
    )
    # The profiler's own annotations on the GPU say the same, within a few kernels at the edges.
    assert side.step_ns == pytest.approx(np.median(np.diff([s for s, _ in steps])) * 1e3, rel=0.01)
    assert side.time_ns - side.idle_between_ns == pytest.approx(sum(e - s for s, e in steps) * 1e3, rel=0.01)
    assert of.tokens is not None
    assert of.tokens.tokens.value == 5 * 64
    assert "GPU works for 86.6 %" in of.verdict.text


@pytest.mark.slow
def test_an_epoch_that_waits_for_its_workers() -> None:
    found = report(public("*AI-Profiler+baseline_nvtx.sqlite.xz"))
    of = stage(found)
    assert (of.verdict.title, of.opportunities[0].rule) == ("input-bound", "host.data")
    regions = regions_of(found.main_scope)
    loading = next(r for key, r in regions.items() if key.endswith("Data loading"))
    assert loading.wall_ns == pytest.approx(11.3e9, rel=0.001)


@pytest.mark.slow
def test_copies_that_are_pinned_are_not_told_to_be_pinned() -> None:
    of = stage(report(public("*control_control.json.gz")))
    (copies,) = [o for o in of.opportunities if o.kind == "host copies"]
    assert copies.rule == "copy.host"
    assert "pin" not in copies.advice
    # Only what nothing else hides can be won.
    assert copies.recoverable.of("ns") < 0.5 * copies.time.of("ns")
