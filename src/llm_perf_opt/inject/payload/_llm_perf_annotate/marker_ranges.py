"""Marker ranges around the calls of all modules of a model (and see products.py), for capture windows to be set at (windows.py).

The ranges of a program are often too wide for that: a whole prefill, a whole step. A kernel that does other work in
another layer can only be sampled there if the profiler can be switched on around that layer. Under nsys marker ranges are
NVTX ranges with a prefix, by which the report leaves them out; under ncu they are counted only.
"""

from __future__ import annotations

from functools import partial

from .ranges import Pop, Push
from .seen_ranges import MARKER, ranges_seen
from .tree import Names

PRODUCT = f"{MARKER}(grouped_mm)"  # no module is called so
# Levels of modules: deeper than any model. Bytes of a name: SQLite tells the length of a longer one in two bytes, and we
# read such tables slowly. The prefix is that of readers/marker_ranges.py, which cannot be imported here.
NAMES = Names(16, prefix=MARKER, longest=57)


def ways(wanted: str, push: Push, pop: Pop) -> tuple[Push, Pop]:
    """What opens and closes a marker range."""
    return (push, pop) if wanted == "recorded" else (partial(ranges_seen.begin, ""), partial(ranges_seen.end, ""))


def nothing(*_: object) -> None:
    """Stages that were not asked for are not opened."""
