"""What a PyTorch trace says of the code behind the launches: functions of the program's own, and operators with shapes.

`with_stack` records Python functions by the line they begin at, `record_shapes` the dimensions of operators' inputs.
Both are nested; what counts at a moment is the innermost function that is the program's own, and the outermost
operator, with M×N×K of the product inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.metrics.source_owner import is_own
from llm_perf_opt.readers.kineto_json import nanoseconds
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.columns import UNKNOWN, CodeSpans, Int64s
from llm_perf_opt.regions.stacks import build_stacks, group_by

# Which of an operator's inputs are multiplied.
_PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "_scaled_mm": (0, 1), "_int_mm": (0, 1)}
_Thread = tuple[int, str]
_Row = tuple[int, int, _Thread, str]  # start, end, thread, text


@define(eq=False)
class Functions:
    """Functions of the program's own, as they come."""

    rows: list[_Row] = Factory(list)

    def add(self, event: dict[str, Any]) -> None:
        name, pid = event.get("name"), event.get("pid")
        if event.get("ph") != "X" or type(name) is not str or not isinstance(pid, int):
            return
        place = parse_place(name)
        if place is None or not is_own(place.file):
            return
        with suppress(TypeError, ValueError):  # what is damaged is counted where all events are
            start = nanoseconds(event.get("ts"))
            self.rows.append((start, start + nanoseconds(event.get("dur")), (pid, str(event.get("tid"))), name))


def product_shape(event: dict[str, Any]) -> str:
    """`512×3072×1024` for a product of 512×1024 and 1024×3072; empty where it is none, or its shapes were not recorded."""
    which = _PRODUCTS.get(str(event.get("name")).removeprefix("aten::"))
    args = event.get("args")
    dims = args.get("Input Dims") if which is not None and isinstance(args, dict) else None
    if which is None or not isinstance(dims, list) or len(dims) <= which[1]:
        return ""
    left, right = dims[which[0]], dims[which[1]]
    sizes = [*left, *right] if isinstance(left, list) and isinstance(right, list) else []
    if len(sizes) not in (4, 6) or len(left) != len(right) or not all(type(size) is int for size in sizes):
        return ""
    return "×".join(map(str, (*left[:-1], right[-1], left[-1])))


def innermost(
    rows: Sequence[_Row], threads: Mapping[_Thread, int], process_of: Sequence[int], strings: dict[str, int]
) -> CodeSpans:
    """Nested intervals as spans that do not overlap; an empty text holds as long as what is around it."""
    known = [row for row in rows if row[2] in threads and row[1] > row[0]]
    if not known:
        return CodeSpans.empty()
    start, end = (np.array([row[side] for row in known], dtype=np.int64) for side in (0, 1))
    thread = np.array([threads[row[2]] for row in known], dtype=np.int64)
    parts: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
    for number, mine in group_by(thread):
        stacks = build_stacks(start, end, mine)
        cuts = np.unique(np.concatenate([start[mine], end[mine]]))
        top = stacks.top_at(cuts[:-1])
        inside = top >= 0
        nodes = top[inside]
        labels = _labels(known, stacks.instance, stacks.parent, np.unique(nodes), strings)
        place = np.array([labels[node] for node in nodes.tolist()], dtype=np.int64)
        parts.append((cuts[:-1][inside], cuts[1:][inside], place, np.full(len(place), number)))
    begin, finish, place, owner = (np.concatenate(column) for column in zip(*parts, strict=True))
    process = np.array(process_of, dtype=np.int32)[owner]
    return CodeSpans(begin, finish, process, owner.astype(np.int32), place.astype(np.int32))


def _labels(
    rows: Sequence[_Row], instance: Int64s, parent: Int64s, nodes: Int64s, strings: dict[str, int]
) -> dict[int, int]:
    """The text of each node; that of a product is the operator around it, with its shape."""
    found = {}
    for node in nodes.tolist():
        text, outer = rows[int(instance[node])][3], node
        while text.startswith("×") and int(parent[outer]) != UNKNOWN:
            outer = int(parent[outer])
            around = rows[int(instance[outer])][3]
            text = text if around.startswith("×") else f"{around} {text[1:]}"
        found[node] = strings.setdefault(text.removeprefix("×"), len(strings))
    return found
