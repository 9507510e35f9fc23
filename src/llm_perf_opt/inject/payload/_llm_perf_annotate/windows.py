"""Switches the profiler on around chosen ranges only, and ends the program once all of them have been.

ncu with `--profile-from-start off` profiles between cudaProfilerStart and cudaProfilerStop, and lets launches pass
quickly everywhere else. Which ranges is read from a file, `LLM_PERF_WINDOWS`, by domain ("" is the default one), name, and
their numbers among those of that name in this process, from 1:

    {"windows": [["", "prefill", [1]], ["LLM", "step", [1, 8]]], "pauses": [["LLM", "layer3", [1]]],
     "stop": false, "switch": true}

Inside a window the profiler is off again in its pauses: ranges with launches that are not wanted. A window may lie in a
pause again: of all that are open, the innermost decides.

Without `switch`, no profiler is switched: the windows only say when the program may end.

With `stop`, the next range that would begin after the last window ends the program: SystemExit, so that `finally`,
`with` and atexit do their work; where the model runs in a thread, the main thread is interrupted as by Ctrl-C.

With `LLM_PERF_WINDOWS_WAIT=1` the program was started before the file is there (`capture/head_start.py`): its first
range waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from typing import Any, Callable

from . import log
from .seen_ranges import Locked, SeenRanges

# A program may catch SystemExit and go on. It is asked again, a few times.
_MOST_ENDINGS = 3
_LOOK_EVERY_S = 0.01

Switch = Callable[[], Any]
Ranges = dict[tuple[str, str], frozenset[int]]


class CaptureWindows(Locked):
    """A listener of ranges. Windows may be open on several threads: the last to close switches off."""

    def __init__(self, asked: Any, torch: Any) -> None:
        windows, pauses = (_ranges(asked[kind]) for kind in ("windows", "pauses"))
        self._windows = windows
        self._pauses = pauses
        self._stop = asked["stop"] is True
        self.switches = asked.get("switch") is not False
        self.torch = torch  # asked for its CUDA when that is needed: before, it may not be there
        self._left = sum(map(len, windows.values()))
        self._opened = 0
        self._around: list[tuple[tuple[str, str, int], bool]] = []  # windows and pauses that are open, and which it is
        self._is_on = False
        self._switched = 0
        self._switching_s = 0.0
        self._endings = 0
        super().__init__()

    def __call__(self, domain: str, name: str, number: int, begins: bool | None) -> None:
        if begins and self._left == 0 and self._stop:
            self._end_program(name, number)
            return
        is_window = number in self._windows.get((domain, name), ())
        if is_window or number in self._pauses.get((domain, name), ()):
            with self._lock:
                if begins:
                    self._enter((domain, name, number), is_window)
                else:
                    self._leave((domain, name, number), is_window, has_been=begins is not None)

    def _enter(self, which: tuple[str, str, int], is_window: bool) -> None:
        self._opened += is_window
        self._around.append((which, is_window))
        self._switch()

    def _leave(self, which: tuple[str, str, int], is_window: bool, *, has_been: bool) -> None:
        if (which, is_window) not in self._around:  # the program forked inside it, or switching failed
            return
        self._around.remove((which, is_window))
        self._left -= is_window and has_been
        self._opened -= is_window and not has_been
        self._switch()
        if is_window and self._left == 0:
            spent = {"switches": self._switched, "switching_s": round(self._switching_s, 4)}
            log.note("windows", done=True, windows=self._opened, last=f"{which[1]} {which[2]}", **spent)

    def _switch(self) -> None:
        """Have the profiler on where it should be."""
        wanted = bool(self._around) and self._around[-1][1]
        if wanted == self._is_on or not self.switches:
            return
        switch = self._cuda_switches()[0 if wanted else 1]
        began = time.perf_counter()
        _check(switch())
        self._switching_s += time.perf_counter() - began
        self._switched += 1
        self._is_on = wanted

    def _cuda_switches(self) -> tuple[Switch, Switch]:
        cuda = self.torch.cuda
        if cuda._is_in_bad_fork():  # a child of a process that uses the GPU cannot, and has nothing to profile
            return _nothing, _nothing
        runtime = cuda.cudart()
        return runtime.cudaProfilerStart, runtime.cudaProfilerStop

    def _wait_for_gpu(self) -> None:
        """What was launched is finished and recorded: a process that ends takes its work along."""
        cuda = getattr(self.torch, "cuda", None)
        if cuda is not None and cuda.is_initialized() and not cuda._is_in_bad_fork():
            with contextlib.suppress(Exception):
                if not cuda.is_current_stream_capturing():
                    cuda.synchronize()

    def _end_program(self, name: str, number: int) -> None:
        if self._endings >= _MOST_ENDINGS:
            return
        self._endings += 1
        if self._endings == 1:
            self._wait_for_gpu()
            log.note("windows", ended=True, before=f"{name} {number}")
        elif self._endings == _MOST_ENDINGS:
            log.trouble("the program catches SystemExit, so it could not be ended early.", of="ranges")
            log.note("windows", ended=False)
            return
        if threading.current_thread() is not threading.main_thread():
            # There SystemExit would end the thread alone, and a main thread that waits for its result would deadlock.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        raise SystemExit(0)


class AwaitedWindows(Locked):
    """Windows that nobody has chosen yet: the first range waits for them."""

    def __init__(self, path: str, torch: Any) -> None:
        self._path = path
        self.torch = torch
        self._chosen: CaptureWindows | None = None
        self._has_come = False
        super().__init__()

    def __call__(self, domain: str, name: str, number: int, begins: bool | None) -> None:
        if not self._has_come:
            with self._lock:
                self._await()
        if self._chosen is not None:
            self._chosen(domain, name, number, begins)

    def _await(self) -> None:
        while not self._has_come:  # whoever started us ends us where they never come
            self._has_come = os.path.exists(self._path)  # noqa: PTH110 - pathlib is slow to import
            if self._has_come:
                self._chosen = _read(self._path, self.torch)
            else:
                time.sleep(_LOOK_EVERY_S)


def install(torch: Any, ranges_seen: SeenRanges) -> None:
    """Listen to the ranges, where a file says which of them are wanted. `torch`: None where only nvtx is there yet."""
    path = os.environ.get("LLM_PERF_WINDOWS")
    if not path:
        return
    known = next((one for one in ranges_seen.listeners if isinstance(one, (CaptureWindows, AwaitedWindows))), None)
    if known is not None:
        known.torch = known.torch or torch
        return
    if os.environ.get("LLM_PERF_WINDOWS_WAIT") == "1" and torch is not None:
        ranges_seen.listeners.append(AwaitedWindows(path, torch))
        return
    listener = _read(path, torch)
    if listener is not None and (torch is not None or not listener.switches):
        ranges_seen.listeners.append(listener)


def _read(path: str, torch: Any) -> CaptureWindows | None:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            return CaptureWindows(json.load(file), torch)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.failed("reading which ranges to profile", error, of="ranges")
        return None


def _ranges(rows: Any) -> Ranges:
    return {(str(domain), str(name)): frozenset(map(int, numbers)) for domain, name, numbers in rows}


def _nothing() -> None:
    """Switches nothing."""


def _check(result: Any) -> None:
    """cudart answers with an error code, 0 where all is well."""
    if result is not None and int(result) != 0:
        raise RuntimeError(f"the CUDA runtime answered with error {int(result)}")
