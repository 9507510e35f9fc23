"""NVIDIA's reader is native code: whatever it does, the program that asked goes on and says what happened.

Each case puts a stand-in for the library in the way of the real worker process, in place of a report that
makes the real one do the same: those differ from version to version.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import plain_bytes, recording
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import ExitCode, MissingTool, UnreadableInput
from llm_perf_opt.readers import ncu_rep
from llm_perf_opt.readers.ncu_module import module_folders

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nvidias_reader_is_asked_anew")]
REPORT = "ncu-*-h200-threads-scope-thread.ncu-rep"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for `ncu_report` is found before the real one; that of an installed ncu is not."""
    folder = tmp_path / "library"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("LLM_PERF_NCU", "/nowhere/ncu")
    return folder / "ncu_report.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(plain_bytes(recording(REPORT)))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UnreadableInput) as told:
        ncu_rep.read_ncu_rep(path, path.name)
    assert told.value.fix == "Copy the file again, or profile again."
    return told.value.message


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import os; os._exit(0)", "exit code 0"),
        ("raise RuntimeError('bad block')", "gave up on it (bad block)"),
        ("raise SystemExit(3)", "exit code 3"),
        ("return bytearray(1 << 31)", "more memory than a report of this size needs"),
        ("return 5", "gave up on it"),
    ],
)
def test_a_reader_that_dies_is_an_error_with_its_cause(library: Path, path: Path, deed: str, told: str) -> None:
    library.write_text(f"def load_report(path):\n    {deed}\n", encoding="utf-8")
    before = set(path.parent.iterdir())
    assert told in refusal(path)
    assert set(path.parent.iterdir()) == before  # no core file, nothing else


def test_a_reader_that_never_returns_is_ended(library: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = path.parent / "pid"
    library.write_text(
        f"import os, time\ndef load_report(path):\n    open({str(pid)!r}, 'w').write(str(os.getpid()))\n    while True: time.sleep(1)\n",
        encoding="utf-8",
    )
    for silence in (0.5, 2.0, 8.0, 32.0):  # where the machine is busy, its process has not even begun after the first
        monkeypatch.setattr(ncu_rep, "_LONGEST_SILENCE", silence)
        assert "did not answer for" in refusal(path)
        if pid.exists():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text(encoding="ascii")), 0)


def test_a_reader_that_never_stops_talking_is_ended(library: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor of the answer is the worker's own, but code run wild can find it."""
    library.write_text(
        "import os\ndef load_report(path):\n"
        "    while True:\n        for fd in range(3, 9):\n            try: os.write(fd, b' ' * 65536)\n            except OSError: pass\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(ncu_rep, "_MOST_ANSWER", 1 << 20)
    assert "without an end" in refusal(path)


def test_what_the_reader_prints_is_not_taken_for_its_answer(library: Path, path: Path) -> None:
    library.write_text(
        "import os\ndef load_report(path):\n    os.write(1, b'{\"end\": 5}\\n')\n    print('{\"end\": 5}', flush=True)\n    raise RuntimeError('no')\n",
        encoding="utf-8",
    )
    assert "gave up on it (no)" in refusal(path)


def test_without_the_package_the_way_to_get_it_is_told(library: Path, path: Path) -> None:
    library.write_text("raise ImportError('not here')\n", encoding="utf-8")
    with pytest.raises(MissingTool) as told:
        ncu_rep.read_ncu_rep(path, path.name)
    assert "pip install ncu-report" in told.value.fix
    assert told.value.code == ExitCode.MISSING_TOOL


def test_the_module_of_an_installed_ncu_reads_as_well(
    library: Path, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every Nsight Compute has NVIDIA's reader in a folder of its own; here the package's own files lie there."""
    nvidias = pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed (Linux x86-64 only)")
    library.write_text("raise ModuleNotFoundError('not here')\n", encoding="utf-8")
    folder = tmp_path / "nsight-compute" / "extras" / "python"
    folder.mkdir(parents=True)
    (folder / "ncu_report.py").symlink_to(nvidias.__file__)
    for native in Path(nvidias.__file__).parent.glob("*.so"):
        (folder / native.name).symlink_to(native)
    ncu = tmp_path / "nsight-compute" / "ncu"
    ncu.touch(0o755)
    monkeypatch.setenv("LLM_PERF_NCU", str(ncu))
    assert len(ncu_rep.read_ncu_rep(path, path.name).actions) == 5


@pytest.mark.parametrize("named", [True, False])
def test_where_nvidias_module_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LLM_PERF_NCU"):
        monkeypatch.delenv(variable, raising=False)
    for version in ("2024.1.1", "2025.3.1", "2023.1.0"):
        folder = tmp_path / "opt" / "nvidia" / "nsight-compute" / version
        (folder / "extras" / "python").mkdir(parents=True)
        (folder / "ncu").touch(0o755)
        if version != "2023.1.0":  # of one that was removed the folder is left
            (folder / "extras" / "python" / "ncu_report.py").touch()
    versions = ["2025.3.1", "2024.1.1"]
    if named:
        monkeypatch.setenv("LLM_PERF_NCU", str(folder.with_name("2024.1.1") / "ncu"))
        versions = ["2024.1.1"]
    assert [found.parents[1].name for found in module_folders(tmp_path)] == versions


def test_the_script_of_a_toolkit_leads_to_the_ncu_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cuda-13.0" / "nsight-compute-2025.3.1" / "extras" / "python"
    folder.mkdir(parents=True)
    (folder / "ncu_report.py").touch()
    (tmp_path / "cuda-13.0" / "bin").mkdir()
    monkeypatch.setenv("LLM_PERF_NCU", str(tmp_path / "cuda-13.0" / "bin" / "ncu"))
    assert module_folders() == [folder]


def test_a_run_is_reported_without_its_counters_where_nothing_reads_them(
    library: Path, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library.write_text("raise ImportError('not here')\n", encoding="utf-8")
    for kind, name, content in (
        ("nsys", "run.sqlite", plain_bytes(recording("nsys-*-h200-threads.sqlite"))),
        ("ncu", "run.ncu-rep", path.read_bytes()),
    ):
        (tmp_path / "run" / kind).mkdir(parents=True)
        (tmp_path / "run" / kind / name).write_bytes(content)
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(scope["kernel_count"] for scope in told["scopes"] if scope["scope"] == "aggregate") == 5
    (why,) = [d for d in told["diagnostics"] if d["code"] == "RECORDING_UNREADABLE"]
    assert "pip install ncu-report" in why["fix"]


def test_the_demo_goes_without_counters_where_nothing_reads_them(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library.write_text("raise ImportError('not here')\n", encoding="utf-8")
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0
    assert "This report is without counters." in capsys.readouterr().err


def test_nothing_beside_the_report_is_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's folder with a report in it may hold anything."""
    pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed (Linux x86-64 only)")
    for name in ("json.py", "ncu_report.py", "resource.py"):
        (path.parent / name).write_text("import os; os.abort()\n", encoding="utf-8")
    monkeypatch.chdir(path.parent)
    assert len(ncu_rep.read_ncu_rep(path, path.name).actions) == 5


def test_reading_many_reports_does_not_fill_the_memory(path: Path) -> None:
    """NVIDIA's reader keeps what it has read until its process ends."""
    pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed (Linux x86-64 only)")
    program = (
        "import sys; from pathlib import Path; from llm_perf_opt.readers.ncu_rep import read_ncu_rep\n"
        "for _ in range(3): read_ncu_rep(Path(sys.argv[1]), 'x')\n"
        # Not getrusage: its peak begins with that of whoever started us.
        "print('ncu_report' in sys.modules, Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    loaded, peak_kb = done.stdout.split()
    assert loaded == "False"
    assert int(peak_kb) < 200_000


def test_the_worker_s_memory_is_limited_and_its_crash_leaves_no_core(library: Path, path: Path) -> None:
    seen = path.parent / "limits"
    library.write_text(
        "import resource\ndef load_report(path):\n"
        f"    open({str(seen)!r}, 'w').write(str((resource.getrlimit(resource.RLIMIT_AS)[1], resource.getrlimit(resource.RLIMIT_CORE)[1])))\n"
        "    raise RuntimeError('done')\n",
        encoding="utf-8",
    )
    refusal(path)
    memory, core = map(int, seen.read_text(encoding="ascii").strip("()").split(","))
    assert core == 0
    assert memory != resource.RLIM_INFINITY
    assert memory < 2e9
