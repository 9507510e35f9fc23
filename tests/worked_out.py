"""What several tests need and one of them has worked out: recordings that were read, reports that were built, what programs said."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_MOST = 96  # values in memory: the largest are tens of megabytes
_LONG_S = 0.03  # what takes longer is written down: that takes a tenth of what building a report takes


class WorkedOut:
    """Values by what they are of: in memory, and in a folder that the workers have in common. Nobody may change one."""

    def __init__(self) -> None:
        self.folder: Path | None = None  # None: everyone has to work it out
        self._known: dict[str, Any] = {}

    def value(self, of: str, work_out: Callable[[], T]) -> T:
        found: T = self._known.pop(of) if of in self._known else self._from_others(of, work_out)
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[of] = found  # the last to go
        return found

    def _from_others(self, of: str, work_out: Callable[[], T]) -> T:
        if self.folder is None:
            return work_out()
        path = self.folder / hashlib.sha256(of.encode()).hexdigest()
        with contextlib.suppress(FileNotFoundError):
            known: T = pickle.loads(path.read_bytes())
            return known
        begun = time.perf_counter()
        found = work_out()
        if time.perf_counter() - begun > _LONG_S:
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            draft.write_bytes(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
            draft.replace(path)  # at once: others may look
        return found
