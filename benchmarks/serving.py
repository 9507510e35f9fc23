"""Steps of a serving engine against the engine's own records: phases, tokens, tokens per second, and no time unaccounted.

    python benchmarks/serving.py --out benchmarks/results/serving-h200          a few minutes on a GPU
    python benchmarks/serving.py --tiny --out /tmp/serving                      on a CPU: tests the script itself

Parts, each transformers' continuous batching (`programs/batched_server.py`): `batch`, which is `generate_batch()` in a
spawned process; `http`, that engine behind HTTP under the load of `llm-perf measure --load`; `command`, the real
`transformers serve` under that load; `profiled`, which is `batch` recorded by nsys. A part that cannot be run here is
skipped, with the reason. Every step of the report has to be what the engine recorded, in order, its tokens per second
within 2 % of those handed out, or, over HTTP, of those that the client got. Exit code 1: a limit was missed.

A part takes 140 s at the most. What it printed is kept beside the results, in OUT-PART.log, also where it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import define

from llm_perf_opt.readers.measured import read_measured
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.step_numbers import numbers_of, without_numbers
from provenance import commit

PROGRAM = Path(__file__).resolve().parent / "programs" / "batched_server.py"
PRODUCT = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
SECONDS = 140.0  # of a part
PROGRESS_S = 10.0  # between two lines that say how far it is
LIMIT = 0.02
LOAD = {True: (24, 3, 40, 24), False: (64, 16, 400, 128)}  # by --tiny: requests, at once, words, tokens
FIRST = 8  # tokens of the answer before the window: the client sends one request that does not count
SERVES = ("fastapi", "uvicorn", "openai", "pydantic", "accelerate")  # what `transformers serve` imports
Step = tuple[str, int, int, int]  # phase, requests, tokens read, tokens made


def steps_of(timeline: Timeline) -> tuple[list[Step], float]:
    """The steps of a recording in order, and the seconds from the first to the last."""
    ranges, found, bounds = timeline.ranges, [], []
    for which in ranges.start.argsort(kind="stable").tolist():
        name = timeline.strings[int(ranges.name[which])]
        if numbers_of(name)[0] >= 0:
            found.append((without_numbers(name), *numbers_of(name)))
            bounds += [int(ranges.start[which]), int(ranges.end[which])]
    return found, (max(bounds) - min(bounds)) / 1e9 if bounds else 0.0


def recorded(step: list[list[int]]) -> Step:
    """What the engine says of a step: a request that has made a token before decodes."""
    decodes = {before > 0 for _, _, before in step}
    phase = "mixed_step" if len(decodes) == 2 else "decode_step" if True in decodes else "prefill"
    return phase, len(step), sum(read for read, _, _ in step), sum(new for _, new, _ in step)


def compared(timeline: Timeline, records: dict[str, Any], before: int = 0) -> dict[str, Any]:
    """`before`: tokens that were made before the window was opened; their steps are not in the report."""
    found, seconds = steps_of(timeline)
    truth = [recorded(step) for step in records["steps"]]
    while before > 0 and truth:
        before -= truth.pop(0)[3]
    wrong = [[list(ours), list(theirs)] for ours, theirs in zip(found, truth, strict=False) if ours != theirs]
    rate, handed_out = sum(new for *_, new in found) / max(seconds, 1e-9), records["made"] / records["seconds"]
    return {
        "steps": len(found),
        "recorded": len(truth),
        "phases": Counter(phase for phase, *_ in truth),
        "wrong": len(wrong) + abs(len(found) - len(truth)),
        "first_wrong": wrong[:3],
        "tokens_per_s": rate,
        "engine_tokens_per_s": handed_out,
        "rate_off": rate / handed_out - 1,
        "good": not wrong and len(found) == len(truth) > 0 and abs(rate / handed_out - 1) <= LIMIT,
    }


@define
class Part:
    """One part under way: where its files are, and when it has to be done."""

    name: str
    tiny: bool
    folder: Path
    log: Path
    ends: float

    def python(self, *words: str) -> list[str]:
        return [sys.executable, str(PROGRAM), *words]

    def flags(self) -> list[str]:
        return ["--tiny"] if self.tiny else []

    def run(self, command: list[str]) -> float:
        """Seconds it took. What it prints goes to the log; its last line is shown from time to time."""
        began = shown = time.monotonic()
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            threads = {"OMP_NUM_THREADS": "1"} if self.tiny else {}  # small products are slower with more
            child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **threads}, start_new_session=True
            )
            while child.poll() is None:
                now = time.monotonic()
                if now > self.ends:
                    end(child)
                    raise RuntimeError(f"not done after {SECONDS:.0f} s; the end of its log: {self.tail()}")
                if now - shown >= PROGRESS_S:
                    shown = now
                    print(f"  {self.name} {now - began:.0f} s: {self.tail().splitlines()[-1:]}", flush=True)
                time.sleep(0.1)
        if child.returncode:
            raise RuntimeError(f"ended with {child.returncode}; the end of its log: {self.tail()}")
        return time.monotonic() - began

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-1500:]

    def product(self, verb: list[str], program: list[str]) -> float:
        return self.run([*PRODUCT, *verb, "--out", str(self.folder / "run"), "--", *program])

    @property
    def records(self) -> Path:
        return self.folder / "records.json"

    def measured(self, before: int = 0) -> dict[str, Any]:
        timeline = read_measured(self.folder / "run" / "measure" / "run.json")
        return compared(timeline, json.loads(self.records.read_text()), before)


def end(child: subprocess.Popen[bytes]) -> None:
    """With all that it has started, which is to let go of the GPU."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
            return


def account(folder: Path) -> dict[str, Any]:
    """How much of the GPU's time the stages of a recording hold."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    scope = report["scopes"][-1]
    whole = scope["totals"]["gpu_time_ns"]
    regions = [r for r in scope["regions"] if r["depth"] == 0 and r["range_kind"] != "recording"]
    held = {r["key"]: (r["inclusive"]["gpu_time_ns"] or 0) / whole for r in regions} if whole else {}
    return {"gpu_time_ns": whole, "held": held, "outside": 1 - sum(held.values()) if whole else None}


def batch(part: Part) -> dict[str, Any]:
    took = part.product(["measure", "--annotate", "stages"], part.python("batch", str(part.records), *part.flags()))
    return {**part.measured(), "took_s": took}


def profiled(part: Part) -> dict[str, Any]:
    verb = ["profile", "--annotate", "stages", "--no-counters", "--no-measure"]
    took = part.product(verb, part.python("batch", str(part.records), *part.flags()))
    timeline = read_recording(part.folder / "run" / "nsys" / "run.sqlite")
    assert isinstance(timeline, Timeline)
    found = compared(timeline, json.loads(part.records.read_text()))
    # A profiler slows the host down: the rate is that of the same run, and phases alone count.
    return {**found, "good": not found["wrong"], "account": account(part.folder / "run"), "took_s": took}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def under_load(part: Part, port: int, program: list[str]) -> dict[str, Any]:
    requests, at_once, words, tokens = LOAD[part.tiny]
    load = ["--load", str(requests), "--concurrency", str(at_once), "--prompt-tokens", str(words)]
    load += ["--output-tokens", str(tokens), "--url", f"http://127.0.0.1:{port}"]
    took = part.product(["measure", *load], program)
    measured = part.measured(before=min(FIRST, tokens))
    seen = json.loads((part.folder / "run" / "measure" / "load.json").read_text())
    if not seen["requests"]["answered"]:
        raise RuntimeError(f"no request was answered: {seen['first_failure']}")
    off = measured["tokens_per_s"] / seen["output_tokens_per_s"] - 1
    good = not measured["wrong"] and abs(off) <= LIMIT and seen["requests"]["answered"] == requests
    return {**measured, "load": seen, "rate_off": off, "good": good, "took_s": took}


def http(part: Part) -> dict[str, Any]:
    port = free_port()
    return under_load(part, port, part.python("http", str(port), str(part.records), *part.flags()))


def command(part: Part) -> dict[str, Any]:
    port, model = free_port(), part.folder / "model"
    part.run(part.python("model", str(model), *part.flags()))
    blocks, tokens = ("32", "32") if part.tiny else ("512", "2048")
    serve = ["serve", str(model), "--continuous-batching", "--host", "127.0.0.1", "--port", str(port)]
    serve += ["--attn-implementation", "sdpa", "--cb-num-blocks", blocks, "--cb-max-batch-tokens", tokens]
    serve += ["--device", "cpu"] if part.tiny else []
    return under_load(part, port, part.python("command", str(part.records), *serve))


def missing(part: str) -> str:
    """Why a part cannot be run here."""
    if part == "profiled" and not shutil.which("nsys"):
        return "nsys is not installed"
    absent = [name for name in SERVES if find_spec(name) is None] if part == "command" else []
    return f"transformers serve needs {', '.join(absent)}" if absent else ""


PARTS = {"batch": batch, "http": http, "command": command, "profiled": profiled}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results, without a suffix")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="", help="parts, with commas")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(PARTS)
    file = given.out.with_suffix(".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(file.read_text()) if file.exists() else {}
    results |= {"commit": commit(), "made": datetime.now(UTC).isoformat(timespec="seconds")}
    bad = False
    for name in wanted:
        print(f"{name}: at most {SECONDS:.0f} s", flush=True)
        log = given.out.with_name(f"{given.out.name}-{name}.log")
        log.write_bytes(b"")
        with tempfile.TemporaryDirectory() as folder:
            part = Part(name, given.tiny, Path(folder), log, time.monotonic() + SECONDS)
            try:
                why = missing(name)
                found = {"good": True, "skipped": why} if why else PARTS[name](part)
            except (RuntimeError, OSError, KeyError, ValueError) as error:
                found = {"good": False, "error": f"{type(error).__name__}: {error}"[-2000:]}
            output = part.folder / "run" / "measure" / "workload.log"
            if output.exists():
                with log.open("ab") as kept:
                    kept.write(b"\n# what the program printed\n" + output.read_bytes()[-1_000_000:])
        bad |= not found["good"]
        results.setdefault("parts", {})[name] = found
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        keys = ("good", "skipped", "steps", "wrong", "phases", "rate_off", "took_s", "error")
        print(name, json.dumps({key: found[key] for key in keys if key in found}), flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
