"""Kinds of collectives by their names, and what of a message has to pass a link: the bus bandwidth of NCCL's own tests.

The size of a message is that of the larger of what a rank gives and gets. Its bus bandwidth is comparable between kinds
and numbers of ranks, and with what a link can do: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import re

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all-reduce", "all-gather", "reduce-scatter", "all-to-all"
BROADCAST, EXCHANGE, OTHER = "broadcast", "exchange", "collective"
# In this order: a name may hold the words of a later kind, too.
_KINDS = {
    ALL_REDUCE: "all_?reduce|cross_device_reduce|one_shot|two_shot",
    ALL_GATHER: "all_?gather",
    REDUCE_SCATTER: "reduce_?scatter",
    ALL_TO_ALL: "all_?to_?all|a2a|dispatch|combine",
    BROADCAST: "broadcast",
    EXCHANGE: "sendrecv|send|recv",
}
# What NCCL is asked for is the message of one rank; all of them together are as many times as large.
OF_ALL_RANKS = (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)


def kind_of(name: str) -> str:
    """Of a kernel, of a function of NCCL, or as PyTorch calls it."""
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, name, re.IGNORECASE)), OTHER)


def bus_factor(kind: str, ranks: int) -> float:
    """What of a message passes the slowest link."""
    if kind == ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in OF_ALL_RANKS else 1.0
