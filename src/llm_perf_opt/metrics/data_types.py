"""Which data types do the kernels of a program compute in? Their names say it, so that no pass counts what is not there.

A type that was not recognised costs more than one counted for nothing: its operations would be missing from the
report. So what is ambiguous is decided by what else is known (the model's own type, the types of the other
kernels), what stays open is counted in every likely type, and the caller is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from attrs import Factory, define

from llm_perf_opt.package_data import read_toml

HALF, OPEN = "half", "unknown"
_HALF_TYPES = ("bf16", "fp16")


@define(frozen=True)
class TypesInUse:
    """Data types of a program's kernels, with the share of GPU time each stands for."""

    types: tuple[str, ...]  # those to count, most time first
    share: dict[str, float] = Factory(dict)  # as the names tell; may hold "half" and "unknown"
    reasons: tuple[str, ...] = ()  # how what the names left open was decided
    left_out: tuple[str, ...] = ()  # types with too little time to be worth their passes


def types_of_name(name: str) -> tuple[str, ...]:
    """Types that a kernel's name tells: empty for no tensor work, "half" or "unknown" where it leaves that open."""
    return _types_of_name(name[:2000])


def types_in_use(kernels: Iterable[tuple[str, int]], model_type: str | None = None) -> TypesInUse:
    """Types of kernels, given as (name, time). `model_type`: what the model is known to compute in."""
    time: dict[str, int] = {}
    total = 0
    for name, duration in kernels:
        total += duration
        for data_type in types_of_name(name):
            time[data_type] = time.get(data_type, 0) + duration
    spoken = canonical(model_type)
    found = {t: n for t, n in time.items() if t not in (HALF, OPEN)}
    reasons = []
    if time.get(HALF):
        chosen = _half_types(found, spoken)
        for data_type in chosen:
            found[data_type] = found.get(data_type, 0) + time[HALF]
        reasons.append(f"kernels whose names say 16 bits only are counted as {' and '.join(chosen)}")
    if time.get(OPEN):
        likely = [spoken] if spoken else [max(found, key=lambda t: found[t])] if found else list(_HALF_TYPES)
        for data_type in likely:
            found.setdefault(data_type, time[OPEN])
        reasons.append(f"matrix kernels whose names tell no type are counted as {' and '.join(likely)}")
    if spoken and spoken not in found:
        found[spoken] = 0
        reasons.append(f"the model computes in {spoken}")
    ordered = sorted(found, key=lambda t: -found[t])
    worth = tuple(t for t in ordered if found[t] >= least_share(t) * total or t == spoken)
    return TypesInUse(
        types=worth,
        share={t: n / total for t, n in time.items()} if total else {},
        reasons=tuple(reasons),
        left_out=tuple(t for t in ordered if t not in worth),
    )


def least_share(data_type: str) -> float:
    """Share of the GPU time below which a type is not worth counting."""
    return float(_data()["least_share_of_cuda_cores" if data_type.endswith("_cuda") else "least_share"])


def canonical(data_type: str | None) -> str | None:
    """`torch.bfloat16`, `bfloat16`, `bf16` are all bf16; None for what is not known."""
    if not data_type:
        return None
    plain = data_type.lower().removeprefix("torch.")
    known = {t for rule in _rules() for t in rule[1]} - {HALF, OPEN}
    spoken: dict[str, str] = _data()["spoken"]
    return spoken.get(plain, plain if plain in known else None)


def _half_types(found: dict[str, int], spoken: str | None) -> Sequence[str]:
    if spoken in _HALF_TYPES:
        return [spoken]
    seen = [t for t in _HALF_TYPES if t in found]
    return seen if len(seen) == 1 else list(_HALF_TYPES)


@lru_cache(maxsize=65536)
def _types_of_name(name: str) -> tuple[str, ...]:
    return next((types for pattern, types in _rules() if pattern.search(name)), ())


@cache
def _rules() -> list[tuple[re.Pattern[str], tuple[str, ...]]]:
    return [(re.compile(rule["pattern"], re.IGNORECASE), tuple(rule["types"])) for rule in _data()["rule"]]


@cache
def _data() -> dict[str, Any]:
    return read_toml(__package__, "kernel_types.toml")
