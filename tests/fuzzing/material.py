"""What cases are made of: where a case may be, and the real recordings, unpacked."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from attrs import define

RECORDINGS = Path(__file__).parents[1] / "recordings"

SMALL_TIMELINES = ("threads", "threads", "train", "train", "ranks", "graph_node", "graph_whole", "names")
REPORTS = (
    *("threads-scope-thread", "threads-scope-process", "graph-whole", "ranks-two-processes", "names"),
    "qwen3-0.95b-per-launch-config",
)


@define
class Place:
    """Where a case may be: `given` is not to be changed, `out` may be written, all else is watched."""

    root: Path

    @property
    def given(self) -> Path:
        return self.root / "given"

    @property
    def out(self) -> Path:
        return self.root / "out"


Run = Callable[[], Any]  # raises nothing but our own errors
Made = list[str] | Run  # a command line, or a call


@cache
def content(pattern: str) -> bytes:
    (path,) = RECORDINGS.glob(pattern)
    packed = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(packed)
    return lzma.decompress(packed) if path.suffix == ".xz" else packed


def timeline(name: str) -> bytes:
    return content(f"nsys-*-h200-{name}.sqlite.*z")


def counters(name: str) -> bytes:
    return content(f"ncu-*-h200-{name}.ncu-rep*")


def tables() -> list[Path]:
    return sorted(RECORDINGS.glob("ncu-*.csv"))


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
