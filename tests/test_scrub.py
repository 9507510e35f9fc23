"""A scrubbed copy gives nothing away and says the same as the original.

Secrets are planted in copies of real recordings, in every place in which nsys, ncu and this package keep
texts: the environment, the command line, strings, output of the program, logs, and pages that were freed.
"""

from __future__ import annotations

import base64
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
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import plain_bytes, recording
from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.readers.ncu_container import block_spans
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.rundir.scrub import ncu_report, sqlite
from llm_perf_opt.rundir.scrub import run as scrub_run
from llm_perf_opt.rundir.scrub.escapes import plainly_written
from llm_perf_opt.rundir.scrub.private import Private, is_telling
from llm_perf_opt.rundir.secrets import REMOVED, clean_argv, without_secret_text

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
        "manifest.json": json.dumps({"command": ["train.py", "--key", SECRETS["DB_PASSWORD"]], "cwd": f"{HOME}/x"}),
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
    report = make_report([str(path) for path in paths], ReportOptions(), quiet=True)
    return [attrs.asdict(scope) for scope in report.scopes]


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
    assert "Its report is the same as before." in shown
    names = {path.relative_to("shared").as_posix() for path in Path("shared").rglob("*") if path.is_file()}
    assert names == {
        *("manifest.json", "env.json", "config.yaml", "workload.log", "nsys/cmd.txt", "nsys/nsys.log", "report.json"),
        *("report.html", "ncu/regions/step/report.md", ".hydra/overrides.yaml", "torch_profiler/trace.json.gz"),
        *("nsys/run.sqlite", "ncu/run.ncu-rep"),
    }


@pytest.mark.process
def test_what_is_not_private_stays(run: Path) -> None:
    main(["scrub", "run", "--out", "shared"])
    assert Path("shared/config.yaml").read_text() == "model:\n  path: ~/models/qwen\n  max_new_tokens: 64\n"
    assert Path("shared/nsys/cmd.txt").read_text() == (
        f"nsys profile -o run python ~/train.py --auth-token {REMOVED} --max-new-tokens 64\n"
    )
    assert Path("shared/.hydra/overrides.yaml").read_text() == "- infer.max_new_tokens=64\n"
    told = json.loads(Path("shared/env.json").read_text())
    assert told == {"USER": REMOVED, "HF_TOKEN": REMOVED, "PATH": "~/bin", "CUDA_HOME": "/usr/local"}
    assert json.loads(Path("shared/manifest.json").read_text())["command"] == ["train.py", "--key", REMOVED]
    with closing(sqlite3.connect("shared/nsys/run.sqlite")) as db:
        assert db.execute("SELECT DISTINCT name FROM PROCESSES").fetchall() == [("python",)]
        facts = dict(db.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"))
        assert facts == {"NvDriverVersion": "580.95.05"}
        modules = "SELECT DISTINCT s.value FROM OSRT_CALLCHAINS c JOIN StringIds s ON s.id = c.module"
        assert db.execute(modules).fetchall() == [("~/lib/libmine.so",)]
        assert db.execute("SELECT count(*) FROM StringIds WHERE value LIKE '%logged in%'").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM StringIds WHERE value LIKE '%LANG=%'").fetchone() == (0,)
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert ("RATE_HZ", "0") in db.execute("SELECT name, value FROM META_DATA_CAPTURE").fetchall()
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone() == (0,)


@pytest.mark.process
def test_the_copy_tells_programs_what_was_done(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrub", "run", "--out", "shared", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    actions = {file["path"]: file["action"] for file in told["files"]}
    assert actions["nsys/run.sqlite"] == actions["ncu/run.ncu-rep"] == actions["workload.log"] == "cleaned"
    assert actions["nsys/run.nsys-rep"] == "dropped"
    assert actions["notes.txt"] == "left out"
    assert told["secrets_searched"] == len(SECRETS) + 1
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
    Path("workload.log").write_text("it is only-this-shell-knows-1t\n")
    assert main(["scrub", "run.sqlite", "workload.log", "--out", "shared"]) == 0
    assert Path("shared/workload.log").read_text() == f"it is {REMOVED}\n"


def test_text_that_is_not_utf8_comes_back_as_it_was(timeline: Path) -> None:
    Path("workload.log").write_bytes(b"\xff\xfe " + HOME.encode() + b"/x \xe9\n")
    with closing(sqlite3.connect(timeline)) as db:
        db.execute("INSERT INTO META_DATA_CAPTURE VALUES ('NOTE', CAST(? AS TEXT))", (b"\xff " + HOME.encode(),))
        db.commit()
    assert main(["scrub", "run.sqlite", "workload.log", "--out", "shared"]) == 0
    assert Path("shared/workload.log").read_bytes() == b"\xff\xfe ~/x \xe9\n"
    with closing(sqlite3.connect("shared/run.sqlite")) as db:
        assert db.execute("SELECT CAST(value AS BLOB) FROM META_DATA_CAPTURE WHERE name = 'NOTE'").fetchone() == (
            b"\xff ~",
        )


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


def test_a_secret_where_nobody_looks_stops_everything(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(timeline)) as db:
        db.execute("CREATE TABLE PLUGIN_DATA (content BLOB)")
        db.execute("INSERT INTO PLUGIN_DATA VALUES (?)", (b"\x00\x01" + SECRETS["HF_TOKEN"].encode() + b"\x02",))
        db.commit()
    assert main(["scrub", "run.sqlite", "--out", "shared"]) != 0
    shown = capsys.readouterr().err
    assert "still holds the value of HF_TOKEN" in shown
    assert SECRETS["HF_TOKEN"] not in shown
    assert not Path("shared").exists()
    assert [path.name for path in Path().iterdir() if path.name.startswith(".llm-perf")] == []


def test_a_copy_with_another_report_is_refused(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite.clean

    def clumsy(source: Path, target: Path, private: Private, **options: bool) -> sqlite.Cleaned:
        done = real(source, target, private, **options)
        with closing(sqlite3.connect(target)) as db:
            db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 1")
            db.commit()
        return done

    monkeypatch.setattr(scrub_run.sqlite, "clean", clumsy)
    assert main(["scrub", "run.sqlite", "--out", "shared"]) != 0
    assert not Path("shared").exists()


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
    assert is_telling(value) is telling


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
    for name in ("manifest.json", "torch_profiler/metrics.json", "workload.log", "report.json"):
        (run / name).write_text(content)
    (run / "annotate.jsonl").write_text(f"{content}\n" * 3)
    safe = content.replace("<", "\\u003C").replace(">", "\\u003e").replace("&", "\\u0026")
    (run / "report.html").write_text(f'<script type="application/json">{safe}</script>')
    with gzip.open(run / "torch_profiler/trace.json.gz", "wt") as file:
        file.write(content)
    assert main(["scrub", "run", "--out", "shared"]) == 0
    for name in ("manifest.json", "torch_profiler/metrics.json", "workload.log", "report.json", "annotate.jsonl"):
        for line in Path("shared", name).read_text().splitlines():
            found = json.loads(line)
            assert found[-1] == "harmless"
            for word in (*SECRETS.values(), ARGUMENT, unicode, HOME, HOST):
                assert not [text for text in found if word in text], (name, word)
            assert name == "report.json" or not [text for text in found if "a1B2" in text]  # only looks like one
    page = Path("shared/report.html").read_text()
    assert page.count("<") == page.count(">") == 2, "what is escaped in a page must stay so"
    assert_clean(Path("shared"))


def in_bytes(form: str) -> Any:
    return lambda text: "".join(form.format(byte) for byte in text.encode())


# -- other escapes ---------------------------------------------------------------------------------

ESCAPES = {
    "Python": in_bytes("\\x{:02x}"),
    "twice": in_bytes("\\\\x{:02X}"),
    "octal": in_bytes("\\{:03o}"),
    "address": in_bytes("%{:02X}"),
    "page": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "page, hexadecimal": lambda text: "".join(f"&#x{ord(c):X};" for c in text),
    "JavaScript": lambda text: "".join(f"\\u{{{ord(c):x}}}" for c in text),
    "JSON in JSON": lambda text: wholly(text).replace("\\", "\\\\"),
    "some of it": lambda text: "".join(f"\\x{ord(c):02x}" if i % 3 else c for i, c in enumerate(text)),
}


@pytest.mark.process
@pytest.mark.parametrize("write", ESCAPES.values(), ids=ESCAPES)
def test_a_secret_written_in_other_escapes_is_found(write: Any, run: Path) -> None:
    words = [*SECRETS.values(), ARGUMENT, "hf_" + "a1B2c3D4e5F6", f"{HOME}/models", f"at {HOST} now"]
    kept = "100%, C:\\x64 and \\x1b[0m on a line of its own"
    Path("run/workload.log").write_text("\n".join(["begin", kept, *map(write, words), "end"]) + "\n")
    Path("run/annotate.jsonl").write_text(json.dumps({"said": list(map(write, words))}) + "\n")
    assert main(["scrub", "run", "--out", "shared"]) == 0
    log = Path("shared/workload.log").read_text()
    assert log.splitlines()[:2] == ["begin", kept]
    assert log.endswith("end\n")
    assert len(log.splitlines()) == len(words) + 3
    (line,) = Path("shared/annotate.jsonl").read_text().splitlines()
    assert len(json.loads(line)["said"]) == len(words)
    for word in words:
        assert write(word)[:40] not in log + line, word


ENCODINGS = {
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16, the other way round": lambda text: text.encode("utf-16-be"),
    "hexadecimal": lambda text: text.encode().hex().encode(),
    "base64": lambda text: base64.b64encode(text.encode()),
    "base64 of a user and a password": lambda text: base64.b64encode(b"me:" + text.encode() + b"@x"),
    "base64 of more": lambda text: base64.urlsafe_b64encode(b"four" + text.encode()),
}


@pytest.mark.process
@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)
def test_a_secret_that_was_encoded_is_found(encode: Any, run: Path) -> None:
    words = [*SECRETS.values(), ARGUMENT]
    Path("run/workload.log").write_bytes(b"\n".join([b"begin", *map(encode, words), b"end"]))
    assert main(["scrub", "run", "--out", "shared"]) == 0
    log = Path("shared/workload.log").read_bytes()
    assert log.startswith(b"begin\n")
    for word in words:
        assert encode(word)[4:-4] not in log, word


def test_the_last_look_finds_other_escapes_too(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run/nsys").mkdir(parents=True)
    timeline.rename("run/nsys/run.sqlite")
    Path("run/workload.log").write_text(ESCAPES["Python"](SECRETS["HF_TOKEN"]))
    monkeypatch.setattr(Private, "text", lambda self, text, **_: text)
    assert main(["scrub", "run", "--out", "shared"]) != 0
    assert not Path("shared").exists()


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
    (run / "workload.log").write_text(text)
    assert main(["scrub", "run", "--out", "shared"]) == 0
    assert Path("shared/workload.log").read_text() == text


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.integers(0, 2**32))
def test_a_text_in_json_means_the_same_when_it_is_written_plainly(text: str, dice: int) -> None:
    written = "".join(wholly(c) if dice >> (i % 32) & 1 else json.dumps(c)[1:-1] for i, c in enumerate(text))
    assert json.loads(f'"{plainly_written(written)}"') == text
    in_page = plainly_written(written.replace("<", "\\u003C"), page=True)
    assert json.loads(f'"{in_page}"') == text
    assert "<" not in in_page


def test_the_last_look_finds_escapes_too(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a text gets past the cleaning in, it does not get into a copy."""
    Path("run/nsys").mkdir(parents=True)
    timeline.rename("run/nsys/run.sqlite")
    Path("run/workload.log").write_text(f'{{"t": "{wholly(SECRETS["HF_TOKEN"])}"}}\n')
    monkeypatch.setattr(Private, "text", lambda self, text, **_: text)
    assert main(["scrub", "run", "--out", "shared"]) != 0
    assert not Path("shared").exists()
