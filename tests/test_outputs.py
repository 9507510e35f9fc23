"""What is written is written whole, over nothing that is not ours, through no link; a report is never made poorer."""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import llm_perf_opt
from conftest import RECORDINGS
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError
from llm_perf_opt.files import open_to_append
from llm_perf_opt.report.files import folder_names
from llm_perf_opt.rundir import lock as run_lock
from llm_perf_opt.rundir.compress import compress
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.draft import Draft, settle
from llm_perf_opt.rundir.generation import find_mixture, is_ours, look_at_place, read_list
from llm_perf_opt.rundir.layout import COMMIT, REPORT_LIST, REPORT_LOCK

TRAIN = RECORDINGS / "nsys-2025.3.1-h200-train.sqlite.gz"
OTHER = RECORDINGS / "nsys-2025.3.1-h200-threads.sqlite.xz"


# -- transactions ------------------------------------------------------------------------------------


def texts(name: str, *regions: str) -> dict[str, str]:
    """The files of a small report: some that both have, some that only one has."""
    files = {
        "report.html": '<!doctype html><meta name="generator" content="llm-perf-opt 0">',
        "regions.csv": "scope,region,",
    }
    files |= {f"ncu/regions/{region}/report.md": f"# {region}" for region in regions}
    files |= {f"ncu/regions/{region}/kernels.csv": "kernel_name,short_name,x" for region in regions}
    return {place: f"{text}\n{name}\n" for place, text in files.items()} | {"report.md": f"# {name}\n"}


def draft_of(out: Path, name: str, *regions: str) -> Draft:
    draft = Draft.begin(out)
    for place, text in texts(name, *regions).items():
        draft.add(place, text)
    draft.add("report.json", json.dumps({"schema_version": "1", "generation": draft.generation, "name": name}))
    return draft


def name_of(out: Path) -> str:
    """Which of the reports is there, all of it and nothing else of a report."""
    listed = read_list(out)
    name: str = json.loads((out / "report.json").read_text())["name"]
    for place, sha256 in listed.files.items():
        assert hashlib.sha256((out / place).read_bytes()).hexdigest() == sha256, place
        found = look_at_place(out, place)
        assert found is not None
        assert found.generation == ("" if place.endswith(".csv") else listed.generation)
    there = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    hidden = {p for p in there if p.startswith(".")}
    assert there - hidden - {"nsys/run.sqlite", "ncu/regions/notes.txt"} == set(listed.files)
    assert find_mixture(out) is None
    return name


class Killed(BaseException):
    pass


@contextmanager
def stopping(monkeypatch: pytest.MonkeyPatch, when: int, failure: BaseException, *, once: bool) -> Iterator[list[int]]:
    """The operation with this number fails; unless `once`, all after it: who is killed cleans nothing up."""
    count = [0]

    def failing(name: str):  # type: ignore[no-untyped-def]
        real = getattr(os, name)

        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            if once and name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)  # reading needs no space
            count[0] += 1
            if count[0] == when or (count[0] > when and not once):
                raise failure
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "mkdir", "rename", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, failing(name))
        yield count


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of small files take minutes on a busy disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["killed", "disk full"])
@pytest.mark.parametrize("foreign", [False, True])
def test_stopped_at_any_operation_one_whole_report_is_there(
    memory: Path, monkeypatch: pytest.MonkeyPatch, kind: str, foreign: bool
) -> None:
    template = memory / "template"
    (template / "nsys").mkdir(parents=True)
    (template / "nsys/run.sqlite").write_text("a recording")
    draft_of(template, "old", "a", "b").publish()
    if foreign:  # then the folder of the regions cannot be exchanged as a whole
        (template / "ncu/regions/notes.txt").write_text("mine")
    seen, when = set(), 0
    while True:
        when += 1
        out = memory / str(when)
        shutil.copytree(template, out)
        failure = Killed() if kind == "killed" else OSError(errno.ENOSPC, "No space left on device")
        done, draft = False, None
        with stopping(monkeypatch, when, failure, once=kind == "disk full") as count:
            try:
                draft = draft_of(out, "new", "b", "c")
                draft.publish()
                done = True
            except (Killed, OSError):
                if draft is not None and kind == "disk full":
                    draft.discard()
        committed = (out / COMMIT).exists()
        settle(out)
        seen.add(name_of(out))
        assert name_of(out) == "new" if done or committed else "old"
        assert (out / "nsys/run.sqlite").read_text() == "a recording"
        assert (out / "ncu/regions/notes.txt").exists() == foreign
        assert not (out / COMMIT).exists()
        draft_of(out, "next", "d").publish()  # and nothing that was left is in the way
        assert name_of(out) == "next"
        if count[0] < when:
            break
        shutil.rmtree(out)
    assert done
    assert when > 30
    assert seen == {"old", "new"}


def test_many_at_once_leave_one_of_them(tmp_path: Path) -> None:
    drafts = [draft_of(tmp_path, f"report {number}", f"r{number}", "all") for number in range(8)]
    threads = [threading.Thread(target=draft.publish) for draft in drafts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert name_of(tmp_path) in {f"report {number}" for number in range(8)}
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == {REPORT_LIST}


def test_who_waits_too_long_is_told_who_writes(tmp_path: Path) -> None:
    told = pytest.raises(UserError, match=rf"Process {os.getpid()} is writing a report")
    with run_lock.writing_report(tmp_path), told, run_lock.writing_report(tmp_path, 0.05):
        pass
    assert not (tmp_path / REPORT_LOCK).exists()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    abandoned = tmp_path / f".llm-perf-report.{2**22 + 1}.x.tmp"
    (abandoned / "new").mkdir(parents=True)
    draft_of(tmp_path, "new").publish()
    assert not abandoned.exists()


def test_a_commit_that_somebody_else_brought_replaces_nothing_of_the_user(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, "theirs", "a")
    (draft.folder / "new" / REPORT_LIST).write_text(json.dumps({"generation": draft.generation, "files": draft.files}))
    (draft.folder / "replaces.json").write_text(json.dumps({"report.md": "0" * 64, "notes.txt": "0" * 64, "../x": "0"}))
    (draft.folder / "new/regions").symlink_to(tmp_path)
    draft.folder.rename(tmp_path / COMMIT)
    (tmp_path / "report.md").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    found = settle(tmp_path)
    assert (tmp_path / "report.md").read_text() == "mine"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "regions").exists()
    assert found is None or found.code == "REPORT_MIXED"


# -- the user's own files ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("written") / "out"
    assert main(["report", str(TRAIN), "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture
def out(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "out"))


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_file_of_a_report_is_known_by_its_content(out: Path) -> None:
    listed = read_list(out)
    assert {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()} - {REPORT_LIST} == set(listed.files)
    assert all(is_ours(out, place) for place in listed.files)
    (out / REPORT_LIST).unlink()
    assert main(["report", str(TRAIN), "--out", str(out), "--quiet"]) == 0


@pytest.mark.parametrize("name", ["report.md", "report.json", "regions.csv", "kernels.md", "report.html"])
def test_a_file_of_the_user_stays_unless_forced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("# My own report\n")
    (tmp_path / REPORT_LIST).write_text(
        json.dumps({"generation": "x", "files": {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}})
    )
    before = content(tmp_path)
    assert main(["report", str(TRAIN), "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert name in told
    assert "--force" in told
    assert content(tmp_path) == before
    assert main(["report", str(TRAIN), "--out", str(tmp_path), "--force"]) == 0
    assert f"Replaced {tmp_path / name}" in capsys.readouterr().err
    assert (tmp_path / name).read_text() != "# My own report\n"


def test_notes_written_into_a_report_are_not_lost(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (out / "report.md").open("a") as file:
        file.write("\nWhat I found out.\n")
    before = content(out)
    assert main(["report", str(TRAIN), "--out", str(out)]) == 2
    assert "changed after llm-perf wrote it" in capsys.readouterr().err
    assert content(out) == before


def test_an_output_that_is_an_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Path(shutil.copy(OTHER, tmp_path / "run.sqlite.xz"))
    (tmp_path / "link").symlink_to(recording)
    (tmp_path / "second").hardlink_to(recording)
    before = recording.read_bytes()
    for name in ("run.sqlite.xz", "link", "second", "../" + tmp_path.name + "/run.sqlite.xz"):
        for force in ([], ["--force"]):
            assert main(["export", str(recording), "--perfetto", str(tmp_path / name), *force]) == 2
            assert "is the input" in capsys.readouterr().err
    assert recording.read_bytes() == before


def test_an_export_replaces_its_own_files_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, tables = tmp_path / "trace.json.gz", tmp_path / "tables"
    words = ["export", str(OTHER), "--perfetto", str(trace), "--csv", str(tables), "--quiet"]
    assert main(words) == 0
    assert main(words) == 0
    trace.write_text("mine")
    (tables / "launches.csv").write_text("my,table\n")
    assert main(words) == 2
    assert "trace.json.gz (llm-perf did not write it)" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert f"Replacing {tables / 'launches.csv'}" in capsys.readouterr().err


def test_a_page_of_the_api_replaces_no_other_file(out: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report = llm_perf_opt.open(out)
    report.to_html(page)
    report.to_html(page)
    page.write_text("<p>mine</p>")
    with pytest.raises(UserError, match="did not write it"):
        report.to_html(page)
    report.to_html(page, force=True)
    assert "llm-perf" in page.read_text()


# -- mixtures ----------------------------------------------------------------------------------------


def test_readers_of_a_mixed_folder_are_told(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_mixture(out) is None
    assert main(["report", str(OTHER), "--out", str(tmp_path / "other"), "--quiet"]) == 0
    shutil.copy(tmp_path / "other/report.html", out / "report.html")
    assert "REPORT_MIXED" in [d.code for d in llm_perf_opt.open(out).diagnostics]
    assert "REPORT_MIXED" in [d.code for d in llm_perf_opt.open(out / "report.json").diagnostics]
    capsys.readouterr()
    assert main(["report", str(out / "report.json"), "--json"]) == 0
    assert "REPORT_MIXED" in [d["code"] for d in json.loads(capsys.readouterr().out)["diagnostics"]]


def test_runs_show_tells_of_a_mixture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(tmp_path / "run", ["program"], {}, gpus=list)
    run.manifest.state = "done"
    run.save()
    run.release()
    draft_of(run.path, "one").publish()
    draft = draft_of(tmp_path / "run", "two")
    (draft.folder / "new/report.html").replace(run.path / "report.html")
    draft.discard()
    assert main(["runs", "show", str(run.path)]) == 0
    assert "belong to different reports" in capsys.readouterr().out


# -- links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nsys", "ncu"])
def test_a_run_writes_through_no_link_that_the_program_placed(name: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = RunDirectory.create(tmp_path / "run", ["program"], {}, gpus=list)
    (run.path / name).rmdir()
    (run.path / name).symlink_to(elsewhere)
    with pytest.raises(UserError, match="it is a link"):
        run.begin(name, ["tool"], name)
    assert list(elsewhere.iterdir()) == []
    (run.path / name).unlink()
    (run.path / name).mkdir()
    for file in ("cmd.txt", f"run.{name}-rep", "notes"):
        (run.path / name / file).symlink_to(elsewhere / file)
    run.begin(name, ["tool"], name)
    assert list(elsewhere.iterdir()) == []
    assert (run.path / name / "cmd.txt").read_text().endswith("env tool)\n")
    assert [p.name for p in (run.path / name).iterdir() if p.is_symlink()] == ["notes"]  # no tool writes that
    run.release()


def test_a_log_grows_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        open_to_append(tmp_path / "log")
    assert not (tmp_path / "elsewhere").exists()


def test_packing_replaces_no_file_of_the_user(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", ["program"], {}, gpus=list)
    recording, packed = run.path / "nsys/run.sqlite", run.path / "nsys/run.sqlite.xz"
    recording.write_bytes(bytes(100_000))
    packed.write_text("mine")
    (result,) = compress(run, "xz")
    assert "is there already" in result.detail
    assert packed.read_text() == "mine"
    packed.write_bytes(lzma.compress(bytes(100_000)))  # packed before, and stopped before the original went
    (result,) = compress(run, "xz")
    assert result.packed_bytes
    assert not recording.exists()
    run.release()


# -- names -------------------------------------------------------------------------------------------

DEVICES = ["con", "Con.txt", "NUL", "nul.tar.gz", "COM1", "com1.log", "LPT9.x", "aux.", "prn", "con.txt:x", "CON .txt"]


def test_region_folders_are_safe_on_windows() -> None:
    paths = [*([name] for name in DEVICES), ["trailing."], ["trailing"], ["trailing "], ["Trailing."], ["a" * 300]]
    names = folder_names(("", path) for path in paths)
    for name in names:
        stem = name.split(".")[0].rstrip(" ").upper()
        assert stem not in {"CON", "PRN", "AUX", "NUL"} | {f"{d}{n}" for d in ("COM", "LPT") for n in range(10)}, name
        assert name[-1] not in ". "
        assert len(name) < 120
    assert len({name.casefold() for name in names}) == len(paths)
    # A region that is called like the changed name of another gets a name of its own.
    assert len(set(folder_names([("", [DEVICES[1]]), ("", [names[1]])]))) == 2


# -- never poorer ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for name, recording in (
        ("nsys/run.sqlite.gz", "nsys-2025.3.1-h200-ranks.sqlite.gz"),
        ("ncu/a.ncu-rep.xz", "ncu-2025.3.1-h200-ranks-two-processes.ncu-rep.xz"),
    ):
        (run / name).parent.mkdir(parents=True)
        shutil.copy(RECORDINGS / recording, run / name)
    assert main(["report", str(run), "--quiet"]) == 0
    return run


def test_every_file_of_a_report_with_counters_is_known_by_its_content(run: Path) -> None:
    assert [place for place in read_list(run).files if not is_ours(run, place)] == []


def test_a_run_that_lost_a_recording_keeps_its_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "ncu/a.ncu-rep.xz").unlink()
    before = content(run)
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr()
    told = said.err
    assert "step" in said.out  # what is left is shown
    assert "was not replaced: it was also made from a.ncu-rep, which is gone" in told
    assert "--force" in told
    assert content(run) == before
    assert main(["report", str(run), "--force", "--quiet"]) == 0
    assert content(run) != before


def test_a_run_without_recordings_shows_the_report_it_has(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "nsys")
    (run / "ncu/a.ncu-rep.xz").unlink()
    before = content(run)
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["matched"]
    assert told["files"] == []
    assert content(run) == before


def test_a_pattern_that_matches_nothing_keeps_the_report(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(out)
    words = ["report", str(TRAIN), "--out", str(out), "--include", "no such range"]
    assert main(words) == 0
    assert "was not replaced" in capsys.readouterr().err
    assert main([*words, "--strict"]) == 6
    assert content(out) == before
    assert main([*words, "--force"]) == 0
    assert content(out) != before


@pytest.mark.process
def test_the_report_of_a_run_is_not_replaced_by_that_of_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run", ["python", "x.py"], {}, made_by="profile")
    (run.path / "nsys").mkdir(exist_ok=True)
    shutil.copy(TRAIN, run.path / "nsys" / f"run.sqlite{TRAIN.suffix}")
    run.finish("done")
    run.release()
    own, other = ["report", str(run.path), "--quiet"], str(RECORDINGS / "nsys-2025.3.1-h200-ranks.sqlite.gz")
    assert main(own) == 0
    before = content(run.path)
    assert main(["report", other, "--out", str(run.path)]) == 0
    assert "folder, and this one is made from other recordings" in capsys.readouterr().err
    assert content(run.path) == before
    assert main([*own, "--include", "step"]) == 0  # of itself, as often as one likes
    narrower = content(run.path)
    assert narrower != before
    assert main(["report", other, "--out", str(run.path), "--force", "--quiet"]) == 0
    assert content(run.path) != narrower


def test_a_finished_report_is_opened(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(out)
    assert main(["report", str(out / "report.json")]) == 0
    assert "Written" not in capsys.readouterr().out
    again = tmp_path / "again"
    assert main(["report", str(out / "report.json"), "--out", str(again), "--format", "md,html"]) == 0
    assert {"report.md", "report.html"} <= {p.name for p in again.iterdir()}
    assert main(["report", str(out / "report.json"), "--out", str(out)]) == 2
    assert main(["report", str(out / "report.json"), "--kernel-include", "x"]) == 2
    assert main(["report", str(out / "report.json"), str(TRAIN)]) == 2
    assert content(out) == before
