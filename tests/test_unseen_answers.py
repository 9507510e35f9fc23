"""Recordings that nobody tuned for: kernels as ncu printed them for other people, parts of public recordings, whole ones
from packages, programs on paper, and programs of PyTorch whose GPU is on paper."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from conftest import SHARED

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import unseen_answers
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.report.closing import result_of
from simulated_programs import simulate

UNSEEN = list(unseen_answers.unseen())


def ask(one: unseen_answers.Unseen, folder: Path) -> str:
    paths = unseen_answers.recordings(one, SHARED, SHARED / "packages", folder)
    if paths is None:
        pytest.skip("the recordings beside the repository are not here")
    row = unseen_answers.ask(one, paths)
    print(row["said"])
    return str(row["outcome"])


@pytest.mark.parametrize("one", [u for u in UNSEEN if "kernel" in u.source], ids=lambda one: one.case.name)
def test_what_ncu_printed_is_never_misread(one: unseen_answers.Unseen, tmp_path: Path) -> None:
    assert ask(one, tmp_path) in ("right", "unsure")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "one", [u for u in UNSEEN if not {"kernel", "recorded"} & u.source.keys()], ids=lambda one: one.case.name
)
def test_parts_of_recordings_whole_ones_and_simulated_programs_are_never_misread(
    one: unseen_answers.Unseen, tmp_path: Path
) -> None:
    assert ask(one, tmp_path) in ("right", "unsure")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.process
@pytest.mark.parametrize("one", [u for u in UNSEEN if "recorded" in u.source], ids=lambda one: one.case.name)
def test_programs_whose_host_side_pytorch_recorded_are_never_misread(
    one: unseen_answers.Unseen, tmp_path: Path
) -> None:
    assert ask(one, tmp_path) in ("right", "unsure")


def test_a_kernel_at_half_of_the_bandwidth_is_not_bound_by_it(tmp_path: Path) -> None:
    """As ncu's own rule has it: below 60 % of every unit it waits for latency."""
    entry = {"kernel": "vector_add", "cc": "8.0", "duration": "10.2 us", "cycles": [11_016, 8_213]}
    verdicts = []
    for dram in (53.13, 63.13):
        path = unseen_answers.printed({**entry, "sol": [dram, dram, 19.87, 57.62, 11.68]}, tmp_path / "printed.csv")
        verdicts.append(make_report([str(path)], ReportOptions(), quiet=True).answer.verdict)
    assert verdicts == ["latency", "dram"]


@pytest.mark.process
def test_the_result_is_what_to_do_first(tmp_path: Path) -> None:
    """A fix that wins less than a measurement would tell is not the last word of the terminal either."""
    report = make_report([str(simulate("accumulated", "trace", tmp_path)[0])], ReportOptions(), quiet=True)
    assert report.answer.do_first.startswith("Measure what limits its kernels")
    assert 0 < report.answer.fixes[0].gain_share < 0.05
    assert result_of(report) == f"ProfilerStep is GPU-bound. {report.answer.do_first}"


@pytest.mark.process
def test_stages_that_run_into_each_other_give_way_to_what_holds_them(tmp_path: Path) -> None:
    """The GPU does the forward pass while the host launches the optimizer: both together take longer than the step."""
    report = make_report([str(simulate("many_parameters", "trace", tmp_path)[0])], ReportOptions(), quiet=True)
    assert report.stages == ["train_step"]


def test_every_case_says_what_came_out_at_the_first_look() -> None:
    """That is what the score of an unseen recording is; it is no secret, and never mended."""
    looks = Counter(one.first_look for one in UNSEEN)
    assert set(looks) <= set(unseen_answers.OUTCOMES)
    assert looks["wrong"]
    assert {one.round for one in UNSEEN} == set(unseen_answers.ROUNDS)
