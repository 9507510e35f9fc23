"""The launches of a region as the roofs need them: which kernels, how many, how long, and what one launch does.

Three sources give the same shape: a timeline joined to counters, a timeline alone (nothing is known of a
launch's work), and counters alone (each result is one launch, its time ncu's).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.samples import Samples
from llm_perf_opt.analysis.verdicts.counters import Amounts, amounts_of
from llm_perf_opt.metrics.families import MEMCPY, family_of
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.model import KernelRecord, MemoryWork


@define(eq=False)
class Kind:
    """Launches that are alike: one signature, described by the same samples."""

    kernel_name: str
    family: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    samples: int = 0
    amounts: Amounts | None = None  # of one launch; None where it was never sampled
    sampled_ns: float | None = None  # how long the sampled launches took under ncu


@define(eq=False)
class Launches:
    """Launches of one region by kind and device."""

    kinds: list[Kind]  # shared by all regions of a report
    which: Int64s
    device: Int64s  # -1 where it is not known
    calls: Int64s
    time_ns: Int64s

    def __len__(self) -> int:
        return len(self.which)


@define(eq=False)
class KindList:
    """Kinds numbered as they are first met, so that all regions share them."""

    kinds: list[Kind] = Factory(list)
    _numbers: dict[object, int] = Factory(dict)

    def number(self, key: object, make: Kind) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.kinds)
            self.kinds.append(make)
        return found

    def known(self, key: object) -> int | None:
        return self._numbers.get(key)


def of_records(records: Sequence[KernelRecord], kinds: KindList) -> Launches:
    """Launches of a timeline without counters: one kind a kernel name."""
    rows = [r for r in records if r.total_ms is not None]
    which = [kinds.number(r.kernel_name, Kind(r.kernel_name, family_of(r.kernel_name))) for r in rows]
    return Launches(
        kinds.kinds,
        np.array(which, dtype=np.int64),
        np.array([-1 if r.device is None else r.device for r in rows], dtype=np.int64),
        np.array([r.calls for r in rows], dtype=np.int64),
        np.array([round((r.total_ms or 0) * 1e6) for r in rows], dtype=np.int64),
    )


def of_results(samples: Samples, rows: Sequence[int], good: set[str], kinds: KindList) -> Launches:
    """Launches that ncu measured one by one; alike are those of one signature."""
    which, device, time = [], [], []
    members: dict[object, list[int]] = {}
    for row in rows:
        action = samples.actions[row]
        if action.kind == "kernel" and action.time_ns() is not None:
            members.setdefault((action.name, action.grid, action.block), []).append(row)
    for key, same in members.items():
        action = samples.actions[same[0]]
        number = kinds.known((key, tuple(same)))
        if number is None:
            values = {
                name: float(np.mean([samples.actions[r].metrics[name] for r in same]))
                for name in action.metrics
                if name in good and all(name in samples.actions[r].metrics for r in same)
            }
            kind = Kind(
                action.name,
                family_of(action.name),
                action.grid or (),
                action.block or (),
                len(same),
                amounts_of(values) if values else None,
            )
            number = kinds.number((key, tuple(same)), kind)
        which.append(number)
        device.append(-1 if action.device is None else action.device)
        time.append((len(same), round(sum(samples.actions[r].time_ns() or 0.0 for r in same))))
    return Launches(
        kinds.kinds,
        np.array(which, dtype=np.int64),
        np.array(device, dtype=np.int64),
        np.array([calls for calls, _ in time], dtype=np.int64),
        np.array([total for _, total in time], dtype=np.int64),
    )


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
    for name, (calls, time, traffic) in (("memcpy device to device", copies), ("memset", fills)):
        if calls > 0 and time > 0:
            amounts = Amounts(bytes={"dram": traffic / calls})
            launches.kinds.append(Kind(name, MEMCPY, samples=calls, amounts=amounts))
            launches = Launches(
                launches.kinds,
                np.append(launches.which, len(launches.kinds) - 1),
                np.append(launches.device, -1 if device is None else device),
                np.append(launches.calls, calls),
                np.append(launches.time_ns, time),
            )
    return launches


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
