"""How much a compressed recording may unpack to: more than any real one does, and far less than an archive made to fill a disk."""

from __future__ import annotations

from llm_perf_opt.errors import UnreadableInput

MAX_RATIO, SMALL = 200, 8 << 20


def most_unpacked(packed: int) -> int:
    return max(SMALL, packed * MAX_RATIO)


def unpacks_to_too_much(source: str) -> UnreadableInput:
    return UnreadableInput(
        f"{source} unpacks to more than {MAX_RATIO} times its size, which no recording does.",
        "If you trust it, unpack it yourself and give the unpacked file.",
    )
