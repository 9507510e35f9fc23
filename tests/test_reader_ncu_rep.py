"""Reports of ncu: every result with its stack, process and counters, added up per region as NVIDIA's reader has them."""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conftest import RECORDINGS, SHARED, codes, counters, plain_bytes, recording, regions_of, report
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.ncu_container import read_container
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import CounterSet

ncu_report = pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed (Linux x86-64 only)")

TIME = "gpu__time_duration.sum"
NUMBERS = (3, 4, 5, 6)  # IMetric.ValueKind_FLOAT … UINT64

# name, results by kind, processes, passes
REPORTS: list[tuple[str, dict[str, int], int, set[int]]] = [
    ("decoder-2layers-basic", {"kernel": 56}, 1, {11}),
    ("decoder-8layers-per-launch-config", {"kernel": 165}, 1, {1}),
    ("h200-graph-nodes-kernel-replay", {"kernel": 90}, 1, {1}),
    ("h200-graph-whole", {"graph": 6}, 1, {1}),
    ("h200-names", {"kernel": 92}, 1, {1}),
    ("qwen3-0.95b-app-range", {"range": 2}, 1, {2}),
    ("qwen3-0.95b-per-launch-config", {"kernel": 66}, 1, {1}),
    ("h200-ranks-two-processes", {"kernel": 12}, 2, {1}),
    ("h200-threads-scope-process", {"kernel": 5}, 1, {1}),
    ("h200-threads-scope-thread", {"kernel": 5}, 1, {1}),
]


def read(path: Path) -> CounterSet:
    found = read_recording(path)
    assert isinstance(found, CounterSet)
    return found


# NVIDIA's reader reads as it is asked: without the file and its context all results are empty, and it does not say so.
_alive: list[Any] = []


@cache
def raw_actions(name: str) -> list[Any]:
    """The results as NVIDIA's reader gives them."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "report.ncu-rep"
    path.write_bytes(plain_bytes(recording(f"ncu-*-{name}.ncu-rep")))
    context = ncu_report.load_report(str(path))
    results = [context.range_by_idx(i) for i in range(context.num_ranges())]
    actions = [r.action_by_idx(i) for r in results for i in range(r.num_actions())]
    _alive.extend([folder, context])
    return actions


@pytest.mark.parametrize(("name", "kinds", "processes", "passes"), REPORTS, ids=[r[0] for r in REPORTS])
def test_every_report_is_read_whole(name: str, kinds: dict[str, int], processes: int, passes: set[int]) -> None:
    found = counters(name)
    by_kind: dict[str, int] = defaultdict(int)
    for action in found.actions:
        by_kind[action.kind] += 1
    assert by_kind == kinds
    assert len({a.process for a in found.actions}) == processes
    assert None not in {a.process for a in found.actions}
    assert {a.passes for a in found.actions} == passes
    assert {a.device for a in found.actions} == {0}
    assert found.environment["gpus"] == {0: "NVIDIA H200"}
    assert codes(found) == []


@pytest.mark.process
def test_the_blocks_of_every_report_say_how_many_results_there_are(unpacked: Callable[[Path], Path]) -> None:
    paths = [*sorted(RECORDINGS.glob("*.ncu-rep*")), *sorted(SHARED.glob("*/*.ncu-rep"))]
    assert {p.name: read_container(unpacked(p), "x").results for p in paths} == {
        p.name: len(read(p).actions) for p in paths
    }


def test_two_processes_in_one_report_keep_their_results() -> None:
    found = counters("h200-ranks-two-processes")
    assert [a.process for a in found.actions].count(1458) == 6
    assert [a.process for a in found.actions].count(1459) == 6
    scopes = {s.scope: s.totals.kernel_count for s in report("ncu-*-ranks-two-processes.ncu-rep").scopes}
    assert scopes == {"process:1458": 6, "process:1459": 6, "device:0": 12, "aggregate": 12}
    for scope in report("ncu-*-ranks-two-processes.ncu-rep").scopes[:2]:
        kernels = {key: r.inclusive.kernel_count for key, r in regions_of(scope).items()}
        assert kernels == {"LLM@prefill": 2, "LLM@decode_step": 4}


def test_a_kernel_has_its_names_and_its_launch_configuration() -> None:
    for ours, raw in zip(counters("decoder-2layers-basic").actions, raw_actions("decoder-2layers-basic"), strict=True):
        assert ours.demangled == ours.name == raw.name(raw.NameBase_DEMANGLED)
        assert ours.mangled == raw.name(raw.NameBase_MANGLED)
        assert ours.short == raw.name(raw.NameBase_FUNCTION)
        assert ours.grid == tuple(raw.metric_by_name(f"launch__grid_dim_{axis}").as_uint64() for axis in "xyz")
        assert ours.block == tuple(raw.metric_by_name(f"launch__block_dim_{axis}").as_uint64() for axis in "xyz")
        assert ours.shared_memory is not None


def test_a_range_and_a_graph_say_how_many_kernels_are_inside() -> None:
    assert [a.kernels_inside for a in counters("qwen3-0.95b-app-range").actions] == [470, 3888]
    assert [a.kernels_inside for a in counters("h200-graph-whole").actions] == [15] * 6


# -- stacks ----------------------------------------------------------------------------------------


def test_stacks_of_every_domain_are_kept_with_names_as_they_are() -> None:
    actions = counters("h200-names").actions
    assert actions[0].push_pop == {}
    assert actions[30].push_pop == {"": ["a\nb"]}
    assert actions[63].push_pop == {"LLM": ["层"]}
    assert actions[84].push_pop == {"D@x": ["LLM@step"]}
    assert actions[88].push_pop == {"": ["outer"], "LLM": ["inner"]}
    assert actions[89].push_pop == {"": ["outer", "inner", "outer"]}


def test_start_end_ranges_are_kept_apart() -> None:
    actions = counters("h200-names").actions
    assert (actions[90].push_pop, actions[90].start_end) == ({}, {"": ["se/name"]})
    assert (actions[91].push_pop, actions[91].start_end) == ({}, {"LLM": ["se"]})
    regions = regions_of(report("ncu-*-h200-names.ncu-rep").main_scope)
    assert regions["se\\/name (start/end)"].inclusive.kernel_count == 1
    assert regions["se\\/name (start/end)"].range_kind == "start_end"


def test_stacks_are_those_of_the_launching_thread_even_where_ncu_filtered_by_process() -> None:
    """`--nvtx-push-pop-scope process` changes what `--nvtx-include` matches, not what a result carries."""
    for scope in ("thread", "process"):
        stacks = [a.push_pop for a in counters(f"h200-threads-scope-{scope}").actions]
        assert stacks == [{}, {}, {"": ["op_on_worker"]}, {}, {"": ["step", "outer"]}]


# -- counters --------------------------------------------------------------------------------------

COMPARED = [
    "decoder-2layers-basic",
    "decoder-8layers-per-launch-config",
    "h200-graph-nodes-kernel-replay",
    "h200-names",
]


@pytest.mark.parametrize("name", [*COMPARED, "qwen3-0.95b-app-range", "h200-graph-whole", "h200-ranks-two-processes"])
def test_every_counter_is_the_one_nvidia_s_reader_gives(name: str) -> None:
    ours, raws = counters(name).actions, raw_actions(name)
    assert len(ours) == len(raws)
    for action, raw in zip(ours, raws, strict=True):
        assert action.metrics
        for metric, value in action.metrics.items():
            assert value == raw.metric_by_name(metric).as_double()
        # What is left out is a fact of the device or the launch, a text, or has no value.
        for metric in set(raw.metric_names()) - set(action.metrics):
            if metric.startswith(("gpu__", "dram__", "sm__", "lts__", "smsp__")) and "pcsamp" not in metric:
                left = raw.metric_by_name(metric)
                counts = left.kind() in NUMBERS and left.has_value() and math.isfinite(left.as_double())
                assert not counts, metric


def members_by_region(name: str) -> dict[tuple[str, tuple[str, ...]], list[int]]:
    """Results of every push/pop region, from NVIDIA's reader alone."""
    found: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for i, raw in enumerate(raw_actions(name)):
        state = raw.nvtx_state()
        for key in state.domains() if state else ():
            domain = state[key].name()
            stack = tuple(state[key].push_pop_ranges())
            for length in range(1, len(stack) + 1):
                found["" if domain == "<default domain>" else domain, stack[:length]].append(i)
    return found


@cache
def raw_values(name: str) -> list[dict[str, tuple[float, str]]]:
    """Value and unit of every number of every result, from NVIDIA's reader alone."""
    found = []
    for raw in raw_actions(name):
        metrics = {metric: raw.metric_by_name(metric) for metric in raw.metric_names()}
        found.append(
            {m: (v.as_double(), v.unit()) for m, v in metrics.items() if v.kind() in NUMBERS and v.has_value()}
        )
    return found


@pytest.mark.parametrize("name", COMPARED)
def test_regions_add_up_the_results_below_them(name: str) -> None:
    scope = report(f"ncu-*-{name}.ncu-rep").main_scope
    assert scope is not None
    wanted = members_by_region(name)
    regions = {(r.domain, tuple(r.path)): r for r in scope.regions if r.range_kind == "push_pop"}
    assert set(regions) == set(wanted)
    kinds: set[str] = set()
    for key, region in regions.items():
        members = [raw_values(name)[i] for i in wanted[key]]
        assert region.inclusive.kernel_count == len(members)
        assert region.inclusive.gpu_time_ns == round(sum(m[TIME][0] for m in members))
        for metric, value in region.inclusive.metrics.items():
            have = [m for m in members if metric in m]
            if not have and metric.endswith("_elapsed"):  # a share of the whole launch, by the cycles with work
                shares = [m[metric.replace("_elapsed", "_active")][0] for m in members]
                parts = [m["sm__cycles_active.avg"][0] / m["gpc__cycles_elapsed.max"][0] for m in members]
                weights = [m[TIME][0] for m in members]
                weighted = [s * min(p, 1.0) * w for s, p, w in zip(shares, parts, weights, strict=True)]
                assert value.value == pytest.approx(sum(weighted) / sum(weights), rel=1e-12)
                continue
            if not have:  # a total that follows from a rate
                assert any(known.startswith(f"{metric}.per_") for known in members[0])
                continue
            numbers, weights = [m[metric][0] for m in have], [m[TIME][0] for m in have]
            if metric.endswith(".sum"):
                expected, rollup = math.fsum(numbers), "sum"
            elif metric.endswith((".max", ".min")):
                rollup = metric[-3:]
                expected = max(numbers) if rollup == "max" else min(numbers)
            elif "pct" in metric or "per_second" in metric or metric.endswith(".avg"):
                expected, rollup = sum(n * w for n, w in zip(numbers, weights, strict=True)) / sum(weights), "mean"
            else:
                continue
            kinds.add(rollup)
            assert (value.rollup, value.samples, value.unit) == (rollup, len(have), have[0][metric][1]), metric
            assert value.value == pytest.approx(expected, rel=1e-12)
            assert value.source == "kernel replay"
    assert {"sum", "mean", "max"} <= kinds


def test_percentages_are_weighted_by_time_not_averaged() -> None:
    name, metric = "decoder-2layers-basic", "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    raws = raw_actions(name)
    plain = sum(r.metric_by_name(metric).as_double() for r in raws) / len(raws)
    weights = [r.metric_by_name(TIME).as_double() for r in raws]
    weighted = sum(r.metric_by_name(metric).as_double() * w for r, w in zip(raws, weights, strict=True)) / sum(weights)
    region = regions_of(report(f"ncu-*-{name}.ncu-rep").main_scope)["LLM@prefill"]
    assert region.inclusive.metrics[metric].value == pytest.approx(weighted)
    assert abs(plain - weighted) > 5


def test_range_and_graph_results_say_how_they_were_taken() -> None:
    ranges = regions_of(report("ncu-*-qwen3-0.95b-app-range.ncu-rep").main_scope)
    assert set(ranges) == {"LLM@prefill", "LLM@decode_all"}
    assert ranges["LLM@prefill"].inclusive.kernel_count == 470
    assert {m.source for r in ranges.values() for m in r.inclusive.metrics.values()} == {"range replay"}
    graphs = regions_of(report("ncu-*-h200-graph-whole.ncu-rep").main_scope)
    step = graphs["LLM@replay_all/decode_step"]
    assert (step.inclusive.graph_launches, step.inclusive.kernel_count) == (6, 90)
    assert {m.source for m in step.inclusive.metrics.values()} == {"graph replay"}


def test_without_a_timeline_times_are_said_to_be_ncu_s() -> None:
    found = report("ncu-*-decoder-2layers-basic.ncu-rep")
    assert "NO_TIMELINE" in codes(found)
    region = regions_of(found.main_scope)["LLM@prefill/layer1"]
    assert (region.time_source, region.wall_ns, region.gpu_idle_ns, region.instances) == ("ncu", None, None, None)


def test_ncu_s_own_findings_come_with_their_estimate() -> None:
    rules = [rule for action in counters("decoder-2layers-basic").actions for rule in action.rules]
    assert len(rules) == 261
    estimates = [r.estimated_speedup_percent for r in rules if r.estimated_speedup_percent is not None]
    assert len(estimates) == 146
    assert all(0 <= estimate <= 100 for estimate in estimates)
    assert all(rule.rule and rule.title and rule.message for rule in rules)
    assert not any("@url:" in rule.message or "@section:" in rule.message for rule in rules)
    region = regions_of(report("ncu-*-decoder-2layers-basic.ncu-rep").main_scope)["LLM@prefill/layer1/attention"]
    assert region.rules
    assert all(0 < (finding.share_of_gpu_time or 0) <= 1 for finding in region.rules)


def test_sections_list_the_counters_shown_in_them() -> None:
    found = counters("decoder-2layers-basic")
    assert {"SpeedOfLight", "Occupancy", "SpeedOfLight_RooflineChart"} <= set(found.section_metrics)
    assert "sm__throughput.avg.pct_of_peak_sustained_elapsed" in found.section_metrics["SpeedOfLight"]
    region = regions_of(report("ncu-*-decoder-2layers-basic.ncu-rep").main_scope)["LLM@prefill"]
    assert "SpeedOfLight" in region.sections


# -- damage ----------------------------------------------------------------------------------------


def block_ends(data: bytes) -> list[int]:
    """Where the header and each block end."""
    from llm_perf_opt.readers.ncu_container import _fields, _number

    at = 8 + int.from_bytes(data[4:8], "little")
    ends = [at]
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        at += 4 + length + _number(_fields(data[at + 4 : at + 4 + length]).get(5))
        ends.append(at)
    return ends


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[bytes], CounterSet | None]:
    """A function that reads bytes as a report: the result, or None where it was refused in a sentence."""

    def attempt(data: bytes) -> CounterSet | None:
        path = tmp_path / "damaged.ncu-rep"
        path.write_bytes(data)
        with contextlib.suppress(UnreadableInput):
            return read(path)
        return None

    return attempt


@pytest.mark.process
def test_a_report_cut_between_blocks_holds_what_was_written_so_far(
    damaged: Callable[[bytes], CounterSet | None],
) -> None:
    """After a kill ncu's file ends so: nothing is damaged, there is just less of it."""
    data = plain_bytes(recording("ncu-*-h200-names.ncu-rep"))
    numbers = []
    for end in block_ends(data)[::12]:
        found = damaged(data[:end])
        assert found is not None
        numbers.append(len(found.actions))
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] > 80


@pytest.mark.process
def test_a_report_without_results_says_so(damaged: Callable[[bytes], CounterSet | None], tmp_path: Path) -> None:
    data = plain_bytes(recording("ncu-*-h200-names.ncu-rep"))
    for end in block_ends(data)[:2]:
        found = damaged(data[:end])
        assert found is not None
        assert (found.actions, codes(found)) == ([], ["NO_RESULTS"])
        assert "llm-perf ranges" in found.diagnostics[0].fix
    assert "NO_REGIONS" in codes(report(tmp_path / "damaged.ncu-rep"))


def test_a_report_cut_inside_a_block_is_refused(damaged: Callable[[bytes], CounterSet | None]) -> None:
    data = plain_bytes(recording("ncu-*-h200-threads-scope-thread.ncu-rep"))
    ends = set(block_ends(data))
    dice = random.Random(5)
    for cut in [4, 5, 9, *sorted(ends - {len(data)})[:3], *(dice.randrange(10, len(data)) for _ in range(60))]:
        for place in (cut - 1, cut, cut + 1, cut + 3):
            if place not in ends and 4 <= place < len(data):
                assert damaged(data[:place]) is None


@pytest.mark.process
@pytest.mark.parametrize("name", ["h200-threads-scope-thread", "h200-ranks-two-processes", "h200-graph-whole"])
def test_flipped_bytes_are_refused_or_leave_every_result_in_place(
    name: str, damaged: Callable[[bytes], CounterSet | None], capfd: pytest.CaptureFixture[str]
) -> None:
    data = plain_bytes(recording(f"ncu-*-{name}.ncu-rep"))
    whole = len(counters(name).actions)
    refused = 0
    for seed in range(20):
        dice = random.Random(seed)
        broken = bytearray(data)
        for _ in range(dice.choice([1, 1, 3, 10, 100])):
            broken[dice.randrange(len(broken))] ^= dice.randrange(1, 256)
        found = damaged(bytes(broken))
        if found is None:
            refused += 1
        else:
            assert len(found.actions) == whole
    assert refused > 0
    capfd.readouterr()  # NVIDIA's reader complains on stderr


@pytest.mark.process
def test_results_the_reader_leaves_out_are_missed_by_us(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a damaged report the reader may give 0 of 5 results without an error: that is not "ncu profiled nothing"."""
    data = plain_bytes(recording("ncu-*-h200-threads-scope-thread.ncu-rep"))
    path, seen = tmp_path / "x.ncu-rep", 0
    for seed in range(120):
        dice = random.Random(seed)
        broken = bytearray(data)
        broken[dice.randrange(len(broken))] ^= dice.randrange(1, 256)
        path.write_bytes(broken)
        try:
            read(path)
        except UnreadableInput as told:
            seen += "of its 5 results" in told.message
        if seen:
            break
    assert seen > 0
    capfd.readouterr()


@pytest.mark.process
@pytest.mark.parametrize(
    "content", [b"NVR\x00", b"NVR\x00\xff\xff\xff\xff", b"NVR\x00" + b"\xff" * 300, b"NVR\x00" + bytes(300)]
)
def test_what_only_begins_like_a_report_is_refused(
    content: bytes, damaged: Callable[[bytes], CounterSet | None]
) -> None:
    found = damaged(content)
    assert found is None or codes(found) == ["NO_RESULTS"]


def test_a_block_of_impossible_length_is_refused(damaged: Callable[[bytes], CounterSet | None]) -> None:
    # Field 5, the payload: 2**70 - 1 bytes and a little less.
    for length in (b"\xff" * 9 + b"\x7f", b"\xff" * 8 + b"\x7f"):
        header = b"\x28" + length
        assert damaged(b"NVR\x00" + bytes(4) + len(header).to_bytes(4, "little") + header) is None
