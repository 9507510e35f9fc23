"""Counters of one rank beside others: collectives are left out, ranks kept in step where ncu can, a hang is cut."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from fake_tools import TRANSCRIPTS
from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.capture.collective_watch import CollectiveWatch
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.metrics.families import COLLECTIVE, family_of
from llm_perf_opt.nsight.ncu.argv import NcuOptions, ncu_arguments
from llm_perf_opt.nsight.ncu.rank_options import Lockstep, in_lockstep, without_collectives

COLLECTIVES = [
    "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li2EEEvPNS_8RankDataE",
    "nvshmemi_transfer_amo_kernel",
    "_ZN12_GLOBAL__N_122two_shot_all_reduce_kernelE",
    "NCCLDEVKERNEL",  # upper and lower case alike
]
OTHERS = [
    "_ZN7cutlass7Kernel2I64cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8EEvNT_6ParamsE",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15FillFunctorIfEEEEvi",
    "triton_poi_fused_add_0",
]
NEWER = ("--communicator", "--lockstep-kernel-launch", "--communicator-tcp-num-peers", "--communicator-tcp-hostname")


def test_the_filter_lets_everything_through_but_collectives() -> None:
    options = without_collectives(NcuOptions(), 3)
    assert options.kernel_name is not None
    pattern = re.compile(options.kernel_name.removeprefix("regex:"))
    assert [bool(pattern.fullmatch(name)) for name in COLLECTIVES] == [False] * len(COLLECTIVES)
    assert [bool(pattern.fullmatch(name)) for name in OTHERS] == [True] * len(OTHERS)
    assert {family_of(name) for name in COLLECTIVES} == {COLLECTIVE}  # what reports call one
    words = ncu_arguments("out", options=options)
    assert words[words.index("--launch-count") + 1] == "3"
    assert words[words.index("--filter-mode") + 1] == "per-launch-config"
    assert words[words.index("--kernel-name-base") + 1] == "mangled"


@pytest.mark.parametrize("options", [NcuOptions(replay_mode="range"), NcuOptions(kernel_name="regex:nccl")])
def test_what_would_let_collectives_in_again_is_refused(options: NcuOptions) -> None:
    with pytest.raises(UserError, match=r"ranks run it once|except collectives"):
        without_collectives(options, 1)


def test_ranks_are_kept_in_step_only_by_an_ncu_that_can() -> None:
    step = Lockstep(8, "node7")
    with pytest.raises(UserError, match="has no --communicator"):
        in_lockstep(NcuOptions(), step, {"--kernel-name", "--lockstep-kernel-launch"}, "ncu 2025.3.1")
    words = ncu_arguments("out", options=in_lockstep(NcuOptions(), step, NEWER, "ncu 2026.1"))
    at = words.index("--communicator")
    assert words[at:] == [
        *("--communicator", "tcp", "--communicator-tcp-num-peers", "8", "--lockstep-kernel-launch"),
        *("--communicator-tcp-hostname", "node7"),
    ]


def start(rank: int, monkeypatch: pytest.MonkeyPatch, *words: str, program: str = "pass", counted: str = "0") -> int:
    """One llm-perf of one of two ranks."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("SLURMD_NODENAME", f"node{rank}")
    asked = ["profile", "--out", "run", "--quiet", "--counter-rank", counted, *words]
    return main([*asked, "--", sys.executable, "-c", program])


def told(report: Path) -> dict[str, str]:
    return {one["code"]: one["message"] for one in json.loads(report.read_text())["diagnostics"]}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("json_alone", "tools")
def test_counters_of_one_rank_are_joined_to_the_timeline_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [start(rank, monkeypatch) for rank in (1, 0)] == [0, 0]
    started = {}
    for rank in (0, 1):
        steps = json.loads(Path(f"run/ranks/rank-{rank}/manifest.json").read_text())["steps"]
        started[rank] = [step for step in steps if step["name"] in ("measure", "nsys", "ncu")]
    assert [[step["name"] for step in started[rank]] for rank in (0, 1)] == [["ncu"], ["nsys"]]
    assert any(word.startswith("regex:^(?!") for word in started[0][0]["argv"])
    report = json.loads(Path("run/report.json").read_text())
    assert [one["kind"] for one in report["inputs"]] == ["ncu-rep", "nsys-sqlite"]
    assert report["coverage"]["launches"] > 0
    prefill = next(
        r for s in report["scopes"] if s["scope"] == "rank:1" for r in s["regions"] if r["name"] == "prefill"
    )
    assert prefill["inclusive"]["metrics"]["dram__bytes_read.sum"]["value"] > 0
    said = told(Path("run/report.json"))
    assert "rank 0 on node0: the first 3 launches" in said["COUNTERS_OF_RANK"]
    assert "-k 'regex:^(?!" in said["COUNTERS_OF_RANK"]
    assert "rank 0 under ncu" in said["RANKS_START_ONCE"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("json_alone", "tools")
def test_a_rank_that_hangs_under_ncu_is_cut_and_its_counters_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a collective that waits for a rank which does not come."""
    assert start(1, monkeypatch) == 0
    assert start(0, monkeypatch, "--timeout", "1", program="import time; time.sleep(600)") == ExitCode.TIMED_OUT
    assert Path("run/ranks/rank-0/ncu/run.ncu-rep").stat().st_size > 0
    assert told(Path("run/report.json"))["TIMED_OUT"].startswith("rank 0 on node0 (ranks/rank-0): ")
    assert json.loads(Path("run/report.json").read_text())["coverage"]["launches"] > 0


def test_a_kernel_that_ncu_begins_and_never_ends_is_seen(tmp_path: Path) -> None:
    """A collective soon, any other kernel after a while; not what moves on, what has ended, or what is no kernel."""
    log, now = tmp_path / "log", 0.0

    def stuck_after(text: str, moves: str = "") -> tuple[float | None, str]:
        nonlocal now
        log.write_text("==PROF== Connected to process 1\n" + text)
        watch, began = CollectiveWatch(log, clock=lambda: now), now
        while now - began < 300:
            if watch.is_stuck():
                return now - began, watch.kernel
            now += 1.0
            if moves and now - began in (20.0, 40.0):
                log.write_text(log.read_text() + moves)
        return None, watch.kernel

    begun = '==PROF== Profiling "{}" - 7: 0%'
    reduce, other = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "moe_exchange_v9"
    assert stuck_after(begun.format(reduce)) == (30.0, reduce)
    assert stuck_after(begun.format(reduce), moves="....50%") == (70.0, reduce)
    assert stuck_after(begun.format(other)) == (180.0, other)
    assert stuck_after(begun.format(reduce) + "....50%....100% - 1 pass\n") == (None, "")
    assert stuck_after("==PROF== Creating report") == (None, "")
    log.unlink()
    assert not CollectiveWatch(log).is_stuck()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("json_alone", "tools")
def test_a_collective_that_comes_through_the_filter_is_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifteen minutes before its time is over; what was measured is kept, and the rank fails, so that the others end."""
    monkeypatch.setattr("llm_perf_opt.capture.collective_watch._PATIENCE_S", 0.5)
    monkeypatch.setattr("llm_perf_opt.capture.collective_watch._LOOK_S", 0.1)
    assert start(1, monkeypatch) == 0
    line = '==PROF== Profiling "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" - 7: 0%'
    program = f"import time; open('run/ranks/rank-0/ncu/run.log', 'a').write('{line}'); time.sleep(600)"
    assert start(0, monkeypatch, program=program) == ExitCode.TIMED_OUT
    said = told(Path("run/report.json"))
    assert "ncclDevKernel_AllReduce_Sum_bf16_RING_LL did not end under ncu" in said["COLLECTIVE_REPLAYED"]
    assert json.loads(Path("run/report.json").read_text())["coverage"]["launches"] > 0


@pytest.mark.process
@pytest.mark.usefixtures("tools")
def test_all_ranks_at_once_need_a_communicator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(0, monkeypatch, counted="all") == 2
    assert "ncu 2025.3.1" in (said := capsys.readouterr().err)
    assert "--counter-rank 0" in said
    assert not Path("run/ranks/rank-0").exists()


@pytest.fixture
def newer_ncu(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its help names what the manual of Nsight Compute 2026.1 has beyond 2025.3; no such ncu has been run."""
    monkeypatch.setenv("FAKE_HELP", "newer")  # so that it is asked itself: see `stand_ins_repeat_themselves`
    transcripts = tools / "transcripts"
    shutil.copytree(TRANSCRIPTS, transcripts)
    with (transcripts / "ncu-2025.3.1-help.txt").open("a") as text:
        text.writelines(f"  {option}{'' if 'lockstep' in option else ' arg'}\n" for option in NEWER)
    program = tools / "ncu"
    program.write_text(program.read_text().replace(str(TRANSCRIPTS), str(transcripts)))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("json_alone", "newer_ncu")
def test_all_ranks_are_counted_in_step_by_an_ncu_with_a_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [start(rank, monkeypatch, counted="all") for rank in (1, 0)] == [0, 0]
    for rank in (0, 1):
        steps = json.loads(Path(f"run/ranks/rank-{rank}/manifest.json").read_text())["steps"]
        (ncu,) = [step for step in steps if step["name"] in ("measure", "nsys", "ncu")]
        assert "--communicator tcp --communicator-tcp-num-peers 2 --lockstep-kernel-launch" in " ".join(ncu["argv"])
    assert "--lockstep-kernel-launch" in told(Path("run/report.json"))["COUNTERS_OF_RANK"]
    assert [one["path"] for one in json.loads(Path("run/report.json").read_text())["inputs"]] == [
        *("rank-0/run.ncu-rep", "rank-1/run.ncu-rep")
    ]


@pytest.mark.parametrize(
    ("counted", "words", "expected"),
    [
        ("2", (), "is not a rank of this job"),
        ("x", (), "is not a rank of this job"),
        ("1", ("--ranks", "0"), "not among the ranks that are profiled"),
        ("1", ("--ranks", "one-per-node"), "not among the ranks that are profiled"),
        ("0", ("--no-counters",), "--no-counters collects none"),
        ("0", ("--kernel", "gemm"), "Leave out --kernel"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    counted: str,
    words: tuple[str, ...],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert start(0, monkeypatch, *words, counted=counted) == 2
    assert expected in capsys.readouterr().err
    assert not list(tmp_path.glob("run/ranks/*"))


def test_without_ranks_there_is_none_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    assert main(["profile", "--counter-rank", "0", "--", sys.executable, "-c", "pass"]) == 2
    assert "--counter-rank selects ranks of a launcher" in capsys.readouterr().err
