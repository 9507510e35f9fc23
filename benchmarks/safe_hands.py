"""Is what the user has safe with us? Families of hostile moments, each tried many times, with the figures in one file.

    python benchmarks/safe_hands.py [--only WORD] [--seed 1] [--kills 200] [--out benchmarks/results/safe-hands]

A family is a function that yields a sentence for everything that went wrong, and notes its figures; adding one means
writing it and its line in `FAMILIES`. Everything runs in processes of its own, over recordings of the tests, without
a GPU or NVIDIA's tools. Whether a report is whole is looked at from outside: by the ids its files carry, by their
hashes, and by which recording each speaks of.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llm_perf_opt.api.result import open_report
from llm_perf_opt.cli.main import main as llm_perf
from provenance import commit

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "safe-hands"
RECORDINGS = ROOT / "tests" / "recordings"
OLD = RECORDINGS / "nsys-2025.3.1-h200-train.sqlite.gz"
NEW = RECORDINGS / "nsys-2025.3.1-h200-ranks.sqlite.gz"
CARRIERS = ("report.json", "report.html", "report.md", "kernels.md", "stakeholder_summary.md")

Figures = dict[str, Any]
Family = Callable[[Path, argparse.Namespace, Figures], Iterator[str]]


# -- what is seen from outside -----------------------------------------------------------------------


def ids(out: Path) -> dict[str, str]:
    """The id that each file carries, read without the code that writes it."""
    found = {}
    for name in CARRIERS:
        text = (out / name).read_text(encoding="utf-8")
        if name == "report.json":
            found[name] = json.loads(text)["generation"]
        else:
            found[name] = text.rpartition("<!-- llm-perf report ")[2].partition(" ")[0]
    return found


def wrong_with(out: Path) -> str:
    """Why a folder does not hold one whole report; empty where it does."""
    try:
        carried = ids(out)
        listed = json.loads((out / ".llm-perf-files").read_text(encoding="utf-8"))
        if {*carried.values()} != {listed["generation"]}:
            return f"files of different reports: {carried}"
        for place, sha256 in listed["files"].items():
            if hashlib.sha256((out / place).read_bytes()).hexdigest() != sha256:
                return f"{place} is of another report"
        named = json.loads((out / "report.json").read_text(encoding="utf-8"))["inputs"][0]["path"]
        if named not in (out / "report.md").read_text(encoding="utf-8"):
            return f"report.json is of {named}, and report.md is not"
        there = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
        if extra := {name for name in there if not name.startswith(".")} - set(listed["files"]):
            return f"files of no report: {sorted(extra)[:3]}"
    except (OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def start(*words: object, limit: int | None = None) -> int:
    """`llm-perf WORDS` in a process of its own, without the second that Python needs to import everything."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    with contextlib.suppress(BaseException):
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        os._exit(llm_perf([str(word) for word in words]))
    os._exit(99)


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def old_report(folder: Path) -> Path:
    """A folder with the report that everything is written over."""
    template = folder / "template"
    if not template.exists():
        assert exit_code(start("report", OLD, "--out", template, "--quiet")) == 0
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(template, out)
    return out


# -- the families ------------------------------------------------------------------------------------


def kills(folder: Path, options: argparse.Namespace, figures: Figures) -> Iterator[str]:
    """SIGKILL at random moments while a report is written over an old one of another recording."""
    dice = random.Random(options.seed)
    out = old_report(folder)
    for _ in range(3):  # the first reads files that are in no cache yet
        began = time.monotonic()
        assert exit_code(start("report", NEW, "--out", out, "--quiet")) == 0
        lasts = time.monotonic() - began
    figures |= {"kills": 0, "ended_before": 0, "old_kept": 0, "new_there": 0, "mixed_before_a_reader": 0, "mixed": 0}
    while figures["kills"] < options.kills:
        out = old_report(folder)
        child = start("report", NEW, "--out", out, "--quiet")
        time.sleep(dice.random() * lasts)
        os.kill(child, signal.SIGKILL)
        if exit_code(child) != -signal.SIGKILL:
            figures["ended_before"] += 1  # no kill: the machine has become quicker
            lasts *= 0.95
            continue
        figures["kills"] += 1
        figures["mixed_before_a_reader"] += bool(wrong_with(out))
        path = str(open_report(out).inputs[0]["path"])  # a reader finishes what was begun
        figures["old_kept" if path == OLD.name else "new_there"] += 1
        if why := wrong_with(out):
            figures["mixed"] += 1
            yield f"kill {figures['kills']}: {why}"
        if (code := exit_code(start("report", NEW, "--out", out, "--quiet"))) or wrong_with(out):
            yield f"kill {figures['kills']}: the next report ended with {code}: {wrong_with(out)}"
        left = [p.name for p in out.iterdir() if p.name.startswith(".") and p.name != ".llm-perf-files"]
        if left:
            yield f"kill {figures['kills']}: left behind: {left}"


def at_once(folder: Path, options: argparse.Namespace, figures: Figures) -> Iterator[str]:
    """Reports of two recordings, all into one folder, all at the same time."""
    out = old_report(folder)
    children = [start("report", (OLD, NEW)[n % 2], "--out", out, "--quiet") for n in range(options.at_once)]
    codes = [exit_code(child) for child in children]
    figures |= {"reports": len(codes), "written": codes.count(0), "mixed": int(bool(wrong_with(out)))}
    if set(codes) != {0}:
        yield f"exit codes {sorted(set(codes))}"
    if why := wrong_with(out):
        yield why


def full_disk(folder: Path, options: argparse.Namespace, figures: Figures) -> Iterator[str]:
    """The file system takes no more at some size of a file, from none of the report to almost all of it."""
    largest = max(p.stat().st_size for p in old_report(folder).rglob("*") if p.is_file())
    figures |= {"tries": options.full, "refused": 0, "mixed": 0}
    for number in range(options.full):
        out = old_report(folder)
        before = ids(out)
        code = exit_code(start("report", NEW, "--out", out, "--quiet", limit=int(largest * number / options.full)))
        figures["refused"] += code == 2
        why = wrong_with(out) or ("" if code == 0 or ids(out) == before else "the old report is not there any more")
        if why or code not in (0, 2):
            figures["mixed"] += bool(why)
            yield f"limit {number}/{options.full}: exit code {code}; {why}"


def own_files(folder: Path, _: argparse.Namespace, figures: Figures) -> Iterator[str]:
    """Files of the user under the names of a report, with and without a list that calls them ours; inputs as outputs."""
    figures |= {"cases": 0, "lost": 0}
    names = [p.relative_to(folder / "out").as_posix() for p in old_report(folder).rglob("*") if p.is_file()]
    for name in [name for name in names if name != ".llm-perf-files"]:
        for listed in (False, True):
            out = folder / "own"
            shutil.rmtree(out, ignore_errors=True)
            (out / name).parent.mkdir(parents=True)
            (out / name).write_text("mine\n", encoding="utf-8")
            if listed:
                known = {name: hashlib.sha256(b"mine\n").hexdigest()}
                (out / ".llm-perf-files").write_text(json.dumps({"generation": "x", "files": known}), encoding="utf-8")
            code = exit_code(start("report", OLD, "--out", out, "--quiet"))
            figures["cases"] += 1
            if code != 2 or (out / name).read_bytes() != b"mine\n":
                figures["lost"] += 1
                yield f"{name} (listed: {listed}): exit code {code}"
    recording = folder / "run.sqlite.gz"
    shutil.copy(OLD, recording)
    (folder / "link").symlink_to(recording)
    (folder / "second").hardlink_to(recording)
    for target in (recording, folder / "link", folder / "second", folder / "own" / ".." / "run.sqlite.gz"):
        for force in ((), ("--force",)):
            code = exit_code(start("export", recording, "--perfetto", target, *force))
            figures["cases"] += 1
            if code != 2 or recording.read_bytes() != OLD.read_bytes():
                figures["lost"] += 1
                yield f"export over {target.name}: exit code {code}"


FAMILIES: dict[str, Family] = {
    "kills while writing over an old report": kills,
    "reports at once": at_once,
    "full disk": full_disk,
    "files of the user": own_files,
}


# -- the file ----------------------------------------------------------------------------------------


def markdown(result: Figures) -> str:
    lines = ["# Safe hands", "", f"`{result['command']}` on commit {result['commit']}.", ""]
    lines += ["| family | figures | wrong | seconds |", "|---|---|---|---|"]
    for name, family in result["families"].items():
        told = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in family["figures"].items())
        lines.append(f"| {name} | {told} | {len(family['wrong'])} | {family['seconds']} |")
    lines += [
        "",
        "*Mixed before a reader*: how often the folder was seen while its files were being moved to their places;"
        " whatever opens or writes the folder next finishes that, and *mixed* counts what is left then.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="families whose name holds this word")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=30)
    parser.add_argument("--full", type=int, default=25, help="sizes at which the disk is full")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    families: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):  # those that are not tried now stay as they were
        families = json.loads(options.out.with_suffix(".json").read_text(encoding="utf-8"))["families"]
    failed = False
    for name, family in FAMILIES.items():
        if options.only not in name:
            continue
        figures: Figures = {}
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong = list(family(Path(folder), options, figures))
        families[name] = {"figures": figures, "wrong": wrong, "seconds": round(time.monotonic() - began)}
        print(name, figures, *wrong[:20], sep="\n    ", flush=True)
        failed |= bool(wrong)
    result = {
        "command": f"python benchmarks/safe_hands.py --seed {options.seed} --kills {options.kills}",
        "commit": commit(),
        "machine": {"python": platform.python_version(), "system": platform.system(), "cpus": os.cpu_count()},
        "families": families,
    }
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
