"""What PyTorch's profiler notes with the kernel of a collective: how many elements of which type, and among how many ranks."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.regions.collective_messages import LARGEST_MESSAGE, MOST_RANKS
from llm_perf_opt.regions.columns import UNKNOWN

COLLECTIVE_NAME = "Collective name"
_LONGEST, _LONGEST_GROUP = 100, 400  # characters of a name, and of the numbers of up to 30 ranks
# Bytes of an element, by the names of c10::ScalarType.
_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e5m2", "Float8_e4m3fn", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat", "UInt64"), 8),
    "ComplexDouble": 16,
}


def message_of(args: dict[str, Any]) -> tuple[str, int, int, str] | None:
    """Name, bytes, ranks and the name of their group, empty where it has none; None where they are not told, or make no sense."""
    name, dtype, ranks = args.get(COLLECTIVE_NAME), args.get("dtype"), args.get("Group size")
    counts = [args.get(f"{side} msg nelems") for side in ("In", "Out")]
    if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in _BYTES:
        return None
    elements = max((count for count in counts if type(count) is int), default=0)
    if not 0 < elements * _BYTES[dtype] <= LARGEST_MESSAGE:
        return None
    known = type(ranks) is int and 0 < ranks <= MOST_RANKS
    members = args.get("Process Group Ranks")
    group = members[:_LONGEST_GROUP] if isinstance(members, str) and any(map(str.isdecimal, members)) else ""
    return name[:_LONGEST], elements * _BYTES[dtype], ranks if known and type(ranks) is int else UNKNOWN, group
