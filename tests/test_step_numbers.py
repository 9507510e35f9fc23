"""Steps of a server: their numbers are read off the names of ranges, counted, and grouped by size."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import SHARED
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.inject.environment import INJECTED
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import UNKNOWN, Timeline
from llm_perf_opt.regions.step_numbers import (
    SGLANG_MODES,
    numbers_of,
    phase_of,
    summed_up,
    with_graphs,
    without_numbers,
)

sys.path.insert(0, str(INJECTED))
from _llm_perf_annotate import engine_batches

MS = 1_000_000


NAMES: list[tuple[str, tuple[int, int, int], str]] = [
    ("decode_step, batch = 8, tokens = 8, new = 8", (8, 8, 8), "decode_step"),
    ("verify, batch = 8, tokens = 32", (8, 32, UNKNOWN), "verify"),
    ("execute_context_0(0)_generation_64(64)", (64, 64, 64), "decode_step"),
    ("execute_context_1(512)_generation_8(8)", (9, 520, UNKNOWN), "mixed_step"),
    ("execute_context_0(0)_generation_8(32)", (8, 32, UNKNOWN), "verify"),
    ("execute_context_0(0)_generation_8(519)", (8, 519, UNKNOWN), "step"),  # one was pushed out, and is read again
    ("execute_context_0(0)_generation_1(900)", (1, 900, UNKNOWN), "step"),
    (
        "execute_520_context_1(sq512sk900sqsq262144sqsk460800)_generation_8(sq8sk99sqsq8sqsk99)",
        *((9, 520, UNKNOWN), "mixed_step"),
    ),
    ("execute_context_1(888_788544)_generation_0(0)", (1, 888, UNKNOWN), "prefill"),
    ("step[DECODE bs=64]", (64, 64, 64), "decode_step"),
    ("step[EXTEND bs=1 toks=4096]", (1, 4096, UNKNOWN), "prefill"),
    ("step[TARGET_VERIFY bs=4]", (UNKNOWN,) * 3, "verify"),
    ("step[VERIFY bs=4]", (UNKNOWN,) * 3, "verify"),
    ("step[DRAFT bs=4 g_sq=12 g_sqsq=36 g_sqsk=90 g_sk=30]", (4, 12, UNKNOWN), "draft"),
    ("step[DECODE bs=4 g_sq=4 g_sqsq=4 g_sqsk=30 g_sk=30]", (4, 4, 4), "decode_step"),
    ("step[DECODE bs=4 g_sq=4 g_sqsq=4 g_sqsk=30 g_sk=30 forward_id=12]", (4, 4, 4), "decode_step"),
    ("step[EXTEND bs=1 toks=512 c_sq=512 c_sqsq=9 c_sqsk=9 c_sk=512 forward_id=7]", (1, 512, UNKNOWN), "prefill"),
    (
        "step[MIXED bs=9 c=1 g=8 c_sq=512 c_sk=512 c_sqsq=9 c_sqsk=9 g_sq=8 g_sk=9 g_sqsq=8 g_sqsk=9]",
        (9, 520, UNKNOWN),
        "mixed_step",
    ),
    ("[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", (32, 32, UNKNOWN), "decode_step"),
    ("[Executor] _forward_step 7: 1 ctx reqs, 512 ctx tokens, 8 gen reqs", (9, 520, UNKNOWN), "mixed_step"),
    ("[Executor] _forward_step 7: 2 ctx reqs, 0 gen reqs", (UNKNOWN,) * 3, "prefill"),
    ("[Executor] _forward_step: 0 ctx reqs, 0 gen reqs", (0, 0, UNKNOWN), "step"),
    ("train, batch = 8", (UNKNOWN,) * 3, "step"),
    ("decode_step", (UNKNOWN,) * 3, "decode_step"),
]


@pytest.mark.parametrize(("name", "expected", "phase"), NAMES)
def test_numbers_and_phases_in_names(name: str, expected: tuple[int, int, int], phase: str) -> None:
    assert (numbers_of(name), phase_of(name)) == (expected, phase)


def test_modes_of_sglang_are_those_of_the_annotation() -> None:
    assert engine_batches._SGLANG == SGLANG_MODES


PUBLIC = SHARED / "public"


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("sgl-project+sglang+*bs-1-*TP-0-EXTEND*", ("prefill", 1, 4096, None)),
        ("sgl-project+sglang+*bs-1-*TP-1-DECODE*", ("decode_step", 5, 5, 5)),
        ("sgl-project+sglang+*bs-64-*TP-0-DECODE*", ("decode_step", 5, 320, 320)),
        ("AMD-AGI+TraceLens+traces_b200_eager_trace*", ("prefill", 1, 888, None)),
    ],
)
def test_public_traces_of_engines_have_the_right_phases(trace: str, expected: tuple[str, int, int, int | None]) -> None:
    found = next(iter(PUBLIC.glob(trace)), None)
    if found is None:
        pytest.skip("needs the public recordings")
    timeline = read_recording(found)
    assert isinstance(timeline, Timeline)
    regions = build_report([timeline], ReportOptions()).scopes[-1].regions
    (region,) = [region for region in regions if region.timing is not None and region.timing.steps]
    steps, rate = region.timing.steps, region.performance.tokens.now.value
    assert steps.tokens / sum(group.total_ns for group in steps.groups) * 1e9 == pytest.approx(rate, rel=0.05)
    assert (steps.phase, steps.instances, steps.tokens, steps.new_tokens) == expected


def test_numbers_of_ours_are_no_part_of_a_name() -> None:
    assert without_numbers("decode_step, batch = 8, tokens = 8, new = 8") == "decode_step"
    assert without_numbers("train, batch = 8") == "train, batch = 8"


def without_graphs(rows: list[list[int]] | np.ndarray) -> np.ndarray:
    return np.hstack([np.array(rows), np.zeros((len(rows), 1), dtype=int), np.full((len(rows), 2), UNKNOWN)])


def test_groups_reach_to_twice_the_size_before() -> None:
    batch = np.array([1, 2, 3, 4, 5, 8, 9])
    steps = summed_up(without_graphs(np.stack([batch, batch, batch], axis=1)), batch * MS)
    assert steps is not None
    assert steps.grouped_by == "batch"
    assert [(g.smallest, g.largest, g.instances) for g in steps.groups] == [
        *((1, 1, 1), (2, 2, 1), (3, 4, 2)),
        *((5, 8, 2), (9, 9, 1)),
    ]
    assert sum(g.total_ns for g in steps.groups) == batch.sum() * MS
    assert (steps.new_tokens, steps.batch_mean, steps.groups[2].median_ns) == (32, 32 / 7, 3.5 * MS)


def test_a_step_that_says_nothing_makes_the_sum_unknown() -> None:
    numbers = without_graphs([[1, 1, 1], [UNKNOWN] * 3])
    assert summed_up(numbers, np.array([1, 2])) is None
    known = summed_up(without_graphs([[1, 5, 1], [2, 9, UNKNOWN]]), np.array([1, 2]))
    assert known is not None
    assert (known.new_tokens, known.tokens, known.grouped_by) == (None, 14, "tokens")


def test_graphs_are_taken_from_the_recording_where_sizes_are_alike() -> None:
    batch = np.array([4, 4, 8, 20])
    timed = summed_up(without_graphs(np.stack([batch] * 3, axis=1)), batch * MS)
    graphs = [0 * batch, np.array([1, 0, 1, 0]), np.array([7, UNKNOWN, 9, UNKNOWN])]
    seen = np.stack([batch, batch, batch, *graphs], axis=1)
    recorded = summed_up(seen, 2 * batch * MS)
    found = with_graphs(timed, recorded)
    assert found is not None
    assert timed is not None
    assert [(g.largest, g.in_graph, g.graphs) for g in found.groups] == [
        (4, None, None),
        (8, True, 1),
        (20, False, None),
    ]
    assert [g.median_ns for g in found.groups] == [g.median_ns for g in timed.groups]


def _measured(path: Path) -> Path:
    """A measured run: ten decode steps of 4 requests that take 10 ms, ten of 8 that take 12 ms, prefills, five mixed ones."""
    names = [["LLM", f"decode_step, batch = {n}, tokens = {n}, new = {n}"] for n in (4, 8)]
    names.append(["LLM", "prefill, batch = 2, tokens = 600, new = 2"])
    names.append(["LLM", "mixed_step, batch = 5, tokens = 300, new = 4"])
    rows, now = [], 1000
    for which, took in [(2, 50), (2, 50), *[(0, 10)] * 10, *[(1, 12)] * 10, *[(3, 33)] * 5]:
        rows.append([which, 1, now, now + took * MS, *[UNKNOWN_HERE] * 4])
        now += (took + 1) * MS
    process = {"run": 0, "pid": 1, "names": names, "once": [], "uuids": [], "rows": rows}
    path.write_text(
        '{"kind": "llm-perf measured", "version": 2, "gpus": [], "processes": ' + json.dumps([process]) + "}\n"
    )
    return path


UNKNOWN_HERE = -(1 << 62)


def test_a_report_of_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(_measured(tmp_path / "run.json")), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "batch 4" in shown
    assert "batch 8" in shown
    assert "after 11 ms in a decode step and after 33 ms in a mixed one (medians); 20 % of these" in shown
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    regions = {region["key"]: region for region in report["scopes"][-1]["regions"]}
    assert set(regions) == {"LLM@decode_step", "LLM@prefill", "LLM@mixed_step"}
    decode = regions["LLM@decode_step"]
    assert decode["instances"] == 20
    groups = decode["timing"]["steps"]["groups"]
    assert [(g["smallest"], g["median_ns"]) for g in groups] == [(4, 10 * MS), (8, 12 * MS)]
    assert decode["performance"]["tokens"]["now"]["value"] == pytest.approx(120 / 0.220)
    assert regions["LLM@prefill"]["performance"]["tokens"]["now"]["value"] == pytest.approx(600 / 0.050)
    assert "## Steps" in (tmp_path / "out" / "report.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<section id="steps"' in page
    assert 'href="#steps"' in page
