"""Which line of the program each kernel of torch.compile was made from.

Inductor writes a module for each graph that it compiles. Its code launches one kernel after another, and its line map
says from which stack trace of the program each stretch of it comes; both come out of the FX graph cache, too. A comment
before each launch names the operators:

    # Topologically Sorted Source Nodes: [mul, relu], Original ATen: [aten.mul, aten.relu]
    triton_poi_fused_mul_relu_0.run(arg0_1, buf0, 512, stream=stream0)

So the code of these modules is marked like that of the program, with the line and the operators a kernel comes from. A
kernel that was fused from several lines is in the last one. Where nothing is certain (several kernels in one stretch, a
launch without a comment, a line that has changed since the graph was cached), the line that calls the module stays.
"""

from __future__ import annotations

import linecache
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dis import findlinestarts
from functools import wraps
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from . import log

_COMMENT = re.compile(r"\s*# (?:[\w ]*)Source Nodes: \[.*\], Original ATen: \[(?P<operators>.*)\]\s*$")
_FRAME = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d{1,9}), in (?P<function>.+)\n(?P<text>.*)', re.MULTILINE)
# Statements between launches, which launch nothing themselves.
_NO_LAUNCH = re.compile(
    r"\s*(?:\w+ = (?:empty_strided\w*|reinterpret_tensor|alloc_from_pool|get_raw_stream)\(|\w+ = \w+(?:;|$|  #)"
    r"|[\w, ]+ = args$|args\.clear\(|del |assert|return\b|pass$|with torch\.\w+\._DeviceGuard\(|torch\.\w+\.set_device\()"
)
_LARGEST = 20_000_000  # bytes of a module, or of a source file
_MOST_OPERATORS = 300  # characters


class Origin(NamedTuple):
    """What a launch was made from."""

    place: str  # `/path/train.py(33): step`
    operators: str  # `aten.mul, aten.relu`


class Generated:
    """The code of one function of a module."""

    def __init__(self, states: Mapping[int, Origin | None]) -> None:
        self.states = states  # by line; None: the line that calls the module
        before: Origin | None = None
        changes = set()
        for line, state in sorted(states.items()):
            if state != before:
                changes.add(line)
            before = state
        self.changes = frozenset(changes)  # the lines at which another state begins


Note = Callable[[CodeType, Generated], None]


def into_codecache(codecache: Any, owns: Callable[[str], bool], disown: Callable[[str], None], note: Note) -> None:
    """Have `note` called for the functions of every module that is made, or comes from the cache.

    `disown`: called before with its file, which is not the program's own wherever the cache is.
    """
    cache: Any = getattr(codecache, "PyCodeCache", None)
    loading = getattr(getattr(cache, "load_by_key_path", None), "__func__", None)
    if loading is None:
        log.trouble(
            "This version of torch.compile cannot be watched: its kernels are given the line that calls compiled code.",
            of="ranges",
        )
        return

    @wraps(loading)
    def load_by_key_path(cls: Any, key: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        disown(str(path))
        module = loading(cls, key, path, *args, **kwargs)
        try:
            linemap = args[0] if args else kwargs.get("linemap")
            if linemap:  # others are single kernels
                _read(module, str(path), linemap, owns, note)
        except Exception as error:
            log.failed("reading which line a compiled kernel comes from", error, of="ranges")
        return module

    cache.load_by_key_path = classmethod(load_by_key_path)


def _read(module: Any, path: str, linemap: Sequence[Any], owns: Callable[[str], bool], note: Note) -> None:
    if os.path.getsize(path) > _LARGEST:  # noqa: PTH202 - pathlib is slow to import
        return
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        text = file.read().split("\n")
    if text[0].startswith('r"""'):  # a block of tuning code is put before it, which the line map does not count
        return
    places: dict[str, str] = {}
    stretches = []
    for begin, trace in sorted(((int(line), str(trace or "")) for line, trace in linemap), key=lambda one: one[0]):
        if trace not in places:
            places[trace] = place_of(trace, owns)
        stretches.append((begin, places[trace]))
    for code in _codes_of(module, path):
        note(code, Generated(states_of(code, text, stretches)))


def place_of(trace: str, owns: Callable[[str], bool]) -> str:
    """The innermost line of the program's own in a stack trace, as long as the line is still what it was; or empty."""
    for file, line, function, text in reversed(_FRAME.findall(trace)):
        if owns(file):
            same = _line_of(file, int(line)).strip() == text.strip()
            return f"{file}({line}): {function}" if same else ""
    return ""


def _line_of(file: str, line: int) -> str:
    if os.path.isfile(file) and os.path.getsize(file) > _LARGEST:  # noqa: PTH113, PTH202
        return ""
    return linecache.getline(file, line) if os.path.isfile(file) or file in linecache.cache else ""  # noqa: PTH113


def states_of(code: CodeType, text: Sequence[str], stretches: Sequence[tuple[int, str]]) -> dict[int, Origin | None]:
    """Of each line of a function, what the launches in it come from."""
    first = code.co_firstlineno
    lines = sorted({line for _, line in findlinestarts(code) if line is not None and first < line <= len(text)})
    begins = [begin for begin, _ in stretches]
    found: dict[int, Origin | None] = {}
    known: dict[int, tuple[int, Origin] | None] = {}  # by stretch: it may have thousands of lines
    state: Origin | None = None
    for line in lines:
        if _NO_LAUNCH.match(text[line - 1]) is None:
            at = bisect_right(begins, line) - 1
            state = None
            if at >= 0 and begins[at] > first and stretches[at][1]:
                if at not in known:
                    end = min([*begins[at + 1 : at + 2], lines[-1] + 1])
                    known[at] = _origin(text, begins[at], end, stretches[at][1])
                origin = known[at]
                state = origin[1] if origin is not None and origin[0] <= line else None
        found[line] = state
    return found


def _origin(text: Sequence[str], begin: int, end: int, place: str) -> tuple[int, Origin] | None:
    """Of the launches in the stretch from `begin` to `end`, and from which line on."""
    comments = [(at, known) for at in range(begin, end) if (known := _COMMENT.match(text[at - 1]))]
    if len({known[0] for _, known in comments}) != 1:
        return None
    at, comment = comments[0]
    return at, Origin(place, comment["operators"][:_MOST_OPERATORS])


def _codes_of(module: Any, path: str) -> Iterator[CodeType]:
    """The functions of a module, with those of its classes."""
    for value in list(vars(module).values()):
        for member in list(vars(value).values()) if isinstance(value, type) else [value]:
            if isinstance(member, FunctionType) and member.__code__.co_filename == path:
                yield member.__code__
