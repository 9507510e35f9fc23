"""The launches of a region as the roofs need them: which kernels, how many, how long, and what one launch does.

Three sources give the same shape: a timeline joined to counters, a timeline alone (nothing is known of a
launch's work), and counters alone (each result is one launch, its time ncu's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.sample_matrix import Samples
from llm_perf_opt.analysis.verdicts.counted_work import Amounts, amounts_of
from llm_perf_opt.metrics.families import MEMCPY, MULTIPLYING, family_of
from llm_perf_opt.regions.columns import Action, Int64s
from llm_perf_opt.regions.copy_work import MemoryWork
from llm_perf_opt.regions.model import KernelRecord

# Per cent of the peak of the tensor pipe, from which on a kernel works there. Arithmetic of 16 bits uses that pipe too:
# elementwise kernels on an H200 show up to 6 %.
_TENSOR_IN_USE = 20.0


@define(eq=False)
class Kind:
    """Launches that are alike: one signature, described by the same samples.

    What follows from the counters is found once: every region that launches it asks, and many rules of each.
    """

    kernel_name: str
    family: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    samples: int = 0
    amounts: Amounts | None = None  # of one launch; None where it was never sampled
    sampled_ns: float | None = None  # how long the sampled launches took under ncu
    fill: dict[str, float] = Factory(dict)  # how one launch fills the SMs, see `Action`; empty where it is not known

    @cached_property
    def lacks_tensor_work(self) -> bool:
        """Does it work on the tensor cores, or may it, while no operation of theirs was counted?"""
        if self.amounts is None or self.amounts.total("tensor_") is not None:
            return False
        busy = self.amounts.percent.get("tensor")  # how long the tensor pipe was, of its peak
        if self.family not in MULTIPLYING:
            return (busy or 0.0) > _TENSOR_IN_USE
        # A product on the CUDA cores has its FLOPs there, and the tensor pipe idle.
        return busy is None or busy > _TENSOR_IN_USE or not any(self.amounts.flops.values())

    @cached_property
    def flops(self) -> float | None:
        """FLOPs of one launch; None where not all of them were counted."""
        return None if self.amounts is None or self.lacks_tensor_work else self.amounts.all_flops()


@define(eq=False)
class Launches:
    """Launches of one region by kind and device."""

    kinds: list[Kind]  # shared by all regions of a report
    which: Int64s
    device: Int64s  # -1 where it is not known
    calls: Int64s
    time_ns: Int64s

    @staticmethod
    def of(kinds: list[Kind], rows: Sequence[tuple[int, int | None, int, int]]) -> Launches:
        """From kind, device, calls and time of each row."""
        known = [(which, -1 if device is None else device, calls, time) for which, device, calls, time in rows]
        return Launches(kinds, *np.array(known, dtype=np.int64).reshape(-1, 4).T)

    def __len__(self) -> int:
        return len(self.which)

    @cached_property
    def kernel_time(self) -> float:
        """Of all launches together, ns."""
        return float(self.time_ns.sum())

    @cached_property
    def share_without_tensor_work(self) -> float:
        """Part of the kernel time of launches whose work on the tensor cores was not counted."""
        time = sum(time for kind, time in self.timed_kinds if kind.lacks_tensor_work)
        return time / self.kernel_time if time else 0.0

    @cached_property
    def timed_kinds(self) -> list[tuple[Kind, int]]:
        """The kind of each row, and its time."""
        return [
            (self.kinds[which], time) for which, time in zip(self.which.tolist(), self.time_ns.tolist(), strict=True)
        ]


@define(eq=False)
class KindList:
    """Kinds numbered as they are first met, so that all regions share them."""

    kinds: list[Kind] = Factory(list)
    _numbers: dict[object, int] = Factory(dict)

    def number(self, key: object, make: Callable[[], Kind]) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.kinds)
            self.kinds.append(make())
        return found


def of_records(records: Sequence[KernelRecord], kinds: KindList) -> Launches:
    """Launches of a timeline without counters: one kind a kernel name."""
    rows = []
    for record in records:
        if record.total_ms is not None:
            number = kinds.number(record.kernel_name, partial(Kind, record.kernel_name, record.family))
            rows.append((number, record.device, record.calls, round(record.total_ms * 1e6)))
    return Launches.of(kinds.kinds, rows)


def of_results(samples: Samples, rows: Sequence[int], good: set[str], kinds: KindList) -> Launches:
    """Launches that ncu measured one by one; alike are those of one signature."""
    alike: dict[object, list[Action]] = {}
    for row in rows:
        action = samples.actions[row]
        if action.kind == "kernel" and action.time_ns() is not None:
            alike.setdefault((action.name, action.grid, action.block), []).append(action)
    found = []
    for actions in alike.values():
        number = kinds.number(tuple(map(id, actions)), partial(_measured_kind, actions, good))
        time = round(sum(action.time_ns() or 0.0 for action in actions))
        found.append((number, actions[0].device, len(actions), time))
    return Launches.of(kinds.kinds, found)


def _measured_kind(actions: Sequence[Action], good: set[str]) -> Kind:
    first = actions[0]
    values = {
        name: float(np.mean([action.metrics[name] for action in actions]))
        for name in first.metrics
        if name in good and all(name in action.metrics for action in actions)
    }
    amounts = amounts_of(values) if values else None
    grid, block = first.grid or (), first.block or ()
    return Kind(first.name, family_of(first.name), grid, block, len(actions), amounts, fill=first.fill)


def at_pace(times_ns: Int64s, pace: float) -> Int64s:
    """Times of a recording as they are without a profiler (`gpu_pace`)."""
    return np.round(times_ns * pace).astype(np.int64)


def with_copies(launches: Launches, memory: MemoryWork, device: int | None) -> Launches:
    """The same with copies within the GPU and fills as launches of their own: the timeline knows what they move.

    Copies to and from the host are not limited by the GPU and stay out.
    """
    fills = (
        memory.count - memory.host_count - memory.device_count,
        memory.time_ns - memory.host_time_ns - memory.device_time_ns,
        memory.bytes - memory.host_bytes - memory.device_bytes,
    )
    copies = (memory.device_count, memory.device_time_ns, 2 * memory.device_bytes)
    added = []
    for name, (calls, time, traffic) in (("memcpy device to device", copies), ("memset", fills)):
        if calls > 0 and time > 0:
            added.append((len(launches.kinds), device, calls, time))
            amounts = Amounts(bytes={"dram": traffic / calls})
            launches.kinds.append(Kind(name, MEMCPY, samples=calls, amounts=amounts))
    more = Launches.of(launches.kinds, added)
    columns = (
        np.append(getattr(launches, name), getattr(more, name)) for name in ("which", "device", "calls", "time_ns")
    )
    return Launches(launches.kinds, *columns)


def copied_beside(memory: MemoryWork, whole: Iterable[str]) -> float:
    """Bytes of copies that DRAM counters have not in. `whole`: roles of those that measured everything, copies too."""
    read = memory.device_bytes + memory.host_bytes - memory.upload_bytes
    rest = {"dram_read": read, "dram_write": copy_traffic(memory) - read}
    for role in whole:
        if role in rest:
            del rest[role]
        elif role == "dram":  # of both
            rest.clear()
    return sum(rest.values())


def copy_traffic(memory: MemoryWork) -> float:
    """Bytes that copies and fills move in the GPU's memory."""
    return memory.bytes + memory.device_bytes  # those within the device are read and written
