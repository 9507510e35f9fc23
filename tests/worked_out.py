"""What tests of all workers need and one of them has worked out: recordings that were read, reports that were built."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_MOST = 96  # values of a worker: the largest are tens of megabytes


class WorkedOut:
    """Values by what they are of: in memory, and in a folder that the workers have in common. Nobody may change one."""

    def __init__(self) -> None:
        self.folder: Path | None = None  # None: there is one worker
        self._known: dict[str, Any] = {}

    def value(self, of: str, work_out: Callable[[], T], *, for_all: bool = False) -> T:
        """`for_all`: other workers are likely to ask for it. Writing it takes a tenth of what building a report takes."""
        if of not in self._known:
            while len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            self._known[of] = self._from_others(of, work_out) if for_all else work_out()
        found: T = self._known[of]
        return found

    def _from_others(self, of: str, work_out: Callable[[], T]) -> T:
        if self.folder is None:
            return work_out()
        path = self.folder / hashlib.sha256(of.encode()).hexdigest()
        with contextlib.suppress(FileNotFoundError):
            known: T = pickle.loads(path.read_bytes())
            return known
        found = work_out()
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_bytes(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
        draft.replace(path)  # at once: others may look
        return found
