"""What the counters of ncu mean (`counters.toml`), and what one set of values amounts to."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from attrs import Factory, define, evolve

from llm_perf_opt.regions.columns import CounterSet, MetricInfo

_TIME = "gpu__time_duration.sum"
_OPERATIONS = ("", "inst", "op", "flop", "thread")
_BYTES = ("byte", "B", "")
_RATES = {"byte/s": "byte", "inst/s": "inst", "op/s": "op", "1/s": "", "hz": "", "inst/cycle": "inst", "": ""}


@define(frozen=True)
class Counter:
    """One line of the table."""

    kind: str
    names: tuple[str, ...]
    per_count: float = 1.0
    units: tuple[str, ...] = ()
    instead: bool = False  # only where no other line of its kind has a value


@define(frozen=True)
class CounterTable:
    """The whole table."""

    flops: tuple[Counter, ...]
    bytes: tuple[Counter, ...]
    percent: tuple[Counter, ...]
    stall: re.Pattern[str]
    not_a_wait: frozenset[str]
    stall_words: dict[str, str]

    def names(self) -> set[str]:
        return {name for counter in (*self.flops, *self.bytes, *self.percent) for name in counter.names}


@cache
def counter_table() -> CounterTable:
    text = files("llm_perf_opt.analysis.verdicts").joinpath("counters.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)

    def lines(part: str, units: tuple[str, ...]) -> tuple[Counter, ...]:
        return tuple(
            Counter(
                kind=line["kind"],
                names=tuple(line["counters"]),
                per_count=line.get("per_count", 1.0),
                units=tuple(line.get("units", units)),
                instead=line.get("instead", False),
            )
            for line in raw[part]
        )

    stalls = raw["stalls"]
    return CounterTable(
        lines("flops", _OPERATIONS),
        lines("bytes", _BYTES),
        lines("percent", ("%",)),
        re.compile(stalls["pattern"]),
        frozenset(stalls["not_a_wait"]),
        dict(stalls["words"]),
    )


@define
class Amounts:
    """What was counted. A kind that is not in a dictionary was not collected."""

    flops: dict[str, float] = Factory(dict)  # FLOP by "tensor_bf16" …, "cuda_fp32" …
    bytes: dict[str, float] = Factory(dict)  # B by "dram_read", "dram_written", "dram", "l2"
    percent: dict[str, float] = Factory(dict)
    stalls: dict[str, float] = Factory(dict)  # warps that wait, per instruction issued, by reason

    def all_flops(self) -> float | None:
        """FLOPs of all kinds; None where none was found and the CUDA cores were not counted: not zero, but not known."""
        found = sum(self.flops.values())
        return found if found or self.total("cuda_") is not None else None

    def total(self, prefix: str) -> float | None:
        """FLOPs of the kinds that begin so; None where none was collected."""
        found = [value for kind, value in self.flops.items() if kind.startswith(prefix)]
        return sum(found) if found else None


def amounts_of(values: Mapping[str, float]) -> Amounts:
    """What a set of counter values amounts to."""
    table = counter_table()
    found = Amounts()
    for counters, into in ((table.flops, found.flops), (table.bytes, found.bytes), (table.percent, found.percent)):
        for counter in counters:
            value = next((values[name] for name in counter.names if name in values), None)
            if value is None or (counter.instead and counter.kind in into):
                continue
            into[counter.kind] = into.get(counter.kind, 0.0) + value * counter.per_count
    for name, value in values.items():
        if (match := table.stall.match(name)) and match[1] not in table.not_a_wait:
            found.stalls[match[1]] = value
    parts = [found.bytes[kind] for kind in ("dram_read", "dram_written") if kind in found.bytes]
    if len(parts) == 2:
        found.bytes["dram"] = sum(parts)
    return found


def usable(info: Mapping[str, MetricInfo]) -> tuple[set[str], list[str]]:
    """Counters of the table with a unit that is known, and those whose unit is not what it should be."""
    table = counter_table()
    units = {name: c.units for c in (*table.flops, *table.bytes, *table.percent) for name in c.names}
    good, odd = set(), []
    for name, accepted in units.items():
        if name in info:
            if info[name].unit in accepted:
                good.add(name)
            else:
                odd.append(f"{name} in {info[name].unit!r}")
    good |= {name for name in info if table.stall.match(name)}
    return good, odd


def with_totals(counter_sets: Sequence[CounterSet]) -> list[CounterSet]:
    """The same results with the totals that follow from rates: ncu's sections ask for `X.sum.per_second`, not `X.sum`.

    A rate times the duration (or the elapsed cycles) of the same result is its total, whatever the clock was.
    """
    return [_with_totals(counters) for counters in counter_sets]


def _with_totals(counters: CounterSet) -> CounterSet:
    info = dict(counters.metric_info)
    rates = []
    for name in counter_table().names():
        cycles = f"{name.partition('__')[0]}__cycles_elapsed.avg"
        for rate, span, scale in ((f"{name}.per_second", _TIME, 1e-9), (f"{name}.per_cycle_elapsed", cycles, 1.0)):
            if name.endswith(".sum") and rate in info and info[rate].unit in _RATES:
                rates.append((name, rate, span, scale))
                info.setdefault(name, MetricInfo(unit=_RATES[info[rate].unit], rollup="sum"))
    if not rates:
        return counters
    actions = []
    for action in counters.actions:
        added: dict[str, float] = {}
        for name, rate, span, scale in rates:
            if name not in action.metrics and rate in action.metrics and span in action.metrics:
                added[name] = action.metrics[rate] * action.metrics[span] * scale
        actions.append(evolve(action, metrics={**action.metrics, **added}) if added else action)
    return evolve(counters, actions=actions, metric_info=info)
