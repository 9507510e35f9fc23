"""Peak and growth of GPU memory inside ranges, while the program goes on reading the peak it would have read."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.inject.environment import INJECTED

sys.path.insert(0, str(INJECTED))
from _llm_perf_annotate.memory import Memory


class Allocator:
    """As PyTorch's keeps its statistics: there is no GPU where these tests run."""

    def __init__(self) -> None:
        self.current = self.peak = 0

    def allocate(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)

    def read(self, device: int) -> dict[str, Any]:
        values = {"current": self.current, "peak": self.peak}
        pools = {"all": dict(values), "small_pool": dict(values)}
        nested = {"allocated_bytes": pools, "requested_bytes": {"all": dict(values)}, "oversize_segments": dict(values)}
        return {"num_device_alloc": 0, **nested}

    def reset(self, device: int) -> None:
        self.peak = self.current


class Twice:
    """The same program with us (`torch`, `memory`) and without (`plain`)."""

    def __init__(self) -> None:
        self.plain, self.real = Allocator(), Allocator()
        self.torch = SimpleNamespace(
            _C=SimpleNamespace(
                _cuda_memoryStats=self.real.read, _cuda_resetPeakMemoryStats=self.real.reset, _cuda_getDevice=lambda: 0
            )
        )
        memory = Memory.of(self.torch)
        assert memory is not None
        self.memory = memory

    def allocate(self, size: int) -> None:
        self.plain.allocate(size)
        self.real.allocate(size)

    def reset(self) -> None:
        self.plain.reset(0)
        self.torch._C._cuda_resetPeakMemoryStats(0)


def test_every_range_has_its_own_peak_and_growth() -> None:
    both = Twice()
    both.allocate(100)
    step = both.memory.begin()
    both.allocate(50)
    inner = both.memory.begin()
    both.allocate(30)
    both.allocate(-30)
    assert inner is not None
    assert step is not None
    assert both.memory.end(inner) == (180, 0)
    both.allocate(-40)
    assert both.memory.end(step) == (180, 10)
    after = both.memory.begin()
    assert after is not None
    assert both.memory.end(after) == (110, 0)


def test_a_reset_by_the_program_takes_no_peak_from_an_open_range() -> None:
    both = Twice()
    step = both.memory.begin()
    both.allocate(80)
    both.allocate(-60)
    both.reset()
    assert step is not None
    assert both.memory.end(step) == (80, 20)


@given(st.lists(st.one_of(st.integers(-50, 100), st.sampled_from(["begin", "end", "reset"])), max_size=40))
def test_the_program_reads_what_it_would_have_read_without_us(actions: list[int | str]) -> None:
    both = Twice()
    opened: list[Any] = []
    for action in actions:
        if action == "begin":
            opened.append(both.memory.begin())
        elif action == "end" and opened:
            both.memory.end(opened.pop())
        elif action == "reset":
            both.reset()
        elif isinstance(action, int):
            both.allocate(max(action, -both.plain.current))
        assert both.torch._C._cuda_memoryStats(0) == both.plain.read(0)


def test_an_allocator_without_statistics_costs_the_program_nothing() -> None:
    def fails(device: int) -> None:
        raise RuntimeError("pluggable allocators have none")

    memory = Memory(fails, fails, lambda: 0)
    assert memory.begin() is None
    assert Memory.of(SimpleNamespace(_C=SimpleNamespace())) is None


@pytest.mark.torch
def test_torch_for_a_cpu_has_no_such_allocator_or_one_that_is_shared() -> None:
    """The names of torch's own functions: where they change, there is no memory in reports, and no error either."""
    torch = pytest.importorskip("torch")
    names = {"_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_getDevice"}
    known = {name for name in names if hasattr(torch._C, name)}
    assert known in (set(), names)
