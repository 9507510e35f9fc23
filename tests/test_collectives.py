"""Bytes and bus bandwidth of collectives, from NCCL's payloads in nsys and from the arguments of kernels in PyTorch traces."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.metrics.collective_kinds import bus_factor, kind_of
from llm_perf_opt.readers.kineto_messages import message_of
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.report.html import render_html
from llm_perf_opt.report.markdown import render_markdown
from llm_perf_opt.report.view import view_of
from synthetic import MAIN_THREAD, make_export
from test_communication import GATHER, GEMM, PUBLIC, REDUCE, here, made, report

COMMUNICATOR, RANKS = 0xABC, 4
INIT, REDUCES, GATHERS, SENDS = 1, 2, 3, 4  # schemas
FIELDS = [
    *((INIT, "NCCL communicator ID", None), (INIT, "No. of ranks", 8), (INIT, "Rank", 12)),
    *((REDUCES, "NCCL communicator ID", None), (REDUCES, "Message size [bytes]", 8)),
    *((GATHERS, "NCCL communicator ID", None), (GATHERS, "Message size [bytes]", 8)),
    *((SENDS, "NCCL communicator ID", None), (SENDS, "Message size [bytes]", 8), (SENDS, "Peer rank", 16)),
]
EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "kind", "factor"),
    [
        (REDUCE, "all-reduce", 1.5),
        ("ncclReduceScatter", "reduce-scatter", 0.75),
        ("_allgather_base", "all-gather", 0.75),
        ("all_to_all", "all-to-all", 0.75),
        ("ncclBroadcast", "broadcast", 1.0),
        (EXCHANGE, "exchange", 1.0),
        ("ncclDevKernel_Generic", "collective", 1.0),
    ],
)
def test_kinds_and_what_of_a_message_passes_a_link(name: str, kind: str, factor: float) -> None:
    assert kind_of(name) == kind
    assert bus_factor(kind, RANKS) == factor


def payload(schema: int, *values: tuple[str, int]) -> bytes:
    """As nsys stores it: a header of 32 bytes, then the fields."""
    fields = b"".join(struct.pack(f"<{form}", value) for form, value in values)
    return struct.pack("<QQQQ", 1, schema, len(fields), 32) + fields


def export_with_payloads(path: Path, events: list[tuple[str, int, int, bytes | None]], kernels: list[Any]) -> Timeline:
    make_export(path, [("step", 0, 10_000_000)], kernels)
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData BLOB")
    connection.execute(
        "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER, name TEXT, offset INTEGER)"
    )
    connection.executemany(
        "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, ?, 0, 22, ?, ?)", [(s, n, o) for s, n, o in FIELDS]
    )
    connection.executemany(
        "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL, 1, ?)",
        [(start, end, name, MAIN_THREAD, data) for name, start, end, data in events],
    )
    connection.execute("INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, 'NCCL', ?, NULL, 1, NULL)", (MAIN_THREAD,))
    connection.commit()
    connection.close()
    found = read_recording(path)
    assert isinstance(found, Timeline)
    return found


@pytest.mark.process
def test_payloads_of_nccl_in_an_export(tmp_path: Path) -> None:
    init = payload(INIT, ("Q", COMMUNICATOR), ("I", RANKS), ("I", 0))
    reduce = payload(REDUCES, ("Q", COMMUNICATOR), ("Q", 1_000_000))
    gather = payload(GATHERS, ("Q", COMMUNICATOR), ("Q", 250_000))
    send = payload(SENDS, ("Q", COMMUNICATOR), ("Q", 40_000), ("I", 1))
    events = [
        ("ncclCommInitRank", 10, 20, init),
        ("ncclAllReduce", 1_000, 3_000, reduce),
        ("ncclAllReduce", 11_000, 13_000, reduce),
        ("ncclAllGather", 21_000, 23_000, gather),
        # Of a group, one kernel: it is launched when the group ends.
        ("ncclSend", 31_000, 31_100, send),
        ("ncclRecv", 31_200, 31_300, send),
        ("ncclSend", 31_400, 31_500, send),
        ("ncclBroadcast", 41_000, 42_000, b"\xff" * 40),  # no schema that anybody knows
    ]
    kernels = [
        (GEMM, 500, 600, 900),
        (REDUCE, 2_000, 100_000, 300_000),
        (REDUCE, 12_000, 400_000, 800_000),
        (GATHER, 22_000, 900_000, 1_000_000),
        (EXCHANGE, 32_000, 1_100_000, 1_200_000),
        ("ncclDevKernel_Broadcast_RING_LL", 41_500, 1_300_000, 1_400_000),
    ]
    timeline = export_with_payloads(tmp_path / "run.sqlite", events, kernels)
    assert timeline.messages.kernel.tolist() == [1, 2, 3, 4]
    assert timeline.messages.bytes.tolist() == [1_000_000, 1_000_000, RANKS * 250_000, 80_000]
    assert {timeline.strings[group] for group in timeline.messages.group} == {hex(COMMUNICATOR)}
    found = {use.kind: use for use in build_report([timeline], ReportOptions()).collectives}
    assert list(found) == ["all-reduce", "all-gather", "exchange", "broadcast"]  # the longest first
    assert [use.bytes is None for use in found.values()] == [False, False, False, True]
    reduced = found["all-reduce"]
    assert (reduced.region, reduced.ranks, reduced.calls, reduced.bytes) == ("step", RANKS, 2, 2_000_000)
    assert (reduced.time_ns, reduced.waiting_ns, reduced.transfer_ns) == (600_000, None, None)
    assert reduced.bandwidth == pytest.approx(2_000_000 / 600e-6)
    assert reduced.bus_bandwidth == pytest.approx(1.5 * 2_000_000 / 600e-6)
    assert found["all-gather"].bus_bandwidth == pytest.approx(0.75 * 1_000_000 / 100e-6)


@pytest.mark.process
def test_an_export_without_the_size_of_a_communicator(tmp_path: Path) -> None:
    """Recorded from later on: the message of all ranks together is not known, and no bus bandwidth."""
    reduce = payload(REDUCES, ("Q", COMMUNICATOR), ("Q", 1_000))
    gather = payload(GATHERS, ("Q", COMMUNICATOR), ("Q", 1_000))
    cut = payload(REDUCES, ("Q", COMMUNICATOR), ("Q", 1_000))[:44]
    huge = payload(REDUCES, ("Q", COMMUNICATOR), ("Q", 2**63))
    names = ["ncclAllReduce", "ncclAllGather", "ncclAllReduce", "ncclAllReduce"]
    events = [
        (name, 1_000 * n, 1_000 * n + 900, data)
        for n, (name, data) in enumerate(zip(names, [reduce, gather, cut, huge], strict=True), 1)
    ]
    kernels = [
        (REDUCE if "Reduce" in name else GATHER, 1_000 * n + 500, 10_000 * n, 10_000 * n + 5_000)
        for n, name in enumerate(names, 1)
    ]
    timeline = export_with_payloads(tmp_path / "run.sqlite", events, kernels)
    use = next(use for use in build_report([timeline], ReportOptions()).collectives if use.bytes)
    assert (use.kind, use.calls, use.bytes, use.ranks, use.bus_bandwidth) == ("all-reduce", 1, 1_000, None, None)
    text = render_markdown(view_of(build_report([timeline], ReportOptions())))
    assert "| `step` | all-reduce | – | 1 | 1 kB | 1 kB | 5 µs | 5 µs | – | – | ≥ 200 MB/s | – |" in text
    assert "| `step` | all-reduce | – | 2 | – | – | 10 µs | 10 µs | – | – | – | – |" in text


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"In msg nelems": 10, "Out msg nelems": 80, "dtype": "BFloat16", "Group size": 8}, ("x", 160, 8, "")),
        (
            {"In msg nelems": 10, "dtype": "Half", "Group size": 2, "Process Group Ranks": "[0, 4]"},
            ("x", 20, 2, "[0, 4]"),
        ),
        ({"In msg nelems": 10, "dtype": "Float", "Group size": "8"}, ("x", 40, -1, "")),
        ({"In msg nelems": 10, "dtype": "Unknown", "Group size": 8}, None),
        ({"In msg nelems": -1, "Out msg nelems": True, "dtype": "Float", "Group size": 8}, None),
        ({"In msg nelems": 2**60, "dtype": "Float"}, None),
        ({}, None),
    ],
)
def test_arguments_of_a_kernel_in_a_trace(args: dict[str, Any], expected: tuple[str, int, int, str] | None) -> None:
    assert message_of({"Collective name": "x", **args}) == expected


def trace(path: Path, rank: int, late_us: int) -> Path:
    """Four all-reduces of 4 MB, which take 100 µs once all are there; the last but one is known to be no collective."""
    begin = 1_000_000_000
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 1, "ts": begin, "dur": 4_000}
    ]
    told = {"Collective name": "allreduce", "In msg nelems": 2_000_000, "Out msg nelems": 2_000_000}
    for n in range(4):
        launch, end = begin + 1_000 * n + 10, begin + 1_000 * n + 900
        start = end - 100 - (50 - late_us)
        common = {"pid": 0, "tid": 7, "ph": "X"}
        args = {"device": rank, "stream": 7, "correlation": n + 1, "grid": [1, 1, 1], "block": [32, 1, 1]}
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 1,
                "tid": 1,
                "ts": launch,
                "dur": 2,
                "args": {"correlation": n + 1},
            }
        )
        of_message = {**told, "Group size": 2, "dtype": "BFloat16"} if n < 3 else {}
        events.append(
            {**common, "cat": "kernel", "name": REDUCE, "ts": start, "dur": end - start, "args": {**args, **of_message}}
        )
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}))
    return path


@pytest.mark.process
def test_transfer_is_told_from_waiting_where_all_ranks_are_known(tmp_path: Path) -> None:
    """Rank 1 comes 50 µs later; the bandwidth is that of the transfer."""
    found = report(trace(tmp_path / "rank0.json", 0, late_us=0), trace(tmp_path / "rank1.json", 1, late_us=50))
    use, unknown = found.collectives
    assert (use.region, use.kind, use.ranks, use.calls, use.bytes) == ("step", "all-reduce", 2, 3, 12_000_000)
    # Waiting and transfer are known of those, too, whose messages nobody tells.
    assert (unknown.kind, unknown.calls, unknown.bytes, unknown.bandwidth) == ("all-reduce", 1, None, None)
    assert (unknown.time_ns, unknown.waiting_ns, unknown.transfer_ns) == (150_000, 50_000, 100_000)
    assert (use.time_ns, use.waiting_ns, use.transfer_ns) == (450_000, 150_000, 300_000)
    assert use.bus_bandwidth == pytest.approx(4_000_000 / 100e-6)  # twice one half
    assert 'id="collectives"' in render_html(view_of(found))
    alone, _ = report(trace(tmp_path / "alone.json", 0, late_us=0)).collectives
    assert (alone.waiting_ns, alone.bus_bandwidth) == (None, pytest.approx(4_000_000 / 150e-6))


@pytest.mark.process
@here
def test_a_collective_of_a_public_server() -> None:
    """The same from its traces, by a few lines of their own: the fastest rank has come last."""
    files = sorted(PUBLIC.glob("*gptoss120b_bs-1-*TP-?-EXTEND*"))
    least, sent = float("inf"), 0
    for file in files:
        with gzip.open(file) as opened:
            events = json.load(opened)["traceEvents"]
        for event in events:
            if event.get("cat") == "kernel" and "Collective name" in event["args"]:
                assert event["args"]["dtype"] == "BFloat16"
                least, sent = min(least, event["dur"]), 2 * event["args"]["Out msg nelems"]
    reduces, use = report(*files).collectives
    assert (reduces.kind, reduces.calls, reduces.bytes) == ("all-reduce", 73, None)
    assert (use.kind, use.ranks, use.bytes) == ("all-gather", 8, sent)
    assert use.bus_bandwidth == pytest.approx(sent / (least * 1e-6) * 7 / 8, rel=1e-3)


def test_what_runs_beside_computation_is_not_exposed() -> None:
    kernels = [(GEMM, 0, 60_000), (REDUCE, 40_000, 50_000), (REDUCE, 200_000, 10_000), (GATHER, 300_000, 7_000)]
    found = build_report([made([("step", 0, 1_000_000)], kernels)], ReportOptions())
    assert {use.kind: (use.time_ns, use.exposed_ns) for use in found.collectives} == {
        "all-reduce": (60_000, 40_000),
        "all-gather": (7_000, 7_000),
    }
