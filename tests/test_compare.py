"""`llm-perf compare`: planted changes are named, causes add up, noise raises no alarm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from conftest import recording
from llm_perf_opt.api.sides import add_facts, open_side
from llm_perf_opt.cli.compare import _next_step
from llm_perf_opt.cli.main import main
from llm_perf_opt.comparing import noise
from llm_perf_opt.comparing.baseline import read_baseline, render_baseline
from llm_perf_opt.comparing.budgets import check_budgets, read_budgets
from llm_perf_opt.comparing.causes import replaced_names
from llm_perf_opt.comparing.comparison import ORDER, Comparison, KernelPair
from llm_perf_opt.comparing.comparison_page import render_comparison_html, waterfall
from llm_perf_opt.comparing.evaluation import Settings, compare
from llm_perf_opt.comparing.floors import learn, learned_spreads
from llm_perf_opt.comparing.matching import match_regions, partnerless
from llm_perf_opt.comparing.side import GPU, UNDISTURBED, KernelUse, RegionSide, Side, Times
from llm_perf_opt.errors import UnreadableInput, UserError
from planted import Planted, as_run

STEP = "LLM@decode/decode_step"
WARM = recording("nsys*-decoder-8layers-warm.sqlite")


@pytest.fixture(scope="module")
def base() -> Side:
    return open_side(WARM, quiet=True)


def planted(base: Side, path: Path, change: Callable[[Planted], object]) -> Comparison:
    with Planted(path / "new.sqlite") as new:
        change(new)
    return compare(base, open_side(path / "new.sqlite", quiet=True))


def adds_up(found: Comparison) -> bool:
    """Causes of every region that has some, within a thousandth of its change."""
    regions = [region for region in found.regions if region.before_ns is not None]
    assert regions
    return all(
        abs(sum(cause.delta_ns for cause in region.causes) - region.delta_ns) <= 0.001 * abs(region.delta_ns) + 0.5
        for region in regions
    )


def test_a_step_that_became_a_graph_is_compared_by_what_it_takes_on_the_gpu(tmp_path: Path) -> None:
    """Its range ends before the replay does: 101 µs on the host, 284 µs on the GPU."""
    eager, graph = (recording(f"lines-*-{name}") for name in ("eager", "graph"))
    found = compare(open_side(eager, quiet=True), open_side(graph, quiet=True)).region("step")
    assert found.source == GPU
    assert found.verdict == "better"
    assert found.change == pytest.approx(-0.773, abs=0.01)
    assert main(["report", str(graph), "--out", str(tmp_path), "--quiet"]) == 0
    told = compare(open_side(eager, quiet=True), open_side(tmp_path / "report.json", quiet=True)).region("step")
    assert told.verdict == "unsure"
    assert "end before their GPU work" in told.reason


# -- planted changes ---------------------------------------------------------------------------------------


def test_a_kernel_that_takes_longer_is_named_with_what_it_costs(base: Side, tmp_path: Path) -> None:
    found = planted(base, tmp_path, lambda new: new.slow_down("8x64_64x16_2x1_v_bz_TNN", "decode_step", 90_000))
    step = found.region(STEP)
    assert (found.verdict, step.verdict) == ("worse", "worse")
    first = step.causes[0]
    assert first.kind == "slower kernel"
    assert "8x64_64x16_2x1_v_bz_TNN" in first.what
    assert first.delta_ns == pytest.approx(16 * 90_000)
    assert step.delta_ns == pytest.approx(16 * 90_000)
    assert found.sentences[0].startswith(f"{STEP} +")
    assert not step.exact_changes
    assert adds_up(found)


def test_more_launches_are_counted_and_sized(base: Side, tmp_path: Path) -> None:
    times: list[tuple[int, int]] = []
    found = planted(
        base, tmp_path, lambda new: times.append(new.add_launches("CatArrayBatchedCopy", "decode_step", 72))
    )
    step, (took, gap) = found.region(STEP), times[0]
    launches = next(change for change in step.exact if change.what == "launches")
    assert launches.after - launches.before == 72
    assert launches.changed
    about = [cause for cause in step.causes if "CatArrayBatchedCopy" in cause.what]
    assert about[0].what.startswith("72 more launches of CatArrayBatchedCopy")
    assert sum(cause.delta_ns for cause in about) == pytest.approx(72 * took)
    assert next(c.delta_ns for c in step.causes if c.kind == "idle") == pytest.approx(72 * gap)
    assert step.causes[0] is about[0]
    assert adds_up(found)


def test_a_synchronisation_is_found_from_one_run(base: Side, tmp_path: Path) -> None:
    found = planted(base, tmp_path, lambda new: new.add_synchronisations("decode_step", 3_000_000))
    step = found.region(STEP)
    assert [(c.what, c.before, c.after) for c in step.exact_changes] == [("synchronisations", 0, 1)]
    assert step.causes[0].kind == "idle"
    assert "synchronisations 0 → 1" in step.causes[0].what
    assert step.causes[0].delta_ns == pytest.approx(3_000_000)
    assert step.verdict == "worse"
    assert adds_up(found)


def test_a_renamed_range_is_known_by_what_it_does(base: Side, tmp_path: Path) -> None:
    found = planted(base, tmp_path, lambda new: new.rename("decode_step", "token"))
    assert found.region("LLM@decode/token").renamed_from == STEP
    assert f"{STEP} is now called LLM@decode/token." in found.sentences
    assert not found.only_new
    assert not found.only_base
    assert found.verdict == "same"
    assert found.region("LLM@decode/token/layer0/attention").renamed_from == f"{STEP}/layer0/attention"


def test_a_replaced_kernel_is_named_with_its_successor(base: Side, tmp_path: Path) -> None:
    kernel = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop"
    found = planted(base, tmp_path, lambda new: new.swap_kernel(kernel, "decode_step", "my_slow_attention_kernel"))
    pairs = [pair for pair in found.region(STEP).pairs if pair.how == "order of launches"]
    assert [use.name for pair in pairs for use in pair.after] == ["my_slow_attention_kernel"]
    assert {use.family for pair in pairs for use in pair.before} == {"attention"}
    assert adds_up(found)


def test_a_kernel_that_was_replaced_is_said_even_if_it_takes_as_long() -> None:
    sides = [
        _side(_times(2e6, spread=0.0), _kernels=[KernelUse(name, 8, 1e6)], busy_ns=1e6) for name in ("flash", "bmm")
    ]
    for side, name in zip(sides, ("flash", "bmm"), strict=True):
        side.regions["step"]._order = lambda name=name: [("gemm", (), ()), (name, (), ())]
    assert "step is the same (2 ms → 2 ms). Replaced: flash → bmm." in compare(*sides).sentences


def test_ranges_that_are_new_or_gone_are_named(base: Side, tmp_path: Path) -> None:
    def drop(new: Planted) -> None:
        for row, _ in [(row, 0) for (row,) in new.db.execute("SELECT rowid FROM NVTX_EVENTS WHERE textId = 31")]:
            new.db.execute("DELETE FROM NVTX_EVENTS WHERE rowid = ?", (row,))

    found = planted(base, tmp_path, drop)
    assert found.only_base
    assert all(key.endswith("/attention") or "/attention/" in key for key in found.only_base)
    assert any(sentence.startswith("Gone: LLM@") for sentence in found.sentences)


def test_waiting_that_changed_is_told_by_what_the_host_did(base: Side) -> None:
    """Once warm, attention is planned no more; nothing else has changed in a step."""
    found = compare(open_side(recording("nsys*-decoder-8layers.sqlite"), quiet=True), base)
    first = found.region(STEP).causes[0]
    assert first.kind == "idle"
    assert first.what == "the GPU waits less while the host plans attention"
    assert first.delta_ns == pytest.approx(found.region(STEP).delta_ns, rel=0.05)
    assert adds_up(found)


def test_one_late_step_is_told_of_the_whole_around_it(base: Side, tmp_path: Path) -> None:
    """The typical step is the same, so nothing got worse; that the whole took longer is said all the same."""

    def once(new: Planted) -> None:
        start, end = new.ranges("decode_step")[5]
        new.insert_time([(start + end) // 2], 30_000_000)

    found = planted(base, tmp_path, once)
    assert found.verdict != "worse"
    told = next(sentence for sentence in found.sentences if sentence.startswith("LLM@decode +"))
    assert "+30 ms" in told
    assert "Not certain" in told


def test_the_same_recording_is_the_same(base: Side) -> None:
    found = compare(base, base)
    assert found.verdict == "same"
    assert all(region.change == 0 and not region.exact_changes for region in found.regions)


def test_a_lost_cuda_graph_is_said_to_be_gone() -> None:
    """The same program, its graph recorded as one block and node by node: as if the graph were gone."""
    whole, nodes = (open_side(recording(name), quiet=True) for name in ("graph_whole.sqlite", "graph_node.sqlite"))
    pairs = [pair for region in compare(whole, nodes).regions for pair in region.pairs if pair.how == "graph"]
    assert pairs
    causes = [cause for region in compare(whole, nodes).regions for cause in region.causes if cause.kind == "graph"]
    assert all("the CUDA graph is gone" in cause.what for cause in causes)


# -- sides of all kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "kineto-torch2.11",
        "nsys-2025.3.1-h200-train.sqlite",
        "ncu-2025.3.1-h200-decoder-2layers",
        "ncu-2025.3.1-h200-basic-raw.csv",
    ],
)
def test_every_kind_of_recording_is_a_side(name: str) -> None:
    side = open_side(recording(name), quiet=True)
    assert side.regions
    found = compare(side, side)
    assert found.verdict in ("same", "unsure")
    assert all(not region.delta_ns for region in found.regions)


def test_a_report_and_its_recording_agree(base: Side, tmp_path: Path) -> None:
    assert main(["report", str(WARM), "--out", str(tmp_path / "r"), "--format", "json", "--quiet"]) == 0
    found = compare(base, open_side(tmp_path / "r" / "report.json", quiet=True))
    assert found.verdict == "same"
    step = found.region(STEP)
    assert step.change == pytest.approx(0, abs=1e-6)
    assert not [change for change in step.exact_changes if change.what in ("launches", "kernels")]


def test_a_baseline_is_small_and_says_the_same(base: Side, tmp_path: Path) -> None:
    text = render_baseline(base)
    assert len(text) < 100_000
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    kept = read_baseline(tmp_path / "b.json")
    found = compare(kept, base)
    assert found.verdict == "same"
    step = found.region(STEP)
    assert step.change == pytest.approx(0, abs=1e-6)
    assert not step.exact_changes
    assert not step.causes  # small kernels that it has only as a sum are no news
    assert adds_up(compare(base, kept))


@given(st.data())
def test_a_damaged_baseline_is_refused_or_read(data: st.DataObject) -> None:
    text = render_baseline(_side(_times(40e6)))
    at = data.draw(st.integers(0, len(text) - 1))
    broken = text[:at] + data.draw(st.text(max_size=6)) + text[at + data.draw(st.integers(0, 30)) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.json"
        path.write_bytes(broken.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(UnreadableInput):
            compare(read_baseline(path), _side(_times(40e6)))


# -- noise -------------------------------------------------------------------------------------------------


def _times(
    typical: float, runs: int = 1, spread: float = 0.01, seed: int = 0, count: int = 60, between: float = 0.0
) -> Times:
    random = np.random.default_rng(seed)
    return Times.of(
        [typical * np.exp(random.normal(0, between)) * np.exp(random.normal(0, spread, count)) for _ in range(runs)]
    )


def _side(times: Times, label: str = "side", key: str = "step", **fields: object) -> Side:
    region = RegionSide(key, (key,), None, {UNDISTURBED: times}, times.instances, float(times.typical * 60))
    for name, value in fields.items():
        setattr(region, name, value)
    return Side(label, {key: region}, gpus=("NVIDIA H200",))


def _real_instances() -> list[np.ndarray]:
    """Steady instances of real recordings, each around its own median."""
    found = []
    for name in (
        "nsys*-decoder-36layers.sqlite",
        "nsys*-decoder-8layers-warm.sqlite",
        "h200-ocr.sqlite",
        "nsys-2025.3.1-h200-train.sqlite",
    ):
        for region in open_side(recording(name), quiet=True).regions.values():
            for source, times in region.times.items():
                if source != GPU and times.instances >= 8 and times.typical > 20_000:
                    found.append(np.concatenate(times.runs) / times.typical)
    return found


@pytest.fixture(scope="module")
def real() -> list[np.ndarray]:
    return _real_instances()


def _drawn(real: list[np.ndarray], random: np.random.Generator, scale: float, runs: int, between: float) -> Times:
    shape = real[random.integers(len(real))]
    return Times.of([scale * np.exp(random.normal(0, between)) * random.choice(shape, size=60) for _ in range(runs)])


@pytest.mark.parametrize("runs", [1, 5])
def test_runs_of_one_program_raise_no_alarm(real: list[np.ndarray], runs: int) -> None:
    """A hundred pairs, with instances as real recordings have them and runs that differ by a percent."""
    assert len(real) > 20
    alarms = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        shape = [real[random.integers(len(real))]]
        sides = [_side(_drawn(shape, random, 40e6, runs, 0.01)) for _ in range(2)]
        alarms += compare(*sides).verdict in ("better", "worse")
    assert alarms <= 1


def test_two_runs_that_are_far_apart_prove_nothing() -> None:
    """A cold call in each: the first of all reads its files from the disk."""
    cold, warm = [np.array([900e6]), np.array([130e6])], [np.array([60e6]), np.array([55e6])]
    room = noise.run_room(noise.run_spread(Times.of(cold)))
    assert room > 1
    assert not noise.difference(Times.of(cold), Times.of(warm), room=room).is_separated
    alike = noise.run_spread(Times.of([np.array([60e6]), np.array([60.1e6])]))
    assert noise.run_room(alike) == pytest.approx(noise.run_room(None))


def test_three_percent_are_found_with_five_runs(real: list[np.ndarray]) -> None:
    """Of a step whose instances are as alike as those of a step of 40 ms are: half of them within 4 %."""
    real = [shape for shape in real if np.ptp(np.quantile(shape, [0.25, 0.75])) < 0.04]
    assert len(real) > 10
    found = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        shape = [real[random.integers(len(real))]]
        before, after = (_side(_drawn(shape, random, scale, 5, 0.004)) for scale in (40e6, 41.2e6))
        found += compare(before, after).verdict == "worse"
    assert found >= 36


def test_one_run_is_careful_and_says_what_would_settle_it() -> None:
    found = compare(_side(_times(40e6)), _side(_times(41.4e6, seed=1)))
    assert found.verdict == "unsure"
    assert "measure --runs 5" in found.reasons[0]
    assert re.search(r"only a change of [\d.]+ % or more would show", found.reasons[0])
    assert _next_step(found, Namespace(new="new")) == "time both several times: llm-perf measure --runs 5 -- CMD"
    more = evolve(found, reasons=[found.reasons[0].replace("--runs 5", "--runs 22")])
    assert _next_step(more, Namespace(new="new")).endswith("llm-perf measure --runs 22 -- CMD")
    assert compare(_side(_times(40e6)), _side(_times(44e6, seed=1))).verdict == "worse"
    assert compare(_side(_times(40e6)), _side(_times(36e6, seed=1))).verdict == "better"
    assert compare(_side(_times(40e6)), _side(_times(40.1e6, seed=1))).verdict == "same"


def test_a_change_has_to_be_there_in_clock_cycles() -> None:
    before, after = _side(_times(40e6, 5, seed=1)), _side(_times(44e6, 5, seed=2))
    before.clock_mhz, after.clock_mhz = 1980.0, 1800.0
    found = compare(before, after)
    assert found.verdict == "unsure"
    assert "the clock differed" in found.reasons[0]
    before.clock_mhz = after.clock_mhz
    assert compare(before, after).verdict == "worse"


def test_who_waited_for_a_cpu_is_not_called_slower() -> None:
    """Other programs had the CPUs while one side was measured: unless the GPU itself takes longer."""
    before, after = _side(_times(40e6, 5, seed=1)), _side(_times(60e6, 5, seed=2))
    before.cpu_wait, after.cpu_wait = 0.02, 0.5
    found = compare(before, after)
    assert (found.verdict, compare(after, before).verdict) == ("unsure", "unsure")
    assert "waited longer for a CPU" in found.reasons[0]
    assert any("waited for a CPU for 50 %" in note and "2 %" in note for note in found.notes)
    before.cpu_wait, after.cpu_wait = 0.7, 0.75  # a fifth longer for that alone
    assert compare(before, after).verdict == "unsure"
    before.cpu_wait, after.cpu_wait = 0.5, 0.02  # and slower all the same
    assert compare(before, after).verdict == "worse"
    before.cpu_wait, after.cpu_wait = 0.02, 0.5
    before.regions["step"].busy_ns, after.regions["step"].busy_ns = 30e6, 50e6
    assert compare(before, after).verdict == "worse"


def test_one_run_on_a_crowded_machine_says_little() -> None:
    before, after = _side(_times(40e6)), _side(_times(33e6, seed=1))
    assert compare(before, after).verdict == "better"
    before.cpu_wait = after.cpu_wait = 0.5
    found = compare(before, after)
    assert found.verdict == "unsure"
    assert "waited long for a CPU" in found.reasons[0]
    before, after = _side(_times(40e6, 5)), _side(_times(33e6, 5, seed=1))
    before.cpu_wait = after.cpu_wait = 0.5
    assert compare(before, after).verdict == "better"


def test_recordings_of_two_profilers_tell_nothing_of_the_time_that_the_host_takes() -> None:
    nsys, kineto = (open_side(recording(name), quiet=True) for name in ("nsys*-decoder-8layers.sqlite", "kineto*.json"))
    for pair in ((nsys, kineto), (kineto, nsys)):
        found = compare(*pair)
        assert found.verdict == "unsure"
        assert "Nsight Systems" in found.region(next(r.key for r in found.regions if r.decides)).reason
    before, after = _side(_times(40e6, 5, seed=1)), _side(_times(60e6, 5, seed=2))
    before.recorders, after.recorders = ("kineto",), ("nsys-sqlite",)
    assert compare(before, after).verdict == "worse"  # undisturbed: neither was there


def test_what_both_have_says_nothing_where_it_is_the_smaller_part_of_each() -> None:
    """A prefill against a decode step: the broadcast before each of them is not what was asked."""
    sides = []
    for name, share, seed in (("prefill", 0.1, 1), ("decode", 0.2, 2)):
        side = _side(_times(40e6 * share, 5, seed=seed), key="broadcast")
        side.regions |= _side(_times(400e6, 5, seed=seed), key=name, instances=60 * seed).regions
        sides.append(side)
    found = compare(*sides)
    assert (found.verdict, found.only_base, found.only_new) == ("not_comparable", ["prefill"], ["decode"])
    assert found.reasons == [
        "most of the time of each side is in regions that the other does not have: prefill before, decode now"
    ]
    # On one side alone it is news, and no obstacle; nor is a range that is now around what both have.
    del sides[0].regions["prefill"]
    assert compare(*sides).verdict == "worse"
    before, after = _side(_times(40e6, 5, seed=1)), _side(_times(50e6, 5, seed=2), key="outer/step")
    step = after.regions["outer/step"]
    step.path, step.parent = ("outer", "step"), "outer"
    after.regions |= _side(_times(400e6, 5, seed=2), key="outer", instances=7).regions
    assert partnerless(match_regions(before, after), 1)[0] == 0
    assert compare(before, after).verdict == "worse"


@pytest.mark.parametrize("idle", [2e6, 20e6])
def test_a_lower_clock_is_the_first_cause_with_all_that_it_costs(idle: float) -> None:
    sides, work = [], 38e6
    for seed, clock in enumerate((1980.0, 1500.0)):
        time = work * 1980 / clock
        uses = [KernelUse(f"gemm{n}", 12, time / 4, (64, 1, 1), (128, 1, 1)) for n in range(4)]
        sides.append(_side(_times(idle + time, 5, seed=seed), _kernels=uses, busy_ns=time))
        sides[-1].clock_mhz = clock
    first = compare(*sides).region("step").causes[0]
    assert (first.kind, first.what) == ("clock", "the SM clock is lower: 1,980 → 1,500 MHz")
    assert first.delta_ns == pytest.approx(work * (1980 / 1500 - 1), rel=0.01)
    for side in sides:  # kernels that wait for memory take as long at any clock
        side.regions["step"]._kernels = [KernelUse("copy_", 12, work, (64, 1, 1), (128, 1, 1))]
        side.regions["step"].busy_ns = work
    assert "clock" not in [cause.kind for cause in compare(*sides).region("step").causes]


@pytest.mark.slow
def test_a_run_at_a_lower_clock_is_found_sized_and_explained(tmp_path: Path) -> None:
    sides = []
    for mhz in (1980, 1500):
        with Planted(tmp_path / f"{mhz}.sqlite") as changed:
            true = changed.lower_clock("decode_step", 1980 / mhz)
            run = as_run(tmp_path / str(mhz), changed, mhz, "decode", "decode_step")
        sides.append(open_side(run, quiet=True))
    found = compare(*sides)
    (first, *_) = found.region(STEP).causes
    assert (first.kind, first.what) == ("clock", "the SM clock is lower: 1,980 → 1,500 MHz")
    assert first.delta_ns == pytest.approx(true, rel=0.01)
    assert found.region(STEP).delta_ns == pytest.approx(true, rel=0.01)
    assert found.verdict == "unsure"
    assert "the clock differed: in clock cycles nothing changed" in found.reasons[0]


def test_learned_noise_makes_one_run_as_careful_as_the_machine_needs(tmp_path: Path) -> None:
    store = tmp_path / "floors.json"
    program = _side(_times(40e6))
    assert learned_spreads(program, store) == {}
    for seed in range(4):  # runs that differ by 8 %
        pair = _side(_times(40e6, seed=seed)), _side(_times(40e6 * (1.08 if seed % 2 else 0.93), seed=seed + 9))
        assert learn(compare(*pair), program, store) == 1
    spreads = learned_spreads(program, store)
    assert 0.04 < spreads["step"] < 0.15
    changed = _side(_times(44e6, seed=5))
    assert compare(program, changed).verdict == "worse"
    assert compare(program, changed, Settings(spreads=spreads)).verdict == "unsure"
    store.write_text("[]")
    assert learned_spreads(program, store) == {}


@pytest.mark.parametrize(("small", "verdict"), [(1.0, "not_comparable"), (0.5, "not_comparable"), (2.0, "worse")])
def test_a_small_region_does_not_speak_for_a_large_one_with_another_input(small: float, verdict: str) -> None:
    """Unless it got worse."""
    sides = [_side(_times(40e6), key=f"step[bs={size}]") for size in (1, 64)]
    for side, factor in zip(sides, (1.0, small), strict=True):
        side.regions |= _side(_times(2e6 * factor, runs=5), key="broadcast").regions
    assert compare(*sides).verdict == verdict


def test_other_gpus_and_inputs_are_not_compared() -> None:
    before, after = _side(_times(40e6)), _side(_times(60e6))
    after.gpus = ("NVIDIA A100",)
    found = compare(before, after)
    assert found.verdict == "not_comparable"
    assert "NVIDIA H200 before, NVIDIA A100 now" in found.reasons[0]
    after.gpus = before.gpus
    before.command, after.command = ("python", "x.py", "--batch-size", "4"), ("python", "x.py", "--batch-size", "5")
    assert compare(before, after).reasons == ["other input: --batch-size 4 before, --batch-size 5 now"]
    before.command, after.command = ("python", "x.py", "--num-workers=4"), ("python", "x.py", "--num-workers=5")
    assert compare(before, after).verdict == "worse"
    assert compare(before, after).notes == ["The command differs: --num-workers=4 before, --num-workers=5 now."]
    before.command = after.command = ()
    named = _side(_times(40e6), key="decode bs=4"), _side(_times(60e6), key="decode bs=5")
    assert "decode bs=4 became decode bs=5" in compare(*named).reasons[0]


def test_runs_of_a_built_in_model_are_compared_by_its_settings() -> None:
    """The runner starts it with a private file and a folder that are new in every run: those say nothing."""
    sides = [_side(_times(40e6)), _side(_times(60e6))]
    runner = ["python", "-m", "llm_perf_opt.runners.llm_profile_runner"]
    settings = {"infer": {"max_new_tokens": 16}, "model": {"dtype": "bfloat16"}, "run": {"mode": "deep"}}
    others = [settings, settings | {"run": {"mode": "light"}}]
    for place, (side, asked) in enumerate(zip(sides, others, strict=True)):
        add_facts(side, {"workload": [*runner, "--resolved", f"/tmp/{place}/config.yaml"], "settings": asked})
    assert (compare(*sides).verdict, compare(*sides).notes) == ("worse", [])
    for key, value in (("infer", {"max_new_tokens": 64}), ("model", {"dtype": "float16"})):
        add_facts(sides[1], {"workload": [*runner, "--resolved", "x"], "settings": settings | {key: value}})
        found = compare(*sides)
        if key == "infer":
            assert found.reasons == ["other input: infer.max_new_tokens=16 before, infer.max_new_tokens=64 now"]
        else:
            assert found.notes == ["The command differs: model.dtype=bfloat16 before, model.dtype=float16 now."]


@given(st.lists(st.floats(1e3, 1e9), min_size=3, max_size=8), st.floats(0.5, 2.0), st.floats(1.0, 1e4))
def test_a_difference_does_not_depend_on_the_unit_or_the_order(values: list[float], factor: float, unit: float) -> None:
    runs = [np.array([value]) for value in values]
    other = [run * factor for run in runs]
    found = noise.difference(Times.of(runs), Times.of(other))
    assert found.low <= found.change <= found.high
    assert found.change == pytest.approx(np.log(factor), abs=1e-9)
    scaled = noise.difference(Times.of([run * unit for run in runs]), Times.of([run * unit for run in other][::-1]))
    assert scaled.change == pytest.approx(found.change, abs=1e-9)
    assert scaled.high == pytest.approx(found.high, abs=1e-9)
    back = noise.difference(Times.of(other), Times.of(runs))
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low), abs=1e-9)


def test_students_quantiles_are_those_of_the_tables() -> None:
    for probability, freedom, value in (
        (0.995, 8, 3.3554),
        (0.975, 4, 2.7764),
        (0.995, 2, 9.9248),
        (0.975, 30, 2.0423),
    ):
        assert noise.student(probability, freedom) == pytest.approx(value, abs=1e-4)


# -- causes ------------------------------------------------------------------------------------------------

_use = st.builds(
    KernelUse,
    st.sampled_from(["gemm_a", "gemm_b", "copy_kernel", "softmax_kernel"]),
    st.floats(0.1, 100),
    st.floats(1, 1e7),
    st.sampled_from([(), (8, 1, 1), (16, 1, 1)]),
    st.sampled_from([(), (128, 1, 1)]),
    st.none() | st.floats(1, 1e9),
    st.none(),
    st.none() | st.floats(1, 1e9),
    st.sampled_from(["kernel", "copy", "graph"]),
)


@given(st.lists(_use, max_size=6), st.lists(_use, max_size=6), st.floats(1e5, 1e8), st.floats(1e5, 1e8), st.booleans())
def test_causes_always_add_up(
    old: list[KernelUse], new: list[KernelUse], before: float, after: float, slower: bool
) -> None:
    sides = []
    for kernels, time in ((old, before), (new, after)):
        unique = list({use.signature: use for use in kernels}.values())
        busy = 0.9 * sum(use.time_ns for use in unique)
        sides.append(_side(_times(time, spread=0.0), _kernels=unique, busy_ns=busy))
    if slower:
        sides[0].clock_mhz, sides[1].clock_mhz = 1980.0, 1500.0
    found = compare(*sides)
    region = found.region("step")
    assert sum(cause.delta_ns for cause in region.causes) == pytest.approx(region.delta_ns, abs=1.0, rel=1e-6)
    for kernels, place in ((old, 0), (new, 1)):
        held = sum(use.time_ns for pair in region.pairs for use in (pair.before, pair.after)[place])
        assert held == pytest.approx(
            sum({use.signature: use for use in kernels}[s].time_ns for s in {u.signature for u in kernels})
        )
    bars = waterfall(region)
    assert all(0 <= bar["x"] <= 100.01 for bar in bars)


@pytest.mark.parametrize(("after", "cut"), [(41e6, True), (400e6, False)])
def test_a_picture_whose_axis_is_cut_says_so(after: float, cut: bool) -> None:
    page = render_comparison_html(compare(_side(_times(40e6, spread=0.0)), _side(_times(after, spread=0.0))))
    assert ("The axis does not begin at 0" in page) == cut


def test_a_kernel_on_a_larger_grid_has_more_to_do_where_grids_are_known() -> None:
    for grid, kind in (((10, 1, 1), "more work"), ((), "slower kernel")):
        old, now = (KernelUse("gelu", 10, time, g, (128, 1, 1)) for time, g in ((1e6, (8, 1, 1)), (1.25e6, grid)))
        sides = [_side(_times(2e6, spread=0.0), _kernels=[old], busy_ns=1e6)]
        sides.append(_side(_times(2.25e6, spread=0.0), _kernels=[now], busy_ns=1.25e6))
        assert [cause.kind for cause in compare(*sides).region("step").causes] == [kind]


def test_the_line_that_launches_more_is_named() -> None:
    uses = [KernelUse("copy_", calls, calls * 1e3, (8, 1, 1), (128, 1, 1)) for calls in (8, 80)]
    sides = [_side(_times(2e6, spread=0.0), _kernels=[use], busy_ns=use.time_ns) for use in uses]
    for side, calls in zip(sides, (0, 72), strict=True):
        lines = {uses[0].signature: {"modeling_x.py:40": 8.0, "modeling_x.py:212": float(calls)}}
        side.regions["step"]._lines = lambda lines=lines: lines
    causes = compare(*sides).region("step").causes
    assert ("launches", "72 more launches of copy_ from modeling_x.py:212") in [(c.kind, c.what) for c in causes]


def test_counters_say_whether_a_kernel_has_more_to_do() -> None:
    old = KernelUse("gemm", 10, 1e6, (8, 1, 1), (128, 1, 1), flops=1e9)
    more, slower = (KernelUse("gemm", 10, 1.5e6, (8, 1, 1), (128, 1, 1), flops=flops) for flops in (1.5e9, 1e9))
    for now, kind in ((more, "more work"), (slower, "slower kernel")):
        sides = [_side(_times(2e6, spread=0.0), _kernels=[old], busy_ns=1e6)]
        sides.append(_side(_times(2.5e6, spread=0.0), _kernels=[now], busy_ns=1.5e6))
        causes = compare(*sides).region("step").causes
        assert [(cause.kind, round(cause.delta_ns)) for cause in causes] == [(kind, 500_000)]


# -- the command line --------------------------------------------------------------------------------------


def run(*words: object) -> int:
    return main(["compare", *map(str, words)])


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted") / "slower.sqlite"
    with Planted(path) as new:
        new.slow_down("nvjet", "decode_step", 50_000)
    return path


@pytest.mark.process
def test_it_fails_whether_or_not_anybody_reads_what_it_prints(slower: Path, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    words = ["compare", str(WARM), str(slower), "--out", str(tmp_path / "out"), "--fail-on", "worse"]
    entry = "from llm_perf_opt.cli.entry import entry; entry()"
    ended = subprocess.run([sys.executable, "-c", entry, *words], stdout=writes, stderr=subprocess.PIPE, text=True)
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (7, "")


def test_files_and_exit_codes(slower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(WARM, slower, "--out", out) == 0
    printed = capsys.readouterr().out
    assert f"{STEP} +18 %" in printed.splitlines()[0]
    assert printed.splitlines()[-3].startswith("Result: slower.sqlite is slower than ")
    assert run(WARM, slower, "--out", out, "--fail-on", "worse", "--quiet") == 7
    assert capsys.readouterr().out == "worse\n"
    assert run(slower, WARM, "--out", out, "--fail-on", "unsure") == 0
    assert run(WARM, slower, "--out", out, "--json") == 0
    capsys.readouterr()
    assert run(WARM, WARM, "--out", out, "--fail-on", "unsure", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "same"
    found = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    assert found["schema_version"]
    assert {"key", "verdict", "before_ns", "after_ns", "change", "interval", "causes", "exact"} <= set(
        found["regions"][0]
    )
    assert "<script" not in (out / "compare.html").read_text(encoding="utf-8")


def test_junit_fails_what_got_worse(slower: Path, tmp_path: Path) -> None:
    run(WARM, slower, "--out", tmp_path / "out", "--quiet")
    suite = ElementTree.parse(tmp_path / "out" / "compare.xml").getroot()[0]
    assert suite.attrib["failures"] == "1"
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert failed.attrib["name"] == STEP


def test_unsure_has_a_code_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "little.sqlite"
    with Planted(path) as new:
        new.slow_down("nvjet", "decode_step", 9_000)  # 3 %: more than the least change, less than runs differ
    words = (WARM, path, "--out", tmp_path / "out", "--quiet")
    assert run(*words, "--fail-on", "worse") == 0
    assert run(*words, "--fail-on", "unsure") == 8
    assert run(*words, "--fail-on", "unsure", "--min-change", "4%") == 0
    assert run(*words, "--fail-on", "unsure", "--exact") == 0


def test_a_baseline_is_saved_compared_and_accepted(
    slower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "baseline.json", tmp_path / "out"
    assert run(WARM, "--save-baseline", file) == 0
    assert run(file, slower, "--out", out, "--fail-on", "worse") == 7
    assert run(file, slower, "--out", out, "--accept", " ") == 2
    assert run(WARM, slower, "--out", out, "--accept", "meant") == 2
    assert "not a baseline file" in capsys.readouterr().err
    assert run(file, slower, "--out", out, "--fail-on", "worse", "--accept", "longer prompts") == 0
    assert run(file, slower, "--out", out, "--fail-on", "worse") == 0
    (accepted,) = read_baseline(file).accepted
    assert accepted["reason"] == "longer prompts"
    assert STEP in accepted["change"]
    other = tmp_path / "mine.json"
    other.write_text("{}")
    assert run(WARM, "--save-baseline", other) == 2
    assert other.read_text() == "{}"


def test_files_of_others_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "compare.html").write_text("<!doctype html><p>mine")
    assert run(WARM, WARM, "--out", out) == 2
    assert (out / "compare.html").read_text() == "<!doctype html><p>mine"
    assert not (out / "compare.json").exists()
    assert run(WARM, WARM, "--out", out, "--force", "--quiet") == 0
    assert f"Replacing {out / 'compare.html'}" in capsys.readouterr().err
    assert run(WARM, WARM, "--out", out, "--quiet") == 0


def test_exact_decides_by_counts_alone(tmp_path: Path) -> None:
    more = tmp_path / "more.sqlite"
    with Planted(more) as new:
        new.add_launches("CatArrayBatchedCopy", "decode_step", 3)
    words = (WARM, more, "--out", tmp_path / "out", "--quiet", "--fail-on", "worse")
    assert run(*words) == 0
    assert run(*words, "--exact") == 7


def test_launches_that_ncu_chose_are_not_held_against_all_of_a_timeline(base: Side) -> None:
    counters = open_side(recording("ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep"), quiet=True)
    for pair in ((counters, base), (base, counters)):
        found = compare(*pair, Settings(exact=True))
        assert found.verdict == "not_comparable"
        assert not any(region.exact for region in found.regions)
    assert compare(counters, counters, Settings(exact=True)).verdict == "same"


def test_exact_says_nothing_of_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm, cold = (
        str(recording(name)) for name in ("nsys*-decoder-8layers-warm.sqlite", "nsys*-decoder-8layers.sqlite")
    )
    assert main(["compare", warm, cold, "--exact", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "LLM@decode/decode_step: all counts are the same." in printed
    assert "Result: All counts of" in printed
    for file in ("compare.md", "compare.html"):
        page = (tmp_path / file).read_text(encoding="utf-8")
        assert "No count changed" in page
        assert "fast" not in page
    (step, *_) = [r for r in json.loads((tmp_path / "compare.json").read_text())["regions"] if r["decides"]]
    assert (step["basis"], step["interval"]) == ("counts", None)


def test_a_pattern_that_leaves_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", str(WARM), str(WARM), "--include", "prefil*x", "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "'prefil*x' leaves no region" in printed
    assert "Next: llm-perf ranges" in printed


def test_what_a_baseline_leaves_out_is_no_news(base: Side, tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text(render_baseline(base))
    stored = read_baseline(tmp_path / "base.json")
    assert len(stored.regions) < len(base.regions)
    for pair in ((stored, base), (base, stored)):
        found = compare(*pair)
        assert (found.only_new, found.only_base) == ([], [])
    (tmp_path / "formatted.json").write_text(json.dumps(json.loads(render_baseline(base)), indent=4))
    assert len(open_side(tmp_path / "formatted.json").regions) == len(stored.regions)
    told = _side(_times(40e6))
    told.regions["step"].times[UNDISTURBED] = Times.of([np.full(9, 40e6)], by_host=True)
    told.cpu_wait, told.recorders = 0.25, ("kineto",)
    (tmp_path / "base.json").write_text(render_baseline(told))
    again = read_baseline(tmp_path / "base.json")
    assert again.regions["step"].times[UNDISTURBED].by_host
    assert (again.cpu_wait, again.recorders) == (0.25, ("kineto",))


def test_exact_says_nothing_where_nothing_was_counted() -> None:
    found = compare(_side(_times(40e6)), _side(_times(60e6)), Settings(exact=True))
    assert found.verdict == "not_comparable"
    assert "nothing was counted" in found.reasons[0]
    sides = [_side(_times(time), counts={"recompilations": 0.0}) for time in (40e6, 60e6)]
    assert compare(*sides, Settings(exact=True)).verdict == "not_comparable"
    sides = [_side(_times(time), counts={"recompilations": 0.0, "kernels": 12.0}) for time in (40e6, 60e6)]
    assert compare(*sides, Settings(exact=True)).verdict == "same"


def test_budgets_are_kept_or_not(base: Side, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text('["LLM@decode/decode_step"]\ntime = "12ms"\nlaunches = 900\n', encoding="utf-8")
    found = check_budgets(read_budgets(file), base, compare(base, base).regions)
    assert [(one["what"], one["state"]) for one in found] == [("time", "over"), ("launches", "kept")]
    words = (WARM, WARM, "--budgets", file, "--out", tmp_path / "out")
    assert run(*words, "--fail-on", "worse") == 7
    assert "budget over: time of LLM@decode/decode_step: 15.7 ms, budget 12 ms" in capsys.readouterr().out
    file.write_text('[decode_step]\ntime = "<= 20ms"\n"peak memory" = "20GB"\n', encoding="utf-8")
    assert run(*words, "--fail-on", "worse") == 0
    assert run(*words, "--fail-on", "unsure") == 8  # the memory was not recorded


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 3", "is not a table"),
        ("[x]\nspeed = 3", "there is no budget of 'speed'"),
        ("[x]\ntime = 12", "is not an amount"),
        ("[nothing]\nlaunches = 3", "matches no region"),
        ("[", "contains no budgets"),
    ],
)
def test_budgets_that_make_no_sense_are_explained(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(text, encoding="utf-8")
    assert run(WARM, WARM, "--budgets", file, "--out", tmp_path / "out") == 2
    assert words in capsys.readouterr().err


def test_bad_words_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(WARM, WARM, "--min-change", "much") == 2
    assert "not a percentage" in capsys.readouterr().err
    assert run(WARM) == 2
    assert run(WARM, tmp_path / "nothing.sqlite") == 2
    assert run(WARM, WARM, "--include", "ncu:decode/") == 2


def test_names_are_text_in_every_output(tmp_path: Path) -> None:
    evil = "</td><script>alert(1)</script>|`*x*`\x1b[31m"
    side = _side(_times(40e6), key="step")
    region = side.regions["step"]
    other = _side(_times(60e6, seed=1), key="step")
    for one, name in ((region, "old"), (other.regions["step"], evil)):
        one._kernels, one.busy_ns = [KernelUse(name, 1, 1e6)], 1e6
    other.label = evil
    from llm_perf_opt.api.comparing_sides import write_comparison

    files = write_comparison(compare(side, other), tmp_path / "out")
    texts = {file.suffix: file.read_text(encoding="utf-8") for file in files}
    assert "<script>" not in texts[".html"]
    assert "`</td><script>" in texts[".md"]  # in a code span, where it is text
    assert texts[".md"].count("<script>") == 1
    assert "\x1b" not in "".join(texts.values())
    ElementTree.fromstring(texts[".xml"].encode())


def test_a_budget_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        read_budgets(tmp_path / "none.toml")


def test_kernels_that_differ_only_in_what_short_names_leave_out_are_variants() -> None:
    one, other = (KernelUse(f"void f<{n}>(int)", 1.0, 10.0, (n,)) for n in (1, 2))
    assert replaced_names(KernelPair((one,), (other,), ORDER)) == "another variant of f"
    gone = KernelUse("gemm", 1.0, 10.0)
    assert replaced_names(KernelPair((gone,), (other,), ORDER)) == "gemm → f"


def test_a_wait_before_the_first_kernel_counts_where_the_other_side_runs_ahead(tmp_path: Path) -> None:
    """39 ms a step, nearly all of it compilation; afterwards the host runs ahead, and a step takes what the GPU takes."""
    with tarfile.open(Path(__file__).parent / "recordings" / "fix-rules-h200.tar") as tar:
        for name in ("compile_again.before.json.gz", "compile_again.after.json.gz"):
            content = tar.extractfile(name)
            assert content is not None
            (tmp_path / name).write_bytes(content.read())
    sides = [open_side(tmp_path / f"compile_again.{which}.json.gz", quiet=True) for which in ("before", "after")]
    step = compare(*sides).region("step")
    assert step.before_ns == pytest.approx(39e6, rel=0.02)
    assert step.after_ns == pytest.approx(386e3, rel=0.02)
