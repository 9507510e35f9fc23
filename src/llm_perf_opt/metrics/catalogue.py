"""Every counter of ncu that this project knows (`catalogue.toml`): its role, meaning, unit and title, in one place.

Collection, analysis, suggestions and all outputs look here; no other module names a counter. Which of them a chip has,
and under which name, is in `chips.toml` (`groups.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache

from attrs import define, evolve, field

from llm_perf_opt.package_data import read_toml

TIME = "gpu__time_duration.sum"
DRAM_ROLES = ("dram_read", "dram_write", "dram")
# Units that ncu gives counters of a kind. With another one a counter is not used: a wrong factor is worse than no number.
_UNITS = {"flops": ("", "inst", "op", "flop", "thread"), "bytes": ("byte", "B", ""), "percent": ("%",)}
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_NOT_A_WAIT = ("selected", "not_selected")


def _tuple(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@define(frozen=True, kw_only=True)
class Counter:
    """One counter and what it stands for."""

    name: str  # with its suffix, as ncu's --metrics takes it; on a chip the name it has there
    role: str  # "time", "dram_read", "tensor_ops", "occupancy" …: what analysis looks for
    title: str
    meaning: str
    unit: str
    level: str = ""  # the lowest level that collects it; "": none does
    kind: str = ""  # what it adds up as: "flops" | "bytes" | "percent" | "" (nothing)
    amount: str = ""  # which of its kind: "tensor_bf16", "dram_read" …
    aka: tuple[str, ...] = field(default=(), converter=_tuple)
    units: tuple[str, ...] = field(converter=_tuple)
    per_count: float = 1.0
    instead: bool = False
    common: bool = True
    data_type: str | None = None  # of work; it is collected only where the type is in use
    pipe: str | None = None  # of pipe_utilisation
    reason: str | None = None  # of warp_stall
    what: str = ""
    names: tuple[str, ...] = field(init=False)  # all that it has on any chip, the usual one first

    @names.default
    def _all_names(self) -> tuple[str, ...]:
        return self.name, *self.aka

    @units.default
    def _usual_units(self) -> tuple[str, ...]:
        return _UNITS.get(self.kind, (self.unit,))

    @property
    def rollup(self) -> str:
        """How launches combine: "sum", or "mean" weighted by time."""
        return "sum" if self.name.endswith(".sum") else "mean"

    @property
    def counts_tensor_work(self) -> bool:
        return self.role == "tensor_ops"


@cache
def counters() -> tuple[Counter, ...]:
    """The whole catalogue, in its order."""
    found = []
    for role, raw in read_toml(__package__, "catalogue.toml")["role"].items():
        common = {key: value for key, value in raw.items() if key != "counters"}
        for own in raw["counters"]:
            fields = {"role": role, **common, **own}
            words = {key: value for key, value in own.items() if key in ("what", "pipe")}
            fields["title"], fields["meaning"] = (fields[key].format(**words) for key in ("title", "meaning"))
            found.append(Counter(**fields))
    return tuple(found)


@cache
def counted() -> tuple[Counter, ...]:
    """Counters whose values add up to something: FLOPs, bytes, shares of a peak."""
    return tuple(counter for counter in counters() if counter.kind)


def counter_of(name: str) -> Counter | None:
    """The counter that has this name on some chip."""
    return _by_name().get(name)


def role_of(name: str) -> str:
    """The role of a counter, whatever suffix it was collected with (`dram__bytes_read.sum.per_second`); "" where it has none."""
    return _role_by_base().get(name.partition(".")[0], "")


def names_of(role: str) -> tuple[str, ...]:
    """All names of the counters that levels collect for a role."""
    return tuple(name for counter in counters() if counter.role == role and counter.level for name in counter.names)


def is_tensor_work(name: str) -> bool:
    """Operations of the tensor cores, of any data type?"""
    counter = counter_of(name)
    return counter is not None and counter.counts_tensor_work


def with_roles(names: Collection[str], roles: Iterable[str]) -> list[Counter]:
    """Of some names, the counters with these roles, in the order of the roles; each amount under one name only."""
    found = []
    for role in roles:
        alike = [counter for counter in counters() if counter.role == role and not counter.instead]
        for counter in alike:
            name = next((name for name in counter.names if name in names), None)
            if name is not None:
                found.append(evolve(counter, name=name))
    return found


def stall_reason(name: str) -> str | None:
    """Why warps wait, of a counter that tells; also of reasons the catalogue does not know yet."""
    match = _STALL.fullmatch(name) if name.startswith("smsp__") else None
    return match[1] if match and match[1] not in _NOT_A_WAIT else None


def stall_words(reason: str) -> str:
    """What warps wait for, in words."""
    return next((c.what for c in counters() if c.reason == reason), reason.replace("_", " "))


@cache
def _by_name() -> dict[str, Counter]:
    return {name: counter for counter in counters() for name in counter.names}


@cache
def _role_by_base() -> dict[str, str]:
    return {name.partition(".")[0]: counter.role for name, counter in _by_name().items()}
