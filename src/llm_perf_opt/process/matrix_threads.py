"""NumPy's library for matrices starts a thread for each processor when it is loaded, and those wait in a loop for work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_THREADS = "OPENBLAS_NUM_THREADS"  # read once, when the library is loaded


@contextlib.contextmanager
def no_matrix_threads() -> Iterator[None]:
    """For NumPy that is imported inside: for commands that multiply no matrices. Programs started later see nothing of it."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
