"""What timing a range by the host's clock takes: one after the other, and once much else has run in between."""

from __future__ import annotations

from ast import parse
from time import monotonic_ns
from typing import Any, Callable

_ROUNDS, _OTHER_BYTES = 25, 4 << 20  # more than the caches of a core hold
_OTHER_CODE = "def other(a: int, *b, **c):\n    with a as d:\n        return [f'{e}' for e in b if e is not c[d]]\n"


def range_cost(steps: tuple[Callable[[], Any], ...], forget: Callable[[], Any], between: bool) -> int:
    """The median of some rounds, in nanoseconds. `steps`: begin and end of a range; `between`: after other work."""
    others, took = bytes(_OTHER_BYTES), []
    for _ in range(_ROUNDS):
        took.append(0)
        forget()
        for step in steps:
            if between:  # what the caches hold of data, and then of code
                others.count(1)
                parse(_OTHER_CODE)
            began = monotonic_ns()
            step()
            took[-1] += monotonic_ns() - began
    return sorted(took)[_ROUNDS // 2]
