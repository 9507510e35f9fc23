"""Stand-ins for nsys and ncu that say and leave what the real ones did on an H200.

They run the program they are given, print a real transcript, and write a real recording: formats are never
invented. `FAKE_NSYS` and `FAKE_NCU` choose a transcript; for ncu also one for each replay mode, as in
`range=ncu-range-transformer,app-range=ok`.

`FAKE_FAULT` lets a step go wrong, as in `ncu=crash-during`. Steps: version, nsys, stop, export, stats, ncu, raw, details.
Kinds: crash-before, crash-during, crash-after (of writing the report), nothing (exit 0 and no file), truncated
(half a file and exit 0), hang-before and hang-after (deaf to polite signals). A full disk needs no name: who
meets one says what the real tool said.
`FAKE_MARKS` is a folder where each step leaves a file when it begins (`ncu`) and when it writes (`ncu-writes`),
and where `FAKE_HOLD` names it, waits a while (`FAKE_HOLD_S`): the moment for a signal. With `FAKE_HOLD_UNTIL`, the while
begins when that file is there. `FAKE_LEDGER` is a file that lists every recording that was written whole, with its
checksum: what must not be lost.

With `--profile-from-start off` ncu profiles only if the program has said `cudaProfilerStart` in `FAKE_PROFILER`, a file.
`FAKE_SAMPLING` is `busy` or `refused` where another profiler samples the GPU (since before, or since just now), and `silent`
where nsys does not answer what it can sample.
`FAKE_PACE_NSYS` and `FAKE_PACE_NCU` are seconds between two lines of a transcript: the real ones take their time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import RECORDINGS
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report import write as write_all

TRANSCRIPTS = Path(__file__).parent / "transcripts"
TIMELINE = RECORDINGS / "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite.xz"
COUNTERS = RECORDINGS / "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config.ncu-rep.xz"
# For runs whose numbers nobody looks at: five kernels in place of nine thousand.
SMALL_TIMELINE = RECORDINGS / "nsys-2025.3.1-h200-threads.sqlite.xz"
SMALL_COUNTERS = RECORDINGS / "ncu-2025.3.1-h200-threads-scope-process.ncu-rep.xz"
RANGES = RECORDINGS / "ncu-2025.3.1-h200-decoder-8layers-warm-app-range.ncu-rep.xz"
RAW = RECORDINGS / "ncu-2025.3.1-h200-basic-raw.csv"
DETAILS = RECORDINGS / "ncu-2025.3.1-h200-basic-details.csv"  # printed with --csv: what is in it is ncu's affair

RECORDING_BYTES = 80_000  # of the stand-in for an .nsys-rep, which only nsys itself can read
HELP = {
    "--help": "help",
    "--list-sets": "sets",
    "--list-sections": "sections",
    "--gpu-metrics-devices=help": "gpu-metrics-devices",
    "--gpu-metrics-set=help": "gpu-metrics-set",
}
# Most of what a run starts are questions for help: they are answered before anything is imported.
_START = """#!{python} -IS
import posix
import sys
SETTINGS = {settings!r}
HELP = {help!r}
odd = posix.environ.get(b"FAKE_SAMPLING") in (b"busy", b"silent") and sys.argv[-1] == "--gpu-metrics-devices=help"
if len(sys.argv) < 4 and sys.argv[-1] in HELP and not odd:
    name = f"{{SETTINGS['transcripts']}}/{{SETTINGS['tool']}}-2025.3.1-{{HELP[sys.argv[-1]]}}.txt"
    print(open(name, encoding="utf-8").read())
else:
    sys.path.insert(0, {folder!r})
    import fake_profiler
    fake_profiler.SETTINGS = SETTINGS
    sys.exit(fake_profiler.main(sys.argv[1:]))
"""


def write(folder: Path, timeline: Path = TIMELINE, counters: Path = COUNTERS) -> dict[str, str]:
    """Put both into `folder`; the variables with which they are found. `timeline`, `counters`: what they record."""
    for tool in ("nsys", "ncu"):
        settings = {
            "tool": tool,
            "python": sys.executable,
            "transcripts": str(TRANSCRIPTS),
            "timeline": str(timeline),
            "counters": str(counters),
            "ranges": str(RANGES),
            "raw": str(RAW),
            "details": str(DETAILS),
            "folder": str(folder),
            "recording_bytes": RECORDING_BYTES,
        }
        program = folder / tool
        program.write_text(
            _START.format(python=sys.executable, help=HELP, settings=settings, folder=str(Path(__file__).parent))
        )
        program.chmod(0o755)
    return {f"LLM_PERF_{tool.upper()}": str(folder / tool) for tool in ("nsys", "ncu")}


def is_stand_in(program: str) -> bool:
    """Whether this is one of them."""
    try:
        with Path(program).open(encoding="utf-8") as file:
            return file.readline() == _START.partition("{python}")[0] + f"{sys.executable} -IS\n"
    except (OSError, UnicodeDecodeError):
        return False


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put both into `folder`, and let them be found."""
    for name, value in write(folder).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake nsys and ncu, found through the environment; the working folder is empty."""
    install(tmp_path, monkeypatch)
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    return tmp_path


@pytest.fixture
def small_tools(tools: Path) -> Path:
    """The same, and what they record is small."""
    write(tools, SMALL_TIMELINE, SMALL_COUNTERS)
    return tools


@pytest.fixture
def json_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a report only `report.json` is written, which `llm_perf_opt.load` reads.

    For tests of what is measured, and not of how it is shown: most of the time of a run with the stand-ins goes into
    the other files.
    """
    whole = write_all.write_report

    def write_report(
        report: NCUProfileRegionReport, out: Path, formats: Sequence[str], *others: Any, **more: Any
    ) -> list[Path]:
        assert "json" in formats
        return whole(report, out, ("json",), *others, **more)

    monkeypatch.setattr(write_all, "write_report", write_report)
