"""Untrusted inputs: a fixed few of the mutated inputs of `make fuzz`, and those that were once answered wrongly.

What a case must do is in `fuzzing/worker.py`; `make fuzz` runs more than ten thousand of them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import llm_perf_opt
from conftest import codes, plain_bytes, recording
from fuzzing import cases
from fuzzing.cases import KINDS
from fuzzing.worker import Fuzzer
from llm_perf_opt.calibration import store
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UnreadableInput, UserError
from llm_perf_opt.inject.log import read_log
from llm_perf_opt.planning.costs import load_observations
from llm_perf_opt.readers import plausible
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.readers.stage_files import read_formula
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.patterns import parse_pattern
from llm_perf_opt.report.json_report import as_json
from llm_perf_opt.rundir.state import state_of
from llm_perf_opt.untrusted import parse_json, read_bytes, read_json
from synthetic import make_export

SLOW = {"packed bombs": 1, "nsys SQLite, structure": 1, "work out of proportion": 1}
A_FEW = 2  # of each other kind; `make fuzz` has ten thousand


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    with Fuzzer(seed=11) as found:
        yield found


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_mutated_inputs_are_refused_or_reported(kind: str, fuzzer: Fuzzer) -> None:
    outcomes = [fuzzer.run(kind, number) for number in range(SLOW.get(kind, A_FEW))]
    assert [o.problem for o in outcomes if o.problem] == []


def test_a_finding_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The checker itself: tracebacks, files outside, and silence are told."""
    from fuzzing import worker

    class Watch:
        allowed: tuple[str, ...] = ()
        seen: list[str] = []  # noqa: RUF012
        on = False

    def checked(made: Any) -> str:
        monkeypatch.setattr(cases, "make", lambda *_: made)
        (tmp_path / "case" / "given").mkdir(parents=True)
        (tmp_path / "case" / "out").mkdir()
        for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, "")
        here = Path.cwd()
        try:
            return worker.run_case(Watch(), "costs of the planner", 0, 1, tmp_path).problem
        finally:
            os.chdir(here)

    def raises() -> None:
        raise KeyError("x")

    def wordless() -> None:
        raise UserError("It failed.")

    def writes() -> None:
        Path("left-behind").touch()

    assert "KeyError" in checked(raises)
    assert "no next step" in checked(wordless)
    assert "left-behind" in checked(writes)
    assert checked(lambda: None) == ""


# -- found once ------------------------------------------------------------------------------------


def run_of(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "nsys").mkdir(parents=True)
    (run / "nsys" / "run.sqlite").write_bytes(plain_bytes(recording("nsys-*-threads.sqlite")))
    return run


@pytest.mark.parametrize("name", ["regions", "ncu", "ncu/regions", "pictures"])
def test_a_report_is_not_written_through_a_link(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, elsewhere = run_of(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(elsewhere)
    code = main(["report", str(run)])
    assert list(elsewhere.iterdir()) == []
    if code:
        told = capsys.readouterr().err
        assert "is a link" in told
        assert "--out" in told


def test_a_file_that_is_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    run, precious = run_of(tmp_path), tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    (run / "report.json").symlink_to(precious)
    (run / f".report.md.{os.getpid()}.tmp").symlink_to(precious)
    assert main(["report", str(run), "--json"]) == 0
    assert precious.read_text(encoding="utf-8") == "mine"
    assert not (run / "report.json").is_symlink()


def test_the_list_of_an_earlier_report_removes_only_what_a_report_wrote(tmp_path: Path) -> None:
    run, elsewhere = run_of(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (elsewhere / "kernels.csv", tmp_path / "outside", run / "manifest.json", run / "old.txt"):
        path.write_text("{}", encoding="utf-8")
    (run / "regions").symlink_to(elsewhere)
    (run / "pictures").mkdir()
    (run / "pictures" / "old.svg").write_text("<svg/>\n<!-- llm-perf report 20250101T000000-0123456789ab -->\n")
    (run / "pictures" / "mine.svg").write_text("<svg/>")
    listed = ["nsys/run.sqlite", "manifest.json", "old.txt", "../outside", str(tmp_path / "outside"), "x\0y"]
    listed += ["regions/kernels.csv", "pictures/old.svg", "pictures/mine.svg"]
    (run / ".llm-perf-files").write_text("\n".join(listed), encoding="utf-8")
    assert main(["report", str(run), "--json", "--format", "json"]) == 0
    for path in (elsewhere / "kernels.csv", tmp_path / "outside", run / "nsys" / "run.sqlite", run / "old.txt"):
        assert path.exists()
    assert not (run / "pictures" / "old.svg").exists()  # a report wrote that, its content says
    assert (run / "pictures" / "mine.svg").exists()


@pytest.mark.parametrize("content", ["[" * 200_000, '{"a":' * 200_000, "NaN", "1e999", "", "\x00", "{", '{"steps": 5}'])
def test_small_json_files_of_any_content_cost_nothing_but_themselves(content: str, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (run / "manifest.json").write_text(content, encoding="utf-8")
    (run / "static_analysis").mkdir()
    (run / "static_analysis" / "static_compute.json").write_text(content, encoding="utf-8")
    state = state_of(run)
    assert state is not None
    assert [d.code for d in state.diagnostics] == ["MANIFEST_UNREADABLE"]
    assert main(["report", str(run), "--json", "--format", "json"]) == 0
    with pytest.raises(UnreadableInput):
        llm_perf_opt.load(run / "manifest.json")


@pytest.mark.parametrize("levels", [98, 300, 900])
def test_settings_nested_deeper_than_python_can_follow_are_told(levels: int, tmp_path: Path) -> None:
    """Parsing them takes one call a level, writing them down again three: the report ended in a traceback."""
    run = run_of(tmp_path)
    text = json.dumps({**cases.MANIFEST, "settings": {"a": "@"}}).replace('"@"', "[" * levels + "]" * levels)
    (run / "manifest.json").write_text(text, encoding="utf-8")
    for words in (["report", str(run), "--json"], ["runs", "list", str(run)], ["scrub", str(run), "--out", "clean"]):
        with contextlib.chdir(tmp_path):
            assert main(words) == 0
    state = state_of(run)
    assert state is not None
    assert ("MANIFEST_UNREADABLE" in [d.code for d in state.diagnostics]) == (levels > 98)


@pytest.mark.parametrize("content", ["[" * 200_000, "{", "5"])
def test_an_environment_that_cannot_be_read_is_not_copied_uncleaned(content: str, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (run / "env.json").write_text(content, encoding="utf-8")
    out = tmp_path / "clean"
    assert main(["scrub", str(run), "--out", str(out), "--json"]) == 0
    assert not (out / "env.json").exists() or (out / "env.json").read_text(encoding="utf-8") == "{}\n"
    assert (out / "nsys" / "run.sqlite").exists()


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    for name in ("manifest.json", "config.yaml", ".llm-perf-files"):
        os.mkfifo(run / name)
    assert main(["report", str(run), "--json", "--format", "json"]) == 0
    with pytest.raises(OSError, match="not a regular file"):
        read_bytes(Path("/dev/zero"))
    with pytest.raises(ValueError, match="larger than"):
        read_bytes(run / "nsys" / "run.sqlite", most=100)


@pytest.mark.parametrize(
    "selection",
    [
        5,
        {"include": 7},
        {"include": [None]},
        {"include": ["regex:("]},
        {"include": ["regex:(a+)+$"]},
        {"kernel_exclude": ["regex:a{99999999999}"]},
        {"include": ["*a*a*a*a*a*a*a*b"]},
        {"include": ["x"] * 10_000},
    ],
)
def test_a_selection_that_makes_no_sense_leaves_the_report_whole(selection: Any, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    manifest = {**cases.MANIFEST, "selection": selection}
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert main(["report", str(run), "--json", "--format", "json"]) == 0
    assert any(scope.regions for scope in llm_perf_opt.load(run).scopes)


@pytest.mark.parametrize("pattern", ["regex:(", "regex:a{99999999999}", "regex:" + "(" * 5000 + ")" * 5000])
def test_a_regular_expression_that_is_none_is_refused_with_a_way_out(pattern: str) -> None:
    with pytest.raises(UserError) as told:
        parse_pattern(pattern)
    assert "glob" in told.value.fix


def test_counters_too_large_to_add_up_are_left_out(tmp_path: Path) -> None:
    """They became infinities, which JSON does not know, and the report could not be read back."""
    text = recording("ncu-2025.3.1-h200-basic-raw-base.csv").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    row = next(i for i, line in enumerate(lines) if line.startswith('"0"'))
    cells = lines[row].split('","')
    for at in range(11, len(cells) - 1):
        cells[at] = "1e308" if cells[at].replace(".", "").isdigit() else cells[at]
    lines[row:row] = ['","'.join(cells)] * 3
    path = tmp_path / "x.csv"
    path.write_text("".join(lines), encoding="utf-8")
    assert main(["report", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
    found = llm_perf_opt.load(tmp_path / "out")
    assert any(scope.regions for scope in found.scopes)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "x.sqlite"
    path.write_bytes(plain_bytes(recording("nsys-*-train.sqlite")))
    return path


@pytest.mark.parametrize(
    ("deed", "what"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid", "more than 64 GPUs"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = rowid << 24", "more than 128 processes"),
        ("UPDATE NVTX_EVENTS SET domainId = rowid", "more than 256 NVTX domains"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0, end = 1 << 60", "impossible durations"),
        ("UPDATE NVTX_EVENTS SET start = 0, end = 1 << 60", "impossible durations"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 1 << 62", "impossible times"),
    ],
)
def test_what_no_program_does_is_damage(export: Path, deed: str, what: str) -> None:
    with closing(sqlite3.connect(export)) as db:
        for _ in range(6):
            db.execute("INSERT INTO NVTX_EVENTS SELECT * FROM NVTX_EVENTS")
        db.execute(deed)
        db.commit()
    with pytest.raises(UnreadableInput) as told:
        read_recording(export)
    assert what in told.value.message
    assert told.value.fix


@pytest.mark.parametrize("value", ["'%s'", "NULL", "1e300", "-5", "X'00ff'", "1 << 62", "''"])
def test_attributes_of_a_gpu_that_can_be_none_are_not_used(export: Path, value: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(export)) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(TARGET_INFO_GPU)")]
        chosen = [c for c in columns if c not in ("id", "cuDevice", "name", "vmId")]
        db.execute(f"UPDATE TARGET_INFO_GPU SET {', '.join(f'{c} = {value}' for c in chosen)}")
        db.commit()
    assert main(["report", str(export), "--out", str(tmp_path / "out"), "--json", "--format", "json"]) == 0
    (gpu,) = llm_perf_opt.load(tmp_path / "out").hardware
    assert gpu.name == "NVIDIA H200"


@pytest.mark.parametrize("number", [True, {}, [0], -1, 2**80, 0.5, None, "0"])
def test_a_trace_whose_devices_have_odd_numbers_is_read(number: Any, tmp_path: Path) -> None:
    trace = {**cases.small_trace(), "deviceProperties": [{"id": number, "name": "NVIDIA X", "numSms": 5}]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    assert main(["report", str(path), "--out", str(tmp_path / "out"), "--json", "--format", "json"]) == 0
    assert "NVIDIA X" not in {gpu.name for gpu in llm_perf_opt.load(tmp_path / "out").hardware}


def test_costs_beyond_any_number_are_passed_over(tmp_path: Path) -> None:
    row = {"seconds": 10**400, "program_s": 1.0, "launches": 1, "passes": 1, "time_only": False}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**cases.COSTS, "machines": {"m": [row]}}), encoding="utf-8")
    found, told = load_observations(path)
    assert (found, [d.code for d in told]) == ({}, ["COSTS_UNREADABLE"])


def test_names_of_any_length_are_cut_to_one_that_can_be_repeated(export: Path) -> None:
    with closing(sqlite3.connect(export)) as db:
        db.execute("UPDATE NVTX_EVENTS SET text = printf('%.*c', 1000000, 'x'), textId = NULL WHERE rowid % 2")
        db.commit()
    found = read_recording(export)
    assert isinstance(found, Timeline)
    assert max(map(len, found.strings)) < plausible.LONGEST_NAME + 50
    assert any(text.endswith("(1,000,000 characters)") for text in found.strings)


def test_a_log_beside_a_recording_is_read_and_nothing_is_put_beside_it(export: Path) -> None:
    """SQLite makes a third file for the two; it stayed in the folder of the recording."""
    before = len(timeline_of(export).kernels)
    with closing(sqlite3.connect(export)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
        db.commit()
        folder = export.parent / "received"
        folder.mkdir()
        for name in ("x.sqlite", "x.sqlite-wal"):
            (folder / name).write_bytes((export.parent / name).read_bytes())
    assert len(timeline_of(folder / "x.sqlite").kernels) == 2 * before
    assert sorted(path.name for path in folder.iterdir()) == ["x.sqlite", "x.sqlite-wal"]


def timeline_of(path: Path) -> Timeline:
    found = read_recording(path)
    assert isinstance(found, Timeline)
    return found


def test_a_chain_of_graph_nodes_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(plain_bytes(recording("nsys-*-graph_node.sqlite")))
    with closing(sqlite3.connect(path)) as db:
        for _ in range(7):
            db.execute("INSERT INTO CUDA_GRAPH_NODE_EVENTS SELECT * FROM CUDA_GRAPH_NODE_EVENTS")
        db.execute("UPDATE CUDA_GRAPH_NODE_EVENTS SET graphNodeId = rowid, originalGraphNodeId = rowid - 1")
        db.commit()
    assert codes(read_recording(path)) == []


def test_a_bomb_is_refused_while_it_is_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (70 << 20), 6))
    assert path.stat().st_size < 1 << 20
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "unpacks to more than" in told
    assert "unpack it yourself" in told


# -- any JSON at all -------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
templates = st.sampled_from([cases.MANIFEST, cases.CALIBRATION, cases.COSTS, cases.STATIC])


@st.composite
def nearly(draw: st.DrawFn, template: Any) -> Any:
    """A real file with one of its values replaced."""
    copy = holder = json.loads(json.dumps(template))
    while True:
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            holder[key] = draw(values)
            return copy
        holder = inner


@settings(max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_json_in_place_of_a_small_file_is_read_or_refused(data: st.DataObject) -> None:
    content = data.draw(values | templates.flatmap(nearly))
    folder = Path(os.environ["LLM_PERF_TEST_FOLDER"])
    path = folder / "manifest.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    state_of(folder)
    load_observations(path)
    read_log(path)
    for reader in (store.load, read_formula, read_json, llm_perf_opt.load):
        try:
            reader(path)
        except (UserError, ValueError):
            continue


@pytest.fixture(scope="module", autouse=True)
def folder_for_json(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["LLM_PERF_TEST_FOLDER"] = str(tmp_path_factory.mktemp("json"))
    yield
    del os.environ["LLM_PERF_TEST_FOLDER"]


@settings(max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_change_to_a_report_is_read_or_refused(data: st.DataObject) -> None:
    changed = data.draw(nearly(cases._finished()))
    path = Path(os.environ["LLM_PERF_TEST_FOLDER"]) / "report.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    try:
        found = llm_perf_opt.load(path)
    except UnreadableInput:
        return
    json.dumps(as_json(found.data))


@given(st.text(max_size=40))
def test_parsing_raises_nothing_but_value_errors(text: str) -> None:
    try:
        parse_json(text)
    except ValueError:
        return


@given(st.integers(1, 400), st.integers(-400, 400), st.booleans(), st.sampled_from(["e", "E", "e+", "E0", "e00"]))
@example(250, 99, True, "e")
@example(400, 0, True, "e")
@example(1, 400, False, "e00")
def test_numbers_are_finite_however_they_are_written(digits: int, power: int, point: bool, mark: str) -> None:
    number = "9" * digits + (".5" if point else "") + (f"{mark}{power}" if power > 0 else f"e{power}")
    if math.isinf(float(number)):
        with pytest.raises(ValueError, match="too large"):
            parse_json(f'{{"a": [1, -{number}]}}')
    else:
        assert parse_json(f'{{"a": [1, -{number}]}}') == {"a": [1, -float(number)]}


def test_a_launch_at_an_impossible_moment_leaves_the_warmup_of_others_alone(tmp_path: Path) -> None:
    million = 1_000_000
    begins = [1_000 * million * n for n in range(1, 13)]
    ranges = [("step", start, start + (400 if start == begins[0] else 10) * million) for start in begins]
    kernels = [("k", start + 10, start + 100, start + 2 * million) for start in begins]
    made = make_export(tmp_path / "far.sqlite", ranges, [*kernels, ("lost", -(2**63) + 1, begins[-1], begins[-1] + 50)])
    (step,) = (region for region in llm_perf_opt.load(made).data.main_scope.regions if region.name == "step")
    assert (step.timing.warmup.instances, step.inclusive.kernel_count) == (1, 12)
