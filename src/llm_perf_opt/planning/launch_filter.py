"""ncu's launch filters: what to write on its command line, and which launches of a timeline it will then take.

One class does both, so that a plan's prediction and its argv cannot drift apart. What ncu does, as far as it
has been seen (tests/test_samples.py holds the recordings against this file):

- `--filter-mode per-launch-config` with `-c N` takes the first N launches of every (name, grid, block, shared
  memory) inside the included ranges, in the order of the host's calls: 248 of 248 and 165 of 165 results as
  predicted, with the very range stacks. With `--kernel-name-base mangled` every template is a name of its own,
  with ncu's default (`function`) all templates of a function are one.
- `--nvtx-include` repeated means "or".

What is not seen yet is an assumption, and the plan that makes it says so.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from os.path import commonprefix

import numpy as np
from attrs import define, evolve

from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning.launch_table import LaunchTable, RegionChoice
from llm_perf_opt.regions.columns import Bools, Int64s

# Linux takes 128 KiB in one argument, ncu's regular expressions slow down long before.
LONGEST_EXPRESSION = 64 << 10
_SHORTEST_PREFIX = 4


@define(frozen=True)
class LaunchFilter:
    """Which launches ncu profiles."""

    regions: tuple[RegionChoice, ...]
    names: frozenset[str] | None = None  # mangled kernel names; None: every kernel
    launch_count: int | None = None  # of each signature
    process_scope: bool = False
    name_expression: str | None = None  # of `names`, once the other names of the program are known

    def options(self, metrics: Sequence[str] = (), base: NcuOptions | None = None) -> NcuOptions:
        """ncu's options for this filter, but for its regions."""
        pattern = None if self.names is None else self.name_expression or exact_names(self.names)
        return evolve(
            base or NcuOptions(),
            metrics=tuple(metrics),
            nvtx_push_pop_scope="process" if self.process_scope else None,
            range_filter=None,
            kernel_name=None if pattern is None else f"regex:{pattern}",
            # Without the mangled name all templates of a function count as one kernel.
            kernel_name_base="mangled",
            kernel_id=None,
            filter_mode="per-launch-config",
            launch_skip=None,
            launch_count=self.launch_count,
        )

    @property
    def expressions(self) -> tuple[str, ...]:
        """Its regions, for --nvtx-include; none where a region is the whole program."""
        return tuple(region.expression for region in self.regions if region.expression)

    def taken(self, launches: LaunchTable, windows: Bools | None = None) -> Bools:
        """Which of the launches ncu will profile. `windows`: those it sees at all, where it is switched on and off."""
        candidates = np.isin(launches.region, [launches.regions.index(region) for region in self.regions])
        if windows is not None:
            candidates &= windows
        if self.names is not None:
            wanted = np.array([s.name in self.names for s in launches.signatures], dtype=np.bool_)
            candidates &= wanted[launches.signature]
        if self.launch_count is None:
            return candidates
        return candidates & (numbered(launches, candidates) <= self.launch_count)

    @property
    def purpose(self) -> str:
        """Where it looks, for people."""
        where = ", ".join(region.key for region in self.regions[:4])
        more = f" and {len(self.regions) - 4} more regions" if len(self.regions) > 4 else ""
        return f"{where}{more}"


def assumptions(launches: LaunchTable) -> list[str]:
    """What the prediction takes for granted of ncu and nobody has seen yet."""
    several = len(np.unique(launches.process)) > 1
    return ["-c is taken to count in each process on its own"] if several else []


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
    shared = max((len(commonprefix([name, other])) for other in neighbours), default=0)  # noqa: RUF071 - no paths
    length = max(shared + 1, _SHORTEST_PREFIX)
    if length <= len(name):
        return name[:length], False
    return name, any(other.startswith(name) for other in neighbours)


def _literal(name: str) -> str:
    """A name as a regular expression of printable ASCII, whatever is in it."""

    def escaped(found: re.Match[str]) -> str:
        char = found[0]
        if not char.isascii():
            return ".{1,4}"  # ncu matches bytes
        return f"\\x{ord(char):02x}" if ord(char) < 32 or ord(char) == 127 else f"\\{char}"

    return re.sub(r"[^A-Za-z0-9_]", escaped, name)
