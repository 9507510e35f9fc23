"""Do two states of the code say the same of the same recordings?

    python tools/compare_reports.py write BEFORE --source OTHER-CHECKOUT/src RECORDINGS…
    python tools/compare_reports.py write AFTER RECORDINGS…
    python tools/compare_reports.py compare BEFORE AFTER [--ignore REGEX …]

`write` makes the report.json of every recording below the given folders, each alone, and of pairs of a timeline and
counters whose names begin alike. `compare` lists every field that differs, by its path without list positions, with
the number of reports that have it and one example; exit code 1 where any is left.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUN = "from llm_perf_opt.cli.entry import entry; entry()"
ENDINGS = (".sqlite", ".sqlite.gz", ".sqlite.xz", ".ncu-rep", ".ncu-rep.xz", ".csv", ".csv.xz", ".json.gz", ".json")
TIMELINE, COUNTERS = (".sqlite", ".sqlite.gz", ".sqlite.xz"), (".ncu-rep", ".ncu-rep.xz")
# Says when and by what a report was made, not what is in the recording.
ALWAYS_IGNORED = re.compile(r"^(generated_at|generation|environment\.llm_perf_opt)$")
# Timelines and counters of one program: the longest common beginnings that name one.
PAIRS = (
    ("nsys-2025.3.1-h200-decoder-8layers-warm.sqlite", "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config"),
    ("nsys-2025.3.1-h200-decoder-8layers.sqlite", "ncu-2025.3.1-h200-decoder-8layers-per-launch-config"),
    ("nsys-2025.3.1-h200-ranks.sqlite", "ncu-2025.3.1-h200-ranks-two-processes"),
    ("nsys-2025.3.1-h200-graph_node.sqlite", "ncu-2025.3.1-h200-graph-nodes-kernel-replay"),
    ("profile-2025.3.1-h200-ocr.sqlite", "profile-2025.3.1-h200-ocr.ncu-rep"),
    ("qwen3-0.95b-timeline.sqlite", "qwen3-0.95b-per-launch-config"),
    ("qwen3-0.95b-timeline.sqlite", "qwen3-0.95b-prefill-kernel-replay"),
)


def recordings(places: list[str]) -> list[Path]:
    found = [Path(place) for place in places if Path(place).is_file()]
    for place in places:
        found += sorted(p for p in Path(place).rglob("*") if p.is_file() and p.name.endswith(ENDINGS))
    return found


def cases(files: list[Path]) -> Iterator[tuple[str, list[Path]]]:
    for file in files:
        yield file.name, [file]
    for one, other in PAIRS:
        first = next((f for f in files if f.name.startswith(one)), None)
        second = next((f for f in files if f.name.startswith(other) and f.name.endswith(COUNTERS)), None)
        if first is not None and second is not None:
            yield f"{first.name}+{second.name}", [first, second]
    ranks = [f for f in files if re.search(r"TP-\d-EXTEND", f.name)]
    if len(ranks) > 1:
        yield "ranks-EXTEND", ranks


def write(out: Path, source: Path, places: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(source.resolve()), "XDG_CACHE_HOME": tempfile.mkdtemp()}
    for name, files in cases(recordings(places)):
        with tempfile.TemporaryDirectory() as folder:
            argv = [sys.executable, "-c", RUN, "report", *map(str, files), "--out", folder]
            done = subprocess.run(
                [*argv, "--format", "json", "--quiet"], env=environment, capture_output=True, text=True
            )
            made = Path(folder) / "report.json"
            text = made.read_text() if made.is_file() else json.dumps({"exit": done.returncode, "said": done.stderr})
            (out / f"{name}.report.json").write_text(text)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every leaf: its path without list positions, its exact path, its value."""

    def walk(value: Any, plain: str, exact: str) -> Iterator[tuple[str, str, Any]]:
        if isinstance(value, dict):
            if not value:
                yield plain, exact, {}
            for key, item in value.items():
                yield from walk(item, f"{plain}.{key}" if plain else key, f"{exact}.{key}")
        elif isinstance(value, list):
            if not value:
                yield plain, exact, []
            for number, item in enumerate(value):
                yield from walk(item, f"{plain}[]", f"{exact}[{number}]")
        else:
            yield plain, exact, value

    yield from walk(value, path, path)


def compare(before: Path, after: Path, ignore: list[str]) -> int:
    ignored = [ALWAYS_IGNORED, *map(re.compile, ignore)]
    names = {p.name for p in before.glob("*.report.json")} | {p.name for p in after.glob("*.report.json")}
    differing: dict[str, dict[str, str]] = defaultdict(dict)
    same = 0
    for name in sorted(names):
        old, new = before / name, after / name
        if not (old.is_file() and new.is_file()):
            differing["(a whole report)"][name] = f"only in {before if old.is_file() else after}"
            continue
        one = {exact: (plain, value) for plain, exact, value in flat(json.loads(old.read_text()))}
        other = {exact: (plain, value) for plain, exact, value in flat(json.loads(new.read_text()))}
        found = False
        for exact in one.keys() | other.keys():
            left, right = one.get(exact), other.get(exact)
            plain = (left or right or ("", None))[0]
            if left == right or any(pattern.search(plain) for pattern in ignored):
                continue
            found = True
            shown = f"{left[1] if left else '(absent)'!r} -> {right[1] if right else '(absent)'!r}"
            differing[plain].setdefault(name, shown)
        same += not found
    for plain, where in sorted(differing.items()):
        name, example = next(iter(where.items()))
        print(f"{plain}: {len(where)} reports, as in {name}: {example[:200]}")
    print(f"{same} of {len(names)} reports are the same, {len(differing)} fields differ")
    return int(bool(differing))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write")
    writing.add_argument("out", type=Path)
    writing.add_argument("places", nargs="+")
    writing.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--ignore", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.verb == "write":
        write(arguments.out, arguments.source, arguments.places)
        return 0
    return compare(arguments.before, arguments.after, arguments.ignore)


if __name__ == "__main__":
    sys.exit(main())
