"""The GPUs of this machine through NVML, the driver's own library: energy, clocks, power, and who uses them.

By ctypes: a dozen functions are needed, none of them newer than five years, and the library comes with the driver
alone. Everything is None where there is no driver, or where a GPU does not say it (a slice of one has no energy).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attrs import define

_LIBRARY = "libnvidia-ml.so.1"
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_MOST_PROCESSES = 128
_UNKNOWN_SIZE = (1 << 64) - 1


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Utilisation(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


@define(frozen=True)
class State:
    """A GPU at one moment. -1 where it does not say."""

    energy_mj: int
    sm_mhz: int
    memory_mhz: int
    power_mw: int
    temperature: int  # °C
    reasons: int  # bits: why it is slower than it can be, `regions/gpu_samples.py`
    memory_used: int  # bytes, of all processes


class Gpu:
    """One GPU."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle
        self.uuid, self.name = self._text("nvmlDeviceGetUUID"), self._text("nvmlDeviceGetName")
        self.power_limit_mw = self._number("nvmlDeviceGetEnforcedPowerLimit")
        self.max_sm_mhz = self._number("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)

    def energy_mj(self) -> int:
        """Used since the driver was loaded; there is a new value every 100 ms."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)

    def state(self, energy_mj: int) -> State:
        memory = _Memory()
        known = self._ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory))
        return State(
            energy_mj,
            self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            self._number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            self._number("nvmlDeviceGetPowerUsage"),
            self._number("nvmlDeviceGetTemperature", 0),
            self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong),
            int(memory.used) if known else -1,
        )

    def processes(self) -> dict[int, int]:
        """Bytes of every process that computes on it (-1 where that is not known), by process id."""
        count, found = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        if not self._ask("nvmlDeviceGetComputeRunningProcesses_v3", ctypes.byref(count), found):
            return {}
        sizes = {int(found[n].pid): int(found[n].used) for n in range(min(count.value, _MOST_PROCESSES))}
        return {pid: -1 if size == _UNKNOWN_SIZE else size for pid, size in sizes.items()}

    def utilisation(self, since_us: int) -> list[tuple[int, int, int]]:
        """Process id, time of the sample, and the part of its multiprocessors' time in percent."""
        count = ctypes.c_uint(0)
        self._ask("nvmlDeviceGetProcessUtilization", None, ctypes.byref(count), ctypes.c_ulonglong(since_us))
        room = min(count.value, 4096)
        if not room:
            return []
        count, found = ctypes.c_uint(room), (_Utilisation * room)()
        if not self._ask("nvmlDeviceGetProcessUtilization", found, ctypes.byref(count), ctypes.c_ulonglong(since_us)):
            return []
        rows = [found[n] for n in range(min(count.value, room))]
        return [(int(row.pid), int(row.time), int(row.sm)) for row in rows]

    def _number(self, function: str, *given: int, kind: Any = ctypes.c_uint) -> int:
        value = kind()
        return int(value.value) if self._ask(function, *given, ctypes.byref(value)) else -1

    def _text(self, function: str) -> str:
        text = ctypes.create_string_buffer(96)
        return text.value.decode("ascii", "replace") if self._ask(function, text, ctypes.c_uint(96)) else ""

    def _ask(self, function: str, *given: Any) -> bool:
        found: Callable[..., int] | None = getattr(self._library, function, None)
        return found is not None and found(self._handle, *given) == 0


class Nvml:
    """The library, from `open` to `close`."""

    def __init__(self, library: Any) -> None:
        self._library = library
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self.gpus: list[Gpu] = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
                self.gpus.append(Gpu(library, handle))

    @staticmethod
    def open() -> Nvml | None:
        """None where there is no driver, or no GPU."""
        try:
            library = ctypes.CDLL(_LIBRARY)
            if library.nvmlInit_v2() != 0:
                return None
            found = Nvml(library)
        except (OSError, AttributeError):
            return None
        if not found.gpus:
            found.close()
            return None
        return found

    def close(self) -> None:
        with suppress(OSError, AttributeError):
            self._library.nvmlShutdown()
