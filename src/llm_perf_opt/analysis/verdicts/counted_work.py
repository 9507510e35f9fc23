"""What one set of counter values amounts to: FLOPs, bytes and shares of peaks, by the roles of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import Factory, define, evolve

from llm_perf_opt.metrics.catalogue import TIME, counted, stall_reason
from llm_perf_opt.regions.columns import CounterSet, MetricInfo

_L1_ACTIVE, _L1_ELAPSED = (f"l1tex__throughput.avg.pct_of_peak_sustained_{of}" for of in ("active", "elapsed"))
_SM_ACTIVE = "sm__cycles_active.avg"
_ELAPSED = ("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
_RATES = {"byte/s": "byte", "inst/s": "inst", "op/s": "op", "1/s": "", "hz": "", "inst/cycle": "inst", "": ""}


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
    found = Amounts()
    kinds = {"flops": found.flops, "bytes": found.bytes, "percent": found.percent}
    for counter in counted():
        for name in counter.names:
            if name in values:
                into = kinds[counter.kind]
                if not (counter.instead and counter.amount in into):
                    into[counter.amount] = into.get(counter.amount, 0.0) + values[name] * counter.per_count
                break
    for name, value in values.items():
        if reason := stall_reason(name):
            found.stalls[reason] = value
    parts = [found.bytes[kind] for kind in ("dram_read", "dram_written") if kind in found.bytes]
    if len(parts) == 2:
        found.bytes["dram"] = sum(parts)
    _add_l1(found.percent)
    return found


def _add_l1(percent: dict[str, float]) -> None:
    """How near L1 and shared memory came to their peak over the whole launch, where neither that nor cycles were collected.

    The usual counter is of the cycles in which L1 works: the memory system as a whole says how many those may be, and
    where it is busier than L2 and DRAM, L1 is what is left.
    """
    memory, active = percent.get("memory"), percent.get("l1_active")
    if "l1" in percent or memory is None:
        return
    if active is not None:
        percent["l1"] = min(active, memory)
    elif "dram" in percent and "l2" in percent and memory > 1.05 * max(percent["dram"], percent["l2"]):
        percent["l1"] = memory


def usable(info: Mapping[str, MetricInfo]) -> tuple[set[str], list[str]]:
    """Counters that add up to something, with a unit that is known, and those whose unit is not what it should be."""
    good, odd = set(), []
    for counter in counted():
        for name in counter.names:
            if name in info:
                if info[name].unit in counter.units:
                    good.add(name)
                else:
                    odd.append(f"{name} in {info[name].unit!r}")
    good |= {name for name in info if stall_reason(name)}
    return good, odd


def with_totals(counter_sets: Sequence[CounterSet]) -> list[CounterSet]:
    """The same results with the totals that follow from rates: ncu's sections ask for `X.sum.per_second`, not `X.sum`.

    A rate times the duration (or the elapsed cycles) of the same result is its total, whatever the clock was. A share of
    L1's peak while SMs have work is one of the whole launch by the cycles in which they have.
    """
    return [_with_l1(_with_totals(collected)) for collected in counter_sets]


def _with_l1(collected: CounterSet) -> CounterSet:
    if _L1_ACTIVE not in collected.metric_info or _L1_ELAPSED in collected.metric_info:
        return collected
    actions = []
    for action in collected.actions:
        found = action.metrics
        elapsed = next((found[name] for name in _ELAPSED if found.get(name)), None)
        if elapsed and _L1_ACTIVE in found and _SM_ACTIVE in found:
            part = min(found[_SM_ACTIVE] / elapsed, 1.0)
            action = evolve(action, metrics={**found, _L1_ELAPSED: found[_L1_ACTIVE] * part})
        actions.append(action)
    info = {**collected.metric_info, _L1_ELAPSED: collected.metric_info[_L1_ACTIVE]}
    return evolve(collected, actions=actions, metric_info=info)


def _with_totals(collected: CounterSet) -> CounterSet:
    info = dict(collected.metric_info)
    rates = []
    for name in [name for counter in counted() for name in counter.names]:
        cycles = f"{name.partition('__')[0]}__cycles_elapsed.avg"
        for rate, span, scale in ((f"{name}.per_second", TIME, 1e-9), (f"{name}.per_cycle_elapsed", cycles, 1.0)):
            if name.endswith(".sum") and rate in info and info[rate].unit in _RATES:
                rates.append((name, rate, span, scale))
                info.setdefault(name, MetricInfo(unit=_RATES[info[rate].unit], rollup="sum"))
    if not rates:
        return collected
    actions = []
    for action in collected.actions:
        added: dict[str, float] = {}
        for name, rate, span, scale in rates:
            if name not in action.metrics and rate in action.metrics and span in action.metrics:
                added[name] = action.metrics[rate] * action.metrics[span] * scale
        actions.append(evolve(action, metrics={**action.metrics, **added}) if added else action)
    return evolve(collected, actions=actions, metric_info=info)
