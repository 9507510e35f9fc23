"""What SECURITY.md promises: nothing of a recording or a run directory is run, followed or believed.

Escaping of names in reports is in test_hostile_names, the resuming of other people's runs in test_resume.
"""

from __future__ import annotations

import ast
import csv
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import plain_bytes
from fake_tools import TIMELINE
from fake_tools import tools as tools
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError
from llm_perf_opt.readers import open as readers
from llm_perf_opt.report.csv_report import cell
from llm_perf_opt.rundir import log_cleaning as clean_logs
from llm_perf_opt.rundir.secrets import REMOVED
from llm_perf_opt.workloads.datasets import load_items
from llm_perf_opt.workloads.workload_options import DatasetOptions
from synthetic import make_export
from test_hostile_names import HOSTILE, hostile_export
from test_runs import make_run

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").glob("*.py")])

# -- no code is run from data ----------------------------------------------------------------------

# Modules whose readers run code that a file brings along.
RUN_WHAT_THEY_READ = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"),
    *("subprocess.getstatusoutput", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("hydra.utils.instantiate", "instantiate", "torch.load", "numpy.load", "np.load", "joblib.load"),
    *("tempfile.mktemp", "pandas.read_pickle", "runpy.run_path"),
}


def dangers(source: str) -> Iterator[str]:
    """What in a program could run code out of a file, or a shell."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"import {a.name}" for a in node.names if a.name.split(".")[0] in RUN_WHAT_THEY_READ)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUN_WHAT_THEY_READ:
            yield f"from {node.module}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in FORBIDDEN_CALLS:
                yield f"{name}(…)"
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                    yield f"{name}(shell=…)"
                if keyword.arg == "allow_pickle":
                    yield f"{name}(allow_pickle=…)"


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "eval(x)", "yaml.load(f)", "run(a, shell=True)", "run(a, shell=s)"],
)
def test_the_search_for_dangers_finds_them(source: str) -> None:
    assert list(dangers(source))


@pytest.mark.parametrize("source", ["model.eval()", "yaml.safe_load(f)", "run(a, shell=False)", "re.compile(p)"])
def test_the_search_for_dangers_leaves_the_harmless_alone(source: str) -> None:
    assert not list(dangers(source))


@pytest.mark.slow
def test_no_source_runs_code_out_of_a_file_or_a_shell() -> None:
    assert len(SOURCES) > 200
    found = {str(path.relative_to(ROOT)): list(dangers(path.read_text(encoding="utf-8"))) for path in SOURCES}
    # The cell magic runs the cell that the user has just typed, as IPython would: no file is near.
    typed = {"src/llm_perf_opt/workloads/notebook_cell.py": ["compile(…)", "exec(…)"]}
    assert {path: what for path, what in found.items() if what} == typed


def test_yaml_with_python_in_it_is_refused(tmp_path: Path) -> None:
    manifest = tmp_path / "inputs.yaml"
    manifest.write_text(f"!!python/object/apply:os.system ['touch {tmp_path}/owned']\n")
    with pytest.raises(UserError):
        load_items(DatasetOptions(), manifest, tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.process
def test_a_configuration_in_a_run_is_shown_and_never_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x1" * 12)
    run = make_run("a", recordings=True)
    (run / "config.yaml").write_text(
        "a: ${oc.env:HF_TOKEN}\nmodel: {_target_: os.system, _args_: [touch owned]}\nb: !!python/name:os.system\n"
    )
    assert main(["report", str(run), "--json"]) == 0
    shown = (run / "report.json").read_text()
    assert "_target_: os.system" in shown
    assert "x1x1x1" not in shown
    assert not list(tmp_path.rglob("owned"))


# -- nothing is followed out of the folder ---------------------------------------------------------


@pytest.fixture
def untrusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A run from elsewhere, and a file of this user that it would like to have."""
    monkeypatch.chdir(tmp_path)
    run = make_run("received", recordings=True)
    home = tmp_path / "home"
    home.mkdir()
    (home / "victim.svg").write_text("precious")
    return run, home


@pytest.mark.process
@pytest.mark.parametrize("name", ["pictures", "ncu/regions", "ncu/regions/LLM@eager"])
def test_a_report_is_not_written_through_a_link(
    untrusted: tuple[Path, Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run, home = untrusted
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(home)
    assert main(["report", str(run)]) == 2
    assert "is a link" in capsys.readouterr().err
    assert [p.name for p in home.iterdir()] == ["victim.svg"]


@pytest.mark.process
def test_links_in_the_place_of_files_are_replaced_not_followed(untrusted: tuple[Path, Path]) -> None:
    run, home = untrusted
    for name in ("report.html", "report.json", f".report.md.{os.getpid()}.tmp", f".kernels.csv.{os.getpid()}.tmp"):
        (run / name).symlink_to(home / "victim.svg")
    assert main(["report", str(run), "--json"]) == 0
    assert (home / "victim.svg").read_text() == "precious"
    assert not (run / "report.html").is_symlink()


@pytest.mark.process
def test_a_list_of_earlier_files_deletes_nothing_elsewhere(untrusted: tuple[Path, Path]) -> None:
    run, home = untrusted
    (home / "report.md").write_text("precious")
    stale = run / "ncu/regions/gone/report.md"
    stale.parent.mkdir(parents=True)
    stale.write_text("# gone\n\n|  | inclusive | own |\n")  # as our reports of regions begin
    notes = run / "ncu/regions/mine/report.md"
    notes.parent.mkdir()
    notes.write_text("notes of the user")
    (run / "ncu/regions/linked").symlink_to(home)
    (run / "mine.md").write_text("no report writes such a file")
    names = [
        "ncu/regions/linked/report.md",
        "../../../home/report.md",
        str(home / "report.md"),
        "ncu/regions/gone/report.md",
        "ncu/regions/mine/report.md",
        "mine.md",
    ]
    (run / ".llm-perf-files").write_text("".join(f"{name}\n" for name in names))
    assert main(["report", str(run), "--json"]) == 0
    assert (home / "report.md").read_text() == "precious"
    assert not stale.exists()
    assert notes.exists()  # only its content says whose it is
    assert (run / "mine.md").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    "name", ["manifest.json", ".lock", ".llm-perf-files", "config.yaml", "static_analysis/static_compute.json"]
)
def test_a_pipe_in_the_place_of_a_file_does_not_hang(untrusted: tuple[Path, Path], name: str) -> None:
    run, _ = untrusted
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    assert main(["runs", "list", str(run), "--json"]) == 0


# -- terminals and spreadsheets --------------------------------------------------------------------


def controls(text: str) -> list[str]:
    return [c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066"]


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ["ranges", "run.sqlite"],
        ["ranges", "run.sqlite", "--include", "no such \x1b[31m range"],
        ["plan", "--timeline", "run.sqlite", "--", "python"],
        ["plan", "--timeline", "run.sqlite", "--sample", "first", "--", "python"],
        ["report", "no\x1b[31m such\x07.sqlite"],
        ["report", "run.sqlite", "--out", "out\x1b[31m"],
    ],
)
def test_no_escape_sequence_reaches_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile_export(tmp_path / "run.sqlite")
    assert main(words) in (0, 2)
    shown = capsys.readouterr()
    assert shown.out + shown.err
    assert controls(shown.out + shown.err) == []


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r\n=1", "＝1", "  =1", "\u3000@x"])
def test_a_text_that_begins_like_a_formula_is_a_text_in_a_spreadsheet(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-1, -1.5, None, "", "name", "a=b", "(-1)"])
def test_numbers_and_names_stay_as_they_are_in_a_spreadsheet(value: object) -> None:
    assert cell(value) == value


def test_control_characters_are_shown_in_a_spreadsheet_and_do_nothing_in_a_terminal() -> None:
    assert cell("\x1b[31mred\x00\x9b\u202e\x7f") == "\\x1b[31mred\\x00\\x9b\\u202e\\x7f"
    assert cell("two\r\n\tlines ä €") == "two\r\n\tlines ä €"
    assert cell("\t\x1b") == "'\t\\x1b"


@pytest.mark.parametrize("name", ["a\r=HYPERLINK(1)", "\r=1", "a\r\r\n=1", "\n\r=1"])
def test_a_carriage_return_begins_no_row(name: str, tmp_path: Path) -> None:
    """Python writes one unquoted, and the rest of the name was a row of its own, that began with a formula."""
    make_export(tmp_path / "x.sqlite", [(name, 0, 100)], [(name, 10, 20, 30)])
    assert main(["report", str(tmp_path / "x.sqlite"), "--out", str(tmp_path / "out")]) == 0
    for file in (tmp_path / "out").rglob("*.csv"):
        with file.open(newline="", encoding="utf-8") as content:
            rows = list(csv.reader(content))
        assert {len(row) for row in rows} == {len(rows[0])}, file
        assert not [c for row in rows for c in row if c.startswith("=")]


def test_no_table_holds_a_formula(tmp_path: Path) -> None:
    source = hostile_export(tmp_path / "run.sqlite")
    assert any(name.startswith("=") for name in HOSTILE)
    assert main(["report", str(source), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert main(["export", str(source), "--csv", str(tmp_path / "tables"), "--json"]) == 0
    tables = [*(tmp_path / "out").rglob("*.csv"), *(tmp_path / "tables").rglob("*.csv")]
    assert len(tables) > len(HOSTILE)
    for table in tables:
        with table.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                for value in row:
                    assert value[:1] not in ("=", "+", "@", "\t", "\r"), table
                    assert value[:1] != "-" or float(value) < 0, table
        text = table.read_text(encoding="utf-8")
        assert not set(controls(text)) - {"\t", "\r", "\n"}, table


# -- permissions -----------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("mask", [0o077, 0o027, 0o002])
def test_files_have_the_permissions_the_user_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int
) -> None:
    monkeypatch.chdir(tmp_path)
    old = os.umask(mask)
    try:
        run = make_run("a")
        source = make_export(tmp_path / "run.sqlite", [("r", 0, 100)], [("k", 10, 20, 50)])
        assert main(["report", str(source), "--out", str(run), "--json"]) == 0
    finally:
        os.umask(old)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"report.json", "manifest.json", "env.json", ".lock"} <= {path.name for path in files}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~mask}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (run, *run.rglob("*")) if p.is_dir()} == {0o777 & ~mask}


def test_unpacked_recordings_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = readers._read_plain

    def spy(path: Path, *rest: object) -> object:
        seen.append((path, stat.S_IMODE(path.parent.stat().st_mode)))
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(readers, "_read_plain", spy)
    old = os.umask(0)
    try:
        readers.read_recording(TIMELINE)
    finally:
        os.umask(old)
    ((path, mode),) = seen
    assert mode == 0o700
    assert not path.parent.exists()  # and gone afterwards


# -- secrets ---------------------------------------------------------------------------------------

SECRETS = {
    "HF_TOKEN": "hf_" + "0123456789abcdef" * 2,
    "DB_PASSWORD": "tr0ub4dor&three",
    "SERVICE_URL": "https://user:hunter2hunter2@example.org/x",
}


@pytest.mark.process
def test_secrets_are_in_no_file_of_a_run(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    printing = "import os, sys; print(os.environ['HF_TOKEN'], os.environ['DB_PASSWORD'], sys.argv[2]); sys.exit(3)"
    work = [sys.executable, "-c", printing, "--api-key", "sesame-open-4711"]
    assert main(["profile", "--no-measure", "--no-counters", "--out", "run", "--json", "--", *work]) == 4
    said = Path("run/workload.log").read_text()
    assert said.count(REMOVED) == 3
    for file in Path("run").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            for secret in (*SECRETS.values(), "sesame-open-4711", "hunter2hunter2"):
                assert secret.encode() not in content, file


def test_logs_lose_secrets_wherever_they_stand(tmp_path: Path) -> None:
    log = tmp_path / "program.log"
    filler = b"step 1 of many, nothing to see here\n" * 90_000  # 3.2 MB: neither end is near the middle
    middle = b"connect with tr0ub4dor&three\xff\n"
    log.write_bytes(b"HF_TOKEN=abcdefgh\n" + filler + middle + filler + b"Bearer sk-" + b"q1" * 12 + b"\n")
    log.chmod(0o640)
    clean_logs.clean_logs([log, tmp_path / "missing.log"], [], SECRETS)
    content = log.read_bytes()
    assert content.count(REMOVED.encode()) == 3
    assert b"tr0ub4dor" not in content
    assert b"abcdefgh" not in content
    assert b"q1q1" not in content
    assert content.count(b"nothing to see here\n") == 180_000
    assert stat.S_IMODE(log.stat().st_mode) == 0o640


def test_a_secret_across_two_parts_of_a_log_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_logs, "_PART", 64)
    log = tmp_path / "program.log"
    for offset in range(40, 80):
        log.write_bytes(b"x" * offset + b" tr0ub4dor&three\n" + b"y" * 50 + b"\n")
        clean_logs.clean_logs([log], [], SECRETS)
        assert b"tr0ub4dor" not in log.read_bytes()


def test_a_log_without_secrets_is_not_touched(tmp_path: Path) -> None:
    log = tmp_path / "program.log"
    log.write_text("tokens/s: 100\nkey=value pairs, author: nobody\n")
    before = log.stat()
    clean_logs.clean_logs([log], [], SECRETS)
    assert log.stat().st_ino == before.st_ino


@pytest.mark.process
def test_a_manifest_says_nothing_of_a_secret_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_perf_opt.rundir.directory import RunDirectory

    monkeypatch.chdir(tmp_path)
    settings = {
        "model": {"config": {"api_key": "sesame-open-4711"}},
        "workload": ["run", "--token", "sesame-open-4711"],
    }
    run = RunDirectory.create(Path("run"), ["python", "--token=sesame-open-4711"], settings)
    run.release()
    for name in ("manifest.json", "config.yaml", "env.json"):
        assert "sesame" not in (run.path / name).read_text()
    assert json.loads((run.path / "manifest.json").read_text())["settings"]["model"]["config"] == {"api_key": REMOVED}


def test_recordings_are_what_they_were(tmp_path: Path) -> None:
    # Reading changes nothing: a recording may be evidence.
    source = tmp_path / "run.sqlite"
    source.write_bytes(plain_bytes(TIMELINE))
    source.chmod(0o444)
    assert main(["report", str(source), "--out", str(tmp_path / "out"), "--format", "json", "--json"]) == 0
    assert source.read_bytes() == plain_bytes(TIMELINE)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("run.sqlite")] == ["run.sqlite"]
