"""The table of regions: every (domain, path of names) that was found, numbered, parents before children."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import Factory, define, field

from llm_perf_opt.regions.columns import UNKNOWN, Int64s

ROOT = UNKNOWN  # parent of an outermost region

PUSH_POP, START_END = False, True


def region_key(domain: str, path: Sequence[str]) -> str:
    r"""One string for a region, the same in every run: `domain@a/b`, with `\`, `/` and `@` escaped."""

    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("/", "\\/").replace("@", "\\@")

    joined = "/".join(escaped(name) for name in path)
    return f"{escaped(domain)}@{joined}" if domain else joined


@define(eq=False)
class RegionTable:
    """Regions as parallel lists; a region is known by its number here."""

    domain: list[str] = Factory(list)
    name: list[str] = Factory(list)
    parent: list[int] = Factory(list)
    depth: list[int] = Factory(list)
    start_end: list[bool] = Factory(list)
    _numbers: dict[tuple[str, bool, int, str], int] = field(factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.name)

    def intern(self, domain: str, start_end: bool, parent: int, name: str) -> int:
        """Number of the region called `name` below `parent`; a new one where it is not known yet."""
        key = (domain, start_end, parent, name)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.name)
            self.domain.append(domain)
            self.name.append(name)
            self.parent.append(parent)
            self.depth.append(0 if parent == ROOT else self.depth[parent] + 1)
            self.start_end.append(start_end)
        return number

    def intern_path(self, domain: str, path: Sequence[str]) -> int:
        """Number of the push/pop region with this path; ROOT for an empty path."""
        number = ROOT
        for name in path:
            number = self.intern(domain, PUSH_POP, number, name)
        return number

    def path(self, number: int) -> list[str]:
        """Names from the outermost range to this one."""
        names: list[str] = []
        while number != ROOT:
            names.append(self.name[number])
            number = self.parent[number]
        names.reverse()
        return names

    def key(self, number: int) -> str:
        key = region_key(self.domain[number], self.path(number))
        # A start/end range may be called like a push/pop range of the same domain.
        return f"{key} (start/end)" if self.start_end[number] else key

    def in_tree_order(self) -> list[int]:
        """All regions, each followed by the regions below it, in the order they were first seen."""
        children: dict[int, list[int]] = {}
        for number, parent in enumerate(self.parent):
            children.setdefault(parent, []).append(number)
        ordered: list[int] = []
        waiting = children.get(ROOT, [])[::-1]
        while waiting:
            number = waiting.pop()
            ordered.append(number)
            waiting.extend(reversed(children.get(number, [])))
        return ordered

    def arrays(self) -> tuple[Int64s, Int64s]:
        """Parent and depth as arrays."""
        return np.array(self.parent, dtype=np.int64), np.array(self.depth, dtype=np.int64)


def add_up(values: Int64s, parent: Int64s, depth: Int64s) -> Int64s:
    """Inclusive values from exclusive ones: every region plus all regions below it."""
    total = values.copy()
    if len(total) == 0:
        return total
    for level in range(int(depth.max()), 0, -1):
        at = np.flatnonzero(depth == level)
        np.add.at(total, parent[at], total[at])
    return total


def climb(regions: Int64s, parent: Int64s, depth: Int64s, level: int) -> Int64s:
    """Ancestor of each region at `level`, or the region itself where it is not deeper than that by one.

    Meant to be applied level by level from the deepest up, each time to the result of the last.
    """
    lifted = regions.copy()
    deeper = regions != ROOT
    deeper[deeper] = depth[regions[deeper]] > level
    lifted[deeper] = parent[regions[deeper]]
    return lifted
