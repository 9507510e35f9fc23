"""`llm-perf runs`: old runs go, recordings get smaller, and nothing that is somebody else's or still needed is lost."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import runpy
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt
from conftest import plain_bytes
from fake_tools import RAW
from fault_matrix import WINDOWS_COUNTERS as COUNTERS
from fault_matrix import WINDOWS_KERNELS as KERNELS
from fault_matrix import WINDOWS_TIMELINE as TIMELINE
from llm_perf_opt.cli.main import main
from llm_perf_opt.rundir import compress as packing
from llm_perf_opt.rundir import lock as run_lock
from llm_perf_opt.rundir.contents import files_of
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.inventory import look_at
from llm_perf_opt.rundir.layout import ARTEFACTS, artefact, is_half_written, is_of_report, names_of_step
from llm_perf_opt.rundir.manifest import read_manifest
from printed import check_printed

pytestmark = pytest.mark.process

HOME = Path("tmp/profile-output")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(name: str, day: int = 1, state: str = "done", recordings: bool = False, size: int = 1000) -> Path:
    """A run as profile leaves it; with real recordings where they are read."""
    run = RunDirectory.create(HOME / name, ["python", "model.py"], {"timeout": None}, made_by="profile")
    content = {
        ("nsys", "nsys", "run.nsys-rep"): b"\0" * size,
        ("export", "nsys", "run.sqlite"): plain_bytes(TIMELINE) if recordings else b"SQLite",
        ("ncu", "ncu", "run.ncu-rep"): plain_bytes(COUNTERS) if recordings else b"NVR",
        ("raw", "ncu", "raw.csv"): RAW.read_bytes(),
    }
    for (step_name, folder, file), data in content.items():
        step = run.begin(step_name, [step_name], folder, "run" if folder == "ncu" else "")
        (run.path / folder / file).write_bytes(data)
        step.files, step.status = {file: len(data)}, "captured"
    run.manifest.started_at = f"2025-01-{day:02}T12:00:00+00:00"
    if state == "running":  # as after kill -9: nobody says how it ended
        run.save()
    else:
        run.finish(state)
    run.release()
    return run.path


def told(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["runs", *words, "--json"])
    return check_printed(f"runs {words[0]}", capsys.readouterr().out)


def names() -> list[str]:
    return sorted(path.name for path in HOME.iterdir())


def test_runs_are_listed_newest_first_with_state_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", 1, "failed")
    make_run("b", 3)
    make_run("sweep/0", 2, "interrupted")
    (HOME / "sweep/multirun.yaml").write_text("hydra:\n  run:\n")
    (HOME / "notes").mkdir()
    listed = told("list", capsys=capsys)
    assert [(Path(run["path"]).relative_to(HOME).as_posix(), run["state"]) for run in listed["runs"]] == [
        ("b", "done"),
        ("sweep/0", "interrupted"),
        ("a", "failed"),
    ]
    assert listed["runs"][0]["bytes"] == sum(f.stat().st_size for f in (HOME / "b").rglob("*") if f.is_file())
    assert listed["others"] == [{"path": str(HOME / "notes"), "reason": "there is no run in it"}]
    assert main(["runs", "list"]) == 0
    shown = capsys.readouterr().out
    assert "python model.py" in shown
    assert "3 runs" in shown
    # What came of each: why it failed, what its trial found.
    (HOME / "b" / "try.json").write_text('{"schema_version": "1.0", "sentences": [\n"Faster \\"by far\\".", "Same."]}')
    content = json.loads((HOME / "a" / "manifest.json").read_text())
    content["diagnostics"] = [{"code": "X", "severity": "error", "message": "It fell over.", "fix": "", "scope": None}]
    (HOME / "a" / "manifest.json").write_text(json.dumps(content))
    assert main(["runs", "list"]) == 0
    shown = capsys.readouterr().out
    assert '  Faster "by far".\n' in shown
    assert "  It fell over.\n" in shown


def test_no_runs_are_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list"]) == 0
    assert "no runs" in capsys.readouterr().out
    assert main(["runs", "prune", "--keep", "1"]) == 0
    assert main(["runs", "list", "elsewhere"]) == 2
    assert main(["runs", "prune"]) == 2
    assert main(["runs", "prune", "--keep", "0"]) == 2
    assert main(["runs"]) == 2


def test_a_folder_that_is_no_run_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert f"{tmp_path} is not a run directory of llm-perf: there is no manifest.json in it." in shown
    assert "llm-perf runs list" in shown


def test_a_run_shows_its_steps_and_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("a", state="interrupted")
    (run / "mine.txt").write_text("precious")
    assert main(["runs", "show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "step      ncu run: captured" in shown
    assert f"llm-perf profile --resume {run}" in shown
    assert "mine.txt  (llm-perf did not write it)" in shown
    content = told("show", str(run), capsys=capsys)
    assert [step["name"] for step in content["steps"]] == ["nsys", "export", "ncu", "raw"]
    assert content["foreign"] == [{"name": "mine.txt", "reason": "llm-perf did not write it"}]


# -- prune -----------------------------------------------------------------------------------------


def test_without_yes_nothing_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 2, 3):
        make_run(f"r{day}", day)
    before = sorted(HOME.rglob("*"))
    assert main(["runs", "prune", "--keep", "1"]) == 0
    shown = capsys.readouterr().out
    assert f"would remove {HOME / 'r1'}" in shown
    assert f"would remove {HOME / 'r2'}" in shown
    assert "Add --yes" in shown
    assert sorted(HOME.rglob("*")) == before


def test_the_newest_stay(capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 2, 3):
        make_run(f"r{day}", day)
    result = told("prune", "--keep", "2", "--yes", capsys=capsys)
    assert [Path(r["path"]).name for r in result["removed"]] == ["r1"]
    assert names() == ["r2", "r3"]


def test_the_oldest_go_until_the_rest_fits(capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 2, 3):
        make_run(f"r{day}", day, size=1_000_000)
    result = told("prune", "--max-size", "2.5MB", "--yes", capsys=capsys)
    assert names() == ["r2", "r3"]
    assert 2_000_000 < result["bytes_left"] < 2_500_000
    make_run("large", 4, size=3_000_000)
    told("prune", "--max-size", "2.5MB", "--yes", capsys=capsys)
    assert names() == []  # also the newest, where it is too large by itself


@pytest.mark.parametrize(("content", "stays"), [("hydra:\n  run:\n", False), ("mine: 1\n", True)])
def test_a_sweep_goes_with_its_last_run(content: str, stays: bool, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("sweep/0", 1)
    make_run("z", 2)
    (HOME / "sweep/multirun.yaml").write_text(content)
    told("prune", "--keep", "1", "--yes", capsys=capsys)
    assert (HOME / "sweep").exists() is stays


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (["ncu/run.ncu-rep", "ncu/raw.csv"], "ncu/run.ncu-rep"),
        (["nsys/run.sqlite", "nsys/run.nsys-rep"], "nsys/run.nsys-rep"),
        (["nsys/run.nsys-rep"], ""),  # the other form of it is there
        (["ncu/run.ncu-rep"], ""),  # the table holds the same
    ],
)
def test_a_report_says_which_recordings_are_gone(
    lost: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a", recordings=True)
    for name in lost:
        (run / name).unlink()
    assert main(["report", str(run), "--json", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    told = [d["message"] for d in found if d["code"] == "RECORDING_GONE"]
    assert bool(told) is bool(named)
    assert all(f"no longer in its directory: {named}." in message for message in told)


def test_what_is_not_ours_stays_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("a", 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "metrics.json").write_text("precious")
    foreign = ["notes.md", "my.log", "report.docx", "nsys/mine.sqlite", "ncu/other.ncu-rep", "deep/er/file"]
    for name in foreign:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("precious")
    (run / "torch_profiler").symlink_to(outside)  # a folder of ours, led elsewhere
    (run / "report.json").symlink_to(outside / "metrics.json")
    (run / "nsys" / "run.sqlite").unlink()
    (run / "nsys" / "run.sqlite").symlink_to(outside / "metrics.json")
    # A list that lies: it may come from anyone else.
    (run / ".llm-perf-files").write_text(
        "../r2/manifest.json\n/etc/hostname\nreport.json\ntorch_profiler/metrics.json\n"
    )
    make_run("r2", 2)
    result = told("prune", "--keep", "1", "--yes", capsys=capsys)
    (removed,) = result["removed"]
    links = {"torch_profiler", "report.json", "nsys/run.sqlite"}
    assert {file["name"] for file in removed["left"]} == {*foreign, *links}
    assert {file["reason"] for file in removed["left"] if file["name"] in links} == {"it is a link"}
    assert sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if not p.is_dir() or p.is_symlink()) == sorted(
        {*foreign, *links}
    )
    assert (outside / "metrics.json").read_text() == "precious"
    assert read_manifest(HOME / "r2")


def test_a_hostile_manifest_deletes_nothing_outside(tmp_path: Path) -> None:
    run = make_run("a", 1)
    (tmp_path / "victim").write_text("precious")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["steps"][0]["files"] = {"../../../../victim": 1, "..": 1, "/etc/hostname": 1, "": 1}
    manifest["steps"][2]["capture"] = "../../../../victim"
    (run / "manifest.json").write_text(json.dumps(manifest))
    make_run("b", 2)
    assert main(["runs", "prune", "--keep", "1", "--yes"]) == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (run / "manifest.json").exists()


def test_runs_that_go_on_stay(capsys: pytest.CaptureFixture[str]) -> None:
    running = make_run("running", 1)
    killed = make_run("killed", 2, "running")
    elsewhere = make_run("elsewhere", 3, "running")
    damaged = make_run("damaged", 4)
    for run, changes in ((killed, {"pid": 2**22 + 1}), (elsewhere, {"host": "another-machine"})):
        content = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**content, **changes}))
    # As new as can be, but that is not known of it: it takes no place among the newest.
    (damaged / "manifest.json").write_text('{"steps": [')
    make_run("newest", 5)
    lock = run_lock.take(running)
    try:
        result = told("prune", "--keep", "1", "--yes", capsys=capsys)
    finally:
        run_lock.release(lock)
    assert [Path(r["path"]).name for r in result["removed"]] == ["killed"]
    reasons = {Path(left["path"]).name: left["reason"] for left in result["left"]}
    assert set(reasons) == {"running", "elsewhere", "damaged"}
    assert "another-machine" in reasons["elsewhere"]
    assert "damaged" in reasons["damaged"]
    assert names() == ["damaged", "elsewhere", "newest", "running"]
    main(["runs", "list"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("damaged"))
    assert line.split()[1] == "–"  # how large it is is not known


def test_a_run_that_begins_between_looking_and_removing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_perf_opt.rundir import inventory, prune

    run = make_run("a", 1)
    make_run("b", 2)
    decision = prune.decide(inventory.take_inventory(HOME), 1, None)
    lock = run_lock.take(run)  # somebody resumes it
    prune.carry_out(decision, HOME)
    run_lock.release(lock)
    assert "in use" in decision.removals[0].problem
    assert (run / "nsys" / "run.nsys-rep").exists()


def test_two_prunes_at_once_do_not_quarrel() -> None:
    from llm_perf_opt.rundir import inventory, prune

    for day in range(1, 9):
        make_run(f"r{day}", day)
    late = prune.decide(inventory.take_inventory(HOME), 1, None)
    code = "from llm_perf_opt.cli.main import entry; entry()"
    words = [sys.executable, "-c", code, "runs", "prune", "--keep", "1", "--yes"]
    others = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
    for other in others:
        assert b"Traceback" not in other.communicate()[1]
    assert names() == ["r8"]
    prune.carry_out(late, HOME)  # decided before the others began
    assert [removal.problem for removal in late.removals] == [""] * 7
    assert names() == ["r8"]


def test_a_removal_that_was_interrupted_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("a", 1)
    make_run("b", 2)
    real, calls = os.unlink, []

    def failing(*args: Any, **keywords: Any) -> None:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        real(*args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        assert main(["runs", "prune", "--keep", "1", "--yes"]) == 130
    assert read_manifest(run)  # still known as a run
    assert main(["runs", "prune", "--keep", "1", "--yes"]) == 0
    assert names() == ["b"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_folders_that_cannot_be_read_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("a", 1)
    make_run("b", 2)
    (run / "nsys").chmod(0)
    try:
        result = told("prune", "--keep", "1", "--yes", capsys=capsys)
    finally:
        (run / "nsys").chmod(0o755)
    assert result["removed"] == []
    assert "cannot be read" in result["left"][0]["reason"]


def test_a_folder_that_cannot_be_read_stays_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a", 1)
    make_run("b", 2)
    real = os.scandir

    def closed(path: Any) -> Any:
        if Path(path) == run / "nsys":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    result = told("prune", "--keep", "1", "--yes", capsys=capsys)
    assert result["removed"] == []
    assert "Permission denied" in result["left"][0]["reason"]
    assert (run / "nsys" / "run.nsys-rep").exists()


def test_every_file_of_a_report_is_known_as_ours() -> None:
    run = make_run("a", recordings=True)
    assert main(["report", str(run), "--json"]) == 0
    files = files_of(run, read_manifest(run))
    assert {"report.html", "ncu/regions/report.json", "pictures/stages.svg", ".llm-perf-files"} <= {
        f.name for f in files
    }
    assert [file.name for file in files if not file.is_ours] == []


# -- compress --------------------------------------------------------------------------------------


def test_a_packed_run_gives_the_same_report(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("a", recordings=True, size=200_000)
    os.truncate(run / "nsys/run.nsys-rep", 0)
    (run / "nsys/run.nsys-rep").write_bytes(os.urandom(200_000))  # does not get smaller
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    before = llm_perf_opt.load(run)
    original = {p: p.read_bytes() for p in (run / "nsys/run.sqlite", run / "ncu/run.ncu-rep")}
    capsys.readouterr()
    assert main(["runs", "compress", str(run)]) == 0
    assert "would pack" in capsys.readouterr().out
    assert all(path.exists() for path in original)
    result = told("compress", str(run), "--yes", capsys=capsys)
    files = {file["name"]: file for file in result["runs"][0]["files"]}
    assert files["nsys/run.nsys-rep"]["packed_bytes"] is None
    assert "hardly" in files["nsys/run.nsys-rep"]["detail"]
    for path, content in original.items():
        assert not path.exists()
        assert lzma.decompress(path.with_name(f"{path.name}.xz").read_bytes()) == content
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    capsys.readouterr()
    after = llm_perf_opt.load(run)
    assert after.scopes == before.scopes
    assert after.coverage == before.coverage
    assert [file.name for file in files_of(run, read_manifest(run)) if not file.is_ours] == []
    # once is enough, and packed runs are pruned like others
    assert told("compress", str(run), "--yes", capsys=capsys)["runs"][0]["files"][0]["name"] == "nsys/run.nsys-rep"
    make_run("b", 2)
    assert main(["runs", "prune", "--keep", "1", "--yes"]) == 0
    assert names() == ["b"]


def test_gz_and_permissions(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("a", recordings=True)
    (run / "ncu/run.ncu-rep").chmod(0o640)
    told("compress", str(run), "--format", "gz", "--yes", capsys=capsys)
    packed = run / "ncu/run.ncu-rep.gz"
    assert gzip.decompress(packed.read_bytes()) == plain_bytes(COUNTERS)
    assert stat.S_IMODE(packed.stat().st_mode) == 0o640


class Struck(BaseException):
    """The power went out."""


@pytest.mark.parametrize(
    "moment", ["while packing", "before the name", "before the manifest", "before the original goes"]
)
def test_interrupted_anywhere_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    run = make_run("a", recordings=True)
    timeline = (run / "nsys/run.sqlite").read_bytes()

    def strike(*_: Any, **__: Any) -> None:
        raise Struck

    real_replace = Path.replace
    targets: dict[str, Callable[[], None]] = {
        "while packing": lambda: patch.setattr(packing, "_digest_of_packed", strike),
        "before the name": lambda: patch.setattr(
            Path, "replace", lambda self, target: strike() if ".xz." in self.name else real_replace(self, target)
        ),
        "before the manifest": lambda: patch.setattr(RunDirectory, "save", strike),
        "before the original goes": lambda: patch.setattr(
            Path, "unlink", lambda self, missing_ok=False: strike() if self.suffix == ".sqlite" else None
        ),
    }
    with monkeypatch.context() as patch:
        targets[moment]()
        with pytest.raises(Struck):
            main(["runs", "compress", str(run), "--yes", "--json"])
    assert (run / "nsys/run.sqlite").read_bytes() == timeline
    assert look_at(run).state == "done"
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    kernels = llm_perf_opt.load(run).scope("aggregate").totals.kernel_count
    assert kernels == KERNELS  # also where both forms are there: it counts once
    assert main(["runs", "compress", str(run), "--yes", "--json"]) == 0
    assert not (run / "nsys/run.sqlite").exists()
    assert lzma.decompress((run / "nsys/run.sqlite.xz").read_bytes()) == timeline
    assert not list(run.rglob("*.tmp"))


def test_a_packed_file_that_is_not_the_same_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a", recordings=True)
    real = packing._pack

    def bad_disk(source: Path, out: Any, form: Any) -> str:
        digest = real(source, out, form)
        out.seek(out.tell() // 2)
        out.write(b"\xff\xff")
        return digest

    monkeypatch.setattr(packing, "_pack", bad_disk)
    result = told("compress", str(run), "--yes", capsys=capsys)
    assert {file["packed_bytes"] for file in result["runs"][0]["files"]} == {None}
    assert (run / "nsys/run.sqlite").read_bytes() == plain_bytes(TIMELINE)
    assert not list(run.rglob("*.xz"))


def test_counters_in_both_forms_count_once() -> None:
    run = make_run("a", recordings=True)
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    before = llm_perf_opt.load(run)
    (run / "ncu/run.ncu-rep.xz").write_bytes(lzma.compress(plain_bytes(COUNTERS), preset=0))
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    assert llm_perf_opt.load(run).coverage == before.coverage
    assert len(llm_perf_opt.load(run).inputs) == 2


def test_packing_another_user_s_run_does_not_make_it_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a", recordings=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another user"))
    make_run("b", 2)  # this user has a key too
    assert not read_manifest(run).is_ours
    told("compress", str(run), "--yes", capsys=capsys)
    assert read_manifest(run).compressed
    assert not read_manifest(run).is_ours


def test_a_run_is_ours_from_the_first_manifest_on(tmp_path: Path) -> None:
    """Killed while the GPUs are asked, before anything else is written, it can still be resumed."""
    seen = []

    def asked() -> list[dict[str, str]]:
        seen.append(read_manifest(tmp_path / "new").is_ours)
        return []

    RunDirectory.create(tmp_path / "new", ["program"], {"profile": {}}, made_by="profile", gpus=asked).release()
    assert seen == [True]


def test_a_run_that_is_interrupted_before_its_first_step_does_not_seem_to_go_on(tmp_path: Path) -> None:
    def asked() -> list[dict[str, str]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RunDirectory.create(tmp_path / "new", ["program"], {}, made_by="profile", gpus=asked)
    assert read_manifest(tmp_path / "new").state == "interrupted"
    assert not (tmp_path / "new" / ".reserve").exists()
    RunDirectory.reopen(tmp_path / "new").release()  # nobody holds it


@pytest.mark.parametrize("name", ["annotate.jsonl", "ncu/cmd.txt", "nsys/nsys.log", "ncu"])
def test_nothing_is_written_through_a_link_when_a_run_goes_on(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a", recordings=True)
    outside = tmp_path / "outside"
    outside.mkdir() if name == "ncu" else outside.write_text("precious")
    if name == "ncu":
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(outside)
    assert main(["profile", "--resume", str(run)]) == 2
    assert "is a link, a pipe or a device" in capsys.readouterr().err
    assert name == "ncu" or outside.read_text() == "precious"


def test_names_from_a_manifest_reach_the_terminal_without_their_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("a\x1b]0;owned\x07", state="failed")
    content = json.loads((run / "manifest.json").read_text())
    evil = "\x1b[31mred\x1b[0m\x07\u202e\r"
    content |= {"command": [evil], "tools": {evil: evil}, "started_at": evil, "state": "failed"}
    content["steps"][0] |= {"name": evil, "status": evil}
    content["diagnostics"] = [{"code": "X", "severity": "error", "message": evil, "fix": evil}]
    (run / "manifest.json").write_text(json.dumps(content))
    (run / f"mine{evil}").write_text("")
    for words in (["list"], ["show", str(run)], ["prune", "--max-size", "0"], ["compress"]):
        assert main(["runs", *words]) == 0
        shown = capsys.readouterr()
        assert not [c for c in shown.out + shown.err if (ord(c) < 32 and c != "\n") or c == "\u202e"], words


def damage(run: Path, **fields: str) -> bytes:
    """Write fields into a manifest as they are, JSON or not."""
    content = json.loads((run / "manifest.json").read_text())
    text = json.dumps({**content, **{name: f"@{name}@" for name in fields}})
    for name, raw in fields.items():
        text = text.replace(f'"@{name}@"', raw)
    (run / "manifest.json").write_text(text)
    return text.encode()


STRANGE = {
    "not a number": {"seconds": "NaN"},
    "in a step": {"steps": '[{"name": "nsys", "argv": [], "seconds": -Infinity}]'},
    "in the settings": {"settings": '{"timeout": Infinity}'},
    "too large": {"seconds": "1e400"},
    "too large and whole": {"seconds": "1" + "0" * 400},
    "too many digits": {"seconds": "1" * 5000},
    "as a text": {"seconds": '"NaN"'},
    "a switch": {"seconds": "true"},
    "nested": {"settings": '{"a":' * 400 + "1" + "}" * 400},
}


@pytest.mark.parametrize("fields", STRANGE.values(), ids=STRANGE)
def test_strange_numbers_in_a_manifest_are_told_and_never_written_again(
    fields: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a")
    written = damage(run, **fields)
    for code, *words in (
        (2, "runs", "show", str(run)),
        (2, "profile", "--resume", str(run)),
        (0, "runs", "list"),
        (0, "runs", "compress", str(run), "--yes"),
        (0, "runs", "prune", "--keep", "1", "--yes"),
    ):
        assert main(words) == code, words
        assert "damaged" in "".join(capsys.readouterr()), words
    assert (run / "manifest.json").read_bytes() == written


@pytest.mark.parametrize("raw", ["-Infinity", "1e400"])
def test_a_report_and_a_copy_of_a_run_with_strange_numbers_are_valid_json(
    raw: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("a", recordings=True)
    damage(run, seconds=raw)
    assert main(["report", str(run), "--format", "json", "--out", "out", "--json"]) == 0
    capsys.readouterr()
    (told,) = [d for d in llm_perf_opt.load("out").diagnostics if d.code == "MANIFEST_UNREADABLE"]
    assert raw in told.message
    assert main(["scrub", str(run), "--out", "copy", "--json"]) == 0
    (file,) = [f for f in json.loads(capsys.readouterr().out)["files"] if f["path"] == "manifest.json"]
    assert file["action"] == "left out"
    assert raw in file["detail"]
    assert not Path("copy/manifest.json").exists()
    for path in (*Path("out").rglob("*.json"), *Path("copy").rglob("*.json")):
        json.loads(path.read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "started", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00", "9999-12-31T23:59:59"]
)
@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT+12", "Etc/GMT-14"])
def test_runs_from_the_ends_of_the_calendar_are_listed(
    started: str, zone: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(make_run("a"), started_at=json.dumps(started))
    make_run("b")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        code = main(["runs", "list"])
    time.tzset()
    assert code == 0
    assert "2 runs" in capsys.readouterr().out


# -- the layout ------------------------------------------------------------------------------------


def test_the_table_of_a_run_s_files_is_up_to_date() -> None:
    tool = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "document_run_directory.py"))
    text = tool["PAGE"].read_text(encoding="utf-8")
    assert tool["page"](text) == text, "run python tools/document_run_directory.py"


def test_no_two_rows_of_the_layout_are_of_the_same_file() -> None:
    paths = [row.path for row in ARTEFACTS]
    assert len(paths) == len(set(paths))
    for row in ARTEFACTS:
        name = row.path.replace("{capture}", "run-0").replace("*", "x")
        assert artefact(name) is not None
        assert artefact(f"{name}.xz") == artefact(name)
        # The first row that matches decides what is shared: none may be shadowed by one with other rules.
        assert artefact(name).share == row.share, row.path  # type: ignore[union-attr]


def test_only_what_a_row_names_is_ours() -> None:
    assert not is_of_report("nsys/run.sqlite")
    assert not is_of_report("../report.json")
    assert not is_of_report("ncu/regions/../../env.json")
    assert is_of_report("ncu/regions/step/kernels.csv")
    assert artefact("nsys/deeper/run.sqlite") is None
    assert not list(names_of_step("ncu", "../x", {"../../y": 1}))
    assert "ncu/raw-run-0.csv" in names_of_step("raw", "run-0", {})


@pytest.mark.parametrize(
    ("name", "half_written"),
    [
        (".manifest.json.17.tmp", True),
        ("ncu/regions/step/.kernels.csv.17.tmp", True),
        ("nsys/.run.sqlite.tmp", True),
        ("nsys/.run.sqlite.xz.17.tmp", True),
        (".manifest.json.tmp", False),
        (".notes.txt.17.tmp", False),
        ("manifest.json", False),
    ],
)
def test_what_a_killed_process_was_writing(name: str, half_written: bool) -> None:
    assert is_half_written(name) is half_written
