"""Ranges whose names differ in a number that counts are instances of one region; things keep their names."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from conftest import SHARED, report
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Action, CounterSet, Timeline
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.regions.pooled_names import Pools, find_pools
from llm_perf_opt.regions.prepared import prepare, prepare_timeline
from llm_perf_opt.report.tables import ranges_table
from synthetic import make_export

PUBLIC = SHARED / "public"


def names_of(*names: str, times: int = 1) -> list[str]:
    """What names become when each was recorded so often."""
    counts = Counter(dict.fromkeys(names, times))
    pools = Pools.of(counts, 1, lambda name: False)
    return list(dict.fromkeys(pools.name(name) for name in names))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"Batch {i}" for i in range(59)], ["Batch *"]),
        (["iter_7", "iter_8"], ["iter_*"]),
        (["step12", "step13"], ["step*"]),
        (["Epoch 0 step 0", "Epoch 0 step 1", "Epoch 1 step 0"], ["Epoch * step *"]),
        ([f"Step {i} to {i + 10}" for i in range(3)], ["Step * to *"]),
        (["aten::mm, seq = 3, op_id = 17", "aten::mm, op_id = 9, sizes = [[1, 2], []]"], ["aten::mm"]),
        (["aten::mm, op_id = 1"], ["aten::mm"]),
        (["step[DECODE bs=64]", "step[DECODE bs=63]", "step[EXTEND bs=1 toks=40]"], None),
        (["request 0x7f21", "request 0x7f22"], ["request *"]),
        ([f"FSDP::pre_forward (blocks.{i}.mlp)" for i in range(4)], ["FSDP::pre_forward (blocks.*.mlp)"]),
        ([f"Compute {i}" for i in range(40)], ["Compute *"]),
        ([f"execute_model_{i}" for i in range(6)], ["execute_model_*"]),
        ([f"runModel({i})" for i in range(3)], ["runModel(*)"]),
    ],
)
def test_a_number_that_counts_is_pooled(names: list[str], expected: list[str] | None) -> None:
    if expected is None:
        expected = ["step[DECODE bs=*]", "step[EXTEND bs=1 toks=40]"]
    assert names_of(*names) == expected


@pytest.mark.parametrize(
    "names",
    [
        [f"layer{i}" for i in range(80)],
        [f"model.layers.{i}.mlp" for i in range(80)],
        ["rank 0", "rank 1"],
        ["conv1", "conv2", "fc1"],
        ["ReluBackward0", "ReluBackward1"],
        ["phase 1", "phase 2"],
        [f"model_{i}" for i in range(6)],
        [f"run_layer_{i}" for i in range(6)],
        [f"nn.Module: Linear_{i}" for i in range(40)],
        ["Batch 3"],
        ["step[DECODE bs=64]"],
        ["Compute 1", "Compute 2"],  # two are no sign of counting
    ],
)
def test_a_number_that_tells_things_apart_stays(names: list[str]) -> None:
    assert names_of(*names) == names


def test_names_that_come_back_are_things() -> None:
    names = [f"Compute {i}" for i in range(40)]
    assert names_of(*names, times=3) == names
    models = [f"run_model_{i}" for i in range(4)]
    assert names_of(*models, times=3) == models


def test_a_prefill_is_no_decode_step() -> None:
    """vLLM: requests and tokens of each kind, none of one kind in a step of the other."""
    prefill = [f"execute_context_{i}({i * 500})_generation_0(0)" for i in (1, 2, 3)]
    decode = [f"execute_context_0(0)_generation_{i}({i})" for i in (1, 2, 3)]
    assert names_of(*prefill, *decode, times=9) == [
        "execute_context_*(*)_generation_0(0)",
        "execute_context_0(0)_generation_*(*)",
    ]


def test_steps_of_tensorrt_are_one_region_of_each_phase() -> None:
    """Its ranges are numbered, and say in the same words what is read and what is made."""

    def step(prompts: int, tokens: int, others: int) -> list[str]:
        name = "[Executor] _forward_step {}: {} ctx reqs, {} ctx tokens, {} gen reqs"
        return [name.format(100 * others + n, prompts * n, tokens * n, others) for n in range(1, 9)]

    assert set(names_of(*step(1, 512, 0), *step(0, 0, 8), *step(0, 0, 16), *step(1, 512, 8))) == {
        "[Executor] _forward_step *: * ctx reqs, * ctx tokens, 0 gen reqs",
        "[Executor] _forward_step *: * ctx reqs, * ctx tokens, 8 gen reqs",
        "[Executor] _forward_step *: 0 ctx reqs, 0 ctx tokens, * gen reqs",
    }


def test_the_expression_for_ncu_matches_the_recorded_names_and_no_other() -> None:
    names = [f"Batch ({i}) $x" for i in range(3)]
    pools = Pools.of(Counter(names), 1, lambda name: False)
    expression = pools.pooled["Batch (*) $x"].expression
    assert all(re.fullmatch(expression, name) for name in (*names, "Batch (77) $x"))
    assert not re.fullmatch(expression, "Batch (x) $x")
    assert pools.name("Batch (77) $x") == "Batch (*) $x"  # of another recording of the program
    assert pools.pooled["Batch (*) $x"].numbers[0].max == 2


def test_names_of_any_length_and_shape_are_read() -> None:
    names = ["step " + "9" * 5000, "step 1", "1a" * 5000, "²", "", "7", "*", "step *"]
    assert set(names_of(*names)) == {"step *", *names[2:]}


def batches(path: Path, count: int = 12) -> Timeline:
    """A loop of batches, the first of them slow, each with a kernel in `work`."""
    starts = [0, *(1_000_000 + 200_000 * i for i in range(count - 1))]
    ends = [1_000_000, *(start + 190_000 for start in starts[1:])]
    ranges = [("loop", 0, ends[-1])]
    ranges += [(f"Batch {i}", start, end) for i, (start, end) in enumerate(zip(starts, ends, strict=True))]
    ranges += [("work", start + 1, end - 1) for start, end in zip(starts, ends, strict=True)]
    kernels = [(f"k{i % 2}", start + 10, start + 20, start + 100 + i) for i, start in enumerate(starts)]
    found = read_recording(make_export(path, ranges, kernels))
    assert isinstance(found, Timeline)
    return found


def test_a_pooled_region_holds_the_sums_of_its_instances_in_the_order_of_time(tmp_path: Path) -> None:
    scope = build_report([batches(tmp_path / "x.sqlite")], ReportOptions()).main_scope
    assert scope is not None
    regions = {region.key: region for region in scope.regions}
    assert list(regions) == ["loop", "loop/Batch *", "loop/Batch */work"]
    batch = regions["loop/Batch *"]
    assert (batch.instances, batch.inclusive.kernel_count) == (12, 12)
    assert batch.inclusive.gpu_time_ns == sum(80 + i for i in range(12))
    assert batch.wall_ns == 1_000_000 + 11 * 190_000
    assert [(n.min, n.max, n.mean) for n in batch.numbers] == [(0, 11, 5.5)]
    assert batch.timing is not None
    assert batch.timing.warmup.instances == 1  # the slow one came first
    assert batch.nvtx_include == r"regex:^Batch\x20[0-9][0-9]*$/"


def test_a_range_that_is_asked_for_by_its_number_is_found(tmp_path: Path) -> None:
    scope = build_report([batches(tmp_path / "x.sqlite")], ReportOptions(include=["Batch 3"])).main_scope
    assert scope is not None
    assert [(region.key, region.instances) for region in scope.regions] == [
        ("loop/Batch 3", 1),
        ("loop/Batch 3/work", 1),
    ]
    scope = build_report([batches(tmp_path / "y.sqlite")], ReportOptions(include=["Batch*"])).main_scope
    assert scope is not None
    assert [region.instances for region in scope.regions] == [12, 12]


def test_tables_of_ranges_keep_the_recorded_names(tmp_path: Path) -> None:
    from llm_perf_opt.regions.attribution import attribute

    found = prepare_timeline(batches(tmp_path / "x.sqlite"), RegionFilter())
    table = ranges_table(found, attribute(found))
    rows = [row for row in zip(table["name"], table["region"], strict=True) if str(row[0]).startswith("Batch")]
    assert rows == [(f"Batch {i}", "loop/Batch *") for i in range(12)]


def test_results_of_ncu_are_in_the_regions_of_the_timeline(tmp_path: Path) -> None:
    result = Action("kernel", "k0", push_pop={"": ["loop", "Batch 77", "work"]})
    _, counters = prepare(
        [batches(tmp_path / "x.sqlite"), CounterSet("x", "ncu-rep", actions=[result])], RegionFilter()
    )
    assert isinstance(counters, CounterSet)
    assert counters.actions[0].push_pop == {"": ["loop", "Batch *", "work"]}


def test_operators_inside_operators_are_part_of_those(tmp_path: Path) -> None:
    ranges = [("step", 0, 1000)]
    ranges += [("aten::linear, seq = 1", 10, 90), ("aten::addmm, seq = 1", 20, 80), ("aten::copy_", 30, 40)]
    ranges += [("aten::linear, seq = 2", 110, 190), ("mine", 120, 180), ("aten::mul", 130, 140)]
    kernels = [("k", 35, 36, 50), ("k", 135, 136, 150)]
    recording = read_recording(make_export(tmp_path / "x.sqlite", ranges, kernels))
    scope = build_report([recording], ReportOptions()).main_scope
    assert scope is not None
    found = {region.key: region.inclusive.kernel_count for region in scope.regions}
    assert found == {
        "step": 2,
        "step/aten::linear": 2,
        "step/aten::linear/mine": 1,
        "step/aten::linear/mine/aten::mul": 1,
    }
    scope = build_report([recording], ReportOptions(include=["aten::addmm"])).main_scope
    assert scope is not None
    assert [region.key for region in scope.regions] == ["step/aten::linear/aten::addmm"]


# -- recordings of others --------------------------------------------------------------------------


def public(name: str) -> Path:
    path = PUBLIC / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return path


@pytest.mark.slow
def test_eighteen_thousand_ranges_of_operators_are_a_few_dozen_regions() -> None:
    found = report(public("GindaChen+nsys-ai+mfu_2gpu_before.sqlite.xz"))
    scope = found.main_scope
    assert scope is not None
    assert len(scope.regions) < 60
    outermost = [r for r in scope.regions if r.parent is None and r.domain == "" and not r.is_whole_recording]
    assert sum(r.inclusive.kernel_count for r in outermost) == scope.totals.kernel_count - 24


@pytest.mark.slow
def test_the_backward_pass_holds_what_autograd_launches() -> None:
    found = report(public("openhackathons-org+AI-Profiler+baseline_nvtx.sqlite.xz"))
    scope = found.main_scope
    assert scope is not None
    backward = next(r for r in scope.regions if r.key == "Epoch 2/Train/Batch */Backward pass")
    assert backward.instances == 59
    assert backward.inclusive.kernel_count == 59 * 129
    assert backward.inclusive.gpu_time_ns is not None
    assert 4.3e6 < backward.inclusive.gpu_time_ns / 59 < 4.5e6
    assert backward.adopted_kernels == 59 * 40


def test_pools_are_found_once_for_all_ranks(tmp_path: Path) -> None:
    first = batches(tmp_path / "a.sqlite")
    second = batches(tmp_path / "b.sqlite", 2)
    pools = find_pools([first, second], RegionFilter())
    assert {
        found.strings[n] for found in map(pools.applied, (first, second)) for n in np.unique(found.ranges.name)
    } == {"loop", "Batch *", "work"}
