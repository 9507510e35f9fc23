"""Timelines that are read several times in one run: kept in memory until the run ends.

A run plans from its timeline, then looks at its launches, then reports it. Each reader gets a copy of its own of
what readers change; the columns are shared, and nobody writes to those.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from attrs import define, evolve

from llm_perf_opt.regions.columns import Recording, Timeline

LARGEST = 256 << 20  # bytes of the file; in memory it is about half of that, beside the program that is profiled

_Key = tuple[str, int, int, int]


@define
class _Shelf:
    key: _Key | None = None  # of the one timeline that is kept: a run has no more
    timeline: Timeline | None = None


_shelf: _Shelf | None = None  # None: nothing is kept


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Within this, the timeline that was read last is kept."""
    global _shelf
    before, _shelf = _shelf, _Shelf()
    try:
        yield
    finally:
        _shelf = before


def is_kept(path: Path) -> bool:
    """Would a timeline read from this file be kept? It is then read with everything that any reader may ask for."""
    return _shelf is not None and 0 < path.stat().st_size <= LARGEST


def keep(path: Path, recording: Recording) -> None:
    if _shelf is not None and isinstance(recording, Timeline) and is_kept(path):
        _shelf.key, _shelf.timeline = _key(path), recording


def take(path: Path, source: str, *, launch_config: bool) -> Timeline | None:
    """The timeline of a file as it was kept; None where there is none, or where the file is another one now."""
    if _shelf is None or _shelf.timeline is None or _shelf.key != _key(path):
        return None
    found = _shelf.timeline
    return evolve(
        found,
        source=source,
        kernels=found.kernels if launch_config else evolve(found.kernels, config=None),
        processes=list(found.processes),
        environment=dict(found.environment),
        diagnostics=[evolve(diagnosis) for diagnosis in found.diagnostics],
        gpu_facts={device: dict(facts) for device, facts in found.gpu_facts.items()},
    )


def _key(path: Path) -> _Key:
    status = path.stat()
    return os.fspath(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino
