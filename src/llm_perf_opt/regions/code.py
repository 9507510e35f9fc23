"""Lines of the program's own code: how they are written in a timeline, and where threads were at some moment."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from attrs import Factory, define

from llm_perf_opt.regions.columns import UNKNOWN, Bools, CodeSpans, Int32s, Int64s
from llm_perf_opt.regions.stacks import Stacks, build_stacks, group_by

# What torch.compile makes of the rest of a function, behind a graph break, has a name of torch's own: that of the
# function is inside it.
_PLACE = re.compile(
    r"(?P<file>.*)\((?P<line>\d{1,9})\): (torch_dynamo_resume_in_(?P<resumed>.+)_at_\d+|(?P<function>.*))", re.DOTALL
)


@define(frozen=True)
class Place:
    """A line of a file."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}({self.line}): {self.function}"

    @property
    def name(self) -> str:
        """Of the file, without its folders."""
        return self.file.replace("\\", "/").rpartition("/")[2]


def parse_place(text: str) -> Place | None:
    """A place as PyTorch's profiler writes it, `file.py(12): function`; None where it is something else."""
    found = _PLACE.fullmatch(text)
    return None if found is None else Place(found["file"], int(found["line"]), found["resumed"] or found["function"])


def innermost(
    start: Int64s, end: Int64s, thread: Int32s, place: Int64s, process_of: Sequence[int], users: Bools | None = None
) -> CodeSpans:
    """Nested intervals as spans that do not overlap: each holds while nothing inside it does.

    `users`: which of them are in the user's own files; None: callers are not asked for.
    """
    parts: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
    users = None if users is None or users.all() else users
    for _, mine in group_by(thread):
        stacks = build_stacks(start, end, mine)
        cuts = np.sort(np.concatenate([start[mine], end[mine]]))
        cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]  # `np.unique` is ten times as slow where most differ
        top = stacks.top_at(cuts[:-1])
        inside = top >= 0
        top = top[inside]
        called = np.full_like(top, UNKNOWN) if users is None else _caller(stacks, users)[top]
        parts.append((cuts[:-1][inside], cuts[1:][inside], stacks.instance[top], called))
    if not parts:
        return CodeSpans.empty()
    begin, finish, which, calling = (np.concatenate(column) for column in zip(*parts, strict=True))
    process = np.array(process_of, dtype=np.int32)[thread[which]]
    caller = np.where(calling == UNKNOWN, UNKNOWN, place[calling])
    mine, at = thread[which].astype(np.int32), place[which].astype(np.int32)
    return CodeSpans(begin, finish, process, mine, at, caller.astype(np.int32))


def _caller(stacks: Stacks, users: Bools) -> Int64s:
    """Of each node, the interval nearest above it that is the user's own; UNKNOWN where it is itself, or none is."""
    instance, parent = stacks.instance, stacks.parent
    own, count = users[instance], len(instance)
    above = np.append(np.where(parent == UNKNOWN, count, parent), count)  # the last stands for nothing
    nearest = np.where(np.append(own, True), np.arange(count + 1), above)
    while (further := nearest[nearest] != nearest).any():  # twice as far each time
        nearest[further] = nearest[nearest][further]
    at = np.where(own, count, nearest[above[:-1]])
    return np.append(instance, UNKNOWN)[at]


@define(eq=False)
class SpansByThread:
    """Answers where threads were. The spans of a thread are in order and do not overlap."""

    spans: CodeSpans
    _order: dict[tuple[int, int], Int64s] = Factory(dict)  # by process and thread
    _most: dict[int, int] = Factory(dict)  # the thread of each process that has most spans

    @staticmethod
    def of(spans: CodeSpans) -> SpansByThread:
        found = SpansByThread(spans)
        if not len(spans):
            return found
        order = np.lexsort((spans.start, spans.thread, spans.process))
        key = np.stack([spans.process[order], spans.thread[order]], axis=1)
        first = np.flatnonzero(np.append(True, (key[1:] != key[:-1]).any(axis=1)))
        for part in np.split(order, first[1:]):
            at = int(spans.process[part[0]]), int(spans.thread[part[0]])
            found._order[at] = part
            most = found._most.get(at[0])
            if most is None or len(part) > len(found._order[at[0], most]):
                found._most[at[0]] = at[1]
        return found

    def place_at(self, process: Int32s, thread: Int32s, moment: Int64s) -> Int64s:
        """The place each thread was in at a moment; UNKNOWN where nothing says.

        A thread that runs no code of the program (autograd's) works for the one that does most of it.
        """
        found = np.full(len(moment), UNKNOWN, dtype=np.int64)
        if not len(self.spans) or not len(moment):
            return found
        owner = process.astype(np.int64) << 32 | (thread.astype(np.int64) & 0xFFFFFFFF)
        for value in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == value)
            of_process, of_thread = int(process[mine[0]]), int(thread[mine[0]])
            if of_thread == UNKNOWN:
                continue
            if (of_process, of_thread) not in self._order:
                of_thread = self._most.get(of_process, UNKNOWN)
            part = self._order.get((of_process, of_thread))
            if part is not None:
                found[mine] = self._in(part, moment[mine])
        return found

    def _in(self, part: Int64s, moment: Int64s) -> Int64s:
        start, end = self.spans.start[part], self.spans.end[part]
        at = np.maximum(np.searchsorted(start, moment, side="right") - 1, 0)
        inside: Bools = (start[at] <= moment) & (moment < end[at])
        return np.where(inside, self.spans.place[part[at]], UNKNOWN).astype(np.int64)
