"""Marker ranges around the calls of all modules of a model (and see products.py), for capture windows to be set at (windows.py).

The ranges of a program are often too wide for that: a whole prefill, a whole step. A kernel that does other work in
another layer can only be sampled there if the profiler can be switched on around that layer. Under nsys marker ranges are
NVTX ranges with a prefix, by which the report leaves them out; under ncu they are counted only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .ranges import Pop, Push
from .seen_ranges import MARKER, ranges_seen

PREFIX = MARKER  # as in readers/marker_ranges.py, which cannot be imported here
PRODUCT = f"{PREFIX}(grouped_mm)"  # no module is called so
DEPTH = 16  # levels of modules: deeper than any model
LONGEST = 57  # bytes of a name: SQLite tells the length of a longer one in two bytes, and we read such tables slowly

RECORDED, COUNTED = "recorded", "counted"


def ways(wanted: str, push: Push, pop: Pop) -> tuple[Push, Pop]:
    """What opens and closes a marker range."""
    return (push, pop) if wanted == RECORDED else (partial(ranges_seen.begin, ""), partial(ranges_seen.end, ""))


def names() -> Any:
    """How modules are named (`tree.Names`)."""
    from .tree import Names  # which imports torch

    return Names(DEPTH, prefix=PREFIX, longest=LONGEST)


def nothing(*_: object) -> None:
    """Stages that were not asked for are not opened."""
