"""Work belongs to the ranges that were open when it was launched: by thread, by process, or both."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from conftest import examples, recording, regions_of, report
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.regions.attribution import Attribution, Mode, attribute
from llm_perf_opt.regions.columns import UNKNOWN, GraphNodes, Process, Ranges, Timeline, Work
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.table import ROOT

MODES: list[Mode] = ["auto", "thread", "process"]


# -- timelines written by hand ---------------------------------------------------------------------


@define
class Range:
    """A range instance: when, on which thread, how called."""

    start: int
    end: int
    name: str
    thread: int = 0
    domain: str = ""
    start_end: bool = False


@define
class Kernel:
    """A launch: when and by which thread the host called, and how long the GPU took."""

    launched: int = UNKNOWN
    thread: int = 0
    takes: int = 10
    node: int = UNKNOWN
    name: str = "kernel"


def timeline_of(
    ranges: list[Range], kernels: list[Kernel], threads: list[int] | None = None, nodes: list[Kernel] | None = None
) -> Timeline:
    """A timeline; `threads` gives the process of each thread, `nodes` the captures of graph nodes."""
    owner = threads or [0, 0, 0]
    strings = sorted({r.name for r in ranges} | {k.name for k in kernels})
    domains = ["", *sorted({r.domain for r in ranges} - {""})]

    def ints(values: list[int], dtype: Any = np.int32) -> Any:
        return np.array(values, dtype=dtype)

    # One after another on the GPU, long after the launch, as in a program that runs ahead.
    begins = [1_000_000 + sum(k.takes for k in kernels[:i]) for i in range(len(kernels))]
    known = [k.thread if k.launched != UNKNOWN else UNKNOWN for k in kernels]
    return Timeline(
        source="by hand",
        kind="nsys-sqlite",
        strings=strings,
        domains=domains,
        processes=[Process(pid=100 + p) for p in range(max(owner) + 1)],
        threads=owner,
        kernels=Work(
            start=ints(begins, np.int64),
            end=ints([b + k.takes for b, k in zip(begins, kernels, strict=True)], np.int64),
            process=ints([owner[k.thread] for k in kernels]),
            device=ints([0] * len(kernels)),
            name=ints([strings.index(k.name) for k in kernels]),
            host_time=ints([k.launched for k in kernels], np.int64),
            thread=ints(known),
            graph_node=ints([k.node for k in kernels]),
        ),
        copies=Work.empty(),
        graphs=Work.empty(),
        ranges=Ranges(
            start=ints([r.start for r in ranges], np.int64),
            end=ints([r.end for r in ranges], np.int64),
            process=ints([owner[r.thread] for r in ranges]),
            thread=ints([r.thread for r in ranges]),
            domain=ints([domains.index(r.domain) for r in ranges]),
            name=ints([strings.index(r.name) for r in ranges]),
            start_end=np.array([r.start_end for r in ranges], dtype=np.bool_),
        ),
        graph_nodes=GraphNodes(
            ints([n.launched for n in nodes or []], np.int64), ints([n.thread for n in nodes or []])
        ),
    )


def paths(found: Attribution, domains: list[str], kernel: int = 0) -> dict[str, str]:
    """Where a kernel is, in every domain in which it is somewhere."""
    where = {d: int(regions[kernel]) for d, regions in zip(domains, found.kernels.by_domain, strict=True)}
    return {domain: "/".join(found.table.path(region)) for domain, region in where.items() if region != ROOT}


def place(ranges: list[Range], kernel: Kernel, mode: Mode = "auto", **rest: Any) -> dict[str, str]:
    timeline = timeline_of(ranges, [kernel], **rest)
    return paths(attribute(timeline, mode), timeline.domains)


def start_end_regions(ranges: list[Range], kernel: Kernel, mode: Mode = "auto", **rest: Any) -> list[str]:
    found = attribute(timeline_of(ranges, [kernel], **rest), mode)
    return sorted(found.table.name[region] for region, members in found.kernels.start_end.items() if len(members))


# -- autograd's engine ------------------------------------------------------------------------------

ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def test_ranges_of_autograd_s_engine_lie_in_the_range_that_called_backward() -> None:
    """`emit_nvtx`: the engine's thread has ranges of its own, of operators."""
    user = [Range(0, 1000, "step"), Range(100, 900, "backward")]
    ranges = [*user, Range(200, 300, ENGINE, thread=1), Range(210, 290, "MmBackward0", thread=1)]
    kernel = Kernel(250, thread=1)
    assert place(ranges, kernel) == {"": f"step/backward/{ENGINE}/MmBackward0"}
    assert place(ranges, kernel, "thread") == {"": f"{ENGINE}/MmBackward0"}
    found = attribute(timeline_of(ranges, [kernel, Kernel(150)]))
    assert found.kernels.adopted.tolist() == [True, False]
    assert found.range_parent.tolist() == [UNKNOWN, 0, 1, 2]


def test_an_engine_with_nothing_around_it_keeps_its_ranges() -> None:
    ranges = [Range(0, 100, "step"), Range(200, 300, ENGINE, thread=1)]
    assert place(ranges, Kernel(250, thread=1)) == {"": ENGINE}


def test_threads_with_ranges_of_the_user_keep_their_own() -> None:
    ranges = [Range(0, 1000, "serve"), Range(200, 300, "decode", thread=1), Range(210, 290, "aten::mm", thread=1)]
    assert place(ranges, Kernel(250, thread=1)) == {"": "decode/aten::mm"}
    # Part of a backward pass runs on the thread that called it: that makes it no thread of the engine.
    ranges = [Range(0, 1000, "serve"), Range(200, 300, "train", thread=1), Range(210, 290, ENGINE, thread=1)]
    assert place(ranges, Kernel(250, thread=1)) == {"": f"train/{ENGINE}"}


# -- real recordings -------------------------------------------------------------------------------


def found_in(name: str, mode: Mode) -> dict[str, NCUProfileRegion]:
    return regions_of(report(recording(f"nsys-*-{name}.sqlite"), attribution=mode).main_scope)


def kernels_of(regions: dict[str, NCUProfileRegion]) -> dict[str, int]:
    return {key: region.inclusive.kernel_count for key, region in regions.items()}


def test_backward_kernels_of_autograd_s_thread_are_adopted_by_the_range_around_them() -> None:
    regions = found_in("train", "auto")
    assert kernels_of(regions) == {
        **{"step": 117, "step/forward": 33, "step/backward": 60, "step/optimizer": 24},
        "backward_se (start/end)": 60,
    }
    assert {key: r.adopted_kernels for key, r in regions.items() if r.adopted_kernels} == {
        **{"step": 57, "step/backward": 57, "backward_se (start/end)": 57}
    }
    assert all(region.instances == 3 for region in regions.values())


def test_by_thread_only_three_of_the_sixty_backward_kernels_are_found_as_nsys_has_it() -> None:
    regions = found_in("train", "thread")
    assert regions["step/backward"].inclusive.kernel_count == 3
    assert regions["backward_se (start/end)"].inclusive.kernel_count == 3
    assert not any(region.adopted_kernels for region in regions.values())


def test_by_process_all_sixty_are_found_and_none_counts_as_adopted() -> None:
    regions = found_in("train", "process")
    assert regions["step/backward"].inclusive.kernel_count == 60
    assert regions["backward_se (start/end)"].inclusive.kernel_count == 60
    assert not any(region.adopted_kernels for region in regions.values())


def test_a_worker_with_a_range_of_its_own_keeps_it_and_one_without_is_adopted() -> None:
    assert kernels_of(found_in("threads", "auto")) == {"step": 2, "step/outer": 2, "op_on_worker": 1}
    assert kernels_of(found_in("threads", "thread")) == {"step": 1, "step/outer": 1, "op_on_worker": 1}
    assert kernels_of(found_in("threads", "process")) == {"step": 3, "step/outer": 3, "step/outer/op_on_worker": 1}


@pytest.mark.parametrize("mode", ["auto", "process"])
def test_kernels_of_a_graph_are_below_its_launch_in_the_ranges_of_their_capture(mode: Mode) -> None:
    regions = found_in("graph_node", mode)
    top = "LLM@replay_all/decode_step"
    assert regions[top].inclusive.kernel_count == regions[top].graph_kernels == 90
    assert regions[top].exclusive.kernel_count == 0
    for block in ("block0", "block1", "block2"):
        assert regions[f"{top}/capture/{block}/mlp"].inclusive.kernel_count == 12
        assert regions[f"{top}/capture/{block}/norm"].inclusive.kernel_count == 18
        assert regions[f"{top}/capture/{block}/mlp"].instances == 6
    below = [r for key, r in regions.items() if key.startswith(top)]
    assert sum(r.exclusive.kernel_count for r in below) == 90
    # Nothing ran while the graph was captured.
    assert regions["LLM@capture"].inclusive.kernel_count == 0


def test_by_thread_the_kernels_of_a_graph_stay_in_the_range_around_its_launch() -> None:
    regions = found_in("graph_node", "thread")
    assert regions["LLM@replay_all/decode_step"].exclusive.kernel_count == 90
    assert not any(key.startswith("LLM@replay_all/decode_step/") for key in regions)


def test_the_work_of_the_graph_is_the_same_as_without_the_graph() -> None:
    regions = found_in("graph_node", "auto")
    for part in ("block0/mlp", "block1/norm", "block2/mlp"):
        eager, replayed = regions[f"LLM@eager/{part}"], regions[f"LLM@replay_all/decode_step/capture/{part}"]
        assert {k.kernel_name for k in eager.kernels} == {k.kernel_name for k in replayed.kernels}


@pytest.mark.parametrize("mode", MODES)
def test_graphs_traced_as_one_block_are_counted_and_none_is_lost(mode: Mode) -> None:
    found = report("nsys-*-graph_whole.sqlite", attribution=mode)
    assert found.main_scope is not None
    totals = found.main_scope.totals
    assert (totals.kernel_count, totals.graph_launches) == (69, 6)
    region = regions_of(found.main_scope)["LLM@replay_all/decode_step"]
    assert (region.inclusive.graph_launches, region.inclusive.kernel_count) == (6, 0)
    assert region.inclusive.graph_time_ns == totals.graph_time_ns > 0
    assert "WHOLE_GRAPHS" in [d.code for d in found.diagnostics]


def test_two_processes_are_two_scopes_that_add_up() -> None:
    found = report("nsys-*-ranks.sqlite")
    assert [s.scope for s in found.scopes] == ["process:806", "process:807", "device:0", "aggregate"]
    for scope in found.scopes[:2]:
        regions = regions_of(scope)
        assert (regions["LLM@prefill"].instances, regions["LLM@decode_step"].instances) == (1, 4)
        assert kernels_of(regions) == {"LLM@prefill": 2, "LLM@decode_step": 4}
    assert_processes_add_up(found)


@pytest.mark.parametrize("name", ["train", "threads", "graph_node", "graph_whole", "ranks", "names", "decoder-8layers"])
@pytest.mark.parametrize("mode", MODES)
def test_every_real_recording_adds_up(name: str, mode: Mode) -> None:
    found = report(f"nsys-*-{name}.sqlite", attribution=mode)
    assert_reconciles(found)
    assert_processes_add_up(found)


def test_without_the_aggregate_only_the_aggregate_is_missing() -> None:
    whole, less = report("nsys-*-ranks.sqlite"), report("nsys-*-ranks.sqlite", aggregate=False)
    assert [s.scope for s in less.scopes] == [s.scope for s in whole.scopes if s.scope != "aggregate"]
    assert less.scopes == whole.scopes[:-1]


# -- what adds up ----------------------------------------------------------------------------------


def saw_no_gpu(found: NCUProfileRegionReport) -> bool:
    """A recording without any GPU work: then every GPU time is unknown, and there is nothing to add up."""
    if found.scope("aggregate").totals.gpu_time_ns is not None:
        return False
    regions = [r for s in found.scopes for r in s.regions]
    assert {(r.inclusive.gpu_time_ns, r.exclusive.gpu_time_ns, r.gpu_busy_ns, r.gpu_idle_ns) for r in regions} <= {
        (None, None, None, None)
    }
    assert sum(r.inclusive.kernel_count + r.inclusive.graph_launches for r in regions) == 0
    return True


def assert_reconciles(found: NCUProfileRegionReport) -> None:
    """Inclusive is exclusive plus children, and what is outside all regions is the rest of the scope."""
    if saw_no_gpu(found):
        return
    for scope in found.scopes:
        children: dict[str, list[NCUProfileRegion]] = defaultdict(list)
        for region in scope.regions:
            if region.parent is not None:
                children[region.parent].append(region)
        trees: dict[tuple[str, str], int] = defaultdict(int)
        for region in scope.regions:
            for value in ("kernel_count", "gpu_time_ns", "graph_launches", "graph_time_ns"):
                inside, own = getattr(region.inclusive, value), getattr(region.exclusive, value)
                assert inside == own + sum(getattr(child.inclusive, value) for child in children[region.key])
            assert region.inclusive.kernel_count == sum(k.calls for k in region.kernels)
            assert 0 <= region.adopted_kernels <= region.inclusive.kernel_count
            assert (region.gpu_busy_ns or 0) <= region.inclusive.gpu_time_ns + region.inclusive.graph_time_ns + (
                region.inclusive.memory.time_ns
            )
            if region.range_kind == "push_pop":
                trees[region.domain, region.range_kind] += region.exclusive.kernel_count
        attributed = scope.totals.kernel_count - scope.totals.unattributed_kernel_count
        assert all(count <= attributed for count in trees.values())
        # A kernel is in at least one tree, and once in each.
        in_pairs = sum(r.exclusive.kernel_count for r in scope.regions)
        assert attributed <= in_pairs


def assert_processes_add_up(found: NCUProfileRegionReport) -> None:
    if saw_no_gpu(found):
        return
    processes = [s for s in found.scopes if s.scope.startswith("process:")]
    whole = found.scope("aggregate")
    for value in ("kernel_count", "gpu_time_ns", "unattributed_kernel_count", "adopted_kernel_count", "graph_launches"):
        assert sum(getattr(s.totals, value) for s in processes) == getattr(whole.totals, value)
    parts = [regions_of(s) for s in processes]
    assert {key for part in parts for key in part} == set(regions_of(whole))
    for key, region in regions_of(whole).items():
        mine = [part[key] for part in parts if key in part]
        assert sum(r.inclusive.kernel_count for r in mine) == region.inclusive.kernel_count
        assert sum(r.inclusive.gpu_time_ns or 0 for r in mine) == region.inclusive.gpu_time_ns


# -- rules, one by one -----------------------------------------------------------------------------


def test_the_launch_decides_not_the_moment_the_gpu_ran() -> None:
    assert place([Range(0, 10, "a"), Range(20, 2_000_000, "b")], Kernel(5)) == {"": "a"}


def test_a_launch_at_the_end_of_a_range_is_outside_and_at_its_start_inside() -> None:
    assert place([Range(5, 10, "a")], Kernel(10)) == {}
    assert place([Range(5, 10, "a")], Kernel(5)) == {"": "a"}


def test_a_thread_with_an_open_range_is_not_given_those_of_others() -> None:
    ranges = [Range(0, 100, "main"), Range(10, 20, "worker", thread=1)]
    assert place(ranges, Kernel(15, thread=1)) == {"": "worker"}
    assert place(ranges, Kernel(50, thread=1)) == {"": "main"}
    assert place(ranges, Kernel(50, thread=1), "thread") == {}
    assert place(ranges, Kernel(15, thread=0), "process") == {"": "main/worker"}


def test_a_collective_s_own_range_does_not_hide_the_backward_pass_around_it() -> None:
    """NCCL marks every collective in a domain of its own, also those that autograd's thread launches."""
    ranges = [Range(0, 100, "backward"), Range(10, 20, "ncclAllReduce", thread=1, domain="NCCL")]
    assert place(ranges, Kernel(15, thread=1)) == {"": "backward", "NCCL": "ncclAllReduce"}


def test_ranges_that_began_inside_one_s_own_are_not_inherited() -> None:
    """A communication thread's ranges come and go while the main thread computes: they are not around it."""
    ranges = [Range(0, 100, "step"), Range(10, 20, "ncclAllReduce", thread=1, domain="NCCL")]
    assert place(ranges, Kernel(15, thread=0)) == {"": "step"}


def test_another_process_s_ranges_never_count() -> None:
    ranges = [Range(0, 100, "main", thread=0)]
    for mode in MODES:
        assert place(ranges, Kernel(50, thread=1), mode, threads=[0, 1]) == {}


def test_domains_are_trees_of_their_own() -> None:
    ranges = [Range(0, 100, "step"), Range(10, 90, "prefill", domain="LLM"), Range(20, 80, "layer", domain="LLM")]
    assert place(ranges, Kernel(50)) == {"": "step", "LLM": "prefill/layer"}


def test_badly_nested_ranges_are_stacked_in_the_order_they_began() -> None:
    ranges = [Range(0, 50, "a"), Range(20, 80, "b")]
    assert [place(ranges, Kernel(t)) for t in (10, 30, 60)] == [{"": "a"}, {"": "a/b"}, {"": "b"}]


def test_badly_nested_ranges_count_as_one_instance_each() -> None:
    timeline = timeline_of([Range(0, 50, "a"), Range(20, 80, "b")], [Kernel(t) for t in (10, 30, 60)])
    regions = regions_of(build_report([timeline], ReportOptions()).main_scope)
    assert kernels_of(regions) == {"a": 2, "a/b": 1, "b": 1}
    assert sum(r.instances or 0 for r in regions.values()) == 2


def test_a_start_end_range_belongs_to_the_process_and_by_thread_to_the_thread_that_began_it() -> None:
    ranges = [Range(0, 100, "se", thread=0, start_end=True)]
    assert start_end_regions(ranges, Kernel(50, thread=1), "auto") == ["se"]
    assert start_end_regions(ranges, Kernel(50, thread=1), "process") == ["se"]
    assert start_end_regions(ranges, Kernel(50, thread=1), "thread") == []
    assert start_end_regions(ranges, Kernel(50, thread=0), "thread") == ["se"]
    assert start_end_regions(ranges, Kernel(50, thread=2), "auto", threads=[0, 0, 1]) == []


def test_a_kernel_in_two_instances_of_a_start_end_range_is_counted_once() -> None:
    ranges = [Range(0, 100, "se", start_end=True), Range(10, 90, "se", thread=1, start_end=True)]
    found = report_of(ranges, [Kernel(50)])
    region = regions_of(found.main_scope)["se (start/end)"]
    assert (region.inclusive.kernel_count, region.instances) == (1, 2)


def test_start_end_ranges_have_neither_parents_nor_children() -> None:
    ranges = [Range(0, 100, "a"), Range(10, 90, "se", start_end=True), Range(20, 80, "b")]
    found = regions_of(report_of(ranges, [Kernel(50)]).main_scope)
    assert {key: (r.parent, r.inclusive.kernel_count) for key, r in found.items()} == {
        **{"a": (None, 1), "a/b": ("a", 1), "se (start/end)": (None, 1)}
    }


def test_a_kernel_without_its_launch_is_in_no_region_and_counted_as_such() -> None:
    found = report_of([Range(0, 10_000_000, "all")], [Kernel(), Kernel(50)])
    assert found.main_scope is not None
    totals = found.main_scope.totals
    assert (totals.kernel_count, totals.unattributed_kernel_count, totals.unknown_launch_count) == (2, 1, 1)


def test_an_empty_range_is_an_instance_without_kernels() -> None:
    found = regions_of(report_of([Range(0, 100, "a"), Range(50, 50, "empty")], [Kernel(50)]).main_scope)
    assert kernels_of(found) == {"a": 1, "a/empty": 0}
    assert found["a/empty"].instances == 1


def test_a_graph_captured_inside_the_ranges_it_is_replayed_in_does_not_repeat_them() -> None:
    ranges = [Range(0, 100, "decode_step"), Range(10, 20, "layer0"), Range(200, 300, "decode_step")]
    captured = [Kernel(15)]
    assert place(ranges, Kernel(250, node=0), nodes=captured) == {"": "decode_step/layer0"}
    assert place(ranges, Kernel(250, node=0), "thread", nodes=captured) == {"": "decode_step"}


def test_a_graph_captured_elsewhere_keeps_the_names_of_its_capture_below_the_launch() -> None:
    ranges = [Range(0, 100, "warmup"), Range(10, 20, "layer0"), Range(200, 300, "decode_step")]
    assert place(ranges, Kernel(250, node=0), nodes=[Kernel(15)]) == {"": "decode_step/warmup/layer0"}


def test_a_graph_whose_capture_was_not_recorded_stays_at_its_launch() -> None:
    ranges = [Range(200, 300, "decode_step")]
    assert place(ranges, Kernel(250, node=0), nodes=[Kernel(UNKNOWN, thread=UNKNOWN)]) == {"": "decode_step"}
    assert place(ranges, Kernel(250, node=0), nodes=[Kernel(5)]) == {"": "decode_step"}


def test_a_graph_launched_outside_all_ranges_is_in_those_of_its_capture() -> None:
    assert place([Range(0, 100, "capture")], Kernel(250, node=0), nodes=[Kernel(15)]) == {"": "capture"}


def report_of(ranges: list[Range], kernels: list[Kernel], mode: Mode = "auto", **rest: Any) -> NCUProfileRegionReport:
    return build_report([timeline_of(ranges, kernels, **rest)], ReportOptions(attribution=mode))


# -- any timeline ----------------------------------------------------------------------------------

THREADS = [0, 0, 1]

some_ranges = st.lists(
    st.builds(
        lambda start, length, **rest: Range(start, start + length, **rest),
        start=st.integers(0, 40),
        length=st.integers(0, 20),
        name=st.sampled_from("abc"),
        thread=st.integers(0, 2),
        domain=st.sampled_from(["", "D"]),
        start_end=st.sampled_from([False, False, False, True]),
    ),
    max_size=10,
)
some_kernels = st.lists(
    st.builds(
        Kernel,
        launched=st.integers(0, 60) | st.just(UNKNOWN),
        thread=st.integers(0, 2),
        takes=st.integers(1, 50),
        name=st.sampled_from(["k1", "k2"]),
    ),
    max_size=10,
)


def expected(ranges: list[Range], kernel: Kernel, mode: Mode) -> dict[str, str]:
    """The rule, word for word, for push/pop ranges."""
    if kernel.launched == UNKNOWN:
        return {}

    def stacks(mine: list[Range], moment: int = kernel.launched) -> dict[str, str]:
        is_open = [r for r in mine if not r.start_end and r.start <= moment < r.end]
        is_open.sort(key=lambda r: (r.start, -r.end))
        found: dict[str, list[str]] = defaultdict(list)
        for one in is_open:
            found[one.domain].append(one.name)
        return {domain: "/".join(names) for domain, names in found.items()}

    mine = [r for r in ranges if r.thread == kernel.thread and not r.start_end]
    of_process = [r for r in ranges if THREADS[r.thread] == THREADS[kernel.thread]]
    own, everyone = stacks(mine), stacks(of_process)
    if mode == "thread":
        return own
    if mode == "process" or not own:
        return everyone
    # In a domain the thread never uses: what was open when its own outermost range began.
    began = min(r.start for r in mine if r.start <= kernel.launched < r.end)
    used = {r.domain for r in mine}
    return own | {d: path for d, path in stacks(of_process, began).items() if d not in used}


@examples(200)
@given(some_ranges, some_kernels, st.sampled_from(MODES))
def test_every_launch_is_placed_by_the_rule(ranges: list[Range], kernels: list[Kernel], mode: Mode) -> None:
    timeline = timeline_of(ranges, kernels, threads=THREADS)
    found = attribute(timeline, mode)
    for i, kernel in enumerate(kernels):
        assert paths(found, timeline.domains, i) == expected(ranges, kernel, mode)
        borrowed = expected(ranges, kernel, "auto") != expected(ranges, kernel, "thread")
        assert bool(found.kernels.adopted[i]) == (mode == "auto" and borrowed)


@examples(200)
@given(some_ranges, some_kernels, st.sampled_from(MODES))
def test_every_launch_is_in_the_start_end_ranges_open_then(
    ranges: list[Range], kernels: list[Kernel], mode: Mode
) -> None:
    found = attribute(timeline_of(ranges, kernels, threads=THREADS), mode)
    for i, kernel in enumerate(kernels):
        wanted = {
            (r.domain, r.name)
            for r in ranges
            if r.start_end
            and kernel.launched != UNKNOWN
            and r.start <= kernel.launched < r.end
            and (r.thread == kernel.thread if mode == "thread" else THREADS[r.thread] == THREADS[kernel.thread])
        }
        regions = [region for region, members in found.kernels.start_end.items() if i in members]
        assert {(found.table.domain[r], found.table.name[r]) for r in regions} == wanted


@examples(150)
@given(some_ranges, some_kernels, st.sampled_from(MODES))
def test_any_timeline_adds_up(ranges: list[Range], kernels: list[Kernel], mode: Mode) -> None:
    found = report_of(ranges, kernels, mode, threads=THREADS)
    assert_reconciles(found)
    if kernels:
        whole = found.scope("aggregate")
        assert whole.totals.kernel_count == len(kernels)
        for domain in {r.domain for r in ranges}:
            tree = [r for r in whole.regions if r.domain == domain and r.range_kind == "push_pop"]
            inside = [k for k in kernels if domain in expected(ranges, k, mode)]
            assert sum(r.exclusive.kernel_count for r in tree) == len(inside)
            assert sum(r.exclusive.gpu_time_ns or 0 for r in tree) == sum(k.takes for k in inside)


@examples(100)
@given(some_ranges, some_kernels, st.sampled_from(MODES))
def test_the_processes_of_any_timeline_add_up_to_the_aggregate(
    ranges: list[Range], kernels: list[Kernel], mode: Mode
) -> None:
    # A process counts as a scope by its GPU work: give each some.
    kernels = [*kernels, Kernel(0, thread=0), Kernel(0, thread=2)]
    assert_processes_add_up(report_of(ranges, kernels, mode, threads=THREADS))


@examples(100)
@given(some_ranges, some_kernels, st.lists(st.integers(0, 60), min_size=1, max_size=4), st.data())
def test_kernels_of_graphs_are_counted_once_too(
    ranges: list[Range], kernels: list[Kernel], captures: list[int], data: st.DataObject
) -> None:
    for kernel in kernels:
        kernel.node = data.draw(st.sampled_from([UNKNOWN, *range(len(captures))]))
    found = report_of(ranges, kernels, threads=THREADS, nodes=[Kernel(c) for c in captures])
    assert_reconciles(found)
    if kernels:
        assert found.scope("aggregate").totals.graph_kernel_count == sum(k.node != UNKNOWN for k in kernels)
