"""ncu's launch filters: what to write on its command line, and which launches of a timeline it will then take.

One class does both, so that a plan's prediction and its argv cannot drift apart. What ncu does, as far as it
has been seen (tests/test_planner.py holds the recordings against this file):

- `--filter-mode per-launch-config` with `-c N` takes the first N launches of every (name, grid, block, shared
  memory) inside the included ranges, in the order of the host's calls: 248 of 248 and 165 of 165 results as
  predicted, with the very range stacks. With `--kernel-name-base mangled` every template is a name of its own,
  with ncu's default (`function`) all templates of a function are one.
- `--nvtx-include` repeated means "or".
- `--range-filter ::3|9` takes the third and ninth instance of the matching range.

What is not seen yet is an `Assumption`, and told in the plan that makes it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

import numpy as np
from attrs import define, evolve, field

from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning.launches import LaunchTable, RegionChoice
from llm_perf_opt.regions.columns import Bools, Int64s

# Linux takes 128 KiB in one argument, ncu's regular expressions slow down long before.
LONGEST_EXPRESSION = 64 << 10
_SHORTEST_PREFIX = 4


class Assumption(StrEnum):
    """What a filter takes for granted of ncu beyond what has been seen."""

    KERNEL_ID_PER_CONFIG = (
        "--kernel-id with --filter-mode per-launch-config is taken to number the launches of each signature from 1, "
        "inside the included ranges only"
    )
    COUNT_IN_INSTANCES = "-c with --range-filter is taken to count the launches of the chosen instances only"
    # Seen not to hold (ncu 2025.3.1): ranges of all expressions are numbered together, in the order they open.
    # Automatic plans use one expression with --range-filter, and so should everybody.
    INSTANCES_OF_SEVERAL = (
        "--range-filter with several --nvtx-include is taken to number the instances of each expression on its own"
    )
    SEVERAL_PROCESSES = "-c is taken to count in each process on its own"


# Assumptions that a run on a GPU has shown to hold: they need not be told any more. None so far.
SEEN_TO_HOLD: frozenset[Assumption] = frozenset()


@define(frozen=True)
class LaunchFilter:
    """Which launches ncu profiles."""

    regions: tuple[RegionChoice, ...]
    instances: tuple[int, ...] = ()  # of the repeated range that `regions` names; empty: all
    names: frozenset[str] | None = None  # mangled kernel names; None: every kernel
    launch_count: int | None = None  # of each signature
    launch_skip: int = 0
    invocations: tuple[int, ...] = ()  # numbers of the launches to take of each signature, instead of a count
    process_scope: bool = False
    name_expression: str | None = field(default=None)  # of `names`, once the other names of the program are known

    def options(self, metrics: Sequence[str] = (), base: NcuOptions | None = None) -> NcuOptions:
        """ncu's options for this filter."""
        kernel_name = kernel_id = None
        if self.names is not None:
            pattern = self.name_expression or exact_names(self.names)
            kernel_name = f"regex:{pattern}"
        if self.invocations:
            chosen = (kernel_name or "regex:.*").removeprefix("regex:")
            kernel_id = f"::regex:{chosen}:^({'|'.join(map(str, self.invocations))})$"
            kernel_name = None
        return evolve(
            base or NcuOptions(),
            metrics=tuple(metrics),
            nvtx_include=tuple(r.expression for r in self.regions),
            nvtx_push_pop_scope="process" if self.process_scope else None,
            range_filter=f"::{'|'.join(map(str, self.instances))}" if self.instances else None,
            kernel_name=kernel_name,
            # Without the mangled name all templates of a function count as one kernel.
            kernel_name_base="mangled",
            kernel_id=kernel_id,
            filter_mode="per-launch-config",
            launch_skip=self.launch_skip or None,
            launch_count=self.launch_count,
        )

    def taken(self, launches: LaunchTable, windows: Bools | None = None) -> Bools:
        """Which of the launches ncu will profile. `windows`: those it sees at all, where it is switched on and off."""
        candidates = self._inside(launches)
        if windows is not None:
            candidates &= windows
        if self.names is not None:
            wanted = np.array([s.name in self.names for s in launches.signatures], dtype=np.bool_)
            candidates &= wanted[launches.signature]
        turn = numbered(launches, candidates)
        taken = candidates & (turn > self.launch_skip)
        if self.launch_count is not None:
            taken &= turn <= self.launch_skip + self.launch_count
        if self.invocations:
            taken &= np.isin(turn, self.invocations)
        return taken

    @property
    def takes_all_kernels(self) -> bool:
        """Does it take the first launches of every kernel in its regions?"""
        return self.names is None and not (self.invocations or self.instances or self.launch_skip)

    def _inside(self, launches: LaunchTable) -> Bools:
        inside = np.zeros(len(launches), dtype=np.bool_)
        for region in self.regions:
            turns = launches.turns_of(region.key)
            if turns is not None and self.instances:
                inside |= np.isin(turns.number, self.instances)
            elif (index := launches.index_of(region.key)) is not None:
                inside |= launches.region == index
            elif turns is not None:
                inside |= turns.number > 0
        return inside

    @property
    def purpose(self) -> str:
        """Where it looks, for people."""
        where = ", ".join(region.key for region in self.regions[:4])
        more = f" and {len(self.regions) - 4} more regions" if len(self.regions) > 4 else ""
        some = f", instances {', '.join(map(str, self.instances))}" if self.instances else ""
        return f"{where}{more}{some}"

    def assumptions(self, launches: LaunchTable) -> list[Assumption]:
        """What this filter takes for granted and nobody has seen yet."""
        made = {
            Assumption.KERNEL_ID_PER_CONFIG: bool(self.invocations),
            Assumption.COUNT_IN_INSTANCES: bool(self.instances and self.launch_count),
            Assumption.INSTANCES_OF_SEVERAL: bool(self.instances) and len(self.regions) > 1,
            Assumption.SEVERAL_PROCESSES: len(np.unique(launches.process)) > 1,
        }
        return [a for a, needed in made.items() if needed and a not in SEEN_TO_HOLD]


def numbered(launches: LaunchTable, candidates: Bools) -> Int64s:
    """Number of each candidate among those of its signature and process, from 1; 0 for the others."""
    order, first = launches.by_signature
    number = np.zeros(len(launches), dtype=np.int64)
    if len(order):
        ordered = candidates[order]
        so_far = np.cumsum(ordered)
        before = np.where(first > 0, so_far[first - 1], 0)
        number[order] = np.where(ordered, so_far - before, 0)
    return number


def exact_names(names: Iterable[str]) -> str:
    """A regular expression for these names and no other."""
    return f"^({'|'.join(_literal(name) for name in sorted(names))})$"


def select_names(kept: Collection[str], others: Collection[str]) -> str:
    """A short regular expression that matches every kept name and none of the others.

    Mangled names run to a thousand characters, so each is cut to the shortest beginning that no other kernel
    of the program shares; names with one such beginning become one.
    """
    foreign = sorted(set(others) - set(kept))
    parts = {_beginning(name, foreign) for name in kept}
    prefixes: list[str] = []
    for prefix in sorted(p for p, whole in parts if not whole):
        # Sorted, a beginning stands right before what begins with it.
        if not (prefixes and prefix.startswith(prefixes[-1])):
            prefixes.append(prefix)
    whole = [name for name in sorted(p for p, is_whole in parts if is_whole) if not _begins_with(name, prefixes)]
    alternatives = [_literal(p) for p in prefixes] + [f"{_literal(name)}$" for name in whole]
    return f"^({'|'.join(alternatives)})"


def _begins_with(name: str, prefixes: Sequence[str]) -> bool:
    """Does a name begin with one of the prefixes? They are sorted, and none begins with another."""
    at = bisect_right(prefixes, name)
    return at > 0 and name.startswith(prefixes[at - 1])


def _beginning(name: str, foreign: Sequence[str]) -> tuple[str, bool]:
    """The shortest beginning of a name that none of the foreign names has; the whole name where one goes on after it."""
    # Of sorted names, the most alike are the neighbours.
    at = bisect_right(foreign, name)
    neighbours = foreign[max(at - 1, 0) : at + 1]
    shared = max((_common(name, other) for other in neighbours), default=0)
    length = max(shared + 1, _SHORTEST_PREFIX)
    if length <= len(name):
        return name[:length], False
    return name, any(other.startswith(name) for other in neighbours)


def _common(one: str, other: str) -> int:
    limit = min(len(one), len(other))
    return next((i for i in range(limit) if one[i] != other[i]), limit)


def _literal(name: str) -> str:
    """A name as a regular expression of printable ASCII, whatever is in it."""

    def escaped(found: re.Match[str]) -> str:
        char = found[0]
        if not char.isascii():
            return ".{1,4}"  # ncu matches bytes
        return f"\\x{ord(char):02x}" if ord(char) < 32 or ord(char) == 127 else f"\\{char}"

    return re.sub(r"[^A-Za-z0-9_]", escaped, name)
