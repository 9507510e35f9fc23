"""Memory that is used again, and not given back to the system in between.

Columns of a million numbers come and go by the hundred. For each the C library asks the system for fresh pages, which
it has to clear, and gives them back: a tenth of the time of a report.
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_ARENAS = -1, -3, -8  # of glibc
_LARGEST = 2**31 - 1
_ALLOWED_EVERYWHERE = 32 << 20


def use_memory_again() -> None:
    """For this process and its forks, where its C library can. Programs that it starts are not affected."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(_MMAP_THRESHOLD, 1 << 30):
            mallopt(_MMAP_THRESHOLD, _ALLOWED_EVERYWHERE)
        mallopt(_TRIM_THRESHOLD, _LARGEST)
        mallopt(_MOST_ARENAS, 1)  # what one thread gives back, another uses
