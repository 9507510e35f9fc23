"""Traces of the PyTorch profiler become the same columns as a timeline of nsys, exact to the nanosecond."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.kineto import read_kineto
from llm_perf_opt.readers.kineto_json import DecimalText, nanoseconds
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import UNKNOWN, Timeline, Work
from llm_perf_opt.regions.whole_recording import with_whole_recording

RECORDING = Path(__file__).parent / "recordings" / "kineto-torch2.11-h200-2layers.json.gz"
PUBLIC = Path(__file__).parents[2] / "shared" / "data" / "public"
PUBLIC_TRACES: list[Any] = sorted(PUBLIC.glob("*.json.gz")) or [
    pytest.param(PUBLIC, marks=pytest.mark.skip(reason="the shared recordings are not here"))
]

Event = dict[str, Any]
# What PyTorch called the categories in 2021.
OLD_CATEGORIES = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime"}


def read(trace: object) -> Timeline:
    return read_kineto(io.BytesIO(json.dumps(trace).encode()), "trace.json")


def read_events(*events: object) -> Timeline:
    return read({"traceEvents": list(events)})


def read_text(text: str) -> Timeline:
    return read_kineto(io.BytesIO(text.encode()), "trace.json")


def complete(category: str, name: object, ts: object, dur: object, **rest: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "pid": 10, "tid": 11, **rest}


def kernel(name: str, ts: object, correlation: int, **args: Any) -> Event:
    shape = {"grid": [4, 2, 1], "block": [128, 1, 1], "shared memory": 512}
    everything = {"device": 0, "stream": 7, "correlation": correlation, **shape, **args}
    return complete("kernel", name, ts, 2.5, pid=0, tid=7, args=everything)


def launch(ts: object, correlation: int, name: str = "cudaLaunchKernel", **rest: Any) -> Event:
    return complete("cuda_runtime", name, ts, 1.5, args={"correlation": correlation}, **rest)


def names(timeline: Timeline, column: Any) -> list[str]:
    return [timeline.strings[i] for i in column.tolist()]


def codes(diagnostics: list[Diagnosis]) -> list[str]:
    return [diagnosis.code for diagnosis in diagnostics]


# --- real traces -------------------------------------------------------------------------------------------


def test_our_own_trace_is_read_whole() -> None:
    with RECORDING.open("rb") as stream:
        timeline = read_kineto(stream, RECORDING.name)
    assert (len(timeline.kernels), len(timeline.copies), len(timeline.graphs)) == (552, 14, 0)
    assert Counter(names(timeline, timeline.ranges.name)) == {
        **{"prefill": 1, "decode": 1, "decode_step": 3, "lm_head": 4},
        **{"layer0": 4, "layer1": 4, "attention": 8, "mlp": 8},
    }
    assert timeline.domains == [""]
    assert timeline.kind == "kineto"
    assert [(p.pid, p.name, p.rank) for p in timeline.processes] == [(2890, "python3", None)]
    assert timeline.devices == {0: "NVIDIA H200"}
    assert timeline.diagnostics == []
    first = names(timeline, timeline.ranges.name).index("prefill")
    assert timeline.ranges.start[first] == 3853695416797878
    assert timeline.ranges.end[first] == 3853695416797878 + 10869660


def every_kernel_in_a_range(timeline: Timeline) -> bool:
    launched = timeline.kernels.host_time[:, None]
    inside = (timeline.ranges.start <= launched) & (launched < timeline.ranges.end)
    return bool(inside.any(axis=1).all())


def test_kernels_of_our_trace_were_launched_inside_its_ranges() -> None:
    with RECORDING.open("rb") as stream:
        assert every_kernel_in_a_range(read_kineto(stream, "trace"))


def test_a_plain_trace_and_a_gzipped_one_are_the_same() -> None:
    packed = read_kineto(io.BytesIO(RECORDING.read_bytes()), "trace")
    plain = read_kineto(io.BytesIO(gzip.decompress(RECORDING.read_bytes())), "trace")
    assert np.array_equal(packed.kernels.start, plain.kernels.start)
    assert packed.strings == plain.strings


def naive(path: Path) -> tuple[dict[str, Any], list[Event]]:
    with gzip.open(path) as stream:
        trace = json.load(stream, parse_float=Decimal)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    for event in events:
        event["cat"] = OLD_CATEGORIES.get(event["cat"], event["cat"])
        if event["cat"] == "Operator" and event["name"].startswith("ProfilerStep#"):
            event["cat"] = "user_annotation"
    return trace, events


def check_work(work: Work, events: list[Event], timeline: Timeline, launched: dict[int, int]) -> None:
    events = sorted(events, key=lambda event: Decimal(event["ts"]))
    assert work.start.tolist() == [Decimal(event["ts"]) * 1000 for event in events]
    assert (work.end - work.start).tolist() == [Decimal(event["dur"]) * 1000 for event in events]
    assert names(timeline, work.name) == [event["name"] for event in events]
    assert work.device.tolist() == [event["args"]["device"] for event in events]
    assert work.host_time.tolist() == [launched.get(e["args"]["correlation"], UNKNOWN) for e in events]


@pytest.mark.slow
@pytest.mark.parametrize("path", [RECORDING, *PUBLIC_TRACES], ids=lambda path: path.name[:40])
def test_traces_of_other_projects_are_exact_to_the_nanosecond(path: Path) -> None:
    with path.open("rb") as stream:
        timeline = read_kineto(stream, path.name)
    trace, events = naive(path)
    launched = {
        event["args"]["correlation"]: int(Decimal(event["ts"]) * 1000)
        for event in events
        if event["cat"] in ("cuda_runtime", "cuda_driver")
    }
    kernels = [event for event in events if event["cat"] == "kernel"]
    check_work(timeline.kernels, kernels, timeline, launched)
    copies = [event for event in events if event["cat"] in ("gpu_memcpy", "gpu_memset")]
    check_work(timeline.copies, copies, timeline, launched)
    assert timeline.copies.bytes is not None
    assert timeline.copies.bytes.sum() == sum(event["args"]["bytes"] for event in copies)
    assert timeline.kernels.config is not None
    assert Counter(map(tuple, timeline.kernels.config.grid.tolist())) == Counter(
        tuple(event["args"]["grid"]) for event in kernels
    )
    annotated = [name for name in names(timeline, timeline.ranges.name) if name not in timeline.operators]
    assert len(annotated) == sum(event["cat"] == "user_annotation" for event in events)
    rank = trace.get("distributedInfo", {}).get("rank")
    assert [process.rank for process in timeline.processes] == [rank]
    assert timeline.devices == {d["id"]: d["name"] for d in trace["deviceProperties"]}
    assert set(timeline.environment) == {"tool", "schema_version", "gpus"}


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the shared recordings are not here")
def test_kernels_of_a_real_graph_launch_count_as_graph_kernels() -> None:
    [path] = PUBLIC.glob("*bs-64*DECODE.trace.json.gz")
    with path.open("rb") as stream:
        timeline = read_kineto(stream, path.name)
    assert int((timeline.kernels.graph_node != UNKNOWN).sum()) == 2840


# --- kernels and their launches ----------------------------------------------------------------------------


def test_a_kernel_knows_its_launch_its_thread_and_its_process() -> None:
    timeline = read_events(kernel("k", 20.125, 1), launch(10.001, 1), launch(11, 2))
    kernels = timeline.kernels
    assert (kernels.start[0], kernels.end[0], kernels.host_time[0]) == (20125, 22625, 10001)
    assert timeline.threads[kernels.thread[0]] == kernels.process[0] == 0
    assert timeline.processes[0].pid == 10
    assert kernels.config is not None
    assert kernels.config.grid.tolist() == [[4, 2, 1]]
    assert kernels.config.block.tolist() == [[128, 1, 1]]
    assert kernels.config.shared_memory.tolist() == [512]
    assert names(timeline, kernels.config.mangled) == names(timeline, kernels.config.short) == ["k"]


def test_a_launch_is_found_by_the_external_id_where_there_is_no_correlation_id() -> None:
    call, work = launch(1, 1), kernel("k", 5, 1)
    for event in (call, work):
        event["args"]["External id"] = 100 + event["args"].pop("correlation")
    timeline = read_events(call, work)
    assert timeline.kernels.host_time.tolist() == [1000]


def test_work_is_in_the_order_of_its_start() -> None:
    timeline = read_events(kernel("late", 30, 3), kernel("early", 20, 2), launch(2, 3), launch(1, 2))
    assert names(timeline, timeline.kernels.name) == ["early", "late"]
    assert timeline.kernels.host_time.tolist() == [1000, 2000]


def test_a_kernel_launched_before_the_trace_began_has_no_launch_but_a_process() -> None:
    timeline = read_events(kernel("old", 5, 99), kernel("new", 20, 1), launch(10, 1))
    assert timeline.kernels.host_time.tolist() == [UNKNOWN, 10000]
    assert timeline.kernels.thread.tolist() == [UNKNOWN, 0]
    assert timeline.kernels.process.tolist() == [0, 0]


def test_processes_that_share_correlation_ids_keep_their_launches() -> None:
    timeline = read_events(
        launch(10, 1, pid=100),
        launch(50, 1, pid=200),
        kernel("a", 20, 1),
        kernel("b", 60, 1, device=1),
        kernel("clock ahead", 5, 1),
    )
    found = dict(zip(names(timeline, timeline.kernels.name), timeline.kernels.host_time.tolist(), strict=True))
    assert found == {"a": 10000, "b": 50000, "clock ahead": 10000}
    assert [timeline.processes[i].pid for i in timeline.kernels.process.tolist()] == [100, 100, 200]


def test_threads_belong_to_their_process_and_are_not_mixed_up() -> None:
    timeline = read_events(
        complete("user_annotation", "main", 1, 9, tid=1),
        complete("user_annotation", "worker", 1, 9, tid=2),
        complete("user_annotation", "elsewhere", 1, 9, tid=1, pid=20),
    )
    assert timeline.ranges.thread.tolist() == [0, 1, 2]
    assert timeline.threads == [0, 0, 1]
    assert timeline.ranges.process.tolist() == [0, 0, 1]


def test_a_trace_of_the_gpu_alone_still_has_a_process() -> None:
    label = {"ph": "M", "name": "process_labels", "pid": 4321, "args": {"labels": "CPU"}}
    timeline = read_events(kernel("k", 5, 1), label)
    assert [process.pid for process in timeline.processes] == [4321]
    assert timeline.kernels.process.tolist() == [0]


def test_graph_kernels_are_marked_by_node_or_by_launch() -> None:
    timeline = read_events(
        launch(1, 1, "cudaGraphLaunch"),
        launch(2, 2),
        launch(3, 3),
        kernel("by launch", 10, 1),
        kernel("by node", 11, 2, **{"graph node id": 77, "graph id": 5}),
        kernel("plain", 12, 3, **{"graph node id": 0}),
    )
    assert timeline.kernels.graph_node.tolist() == [0, 0, UNKNOWN]
    assert timeline.graph_nodes.host_time.tolist() == [UNKNOWN]
    assert timeline.graph_nodes.thread.tolist() == [UNKNOWN]


def test_graph_kernels_are_known_by_one_correlation_id_where_the_launch_is_not_in_the_trace() -> None:
    together = [kernel("node", 10 + 3 * i, 7) for i in range(6)]
    other_gpu = [kernel("node", 10 + 3 * i, 7, device=1) for i in range(2)]
    timeline = read_events(launch(2, 8), *together, *other_gpu, kernel("plain", 50, 8))
    assert (timeline.kernels.graph_node == 0).sum() == 6
    assert (timeline.kernels.graph_node == UNKNOWN).tolist()[-1]


def test_operators_from_before_the_gpu_was_recorded_are_no_part_of_the_run() -> None:
    """The profiler began while the GPU worked on what had been launched before."""
    early, late = complete("cpu_op", "aten::early", 10, 50), complete("cpu_op", "aten::late", 9000, 50)
    lost = read_events(early, late, launch(20, 1), launch(9010, 2), kernel("k", 9030, 2))
    assert names(lost, lost.ranges.name) == ["aten::early", "aten::late"]  # it was open when the last one was lost
    lost = read_events(early, late, launch(20, 1), launch(100, 3), launch(9010, 2), kernel("k", 9030, 2))
    assert names(lost, lost.ranges.name) == ["aten::late"]
    queued = read_events(early, late, launch(20, 1), launch(9010, 2), kernel("k", 9030, 2), kernel("q", 8900, 1))
    assert names(queued, queued.ranges.name) == ["aten::late"]


def test_copies_and_fills_carry_their_bytes() -> None:
    copy = complete("gpu_memcpy", "Memcpy HtoD", 5, 1, pid=0, args={"device": 0, "bytes": 4096})
    fill = complete("gpu_memset", "Memset", 6, 1, pid=1, args={"bytes": 16})
    peer = complete("Memcpy", "Memcpy PtoP", 7, 1, pid=9, args={"inDevice": 2, "bytes": 8})
    copies = read_events(copy, fill, peer).copies
    assert copies.bytes is not None
    assert copies.bytes.tolist() == [4096, 16, 8]
    assert copies.device.tolist() == [0, 1, 2]


def test_the_gpu_of_the_first_traces_of_2021_is_known() -> None:
    gpu = {
        "id": 0,
        "name": "Tesla V100",
        "totalGlobalMem": 34084028416,
        "major": 7,
        "minor": 0,
        "multiProcessorCount": 80,
    }
    timeline = read({"computeProperties": [gpu], "traceEvents": [kernel("k", 5, 1)]})
    facts = {"name": "Tesla V100", "memory_bytes": 34084028416, "sm_count": 80, "compute_capability": "7.0"}
    assert timeline.gpu_facts == {0: facts}


def test_the_rank_and_nothing_else_is_taken_from_the_metadata() -> None:
    timeline = read(
        {
            "schemaVersion": 1,
            "metadata": {"HF_TOKEN": "hf_secret"},
            "distributedInfo": {"rank": 3, "world_size": 8},
            "deviceProperties": [{"id": 0, "name": "NVIDIA B200"}],
            "traceEvents": [launch(1, 1), kernel("k", 2, 1)],
            "username": "secret",
        }
    )
    assert timeline.processes[0].rank == 3
    assert timeline.environment == {
        "tool": "PyTorch profiler (Kineto)",
        "schema_version": 1,
        "gpus": {0: "NVIDIA B200"},
    }


# --- ranges ------------------------------------------------------------------------------------------------


def test_annotations_are_ranges_and_their_projection_on_the_gpu_is_not() -> None:
    timeline = read_events(
        complete("user_annotation", "prefill", 1, 9), complete("gpu_user_annotation", "prefill", 3, 9, pid=0)
    )
    assert names(timeline, timeline.ranges.name) == ["prefill"]
    assert timeline.ranges.start_end.tolist() == [False]


def test_steps_of_the_profiler_pool_and_other_numbers_stay() -> None:
    timeline = read_events(
        complete("user_annotation", "ProfilerStep#6", 1, 2),
        complete("user_annotation", "ProfilerStep#7", 3, 2),
        complete("user_annotation", "layer#7", 5, 2),
    )
    assert names(timeline, timeline.ranges.name) == ["ProfilerStep", "ProfilerStep", "layer#7"]


def called(thread: int = 11) -> list[Event]:
    """Two operators of the program, one inside the other, and a module with one in it."""
    return [
        complete("cpu_op", "aten::linear", 10, 20, tid=thread),
        complete("cpu_op", "aten::addmm", 11, 10, tid=thread),
        complete("cpu_op", "aten::relu", 41, 5, tid=thread),
        complete("python_function", "nn.Module: Net_0", 40, 20, tid=thread),
        complete("python_function", "nn.Module: Linear_0", 50, 5, tid=thread),
        complete("python_function", "torch/nn/modules/module.py(1): _call_impl", 40, 20, tid=thread),
    ]


def test_operators_and_modules_are_ranges_where_there_are_no_annotations() -> None:
    step = complete("user_annotation", "ProfilerStep#3", 5, 100)
    timeline = read_events(step, *called(), launch(12, 1), kernel("k", 20, 1))
    assert names(timeline, timeline.ranges.name) == [
        *("ProfilerStep", "aten::linear", "nn.Module: Net_0", "nn.Module: Linear_0")
    ]
    assert timeline.operators == ["aten::linear", "nn.Module: Linear_0", "nn.Module: Net_0"]
    mine = complete("user_annotation", "forward", 6, 90)
    timeline = read_events(step, mine, *called(), launch(12, 1), kernel("k", 20, 1))
    assert names(timeline, timeline.ranges.name) == ["ProfilerStep", "forward"]
    assert timeline.operators == []


def test_threads_of_autograd_s_engine_are_told_by_what_they_run() -> None:
    """Part of a backward pass runs on the thread that called it."""
    backward = complete("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 70, 5)
    own = [backward | {"tid": 12, "ts": ts} for ts in (70, 80)]
    timeline = read_events(*called(), backward, *own, launch(12, 1), launch(71, 2, tid=12), kernel("k", 90, 2))
    assert timeline.engine_threads == [1]


def test_launches_without_their_kernels_are_said_to_be_that() -> None:
    found = read_events(launch(12, 1), launch(14, 2, "cudaMemcpyAsync"))
    assert codes(found.diagnostics) == ["NO_KERNELS"]
    assert "2 calls of the CUDA API" in found.diagnostics[0].message


def test_of_ranges_that_begin_together_the_outer_one_comes_first() -> None:
    timeline = read_events(complete("user_annotation", "inner", 1, 2), complete("user_annotation", "outer", 1, 5))
    assert names(timeline, timeline.ranges.name) == ["outer", "inner"]


def test_a_step_that_rounding_makes_end_in_the_next_one_does_not_hold_it() -> None:
    times = ((0, 10.4), (10, 10.0), (20, 5.0), (21, 2.0), (24.5, 0.5))
    timeline = read_events(*(complete("user_annotation", f"step{n}", ts, dur) for n, (ts, dur) in enumerate(times)))
    assert timeline.ranges.end.tolist() == [10_000, 20_000, 25_000, 23_000, 25_000]
    far = read_events(complete("user_annotation", "a", 0, 12), complete("user_annotation", "b", 10, 10))
    assert far.ranges.end.tolist() == [12_000, 20_000]


def test_traces_of_2021_are_read() -> None:
    """Categories in capitals, threads as strings; annotations are operators, and only steps are certain."""
    timeline = read(
        [
            complete("Operator", "ProfilerStep#10", 100, 90, tid="11"),
            complete("Operator", "aten::mm", 110, 20, tid="11"),
            complete("Runtime", "cudaLaunchKernel", 120, 5, args={"correlation": 34}),
            complete(
                "Kernel",
                "gemm",
                *(130, 4),
                pid=0,
                tid="stream 7",
                args={"device": 0, "correlation": 34, "grid": [99, 1, 1], "block": [128, 1, 1]},
            ),
            complete("Memset", "Memset", 140, 1, pid=0, tid="stream 7", args={"device": 0, "bytes": 4}),
        ]
    )
    assert names(timeline, timeline.ranges.name) == ["ProfilerStep", "aten::mm"]
    assert timeline.operators == ["aten::mm"]
    assert timeline.kernels.host_time.tolist() == [120000]
    assert timeline.kernels.thread.tolist() == [0]
    assert timeline.ranges.thread.tolist() == [0, 0]
    assert len(timeline.copies) == 1


# --- times -------------------------------------------------------------------------------------------------


@given(st.integers(min_value=0, max_value=2**62))
def test_microseconds_become_exact_nanoseconds(expected: int) -> None:
    printed = f"{expected // 1000}.{expected % 1000:03}"
    assert nanoseconds(DecimalText(printed)) == expected
    # Python and others drop zeros at the end when they rewrite a trace.
    assert nanoseconds(DecimalText(printed.rstrip("0") + "0")) == expected


@given(st.integers(min_value=0, max_value=2**62), st.integers(min_value=0, max_value=10**9))
def test_times_survive_the_way_through_a_file(start: int, duration: int) -> None:
    event = '{"ph": "X", "cat": "user_annotation", "name": "a", "pid": 1, "tid": 1, "ts": %s, "dur": %s}'
    times = (f"{t // 1000}.{t % 1000:03}" for t in (start, duration))
    timeline = read_text('{"traceEvents": [' + event % tuple(times) + "]}")
    assert (timeline.ranges.start[0], timeline.ranges.end[0]) == (start, start + duration)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("3853695416797.878", 3853695416797878),
        ("1.428625731896179e+12", 1428625731896179),
        ("0.7684999", 768),
        ("0.7685001", 769),
        ("1E3", 1000000),
        ("1e-400", 0),
        ("0.0", 0),
    ],
)
def test_other_ways_to_write_a_time(printed: str, expected: int) -> None:
    assert nanoseconds(DecimalText(printed)) == expected


def test_a_time_in_quotes_is_one() -> None:
    assert nanoseconds("3853695416797.878") == 3853695416797878
    assert nanoseconds("17") == 17_000


@pytest.mark.parametrize(
    "value", ["", "5 ms", "-5", None, True, -1, [], DecimalText("-0.5"), DecimalText("1e400"), 2**62]
)
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        nanoseconds(value)


# --- what is no trace, or not a whole one ------------------------------------------------------------------


def test_a_trace_without_kernels_and_ranges_says_what_to_do() -> None:
    found = with_whole_recording(read_events()).diagnostics
    assert codes(found) == ["NO_KERNELS", "NO_RANGES"]
    assert "ProfilerActivity.CUDA" in found[0].fix
    assert "record_function" in found[1].fix


HOSTILE: list[object] = [
    *("text", 5, None, []),
    complete("kernel", "k", "ten", 1),
    complete("kernel", "k", 10, -1),
    complete("kernel", "k", -10, 1),
    complete("kernel", "k", None, 1),
    complete("kernel", None, 1, 1),
    complete("kernel", "k", 10, 1, pid="GPU", args={}),
    complete("kernel", "k", 10, 1, args={"device": "zero"}),
    complete("kernel", "k", 10, 1, args={"device": 10**12}),
    complete("kernel", "k", 10**30, 1),
    complete("user_annotation", "r", 10, 10**30),
    complete("user_annotation", "r", 1, 1, tid=[1]),
    complete("user_annotation", "r", 1, 1, pid={}),
    complete("user_annotation", {"a": 1}, 1, 1),
    launch("x", 1),
    complete("cuda_runtime", 7, 1, 1, args={"correlation": 1}),
]


@pytest.mark.parametrize("event", HOSTILE)
def test_a_malformed_event_is_left_out_and_counted(event: object) -> None:
    timeline = read_events(launch(10, 1), event, kernel("good", 20, 1), complete("user_annotation", "r", 1, 99))
    assert names(timeline, timeline.kernels.name) == ["good"]
    assert timeline.kernels.host_time.tolist() == [10000]
    assert names(timeline, timeline.ranges.name) == ["r"]
    [diagnosis] = timeline.diagnostics
    assert diagnosis.code == "MALFORMED_EVENTS"
    assert diagnosis.message.startswith("1 event")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-0.001", "9" * 5000, "1" + "0" * 40])
def test_numbers_json_does_not_know_cost_one_event(number: str) -> None:
    good = json.dumps(kernel("good", 5, 1))
    bad = json.dumps(kernel("bad", "@", 1)).replace('"@"', number)
    timeline = read_text(f'{{"traceEvents": [{bad}, {good}]}}')
    assert names(timeline, timeline.kernels.name) == ["good"]
    assert "MALFORMED_EVENTS" in codes(timeline.diagnostics)


@pytest.mark.parametrize(
    "args",
    [
        {"grid": "big", "correlation": "x"},
        {"grid": [1, 2], "block": [0, 1, 1], "shared memory": "much"},
        {"grid": [1, 2, 2**40], "correlation": -5, "bytes": None},
        {"graph node id": "x", "shared memory": 2**40},
    ],
)
def test_a_kernel_is_worth_keeping_without_its_details(args: Event) -> None:
    timeline = read_events(complete("kernel", "k", 5, 1, pid=0, args=args), kernel("good", 9, 1))
    assert names(timeline, timeline.kernels.name) == ["k", "good"]
    assert timeline.kernels.config is not None
    assert timeline.kernels.config.grid.tolist()[1] == [4, 2, 1]
    assert "MALFORMED_EVENTS" not in codes(timeline.diagnostics)


def test_half_a_character_in_a_name_can_still_be_printed() -> None:
    timeline = read_events(kernel("bad \ud800", 5, 1))
    timeline.strings[0].encode("utf-8")


def test_control_characters_and_a_last_comma_are_forgiven() -> None:
    event = json.dumps(kernel("tab@x", 5, 1)).replace("@", "\t")
    assert read_text(f'{{"traceEvents": [{event},\n]}}').strings == ["tab\tx"]


def test_other_encodings_are_read() -> None:
    text = json.dumps({"traceEvents": [kernel("größe", 5, 1)]}, ensure_ascii=False)
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert read_kineto(io.BytesIO(text.encode(encoding)), "trace").strings == ["größe"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("hello", "not JSON"),
        ("3", "neither an object nor a list"),
        ('{"a": 1, "b": 2}', "without `traceEvents`.*'a', 'b'"),
        ('{"traceEvents": {}}', "not a list"),
        ("[1, 2, 3]", "something other than events"),
        ('[{"name": "x"}, 5]', "something other than events"),
        ('{"traceEvents": []} and more', "not valid JSON"),
        ('{"traceEvents": [} ]}' + " " * 20 + "x", "not valid JSON"),
        ('{"traceEvents" []}' + " " * 20 + "x", "not valid JSON"),
        ('{"traceEvents": ' + "[" * 100000 + "]" * 100000 + "}", "not valid JSON"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UnreadableInput, match=says) as refusal:
        read_text(text)
    assert refusal.value.message.startswith("trace.json is ")
    assert refusal.value.fix


def test_a_trace_cut_anywhere_is_called_truncated() -> None:
    text = json.dumps({"traceEvents": [kernel("k\u00e4", 5.125, 1, ok=True), launch(1, 1)], "schemaVersion": 1})
    for length in range(1, len(text)):
        with pytest.raises(UnreadableInput, match="truncated"):
            read_text(text[:length])


def test_a_cut_gzip_file_is_called_damaged() -> None:
    data = RECORDING.read_bytes()
    with pytest.raises(UnreadableInput, match="gzip"):
        read_kineto(io.BytesIO(data[: len(data) // 2]), "trace.json.gz")


def small_trace() -> bytes:
    text = gzip.decompress(RECORDING.read_bytes()).decode()
    kernels = text.index('"cat": "kernel"')
    start, end = text.rindex("{", 0, kernels), text.index("},", kernels + 20000)
    head = text[: text.index('"traceEvents": [') + len('"traceEvents": [')]
    return (head + text[start:end] + "}]}").encode()


def test_damaged_bytes_are_refused_or_survived() -> None:
    rng = random.Random(5)
    original = small_trace()
    whole = read_kineto(io.BytesIO(original), "trace")
    assert len(whole.kernels) > 10
    scraps = [b"NaN", b"1e400", b"-", b"null", b'"', b"{}", b"[", b"9" * 30, b"true", b"\\u12", b"\xff"]
    refused = 0
    for _ in range(250):
        data = bytearray(original)
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(len(data))
            kind = rng.randrange(3)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randrange(1, 40)]
            else:
                data[at:at] = rng.choice(scraps)
        try:
            timeline = read_kineto(io.BytesIO(bytes(data)), "trace")
        except UnreadableInput:
            refused += 1
            continue
        assert np.all(np.diff(timeline.kernels.start) >= 0)
        assert np.all(timeline.kernels.end >= timeline.kernels.start)
        assert np.all(timeline.kernels.process < len(timeline.processes))
    assert 0 < refused < 250


@pytest.mark.parametrize(("said", "domains"), [("domain@name", {"LLM", ""}), (None, {""})])
def test_names_hold_domains_only_where_the_writer_says_so(tmp_path: Path, said: str | None, domains: set[str]) -> None:
    def annotation(name: str, start: int) -> dict[str, Any]:
        return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 5}

    trace = {"schemaVersion": 1, "traceEvents": [annotation("LLM@prefill", 0), annotation("other", 10)]}
    if said:
        trace["llm_perf_ranges"] = said
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    found = read_recording(path)
    assert isinstance(found, Timeline)
    assert {found.domains[d] for d in found.ranges.domain.tolist()} == domains
    names = {found.strings[n] for n in found.ranges.name.tolist()}
    assert names == ({"prefill", "other"} if said else {"LLM@prefill", "other"})
