"""Jobs of several ranks: which rank a process is, one shared folder, chosen ranks, and one report of all."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.capture import rank_job
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError
from llm_perf_opt.inject.place import place_in_job
from llm_perf_opt.rundir.inventory import take_inventory
from llm_perf_opt.rundir.job import JobFacts, claim_merge, join_job, rank_folders, read_job, state_of_job, wanted_ranks

SLURM = {
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURMD_NODENAME": "gpu07",
}  # fmt: skip
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "5", "TORCHELASTIC_RUN_ID": "mine", "GROUP_WORLD_SIZE": "2"}
PROGRAM = """
import os, time, nvtx
for _ in range(4):
    with nvtx.annotate("step"):
        with nvtx.annotate("forward"):
            time.sleep(0.04 if os.environ.get("RANK") == "1" else 0.002)
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever starts the tests is not the launcher that is meant."""
    for name in [*SLURM, *TORCHRUN, "SLURM_NTASKS", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"]:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, ("slurm", 3, 4, 1, "gpu07", 2, "slurm-17.0")),
        (TORCHRUN | SLURM, ("torchrun", 5, 16, 5, "gpu07", 2, "slurm-17.0-torchrun-mine")),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURMD_NODENAME": "a", "PMIX_NAMESPACE": "x"},
            ("mpirun", 1, 2, None, "a", None, "mpirun-x"),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "SLURMD_NODENAME": "a"}, ("mpirun", 0, 2, None, "a", None, "")),
        ({"PMIX_RANK": "4", "SLURMD_NODENAME": "a"}, ("mpirun", 4, None, None, "a", None, "")),
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),  # one process is no job of ranks
        ({"RANK": "8", "WORLD_SIZE": "8"}, None),
        ({"RANK": "-1", "WORLD_SIZE": "x"}, None),
        # The script of sbatch is no task, though it has a number: the ranks are what it starts.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "17", "ENVIRONMENT": "BATCH"}, None),
    ],
)
def test_the_launcher_says_which_rank_a_process_is(
    environment: dict[str, str], expected: tuple[object, ...] | None
) -> None:
    found = place_in_job(environment)
    names = ("launcher", "rank", "size", "local", "node", "nodes", "job")
    assert expected == (None if found is None else tuple(getattr(found, name) for name in names))


def test_chosen_ranks() -> None:
    assert wanted_ranks("all", 3) == {0, 1, 2}
    assert wanted_ranks("0,7", 8) == {0, 7}
    assert wanted_ranks("2-4,9", 8) == {2, 3, 4}
    assert wanted_ranks("one-per-node", 8) is None
    for wrong in ("", "x", "1,,2", "-1", "3-x"):
        with pytest.raises(UserError, match="names no ranks"):
            wanted_ranks(wrong, 8)
    with pytest.raises(UserError, match="none of the 4 ranks"):
        wanted_ranks("7", 4)


def test_a_folder_is_of_one_job(tmp_path: Path) -> None:
    facts = JobFacts("slurm-1.0", "slurm", 2, "all", "measure", ["python", "train.py"])
    folders = [join_job(tmp_path / "run", facts, rank) for rank in (0, 1)]
    assert [folder.relative_to(tmp_path / "run").as_posix() for folder in folders] == ["ranks/rank-0", "ranks/rank-1"]
    assert read_job(tmp_path / "run") == facts
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["job.json", "ranks"]
    with pytest.raises(UserError, match="another job"):
        join_job(tmp_path / "run", JobFacts("slurm-2.0", "slurm", 2, "all", "measure"), 0)
    folders[0].mkdir()
    with pytest.raises(UserError, match="a run of rank 0 already"):
        join_job(tmp_path / "run", facts, 0)
    assert [claim_merge(tmp_path / "run", rank) for rank in (1, 0)] == [True, False]


def test_a_folder_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UserError, match="not empty"):
        join_job(tmp_path, JobFacts("slurm-1.0", "slurm", 2, "all", "measure"), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "begun" / "ranks").mkdir(parents=True)  # another rank was a moment faster
    (tmp_path / "begun" / ".job.json.1.tmp").touch()
    join_job(tmp_path / "begun", JobFacts("slurm-1.0", "slurm", 2, "all", "measure"), 0)


_GOOD = '"job": "", "launcher": "", "made_by": "", "command": []'


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"job": 1}', "null", "x" * 50),
        *(f'{{{_GOOD}, "ranks": "all", "size": {size}}}' for size in ('"2"', "1e9", "true", 10**9, "[]")),
        f'{{{_GOOD}, "size": 2, "ranks": "{"0-999999," * 9999}0"}}',
        f'{{{_GOOD}, "size": 2, "ranks": 7}}',
    ],
)
def test_a_damaged_job_file_is_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)
    assert read_job(tmp_path) is None
    assert main(["report", str(tmp_path)]) == 2


def start(rank: int, monkeypatch: pytest.MonkeyPatch, *words: str, size: int = 2) -> int:
    """One llm-perf of one rank, as torchrun would start it."""
    for name, value in {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "job"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("SLURMD_NODENAME", f"node{rank}")
    return main(["measure", *words, "--", sys.executable, "program.py"])


@pytest.mark.process
@pytest.mark.slow
def test_each_rank_measures_and_the_last_reports_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    assert start(1, monkeypatch, "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    assert (alone["rank"], alone["node"]) == (1, "node1")
    run = tmp_path / "tmp" / "profile-output" / "torchrun-job"  # a name that all ranks come to by themselves
    assert not (run / "report.json").exists()
    assert start(0, monkeypatch, "--json") == 0
    merged = json.loads(capsys.readouterr().out)
    assert {"rank:0", "rank:1", "aggregate"} <= {scope["scope"] for scope in merged["scopes"]}
    assert list(rank_folders(run)) == [0, 1]
    report = json.loads((run / "report.json").read_text())
    assert [one["path"] for one in report["inputs"]] == ["rank-0/run.json", "rank-1/run.json"]
    # The page shows what was typed for the job, not how it could be typed from the folder of the ranks.
    page = (run / "report.html").read_text()
    typed = f"llm-perf measure --json -- {sys.executable} program.py"
    assert typed in html.unescape(page)
    assert "rank-0/run.json rank-1" not in page
    manifest = json.loads((run / "ranks" / "rank-1" / "manifest.json").read_text())
    assert (manifest["rank"], manifest["node"]) == (1, "node1")
    # The ranks are runs of their own, and no old ones to be pruned one by one.
    ((job, why),) = take_inventory(run.parent).others
    assert (job, "ranks of a job" in why) == (run, True)
    assert len(take_inventory(run).runs) == 2
    # A copy to share has the ranks, too, without the names of their machines.
    assert main(["scrub", str(run), "--out", "shared", "--quiet"]) == 0
    assert (Path("shared/ranks/rank-1/measure/run.json")).is_file()
    assert all(b"node1" not in file.read_bytes() for file in Path("shared").rglob("*") if file.is_file())
    # Again, later, from the folder alone.
    monkeypatch.delenv("RANK")
    assert main(["report", str(run), "--quiet"]) == 0
    # The same job does not run twice in one folder.
    assert start(0, monkeypatch) == 2


@pytest.mark.process
def test_ranks_of_a_launcher_inside_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    launcher = (
        "import os, subprocess, sys\n"
        "start = lambda rank: subprocess.Popen([sys.executable, 'program.py'], env={**os.environ, 'RANK': rank, 'WORLD_SIZE': '2'})\n"
        "sys.exit(max([one.wait() for one in [start('0'), start('1')]]))"
    )
    assert main(["measure", "--out", "run", "--quiet", "--", sys.executable, "-c", launcher]) == 0
    report = json.loads(Path("run/report.json").read_text())
    forward = {
        scope["scope"]: region["timing"]["steady"]["median_ns"]
        for scope in report["scopes"]
        for region in scope["regions"]
        if region["name"] == "forward"
    }
    assert forward["rank:1"] > 35_000_000 > forward["rank:0"]
    assert forward["aggregate"] == forward["rank:1"]  # side by side: the time of all is that of the slowest
    assert [row["rank"] for row in report["rank_steps"]["ranks"]] == [0, 1]
    assert report["rank_steps"]["ranks"][1]["why"].startswith("forward takes ")


@pytest.mark.process
def test_a_rank_that_was_not_chosen_is_the_program_itself(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getpid()); sys.exit(7)"
    words = ["measure", "--ranks", "0", "--out", "run", "--", sys.executable, "-c", program]
    started = subprocess.Popen(
        [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()", *words],
        env={"PATH": "/usr/bin:/bin", "RANK": "1", "WORLD_SIZE": "2", "HOME": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    printed, _ = started.communicate()
    assert (started.returncode, int(printed)) == (7, started.pid)  # the same process: nothing is left around it
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_left_an_empty_recording_is_named(tmp_path: Path) -> None:
    """As a full disk leaves it. A rank that says itself what went wrong is not named twice."""
    facts = JobFacts("slurm-1.0", "slurm", 3, "all", "profile", ["python", "train.py"])
    for rank, (content, state) in enumerate((("{}", "done"), ("", "done"), ("", "running"))):
        run = join_job(tmp_path / "run", facts, rank)
        (run / "measure").mkdir(parents=True)
        (run / "measure" / "run.json").write_text(content)
        (run / "manifest.json").write_text(json.dumps({"state": state, "steps": [], "diagnostics": []}))
    told = {one.code: one.message for one in state_of_job(tmp_path / "run").diagnostics}
    assert told["RANKS_MISSING"].startswith("These ranks of the job left no results: rank 1.")
    assert told["RUN_UNFINISHED"].startswith("rank 2 on ")


@pytest.mark.process
@pytest.mark.slow
def test_a_lost_rank_and_a_failed_one_are_named_with_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rank_job, "_PATIENCE_S", 0.1)
    Path("program.py").write_text(f"{PROGRAM}\nif os.environ['RANK'] == '2': raise SystemExit(3)\n")
    assert start(2, monkeypatch, "--out", "run", "--quiet", size=4) == 4
    assert start(1, monkeypatch, "--out", "run", "--quiet", size=4) == 0
    state = tmp_path / "run" / "ranks" / "rank-1" / "manifest.json"
    state.write_text(state.read_text().replace('"state": "done"', '"state": "running"'))  # as after kill -9
    # The first rank does not wait without end for those that are lost.
    assert start(0, monkeypatch, "--out", "run", "--quiet", size=4) == 0
    capsys.readouterr()
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    told = {one["code"]: one["message"] for one in report["diagnostics"]}
    assert told["RANKS_MISSING"].startswith("These ranks of the job left no results: rank 3.")
    assert told["WORKLOAD_FAILED"].startswith("rank 2 on node2 (ranks/rank-2): ")
    assert told["RUN_UNFINISHED"].startswith("rank 1 on node1 (ranks/rank-1): ")
    assert {"rank:0", "rank:1", "rank:2"} <= {scope["scope"] for scope in report["scopes"]}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("json_alone", "tools")
def test_ranks_are_recorded_in_one_start_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second start would wait for ranks that have ended."""
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main(["profile", "--out", "run", "--quiet", "--", sys.executable, "-c", "pass"]) == 0
    for rank in (0, 1):
        manifest = json.loads(Path(f"run/ranks/rank-{rank}/manifest.json").read_text())
        started = [step["name"] for step in manifest["steps"] if step["name"] in ("measure", "nsys", "ncu")]
        assert started == ["nsys"]
    report = json.loads(Path("run/report.json").read_text())
    assert [one["path"] for one in report["inputs"]] == ["rank-0/run.sqlite", "rank-1/run.sqlite"]
    scopes = {scope["scope"]: scope["totals"]["kernel_count"] for scope in report["scopes"]}
    assert scopes["rank:0"] + scopes["rank:1"] == scopes["aggregate"] > 0
    assert "RANKS_START_ONCE" in {one["code"] for one in report["diagnostics"]}
    assert main(["profile", "--resume", "run/ranks/rank-0"]) == 2
    assert "one rank alone cannot run again" in capsys.readouterr().err


def test_what_cannot_be_done_with_ranks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    assert main(["measure", "--ranks", "0", "--", sys.executable, "program.py"]) == 2
    assert "one llm-perf for each rank" in capsys.readouterr().err
    assert start(0, monkeypatch, "--runs", "3") == 2
    assert "--runs runs the program several times" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", "0")
    assert main(["measure", "--", sys.executable, "program.py"]) == 2
    assert "--out DIR" in capsys.readouterr().err
    assert not (tmp_path / "tmp").exists()
