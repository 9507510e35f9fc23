"""Looks at the GPUs while the program runs by itself: energy, clocks, throttling, other users. From our process.

On the clock that the program's ranges are timed by, so that both can be put together. A row is taken when the energy
counter has a new value, which is every 100 ms; asking for that alone costs microseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import attrs
import psutil

from llm_perf_opt.nsight.nvml import Gpu, Nvml
from llm_perf_opt.regions.gpu_samples import COLUMNS

_LOOK_S = 0.02
_LONGEST_S = 0.25  # between two rows, where a counter stands still or is not there
_PROCESSES_S = 1.0
_MOST_ROWS = 200_000  # of a run; from then on every second row is dropped


class _Watched:
    """One GPU and what was seen of it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.rows: list[list[int]] = []
        self.before = set(gpu.processes())  # who was there before the program
        self.others: dict[int, dict[str, Any]] = {}
        self._energy, self._taken, self._asked, self._used_since = -2, 0.0, 0.0, int(time.time() * 1e6)

    def look(self, own: Callable[[], set[int]], *, last: bool = False) -> None:
        now, energy = time.monotonic(), self.gpu.energy_mj()
        if energy != self._energy or now - self._taken > _LONGEST_S or last:
            self._energy, self._taken = energy, now
            self.rows.append([time.monotonic_ns(), *attrs.astuple(self.gpu.state(energy))])
            if len(self.rows) > _MOST_ROWS:
                del self.rows[1::2]
        if now - self._asked > _PROCESSES_S or last:
            self._asked = now
            self._look_for_others(own)

    def _look_for_others(self, own: Callable[[], set[int]]) -> None:
        used = self.gpu.utilisation(self._used_since)
        self._used_since = max((at for _, at, _ in used), default=self._used_since)
        found = self.gpu.processes()
        ours = own()  # asked afterwards: one that has just begun is among them
        for pid, size in found.items():
            # In a container the driver may name processes by numbers that mean nothing here: ours among them.
            if pid in ours or (pid not in self.before and not psutil.pid_exists(pid)):
                continue
            other = self.others.setdefault(pid, {"pid": pid, "name": _name(pid), "bytes": -1, "percent": []})
            other["bytes"] = max(other["bytes"], size)
            other["percent"] += [percent for who, _, percent in used if who == pid]

    def as_json(self) -> dict[str, Any]:
        others = [{**other, "percent": _mean(other["percent"])} for other in self.others.values()]
        facts = {"uuid": self.gpu.uuid, "name": self.gpu.name}
        limits = {"power_limit_mw": self.gpu.power_limit_mw, "max_sm_mhz": self.gpu.max_sm_mhz}
        return {**facts, **limits, "columns": list(COLUMNS), "samples": self.rows, "others": others}


class GpuSampler:
    """Samples from the beginning of a `with` block to its end; then `found` has what it saw, empty without a GPU."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuSampler:
        library = Nvml.open()
        if library is not None:
            watched = [_Watched(gpu) for gpu in library.gpus]
            self._thread = threading.Thread(target=self._sample, args=(library, watched), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, library: Nvml, watched: list[_Watched]) -> None:
        me, known, over = psutil.Process(), set[int](), False

        def own() -> set[int]:
            known.update(child.pid for child in me.children(recursive=True))
            return known | {me.pid}

        while not over:
            over = self._over.wait(_LOOK_S)
            for gpu in watched:
                gpu.look(own, last=over)
        library.close()
        self.found = [gpu.as_json() for gpu in watched]


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


def _mean(values: list[int]) -> float:
    return round(sum(values) / len(values), 1) if values else -1
