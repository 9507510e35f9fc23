"""Steps of a serving engine against the engine's own records: phases, tokens, tokens per second, and no time unaccounted.

    python benchmarks/serving.py --out benchmarks/results/serving-h200          a few minutes on a GPU
    python benchmarks/serving.py --tiny --out /tmp/serving                      on a CPU: tests the script itself

Parts, each transformers' continuous batching (`programs/batched_server.py`): `batch`, which is `generate_batch()` in a
spawned process; `http`, that engine behind HTTP under the load of `llm-perf measure --load`; `command`, the real
`transformers serve` under that load; `profiled` and `served`, which are `batch` and `command` recorded by nsys. A part
that cannot be run here is skipped, with the reason. `vllm` and `sglang` are stand-ins with the processes, classes and fields of these engines, which
are too large for most machines. Every step of the report has to be what the engine recorded, in order, its tokens per second
within 2 % of those handed out, or, over HTTP, of those that the client got. Exit code 1: a limit was missed.

A part takes 140 s at the most. What it printed is kept beside the results, in OUT-PART.log, also where it fails, and the
recording of nsys in OUT-PART.sqlite.xz: before it is shared, tools/scrub_sqlite.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
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

from in_parts import RESULTS, run_parts
from llm_perf_opt.errors import MissingTool
from llm_perf_opt.nsight.tools import find_nsys
from llm_perf_opt.readers.measured import read_measured
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import UNKNOWN, Timeline
from llm_perf_opt.regions.step_numbers import numbers_of, without_numbers
from provenance import commit

PROGRAM = Path(__file__).resolve().parent / "programs" / "batched_server.py"
STAND_INS = Path(__file__).resolve().parents[1] / "tests" / "programs" / "engines"
PRODUCT = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
SECONDS = 140.0  # of a part
PROGRESS_S = 10.0  # between two lines that say how far it is
LIMIT = 0.02
LOAD = {True: (24, 3, 40, 24), False: (64, 16, 400, 128)}  # by --tiny: requests, at once, words, tokens
FIRST = 8  # tokens of the answer before the window: the client sends one request that does not count
NAME, PHASES, RATE = "serving-h200", "every step as the engine recorded it", "tokens per second within 2 %"
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
    # Tokens that come out of a prompt read in pieces are not told by these engines.
    alike = [
        ours == theirs or (ours[3] == UNKNOWN and ours[:3] == theirs[:3])
        for ours, theirs in zip(found, truth, strict=False)
    ]
    wrong = [[list(o), list(t)] for o, t, same in zip(found, truth, alike, strict=False) if not same]
    made, handed_out = sum(max(new, 0) for *_, new in found), records["made"] / records["seconds"]
    rate = made / max(seconds, 1e-9)
    return {
        "steps": len(found),
        "recorded": len(truth),
        "phases": Counter(phase for phase, *_ in truth),
        "wrong": len(wrong) + abs(len(found) - len(truth)),
        "first_wrong": wrong[:3],
        "tokens_per_s": rate,
        "engine_tokens_per_s": handed_out,
        "rate_off": rate / handed_out - 1,
        "limits": {PHASES: not wrong and len(found) == len(truth) > 0, RATE: abs(rate / handed_out - 1) <= LIMIT},
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
            more = {
                "HF_HUB_OFFLINE": "1",
                **({"OMP_NUM_THREADS": "1"} if self.tiny else {}),
            }  # small products: one thread
            child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **more}, start_new_session=True
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
        records = json.loads(self.records.read_text())
        if isinstance(records, list):  # of a stand-in: its steps
            made = sum(new for step in records for _, new, _ in step)
            records = {"steps": records, "made": made, "seconds": steps_of(timeline)[1]}
        return compared(timeline, records, before)


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
    return {**recorded_steps(part), "took_s": took}


def recorded_steps(part: Part) -> dict[str, Any]:
    """All that nsys recorded. A profiler slows the host down: phases alone count."""
    timeline = read_recording(part.folder / "run" / "nsys" / "run.sqlite")
    assert isinstance(timeline, Timeline)
    found = compared(timeline, json.loads(part.records.read_text()))
    found["limits"].pop(RATE)
    return {**found, "account": account(part.folder / "run")}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def load(tiny: bool, port: int) -> list[str]:
    requests, at_once, words, tokens = LOAD[tiny]
    options = ["--load", str(requests), "--concurrency", str(at_once), "--prompt-tokens", str(words)]
    return [*options, "--output-tokens", str(tokens), "--url", f"http://127.0.0.1:{port}"]


def under_load(part: Part, port: int, program: list[str]) -> dict[str, Any]:
    requests, _, _, tokens = LOAD[part.tiny]
    took = part.product(["measure", *load(part.tiny, port)], program)
    measured = part.measured(before=min(FIRST, tokens))
    seen = json.loads((part.folder / "run" / "measure" / "load.json").read_text())
    if not seen["requests"]["answered"]:
        raise RuntimeError(f"no request was answered: {seen['first_failure']}")
    off = measured["tokens_per_s"] / seen["output_tokens_per_s"] - 1
    limits = measured["limits"] | {RATE: abs(off) <= LIMIT, "all answered": seen["requests"]["answered"] == requests}
    return {**measured, "load": seen, "rate_off": off, "limits": limits, "took_s": took}


def http(part: Part) -> dict[str, Any]:
    port = free_port()
    return under_load(part, port, part.python("http", str(port), str(part.records), *part.flags()))


def stand_in(part: Part, server: str) -> dict[str, Any]:
    """Phases alone count: how many tokens come out is not told of every step."""
    port = free_port()
    found = under_load(part, port, [sys.executable, str(STAND_INS / server), str(port), str(part.records)])
    found["limits"].pop(RATE)
    return found


def vllm(part: Part) -> dict[str, Any]:
    return stand_in(part, "server.py")


def sglang(part: Part) -> dict[str, Any]:
    return stand_in(part, "sglang_server.py")


def serves(part: Part, port: int) -> list[str]:
    """The command `transformers serve` of a model that is made for it."""
    model = part.folder / "model"
    part.run(part.python("model", str(model), *part.flags()))
    blocks, tokens = ("32", "32") if part.tiny else ("512", "2048")
    serve = ["serve", str(model), "--continuous-batching", "--host", "127.0.0.1", "--port", str(port)]
    serve += ["--attn-implementation", "sdpa", "--cb-num-blocks", blocks, "--cb-max-batch-tokens", tokens]
    serve += ["--device", "cpu"] if part.tiny else []
    return part.python("command", str(part.records), *serve)


def command(part: Part) -> dict[str, Any]:
    port = free_port()
    return under_load(part, port, serves(part, port))


def served(part: Part) -> dict[str, Any]:
    port = free_port()
    verb = ["profile", "--no-counters", "--no-measure", *load(part.tiny, port)]
    took = part.product(verb, serves(part, port))
    return {**recorded_steps(part), "took_s": took}


def missing(part: str) -> str:
    """Why a part cannot be run here."""
    try:
        _ = find_nsys() if part in ("profiled", "served") else None
    except MissingTool:
        return "nsys is not installed"
    absent = [name for name in SERVES if find_spec(name) is None] if part in ("command", "served") else []
    return f"transformers serve needs {', '.join(absent)}" if absent else ""


PARTS = {
    "batch": batch,
    "http": http,
    "command": command,
    "profiled": profiled,
    "served": served,
    "vllm": vllm,
    "sglang": sglang,
}


def measure(name: str, tiny: bool) -> dict[str, Any]:
    """One part; what it printed and its recording stay beside the results, also where it fails."""
    if why := missing(name):
        return {"skipped": why, "commit": commit()}
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=RESULTS / NAME)
    out: Path = parser.parse_known_args()[0].out
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.with_name(f"{out.name}-{name}.log")
    log.write_bytes(b"")
    print(f"{name}: at most {SECONDS:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        part = Part(name, tiny, Path(folder), log, time.monotonic() + SECONDS)
        try:
            found = PARTS[name](part)
        finally:
            for printed in ("measure/workload.log", "workload.log"):
                if (output := part.folder / "run" / printed).exists():
                    with log.open("ab") as kept:
                        kept.write(b"\n# what the program printed\n" + output.read_bytes()[-1_000_000:])
            if (recording := part.folder / "run" / "nsys" / "run.sqlite").exists():
                packed = lzma.compress(recording.read_bytes(), preset=1)
                out.with_name(f"{out.name}-{name}.sqlite.xz").write_bytes(packed)
    checks = [{"what": what, "ok": ok} for what, ok in found.pop("limits").items()]
    return {**found, "checks": checks, "commit": commit(), "made": datetime.now(UTC).isoformat(timespec="seconds")}


def page(results: dict[str, Any]) -> str:
    lines = [
        "# Steps of transformers' continuous batching, and of stand-ins for vLLM and SGLang, against their own records",
        "",
    ]
    lines += [
        "| part | steps | wrong | tokens/s off | GPU time outside all stages | limits |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in results["parts"].items():
        if "steps" not in part:
            lines.append(f"| {name} | {part.get('skipped') or part.get('failed', '')[:300]} | | | | |")
            continue
        outside = part.get("account", {}).get("outside")
        missed = [check["what"] for check in part["checks"] if not check["ok"]]
        is_rated = any(check["what"] == RATE for check in part["checks"])
        rate = f"{part['rate_off']:+.2%}" if is_rated else "–"
        lines.append(
            f"| {name} | {part['steps']:,} of {part['recorded']:,} ({', '.join(f'{n} {p}' for p, n in part['phases'].items())}) "
            f"| {part['wrong']} | {rate} | {'–' if outside is None else f'{outside:.1%}'} "
            f"| {'missed: ' + ', '.join(missed) if missed else 'held'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_parts(__doc__ or "", NAME, PARTS, measure, page))
