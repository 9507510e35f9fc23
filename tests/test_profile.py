"""`llm-perf profile` from end to end, with stand-ins for nsys and ncu (see fake_tools).

What they cannot show (permissions, real counters) was seen on the GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

import llm_perf_opt
from conftest import counters as recorded_counters
from conftest import read
from fake_tools import TIMELINE
from fake_tools import json_alone as json_alone
from fake_tools import small_tools as small_tools
from fake_tools import tools as tools
from llm_perf_opt.cli.main import main
from printed import check_printed

pytestmark = pytest.mark.process

WORK = [sys.executable, "-c", "print('hello from the program')"]


def profile(*options: str, work: list[str] = WORK) -> int:
    return main(["profile", "--no-measure", "--out", "run", *options, "--", *work])


def planned(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The command that ncu would be started with after that timeline."""
    assert main(["plan", "--timeline", str(TIMELINE), *options, "--", *WORK]) == 0
    (command,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ncu --target-processes")]
    return command


def manifest() -> dict[str, object]:
    content: dict[str, object] = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    return content


def test_one_command_gives_a_timeline_counters_and_one_report(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_" + "0123456789" * 3
    monkeypatch.setenv("HF_TOKEN", secret)
    assert profile() == 0
    report = llm_perf_opt.load("run")
    assert report.coverage is not None
    assert report.coverage.signatures_matched == report.coverage.signatures
    steps = {s["name"]: s for s in manifest()["steps"]}  # type: ignore[attr-defined]
    assert [steps[n]["status"] for n in ("nsys", "export", "ncu")] == ["captured", "done", "captured"]
    assert manifest()["state"] == "done"
    assert "--nvtx-include LLM@prefill/ --nvtx-include LLM@decode/" in Path("run/ncu/cmd.txt").read_text()
    assert Path("run/workload.log").read_text() == "hello from the program\n"
    assert "hello from the program" not in Path("run/nsys/nsys.log").read_text()
    expected = {"env.json", "report.md", "report.html", "kernels.md"}
    assert expected <= {p.name for p in Path("run").iterdir()}
    assert Path("run/ncu/regions/report.json").exists()
    for file in Path("run").rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


@pytest.mark.usefixtures("json_alone")
def test_patterns_decide_what_ncu_is_asked_for(tools: Path) -> None:
    assert profile("--include", "decode_step") == 0
    assert "--nvtx-include LLM@decode_step/" in Path("run/ncu/cmd.txt").read_text()
    assert "prefill" not in Path("run/ncu/cmd.txt").read_text()


@pytest.mark.usefixtures("json_alone")
def test_a_pattern_with_a_typo_costs_no_counter_run(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--include", "decode_stepp") == 0
    assert not Path("run/ncu/cmd.txt").exists()
    shown = capsys.readouterr().out
    why, _, nearest = shown.splitlines()[:3]
    assert "'decode_stepp'" in why
    assert "exists: LLM@decode/decode_step" in nearest


@pytest.mark.usefixtures("json_alone")
def test_a_kernel_that_is_not_there_costs_no_counter_run_and_says_where_names_are(tools: Path) -> None:
    assert profile("--kernel", "gemm_nope") == 0
    assert not Path("run/ncu/cmd.txt").exists()
    (found,) = [d for d in llm_perf_opt.load("run").diagnostics if d.code == "NO_MATCHING_KERNELS"]
    assert "is called 'gemm_nope'" in found.message
    assert "kernels.csv" in found.fix


@pytest.mark.parametrize(
    ("processes", "kernel", "waits"),
    [(1, "ncclAllReduce", False), (2, "gemm", False), (2, "ncclDevKernel_AllReduce", True)],
)
def test_collectives_of_several_processes_are_not_replayed(processes: int, kernel: str, waits: bool) -> None:
    from llm_perf_opt.analysis.build import ReportOptions, build_report
    from llm_perf_opt.planning.chosen_regions import talks_between_processes
    from test_join_rules import timeline

    recording = timeline([("step", 0, 100)], [(kernel, 10, 5)], processes=processes)
    assert talks_between_processes(build_report([recording], ReportOptions())) == waits


@pytest.mark.usefixtures("json_alone")
def test_the_timeline_alone(tools: Path) -> None:
    assert profile("--no-counters") == 0
    assert not list(Path("run/ncu").glob("*.ncu-rep"))
    assert llm_perf_opt.load("run").coverage is None


@pytest.mark.parametrize(
    ("scenario", "code", "words"),
    [
        ("nsys-ok-no-libdw", 3, "libdw"),
        ("nsys-capture-range-never", 5, "made no report"),
        ("nsys-disk-full", 5, "space"),
    ],
)
def test_a_timeline_that_was_not_recorded_is_explained(
    tools: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scenario: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("FAKE_NSYS", scenario)
    assert profile() == code
    assert words in capsys.readouterr().err
    assert manifest()["state"] == "failed"
    assert not Path("run/ncu/cmd.txt").exists()


@pytest.mark.parametrize(
    ("scenario", "code"), [("ncu-missing-slash", 5), ("ncu-range-transformer", 5), ("ncu-file-exists", 2)]
)
@pytest.mark.usefixtures("json_alone")
def test_a_failed_counter_run_keeps_the_timeline_s_report(
    tools: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, code: int
) -> None:
    monkeypatch.setenv("FAKE_NCU", scenario)
    assert profile() == code
    assert llm_perf_opt.load("run").scope("aggregate").totals.kernel_count == 9022
    assert manifest()["state"] == "failed"


@pytest.mark.usefixtures("json_alone")
def test_a_program_that_fails_is_told_apart_from_a_profiler_that_fails(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile("--no-counters", work=[sys.executable, "-c", "raise SystemExit(3)"]) == 4
    assert "error code 3" in capsys.readouterr().err
    assert (Path("run") / "report.json").exists()
    assert profile("--out", "both", work=[sys.executable, "-c", "print(7); raise SystemExit(3)"]) == 4
    told = [d.code for d in llm_perf_opt.load("both").diagnostics]
    assert told.count("WORKLOAD_FAILED") == 1  # of both steps, which ran the same program


def test_mistakes_before_anything_runs(
    tools: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["profile"]) == 2
    assert "after --" in capsys.readouterr().err
    assert main(["profile", "--", "no-such-program"]) == 2
    assert "no program 'no-such-program'" in capsys.readouterr().err
    Path("run").mkdir()
    Path("run/mine.txt").write_text("precious")
    assert profile() == 2
    assert "not empty" in capsys.readouterr().err
    monkeypatch.setenv("LLM_PERF_NSYS", str(tools / "gone"))
    assert main(["profile", "--", *WORK]) == 3
    assert "nsys" in capsys.readouterr().err


@pytest.mark.usefixtures("json_alone")
def test_two_runs_of_the_same_second_have_folders_of_their_own(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["profile", "--no-counters", "--json", "--", *WORK]) == 0
        check_printed("profile", capsys.readouterr().out)
    assert len(list(Path("tmp/profile-output").iterdir())) == 2


@pytest.mark.usefixtures("json_alone")
def test_a_hanging_program_is_stopped_and_its_timeline_kept(tools: Path) -> None:
    assert profile("--timeout", "2", work=[sys.executable, "-c", "import time; time.sleep(600)"]) == 124
    # nsys is told to write its report before anything is interrupted: only so the kernels are in it
    session = (tools / "stopped").read_text()
    assert session.removeprefix("--session=") in Path("run/nsys/cmd.txt").read_text()
    assert llm_perf_opt.load("run").scope("aggregate").totals.kernel_count == 9022


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_opens_and_leaves_no_process(small_tools: Path, number: signal.Signals) -> None:
    mark = str(small_tools)
    code = "from llm_perf_opt.cli.main import entry; entry()"
    hang = [sys.executable, "-c", "import sys, time; print('up', flush=True); time.sleep(600)", mark]
    ours = subprocess.Popen(
        [sys.executable, "-c", code, "profile", "--no-measure", "--no-counters", "--out", "run", "--", *hang],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "LLM_PERF_GRACE_S": "5"},
    )
    until = time.monotonic() + 30
    while not Path("run/workload.log").exists() or "up" not in Path("run/workload.log").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    ours.send_signal(number)
    code_of_ours = ours.wait(60)
    if number != signal.SIGKILL:
        assert code_of_ours == 130
        assert manifest()["state"] == "interrupted"
        assert main(["report", "run", "--json"]) == 0
    assert manifest()["steps"]
    until = time.monotonic() + 30
    while _alive(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _alive(mark)


@pytest.mark.usefixtures("json_alone")
def test_a_report_built_again_knows_what_the_first_one_knew(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_NCU", "range=ncu-range-transformer,app-range=ok")
    assert profile("--replay-mode", "range", "--include", "decode") == 0
    first = llm_perf_opt.load("run")
    assert main(["report", "run", "--json"]) == 0
    again = llm_perf_opt.load("run")
    assert [r.key for r in again.scope("aggregate").regions] == [r.key for r in first.scope("aggregate").regions]
    assert [d.code for d in again.diagnostics] == [d.code for d in first.diagnostics]
    assert main(["report", "run", "--json", "--include", "prefill"]) == 0
    assert llm_perf_opt.load("run").scope("aggregate").regions[0].key == "LLM@prefill"


@pytest.mark.usefixtures("json_alone")
def test_a_killed_run_says_what_is_missing(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--no-counters") == 0
    content = manifest()
    content["state"] = "running"
    content["steps"][-1]["status"] = "running"  # type: ignore[index]
    Path("run/manifest.json").write_text(json.dumps(content))
    assert main(["report", "run"]) == 0
    assert "killed while stats was running" in capsys.readouterr().out
    for file in Path("run/nsys").iterdir():
        file.unlink()
    assert main(["report", "run"]) == 0  # the report that is there says all that is known
    for file in Path("run").glob("report.*"):
        file.unlink()
    capsys.readouterr()
    assert main(["report", "run"]) == 5
    told = capsys.readouterr().err
    assert "contains no recording" in told
    assert "llm-perf profile --resume run" in told


def test_a_program_that_crashes_under_nsys_is_the_one_that_is_blamed(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_NSYS", "nsys-app-segv")
    assert profile("--no-counters") == 4
    assert "SIGSEGV" in capsys.readouterr().err


@pytest.mark.usefixtures("json_alone")
def test_a_damaged_counter_file_does_not_cost_the_timeline(tools: Path) -> None:
    assert profile() == 0
    for file in Path("run/ncu").glob("*.ncu-rep"):
        file.write_bytes(file.read_bytes()[:300])
    for file in Path("run/ncu").glob("raw*.csv"):
        file.unlink()
    before = Path("run/report.json").read_bytes()
    assert main(["report", "run", "--json"]) == 0
    assert Path("run/report.json").read_bytes() == before  # the report of both stays
    assert main(["report", "run", "--json", "--force"]) == 0
    report = llm_perf_opt.load("run")
    assert "RECORDING_UNREADABLE" in [d.code for d in report.diagnostics]
    assert report.scope("aggregate").totals.kernel_count == 9022


def test_ncu_s_own_expressions_reach_it_untouched(capsys: pytest.CaptureFixture[str]) -> None:
    command = planned(capsys, "--include", "ncu:decode_step/")
    assert "--nvtx-include decode_step/" in command
    assert "prefill" not in command


def test_excluded_regions_are_excluded_in_ncu_too(capsys: pytest.CaptureFixture[str]) -> None:
    command = planned(capsys, "--include", "LLM@*", "--exclude", "LLM@prefill")
    assert r"--nvtx-exclude 'regex:^LLM$@^(LLM\x40)?prefill$/'" in command


def _alive(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.usefixtures("json_alone")
def test_a_range_mode_the_program_does_not_allow_still_ends_in_data(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_NCU", "range=ncu-range-transformer,app-range=ok")
    assert profile("--replay-mode", "range", "--include", "prefill", "--include", "decode") == 0
    report = llm_perf_opt.load("run")
    told = next(d for d in report.diagnostics if d.code == "REPLAY_FELL_BACK")
    assert "app-range" in told.message
    assert "cuKernelSetAttribute" in told.message
    assert not [d.code for d in report.diagnostics if d.severity == "error"]
    region = next(r for r in report.scope("aggregate").regions if r.name == "prefill")
    assert region.inclusive.metrics["dram__bytes_read.sum"].source == "range replay"
    assert [s["status"] for s in manifest()["steps"] if s["name"] == "ncu"] == ["nothing", "captured"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("json_alone")
def test_both_range_modes_refused_end_in_kernel_replay_with_a_bound(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "range=ncu-range-transformer,app-range=ncu-range-small")
    assert profile("--replay-mode", "range") == 0
    (told,) = [d for d in llm_perf_opt.load("run").diagnostics if d.code == "REPLAY_FELL_BACK"]
    assert "range" in told.message
    assert "kernel" in told.message
    last = [line for line in Path("run/ncu/cmd.txt").read_text().splitlines() if "--replay-mode" in line][-1]
    assert "--replay-mode kernel" in last
    assert "--filter-mode per-launch-config" in last


@pytest.mark.usefixtures("json_alone")
def test_no_fallback_where_it_is_switched_off(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "range=ncu-range-transformer,app-range=ok")
    assert profile("--replay-mode", "range", "--no-fallback") == 5
    assert len(Path("run/ncu/cmd.txt").read_text().splitlines()) == 1


@pytest.mark.usefixtures("json_alone")
def test_metrics_a_range_mode_cannot_take_are_left_out_and_named(tools: Path) -> None:
    sass = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
    assert profile("--replay-mode", "app-range", "--metrics", f"dram__bytes_read.sum,{sass}") == 0
    assert sass not in Path("run/ncu/cmd.txt").read_text()
    told = next(d for d in llm_perf_opt.load("run").diagnostics if d.code == "METRICS_LEFT_OUT")
    assert sass in told.message


@pytest.mark.parametrize(
    ("sample", "expression"), [("first", "::1"), ("middle", "::4"), ("last", "::8"), ("every:3", "'::1|4|7'")]
)
def test_instances_of_a_repeated_range_are_picked_by_number(
    capsys: pytest.CaptureFixture[str], sample: str, expression: str
) -> None:
    command = planned(capsys, "--include", "decode*", "--sample", sample)
    assert f"--range-filter {expression} " in command
    assert "decode_step/" in command


@pytest.mark.usefixtures("json_alone")
def test_one_launch_of_one_kernel(tools: Path) -> None:
    assert profile("--kernel", "regex:.*nvjet.*", "--launch", "3") == 0
    command = Path("run/ncu/cmd.txt").read_text()
    assert "--kernel-name 'regex:.*nvjet.*' --kernel-name-base demangled --launch-skip 2 --launch-count 1" in command
    assert "--nvtx-include" not in command


@pytest.mark.usefixtures("json_alone")
def test_a_kernel_that_does_not_exist_costs_no_counter_run(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--kernel", "nvjet_sm90") == 0
    assert not Path("run/ncu/cmd.txt").exists()
    assert "nearest: nvjet_sm90_" in capsys.readouterr().err
    shutil.rmtree("run")
    assert profile("--kernel", "nvjet_sm90", "--strict") == 6


@pytest.mark.usefixtures("json_alone")
def test_a_launch_that_does_not_exist_costs_no_counter_run(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--kernel", "regex:.*nvjet.*", "--launch", "1000000") == 0
    assert not Path("run/ncu/cmd.txt").exists()
    assert "launched 1,026 times there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "launches", "passes", "least"),
    [
        (("--kernel", "regex:.*nvjet.*", "--launch", "3"), 1, 38, 5.0),
        (("--sample", "first", "--include", "decode*"), 487, 1, 30.0),
        (("--sample", "first", "--include", "decode*", "--metrics", "gpu__time_duration.sum"), 487, 1, 7.0),
        (("--replay-mode", "app-range"), 2, 1, 5.0),
    ],
)
def test_plan_tells_the_price_of_what_was_chosen_by_hand(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], launches: int, passes: int, least: float
) -> None:
    assert main(["plan", "--json", "--timeline", str(TIMELINE), *options, "--", *WORK]) == 0
    (capture,) = json.loads(capsys.readouterr().out)["captures"]
    assert (capture["launches"], capture["passes"]) == (launches, passes)
    assert least < capture["seconds"] < 10 * least
    assert main(["plan", "--timeline", str(TIMELINE), *options, "--", *WORK]) == 0
    assert f"launches: {launches}; passes of each: {passes} pass" in capsys.readouterr().out


def test_a_picked_launch_stands_beside_its_kernel_s_place_in_the_timeline() -> None:
    from llm_perf_opt.analysis.build import ReportOptions, build_report
    from llm_perf_opt.report.markdown import render_markdown
    from llm_perf_opt.report.view import view_of

    counters = attrs.evolve(recorded_counters("decoder-8layers-warm-per-launch-config"))
    picked = next(a for a in counters.actions if "nvjet" in a.name)
    found = build_report(
        [read(TIMELINE, launch_config=True), attrs.evolve(counters, actions=[picked])], ReportOptions()
    )
    (launch,) = found.launches
    kernels = sorted(found.scope("aggregate").kernels, key=lambda k: -(k.total_ms or 0))
    assert launch.rank is not None
    assert kernels[launch.rank - 1].kernel_name == launch.kernel_name
    assert launch.share_of_gpu_time == pytest.approx(
        kernels[launch.rank - 1].total_ms / sum(k.total_ms or 0 for k in kernels)  # type: ignore[operator]
    )
    assert launch.metrics["gpu__time_duration.sum"].value == picked.metrics["gpu__time_duration.sum"]
    assert f"rank {launch.rank} of {len(kernels)}" in render_markdown(view_of(found))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sample", "every"), "every:N"),
        (("--metrics", "a", "--launches", "0"), "whole number above 0"),
        (("--max-size", "large"), "as in 2GB"),
        (("--replay-mode", "ranges"), "choose from 'kernel'"),
    ],
)
def test_values_that_mean_nothing_are_refused_before_anything_runs(
    tools: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert profile(*options) == 2
    assert words in capsys.readouterr().err
    assert not Path("run").exists()
