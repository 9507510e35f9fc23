"""In which line of its own code a program was, from an Nsight Systems export.

Two sources, both marks of NVTX: those that `inject` makes when a line begins (exact), and the stacks that nsys itself
samples (`--python-sampling`): the number of frames is the u32 at byte 44 of a blob, and from byte 48 on each frame is
three u64, innermost first: ids of the names of function and file (with `&lt;` for `<`), and the line, of which the
upper half is not always 0. Samples count where there are no marks.
"""

from __future__ import annotations

from html import unescape
from typing import Any

import numpy as np
from attrs import Factory, define, evolve, fields
from numpy.typing import NDArray

from llm_perf_opt.metrics.source_owner import is_own, is_users, library_name
from llm_perf_opt.readers.marker_ranges import PREFIX
from llm_perf_opt.readers.nsys_export import THREAD_BITS, Export, places_of
from llm_perf_opt.readers.nsys_schema import MARK, NVTX
from llm_perf_opt.regions.code import SpansByThread, parse_place
from llm_perf_opt.regions.columns import UNKNOWN, Bools, CodeSpans, Int64s

_DEFINES, _INSIDE, _OUTSIDE = f"{PREFIX}line ", f"{PREFIX}in ", f"{PREFIX}out"
_MADE = f"{PREFIX}made "  # the operators that a compiled kernel was made from, by the number of its line
_COUNT, _FRAMES, _FRAME = 44, 48, 24  # bytes
_DEEPEST = 512  # frames of a sample
_LINE = 0x0FFFFFFF
_LONGEST_SAMPLE = 100_000_000  # ns: samples further apart than this say nothing of what is between them
_LATEST = 2**61
_MOST_MARKS = 2_000_000  # inject makes that many in four minutes
_MOST_ENDS = 1_000_000
_Numbered = dict[tuple[int, str], int]  # by process and number
_Spans = tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Bools]  # start, end, thread, place, caller, sampled


@define(eq=False)
class _Rows:
    """Moments at which a thread was seen in a place; UNKNOWN: nothing is known from there on."""

    start: list[int] = Factory(list)
    tid: list[int] = Factory(list)
    place: list[int] = Factory(list)
    caller: list[int] = Factory(list)  # as of `CodeSpans`; where every frame is known

    def add(self, start: int, tid: int, place: int, caller: int = UNKNOWN) -> None:
        self.start.append(start)
        self.tid.append(tid)
        self.place.append(place)
        self.caller.append(caller)

    def columns(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        every = (self.start, self.tid, self.place, self.caller)
        start, tid, place, caller = (np.array(column, dtype=np.int64) for column in every)
        order = np.lexsort((start, tid))
        return start[order], tid[order], place[order], caller[order]


def read_code(export: Export, process_ids: Int64s, thread_ids: Int64s, last: int) -> tuple[CodeSpans, ...]:
    """Lines of the program, functions of libraries that have a name, and operators of compiled kernels, of processes
    that the timeline has.

    `last`: the end of the recording.
    """
    if not export.has(NVTX, "start", "eventType", "globalTid"):
        return (CodeSpans.empty(),) * 3
    marks, samples = _Seen(), _Seen()
    last = min(last, _read(export, marks, samples))
    users = _users(export, {*marks.lines.place, *samples.lines.place})
    exact, named, made = (
        _built(_until_next(*rows.columns()[:3], last, users), process_ids, thread_ids)
        for rows in (marks.lines, marks.named, marks.made)
    )
    sampled, more_named = (
        _built(_around(*rows.columns()), process_ids, thread_ids) for rows in (samples.lines, samples.named)
    )
    return _together(exact, sampled), _together(named, more_named), made


def _users(export: Export, places: set[int]) -> Int64s:
    """Which of the lines are in the user's own files."""
    known = ((place, parse_place(export.strings[place])) for place in places if place != UNKNOWN)
    return np.array([number for number, place in known if place is not None and is_users(place.file)], dtype=np.int64)


def _together(exact: CodeSpans, sampled: CodeSpans) -> CodeSpans:
    if not len(exact) or not len(sampled):
        return exact if len(exact) else sampled
    middle = sampled.start + (sampled.end - sampled.start) // 2
    more = SpansByThread.of(exact).place_at(sampled.process, sampled.thread, middle) == UNKNOWN
    # A sample may reach into a time that marks tell of: then it says where the thread was only until then.
    return _without_overlap(exact, sampled, more)


@define(eq=False)
class _Seen:
    """What one source says."""

    lines: _Rows = Factory(_Rows)
    named: _Rows = Factory(_Rows)
    made: _Rows = Factory(_Rows)  # operators of compiled kernels


def _read(export: Export, marks: _Seen, samples: _Seen) -> int:
    """Until when they tell of it: where there are too many, those behind the last that was read are not known."""
    text, text_id, blob = (c if export.has(NVTX, c) else "NULL" for c in ("text", "textId", "binaryData"))
    query = (
        f"SELECT start, globalTid, {text}, {text_id}, {blob} FROM {NVTX} WHERE eventType = {MARK} LIMIT {_MOST_MARKS}"  # noqa: S608 - constants
    )
    every = list(export.rows(query))
    rows = [row for row in every if isinstance(row[0], int) and isinstance(row[1], int) and abs(row[0]) < _LATEST]
    named = export.texts({row[3] for row in rows if row[2] is None and isinstance(row[3], int)})
    stacks, ours = [], []
    places: _Numbered = {}
    operators: _Numbered = {}
    for start, tid, own_text, number, data in rows:
        name = named.get(number, "") if own_text is None else str(own_text)
        if name.startswith(_DEFINES):
            of, _, place = name.removeprefix(_DEFINES).partition(" ")
            if of.isdigit() and parse_place(place) is not None:
                places[tid & ~THREAD_BITS, of] = export.intern_text(place)
        elif name.startswith(_MADE):
            of, _, operators_of = name.removeprefix(_MADE).partition(" ")
            if of.isdigit() and operators_of:
                operators[tid & ~THREAD_BITS, of] = export.intern_text(operators_of)
        elif name.startswith(PREFIX):
            ours.append((start, tid, name))
        elif isinstance(data, bytes):
            stacks.append((start, tid, data))
    _add_marks(export, ours, places, operators, marks)
    _add_stacks(export, stacks, samples)
    return _LATEST if len(every) < _MOST_MARKS else max((row[0] for row in rows), default=0)


def _add_marks(
    export: Export, rows: list[tuple[int, int, str]], places: _Numbered, operators: _Numbered, marks: _Seen
) -> None:
    for start, tid, name in rows:
        if name.startswith(_INSIDE):
            marks.named.add(start, tid, export.intern_text(name.removeprefix(_INSIDE)))
        elif name == _OUTSIDE:
            marks.named.add(start, tid, UNKNOWN)
        else:
            number = tid & ~THREAD_BITS, name.removeprefix(PREFIX)
            marks.lines.add(start, tid, places.get(number, UNKNOWN))
            if operators:
                marks.made.add(start, tid, operators.get(number, UNKNOWN))
    of = marks.lines
    ends = [(start, tid) for start, tid, place in zip(of.start, of.tid, of.place, strict=True) if place == UNKNOWN]
    _add_ends(marks.lines, ends)
    _add_ends(marks.named, ends)
    _add_ends(marks.made, ends)


def _add_ends(rows: _Rows, ends: list[tuple[int, int]]) -> None:
    """What ends the knowledge of one thread ends that of all threads of its process."""
    threads = set(rows.tid)
    for tid in threads if len(threads) * len(ends) <= _MOST_ENDS else ():
        for start, by in ends:
            if by & ~THREAD_BITS == tid & ~THREAD_BITS:
                rows.add(start, tid, UNKNOWN)


def _add_stacks(export: Export, stacks: list[tuple[int, int, bytes]], samples: _Seen) -> None:
    known: dict[bytes, NDArray[Any]] = {}
    for _, _, data in stacks:
        if data not in known:
            known[data] = _frames(data)
    ids = {int(one) for frames in known.values() for one in frames[:, :2].ravel().tolist()}
    texts = export.texts({one for one in ids if one < _LATEST})
    place_of = {data: _own_place(export, frames, texts) for data, frames in known.items()}
    for start, tid, data in stacks:
        place, name, caller = place_of[data]
        samples.lines.add(start, tid, place, caller)
        samples.named.add(start, tid, name)


def _frames(data: bytes) -> NDArray[Any]:
    count = int.from_bytes(data[_COUNT:_FRAMES], "little") if len(data) >= _FRAMES else 0
    count = min(count, (len(data) - _FRAMES) // _FRAME, _DEEPEST) if count else 0
    return np.frombuffer(data, dtype="<u8", count=3 * count, offset=_FRAMES if count else 0).reshape(-1, 3)


def _own_place(export: Export, frames: NDArray[Any], texts: dict[int, str]) -> tuple[int, int, int]:
    """The innermost line of the program's own code, a function of a library that has a name, and the user's own line
    above the first where that is in a library; as indices."""
    place = named = caller = UNKNOWN
    for function, file, line in frames.tolist():
        name, path = (unescape(texts.get(number, "")) for number in (function, file))
        if caller == UNKNOWN and path and is_own(path) and (place == UNKNOWN or is_users(path)):
            found = export.intern_text(f"{path}({line & _LINE}): {name}")
            if place == UNKNOWN:
                place, caller = found, found if is_users(path) else UNKNOWN
            else:
                caller = found
        if named == UNKNOWN and (known := library_name(path, name)):
            named = export.intern_text(known)
    return place, named, UNKNOWN if caller == place else caller


# -- from moments to spans -------------------------------------------------------------------------


def _until_next(start: Int64s, tid: Int64s, place: Int64s, last: int, users: Int64s) -> _Spans:
    """Each mark holds until the next of its thread; equal ones that follow each other are one.

    The line that called a library's is the last of the user's own before it: it is marked again at every return.
    """
    new = np.ones(len(start), dtype=np.bool_)
    new[1:] = (tid[1:] != tid[:-1]) | (place[1:] != place[:-1])
    start, tid, place = start[new], tid[new], place[new]
    end = np.append(start[1:], last)
    same = np.append(tid[1:] == tid[:-1], False)
    own, number = np.isin(place, users), np.arange(len(place))
    seen = np.maximum.accumulate(np.where(own, number, -1)) if len(place) else number
    begins = np.append(True, ~same[:-1]) | (place == UNKNOWN)
    known = (seen >= (np.maximum.accumulate(np.where(begins, number, 0)) if len(place) else number)) & ~own
    caller = np.where(known, place[seen], UNKNOWN)
    return start, np.where(same, end, np.maximum(start, last)), tid, place, caller, np.zeros(len(place), dtype=np.bool_)


def _around(start: Int64s, tid: Int64s, place: Int64s, caller: Int64s) -> _Spans:
    """Each sample stands for the time around it, as far as half of the way to its neighbours on the same thread.

    Those that follow each other in one place are one span.
    """
    if not len(start):
        return start, start, tid, place, caller, np.ones(0, dtype=np.bool_)
    same = np.append(tid[1:] == tid[:-1], False)
    apart = np.append(np.diff(start), 0)
    usual = int(np.median(apart[same])) if same.any() else 0
    half = np.where(same & (apart < min(max(8 * usual, 1), _LONGEST_SAMPLE)), apart // 2, usual // 2)
    before = np.append(usual // 2, np.where(same[:-1], half[:-1], usual // 2))
    begin, finish = start - before, start + np.maximum(half, 1)
    new = (tid[1:] != tid[:-1]) | (place[1:] != place[:-1]) | (caller[1:] != caller[:-1])
    first = np.append(True, new | (begin[1:] > finish[:-1] + 1))
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    sampled = np.ones(len(last), dtype=np.bool_)
    return begin[first], finish[last], tid[first], place[first], caller[first], sampled


def _built(spans: _Spans, process_ids: Int64s, thread_ids: Int64s) -> CodeSpans:
    start, end, tid, place, caller, sampled = spans
    process = places_of(process_ids, tid & ~THREAD_BITS).astype(np.int32)
    thread = places_of(thread_ids, tid).astype(np.int32)
    known = (place != UNKNOWN) & (process != UNKNOWN) & (thread != UNKNOWN) & (end > start)
    columns = (start, end, process, thread, place.astype(np.int32), caller.astype(np.int32), sampled)
    return CodeSpans(*(column[known] for column in columns))


def _without_overlap(exact: CodeSpans, sampled: CodeSpans, more: NDArray[np.bool_]) -> CodeSpans:
    start, end = sampled.start[more].copy(), sampled.end[more].copy()
    thread = sampled.thread[more]
    for one in np.unique(thread).tolist():
        mine, theirs = np.flatnonzero(thread == one), np.flatnonzero(exact.thread == one)
        if not len(theirs):
            continue
        theirs = theirs[np.argsort(exact.start[theirs], kind="stable")]
        middle = start[mine] + (end[mine] - start[mine]) // 2
        after = np.searchsorted(exact.start[theirs], middle)
        begins = np.append(exact.start[theirs], _LATEST)[after]
        ended = np.append(-_LATEST, exact.end[theirs])[after]
        start[mine], end[mine] = np.maximum(start[mine], ended), np.minimum(end[mine], begins)
    rest = evolve(sampled.chosen(more), start=start, end=end).chosen(end > start)
    return CodeSpans(*(np.concatenate([getattr(part, c.name) for part in (exact, rest)]) for c in fields(CodeSpans)))
