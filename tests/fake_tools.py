"""Stand-ins for nsys and ncu that say and leave what the real ones did on an H200.

They run the program they are given, print a real transcript, and write a real recording: formats are never
invented. `FAKE_NSYS` and `FAKE_NCU` choose a transcript; for ncu also one for each replay mode, as in
`range=ncu-range-transformer,app-range=ok`. `FAKE_PACE_NSYS` and `FAKE_PACE_NCU` are seconds between two lines of
a transcript: the real ones take their time.
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
RAW = RECORDINGS / "ncu-2025.3.1-h200-basic-raw.csv"

_PROGRAM = """#!{python}
import json, lzma, os, pathlib, signal, subprocess, sys, time
TRANSCRIPTS = pathlib.Path({transcripts!r})
T = json.loads((TRANSCRIPTS / "ncu-nsys-2025.3.1-h200.json").read_text(encoding="utf-8"))
HELP = {{"--help": "help", "--list-sets": "sets", "--list-sections": "sections"}}
argv = sys.argv[1:]
tool = {tool!r}
def say(name):
    for line in T[name]["stdout"].splitlines():
        print(line, flush=True); time.sleep(float(os.environ.get("FAKE_PACE_" + tool.upper(), 0)))
    print(T[name]["stderr"], file=sys.stderr); return T[name]["exit"]
def leave(packed, target):
    pathlib.Path(target).write_bytes(lzma.decompress(pathlib.Path(packed).read_bytes()))
def value(option, otherwise=None):
    return argv[argv.index(option) + 1] if option in argv else otherwise
if argv == ["--version"]:
    sys.exit(say(tool + "-version"))
if argv[-1] in HELP and len(argv) < 3:
    print((TRANSCRIPTS / (tool + "-2025.3.1-" + HELP[argv[-1]] + ".txt")).read_text(encoding="utf-8")); sys.exit(0)
out = value("-o")
if argv[0] == "export":
    leave({timeline!r}, out); sys.exit(0)
if argv[0] == "stop":
    (pathlib.Path({folder!r}) / "stopped").write_text(argv[1]); sys.exit(0)
if argv[0] == "stats":
    print("Time (%),Total Time (ns)"); sys.exit(0)
if "--import" in argv:
    print((pathlib.Path({raw!r})).read_text(encoding="utf-8")); sys.exit(0)
mode = value("--replay-mode", "kernel")
scenario = os.environ.get("FAKE_" + tool.upper(), "ok")
if "=" in scenario:
    scenario = dict(part.split("=") for part in scenario.split(",")).get(mode, "ok")
log = open(value("--log-file"), "w") if "--log-file" in argv else None
if log: sys.stdout = log
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
    pathlib.Path(out + ".nsys-rep").write_bytes(bytes(80000)); say("nsys-ok")
elif mode == "kernel":
    leave({counters!r}, out + ".ncu-rep"); say("ncu-ok-kernel")
else:
    leave({ranges!r}, out + ".ncu-rep"); say("ncu-ok-app-range")
sys.exit(130 if stopped else code)
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put both into `folder`, and let them be found."""
    for tool in ("nsys", "ncu"):
        program = folder / tool
        program.write_text(
            _PROGRAM.format(
                python=sys.executable,
                transcripts=str(TRANSCRIPTS),
                tool=tool,
                timeline=str(TIMELINE),
                counters=str(COUNTERS),
                ranges=str(RANGES),
                raw=str(RAW),
                folder=str(folder),
            ),
            encoding="utf-8",
        )
        program.chmod(0o755)
        monkeypatch.setenv(f"LLM_PERF_{tool.upper()}", str(program))


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake nsys and ncu, found through the environment; the working folder is empty."""
    install(tmp_path, monkeypatch)
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    return tmp_path
