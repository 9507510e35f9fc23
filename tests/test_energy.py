"""Energy of a measured program shared out over its regions, against powers that are known."""

from __future__ import annotations

import numpy as np
import pytest

from llm_perf_opt.analysis.energy import Energy, share_out
from llm_perf_opt.regions.attribution import Attribution, attribute
from llm_perf_opt.regions.columns import UNKNOWN_HERE, Process, Ranges, Timeline, Work
from llm_perf_opt.regions.gpu_samples import GpuSamples

MS = 1_000_000
SECOND = 1000 * MS
BEGIN = 5 * 86_400 * SECOND  # the clock counts from the start of the machine


def timeline_of(
    rows: list[tuple[str, int, int]], seconds: float, watts: dict[str, float], *, jitter: int = 0
) -> Timeline:
    """Ranges by name, start and end in milliseconds; the innermost of a moment says how much is drawn."""
    grid = np.arange(0, int(seconds * 1000))  # in milliseconds
    power = np.full(len(grid), watts[""])
    for name, start, end in sorted(rows, key=lambda row: row[1] - row[2]):
        power[start:end] = watts[name]
    counter = np.concatenate([[0.0], np.cumsum(power)])  # millijoules
    looks = np.random.default_rng(1).integers(0, jitter + 1, len(counter[::100]))
    names = sorted(watts)
    start = np.array([BEGIN + start * MS for _, start, _ in rows], dtype=np.int64)
    end = np.array([BEGIN + end * MS for *_, end in rows], dtype=np.int64)
    alike, nothing, unknown = np.zeros(len(rows), dtype=np.int32), Work.empty(), np.full(len(rows), UNKNOWN_HERE)
    at = np.arange(0, len(counter), 100)
    columns = {name: np.zeros(len(at), dtype=np.int64) for name in ("sm_mhz", "memory_mhz", "power_mw", "temperature")}
    gpu = GpuSamples(
        run=0, uuid="GPU-1", name="H200", power_limit_mw=700_000, max_sm_mhz=1980,
        time=BEGIN + (at + looks) * MS, energy_mj=np.round(counter[at]).astype(np.int64),
        reasons=np.zeros(len(at), dtype=np.int64), memory_used=np.zeros(len(at), dtype=np.int64), **columns,
    )  # fmt: skip
    ranges = Ranges(
        start, end, alike, alike, alike, np.array([names.index(name) for name, *_ in rows], dtype=np.int32), alike > 0,
        took=end - start, gpu_start=start, memory_peak=unknown, memory_growth=unknown,
    )  # fmt: skip
    return Timeline("", "measured", names, [""], [Process(1)], [0], nothing, nothing, nothing, ranges, gpus=[gpu])


def shared(timeline: Timeline) -> tuple[Energy, Attribution]:
    attribution = attribute(timeline)
    energy = share_out(timeline, attribution)
    assert energy is not None
    return energy, attribution


def joules(energy: Energy, attribution: Attribution, key: str) -> float | None:
    regions = [attribution.table.key(number) for number in range(len(attribution.table))]
    region = regions.index(key)
    return energy.of(region, np.flatnonzero(attribution.range_region == region))[0]


def generations() -> list[tuple[str, int, int]]:
    """Prefills of 300 ms and decodes of 500 ms, in which a step takes 10 ms, with gaps that differ."""
    rows, at = [], 1000
    for number in range(20):
        rows.append(("prefill", at, at + 300))
        rows.append(("decode", at + 300, at + 800))
        rows += [("step", at + 300 + n, at + 308 + n) for n in range(0, 500, 10)]
        at += 1000 + 37 * (number % 5)
    return rows


WATTS = {"": 120.0, "prefill": 600.0, "decode": 150.0, "step": 400.0}


@pytest.mark.parametrize("jitter", [0, 20])
def test_regions_that_take_turns_get_what_they_draw(jitter: int) -> None:
    energy, attribution = shared(timeline_of(generations(), 24, WATTS, jitter=jitter))
    assert joules(energy, attribution, "prefill") == pytest.approx(0.3 * 600, rel=0.05)
    assert joules(energy, attribution, "decode") == pytest.approx(0.4 * 400 + 0.1 * 150, rel=0.05)


def test_regions_that_always_come_together_are_not_told_apart() -> None:
    """A step is 80 % of every decode: how its energy divides between both cannot be seen; what both use can."""
    both = [("first", n, n + 4) for n in range(0, 20_000, 10)] + [
        ("second", n + 4, n + 9) for n in range(0, 20_000, 10)
    ]
    around = [("step", n, n + 9) for n in range(0, 20_000, 10)]
    energy, attribution = shared(
        timeline_of(both + around, 25, {"": 100.0, "first": 300.0, "second": 500.0, "step": 0.0})
    )
    assert joules(energy, attribution, "step/first") is None
    assert joules(energy, attribution, "step/second") is None
    assert joules(energy, attribution, "step") == pytest.approx(0.004 * 300 + 0.005 * 500, rel=0.05)


def test_all_regions_and_the_rest_add_up_to_the_counter() -> None:
    timeline = timeline_of(generations(), 24, WATTS, jitter=20)
    energy, attribution = shared(timeline)
    outer = attribution.range_parent == -1
    assert np.nansum(energy.of_range[outer]) + energy.no_region == pytest.approx(energy.total, rel=1e-9)
    counter = timeline.gpus[0].energy_mj
    assert energy.total == pytest.approx((counter[-1] - counter[0]) / 1e3, rel=1e-9)
    assert energy.no_region == pytest.approx(4 * 120 + 18 * 0.27 * 120, rel=0.25)


def test_a_short_run_says_nothing() -> None:
    rows = [("prefill", 1000, 1300), ("decode", 1300, 1800)]
    energy, attribution = shared(timeline_of(rows, 3, WATTS))
    assert joules(energy, attribution, "prefill") is None
    assert energy.total == pytest.approx(0.3 * 600 + 0.5 * 150 + 2.2 * 120, rel=0.05)
