"""Stand-ins for nsys and ncu that say and leave what the real ones did on an H200.

They run the program they are given, print a real transcript, and write a real recording: formats are never
invented. `FAKE_NSYS` and `FAKE_NCU` choose a transcript; for ncu also one for each replay mode, as in
`range=ncu-range-transformer,app-range=ok`.

`FAKE_FAULT` lets one step go wrong, as in `ncu=crash-during`. Steps: version, nsys, stop, export, stats, ncu, raw.
Kinds: crash-before, crash-during, crash-after (of writing the report), nothing (exit 0 and no file), truncated
(half a file and exit 0), hang-before and hang-after (deaf to polite signals). A full disk needs no name: who
meets one says what the real tool said.
`FAKE_MARKS` is a folder where each step leaves a file when it begins (`ncu`) and when it writes (`ncu-writes`),
and then waits `FAKE_HOLD` seconds: the moment for a signal. `FAKE_LEDGER` is a file that lists every recording
that was written whole, with its checksum: what must not be lost.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import RECORDINGS

TRANSCRIPTS = Path(__file__).parent / "transcripts"
TIMELINE = RECORDINGS / "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite.xz"
COUNTERS = RECORDINGS / "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config.ncu-rep.xz"
RANGES = RECORDINGS / "ncu-2025.3.1-h200-decoder-8layers-warm-app-range.ncu-rep.xz"
RECORDING_BYTES = 80_000  # of the stand-in for an .nsys-rep, which only nsys itself can read
RAW = RECORDINGS / "ncu-2025.3.1-h200-basic-raw.csv"

_PROGRAM = """#!{python}
import errno, gzip, hashlib, json, lzma, os, pathlib, signal, subprocess, sys, time
TRANSCRIPTS = pathlib.Path({transcripts!r})
T = json.loads((TRANSCRIPTS / "ncu-nsys-2025.3.1-h200.json").read_text(encoding="utf-8"))
HELP = {{"--help": "help", "--list-sets": "sets", "--list-sections": "sections"}}
argv = sys.argv[1:]
tool = {tool!r}
def say(name):
    print(T[name]["stdout"]); print(T[name]["stderr"], file=sys.stderr); return T[name]["exit"]
def unpacked(name):
    data = pathlib.Path(name).read_bytes()
    return lzma.decompress(data) if name.endswith(".xz") else gzip.decompress(data) if name.endswith(".gz") else data
FAULTS = dict(part.split("=") for part in os.environ.get("FAKE_FAULT", "").split(",") if part)
def at(step):
    folder = os.environ.get("FAKE_MARKS")
    if folder and not pathlib.Path(folder, step).exists():
        pathlib.Path(folder, step).touch()
        time.sleep(float(os.environ.get("FAKE_HOLD", "0")))
def crash():
    signal.signal(signal.SIGSEGV, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGSEGV)
def hang():
    for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
    while True: time.sleep(600)
def begin(step):
    at(step)
    kind = FAULTS.get(step)
    if kind == "crash-before": crash()
    if kind == "hang-before": hang()
    if kind == "nothing" and step not in ("nsys", "ncu"): sys.exit(0)
def leave(step, data, target):
    """Write a recording, or what the fault leaves of it. True: it is whole."""
    at(step + "-writes")
    kind = FAULTS.get(step)
    if kind == "nothing": sys.exit(0)
    half = kind in ("crash-during", "truncated")
    try:
        with open(target, "wb", buffering=0) as file:
            rest = data[: len(data) // 2] if half else data
            while rest: rest = rest[file.write(rest[: 1 << 16]):]
    except OSError as error:
        if step == "nsys": pathlib.Path(target).unlink(missing_ok=True)  # it keeps its raw stream elsewhere
        sys.exit(say(tool + "-disk-full") if error.errno in (errno.ENOSPC, errno.EFBIG) else say(tool + "-no-folder"))
    if kind == "crash-during": crash()
    if not half and "FAKE_LEDGER" in os.environ and step in ("nsys", "ncu"):
        with open(os.environ["FAKE_LEDGER"], "a") as ledger:
            ledger.write(json.dumps([str(pathlib.Path(target).resolve()), hashlib.sha256(data).hexdigest()]) + "\n")
    if kind == "crash-after": crash()
    if kind == "hang-after": hang()
def value(option, otherwise=None):
    return argv[argv.index(option) + 1] if option in argv else otherwise
if argv == ["--version"]:
    begin("version")
    sys.exit(say(tool + "-version"))
if argv[-1] in HELP and len(argv) < 3:
    print((TRANSCRIPTS / (tool + "-2025.3.1-" + HELP[argv[-1]] + ".txt")).read_text(encoding="utf-8")); sys.exit(0)
out = value("-o")
if argv[0] == "export":
    begin("export")
    whole = pathlib.Path(argv[-1]).stat().st_size == {recording_bytes}
    if not whole: sys.exit(say("nsys-export-damaged"))
    leave("export", unpacked({timeline!r}), out); sys.exit(0)
if argv[0] == "stop":
    begin("stop")
    (pathlib.Path({folder!r}) / "stopped").write_text(argv[1]); sys.exit(0)
if argv[0] == "stats":
    begin("stats")
    print("Time (%),Total Time (ns)"); sys.exit(0)
if "--import" in argv:
    begin("raw")
    print((pathlib.Path({raw!r})).read_text(encoding="utf-8")); sys.exit(0)
mode = value("--replay-mode", "kernel")
scenario = os.environ.get("FAKE_" + tool.upper(), "ok")
if "=" in scenario:
    scenario = dict(part.split("=") for part in scenario.split(",")).get(mode, "ok")
log = open(value("--log-file"), "w") if "--log-file" in argv else None
if log: sys.stdout = log
begin(tool)
work = argv[argv.index({python!r}):]
stopped, child = False, None
def stop(*_):
    global stopped
    stopped = True
    if child: child.kill()
signal.signal(signal.SIGINT, stop)
child = subprocess.Popen(work)
code = child.wait()
if scenario != "ok":
    sys.exit(say(scenario))
if tool == "nsys":
    leave("nsys", bytes({recording_bytes}), out + ".nsys-rep"); say("nsys-ok")
elif mode == "kernel":
    leave("ncu", unpacked({counters!r}), out + ".ncu-rep"); say("ncu-ok-kernel")
else:
    leave("ncu", unpacked({ranges!r}), out + ".ncu-rep"); say("ncu-ok-app-range")
if code < 0: code = 128 - code  # a program that a signal ended, as nsys and a shell tell it
sys.exit(130 if stopped else code)
"""


def write(folder: Path, timeline: Path = TIMELINE, counters: Path = COUNTERS) -> dict[str, str]:
    """Put both into `folder`; the variables with which they are found. `timeline`, `counters`: what they record."""
    for tool in ("nsys", "ncu"):
        program = folder / tool
        program.write_text(
            _PROGRAM.format(
                python=sys.executable,
                transcripts=str(TRANSCRIPTS),
                tool=tool,
                timeline=str(timeline),
                counters=str(counters),
                recording_bytes=RECORDING_BYTES,
                ranges=str(RANGES),
                raw=str(RAW),
                folder=str(folder),
            ),
            encoding="utf-8",
        )
        program.chmod(0o755)
    return {f"LLM_PERF_{tool.upper()}": str(folder / tool) for tool in ("nsys", "ncu")}


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
