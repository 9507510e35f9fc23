"""What to ask ncu for on a given GPU, by level, and what a level costs.

The counters are those of the catalogue; where an architecture differs, and its passes, are in `chips.toml` (see
README.md in this folder). Nothing here talks to ncu or to a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from attrs import Factory, define, evolve

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.catalogue import Counter, counters
from llm_perf_opt.options.declared import LEVELS as LEVELS
from llm_perf_opt.package_data import read_toml

DEFAULT_LEVEL = "roofline"
_RARELY_IN_USE = ("fp64",)  # types that no suggestion asks for


@define(frozen=True)
class PassCount:
    """Passes of one launch, and how well that is known."""

    passes: int
    source: str  # "measured" | "calculated" | "estimated"

    def __str__(self) -> str:
        number = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        return number if self.source == "measured" else f"{number} ({self.source})"


@define(frozen=True, eq=False)
class MetricGroups:
    """What can be counted on one architecture."""

    architecture: str  # "sm_90"
    name: str
    compute_capabilities: tuple[str, ...]
    chip: str  # as ncu's --chips calls it; its list of metrics is the one the names were checked against
    chips: tuple[str, ...]
    names_from: str
    passes_from: str
    metrics: tuple[Counter, ...]
    # level -> data type ("none": no operation counters) -> passes with that type alone, and what it adds to others
    _passes: dict[str, dict[str, tuple[int, int]]] = Factory(dict)
    _measured: dict[str, int] = Factory(dict)

    @property
    def data_types(self) -> tuple[str, ...]:
        """Types whose operations this chip can count."""
        return tuple(dict.fromkeys(m.data_type for m in self.metrics if m.data_type))

    def of_level(self, level: str, data_types: Collection[str] = ()) -> tuple[Counter, ...]:
        """Metrics of a level and of the levels below it, operation counters only of the types in use."""
        highest = LEVELS.index(level)
        types = self._types_at(level, data_types)
        return tuple(
            m
            for m in self.metrics
            if LEVELS.index(m.level) <= highest and (m.data_type is None or m.data_type in types)
        )

    def all_tensor_work(self) -> tuple[Counter, ...]:
        """Time, traffic and the work of the tensor cores in every type a model may compute in: what a report suggests."""
        types = {m.data_type for m in self.metrics if m.data_type and m.counts_tensor_work}
        return self.of_level("roofline", types - set(_RARELY_IN_USE))

    def _types_at(self, level: str, data_types: Collection[str]) -> list[str]:
        """Types that are counted at a level: those in use, and with `full` all work of CUDA cores."""
        always = {m.data_type for m in self.metrics if m.role == "cuda_core_ops"} if level == "full" else set()
        return [t for t in self.data_types if (t in data_types or t in always) and level != "time"]

    def passes(self, level: str, data_types: Collection[str] = ()) -> PassCount:
        """Passes of one kernel replay at this level.

        Calculated ones are what NVIDIA's own scheduler needs for the counters, and one more where that is above
        one: so did ncu 2025.3.1 in both captures that could be compared (2 → 3, 10 → 11), in range replay not.
        """
        at = LEVELS.index(level)
        types = self._types_at(level, data_types)
        measured = self._measured.get(" ".join([level, *types]))
        if measured is not None:
            return PassCount(measured, "measured")
        # The scheduler is a heuristic: now and then it finds a better arrangement for more metrics.
        return PassCount(_replayed(max(self._scheduled(lower, types) for lower in LEVELS[: at + 1])), "calculated")

    def _scheduled(self, level: str, data_types: Sequence[str]) -> int:
        table = self._passes[level]
        # All instruction counters are collected in one pass over the patched kernel.
        of_instructions = [t for t in data_types if t.endswith("_cuda")]
        types = [t for t in data_types if t in table and t not in of_instructions[1:]]
        if not types:
            return table["none"][0]
        added = sum(table[t][1] for t in types)
        together = min(table[t][0] + added - table[t][1] for t in types)
        return max(together, *(table[t][0] for t in types))

    def passes_of(self, names: Sequence[str]) -> PassCount:
        """Passes of metrics chosen by hand: those of the smallest level that has them all, else one each at the most.

        Exact numbers need NVIDIA's scheduler; this is what to plan with until a run has told.
        """
        wanted = set(names)
        types = {m.data_type for m in self.metrics if m.data_type and m.name in wanted}
        for level in LEVELS:
            here = {m.name for m in self.of_level(level, types)}
            if wanted == here:
                return self.passes(level, types)
            if wanted < here:
                limit = self.passes(level, types).passes
                return PassCount(min(limit, _replayed(len(wanted))) if limit > 1 else 1, "estimated")
        return PassCount(_replayed(max(len(wanted), 1)), "estimated")


def _replayed(hardware_passes: int) -> int:
    return hardware_passes if hardware_passes <= 1 else hardware_passes + 1


def lower_levels(level: str) -> list[str]:
    """Levels below this one, highest first, down to `roofline`: a timeline already has the times."""
    at, least = LEVELS.index(level), LEVELS.index(DEFAULT_LEVEL)
    return [LEVELS[i] for i in range(at - 1, least - 1, -1)]


# -- architectures ---------------------------------------------------------------------------------


def groups_for(compute_capability: str | None) -> tuple[MetricGroups, list[Diagnosis]]:
    """The groups of a GPU, by its compute capability as nvidia-smi and CUDA write it ("9.0").

    One that is not known gets the nearest lower one of its generation, and a word about it; where there is
    none, or nothing is known of the GPU, the smallest common ground: Hopper's names, which most chips share.
    """
    known = _by_capability()
    if compute_capability in known:
        return known[compute_capability], []
    fallback = known["9.0"]
    if compute_capability is None:
        return fallback, [diagnose("UNKNOWN_GPU_METRICS.no_capability", chip=fallback.name)]
    wanted = _version(compute_capability)
    if wanted is None:
        return fallback, [
            diagnose("UNKNOWN_GPU_METRICS.bad_capability", capability=compute_capability, chip=fallback.name)
        ]
    lower = [v for v in map(_version, known) if v is not None and v[0] == wanted[0] and v < wanted]
    groups = known[".".join(map(str, max(lower)))] if lower else fallback
    return groups, [
        diagnose(
            "UNKNOWN_GPU_METRICS", capability=compute_capability, chip=groups.name, architecture=groups.architecture
        )
    ]


def all_groups() -> list[MetricGroups]:
    """Every architecture there is data for."""
    return list(dict.fromkeys(_by_capability().values()))


def groups_of_chip(chip: str) -> MetricGroups | None:
    """The groups of a chip as ncu names it (`gh100`)."""
    return next((g for g in all_groups() if chip.lower() in g.chips), None)


@cache
def _by_capability() -> dict[str, MetricGroups]:
    found = {}
    for architecture, raw in read_toml(__package__, "chips.toml").items():
        groups = _groups(architecture, raw)
        found.update(dict.fromkeys(groups.compute_capabilities, groups))
    return found


def _groups(architecture: str, raw: dict[str, Any]) -> MetricGroups:
    passes = {
        level: {key: (value, 0) if isinstance(value, int) else (value[0], value[1]) for key, value in row.items()}
        for level, row in raw["passes"].items()
    }
    lacks, has, renamed = set(raw.get("lacks", ())), set(raw.get("has", ())), raw.get("renamed", {})
    return MetricGroups(
        architecture=architecture,
        compute_capabilities=tuple(raw["compute_capabilities"]),
        chips=tuple(raw["chips"]),
        **{key: raw[key] for key in ("name", "chip", "names_from", "passes_from")},
        metrics=tuple(
            evolve(c, name=renamed.get(c.name, c.name))
            for c in sorted(counters(), key=lambda c: LEVELS.index(c.level) if c.level else 0)
            if c.level and (c.name in has if not c.common else c.name not in lacks)
        ),
        passes=passes,
        measured=raw.get("measured", {}),
    )


def _version(text: str | None) -> tuple[int, int] | None:
    parts = (text or "").split(".")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() for p in parts):
        return None
    return int(parts[0]), int(parts[1])
