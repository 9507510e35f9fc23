"""What collectives were given, where a recording says it: NCCL's payloads in nsys, arguments of kernels in PyTorch traces."""

from __future__ import annotations

import numpy as np
from attrs import define
from numpy.typing import NDArray

LARGEST_MESSAGE = 1 << 46  # bytes: more has no GPU
MOST_RANKS = 1 << 20


@define(eq=False)
class Messages:
    """One element for each collective kernel whose message is known, in the order of the kernels."""

    kernel: NDArray[np.int64]  # index into Timeline.kernels
    bytes: NDArray[np.int64]  # the larger of what a rank gives and gets
    ranks: NDArray[np.int32]  # that take part; UNKNOWN: not recorded
    what: NDArray[np.int32]  # as it was called: index into Timeline.strings
    group: NDArray[np.int32]  # name of those that take part, the same on all of them: the same; UNKNOWN: not recorded

    def __len__(self) -> int:
        return len(self.kernel)

    @staticmethod
    def of(rows: list[tuple[int, int, int, int, int]]) -> Messages:
        """Rows in the order of the columns."""
        found = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5)
        return Messages(found[:, 0], found[:, 1], *(found[:, n].astype(np.int32) for n in (2, 3, 4)))

    @staticmethod
    def empty() -> Messages:
        return Messages.of([])
