"""Public recordings of two and four ranks, against a computation of its own: kernel by kernel, from the files themselves."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest

from test_communication import PUBLIC, here, report

COLLECTIVE = re.compile(
    r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|lamport|(one|two)_shot", re.I
)
Kernel = tuple[str, int, int]
Spans = list[tuple[int, int]]


def read(file: Path) -> tuple[list[Kernel], list[Kernel], float]:
    """Collectives, other kernels, and what the step takes."""
    with gzip.open(file) as opened:
        events = json.load(opened)["traceEvents"]
    kernels = [
        (e["name"], round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
        for e in events
        if e.get("cat") == "kernel"
    ]
    (step,) = [e["dur"] * 1000 for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("step[")]
    is_one = [COLLECTIVE.search(name) is not None for name, _, _ in kernels]
    return (
        [k for k, one in zip(kernels, is_one, strict=True) if one],
        [k for k, one in zip(kernels, is_one, strict=True) if not one],
        step,
    )


def union(spans: Spans) -> Spans:
    found: Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def exposed(collectives: list[Kernel], others: list[Kernel]) -> int:
    mine, busy = union([k[1:] for k in collectives]), union([k[1:] for k in others])
    shared = sum(max(0, min(b, d) - max(a, c)) for a, b in mine for c, d in busy if c < b and a < d)
    return sum(b - a for a, b in mine) - shared


def waiting(ranks: list[list[Kernel]]) -> tuple[list[float], list[float], int]:
    """Clock offsets, waiting of each rank, and the transfer; by the ends of collectives that all call as often."""
    counts = [Counter(name for name, _, _ in rank) for rank in ranks]
    numbered: list[dict[tuple[str, int], tuple[int, int]]] = []
    for rank in ranks:
        seen: Counter[str] = Counter()
        numbered.append({})
        for name, start, end in sorted(rank, key=lambda one: one[1]):
            if len({count[name] for count in counts}) == 1:
                numbered[-1][name, seen[name]] = start, end
                seen[name] += 1
    keys = list(numbered[0])
    offsets = [median(own[key][1] - numbered[0][key][1] for key in keys) for own in numbered]
    waits, transfer = [0.0] * len(ranks), 0
    for key in keys:
        starts = [own[key][0] - off for own, off in zip(numbered, offsets, strict=True)]
        lengths = [own[key][1] - own[key][0] for own in numbered]
        for rank, start in enumerate(starts):
            waits[rank] += min(max(starts) - start, lengths[rank])
        transfer += min(lengths)
    return offsets, waits, transfer


@pytest.mark.process
@pytest.mark.slow
@here
@pytest.mark.parametrize("count", [2, 4])
def test_skew_exposed_communication_and_common_step_of_a_server(count: int) -> None:
    files = sorted(PUBLIC.glob("*gptoss120b_bs-1-*TP-?-EXTEND*"))[:count]
    parts = [read(file) for file in files]
    offsets, waits, transfer = waiting([collectives for collectives, _, _ in parts])
    found = report(*files)
    assert found.ranks is not None
    assert found.rank_steps is not None
    assert [rank.clock_offset_ns for rank in found.ranks.ranks] == pytest.approx(offsets, abs=100)
    assert [rank.waiting_ns for rank in found.ranks.ranks] == pytest.approx(waits, rel=1e-3, abs=100 * len(parts[0][0]))
    assert found.ranks.transfer_ns == pytest.approx(transfer, rel=1e-3)
    assert found.rank_steps.common_median_ns == pytest.approx(max(step for *_, step in parts), rel=1e-6)
    for rank, (collectives, others, _) in zip(found.ranks.ranks, parts, strict=True):
        scope = found.scope(f"rank:{rank.rank}")
        outer = [region for region in scope.regions if region.depth == 0 and region.range_kind != "recording"]
        told = sum(region.exposed_collective_ns or 0 for region in outer)
        assert told == pytest.approx(exposed(collectives, others), rel=1e-3)


@pytest.mark.process
@pytest.mark.slow
@here
def test_waiting_of_two_ranks_in_one_recording(tmp_path: Path) -> None:
    """One clock: the host's calls bound both GPUs' times to a microsecond, though one rank's exchanges end 22 µs earlier."""
    file = PUBLIC / "GindaChen+nsys-ai+mfu_2gpu_before.sqlite.xz"
    (copy := tmp_path / "copy.sqlite").write_bytes(lzma.decompress(file.read_bytes()))
    with closing(sqlite3.connect(copy)) as db:
        ranks = [
            db.execute(
                "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON shortName = id"
                " WHERE value LIKE '%SendRecv%' AND deviceId = ? ORDER BY start",
                (device,),
            ).fetchall()
            for device in (0, 1)
        ]
    waits = [0, 0]
    for calls in zip(*ranks, strict=True):
        for rank, (start, end) in enumerate(calls):
            waits[rank] += min(max(other for other, _ in calls) - start, end - start)
    found = report(file).ranks
    assert found is not None
    assert [rank.clock_offset_ns for rank in found.ranks] == [0, 0]
    assert [rank.waiting_ns for rank in found.ranks] == waits
    apart = sorted(abs(a - b) / 2 for (_, a), (_, b) in zip(*ranks, strict=True))
    assert found.residual_ns == pytest.approx(apart[round(0.9 * (len(apart) - 1))], rel=0.01)
