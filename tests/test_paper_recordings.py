"""What timelines tell beside kernels and CUDA's calls: the operating system, other processes, other GPUs, unified memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import unseen_answers
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.regions.fixes import Answer
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.markdown import render_markdown
from llm_perf_opt.report.view import view_of
from paper_nsys import Paper, Thread
from paper_programs import simulate
from paper_programs_three import simulate as simulate_more
from published_programs import simulate as simulate_published

pytestmark = pytest.mark.process


def report_of(*paths: Path) -> NCUProfileRegionReport:
    return make_report([str(path) for path in paths], ReportOptions(), quiet=True)


def steps(host: Thread, between: str, count: int = 30) -> None:
    """Two milliseconds of kernels, then five of something."""
    for _ in range(count):
        for _ in range(4):
            host.kernel("filter_bank(float*, int)", 500)
        host.sync()
        if between:
            host.os(between, 5000)
        else:
            host.works(5000)


def answer_about(folder: Path, between: str, name: str = "app") -> Answer:
    paper = Paper(1)
    steps(paper.thread(name=name), between)
    return report_of(paper.write(folder / "app.sqlite")).answer


@pytest.mark.parametrize(
    ("call", "rule", "words"),
    [
        ("pread64", "host.data", "reads or prepares input: pread64()"),
        ("epoll_wait", "host.wait", "itself waits for a request, a lock or another process: epoll_wait()"),
        ("fsync", "host.python", "writes to a file or a pipe: fsync()"),
        ("ioctl", "host.unknown", "does something that was not recorded"),
        ("", "host.unknown", "does something that was not recorded"),
    ],
)
def test_calls_of_the_operating_system_say_what_the_host_did(tmp_path: Path, call: str, rule: str, words: str) -> None:
    answer = answer_about(tmp_path, call)
    assert (answer.fixes[0].rule, words in answer.why) == (rule, True), answer.why


def test_a_file_read_in_small_pieces_is_read_all_the_same(tmp_path: Path) -> None:
    paper = Paper(2)
    host = paper.thread(name="app")
    for _ in range(30):
        host.kernel("filter_bank(float*, int)", 2000)
        host.sync()
        for _ in range(250):
            host.os("read", 20)
    answer = report_of(paper.write(tmp_path / "app.sqlite")).answer
    assert answer.fixes[0].rule == "host.data"


def test_what_is_read_before_the_work_begins_is_its_start(tmp_path: Path) -> None:
    answer = report_of(*simulate("llama_load_then_decode", tmp_path)).answer
    assert answer.fixes[0].rule == "warmup"
    assert "read()" in answer.why


def test_waiting_inside_a_call_of_cuda_is_that_call(tmp_path: Path) -> None:
    """cudaStreamSynchronize waits in poll() itself: nothing new."""
    paper = Paper(3)
    host = paper.thread(name="app")
    for _ in range(200):
        host.kernel("filter_bank(float*, int)", 300)
        began = host.now
        host.sync()
        paper.add("OSRT_API", began, host.now, eventClass=27, globalTid=host.id, nameId=paper.text("poll"))
        host.works(400)
    assert report_of(paper.write(tmp_path / "app.sqlite")).answer.fixes[0].rule == "host.sync"


def test_threads_that_launch_nothing_explain_nothing(tmp_path: Path) -> None:
    """A thread of the runtime sits in poll() all the time, another one reads a pipe."""
    paper = Paper(4)
    host = paper.thread(name="app")
    steps(host, "")
    for tid, call in ((5001, "poll"), (5002, "read")):
        paper.thread(tid=tid).os(call, host.now - 1e6)
    assert report_of(paper.write(tmp_path / "app.sqlite")).answer.fixes[0].rule == "host.unknown"


def test_a_range_of_the_program_says_more_than_the_call_inside_it(tmp_path: Path) -> None:
    paper = Paper(7)
    host = paper.thread(name="app")
    for _ in range(30):
        with host.span("step"):
            for _ in range(4):
                host.kernel("filter_bank(float*, int)", 500)
            host.sync()
            with host.span("ask the tool"):
                host.os("poll", 5000)
    answer = report_of(paper.write(tmp_path / "app.sqlite")).answer
    assert answer.fixes[0].rule == "host.wait"
    assert "ask the tool" in answer.fixes[0].because


def test_processes_that_take_turns_share_the_gpu(tmp_path: Path) -> None:
    turns = report_of(*simulate("two_processes_one_gpu", tmp_path)).answer
    assert (turns.verdict, turns.fixes[0].rule) == ("other_work", "gpu.shared")
    assert "sits idle" not in turns.why


def test_processes_whose_work_overlaps_may_have_gpus_of_their_own(tmp_path: Path) -> None:
    paper = Paper(5)
    for pid in (6000, 6001):
        steps(paper.thread(pid, name="app"), "")
    answer = report_of(paper.write(tmp_path / "app.sqlite")).answer
    assert answer.fixes[0].rule == "host.unknown"


def test_copies_between_gpus_are_called_so(tmp_path: Path) -> None:
    report = report_of(*simulate("peer_copies", tmp_path))
    answer = report.answer
    assert "exposed copies between GPUs" in answer.why
    assert answer.fixes[0].because.startswith("Copies between GPUs")
    assert "pinned" not in str(answer)


def test_pages_of_unified_memory_are_neither_launches_nor_copies_to_be_pinned(tmp_path: Path) -> None:
    report = report_of(*simulate("unified_memory", tmp_path))
    (region,) = report.main_scope.regions
    assert region.performance is not None
    assert region.performance.time.launches == 30
    assert [fix.rule for fix in report.answer.fixes] == ["copy.managed"]
    assert {family.family for family in region.performance.families} == {"elementwise", "migration"}


def test_advice_is_for_the_program_at_hand(tmp_path: Path) -> None:
    for name in ("solver", "python3"):
        paper = Paper(6)
        host = paper.thread(name=name)
        for _ in range(200):
            host.kernel("filter_bank(float*, int)", 300)
            host.sync()
            host.works(400)
        (tmp_path / name).mkdir()
        action = report_of(paper.write(tmp_path / name / "app.sqlite")).answer.do_first
        assert (".item()" in action, "cudaDeviceSynchronize" in action) == (name == "python3", name == "solver")


def test_a_gpu_with_less_to_do_is_named(tmp_path: Path) -> None:
    answer = report_of(*simulate("two_gpus_one_lazy", tmp_path)).answer
    assert "GPU 0 for 100%, GPU 1 for 20% of the time" in answer.why
    assert answer.do_first == "Give the GPUs the same work: GPU 1 waits while GPU 0 computes."


def test_copies_that_run_at_once_are_added_up(tmp_path: Path) -> None:
    report = report_of(*simulate("streams_overlap", tmp_path))
    assert "copies" not in report.answer.why
    assert any("817 ms, added up" in line for line in render_markdown(view_of(report)).splitlines())


def test_the_details_page_tells_what_limits_occupancy_and_what_ncu_says(tmp_path: Path) -> None:
    cases = {one.case.name: one for one in unseen_answers.unseen()}
    by_registers = unseen_answers.printed(cases["255 registers a thread"].source, tmp_path / "a.csv")
    assert report_of(by_registers).answer.fixes[0].rule == "occupancy"
    tail = report_of(unseen_answers.printed(cases["eleven blocks too many"].source, tmp_path / "b.csv"))
    text = render_markdown(view_of(tail))
    assert "**TailEffect**: 1 kernel, 100.0 % of the GPU time, would speed it up by 50.0 % in all: A wave of" in text
    assert "(ncu: TailEffect, estimated speed-up 50 %)" in tail.answer.fixes[0].because
    newest = report_of(unseen_answers.printed(cases["attention of the third generation"].source, tmp_path / "c.csv"))
    assert not newest.answer.do_first.startswith("Use a newer attention kernel")


def test_no_kernel_can_take_no_time(tmp_path: Path) -> None:
    tiny = next(one for one in unseen_answers.unseen() if one.case.name == "one block of 32 threads")
    answer = report_of(unseen_answers.printed(tiny.source, tmp_path / "tiny.csv")).answer
    assert answer.fixes[0].gain_ns == pytest.approx(600)


def test_pages_that_are_prefetched_are_not_waited_for(tmp_path: Path) -> None:
    answer = report_of(*simulate_more("prefetched_memory", tmp_path)).answer
    assert (answer.verdict, answer.fixes) == ("gpu", [])


def test_the_host_does_not_wait_for_copies_within_the_gpu(tmp_path: Path) -> None:
    """Gaps begin while it is in the call of the next copy; that is no synchronisation."""
    answer = report_of(*simulate_more("many_small_moves", tmp_path)).answer
    assert (answer.verdict, answer.fixes[0].rule) == ("launch", "launch.graph")


def test_code_that_is_loaded_in_every_step_is_no_warm_up(tmp_path: Path) -> None:
    answer = report_of(*simulate_more("module_in_the_loop", tmp_path)).answer
    assert answer.do_first.startswith("Load or compile code once and keep it")


def test_gpus_that_take_turns_should_work_at_once(tmp_path: Path) -> None:
    answer = report_of(*simulate_more("layers_over_four_gpus", tmp_path)).answer
    assert answer.do_first.startswith("Let the GPUs work at the same time")


def test_a_late_rank_is_named_though_its_collectives_lie_in_no_range(tmp_path: Path) -> None:
    answer = report_of(*simulate_published("ddp_late_rank", tmp_path)).answer
    assert (answer.stage, answer.fixes[0].rule) == ("whole recording", "comm.skew")
    assert "mostly for rank 1" in answer.why


def test_a_busy_pipe_of_64_bit_floats_is_named(tmp_path: Path) -> None:
    particles = next(one for one in unseen_answers.unseen() if one.case.name == "particles in float64 on a t4")
    answer = report_of(unseen_answers.printed(particles.source, tmp_path / "particles.csv")).answer
    assert answer.do_first.startswith("Compute in 32 bits wherever that is precise enough")


def test_a_busy_convolution_on_tensor_cores_is_not_told_to_use_them(tmp_path: Path) -> None:
    one = next(one for one in unseen_answers.unseen() if one.case.name == "convolution on a t4's tensor cores")
    answer = report_of(unseen_answers.printed(one.source, tmp_path / "conv.csv")).answer
    assert answer.do_first.startswith("Give the tensor cores less to do")


def test_a_product_that_is_as_good_as_they_get_is_left_alone(tmp_path: Path) -> None:
    one = next(one for one in unseen_answers.unseen() if one.case.name == "a cutlass hgemm on an a100")
    assert not report_of(unseen_answers.printed(one.source, tmp_path / "hgemm.csv")).answer.fixes


def test_two_versions_of_a_kernel_are_not_to_be_fused(tmp_path: Path) -> None:
    one = next(one for one in unseen_answers.unseen() if one.case.name == "transpose with bank conflicts on a v100")
    answer = report_of(unseen_answers.printed(one.source, tmp_path / "transpose.csv")).answer
    assert answer.fixes[0].rule == "l1.bound"
    assert "fuse.elementwise" not in {fix.rule for fix in answer.fixes}


def test_a_loss_in_float32_is_seen_in_the_names_that_nsys_writes(tmp_path: Path) -> None:
    """`cunn_SoftMaxForward<(int)4, float, …>`, where PyTorch's own trace has `<4, float, …>`."""
    answer = report_of(*simulate_published("llama3_vocabulary", tmp_path)).answer
    assert answer.fixes[0].rule == "loss.fp32"


def test_no_two_programs_on_paper_have_one_name() -> None:
    modules = (*unseen_answers.PAPER, unseen_answers.simulated_programs, unseen_answers.simulated_programs_two)
    names = [name for module in modules for name in module.PROGRAMS]
    assert len(names) == len(set(names))
