"""The table of regions: every (domain, path of names) that was found, numbered, parents before children."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import Factory, define, field

from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, NumberRange, PooledName
from llm_perf_opt.regions.operator_names import is_operator

ROOT = UNKNOWN  # parent of an outermost region

PUSH_POP, START_END = False, True

DEEPEST = 1024  # levels
MOST_CHARACTERS = 30_000_000  # of all paths; a hundred thousand regions of a model have fifteen million
POOLED = "(more ranges)"
WHOLE = "whole recording"  # the one region of a recording without ranges (`whole_recording`)


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
    pooled: set[int] = Factory(set)  # regions that stand for ranges that are too many, or too deep
    whole: set[int] = Factory(set)  # regions that stand for a whole recording: no range, so ncu cannot select them
    pools: dict[str, PooledName] = Factory(dict)  # names that stand for several recorded ones
    operators: set[str] = Factory(set)  # names of ranges that PyTorch made of its operators and modules
    held: float = 1.0  # by stages, of the work or time; less where the whole recording is a region for that
    simplified: bool = False  # more ranges were open at once than stacks are kept of
    _characters: list[int] = Factory(list)  # in the path of each region
    _all_characters: int = 0  # in all paths
    _keys: dict[int, str] = field(factory=dict, repr=False)
    _numbers: dict[tuple[str, bool, int, str], int] = field(factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.name)

    def intern(self, domain: str, start_end: bool, parent: int, name: str) -> int:
        """Number of the region called `name` below `parent`; a new one where it is not known yet."""
        key = (domain, start_end, parent, name)
        number = self._numbers.get(key)
        if number is None and self._is_full(parent):
            if parent in self.pooled:
                return parent
            key = (domain, start_end, parent, POOLED)
            number = self._numbers.get(key)
            name = POOLED
            if number is None:
                self.pooled.add(len(self.name))
        if number is None:
            characters = len(name) + 1 + (0 if parent == ROOT else self._characters[parent])
            self._characters.append(characters)
            self._all_characters += characters
            number = self._numbers[key] = len(self.name)
            self.domain.append(domain)
            self.name.append(name)
            self.parent.append(parent)
            self.depth.append(0 if parent == ROOT else self.depth[parent] + 1)
            self.start_end.append(start_end)
        return number

    def intern_pooled(self, domain: str, start_end: bool, parent: int) -> int:
        """Number of the region below `parent` that stands for ranges that are too many."""
        number = self.intern(domain, start_end, parent, POOLED)
        self.pooled.add(number)
        return number

    def _is_full(self, parent: int) -> bool:
        """No more regions there: they would be nested too deeply, or all paths together grow too long."""
        too_deep = parent != ROOT and self.depth[parent] >= DEEPEST - 1
        return too_deep or self._all_characters > MOST_CHARACTERS

    def intern_path(self, domain: str, path: Sequence[str]) -> int:
        """Number of the push/pop region with this path; ROOT for an empty path."""
        number = ROOT
        for name in path:
            number = self.intern(domain, PUSH_POP, number, name)
        return number

    def intern_whole(self) -> int:
        """Number of the region that stands for a whole recording."""
        number = self.intern("", PUSH_POP, ROOT, WHOLE)
        self.whole.add(number)
        return number

    def is_operator(self, number: int) -> bool:
        """A region of PyTorch's own: what an operator or a module does."""
        return self.name[number] in self.operators or is_operator(self.name[number])

    def kind(self, number: int) -> str:
        """`range_kind` of a region in a report."""
        if number in self.whole:
            return "recording"
        if self.start_end[number]:
            return "start_end"
        return "operator" if self.name[number] in self.operators else "push_pop"

    def numbers(self, number: int) -> list[NumberRange]:
        """Of each star in a region's name, the numbers it stands for."""
        pool = self.pools.get(self.name[number])
        return list(pool.numbers) if pool else []

    def path(self, number: int) -> list[str]:
        """Names from the outermost range to this one."""
        names: list[str] = []
        while number != ROOT:
            names.append(self.name[number])
            number = self.parent[number]
        names.reverse()
        return names

    def key(self, number: int) -> str:
        """The region's key, from that of the region around it: in a deep tree they are long."""
        waiting = []
        while number != ROOT and number not in self._keys:
            waiting.append(number)
            number = self.parent[number]
        key = self._keys[number] if number != ROOT else ""
        for number in reversed(waiting):
            name = [self.name[number]]
            if self.parent[number] != ROOT:
                key = f"{key}/{region_key('', name)}"
            else:
                key = region_key(self.domain[number], name)
                # A start/end range may be called like a push/pop range of the same domain.
                key = f"{key} (start/end)" if self.start_end[number] else key
            self._keys[number] = key
        return key

    def keys(self) -> list[str]:
        """The keys of all regions."""
        return [self.key(number) for number in range(len(self))]

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
    levels = int(depth.max())
    if levels * 16 > len(total):
        # A deep and narrow tree: children have higher numbers than their parents, so one walk back does it.
        sums, above = total.tolist(), parent.tolist()
        for number in range(len(sums) - 1, -1, -1):
            if above[number] != ROOT:
                sums[above[number]] += sums[number]
        return np.array(sums, dtype=values.dtype)
    for level in range(levels, 0, -1):
        at = np.flatnonzero(depth == level)
        np.add.at(total, parent[at], total[at])
    return total


def levels_up(regions: Int64s, parent: Int64s, depth: Int64s) -> Iterator[tuple[Int64s, Bools]]:
    """Regions (none is ROOT) moved up level by level from the deepest: where each is then, and which are on the level."""
    for level in range(int(depth[regions].max()) if len(regions) else -1, -1, -1):
        regions = climb(regions, parent, depth, level)
        yield regions, depth[regions] == level


def climb(regions: Int64s, parent: Int64s, depth: Int64s, level: int) -> Int64s:
    """Ancestor of each region at `level`, or the region itself where it is not deeper than that by one.

    Meant to be applied level by level from the deepest up, each time to the result of the last.
    """
    lifted = regions.copy()
    deeper = regions != ROOT
    deeper[deeper] = depth[regions[deeper]] > level
    lifted[deeper] = parent[regions[deeper]]
    return lifted
