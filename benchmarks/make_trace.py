"""Makes a large PyTorch trace out of a real one.

The recording is repeated end to end: the events of every copy are shifted in time, and get correlation and external
ids of their own; all else is as recorded, also how the text is laid out. Written event by event, so memory stays flat.

    python benchmarks/make_trace.py --events 2000000 benchmarks/data/trace.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "recordings" / "kineto-torch2.11-h200-2layers.json.gz"
EVENT = re.compile(r"^  \{\n.*?^  \},?$", re.DOTALL | re.MULTILINE)
TIME = re.compile(r'("ts": )(\d+)\.(\d{3})')
DURATION = re.compile(r'"dur": (\d+)')
IDS = re.compile(r'("(?:correlation|External id|id)": )(\d+)')
GAP_US = 1000  # between one copy and the next


def make(source: Path, target: Path, events: int) -> int:
    """Write a trace of at least so many events; returns how many."""
    with gzip.open(source, "rt", encoding="utf-8") as file:
        text = file.read()
    found = [match.group().rstrip(",") for match in EVENT.finditer(text, text.index("traceEvents"))]
    once = [event for event in found if '"ph": "X"' not in event and '"id": ' not in event]  # metadata
    repeated = [event for event in found if event not in set(once)]
    before, after = text[: text.index(found[0])], text[text.rindex(found[-1]) + len(found[-1]) :]
    starts = [int(match[2]) for event in repeated for match in TIME.finditer(event)]
    longest = max(int(match[1]) for event in repeated for match in DURATION.finditer(event))
    ids = max(int(match[2]) for event in repeated for match in IDS.finditer(event)) + 1
    span = max(starts) - min(starts) + longest + GAP_US
    copies = -(-(events - len(once)) // len(repeated))
    unfinished = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(unfinished, "wt", compresslevel=6, encoding="utf-8") as out:
        out.write(before + ",\n".join(once))
        body = ",\n".join(repeated)
        for copy in range(copies):
            out.write(",\n" + _shifted(body, copy * span, copy * ids))
        out.write(after)
    unfinished.replace(target)
    return copies * len(repeated) + len(once)


def _shifted(body: str, microseconds: int, ids: int) -> str:
    body = TIME.sub(lambda match: f"{match[1]}{int(match[2]) + microseconds}.{match[3]}", body)
    return IDS.sub(lambda match: f"{match[1]}{int(match[2]) + ids}", body)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="the trace to write, gzipped")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the recording to repeat (default: %(default)s)")
    parser.add_argument("--events", type=int, default=2_000_000, help="at least so many (default: %(default)s)")
    arguments = parser.parse_args()
    events = make(arguments.source, arguments.target, arguments.events)
    print(f"{arguments.target.name}: {events:,} events, {arguments.target.stat().st_size / 1e6:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
