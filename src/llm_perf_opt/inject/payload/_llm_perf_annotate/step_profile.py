"""Launches and kernels of one step, by torch's own profiler: whether a lever took effect shows in them, whatever it says.

A step lasts from one call of a model to the next, so that backward and optimiser belong to it. Looking takes seconds,
and what comes after it is slower: a run that looks is not one whose times count.
"""

from __future__ import annotations

import warnings
from typing import Any

from . import log

_MOST_KERNELS = 200
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch", "cudaLaunchCooperativeKernel")


class StepProfile:
    """Of one process."""

    def __init__(self, torch: Any, call: int) -> None:
        self._torch, self._call = torch, call
        self._profiler: Any = None
        self._found: dict[str, Any] = {}

    def before_call(self, number: int) -> None:
        """The call with this number is about to be made."""
        if number == self._call:
            self._guarded(self._start)
        elif number > self._call and self._profiler is not None:
            self._guarded(self._stop)

    def read(self) -> dict[str, Any]:
        if self._profiler is not None:
            self._guarded(self._stop)
        return self._found

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except Exception as error:
            self._profiler = None
            log.failed("looking at the kernels of a step", error)

    def _start(self) -> None:
        cuda = self._torch.cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing() or self._torch.autograd._profiler_enabled():
            return  # or the program looks itself
        cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._profiler = self._torch.profiler.profile(activities=[self._torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()

    def _stop(self) -> None:
        profiler, self._profiler = self._profiler, None
        self._torch.cuda.synchronize()
        profiler.stop()
        kernels: dict[str, int] = {}
        launches = 0
        for event in profiler.profiler.kineto_results.events():
            name = event.name()
            if event.device_type() == self._torch.autograd.DeviceType.CUDA:
                kernels[name] = kernels.get(name, 0) + 1
            elif name.startswith(_LAUNCHES):
                launches += 1
        often = sorted(kernels, key=lambda name: -kernels[name])[:_MOST_KERNELS]
        self._found = {"launches": launches, "kernels": {name[:300]: kernels[name] for name in often}}
