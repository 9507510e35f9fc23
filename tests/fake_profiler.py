"""The program behind the stand-ins of `fake_tools`, which start it with `SETTINGS` defined.

It runs the program it is given, says what the real tool said, and leaves a real recording. See `fake_tools`
for the variables that let it fail. It is started some ten times in a run, hundreds of times by the tests: what only some
steps need is imported there, and what takes long to import (pathlib, typing, subprocess) nowhere.
"""
# ruff: noqa: PTH108, PTH110, PTH123, PTH202

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SETTINGS: dict[str, Any] = {}
FAULTS = dict(part.split("=") for part in os.environ.get("FAKE_FAULT", "").split(",") if part)


def main(argv: list[str]) -> int:
    tool = SETTINGS["tool"]
    if argv == ["--version"]:
        begin("version")
        return say(f"{tool}-version")
    if argv[-1] == "--gpu-metrics-devices=help":  # others are answered before we are started
        if os.environ["FAKE_SAMPLING"] == "silent":
            time.sleep(60)
        print(of_file("nsys-2025.3.1-gpu-metrics.json", "nsys-devices-busy")["stdout"])
        return 0
    if argv[0] == "export":
        begin("export")
        if os.path.getsize(argv[-1]) != SETTINGS["recording_bytes"]:
            return say("nsys-export-damaged")
        return leave("export", unpacked(SETTINGS["timeline"]), value(argv, "-o"))
    if argv[0] == "stop":
        begin("stop")
        with open(f"{SETTINGS['folder']}/stopped", "w") as file:
            file.write(argv[1])
        return 0
    if argv[0] == "stats":
        begin("stats")
        print("Time (%),Total Time (ns)")
        return 0
    if "--import" in argv:
        page = value(argv, "--page")
        begin(page)
        print(text_of(SETTINGS[page]))
        return 0
    return record(tool, argv)


def text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def of_file(file: str, name: str) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(text_of(f"{SETTINGS['transcripts']}/{file}"))[name]
    return found


def record(tool: str, argv: list[str]) -> int:
    import signal

    mode = value(argv, "--replay-mode") or "kernel"
    scenario = os.environ.get(f"FAKE_{tool.upper()}", "ok")
    if "=" in scenario:
        scenario = dict(part.split("=") for part in scenario.split(",")).get(mode, "ok")
    if "--log-file" in argv:
        sys.stdout = open(value(argv, "--log-file"), "w")  # noqa: SIM115 - until the end
    begin(tool)
    if "--gpu-metrics-set" in argv and os.environ.get("FAKE_SAMPLING") == "refused":
        refusal = of_file("nsys-2025.3.1-gpu-metrics.json", "nsys-sampling-refused")
        print(refusal["stdout"])
        return int(refusal["exit"])
    stopped: list[int] = []
    child = 0

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        if child:
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGINT, stop)
    program = argv[argv.index(SETTINGS["python"]) :]
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # by Python
    child = os.posix_spawn(program[0], program, os.environ, setsigdef=ignored)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    child = 0
    if tool == "nsys":  # the real one writes for seconds after the program has ended
        time.sleep(float(os.environ.get("FAKE_NSYS_WRITES_S", "0")))
    if value(argv, "--profile-from-start") == "off":
        said = os.environ["FAKE_PROFILER"]
        if not os.path.exists(said) or "cudaProfilerStart" not in text_of(said):
            scenario = "ncu-missing-slash"  # it says the same where the profiler was never switched on
    if scenario != "ok":
        return say(scenario)
    if tool == "nsys":
        done = leave("nsys", bytes(SETTINGS["recording_bytes"]), f"{value(argv, '-o')}.nsys-rep", "nsys-ok")
    elif mode == "kernel":
        says = "ncu-app-error" if code == 3 else "ncu-ok-kernel"  # that program ended with 3
        rank = os.environ["RANK"] if "--communicator" in argv else ""  # with one, ncu appends it to the name
        done = leave("ncu", unpacked(SETTINGS["counters"]), f"{value(argv, '-o')}{rank}.ncu-rep", says)
    else:
        done = leave("ncu", unpacked(SETTINGS["ranges"]), f"{value(argv, '-o')}.ncu-rep", "ncu-ok-app-range")
    if done or stopped:
        return done or 130
    return 128 - code if code < 0 else code  # a program that a signal ended, as nsys and shells tell it


def say(name: str) -> int:
    """What the real tool said; the exit code it had."""
    said = of_file("ncu-nsys-2025.3.1-h200.json", name)
    pace = float(os.environ.get(f"FAKE_PACE_{SETTINGS['tool'].upper()}", 0))
    for line in said["stdout"].splitlines():
        print(line, flush=True)
        time.sleep(pace)
    print(said["stderr"], file=sys.stderr, flush=True)
    return int(said["exit"])


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1] if option in argv else ""


def unpacked(name: str) -> bytes:
    with open(name, "rb") as file:
        data = file.read()
    if name.endswith(".xz"):
        import lzma

        return lzma.decompress(data)
    if name.endswith(".gz"):
        import gzip

        return gzip.decompress(data)
    return data


def at(step: str) -> None:
    """Let the test know, once, and give it time to do something about it."""
    folder = os.environ.get("FAKE_MARKS")
    if folder and not os.path.exists(f"{folder}/{step}"):
        open(f"{folder}/{step}", "w").close()
        if os.environ.get("FAKE_HOLD") == step:
            wait_until_happened()
            time.sleep(float(os.environ.get("FAKE_HOLD_S", "2.5")))


def wait_until_happened() -> None:
    """On a busy machine the test may come long after the step has begun."""
    event, until = os.environ.get("FAKE_HOLD_UNTIL"), time.monotonic() + 60
    while event and not os.path.exists(event) and time.monotonic() < until:
        time.sleep(0.01)


def begin(step: str) -> None:
    at(step)
    kind = FAULTS.get(step)
    if kind == "crash-before":
        crash()
    if kind == "hang-before":
        hang()
    if kind == "nothing" and step not in ("nsys", "ncu"):  # these run their program first
        sys.exit(0)


def leave(step: str, data: bytes, target: str, says: str = "") -> int:
    """Write a recording, or what the fault leaves of it; the exit code."""
    at(f"{step}-writes")
    kind = FAULTS.get(step)
    if kind == "nothing":
        return 0
    half = kind in ("crash-during", "truncated")
    try:
        with open(target, "wb", buffering=0) as file:
            rest = data[: len(data) // 2] if half else data
            while rest:
                rest = rest[file.write(rest[: 1 << 16]) :]
    except OSError as error:
        import errno

        if step == "nsys" and os.path.exists(target):
            os.unlink(target)  # its raw stream is elsewhere
        if step == "export":
            return 0  # how the real one ends is not known: the worst would be without a word
        full = error.errno in (errno.ENOSPC, errno.EFBIG)
        return say(f"{SETTINGS['tool']}-{'disk-full' if full else 'no-folder'}")
    if kind == "crash-during":
        crash()
    if not half and "FAKE_LEDGER" in os.environ and step in ("nsys", "ncu"):
        import hashlib
        import json

        with open(os.environ["FAKE_LEDGER"], "a") as ledger:
            ledger.write(json.dumps([os.path.realpath(target), hashlib.sha256(data).hexdigest()]) + "\n")
    if kind == "crash-after":
        crash()
    if kind == "hang-after":
        hang()
    return say(says) if says else 0


def crash() -> NoReturn:
    import signal

    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def hang() -> NoReturn:
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(600)
