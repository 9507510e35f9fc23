"""A scrubbed copy gives nothing away and says the same as the original.

Secrets are planted in copies of real recordings, in every place in which nsys, ncu and this package keep
texts: the environment, the command line, strings, output of the program, logs, and pages that were freed.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import lzma
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from conftest import SHARED, plain_bytes, recording
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.readers import sandbox
from llm_perf_opt.readers.ncu_container import block_spans
from llm_perf_opt.readers.nsys_export import Export
from llm_perf_opt.readers.nsys_schema import TABLES
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import CounterSet
from llm_perf_opt.rundir.command_lines import clean_argv
from llm_perf_opt.rundir.scrub import ncu_report, sqlite
from llm_perf_opt.rundir.scrub import run as scrub_run
from llm_perf_opt.rundir.scrub.private import Private, is_distinctive
from llm_perf_opt.rundir.secrets import REMOVED, without_secret_text

TRAIN = recording("nsys-*-train.sqlite")
COUNTERS = recording("ncu-*-threads-scope-thread.ncu-rep")
BASIC = recording("ncu-*-2layers-basic.ncu-rep")

# One for each place; none is found by its looks alone.
SECRETS = {
    "HF_TOKEN": "plain0value1in2the3environment",
    "WANDB_API_KEY": "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c",
    "DB_PASSWORD": 'Tr0ub4dor&3 "quoted" <x>',
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
ARGUMENT = "argument-with-5ecret-inside"
HOST, USER, HOME = "gpu-node-17.example.org", "jdoe42", "/home/jdoe42"


def environment() -> dict[str, str]:
    return {**SECRETS, "HOME": HOME, "USER": USER, "HOSTNAME": HOST, "PATH": f"{HOME}/bin:/usr/bin", "LANG": "C"}


@pytest.fixture(autouse=True)
def quiet_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This shell knows none of the planted secrets: they must be learnt from the recordings."""
    for name in environment():
        if name != "PATH":
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def plant_in_timeline(path: Path) -> Path:
    """What a real export holds beside the timeline; the recordings of the tests have lost it."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA secure_delete = OFF")
        for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT"):
            db.execute(f"CREATE TABLE IF NOT EXISTS {table} (name TEXT, value TEXT)")
        rows = [("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"') for name, value in environment().items()]
        rows += [("PROCESS_0:COMMAND", f"{HOME}/venv/bin/python"), ("PROCESS_0:WORKING_DIR", f"{HOME}/project")]
        rows += [(f"PROCESS_0:ARGUMENT_{i}", a) for i, a in enumerate(["train.py", "--auth-token", ARGUMENT])]
        rows += [("PROCESS_0:USER_NAME", USER), ("DEVICE_DISPLAY_NAME", HOST), ("RATE_HZ", "0")]
        db.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", rows)
        exported = [("EXPORT_HOST", HOST), ("EXPORT_USER", USER), ("EXPORT_PARAM_INPUT_PATH", f"{HOME}/run.nsys-rep")]
        db.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", exported)
        db.execute("CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value)")
        facts = {
            "Hostname": HOST,
            "DeviceEnvironment": ";".join(f"{name}={value}" for name, value in environment().items()),
            "NvDriverVersion": "580.95.05",
            "TargetInstallDir": f"{HOME}/nsight",
        }
        db.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'x', ?, 0, ?)", facts.items())
        (last,) = db.execute("SELECT max(id) FROM StringIds").fetchone()
        block = "\0".join(f"{name}={value}" for name, value in environment().items()) + "\0"
        output = f"logged in with {SECRETS['HF_TOKEN']}\n"
        strings = {last + 1: block, last + 2: output, last + 3: f"{HOME}/lib/libmine.so", last + 4: "pt_main_thread"}
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.items())
        db.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
        db.execute("INSERT INTO ProcessStreams VALUES (1, ?, ?)", (last + 3, last + 2))
        db.execute("CREATE TABLE OSRT_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER)")
        db.executemany("INSERT INTO OSRT_CALLCHAINS VALUES (1, ?, ?)", [(last + 4, last + 3), (last + 1, last + 3)])
        db.execute("UPDATE PROCESSES SET name = ?", (f"{HOME}/venv/bin/python",))
        db.execute("INSERT INTO PROCESSES (globalPid, pid, name) VALUES (?, 4711, 'secret-daemon')", (4711 << 24,))
        db.execute("CREATE VIEW peek AS SELECT value || ? FROM StringIds".replace("?", f"'{SECRETS['HF_TOKEN']}'"))
        db.execute("CREATE TABLE scratch (text)")
        db.executemany("INSERT INTO scratch VALUES (?)", [(SECRETS["AWS_SECRET_ACCESS_KEY"] * 3,)] * 2000)
        db.execute("CREATE TABLE keeps_the_pages_apart (x)")
        db.commit()
        db.execute("DROP TABLE scratch")
        db.commit()
    assert SECRETS["AWS_SECRET_ACCESS_KEY"].encode() in path.read_bytes(), "nothing was left in freed pages"
    return path


def plant_in_report(path: Path, old: str, new: str) -> Path:
    """Replace a text of an .ncu-rep by one of the same length."""
    assert len(old) == len(new)
    data = path.read_bytes()
    assert old.encode() in data
    path.write_bytes(data.replace(old.encode(), new.encode()))
    return path


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    path = tmp_path / "run.sqlite"
    path.write_bytes(plain_bytes(TRAIN))
    return plant_in_timeline(path)


@pytest.fixture
def counters(tmp_path: Path) -> Path:
    path = tmp_path / "counters.ncu-rep"
    path.write_bytes(plain_bytes(COUNTERS))
    return path


@pytest.fixture
def run(tmp_path: Path, timeline: Path, counters: Path) -> Path:
    """A run directory with everything SPEC lists, and more."""
    folder = tmp_path / "run"
    for name in ("nsys", "ncu/regions/step", "torch_profiler", ".hydra"):
        (folder / name).mkdir(parents=True)
    timeline.rename(folder / "nsys/run.sqlite")
    counters.rename(folder / "ncu/run.ncu-rep")
    said = f"HOME is {HOME}, token {SECRETS['HF_TOKEN']} on {HOST}\n"
    texts = {
        "manifest.json": json.dumps(
            {
                "command": (command := ["train.py", "--key", SECRETS["DB_PASSWORD"]]),
                "cwd": f"{HOME}/x",
                "steps": [{"name": "nsys", "argv": ["nsys", "profile", "-o", "run", "python", *command]}],
            }
        ),
        "env.json": json.dumps({"USER": USER, "HF_TOKEN": REMOVED, "PATH": f"{HOME}/bin", "CUDA_HOME": "/usr/local"}),
        "config.yaml": f"model:\n  path: {HOME}/models/qwen\n  max_new_tokens: 64\n",
        "workload.log": said,
        "nsys/cmd.txt": f"nsys profile -o run python {HOME}/train.py --auth-token {ARGUMENT} --max-new-tokens 64\n",
        "nsys/nsys.log": said,
        "report.json": json.dumps({"inputs": [f"{HOME}/run.sqlite"], "regions": ["step"]}),
        "report.html": f"<p>{SECRETS['DB_PASSWORD'].replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;').replace(chr(34), '&quot;')}</p>",
        "ncu/regions/step/report.md": f"{HOME}\n",
        ".hydra/overrides.yaml": "- infer.max_new_tokens=64\n",
        "notes.txt": "mine alone\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    with gzip.open(folder / "torch_profiler/trace.json.gz", "wt") as file:
        file.write(json.dumps({"traceName": f"{HOME}/trace.json", "schemaVersion": 1}))
    (folder / "nsys/run.nsys-rep").write_bytes(b"closed format " + SECRETS["HF_TOKEN"].encode())
    (folder / "link.log").symlink_to("/etc/hostname")
    return folder


def everything_in(folder: Path) -> bytes:
    """All bytes of all files, unpacked, and all names."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return b"\n".join([*(plain_bytes(path) for path in files), *(str(path).encode() for path in files)])


def assert_clean(folder: Path) -> None:
    data = everything_in(folder)
    for name, secret in SECRETS.items():
        for form in (secret, json.dumps(secret)[1:-1]):
            assert form.encode() not in data, name
    for private in (ARGUMENT, HOST, USER, HOME, "secret-daemon"):
        assert private.encode() not in data, private


def measured(*paths: Path) -> Any:
    return make_report([str(path) for path in paths], ReportOptions(), quiet=True).scopes


# -- the whole run ---------------------------------------------------------------------------------


@pytest.mark.process
def test_nothing_private_is_in_the_copy_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["scrub", "run", "--out", "shared"]) == 0
    shown = capsys.readouterr().out
    assert_clean(Path("shared"))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before, "the original changed"
    assert measured(Path("shared")) == measured(run)
    assert "dropped   nsys/run.nsys-rep" in shown
    assert "the SQLite file holds the same timeline" in shown
    assert "left out  notes.txt" in shown
    assert "left out  link.log" in shown
    assert "environment of the program (9 variables)" in shown
    assert "Its report has the same numbers as before." in shown
    names = {path.relative_to("shared").as_posix() for path in Path("shared").rglob("*") if path.is_file()}
    assert names - {".llm-perf-files"} == {
        *("manifest.json", "env.json", "config.yaml", "workload.log", "nsys/cmd.txt", "nsys/nsys.log", "report.json"),
        *("report.html", "ncu/regions/step/report.md", ".hydra/overrides.yaml", "torch_profiler/trace.json.gz"),
        *("nsys/run.sqlite", "ncu/run.ncu-rep"),
    }


@pytest.mark.process
def test_what_is_not_private_stays(run: Path) -> None:
    main(["scrub", "run", "--out", "shared"])
    assert Path("shared/config.yaml").read_text() == "model:\n  path: ~/models/qwen\n  max_new_tokens: 64\n"
    assert Path("shared/nsys/cmd.txt").read_text() == 'nsys profile -o run python train.py --key "$KEY"\n'
    assert Path("shared/.hydra/overrides.yaml").read_text() == "- infer.max_new_tokens=64\n"
    told = json.loads(Path("shared/env.json").read_text())
    assert told == {"PATH": "~/bin", "CUDA_HOME": "/usr/local"}
    assert json.loads(Path("shared/manifest.json").read_text())["command"] == ["train.py", "--key", "(hidden: $KEY)"]
    with closing(sqlite3.connect("shared/nsys/run.sqlite")) as db:
        assert db.execute("SELECT DISTINCT name FROM PROCESSES").fetchall() == [("python",)]
        facts = dict(db.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"))
        assert facts == {"NvDriverVersion": "580.95.05"}
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'OSRT_CALLCHAINS'").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM StringIds WHERE value LIKE '%logged in%'").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM StringIds WHERE value LIKE '%LANG=%'").fetchone() == (0,)
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'META_DATA_CAPTURE'").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone() == (0,)


@pytest.mark.process
def test_the_copy_tells_programs_what_was_done(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrub", "run", "--out", "shared", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    actions = {file["path"]: file["action"] for file in told["files"]}
    assert actions["nsys/run.sqlite"] == actions["ncu/run.ncu-rep"] == actions["workload.log"] == "cleaned"
    assert actions["nsys/run.nsys-rep"] == "dropped"
    assert actions["notes.txt"] == "left out"
    assert told["secrets_searched"] >= len(SECRETS) + 1
    assert "aggregate" in told["scopes_compared"]


@pytest.mark.process
def test_in_place(run: Path) -> None:
    before = measured(run)
    assert main(["scrub", "run", "--in-place"]) == 0
    assert (run / "notes.txt").read_text() == "mine alone\n"
    assert not (run / "nsys/run.nsys-rep").exists()
    (run / "notes.txt").unlink()
    (run / "link.log").unlink()
    assert_clean(run)
    assert measured(run) == before
    assert [path.name for path in run.iterdir() if path.name.startswith(".llm-perf")] == []


@pytest.mark.process
def test_the_copy_has_ordinary_permissions(run: Path) -> None:
    old = os.umask(0o027)
    try:
        main(["scrub", "run", "--out", "shared"])
    finally:
        os.umask(old)
    assert stat.S_IMODE(Path("shared").stat().st_mode) == 0o750
    assert stat.S_IMODE(Path("shared/nsys/run.sqlite").stat().st_mode) == 0o640


# -- single recordings -----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_packed_timelines(ending: str, timeline: Path) -> None:
    data = timeline.read_bytes()
    packed = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[ending](data)
    path = timeline.rename(timeline.with_name(f"run.sqlite{ending}"))
    path.write_bytes(packed)
    assert main(["scrub", path.name, "--out", "shared"]) == 0
    copy = Path("shared") / path.name
    assert copy.read_bytes()[:2] == packed[:2]
    assert_clean(Path("shared"))
    assert measured(copy) == measured(path)


def test_by_default_the_copy_lies_beside(timeline: Path) -> None:
    assert main(["scrub", "run.sqlite"]) == 0
    assert [path.name for path in Path("run-scrubbed").iterdir()] == ["run.sqlite"]


@pytest.mark.parametrize("name", ["ranks", "graph_node", "names", "threads"])
def test_other_recordings_say_the_same_afterwards(name: str, tmp_path: Path) -> None:
    source = tmp_path / "run.sqlite"
    source.write_bytes(plain_bytes(recording(f"nsys-*-{name}.sqlite")))
    plant_in_timeline(source)
    assert main(["scrub", "run.sqlite", "--out", "shared"]) == 0
    assert_clean(Path("shared"))
    assert measured(Path("shared/run.sqlite")) == measured(source)


def test_secrets_of_this_shell_are_looked_for_too(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "only-this-shell-knows-1t")
    Path("notes.md").write_text("it is only-this-shell-knows-1t\n")
    assert main(["scrub", "run.sqlite", "notes.md", "--out", "shared"]) == 0
    assert Path("shared/notes.md").read_text() == f"it is {REMOVED}\n"


def test_text_that_is_not_utf8_comes_back_as_it_was(timeline: Path) -> None:
    Path("notes.md").write_bytes(b"\xff\xfe " + HOME.encode() + b"/x \xe9\n")
    with closing(sqlite3.connect(timeline)) as db:
        db.execute("UPDATE TARGET_INFO_GPU SET name = CAST(? AS TEXT)", (b"\xff " + HOME.encode(),))
        db.commit()
    assert main(["scrub", "run.sqlite", "notes.md", "--out", "shared"]) == 0
    assert Path("shared/notes.md").read_bytes() == b"\xff\xfe ~/x \xe9\n"
    with closing(sqlite3.connect("shared/run.sqlite")) as db:
        assert db.execute("SELECT CAST(name AS BLOB) FROM TARGET_INFO_GPU").fetchone() == (b"\xff ~",)


# -- counters --------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_report_of_ncu_loses_host_and_paths_and_nothing_else(counters: Path) -> None:
    data = counters.read_bytes()
    hosts = [data[s:e] for header, _ in block_spans(data) for s, e in ncu_report._at(data, header, (3, 4, 5))]
    addresses = [data[s:e] for header, _ in block_spans(data) for s, e in ncu_report._at(data, header, (3, 4, 7, 1))]
    assert hosts
    assert addresses
    plant_in_report(counters, "/usr/bin/python3.12", "/home/jdoe/python3x")
    assert main(["scrub", counters.name, "--out", "shared"]) == 0
    copy = Path("shared") / counters.name
    cleaned = copy.read_bytes()
    assert len(cleaned) == len(data)
    assert b"/home/jdoe" not in cleaned
    assert b"/xxxx/xxxx/python3x" in cleaned
    assert all(address not in cleaned for address in addresses)
    crossed = [
        cleaned[s:e] for header, _ in block_spans(cleaned) for s, e in ncu_report._at(cleaned, header, (3, 4, 5))
    ]
    assert crossed == [b"x" * len(host) for host in hosts]
    old, new = read_recording(counters), read_recording(copy)
    assert [attrs.asdict(a) for a in old.actions] == [attrs.asdict(a) for a in new.actions]  # type: ignore[union-attr]


@pytest.mark.process
def test_secrets_in_the_command_line_of_ncu(tmp_path: Path) -> None:
    report = tmp_path / "basic.ncu-rep"
    report.write_bytes(plain_bytes(BASIC))
    data = report.read_bytes()
    (command,) = {data[s:e] for header, _ in block_spans(data) for s, e in ncu_report._at(data, header, (3, 11))}
    old = "--section SpeedOfLight_RooflineChart"
    assert old in command.decode()
    planted = "--api-key 5ecretValueOfNcu-0123456789abcdef0"[: len(old)]
    plant_in_report(report, old, planted)
    assert main(["scrub", report.name, "--out", "shared"]) == 0
    cleaned = Path("shared/basic.ncu-rep").read_bytes()
    assert planted.split()[1].encode() not in cleaned
    assert b"--api-key xxxxxxxx" in cleaned
    assert measured(Path("shared/basic.ncu-rep")) == measured(report)


@pytest.mark.process
def test_a_report_that_only_its_reader_finds_damaged_is_left_out(
    counters: Path, timeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(counters.read_bytes())
    (first, *_), *_ = (results for _, results in block_spans(bytes(data)) if results)
    data[first[0] : first[1]] = bytes(first[1] - first[0])  # a result of zeros: blocks add up all the same
    counters.write_bytes(data)
    assert main(["scrub", counters.name, "run.sqlite", "--out", "shared"]) == 0
    assert "left out  counters.ncu-rep: counters.ncu-rep is a damaged" in capsys.readouterr().out
    assert [path.name for path in Path("shared").iterdir()] == ["run.sqlite"]


def test_a_damaged_report_is_left_out(counters: Path, timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counters.write_bytes(counters.read_bytes()[:-100])
    assert main(["scrub", counters.name, "run.sqlite", "--out", "shared"]) == 0
    assert "left out  counters.ncu-rep: it is damaged" in capsys.readouterr().out
    assert main(["scrub", counters.name, "--out", "alone"]) == ExitCode.BAD_INPUT
    assert not Path("alone").exists()


# -- what must not happen --------------------------------------------------------------------------


def rename_ranges(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = 'forward'", (name,))
        db.execute("UPDATE StringIds SET value = ? WHERE value = 'forward'", (name,))
        db.commit()


def test_a_secret_in_the_name_of_a_range_is_told(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rename_ranges(timeline, f"login {SECRETS['HF_TOKEN']}")
    assert main(["scrub", "run.sqlite", "--out", "shared"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"a range or kernel is called 'login {REMOVED}', which holds the value of HF_TOKEN" in shown
    assert "but see the warnings" in shown
    assert SECRETS["HF_TOKEN"] not in shown
    assert measured(Path("shared/run.sqlite")) == measured(timeline)


def test_a_home_in_the_name_of_a_range_is_told(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rename_ranges(timeline, f"{HOME}/model.py:12")
    assert main(["scrub", "run.sqlite", "--out", "shared"]) == 0
    assert "a path, user or host of yours" in " ".join(capsys.readouterr().out.split())


def test_a_secret_that_gets_past_the_cleaning_stops_everything(
    timeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run/nsys").mkdir(parents=True)
    timeline.rename("run/nsys/run.sqlite")
    Path("run/kernels.md").write_text(f"it is {SECRETS['HF_TOKEN']}\n")
    monkeypatch.setattr(Private, "text", lambda self, text, **_: text)
    assert main(["scrub", "run", "--out", "shared"]) != 0
    shown = capsys.readouterr().err
    assert "still holds the value of HF_TOKEN" in shown
    assert SECRETS["HF_TOKEN"] not in shown
    assert not Path("shared").exists()
    assert [path.name for path in Path().iterdir() if path.name.startswith(".llm-perf")] == []


def test_a_copy_with_another_report_is_refused(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite.clean

    def clumsy(source: Path, target: Path, private: Private) -> sqlite.Cleaned:
        done = real(source, target, private)
        with closing(sqlite3.connect(target)) as db:
            db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 1")
            db.commit()
        return done

    monkeypatch.setattr(scrub_run.sqlite, "clean", clumsy)
    assert main(["scrub", "run.sqlite", "--out", "shared"]) != 0
    assert not Path("shared").exists()


@pytest.mark.process
@pytest.mark.usefixtures("recordings_are_read_apart")
def test_a_recording_is_copied_in_a_process_with_limits(
    timeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = os.getpid()
    real = sqlite._copy

    def endless(*given: Any) -> int:
        while os.getpid() != here:
            pass
        return real(*given)

    assert main(["scrub", "run.sqlite", "--out", "shared"]) == 0
    monkeypatch.setattr(sandbox, "_SECONDS", 0.5)
    monkeypatch.setattr(sandbox, "_BYTES_A_SECOND", 1e9)
    monkeypatch.setattr(sqlite, "_copy", endless)
    assert main(["scrub", "run.sqlite", "--out", "again"]) != 0
    assert "takes more than" in "".join(capsys.readouterr())
    assert not Path("again").exists()


@pytest.mark.parametrize("place", ["there", "inside"])
def test_nothing_is_overwritten(place: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = {"there": "full", "inside": "run/shared"}[place]
    Path("full").mkdir()
    Path("full/mine").touch()
    assert main(["scrub", "run", "--out", out]) == ExitCode.BAD_INPUT
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["nothing", "empty", "picture.png", "run.nsys-rep"])
def test_what_cannot_be_scrubbed_is_said(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.delenv("LLM_PERF_NSYS", raising=False)
    if what == "empty":
        Path("empty").mkdir()
    elif what != "nothing":
        Path(what).write_bytes(b"\x89PNG\0\0")
    assert main(["scrub", what]) == ExitCode.BAD_INPUT
    told = capsys.readouterr().err
    assert "Traceback" not in told
    if what == "run.nsys-rep":
        assert "nsys export --type sqlite" in told


@pytest.mark.process
def test_a_raw_timeline_alone_is_exported_first(
    timeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SQLite of a run may have been deleted to save space."""
    nsys = tmp_path / "nsys"
    nsys.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {timeline} "$2"\n')
    nsys.chmod(0o755)
    monkeypatch.setenv("LLM_PERF_NSYS", str(nsys))
    Path("raw.nsys-rep").write_bytes(b"closed " + SECRETS["HF_TOKEN"].encode())
    assert main(["scrub", "raw.nsys-rep", "--out", "shared"]) == 0
    assert [path.name for path in Path("shared").iterdir()] == ["raw.sqlite"]
    assert_clean(Path("shared"))
    assert main(["scrub", "raw.nsys-rep", "--in-place"]) == 0
    assert Path("raw.sqlite").exists()
    assert not Path("raw.nsys-rep").exists()


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "telling"),
    [
        *((value, True) for value in SECRETS.values()),
        ("hunter2", True),
        ("correct-horse", True),
        ("12345678", True),
        *(
            (word, False)
            for word in ("", "1", "false", "wayland", "123456", "/home/jdoe/key.json", "https://example.org")
        ),
    ],
)
def test_which_secrets_can_be_looked_for(value: str, telling: bool) -> None:
    assert is_distinctive(value) is telling


def test_what_looks_like_a_secret_goes_and_what_only_sounds_like_one_stays() -> None:
    kept = "max_new_tokens=64 --max-new-tokens 64 tokenizer=Qwen TOKENS: 128 --lr 3 https://example.org/x"
    assert without_secret_text(kept) == kept
    text = "HF_TOKEN=abcdef 'API_KEY': 'abcdef' --api-key abc --token=abc https://me:pw@host/ ghp_" + "a" * 30
    assert without_secret_text(text) == (
        f"HF_TOKEN={REMOVED} 'API_KEY': '{REMOVED}' --api-key {REMOVED} --token={REMOVED} https://{REMOVED}@host/ {REMOVED}"
    )
    assert without_secret_text(without_secret_text(text)) == without_secret_text(text)
    assert clean_argv(["x.py", "--max-new-tokens", "64", "infer.max_new_tokens=64"])[1:] == [
        "--max-new-tokens",
        "64",
        "infer.max_new_tokens=64",
    ]


def test_homes_users_and_hosts_in_a_text() -> None:
    private = Private()
    private.learn_environment(environment())
    told = private.text(
        f"{HOME}/a {HOME} {HOME}2/b /data/{USER}/c {USER}@{HOST}:/x http://{HOST}/ /home/other/d my{USER}"
    )
    assert told == f"~/a ~ ~/b /data/(user)/c (user)@(host):/x http://(host)/ ~/d my{USER}"
    assert private.text("/homework /rooted /root/x") == "/homework /rooted ~/x"


def test_the_tool_for_recordings_of_this_project(timeline: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("tool", Path(__file__).parents[1] / "tools" / "scrub_sqlite.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    shutil.rmtree(tmp_path / "shared", ignore_errors=True)
    (tmp_path / "shared").mkdir()
    counts = tool.scrub(timeline, tmp_path / "shared/run.sqlite.xz")
    assert counts["CUPTI_ACTIVITY_KIND_KERNEL"] == 220
    assert_clean(tmp_path / "shared")
    assert measured(tmp_path / "shared/run.sqlite.xz") == measured(timeline)


def test_a_table_with_computed_columns_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of its values could take seconds to compute, and there is one for every row."""
    file = tmp_path / "computed.sqlite"
    file.write_bytes(plain_bytes(recording("nsys-*-train.sqlite")))
    with closing(sqlite3.connect(file)) as db:
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN extra AS (zeroblob(100000000)) VIRTUAL")
        db.commit()
    assert main(["scrub", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "computed columns" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


# -- JSON escapes ----------------------------------------------------------------------------------


def wholly(text: str) -> str:
    """Every character as `\\uXXXX`, those above U+FFFF as two."""
    units = text.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def by_halves(text: str) -> str:
    return "".join(
        wholly(c).upper().replace("\\U", "\\u") if i % 2 else json.dumps(c)[1:-1] for i, c in enumerate(text)
    )


def slashed(text: str) -> str:
    return json.dumps(text)[1:-1].replace("/", "\\/")


@pytest.mark.process
@pytest.mark.parametrize("write", [wholly, by_halves, slashed])
def test_a_secret_written_in_json_escapes_is_found(write: Any, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unicode = "pässword-\U0001f511-with-<tags>&more"
    env = json.loads((run / "env.json").read_text())
    (run / "env.json").write_text(json.dumps({**env, "MY_SECRET": unicode}))
    words = [*SECRETS.values(), ARGUMENT, unicode, "hf_" + "a1B2c3D4e5F6", f"{HOME}/models", f"at {HOST} now"]
    content = "[" + ", ".join(f'"{write(word)}"' for word in words) + ', "\\u0068armless"]'
    for name in ("manifest.json", "torch_profiler/metrics.json", "torch_profiler/report.md", "report.json"):
        (run / name).write_text(content)
    safe = content.replace("<", "\\u003C").replace(">", "\\u003e").replace("&", "\\u0026")
    (run / "report.html").write_text(f'<script type="application/json">{safe}</script>')
    with gzip.open(run / "torch_profiler/trace.json.gz", "wt") as file:
        file.write(content)
    assert main(["scrub", "run", "--out", "shared"]) == 0
    for name in ("torch_profiler/metrics.json", "torch_profiler/report.md", "report.json"):
        for line in Path("shared", name).read_text().splitlines():
            found = json.loads(line)
            assert found[-1] == "harmless"
            for word in (*SECRETS.values(), ARGUMENT, unicode, HOME, HOST):
                assert not [text for text in found if word in text], (name, word)
            assert name == "report.json" or not [text for text in found if "a1B2" in text]  # only looks like one
    page = Path("shared/report.html").read_text()
    assert page.count("<") == page.count(">") == 2, "what is escaped in a page must stay so"
    assert_clean(Path("shared"))


@pytest.mark.process
@pytest.mark.parametrize(
    "text",
    [
        "\\\\u0068\\\\u0066\\\\u005f: backslashes that are escaped",
        '"\\u00e4\\u2028\\ud83d alone \\u003c\\/script> \\u0041"',
        "a path C:\\users\\u12, and \\uXYZW",
    ],
)
def test_escapes_in_a_text_with_nothing_private_stay_as_they_were(text: str, run: Path) -> None:
    (run / "torch_profiler/report.md").write_text(text)
    assert main(["scrub", "run", "--out", "shared"]) == 0
    assert Path("shared/torch_profiler/report.md").read_text() == text


# -- the allow-list --------------------------------------------------------------------------------

MARK = "planted7secret9in5a3place"
OTHER_TABLES = ("ANALYSIS_FILE", "DIAGNOSTIC_EVENT", "OSRT_API", "COMPOSITE_EVENTS", "ThreadNames", "OF_TOMORROW")
# Rows that no report reads: a mark, facts, another process, a string that nothing refers to.
OTHER_ROWS = (
    "INSERT INTO NVTX_EVENTS (start, eventType, text) VALUES (0, 34, ?)",
    "INSERT INTO META_DATA_EXPORT (name, value) VALUES ('NOTE', ?)",
    "INSERT INTO META_DATA_EXPORT (name, value) VALUES (?, 1)",
    "INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('Note', ?)",
    "INSERT INTO PROCESSES (globalPid, name) VALUES (77, ?)",
    "INSERT INTO StringIds (id, value) VALUES (987654321, ?)",
)


def plant_in_all_that_is_not_read(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        for table in OTHER_TABLES:
            db.execute(f"CREATE TABLE IF NOT EXISTS {table} (a TEXT, b BLOB, c, d INTEGER)")
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", [MARK] * len(columns))
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            known = TABLES[table].columns if table in TABLES else ()
            db.execute(f"ALTER TABLE {table} ADD COLUMN later_text")
            db.execute(f"ALTER TABLE {table} ADD COLUMN later_bytes BLOB")
            for _, column, _, _, _, is_key in db.execute(f"PRAGMA table_info({table})").fetchall():
                if column not in known and not is_key:
                    planted = MARK.encode() if column == "later_bytes" else MARK
                    db.execute(f"UPDATE {table} SET {column} = ?", (planted,))
        for statement in OTHER_ROWS:
            db.execute(statement, (MARK,))
        db.execute(f"CREATE VIEW peek AS SELECT '{MARK}'")
        db.execute(f"CREATE INDEX i ON StringIds (value) WHERE value <> '{MARK}'")
        db.commit()


@pytest.mark.parametrize("name", ["train", "graph_node", "ranks"])
def test_a_secret_in_any_other_table_column_or_row_is_gone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    path.write_bytes(plain_bytes(recording(f"nsys-*-{name}.sqlite")))
    before = measured(path)
    plant_in_all_that_is_not_read(path)
    assert path.read_bytes().count(MARK.encode()) > 20
    assert main(["scrub", "run.sqlite", "--out", "shared"]) == 0
    assert MARK.encode() not in everything_in(Path("shared"))
    assert measured(Path("shared/run.sqlite")) == before


@pytest.mark.parametrize("column", ["cuDevice", "smCount", "clockRate"])
def test_a_text_in_a_column_of_numbers_is_gone(column: str, timeline: Path) -> None:
    with closing(sqlite3.connect(timeline)) as db:
        db.execute(f"UPDATE TARGET_INFO_GPU SET {column} = ?", (MARK,))
        db.commit()
    sqlite.clean(timeline, Path("copy.sqlite"), Private())
    assert MARK.encode() in timeline.read_bytes()
    assert MARK.encode() not in Path("copy.sqlite").read_bytes()


@pytest.mark.parametrize(("table", "column"), [("TARGET_INFO_GPU", "name"), ("ENUM_CUDA_MEMCPY_OPER", "label")])
def test_a_secret_in_a_text_that_is_read_is_replaced(table: str, column: str, timeline: Path) -> None:
    with closing(sqlite3.connect(timeline)) as db:
        db.execute(f"UPDATE {table} SET {column} = 'with ' || ?", (SECRETS["HF_TOKEN"],))
        db.commit()
    private = Private()
    sqlite.learn(timeline, private)
    sqlite.clean(timeline, Path("copy.sqlite"), private)
    with closing(sqlite3.connect("copy.sqlite")) as db:
        assert db.execute(f"SELECT DISTINCT {column} FROM {table}").fetchall() == [(f"with {REMOVED}",)]


def test_what_looks_like_a_variable_among_numbers_is_no_reason_to_refuse(timeline: Path) -> None:
    """Timestamps are any bytes: these read as NUL, a name, an equals sign, a value and NUL."""
    with closing(sqlite3.connect(timeline)) as db:
        db.execute("UPDATE NVTX_EVENTS SET domainId = ?", (int.from_bytes(b"\0PATH=x\0", "big"),))
        db.commit()
    assert b"\0PATH=x\0" in timeline.read_bytes()
    assert main(["scrub", "run.sqlite", "--out", "shared"]) == 0


def test_the_reader_sees_only_what_is_shared(timeline: Path) -> None:
    """Whoever reads another column must list it, and scrub follows."""
    with Export.open(timeline, "run.sqlite") as export:
        for table, columns in export.schema.items():
            assert columns <= {*TABLES[table].columns, *TABLES[table].blobs}
        assert not export.has("ProcessStreams")


# `make fuzz` tries those that take longer, too: traces of a million lines, up to half a minute each.
def _in_every_test_run(path: Path) -> bool:
    return path.stat().st_size < (250_000 if path.suffix in (".gz", ".xz") else 2_100_000)


RECORDED = sorted(
    p
    for p in SHARED.glob("*/*")
    if p.name.endswith((".sqlite", ".gz", ".xz", ".ncu-rep", ".csv"))
    and (os.environ.get("LLM_PERF_ALL_RECORDINGS") or _in_every_test_run(p))
)


# As users run it: both reports are read and built anew, and neither is one that another test has built.
@pytest.mark.process
@pytest.mark.usefixtures("recordings_are_read_apart")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_every_public_recording_can_be_shared(path: Path) -> None:
    assert main(["scrub", str(path), "--out", "shared"]) == 0
    (copy,) = Path("shared").iterdir()
    assert copy.name == path.name
    if not path.name.endswith("kern_sum.csv"):  # nsys's own summary: no recording
        assert columns_of(copy) == columns_of(path)


def columns_of(path: Path) -> Any:
    """All that a report is made of, texts in the place of their numbers: those may be other ones."""
    found = read_recording(path, source="recording", launch_config=True, streams=True)
    if isinstance(found, CounterSet):
        return attrs.asdict(found) | {"source": "", "actions": [attrs.asdict(action) for action in found.actions]}
    texts = np.array([*found.strings, ""], dtype=object)  # the last stands for a name that was not recorded
    tables = {name: getattr(found, name) for name in ("kernels", "copies", "graphs", "ranges", "graph_nodes")}
    columns = {
        (table, name): texts[values].tolist() if name == "name" else np.asarray(values).tolist()
        for table, rows in tables.items()
        for name, values in attrs.asdict(rows, recurse=False).items()
        if isinstance(values, np.ndarray)
    }
    gpus = [{k: v for k, v in facts.items() if k != "uuid"} for facts in found.gpu_facts.values()]  # of one machine
    facts = (found.domains, found.processes, found.threads, found.devices, found.environment, gpus)
    return columns, facts, [d.code for d in found.diagnostics]
