"""All that is measured on a GPU, in pieces that fit into the time one has there.

    python benchmarks/on_gpu.py --list                                    pieces, and the seconds each takes on an H200
    python benchmarks/on_gpu.py --out DIR --within 570                    the first pieces, as many as end in that time
    python benchmarks/on_gpu.py --out DIR --within 570 --only lines,compare

Results that are there already (`benchmarks/results`) are copied to DIR first, so that pieces measured earlier stay in
their files. Copy what changed back, look at it, and commit it with its commit: where there is only a copy of the tree,
LLM_PERF_COMMIT is that. DIR/on-gpu.json says which pieces ran and how they ended; their output is in DIR/on-gpu.log.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from attrs import define

from provenance import RESULTS, commit

HERE = Path(__file__).resolve().parent
_AT_MOST = 1.5  # times its seconds: a piece that takes longer hangs, or the machine is not the one it was timed on


@define(frozen=True)
class Piece:
    """A call of one benchmark."""

    name: str
    words: tuple[str, ...]  # the program and its arguments, without --out
    result: str
    seconds: int  # on an H200

    def command(self, out: Path) -> list[str]:
        return [sys.executable, str(HERE / self.words[0]), *self.words[1:], "--out", str(out)]


# What is annotated there: a decoder of the size of the other benchmarks.
ANNOTATED = [
    "--device",
    "cuda",
    "--hidden",
    "2048",
    "--layers",
    "36",
    "--dtype",
    "bfloat16",
    "--prompt",
    "2048",
    "--rounds",
    "5",
]
PIECES = (
    Piece("engines", ("serving.py", "--only", "vllm,sglang"), "serving-h200", 30),
    Piece("lines", ("lines.py",), "lines-h200", 120),
    Piece("ranks", ("ranks.py",), "ranks-h200", 230),
    Piece("compare", ("compare.py",), "compare-h200", 100),
    Piece("measured", ("bridge.py", "--only", "alone,profile,measured"), "bridge-h200", 190),
    Piece("true-time", ("true_time.py",), "true-time-h200", 470),
    Piece("true-answers", ("true_answers.py",), "true-answers-h200", 380),
    # Twice, with the results of the first call: it goes on with what is not measured yet.
    Piece("try", ("try_levers.py", "--within", "540"), "", 550),
    Piece("rules", ("rules.py",), "", 340),
    Piece("annotate-cost", ("annotate_cost.py", *ANNOTATED), "annotate-cost-h200", 90),
    Piece("long", ("bridge.py", "--only", "long"), "bridge-h200", 520),
    Piece("servers", ("serving.py", "--only", "batch,http,command,profiled,served"), "serving-h200", 290),
    Piece("contract", ("contract_commands.py", "--within", "560", "--jobs", "3"), "contract-commands-h200", 580),
)


def run(piece: Piece, out: Path, log: Path) -> dict[str, object]:
    """One piece, its output in the log: how it ended."""
    began, name = time.monotonic(), out / piece.result if piece.result else out
    with log.open("a", encoding="utf-8") as written:
        written.write(f"\n== {piece.name}\n")
        written.flush()
        begun = subprocess.Popen(piece.command(name), stdout=written, stderr=written, start_new_session=True)
        try:
            code: int | str = begun.wait(_AT_MOST * piece.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(begun.pid, signal.SIGKILL)
            begun.wait()
            code = "took too long"
    return {"exit_code": code, "seconds": round(time.monotonic() - began), "commit": commit()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--within", type=int, default=24 * 3600, help="seconds in which the pieces are to end")
    parser.add_argument("--only", default="", help="names of pieces, with commas")
    parser.add_argument("--list", action="store_true", help="only print the pieces")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    if unknown := set(wanted) - {piece.name for piece in PIECES}:
        parser.error(f"unknown pieces: {', '.join(sorted(unknown))}; --list has them")
    chosen = [piece for piece in PIECES if not wanted or piece.name in wanted]
    if options.list:
        print("\n".join(f"{piece.seconds:>5} s  {piece.name:<24} {' '.join(piece.words)}" for piece in chosen))
        return 0
    if options.out is None:
        parser.error("--out DIR says where results go")
    options.out.mkdir(parents=True, exist_ok=True)
    for file in RESULTS.glob("*-h200.*"):
        if not (options.out / file.name).exists():
            shutil.copy(file, options.out)
    ends, done = time.monotonic() + options.within, {}
    for piece in chosen:
        if time.monotonic() + piece.seconds > ends:
            print(f"{piece.name}: no time left for its {piece.seconds} s")
            continue
        done[piece.name] = run(piece, options.out, options.out / "on-gpu.log")
        (options.out / "on-gpu.json").write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(f"{piece.name}: exit code {done[piece.name]['exit_code']}, {done[piece.name]['seconds']} s", flush=True)
    return int(any(ended["exit_code"] for ended in done.values()))


if __name__ == "__main__":
    raise SystemExit(main())
